"""Who is kept waiting by whom right now: the waits that handlers are in, and the rings they close.

The chain of asks (`asks`) says on whose behalf something runs, and finds a ring that one message
after another walks into. Two handlers that each began by themselves and then ask each other are in
no chain of one another. Here each wait is written down for as long as it lasts, with the actor that
handles nothing else meanwhile, so that whoever would close a ring finds it.

Only what is awaited inside a handler, a hook or a task that works for an owed reply is looked at,
and costs what the ring it might close is long. A tell, and a host's ask, costs nothing.

Invariants:
    I1. A wait is in `cell.waits` of who waits from before its ring is looked for until it is over.
        The two steps are under one lock: of those that close a ring together the last finds it.
    I2. A wait stands only while it keeps its actor: one of a task that the handler does not wait
        for is not written down, one of a thread ends with the handling that it was for, and one of
        a task that works for an owed reply is that reply's.

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trio.lowlevel import current_task, in_trio_task

from .asks import (
    ENDING,
    STANCE,
    Lent,
    Link,
    Named,
    Owed,
    Tied,
    cell_of,
    check_ring,
    cycle,
    here,
    name_of,
    standing,
)

if TYPE_CHECKING:
    from .cell import Cell
    from .future import Target
    from .supervisor import Supervisor

_LOCK: Final = threading.RLock()
"""Nothing under it waits or runs a host's code; a finalizer that asks may interrupt its holder."""


class Waiter(NamedTuple):
    """Who is kept by what waits here.

    Attributes:
        cell: The actor.
        owed: The reply that is worked for, where it is that which waits, and not the actor.
        handling: What the actor handles meanwhile; None where its own task waits.
        tied: Whether it is the actor's end that is kept, by a thread of a task of it.
    """

    cell: Cell
    owed: Target | None
    handling: object | None
    tied: bool = False


class Wait:
    """One wait: for a reply, for an end, or for a group that starts its children."""

    __slots__ = ("_asked", "_group", "ending", "future", "waiter")

    def __init__(
        self,
        waiter: Waiter,
        asked: Cell | None,
        future: Target | None,
        group: Supervisor | None = None,
        *,
        ending: bool = False,
    ) -> None:
        self.waiter = waiter
        self.future = future
        self.ending = ending  # Whether it is for the actor's end.
        self._asked = asked
        self._group = group
        cell = waiter.cell
        if cell.waits is None:
            cell.waits = {}
        cell.waits[self] = None

    def end(self) -> None:
        """Forget it."""
        waits = self.waiter.cell.waits
        if waits is not None:
            waits.pop(self, None)

    @property
    def asked(self) -> Cell | None:
        """Whom it waits for now: of a group that is the child whose start the group waits for."""
        return self._asked if self._group is None else self._group.starting_cell

    def stands(self) -> bool:
        """Whether it keeps who waits from anything else."""
        cell, owed, handling, _ = self.waiter
        if self.future is not None and self.future.settled:
            return False
        if owed is not None:
            return owed in cell.owed and not owed.settled
        return handling is None or (handling is cell.handling and cell.box.parked is None)


def waiter_here() -> Waiter | None:
    """Return who would be kept by what waits here; None where that is nobody."""
    return _waiter(chain_here())


def chain_here() -> tuple[Link, ...]:
    """Return who waits for what runs here.

    Not who started it: nobody waits for a task in somebody else's nursery.
    """
    chained = here(STANCE.get()[0])
    for link in reversed(chained):
        if isinstance(link, Named):
            continue
        if not isinstance(link, (Owed, Lent, Tied)) and in_trio_task() and not _belongs(link):
            return tuple(each for each in chained if isinstance(each, Named))
        break
    return chained


def check_end(name: str, ends: Callable[[Cell], bool]) -> None:
    """Refuse to wait for the end of several actors from inside one of them, or on its behalf.

    Names that were put into the chain are not looked at: whose they are, only their owner knows.

    Args:
        name: What ends with them: a child, a group or a system.
        ends: Whether an actor is one of them.

    Raises:
        StopCycleError: One of them waits for what runs here.
    """
    waiting = standing(chain_here())
    for place, link in enumerate(waiting):
        if isinstance(link, (Named, Owed)):
            continue
        cell = cell_of(link)
        if ends(cell) and (isinstance(link, Tied) or not cell.being_killed):
            raise cycle((*map(name_of, waiting[place:]), name, cell.key), ENDING)


