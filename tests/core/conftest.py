"""After every test of the kernel: a system that ended holds nothing, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from abeyance.actors.core import ActorSystem
from abeyance.actors.core.cell import Cell
from abeyance.actors.testing.accounts import left_behind, unfinished


@pytest.fixture(autouse=True)
def nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every cell of an ended system is empty, the registers are, and dead letters add up."""
    systems: list[ActorSystem] = []
    cells: list[Cell] = []
    open_system, make_cell = ActorSystem.__init__, Cell.__init__

    def watched_system(self: ActorSystem, *args: Any, **kwargs: Any) -> None:
        open_system(self, *args, **kwargs)
        systems.append(self)

    def watched_cell(self: Cell, *args: Any, **kwargs: Any) -> None:
        make_cell(self, *args, **kwargs)
        cells.append(self)

    monkeypatch.setattr(ActorSystem, "__init__", watched_system)
    monkeypatch.setattr(Cell, "__init__", watched_cell)
    yield
    wrong: list[str] = []
    for system in systems:
        if not system.ended:
            continue
        own = [cell for cell in cells if cell.system is system]
        wrong += left_behind(system)
        wrong += [line for cell in own for line in unfinished(cell)]
        facts = system.dead_letters.counts.get("fact_undelivered", 0)
        for what, total, counted in (
            ("dead letters", system.dead_letters.total - facts, sum(c.dead for c in own)),
            ("quarantined", system.quarantine.total, sum(c.quarantined for c in own)),
        ):
            if total != counted:
                wrong.append(f"  {system}: {total} {what}, and its actors count {counted}")
    assert wrong == []
    assert pykka.ActorRegistry.get_all() == []
