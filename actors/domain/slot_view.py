"""What a slot shows to whoever looks at it without asking: its book, and that something moved.

Runs in: the loop thread; written by the slot actor and its runtime.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from .slot_book import SlotBook
from .streaming import Stream


class SlotView:
    """One slot's; outlives its actor's crashes.

    Args:
        stirred: Told of each stir, and of the end. Neither blocks nor raises.
    """

    def __init__(self, stirred: Callable[[], object] = lambda: None) -> None:
        self._stirred = stirred
        self.book: SlotBook | None = None
        """The slot's mirror; None until it has read it."""
        self.stirs = 0
        """How often something that the slot handed over was answered."""
        self.ended = False
        """Nothing moves here any more: the agent, or its runtime, has ended."""
        self.streams: list[Stream] = []
        """Of the agents that speak in this slot: told that rows may have changed."""
        self._watchers = trio.lowlevel.ParkingLot()

    def stir(self) -> None:
        """What was handed over is in, or refused: rows may have changed."""
        self.stirs += 1
        self._stirred()
        for stream in self.streams:
            stream.mark()
        if self._watchers:
            self._watchers.unpark_all()

    def end(self) -> None:
        """Nothing moves any more. Idempotent."""
        self.ended = True
        self._stirred()
        self._watchers.unpark_all()
        for stream in self.streams:
            stream.end()

    async def wait_stirred(self, since: int) -> None:
        """Wait until something moved since a number of stirs was read, or nothing does any more.

        A checkpoint only where it waits. Cancelled: nothing happens.
        """
        while self.stirs == since and not self.ended:
            await self._watchers.park()
