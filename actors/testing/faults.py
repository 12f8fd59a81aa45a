"""Faults: what a test makes go wrong, at named points, on purpose and repeatably.

```
faults = Faults(seed=7)
faults.at("before_handle", actor="slot:ana", nth=3).crash()
faults.at("mailbox_put", actor=Counter, probability=0.1).drop()
with faults:
    async with ActorSystem(faults=faults) as system: ...
```

What fired is the schedule. It is noted on the error that leaves the block, and `Faults.replay` does
exactly the same again from its text, whatever the seed was. While the block is open, trio runs
tasks that are ready at once in an order by the seed, which is part of the schedule. Leaving it
without an error checks the accounts: every accepted message has ended, or is where the kernel says
it is.

| point | when | possible |
|---|---|---|
| `mailbox_put` | a message was accepted by a mailbox | drop, duplicate, kill, exit |
| `wake` | a sleeping actor is woken | delay, kill, exit |
| `before_handle` | a message, answer or end is about to be handled | crash, kill, delay, exit |
| `after_handle_before_ack` | its handler has returned; nobody was told | crash, kill, delay, exit |
| `on_start` | the first incarnation starts | crash, kill, delay, exit |
| `on_restart` | a later incarnation starts | crash, kill, delay, exit |
| `bridge_call` | a host thread's call is about to be handed over | crash, delay, exit |
| `before_commit` | a batch is about to be handed to the store | refuse, kill, delay, exit |
| `after_commit` | a batch is on disk; nobody was told | kill, delay, exit |

docs/testing.md says what the runtime guarantees at each.

Invariants:
    I1. A hit is counted before its rules are looked at, by point and actor: a schedule names it.
    I2. The first rule that matches acts; at most one does.
    I3. Chance depends on seed, rule, actor and hit alone, so other actors' order changes nothing.

Points are hit on the loop thread, on host threads and on the store's writer; a lock guards counts.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from abeyance.actors.core.errors import ActorCrashError
from abeyance.actors.core.mailbox import Mailbox
from abeyance.actors.core.urgent import BATCH_S
from abeyance.storage.errors import CommitFailedError, StorageError

from .accounts import Accounts
from .fault_points import Bridge, FaultyHandlers, FaultyMailbox, FaultyStore
from .schedule import Action, Fired, action_of, order_line, read_order, read_schedule
from .task_order import TaskOrder, begin, end

if TYPE_CHECKING:
    from abeyance.actors.core.cell import Cell
    from abeyance.actors.core.system import ActorSystem
    from abeyance.storage.lmdb_store import LmdbStore

_RUNS: Final = frozenset({"crash", "kill", "delay", "exit"})
POINTS: Final[dict[str, frozenset[str]]] = {
    "mailbox_put": frozenset({"drop", "duplicate", "kill", "exit"}),
    "wake": frozenset({"delay", "kill", "exit"}),
    "before_handle": _RUNS,
    "after_handle_before_ack": _RUNS,
    "on_start": _RUNS,
    "on_restart": _RUNS,
    "bridge_call": frozenset({"crash", "delay", "exit"}),
    "before_commit": frozenset({"refuse", "kill", "delay", "exit"}),
    "after_commit": frozenset({"kill", "delay", "exit"}),
}
"""What can be done at each point."""

_WITHOUT_MESSAGE: Final = frozenset({"wake", "on_start", "on_restart"})
EXIT_CODE: Final = 70
_LOOK_S: Final = BATCH_S / 10  # Between two looks at the time, in virtual time.

Selector = type | Callable[[Any], bool]


class InjectedCrashError(ActorCrashError):
    """A test's fault crashed an actor. What it means is what a crash at that point means."""

    code = "injected_crash"


@dataclass(slots=True)
class _Rule:
    """Where, when and what. Exactly one of `nth`, `chance`, `at_hit` or none of them."""

    point: str
    actor: str | type | None
    message: Selector | None
    nth: int | None
    chance: float | None
    times: int | None
    action: Action
    at_hit: int | None = None
    seen: int = 0
    fired: int = 0

    def selects(self, label: str, kind: type | None, message: Any) -> bool:
        wanted = self.actor
        if isinstance(wanted, str):
            if wanted != label:
                return False
        elif wanted is not None and not (kind is not None and issubclass(kind, wanted)):
            return False
        selector = self.message
        if selector is None:
            return True
        if isinstance(selector, type):
            return isinstance(message, selector)
        return bool(selector(message))

    def due(self, chance: Callable[[], float], hit: int) -> bool:
        """Whether it acts at a hit that it selects."""
        self.seen += 1
        if self.times is not None and self.fired >= self.times:
            return False
        if self.at_hit is not None:
            return hit == self.at_hit
        if self.nth is not None:
            return self.seen == self.nth
        return self.chance is None or chance() < self.chance


