"""Which places of a slot the next request carries, as few inclusive ranges. No actor, no await.

Invariants:
    I1  The rows in the ranges that are no markers are exactly what the next request carries. A
        range may span markers, and places whose rows are gone.
    I2  Ranges are in order and do not touch; but a place that was dropped is between two.

Runs in: the loop thread; one slot's book.
"""

from __future__ import annotations

from .slot_reading import joined


class SlotRanges:
    """One slot's. See the module's invariants."""

    def __init__(self) -> None:
        self.spans: list[list[int]] = []
        self._reach = 0
        """Behind this place nothing is."""
        self._grows = True
        """Between it and the last range nothing is but markers."""

    def carries(self, first: int, last: int) -> None:
        """Rows at the end: they extend the last range where nothing else lies between."""
        if self.spans and self._grows and self._reach == first - 1:
            self.spans[-1][1] = last
        else:
            self.spans.append([first, last])
        self._reach, self._grows = last, True

    def skips(self, seq: int) -> None:
        """A row that no request carries: the last range may go on behind it."""
        if self._reach == seq - 1:
            self._reach = seq

    def keep(self, kept: list[list[int]], to: int) -> None:
        """What is behind a place is carried no more."""
        self.spans, self._reach = kept, min(self._reach, to)

    def drop(self, seq: int) -> None:
        """A row that was taken out: whatever comes back to its place was in no request since."""
        spans: list[list[int]] = []
        for first, last in self.spans:
            if not first <= seq <= last:
                spans.append([first, last])
                continue
            spans += [[first, seq - 1]] if first < seq else []
            spans += [[seq + 1, last]] if seq < last else []
        self.spans = spans
        self._grows = self._grows and bool(spans) and spans[-1][1] > seq

    def restore(self, seq: int) -> None:
        """A row that is back at its place."""
        if seq > self._reach:
            self.carries(seq, seq)
            return
        spans = tuple((first, last) for first, last in self.spans)
        self.spans = [[first, last] for first, last in joined(spans, ((seq, seq),))]
