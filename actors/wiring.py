"""How a runtime's tree of actors is started and ended.

Invariants:
    I1  Who is asked is started ahead of who asks, and ended behind it.
    I2  What may park without harm to turns is a group of its own: alerts, runs, schedules.
    I3  An end leaves nothing that was accepted: live turns give their wakes back first.

Runs in: the trio task that opened the runtime.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from .conversations import Conversations
from .core import ChildSpec, SupervisorSpec, TrioActorRef
from .core.errors import ActorDeadError
from .core.reminders import MemoryReminders
from .domain.agent import Agent
from .domain.agent_acts import StopTurns
from .domain.alarm import Alarm
from .domain.alert_book import NAME as ALERTS
from .domain.alerts import Alerts
from .domain.archive import Archive
from .domain.archive_book import NAME as ARCHIVE
from .domain.events import RunChanged
from .domain.journal import Journal
from .domain.protocol import OfferPending
from .domain.reminders import NAME as REMINDERS
from .domain.reminders import DurableReminders, Reminders
from .domain.run_folders import RunFolders
from .domain.run_protocol import LookForRuns, News
from .domain.runs import NAME as RUNS
from .domain.runs import Runs
from .domain.schedules import NAME as SCHEDULES
from .domain.schedules import Schedules
from .domain.step_threads import StepThreads
from .domain.tools import ToolRunner
from .domain.waits import Ledger
from .ephemeral import EphemeralRuns
from .groups import Groups
from .members import Parking
from .quiescence import Quiescence
from .scheduling import Scheduling
from .workflows import Workflows

if TYPE_CHECKING:
    from .runtime import Runtime

STOP_DEADLINE_S: Final = 30.0
"""How long a graceful end may take before what is left is cut off; what is durable stays."""


async def start(runtime: Runtime, bodies: trio.Nursery) -> None:
    """Start what every agent needs: journal, ledger, alarm; then the group of slots."""
    system, store, clock = runtime._system, runtime._store, runtime.clock
    root = await system.start_supervisor(
        SupervisorSpec(
            id="runtime",
            children=(
                ChildSpec(
                    "journal",
                    Journal,
                    (store, runtime._store_lost, runtime._commits),
                    name="journal",
                ),
                ChildSpec(
                    ARCHIVE,
                    Archive,
                    lambda refs: (runtime._archive, refs["journal"]),
                    name=ARCHIVE,
                ),
                ChildSpec(
                    "ledger",
                    Ledger,
                    lambda refs: (
                        runtime._waits,
                        store,
                        refs["journal"],
                        clock,
                        runtime._accounts,
                    ),
                    name="ledger",
                ),
                ChildSpec("alarm", Alarm, (clock,), name="alarm"),
                ChildSpec(
                    REMINDERS,
                    Reminders,
                    lambda refs: (
                        store,
                        refs["journal"],
                        refs["alarm"],
                        clock,
                        runtime._archive,
                        system,
                    ),
                    name=REMINDERS,
                ),
            ),
            on_exhausted="escalate",
        )
    )
    # At once: a start that is cancelled below is to be stopped, too.
    runtime._root = root
    runtime._journal = root.refs["journal"]
    runtime._usage.attach(runtime._journal)
    runtime._ledger = root.refs["ledger"]
    runtime._spending.attach(runtime._journal, runtime._ledger)
    runtime._pruner.journal = runtime._attacher.journal = runtime._journal
    await runtime._spending.look()
    runtime._alarm = root.refs["alarm"]
    news = News()
    await _start_runs(runtime, news)
    await _start_schedules(runtime, news)
    runtime._conversations = Conversations(runtime)
    runtime._runs = EphemeralRuns(runtime)
    slots = await system.start_supervisor(
        SupervisorSpec(id="slots", children=(), on_exhausted="park"), parent=root
    )
    # A group of its own, that parks: whatever becomes of alerts, waits and turns go on.
    alerting = await system.start_supervisor(
        SupervisorSpec(
            id=ALERTS,
            children=(
                ChildSpec(
                    ALERTS,
                    Alerts,
                    (
                        store,
                        root.refs["journal"],
                        clock,
                        runtime._waits,
                        runtime._sinks,
                        runtime._ownership.is_alive,
                        str(runtime.directory),
                    ),
                    name=ALERTS,
                ),
            ),
            on_exhausted="park",
        ),
        parent=root,
    )
    runtime._own_groups[ALERTS] = alerting
    runtime._alerts = alerting.refs[ALERTS]
    runtime._desk.attach(runtime._alerts)
    runtime._archive.attach(root.refs[ARCHIVE])
    system.deliveries = runtime._counts
    system.reminders = DurableReminders(root.refs[REMINDERS], runtime._archive, clock)
    for name in system.live_names():
        system.reminders.started(name)
    runtime._runner = ToolRunner(bodies, store, runtime._journal, clock, system)
    runtime._groups = Groups(
        system,
        root,
        slots,
        store,
        runtime._ownership,
        runtime._runner,
        clock,
        runtime._waits,
        runtime._desk,
        runtime._accounts,
        runtime._store_id,
        runtime._mode,
        runtime._run_agents.turn_over,
        runtime._usage,
        runtime._spending,
        runtime._outboxes.stir,
    )
    runtime._quiescence = Quiescence(runtime, runtime._mode)
    bodies.start_soon(runtime._runs.close_interrupted)
    bodies.start_soon(runtime._quiescence.watch)
    bodies.start_soon(runtime._outboxes.watch)
    bodies.start_soon(runtime._spending.watch)
    bodies.start_soon(runtime._pruner.watch)


async def _start_runs(runtime: Runtime, news: News) -> None:
    """Start who executes runs, in a group of its own that parks: agents go on without it."""
    system, store, clock = runtime._system, runtime._store, runtime.clock
    threads = StepThreads(f"{runtime._store_id} {runtime.directory.resolve()}")
    folders = RunFolders(runtime.directory)

    def parked(error: BaseException) -> None:
        runtime._desk.parked_runs(error)
        news.stir()

    parking = Parking(parked)
    running = await system.start_supervisor(
        SupervisorSpec(
            id=RUNS,
            children=(
                ChildSpec(
                    RUNS,
                    Runs,
                    (
                        store,
                        runtime._journal,
                        runtime._alarm,
                        runtime._ownership,
                        clock,
                        news,
                        runtime._mode,
                        threads,
                        runtime._run_agents,
                        runtime._desk,
                        folders,
                    ),
                    name=RUNS,
                ),
            ),
            on_exhausted="park",
            on_parked=parking.park,
        ),
        parent=runtime._root,
    )
    runtime._own_groups[RUNS] = running
    runtime._run_agents.look = lambda: running.refs[RUNS].tell(LookForRuns())
    runtime._workflows = Workflows(
        store,
        folders,
        runtime._ownership,
        runtime._journal,
        running,
        parking,
        clock,
        news,
        runtime._mode,
        lambda run, state: system.emit(RunChanged, run=run, state=state),
        threads,
        runtime._run_agents,
    )


async def _start_schedules(runtime: Runtime, news: News) -> None:
    """Start who starts runs by schedules, in a group of its own that parks, too."""
    store, clock, runs = runtime._store, runtime.clock, runtime._own_groups[RUNS].refs[RUNS]
    group = await runtime._system.start_supervisor(
        SupervisorSpec(
            id=SCHEDULES,
            children=(
                ChildSpec(
                    SCHEDULES,
                    Schedules,
                    (
                        store,
                        runtime._journal,
                        runtime._alarm,
                        runs,
                        runtime._workflows.claims,
                        clock,
                        runtime._mode,
                        runtime._workflows.find,
                        news,
                        runtime._usage,
                    ),
                    name=SCHEDULES,
                ),
            ),
            on_exhausted="park",
            on_parked=lambda _parked, error: runtime._desk.parked_schedules(error),
        ),
        parent=runtime._root,
    )
    runtime._scheduling = Scheduling(store, runtime._journal, group.refs[SCHEDULES], clock)
    runtime._own_groups[SCHEDULES] = group


async def stop(runtime: Runtime) -> None:
    """End every live turn with its wakes given back; what is durable stays where it is."""
    with trio.move_on_after(STOP_DEADLINE_S, shield=True):
        await runtime._lifetime.end()
        if runtime._root is None:
            return
        if SCHEDULES in runtime._own_groups:  # Else the start was cut off before anything worked.
            await _end_work(runtime)
        await runtime._root.stop()
    for member in runtime._members.values():
        member.slot_view.end()


async def _end_work(runtime: Runtime) -> None:
    runtime._workflows.close()
    runtime._scheduling.stop()
    async with trio.open_nursery() as nursery:
        # Together: an item of a run may wait for an ephemeral one.
        nursery.start_soon(runtime._workflows.stop)
        nursery.start_soon(runtime._runs.stop)
    parked = [member for member in runtime._members.values() if member.is_parked]
    async with trio.open_nursery() as nursery:
        for member in runtime._members.values():
            if not member.is_parked:
                nursery.start_soon(_stop_turns, member.agent)
    for member in parked:
        # Nobody in a parked group answers. Who waits for it learns so by its end; a turn that
        # lives is left to the next start, as after a crash.
        await member.slot_group.stop()
        await member.group.stop()
    with suppress(ActorDeadError):
        # The last chance of what could not be recorded when it was stated or released.
        await runtime._ledger.ask(OfferPending())


def close_ports(runtime: Runtime) -> None:
    """Every actor has ended: write what came too late for the journal."""
    if isinstance(runtime._system.reminders, DurableReminders):
        runtime._system.reminders = MemoryReminders(runtime._system)
    if runtime._system.deliveries is runtime._counts:
        runtime._system.deliveries = None
    try:
        runtime._archive.close()
    finally:
        runtime._counts.close()


async def _stop_turns(agent: TrioActorRef[Agent]) -> None:
    with suppress(ActorDeadError):  # It has ended before; there is no turn to end.
        await agent.ask(StopTurns())