class Where:
    """A place for a fault; its verb says which. Made by `Faults.at`."""

    def __init__(self, add: Callable[[Action], None], point: str) -> None:
        self._add = add
        self._point = point

    def crash(self, error: BaseException | None = None) -> None:
        """Raise there, as the handler, hook or call itself might. By default it always crashes.

        Another error in the handler of an ask is its reply, by pykka's rule.
        """
        self._do(Action("crash", error or InjectedCrashError("a fault crashed it")))

    def kill(self) -> None:
        """Kill the actor's incarnation there; at a commit, the journal's."""
        self._do(Action("kill"))

    def delay(self, seconds: float) -> None:
        """Go on only so much later, in trio's time.

        Args:
            seconds: Finite, at least 0.
        """
        self._do(Action("delay", float(seconds)))

    def drop(self) -> None:
        """Lose the message: a dead letter with reason `fault`; its asker gets ActorDeadError."""
        self._do(Action("drop"))

    def duplicate(self) -> None:
        """Accept the message twice. Nobody waits for the second one's reply."""
        self._do(Action("duplicate"))

    def exit(self, code: int = EXIT_CODE) -> None:
        """End the process there by `os._exit`: no handler, flush or cleanup runs."""
        self._do(Action("exit", code))

    def refuse(self, error: StorageError | None = None) -> None:
        """Refuse the commit: every request of the batch is `NotStored`; nothing of it is stored."""
        self._do(
            Action(
                "refuse",
                error
                or CommitFailedError(
                    "a fault refused the commit; nothing of it is stored", path="", errno=None
                ),
            )
        )

    def _do(self, action: Action) -> None:
        possible = POINTS[self._point]
        if action.kind not in possible:
            raise ValueError(
                f"{action.kind} is not possible at {self._point}, which takes "
                f"{', '.join(sorted(possible))}"
            )
        if action.kind == "delay" and not (math.isfinite(action.value) and action.value >= 0):
            raise ValueError(f"a delay is finite and at least 0 s, not {action.value!r}")
        self._add(action)


