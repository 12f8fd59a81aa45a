"""Who may ask whom, and on whose behalf something runs.

The chain of who is awaiting whom is a tuple of links in a context variable: it follows a task into
its children and, through `trio.to_thread`, into threads. An ask to an actor that is in the chain
could never be answered, so it is refused before it is sent. Rings that are closed from two sides
are in no chain: `waits` finds those.

Invariants:
    I1. A chain holds an actor at most once. Actors are told apart by their cells: two systems of a
        process may each have one of the same name.
    I2. An ask that `check_ring` lets pass closes no ring of waiting handlers that the chain knows.

No thread of its own; every function here may be called on any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trio.lowlevel import in_trio_task

from .errors import AskCycleError, StopCycleError, UndeclaredAskError

if TYPE_CHECKING:
    from .cell import Cell
    from .future import Target
    from .system import ActorSystem


class Named(NamedTuple):
    """A link that somebody put into the chain by a name.

    Attributes:
        name: An actor's.
        system: Whose actors are meant; None is any.
    """

    name: str
    system: ActorSystem | None


class Owed:
    """A link of a task that works for a reply which is owed: its actor does not wait for it, but
    those before it in the chain do, until the reply is given."""

    __slots__ = ("cell", "target")

    def __init__(self, cell: Cell, target: Target) -> None:
        self.cell = cell
        self.target = target


class Lent:
    """A link of an actor whose handler blocks a thread, where something runs for that thread."""

    __slots__ = ("cell", "handling")

    def __init__(self, cell: Cell, handling: object) -> None:
        self.cell = cell
        self.handling = handling


class Tied:
    """A link of a task that ends with its actor's incarnation: nobody waits for what it does but
    that end, and that only for its threads, which are not cut off as the task is.

    `threaded` tells a thread, and what runs for one, from the task itself: `waits` sets it.
    """

    __slots__ = ("cell", "threaded")

    def __init__(self, cell: Cell, *, threaded: bool = False) -> None:
        self.cell = cell
        self.threaded = threaded


ENDING: Final = object()
"""In the place of a message: what is to be waited for is an actor's end, and no reply of it."""

Link: TypeAlias = "Cell | Named | Owed | Lent | Tied"

Stance: TypeAlias = "tuple[tuple[Link, ...], str | None]"
"""The chain up to and with the running actor, and the running actor's role."""

IDLE: Final[Stance] = ((), None)
STANCE: Final[ContextVar[Stance]] = ContextVar("abeyance_stance", default=IDLE)


def chain(system: ActorSystem | None = None) -> tuple[str, ...]:
    """Return the names of who waits, outermost first, for what runs here.

    Not a checkpoint.

    Args:
        system: Whose actors are meant. None is any.
    """
    return tuple(
        name_of(link)
        for link in standing(STANCE.get()[0])
        if link.__class__ not in (Owed, Tied)
        and (system is None or _system(link) in (None, system))
    )


def links() -> tuple[Link, ...]:
    """Return the chain as `in_chain` takes it, for what another thread or task does meanwhile.

    Not a checkpoint. What runs here is to wait for that.
    """
    found = here(STANCE.get()[0])
    if not found or found[-1].__class__ in _MADE:
        return found
    last: Any = found[-1]
    return (*found[:-1], Lent(last, last.handling))


