"""The books of systems with faults: what was accepted is handled, dead, quarantined, or there.

accepted = handled + dead letters + quarantined + queued + stashed + owed + in flight, for every
actor and at every instant at which its own task does not run, where one that its running handler
stashed counts as stashed; and when a system has ended, the last four are 0,
every reply has come or failed, and nobody is in its registers.

A running system is looked at on its loop thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING

from abeyance.actors.core.envelope import TELL, Answer, Ended, Reminder, StopPill
from abeyance.actors.core.future import Target, TrioFuture

if TYPE_CHECKING:
    from abeyance.actors.core.cell import Cell
    from abeyance.actors.core.system import ActorSystem

    from .fault_points import FaultyMailbox


class Accounts:
    """The books of every system that has the same faults."""

    def __init__(self) -> None:
        self._systems: list[ActorSystem] = []
        self._boxes: list[FaultyMailbox] = []
        self._lock = threading.Lock()

    def add_system(self, system: ActorSystem) -> None:
        with self._lock:
            self._systems.append(system)

    def add_mailbox(self, box: FaultyMailbox) -> None:
        with self._lock:
            self._boxes.append(box)

    def check(self) -> None:
        """Raise AssertionError with a line for everything that does not add up."""
        wrong: list[str] = []
        for system in list(self._systems):
            boxes = [box for box in list(self._boxes) if box.cell.system is system]
            wrong += _looked_at(system, boxes)
        if wrong:
            raise AssertionError("\n".join(["the accounts do not add up:", *wrong]))


def _looked_at(system: ActorSystem, boxes: list[FaultyMailbox]) -> list[str]:
    if system.ended or get_ident() == system.ident:
        return list(_wrong(system, boxes))
    found: TrioFuture[list[str]] = TrioFuture()

    def look() -> None:
        found._answer(list(_wrong(system, boxes)))

    # A run that has just ended is not asked any more; what is left is as it will stay.
    return found.get() if system.on_loop(look) else list(_wrong(system, boxes))


def _wrong(system: ActorSystem, boxes: list[FaultyMailbox]) -> Iterator[str]:
    for box in boxes:
        yield from _wrong_of(box, system)
    if system.ended:
        yield from left_behind(system)


def _wrong_of(box: FaultyMailbox, system: ActorSystem) -> Iterator[str]:
    cell = box.cell
    with box.books:
        there = _there(cell)
        # What comes by itself is no message that was accepted, unless it was replayed.
        others = sum(
            entry.actor == cell.key
            and entry.origin is None
            and isinstance(entry.message, Answer | Ended | Reminder)
            for entry in system.quarantine.entries
        )
        parts = {
            "handled": cell.handled,
            "dead": cell.dead,
            "quarantined": cell.quarantined - others,
            **{name: len(found) for name, found in there.items()},
        }
        if box.accepted != sum(parts.values()):
            said = " + ".join(f"{count} {name}" for name, count in parts.items())
            yield f"  {cell}: {box.accepted} accepted, but {said}"
        waiting = {id(target) for found in there.values() for target in found}
        lost = [t for t in box.targets if not t.settled and id(t) not in waiting]
        if lost:
            yield f"  {cell}: {len(lost)} asked that will never be answered"
        box.targets = [target for target in box.targets if not target.settled]


def _there(cell: Cell) -> dict[str, list[Target | None]]:
    """The targets (None: a tell) of what is not at its end, by where it is."""
    box = cell.box
    queued: list[Target | None] = [
        envelope[1]
        for lane in (box.returned or (), box.user)
        for envelope in lane
        if envelope[0].__class__ is not StopPill
    ]
    queued += [None for item in box.internal or () if item[0] == TELL]
    flying: list[Target | None] = []
    envelope = cell.inflight
    # Below zero it was settled, or stashed.
    if envelope is not None and envelope[2] >= 0 and envelope[1] not in cell.owed:
        flying.append(envelope[1])
    if cell.inflight_internal is not None and cell.inflight_internal[0] == TELL:
        flying.append(None)
    stashed = [envelope[1] for envelope in box.stashed or ()]
    return {"queued": queued, "stashed": stashed, "owed": list(cell.owed), "in flight": flying}


def left_behind(system: ActorSystem) -> Iterator[str]:
    """A line for everything that a system which has ended should not hold."""
    for cell in list(system.cells):
        yield f"  {cell} is in the registry of {system}, which has ended"
    for name in list(system.names):
        yield f"  the name {name!r} is taken in {system}, which has ended"
    if system.open_calls:
        yield f"  {system.open_calls} calls of host threads are open in {system}"


def unfinished(cell: Cell) -> Iterator[str]:
    """A line for everything that an actor which has ended should not hold."""
    for name, found in _there(cell).items():
        if found:
            yield f"  {cell} has ended with {len(found)} {name}"
    if cell.tasks:
        yield f"  {cell} has ended with {len(cell.tasks)} tasks"
