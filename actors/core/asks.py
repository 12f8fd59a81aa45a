"""Who may ask whom, and who waits for whom.

The chain of who is awaiting whom is a tuple of actor keys in a context variable: it follows a task
into its children and, through `trio.to_thread`, into threads. An ask to an actor whose key is in
the chain could never be answered, so it is refused before it is sent.

Invariants:
    I1. A chain holds a key at most once.
    I2. An ask that `check_ring` lets pass closes no ring of waiting handlers that the chain knows.

No thread of its own; every function here may be called on any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from .errors import AskCycleError, UndeclaredAskError

Stance: TypeAlias = "tuple[tuple[str, ...], str | None]"
"""The chain up to and with the running actor, and the running actor's role."""

IDLE: Final[Stance] = ((), None)
STANCE: Final[ContextVar[Stance]] = ContextVar("abeyance_stance", default=IDLE)


def chain() -> tuple[str, ...]:
    """Return the names of who waits, outermost first, for what runs here.

    Not a checkpoint.
    """
    return STANCE.get()[0]


@contextmanager
def in_chain(*names: str) -> Iterator[None]:
    """Add names to the chain for the block, and for the tasks and threads started in it.

    Not a checkpoint. A name that is in the chain already is not added twice.

    Args:
        names: Actor names, so that an ask to one of them is refused inside the block.
    """
    names_before, role = STANCE.get()
    token = STANCE.set(
        ((*names_before, *(name for name in names if name not in names_before)), role)
    )
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


def check_ring(names: tuple[str, ...], key: str, message: Any) -> None:
    """Refuse to wait for an actor that waits itself.

    Raises:
        AskCycleError: The asked actor is in the chain.
    """
    if key in names:
        ring = (*names[names.index(key) :], key)
        raise AskCycleError(
            f"{' -> '.join(ring)}: waiting for this reply would never end; it is not waited for; "
            "tell it, or take the reply later",
            ring=ring,
            message=message,
        )


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
