"""Names of live actors, in one system: a dict, so every operation is O(1).

Pykka's own registry is a list shared by every library of the process; actors enter it only where
pykka's rule says so (`TrioActor.start()`) or a child spec asks for it.

Pykka makes a text of each ref it enters or strikes out, for a debug line that mostly nobody reads.
While nobody does, `cell.registered` is None for as long as that takes, and the text is short: the
urn, which is dearer than the rest of a start's books, is made when somebody asks for it.

Invariants:
    I1. A name belongs to at most one live cell.

Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pykka

from .errors import NameTakenError

if TYPE_CHECKING:
    from .cell import Cell

_pykka = logging.getLogger("pykka")


def register(cell: Cell) -> None:
    """Enter an actor into pykka's registry."""
    cell.registered = True if _pykka.isEnabledFor(logging.DEBUG) else None
    pykka.ActorRegistry.register(cell.ref)
    cell.registered = True


def unregister(cell: Cell) -> None:
    """Strike an actor out of pykka's registry."""
    cell.registered = True if _pykka.isEnabledFor(logging.DEBUG) else None
    pykka.ActorRegistry.unregister(cell.ref)
    cell.registered = False


class Names:
    """The names of one system."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def claim(self, name: str, cell: Cell) -> None:
        """Give `name` to `cell`.

        Raises:
            NameTakenError: Another live cell has it.
        """
        if self._cells.setdefault(name, cell) is not cell:
            raise NameTakenError(
                f"an actor named {name!r} is alive; nothing was started; choose another name",
                name=name,
            )

    def release(self, name: str, cell: Cell) -> None:
        """Give the name back, if it is the cell's."""
        if self._cells.get(name) is cell:
            del self._cells[name]

    def find(self, name: str) -> Cell | None:
        """Return the live cell of that name."""
        return self._cells.get(name)

    def __iter__(self) -> Iterator[str]:
        """The names of the living."""
        return iter(tuple(self._cells))