def untied(chained: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return who waits for a task itself, whose actor's end waits for its threads only."""
    tie = _tie(chained)
    return chained if tie is None else tuple(link for link in chained if link is not tie)


def here(chained: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return who waits for what runs here, which is a task or one of its threads."""
    tie = _tie(chained)
    if tie is None:
        return chained
    if in_trio_task():
        return untied(chained)
    threaded = Tied(tie.cell, threaded=True)
    return tuple(threaded if link is tie else link for link in chained)


def _tie(chained: tuple[Link, ...]) -> Tied | None:
    """Return the link of the task that is told from its threads yet, if the chain ends in one."""
    for link in reversed(chained):
        if isinstance(link, Tied):
            return None if link.threaded else link
        if not isinstance(link, Named):
            break
    return None


@contextmanager
def in_chain(*names: str | Link, system: ActorSystem | None = None) -> Iterator[None]:
    """Add names to the chain for the block, and for the tasks and threads started in it.

    Not a checkpoint. What is in the chain already is not added twice.

    Args:
        names: Actor names, so that an ask to one of them is refused inside the block; or what
            `links()` returned.
        system: Whose actors the names are. None is any system's.
    """
    before, role = STANCE.get()
    added = (Named(name, system) if isinstance(name, str) else name for name in names)
    token = STANCE.set(((*before, *(link for link in added if link not in before)), role))
    try:
        yield
    finally:
        STANCE.reset(token)


@contextmanager
def in_role(role: str | None) -> Iterator[None]:
    """Ask in another role for the block: a host's code run by an actor's task, say.

    Not a checkpoint.

    Args:
        role: The role that asks are checked against; None is checked against nothing.
    """
    token = STANCE.set((STANCE.get()[0], role))
    try:
        yield
    finally:
        STANCE.reset(token)


class AskTable:
    """The declared table: which roles a role may ask.

    Args:
        allowed: From each role to the roles it may ask. A role that is missing may ask none.
    """

    __slots__ = ("_allowed",)

    def __init__(self, allowed: Mapping[str, Collection[str]]) -> None:
        self._allowed = {role: frozenset(asked) for role, asked in allowed.items()}

    def allows(self, asker: str, asked: str) -> bool:
        """Whether `asker` may ask `asked`."""
        return asked in self._allowed.get(asker, ())

    def find_cycle(self) -> tuple[str, ...] | None:
        """Return a ring of roles that may ask one another, the first again at the end, or None."""
        done: set[str] = set()
        for root in self._allowed:
            path: dict[str, Iterator[str]] = {}
            node: str | None = root
            while node is not None:
                if node in path:
                    names = list(path)
                    return (*names[names.index(node) :], node)
                if node not in done:
                    path[node] = iter(sorted(self._allowed.get(node, ())))
                node = None
                while path and node is None:
                    last = next(reversed(path))
                    node = next(path[last], None)
                    if node is None:
                        del path[last]
                        done.add(last)
        return None


def check_ring(chained: tuple[Link, ...], asked: Cell, message: Any) -> None:
    """Refuse to wait for an actor that waits itself.

    Raises:
        AskCycleError: The asked actor is in the chain.
        StopCycleError: So it is, and its end would be waited for.
    """
    killed = message is ENDING and asked.being_killed
    waiting = standing(chained)
    for place, link in enumerate(waiting):
        if killed and link.__class__ is not Tied:
            continue  # What it waits for is cancelled.
        if link is asked or (link.__class__ in _MADE and _means(link, asked, message)):
            raise cycle((*map(name_of, waiting[place:]), asked.key), message)


def cycle(ring: tuple[str, ...], message: Any) -> AskCycleError:
    """Return the error of who would close a ring."""
    if message is ENDING:
        return StopCycleError(
            f"{' -> '.join(ring)}: waiting for this end would never end; it is not waited for; "
            "stop it with block=False, or yourself by self.stop(), and go on",
            ring=ring,
            message=None,
        )
    return AskCycleError(
        f"{' -> '.join(ring)}: waiting for this reply would never end; it is not waited for; "
        "tell it, or take the reply later",
        ring=ring,
        message=message,
    )


_MADE: Final = frozenset({Named, Owed, Lent, Tied})


_ENDLESS: Final = frozenset({Named, Tied})
"""Links of who handles nothing that could be over."""


def standing(chained: tuple[Link, ...]) -> tuple[Link, ...]:
    """Return who still waits: nobody does for a reply that was given, or given up."""
    for place in range(len(chained) - 1, -1, -1):
        link: Any = chained[place]
        if link.__class__ is Owed:
            if link.target.over:
                return chained[place + 1 :]
        elif place and link.__class__ not in _ENDLESS and getattr(link.handling, "over", False):
            return chained[place:]  # It goes on itself, for nobody.
    return chained


def _means(link: Any, asked: Cell, message: Any) -> bool:
    """Whether a link that is no cell is one of this actor, which waits."""
    if link.__class__ is Tied:
        return message is ENDING and link.cell is asked
    if link.__class__ is Named:
        return link.name == asked.key and link.system in (None, asked.system)
    return link.__class__ is Lent and link.cell is asked


def name_of(link: Any) -> str:
    if link.__class__ is Named:
        return str(link.name)
    return str(cell_of(link).key)


def _system(link: Any) -> ActorSystem | None:
    found: ActorSystem | None = link.system if link.__class__ is Named else cell_of(link).system
    return found


def cell_of(link: Any) -> Any:
    return link.cell if isinstance(link, (Owed, Lent, Tied)) else link


def check_table(stance: Stance, role: str | None, table: AskTable | None, message: Any) -> None:
    """Refuse an ask that the table does not hold.

    Raises:
        UndeclaredAskError: Both have a role and the table does not hold the pair.
    """
    asker = stance[1]
    if table is None or asker is None or role is None or table.allows(asker, role):
        return
    raise UndeclaredAskError(
        f"{asker} may not ask {role}; nothing was sent; "
        "declare the pair in the table of asks, or tell it",
        asker=asker,
        asked=role,
        message=message,
    )
