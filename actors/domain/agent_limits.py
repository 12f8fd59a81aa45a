"""How much one agent may take of its host: messages, bytes, turns, threads.

Invariants:
    I1  A room is one for an agent, its conversations, and the ephemeral runs under its name.
    I2  A place is given back when what had it is over: a thread that nobody waits for any more
        keeps its own until it ends.

Runs in: the loop thread.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import trio

from abeyance.storage.tables.blocks import ATTACHMENT_BYTES_MAX

from .ingress import MESSAGE_BYTES_MAX

INBOX_ROWS_MAX: Final = 10_000
INBOX_BYTES_MAX: Final = 256 * 1024 * 1024
THREADS_MAX: Final = 16
"""Tool bodies in threads at once, of all agents together."""
TURNS_MAX: Final = 1_000_000

BOUNDS: Final = {
    "inbox_messages_max": INBOX_ROWS_MAX,
    "inbox_bytes_max": INBOX_BYTES_MAX,
    "message_bytes_max": MESSAGE_BYTES_MAX,
    "attachment_bytes_max": ATTACHMENT_BYTES_MAX,
    "turns_max": TURNS_MAX,
    "tool_threads_max": THREADS_MAX,
}
"""The limits that a specification may state, each from 1 up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """The limits of one agent, as its specification states them."""

    inbox_messages_max: int = INBOX_ROWS_MAX
    inbox_bytes_max: int = INBOX_BYTES_MAX
    message_bytes_max: int = MESSAGE_BYTES_MAX
    attachment_bytes_max: int = ATTACHMENT_BYTES_MAX
    turns_max: int | None = None
    tool_threads_max: int = THREADS_MAX

    @property
    def binds_slot(self) -> bool:
        """Whether its slot takes less for it than any slot does."""
        own = (self.inbox_messages_max, self.inbox_bytes_max, self.attachment_bytes_max)
        return own != (INBOX_ROWS_MAX, INBOX_BYTES_MAX, ATTACHMENT_BYTES_MAX)


DEFAULT_LIMITS: Final = AgentLimits()


class AgentRoom:
    """How many turns and tool threads there are room for, and how many there are."""

    def __init__(self) -> None:
        self._turns = trio.CapacityLimiter(math.inf)
        self._threads = trio.CapacityLimiter(THREADS_MAX)

    def limit(self, limits: AgentLimits) -> None:
        """Go by these limits from now on; what has a place keeps it."""
        self._turns.total_tokens = math.inf if limits.turns_max is None else limits.turns_max
        self._threads.total_tokens = limits.tool_threads_max

    @property
    def turns(self) -> int:
        """How many turns have a place."""
        return self._turns.statistics().borrowed_tokens

    @property
    def turns_waiting(self) -> int:
        """How many turns wait for one."""
        return self._turns.statistics().tasks_waiting

    @property
    def threads(self) -> int:
        """How many threads have a place."""
        return self._threads.statistics().borrowed_tokens

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have a place in this block: in the order in which it was asked for.

        A checkpoint on the way in. Cancelled: it asks no more.
        """
        async with self._turns:
            yield

    def threads_with(self, everyone: trio.CapacityLimiter) -> Any:
        """The limiter of a thread that needs a place here and one among everyone's."""
        return _Both(self._threads, everyone)


class _Both:
    """Two limiters as one, for `trio.to_thread.run_sync`: its own first, so that an agent at its
    bound keeps nobody else from a thread."""

    def __init__(self, own: trio.CapacityLimiter, everyone: trio.CapacityLimiter) -> None:
        self._own = own
        self._everyone = everyone

    async def acquire_on_behalf_of(self, borrower: Any) -> None:
        await self._own.acquire_on_behalf_of(borrower)
        try:
            await self._everyone.acquire_on_behalf_of(borrower)
        except BaseException:
            self._own.release_on_behalf_of(borrower)
            raise

    def release_on_behalf_of(self, borrower: Any) -> None:
        self._everyone.release_on_behalf_of(borrower)
        self._own.release_on_behalf_of(borrower)


class AgentRooms:
    """The rooms of a runtime, by agent; each is kept for as long as somebody is in it."""

    def __init__(self) -> None:
        self._rooms: WeakValueDictionary[str, AgentRoom] = WeakValueDictionary()

    def of(self, name: str, limits: AgentLimits) -> AgentRoom:
        """The room of an agent, which goes by these limits from now on."""
        room = self._rooms.get(name)
        if room is None:
            room = self._rooms[name] = AgentRoom()
        room.limit(limits)
        return room
