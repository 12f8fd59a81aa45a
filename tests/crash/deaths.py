"""Where something may die in a life: every such place is counted, and one of them is deadly."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any, Protocol

import trio

from abeyance.actors import Runtime
from abeyance.actors.testing import Faults
from abeyance.storage import crashpoints
from abeyance.storage.lmdb_store import LmdbStore

VICTIMS = ("agent", "slot", "gate", "journal", "ledger", "group")
"""What is killed; a group is its agent, its gate and its slot at the same instant."""
BESIDE = {"shared": ("other",), "leaving": ("other",), "closing": ("home",)}
"""Who else is killed in a variant: the agent that shares the slot, a conversation's resident."""


class Mortal(Protocol):
    """What a life says of who is who in it."""

    faults: Faults
    runtime: Runtime | None
    fault: str
    hits: dict[str, int]
    agent_name: str
    """The agent whose turn is told apart."""
    slot_name: str
    others: dict[str, tuple[str, ...]]
    """The names of the actors that `BESIDE` speaks of."""


class Hits(trio.abc.Instrument):
    """Counts every place where something may die, and has it die at the one that was named."""

    def __init__(self, life: Mortal) -> None:
        self._life = life
        self._counted: Counter[str] = Counter()
        self._due: tuple[str, int] | None = None
        self._victim = ""
        self._slices = f"{life.slot_name}: hand over"
        self._token = trio.lowlevel.current_trio_token()
        match life.fault.split():
            case ["point", name, nth]:
                crashpoints.arm(f"{name}:{nth}")
            case ["step" | "slice" as where, nth]:
                self._due = where, int(nth)
            case ["kill", victim, where, nth]:
                self._due, self._victim = (where, int(nth)), victim
            case ["refuse", nth]:
                life.faults.at("before_commit", nth=int(nth)).refuse()
            case []:
                # So that every point is passed, and counted.
                crashpoints.arm("open.before_rename:1000000")
            case other:
                raise ValueError(f"no fault: {other}")
        self._watch()

    def _watch(self) -> None:
        trio.lowlevel.add_instrument(self)
        hit, submit = crashpoints._hit, LmdbStore.submit

        def counted_hit(name: str) -> None:
            self._counted[name] += 1
            hit(name)

        def counted_submit(store: LmdbStore, batch: Any, done: Any) -> None:
            submit(store, batch, done)
            self.passed("commit")

        crashpoints._hit = counted_hit
        LmdbStore.submit = counted_submit  # type: ignore[method-assign]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_of_a_turn(task):
            self.passed("step")
        elif task.name == self._slices:
            self.passed("slice")

    def passed(self, what: str) -> None:
        self._counted[what] += 1
        if self._due == (what, self._counted[what]):
            self._die()

    def _die(self) -> None:
        if not self._victim:
            os.kill(os.getpid(), signal.SIGKILL)
        # Not in the middle of the scheduler's own work.
        self._token.run_sync_soon(self._kill)

    def _kill(self) -> None:
        life = self._life
        if life.runtime is None:
            return  # It is being opened: what has a name by now is not given out yet.
        agent, gate = f"agent:{life.agent_name}", f"gate:{life.agent_name}"
        slot = f"slot:{life.slot_name}"
        names: dict[str, tuple[str, ...]] = {
            "agent": (agent,),
            "gate": (gate,),
            "slot": (slot,),
            "group": (agent, gate, slot),
            **life.others,
        }
        for name in names.get(self._victim, (self._victim,)):
            ref = life.runtime._system.find(name)
            if ref is not None:
                ref.kill("the matrix")

    def done(self) -> None:
        self._life.hits = dict(self._counted)

    def _is_of_a_turn(self, task: trio.lowlevel.Task) -> bool:
        """The turn's own task, or one of those that run its tools."""
        prefix = f"agent:{self._life.agent_name}: "
        while True:
            if task.name.startswith(prefix):
                return True
            nursery = task.parent_nursery
            if nursery is None or nursery.parent_task is None:
                return False
            task = nursery.parent_task
