"""Requests of many rows, planned at once and encoded a part at a time. No actor.

A slot decides in one step what a request does, for the next is planned on it. What its rows look
like is told from then on, and may take the loop several steps: nothing of it is handed over before
all of it is made, and what was planned behind it waits for it.

Invariants:
    I1  What is encoded later is what would have been encoded at once: the rows are told from
        records and numbers that nobody changes.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from abeyance.storage.ahead import make_ready
from abeyance.storage.store import Append, Chain, Delete, Guard, Limits, Put, Request

LONG_ROWS: Final = 128
"""Messages from which a request is encoded in steps; fewer are within a step's time."""
STEP_OPS: Final = 256
"""Guards, puts and deletes that are made in a step: about half a millisecond."""

Op: TypeAlias = Guard | Put | Delete


class LongRequest:
    """A request whose rows are not made yet.

    Args:
        ops: Makes them, in order; of two that name a key alike the later stands.
    """

    __slots__ = ("_appends", "_chain", "_limits", "_ops", "guards")

    def __init__(
        self,
        chain: Chain,
        limits: Limits,
        guards: tuple[Guard, ...],
        ops: Callable[[], Iterable[Op]],
        appends: tuple[Append, ...] = (),
    ) -> None:
        self._chain = chain
        self._limits = limits
        self._ops = ops
        self._appends = appends
        self.guards = guards

    def encoded(self) -> Generator[None, None, Request]:
        """Make the rows, a part a step; returns the request."""
        guards, puts, deletes = list(self.guards), dict[Any, Put](), dict[Any, Delete]()
        for place, op in enumerate(self._ops(), 1):
            if isinstance(op, Put):
                puts[op.table, op.key] = op
            elif isinstance(op, Delete):
                deletes[op.table, op.key] = op
            else:
                guards.append(op)
            if place % STEP_OPS == 0:
                yield
        request = Request(
            guards=tuple(guards),
            puts=tuple(puts.values()),
            deletes=tuple(deletes.values()),
            appends=self._appends,
            chain=self._chain,
        )
        return (yield from make_ready(request, self._limits))


Planned: TypeAlias = Request | LongRequest


def guarded(request: Planned, guard: Guard) -> Planned:
    """The same under one more guard."""
    if isinstance(request, LongRequest):
        request.guards = (*request.guards, guard)
        return request
    return replace(request, guards=(*request.guards, guard))


def whole(request: Planned) -> Request:
    """The same, encoded at once."""
    if not isinstance(request, LongRequest):
        return request
    steps = request.encoded()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            encoded: Request = done.value
            return encoded
