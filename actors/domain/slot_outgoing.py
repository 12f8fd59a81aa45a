"""What a slot has planned and the journal was not handed yet. No actor.

Invariants:
    I1  Requests are handed over in the order in which they were planned.
    I2  A message joins the last request only, and none that was handed over: what was planned
        between two messages stands between their rows.
    I3  A request of many rows is made in steps: what is ahead of it does not wait for it, what is
        behind does.
    I4  What was dropped is never handed over, though its rows were being made.

Runs in: the loop thread; `hand_over` in a task of the slot actor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from abeyance.storage.store import Chain, Guard, Request

from .slot_accepts import Accepts
from .slot_acts import Act
from .slot_long import LongRequest, Planned

HAND_OVER_MAX: Final = 32
"""Requests handed to the journal in one message: as many as it answers before the loop gets a
turn, for they are answered in one."""

Part: TypeAlias = list[tuple[Request, Sequence[Act]]]
"""What the journal is handed in one message, and the acts that each request decides."""


class Together(NamedTuple):
    """Messages whose acceptance is one request."""

    accepts: Accepts
    acts: list[Act]


class Outgoing:
    """One slot's, of this incarnation. See the module's invariants.

    Args:
        standing: The guard and the chain of requests that are made now.
        send: Hands a part to the journal, which weighs so much.
    """

    def __init__(
        self, standing: Callable[[], tuple[Guard, Chain]], send: Callable[[Part, int], None]
    ) -> None:
        self._standing = standing
        self._send = send
        self._planned: list[tuple[Planned | Accepts, Sequence[Act]]] = []
        self._has_planned = trio.Event()
        self._drops = 0
        self.open: Together | None = None
        """The last that is planned, if more messages may join it."""

    def plan(
        self, requests: Sequence[Planned | Accepts], acts: Sequence[Act] = (), *, due: int = 1
    ) -> None:
        """Plan requests; the first of them, as many as are due, decide the acts."""
        if requests:
            if not self._planned:
                self._has_planned.set()
            self.open = None
            self._planned += [
                (request, acts if place < due else ()) for place, request in enumerate(requests)
            ]

    def begin(self, together: Together, *, alone: bool) -> None:
        """Plan a request that messages may join, unless its first is to be alone."""
        if not self._planned:
            self._has_planned.set()
        self._planned.append((together.accepts, together.acts))
        self.open = None if alone else together

    def drop(self) -> None:
        """Forget what was planned: the state it was planned on is no more."""
        self._planned, self.open = [], None
        self._drops += 1

    async def hand_over(self) -> None:
        """Hand what was planned to the journal, for ever: all that one drain of the mailbox
        planned."""
        while True:
            await self._has_planned.wait()
            self._has_planned = trio.Event()
            planned, self._planned, self.open = self._planned, [], None
            part: Part = []
            weight = 0
            for request, acts in planned:
                if isinstance(request, LongRequest):
                    self._hand(part, weight)
                    encoded = await self._encoded(request)
                    if encoded is None:
                        part = []
                        break
                    part, weight = [(encoded, acts)], 1
                    continue
                weighs = request.count if isinstance(request, Accepts) else 1
                if part and weight + weighs > HAND_OVER_MAX:
                    self._hand(part, weight)
                    part, weight = [], 0
                if isinstance(request, Accepts):
                    request = request.request(*self._standing())
                part.append((request, acts))
                weight += weighs
            self._hand(part, weight)

    def _hand(self, part: Part, weight: int) -> None:
        if part:
            self._send(part, weight)

    async def _encoded(self, request: LongRequest) -> Request | None:
        """Make the rows of a request, in steps; None where it was dropped meanwhile, and all that
        is behind it."""
        drops, steps = self._drops, request.encoded()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                encoded: Request = done.value
                return encoded
            await trio.lowlevel.checkpoint()
            if self._drops != drops:
                return None
