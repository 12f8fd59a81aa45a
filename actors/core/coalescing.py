"""A user lane in which a newer message takes the place of an older one of the same key.

The lane is a deque of envelopes in which one that has a key stands in a slot; an index finds the
slot by the key. Replacing swaps the slot's envelope, so it costs the same however long the lane is.

Invariants:
    I1. `_index[key] is slot` exactly while the slot is in the lane and nobody has taken it.
    I2. `_lock` is held over every look at the index and the envelope of a slot, so an envelope is
        taken by one consumer or returned as replaced to one producer, never both and never neither.
      Nothing under it waits, and a host's code runs there only as a key's `__hash__` and `__eq__`.

`put` runs on any thread; who takes is whoever takes from the mailbox.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, cast

from .envelope import Envelope


class _Slot:
    """The place of one key in the lane."""

    __slots__ = ("envelope", "key")

    def __init__(self, key: Hashable, envelope: Envelope) -> None:
        self.key = key
        self.envelope = envelope


class CoalescingLane(deque[Envelope]):
    """A user lane with places by key. What has no key is put by `append`, as into any lane."""

    __slots__ = ("_index", "_lock")

    def __init__(self) -> None:
        super().__init__()
        self._index: dict[Hashable, _Slot] = {}
        self._lock = threading.RLock()  # A finalizer, or a key's `__eq__`, may put in its midst.

    def put(self, key: Hashable, envelope: Envelope, room: bool) -> tuple[bool, Envelope | None]:
        """Put an envelope in the place of the queued one of its key, else last if there is `room`.

        Returns:
            Whether it was put, and the envelope whose place it took.
        """
        fresh = _Slot(key, envelope)
        with self._lock:
            # In one step: an interruption that puts the same key finds the slot, or leaves its own.
            slot = self._index.setdefault(key, fresh) if room else self._index.get(key)
            if slot is None:
                return False, None
            if slot is not fresh:
                replaced, slot.envelope = slot.envelope, envelope
                return True, replaced
            self.append(cast("Envelope", fresh))
        return True, None

    def has(self, key: Hashable) -> bool:
        """Whether an envelope of this key is queued."""
        return key in self._index

    def popleft(self) -> Envelope:
        """Take the first envelope; one of its key that comes from now on goes last."""
        taken: Any = super().popleft()
        if taken.__class__ is not _Slot:
            return cast("Envelope", taken)
        with self._lock:
            del self._index[taken.key]
            envelope: Envelope = taken.envelope
        return envelope

    def __iter__(self) -> Iterator[Envelope]:
        raw: list[Any] = list(super().__iter__())
        return iter([each.envelope if each.__class__ is _Slot else each for each in raw])

    def copy(self) -> deque[Envelope]:  # type: ignore[override]
        """Return a deque of the envelopes that are in it, to look at."""
        return deque(self)

    def __getitem__(self, index: Any) -> Any:
        found: Any = super().__getitem__(index)
        return found.envelope if found.__class__ is _Slot else found