class Faults:
    """The faults of one test; given as `faults=` to a system or a runtime.

    Args:
        seed: Of the chances of its rules and, while it is open as a block, of the order of tasks.
            None draws one; it is part of the schedule's text.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self.accounts = Accounts()
        self.commits_delayed = 0  # On the loop thread.
        self._order_seed: int | None = self.seed
        self._ordered = False  # Whether tasks were ever ordered by it.
        self._orders: list[TaskOrder | None] = []  # Of the blocks that are open.
        self._rules: list[_Rule] = []
        self._hits: dict[tuple[str, str], int] = {}
        self._labels: dict[Cell, str] = {}
        self._named: dict[str, int] = {}
        self._unnamed: set[str] = set()  # Labels of actors without a name.
        self._fired: list[Fired] = []
        self._lock = threading.RLock()

    @classmethod
    def replay(cls, schedule: str) -> Self:
        """Faults that do at the same hits what a printed schedule says was done.

        As a block, it orders tasks as the schedule says they were; trio does where it says nothing.

        Raises:
            ValueError: A line is no fault; the text says which.
        """
        faults = cls(seed=0)
        faults._order_seed = read_order(schedule)
        for point, actor, hit, words in read_schedule(schedule):
            action = action_of(words, InjectedCrashError)
            Where(lambda _: None, _known(point))._do(action)
            faults._rules.append(_Rule(point, actor, None, None, None, None, action, at_hit=hit))
        return faults

    def at(
        self,
        point: str,
        *,
        actor: str | type | None = None,
        message: Selector | None = None,
        nth: int | None = None,
        probability: float | None = None,
        times: int | None = None,
    ) -> Where:
        """Name a place; call a verb on what is returned to put a fault there. Any thread.

        Args:
            point: One of `POINTS`.
            actor: The actor's name, or its child id where it has none; or its class. None is any.
            message: A type or predicate of the message; of the asked function at a `bridge_call`
                by `run`; of the tuple of requests at a commit. None is any.
            nth: Only the nth hit that actor and message select, from 1.
            probability: At each such hit by this chance, 0 to 1.
            times: At most so often. None is no limit.
        Raises:
            ValueError: Names what is wrong; no fault was put anywhere.
        """
        _known(point)
        if message is not None and point in _WITHOUT_MESSAGE:
            raise ValueError(f"{point} has no message to select by")
        if nth is not None and probability is not None:
            raise ValueError("nth and probability exclude each other")
        if nth is not None and nth < 1:
            raise ValueError(f"nth counts from 1, not {nth!r}")
        if times is not None and times < 1:
            raise ValueError(f"times is at least 1, not {times!r}")
        if probability is not None and not 0 <= probability <= 1:
            raise ValueError(f"probability is from 0 to 1, not {probability!r}")

        def add(action: Action) -> None:
            with self._lock:
                self._rules.append(_Rule(point, actor, message, nth, probability, times, action))

        return Where(add, point)

    def clear(self) -> None:
        """Do nothing more from now on. What fired stays in the schedule. Any thread."""
        with self._lock:
            self._rules.clear()

    @property
    def fired(self) -> tuple[Fired, ...]:
        """What was done, in order."""
        with self._lock:
            return tuple(self._fired)

    def hits(self, point: str, actor: str) -> int:
        """How often a point was hit, by the actor's name as `at` takes it."""
        with self._lock:
            return self._hits.get((_known(point), actor), 0)

    @property
    def schedule(self) -> str:
        """What was done, as text that `Faults.replay` takes."""
        fired = self.fired
        head = f"# seed {self.seed}; {len(fired)} faults; Faults.replay() of these lines repeats it"
        if not self._ordered:
            return "\n".join([f"{head}; the order of tasks was trio's own", *map(str, fired)])
        assert self._order_seed is not None
        return "\n".join([head, order_line(self._order_seed), *map(str, fired)])

    def __str__(self) -> str:
        return self.schedule

    # -- as a block

    def __enter__(self) -> Self:
        """Order tasks by the seed from here on, in this process, until the block is left."""
        order = None if self._order_seed is None else begin(self._order_seed)
        self._orders.append(order)
        self._ordered = self._ordered or order is not None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        order = self._orders.pop()
        if order is not None:
            end(order)
        if error is None:
            self.check()
        else:
            error.add_note(self.schedule)

    def check(self) -> None:
        """Hold every system against its books. Not a checkpoint; any thread; blocks a host thread.

        Raises:
            AssertionError: Names each actor whose accepted messages are not accounted for, each
                reply that never came, and what a system that ended left behind. Carries the
                schedule.
        """
        try:
            self.accounts.check()
        except AssertionError as error:
            error.add_note(self.schedule)
            raise

    # -- FaultHooks, and of the store

    def attach(self, system: ActorSystem) -> None:
        """See `FaultHooks`."""
        self.accounts.add_system(system)
        if any(self._orders):
            # Pauses before restarts make an order, too, and so does where a batch of messages ends.
            if not system.seeded:
                system.random = random.Random(self._order_seed)
            if system.injected is not None:
                system.stopwatch = partial(next, itertools.count(0.0, _LOOK_S))

    def mailbox(self, cell: Cell) -> Mailbox:
        """See `FaultHooks`."""
        self._label(cell)  # Now: births come in the same order every time, hits may not.
        box = FaultyMailbox(self, cell)
        self.accounts.add_mailbox(box)
        return box

    def handlers(self, cell: Cell, actor: Any) -> Any:
        """See `FaultHooks`."""
        return FaultyHandlers(self, cell, actor)

    def bridge(self, system: ActorSystem, cell: Cell | None, message: object) -> None:
        """See `FaultHooks`."""
        Bridge(self, system).pass_over(cell, message)

    def store(self, store: LmdbStore) -> LmdbStore:
        """Return what stands in for a store whose commits are points."""
        stand_in: Any = FaultyStore(self, store)
        return stand_in  # type: ignore[no-any-return]

    def hit(
        self, point: str, cell: Cell | None, message: Any = None, name: str = ""
    ) -> Action | None:
        """Count a hit; return what is to be done there. An exit happens here."""
        kind = None if cell is None else cell.actor_class
        acts: _Rule | None = None
        with self._lock:
            label = name if cell is None else self._label(cell)
            hit = self._hits[point, label] = self._hits.get((point, label), 0) + 1
            for place, rule in enumerate(self._rules):
                if rule.point == point and rule.selects(label, kind, message):
                    chance = random.Random(f"{self.seed} {place} {label} {hit}")
                    # Every rule counts what it selects, also where another acts.
                    if rule.due(chance.random, hit) and acts is None:
                        acts = rule
            if acts is None:
                return None
            acts.fired += 1
            self._fired.append(Fired(point, label, hit, acts.action))
        if acts.action.kind == "exit":
            os._exit(int(acts.action.value))
        return acts.action

    def _label(self, cell: Cell) -> str:
        """A name that the next run of the same test gives the same actor."""
        with self._lock:
            label = self._labels.get(cell)
            if label is None:
                # A key carries a number that counts over the whole process.
                unnamed = cell.actor_class.__name__ if cell.child_id == cell.key else cell.child_id
                base = cell.name or unnamed
                self._named[base] = count = self._named.get(base, 0) + 1
                if cell.name:
                    # One that nobody named may have it already, after its class.
                    label = f"{base}#named" if base in self._unnamed else base
                else:
                    label = base if count == 1 else f"{base}#{count}"
                    self._unnamed.add(label)
                self._labels[cell] = label
            return label


def _known(point: str) -> str:
    if point not in POINTS:
        raise ValueError(f"no point {point!r}; there are {', '.join(POINTS)}")
    return point
