"""How an actor comes into a system: its name, its place under a supervisor, its way from a thread.

Invariants:
    I1. An actor that could not be started has ended, and nobody knows of it.
    I2. A cell is handed over to the loop once; from then on only the loop ends it.

`start_as` runs on any thread, what `run_sync_soon` is given on the loop thread.
"""

from __future__ import annotations

import logging
from threading import get_ident
from typing import TYPE_CHECKING, Any

import trio

from .cell import Cell
from .errors import ActorDeadError, NameTakenError
from .logs import Log
from .ref import TrioActorRef
from .registry import register as register_with_pykka
from .specs import check_name

if TYPE_CHECKING:
    from .actor import TrioActor
    from .system import ActorSystem

logger = Log("abeyance.core")


def start_as(
    system: ActorSystem,
    actor_class: type[TrioActor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None,
    register: bool,
) -> TrioActorRef[Any]:
    """Start as `start` does, and where asked register with `pykka.ActorRegistry`."""
    if name is not None:
        check_name("name", name)
    foreign = get_ident() != system.ident
    if system.stopping or system.ident == -1 or (system.refusing and foreign):
        raise not_running(system)
    cell = Cell(system, system.user, actor_class, args, kwargs, name)
    if name is not None:
        _check_unnamed(system, name)
        system.names.claim(name, cell)
    system.cells[cell] = None
    try:
        if name is not None:
            system.user.check_free(name)
        cell.make()
        if register:
            register_with_pykka(cell)
            if logger.logger.isEnabledFor(logging.DEBUG):
                logger.debug("Starting %s", cell.ref, actor=cell.key)
        if not foreign:
            system.user.adopt(cell)
    except BaseException:
        cell._end(None)
        raise
    if foreign:
        _hand_over(system, cell)
    return cell.ref


def _hand_over(system: ActorSystem, cell: Cell) -> None:
    """Have the loop take a cell that this thread, another one, has started."""
    try:
        system.token.run_sync_soon(adopt, system, cell)
    except trio.RunFinishedError as exc:
        cell._end(None)
        raise not_running(system) from exc
    except BaseException:
        # Interrupted: the loop may have it, or may be just about to take it.
        if not system.on_loop(_give_up, system, cell):
            cell._end(None)
        raise


def _give_up(system: ActorSystem, cell: Cell) -> None:
    """End a cell that nobody knows of. Runs under run_sync_soon: it does not raise."""
    cell.ending = True
    if system.user.has(cell):
        cell.stop_now()
    else:
        cell._end(None)


def adopt(system: ActorSystem, cell: Cell) -> None:
    """Take a cell that a host thread started. Runs under run_sync_soon: it does not raise."""
    if system.stopping:
        cell._end(None)
        return
    try:
        system.user.adopt(cell)
    except NameTakenError as exc:  # By one that was on its way from another thread, too.
        logger.warning("%s", exc, actor=cell.key)
        cell._end(exc)


def enter(system: ActorSystem, cell: Cell, *, register: bool) -> None:
    """Take a new cell into the system's books.

    Raises:
        NameTakenError: A live actor has its name.
    """
    if cell.name is not None:
        _check_unnamed(system, cell.name)
        system.names.claim(cell.name, cell)
    system.cells[cell] = None
    if register:
        register_with_pykka(cell)


def _check_unnamed(system: ActorSystem, name: str) -> None:
    """Refuse what an actor that nobody named is known by, under whichever supervisor.

    Raises:
        NameTakenError: One is.
    """
    kind, _, number = name.rpartition("-")
    if not number.isdecimal() or kind not in system.unnamed:
        return  # Only such a name may be one: nobody else pays for looking at all that live.
    if any(cell.key == name and cell.name is None for cell in list(system.cells)):
        raise NameTakenError(
            f"an actor that nobody named is known as {name!r}; nothing was started; "
            "choose another name",
            name=name,
        )


def not_running(system: ActorSystem) -> ActorDeadError:
    """Return the error of who comes before it runs, or after."""
    return ActorDeadError(
        f"{system} does not run; nothing was done; use a running system",
        actor=system.name,
        message=None,
    )