def check_asked(chained: tuple[Link, ...], asked: Cell, message: Any) -> None:
    """Refuse an ask that is to be waited for here and could not be answered.

    Raises:
        AskCycleError: The asked actor waits, directly or through others, for who would wait here.
    """
    check_ring(chained, asked, message)
    # Nobody waits inside most actors, and then nobody has to be found who would be kept.
    if asked.waits and not (message is ENDING and asked.being_killed):
        waiter = _waiter(chained)
        ring = None if waiter is None else _ring(waiter, asked, None, message is ENDING)
        if ring is not None:
            raise cycle(ring, message)


def check_room(cell: Cell, message: Any) -> None:
    """Refuse to wait for room in the mailbox of an actor that waits, meanwhile, for who would wait.

    Raises:
        AskCycleError: It would take no message until this one has been put; nothing was sent.
    """
    chained = chain_here()
    if chained:
        check_asked(chained, cell, message)


def begin(asked: Cell, future: Target, message: Any) -> Wait | None:
    """Write down that a reply is waited for here; None where nobody is kept by it.

    Raises:
        AskCycleError: As `check_asked`; nothing was written down.
    """
    chained = chain_here()
    check_ring(chained, asked, message)
    waiter = _waiter(chained)
    if waiter is None:
        return None
    with _LOCK:
        wait = Wait(waiter, asked, future, ending=message is ENDING)
        ring = _ring(waiter, asked, future, message is ENDING)
        if ring is None or (message is ENDING and asked.being_killed):
            return wait
        wait.end()
    raise cycle(ring, message)


@contextmanager
def waiting_for(group: Supervisor) -> Iterator[None]:
    """Write down, for the block, that a group is waited for here: for its turn, and for starts.

    Raises:
        AskCycleError: The child that it starts now waits for who would wait; nothing was done.
    """
    waiter = waiter_here()
    if waiter is None:
        yield
        return
    with _LOCK:
        wait = Wait(waiter, None, None, group)
        starts = wait.asked
        ring = None if starts is None else _ring(waiter, starts, None, False)
        if ring is not None:
            wait.end()
    if ring is not None:
        raise cycle(ring, None)
    try:
        yield
    finally:
        wait.end()


def _waiter(chained: tuple[Link, ...]) -> Waiter | None:
    tied: Waiter | None = None
    for link in reversed(chained):
        if isinstance(link, Named):
            continue
        if isinstance(link, Tied):
            # Where it works for a reply that is owed, that one is told of in its place.
            tied = Waiter(link.cell, None, None, tied=True)
            continue
        if isinstance(link, Owed):
            return Waiter(link.cell, link.target, None)
        if isinstance(link, Lent):
            return Waiter(link.cell, None, link.handling)
        if not in_trio_task():
            return Waiter(link, None, link.handling)
        return Waiter(link, None, None)
    return tied


def _belongs(cell: Cell) -> bool:
    """Whether the cell's task waits for the running one: it is that, or in a nursery of it."""
    own = cell.task
    task = current_task()
    while task is not own:
        nursery = task.parent_nursery
        if nursery is None:
            return False
        task = nursery.parent_task
    return True


def _ring(
    waiter: Waiter, asked: Cell, future: Target | None, ending: bool
) -> tuple[str, ...] | None:
    """Return the names from who would wait back to it, where its wait closes a ring."""
    origin, worked_for, _, tied = waiter
    start: tuple[str, ...] = (origin.key,)
    paths = [(asked, future, ending, start)]
    seen: set[tuple[Cell, Target | None, bool]] = set()
    while paths:
        cell, target, ending, names = paths.pop()
        names = (*names, cell.key)
        # A reply that is owed does not wait for the actor's handler, but for whoever is to give it.
        owed = target if target is not None and target in cell.owed else None
        # What only the end of its actor waits for keeps no reply of it.
        if cell is origin and (ending if tied else owed is worked_for):
            return names
        if (cell, owed, ending) in seen:
            continue
        seen.add((cell, owed, ending))
        paths += [
            (whom, wait.future, wait.ending, names)
            for wait in list(cell.waits or ())
            if (ending if wait.waiter.tied else wait.waiter.owed is owed)
            and wait.stands()
            and (whom := wait.asked) is not None
        ]
    return None
