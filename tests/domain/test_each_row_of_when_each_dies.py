"""The table "when each dies" of docs/architecture.md, cell by cell.

One actor is killed while a turn is in its second call. A row is an actor, a column what is asked
about: the message in flight, the live turn, the lease, the permits, and who waits. The first round
of the turn, with a tool, is recorded; its second call is out, under a permit; somebody waits until
the agent idles. `test_when_each_dies.py` kills the same actors at random instead.

What becomes of alerts when their actor dies is in `test_alerts.py`; events are no actor. Nor is
there an ephemeral caller: of an agent's death it is `wait_idle` that is told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle
from abeyance.actors.core import ActorCrashError, TrioActor
from abeyance.actors.domain.agent import Agent
from abeyance.actors.domain.agent_acts import WaitIdle
from abeyance.actors.domain.alarm import Alarm
from abeyance.actors.domain.errors import (
    AgentParkedError,
    OutcomeUnknownError,
    RuntimeClosedError,
)
from abeyance.actors.domain.gate import Gate as GateActor
from abeyance.actors.domain.journal import Journal
from abeyance.actors.domain.protocol import (
    Admit,
    RecordWait,
    Requests,
    Settle,
    WatchInstant,
)
from abeyance.actors.domain.slot import Slot
from abeyance.actors.domain.slot_messages import Accept, CloseGap, RecordRound
from abeyance.actors.domain.waits import Ledger
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.errors import StoreLostError
from abeyance.storage.store import Request
from abeyance.storage.writer import Writer

from .world import World, shown, tool, until

OWN = ("journal", "ledger", "alarm")
BYSTANDERS = ("writer", *OWN, "slot", "gate")
"""Those whose death leaves a turn's call alone."""
TAKEN_UP = ("agent", "turn task")
"""Those whose death ends the turn's task: it is taken up again."""
ACTORS = (*BYSTANDERS, *TAKEN_UP)


class Deaths:
    """Kills an actor in the handler of a chosen message, or the writer in its next commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delivered = 0
        """How often the chosen message was handed to its handler."""
        self.writer = 0
        self.writer_left = 0
        self._kind: Any = ()
        self._before = False
        for actor_class in (Journal, Ledger, Alarm, Slot, GateActor, Agent):
            monkeypatch.setattr(actor_class, "on_receive", self._watched(actor_class))
        attempt = Writer._attempt

        def attempt_or_die(writer: Writer, job: Any) -> Any:
            if self.writer_left:
                self.writer_left -= 1
                self.writer += 1
                raise RuntimeError("the thread dies")
            return attempt(writer, job)

        monkeypatch.setattr(Writer, "_attempt", attempt_or_die)

    def arm(self, *kinds: type, before: bool = False) -> None:
        """Crash whoever is next to handle one of these messages, when or before it has."""
        self._kind, self._before, self.delivered = kinds, before, 0

    def _watched(self, actor_class: type[TrioActor]) -> Callable[[Any, Any], Any]:
        receive = actor_class.on_receive

        def on_receive(actor: Any, message: Any) -> Any:
            if not isinstance(message, self._kind or ()):
                return receive(actor, message)
            self.delivered += 1
            crashes = self.delivered == 1
            if crashes and self._before:
                raise ActorCrashError("with the message in flight")
            result = receive(actor, message)
            if crashes:
                raise ActorCrashError("with the message in flight")
            return result

        return on_receive


class Live:
    """A turn of ana's in its second call, and what is looked at."""

    def __init__(self, world: World, deaths: Deaths, ana: AgentHandle, call: Gate, later: Gate):
        self.world = world
        self.deaths = deaths
        self.ana = ana
        self.call = call
        """What the second call waits in."""
        self.later = later
        """What the third waits in: of the next round, or of the same taken up again."""
        self.tools = 0

    @property
    def provider(self) -> ScriptedProvider:
        return self.world.providers[0]

    @property
    def turn(self) -> Any:
        (turn,) = self.world.turns()
        return turn

    @property
    def lease(self) -> Any:
        (lease,) = self.world.rows("leases", "ana")
        return lease

    def lives(self, actor: str) -> int:
        lives: int = self.world.ref(actor).statistics().incarnation
        return lives

    async def kill(self, actor: str) -> None:
        """Kill an actor, and wait until its next life runs."""
        if actor == "writer":
            self.deaths.writer_left = 1
            await self.world.runtime.agent("bo").send("a commit", wake=False)
            assert self.deaths.writer == 1
            return
        whose = "agent" if actor == "turn task" else actor
        before = self.lives(whose)
        if actor == "turn task":
            (scope,) = self.world.ref("agent")._cell.tasks
            scope.cancel()
        else:
            self.world.ref(actor).kill("by a test")
        await until(lambda: self.lives(whose) == before + 1)
        await until(lambda: self.world.ref(whose).statistics().state == "running")
        if actor in TAKEN_UP:
            await self.later.wait_entered()

    async def finish(self) -> None:
        self.call.release()
        self.later.release()
        await self.ana.wait_idle()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    return Deaths(monkeypatch)


@asynccontextmanager
async def live_turn(world: World, deaths: Deaths, then: Step | None = None) -> AsyncIterator[Live]:
    """A turn in its second call, which comes to `then`, or else to the turn's last reply."""
    call, later = Gate(then=then or reply("said")), Gate(then=reply("said later"))
    async with world.open():
        live: Live

        def note() -> str:
            live.tools += 1
            return "noted"

        script = [call_tool("note"), call, later]
        ana = await world.add(script, tools=[tool("note", note)])
        await world.add([], "bo")
        live = Live(world, deaths, ana, call, later)
        await ana.send("go")
        await call.wait_entered()
        yield live


FIRST_ROUND = ["user: go", "assistant: <note>", "results: =noted"]


# -- the message in flight -----------------------------------------------------------------------


async def accepted_once(live: Live) -> None:
    receipt = await live.ana.send("more", id="m", wake=False)
    again = await live.ana.send("more", id="m", wake=False)
    assert again.seq == receipt.seq
    await live.finish()
    assert (await shown(live.ana)).count("user: more") == 1


async def recorded_once(live: Live) -> None:
    await live.finish()
    assert await shown(live.ana) == [
        *(*FIRST_ROUND, "assistant: <note>", "results: =noted", "assistant: said later"),
    ]
    assert (live.turn.state, live.turn.attempts, live.tools) == ("done", 1, 2)


async def held_once_and_until_its_time(live: Live) -> None:
    live.call.release()
    await live.ana.wait_idle()
    (wait,) = live.world.runtime.provider_waits()
    assert wait.agent == "ana"
    assert len(live.world.rows("waits", "ana")) == 1
    assert live.world.state().state == "held"
    assert len(live.provider.requests) == 2
    assert not live.world.permits_out()
    live.later.release()
    await trio.sleep(58)
    assert live.world.state().state == "held"
    await trio.sleep(3)
    with trio.fail_after(60):
        await live.ana.wait_idle()
    assert live.turn.state == "done"
    assert (await shown(live.ana))[-1] == "assistant: said later"
    assert len(live.provider.requests) == 3


async def admitted_once(live: Live) -> None:
    await live.finish()
    assert len(live.provider.requests) == 3
    kept = live.world.ref("gate")._cell.kept
    assert (kept.admitted, kept.returned) == (3, 0)
    assert not live.world.permits_out()


async def settled_once(live: Live) -> None:
    await live.finish()
    assert (await shown(live.ana))[-1] == "assistant: said"
    assert not live.world.permits_out()
    assert live.world.ref("gate")._cell.kept.returned == 0
    assert len(live.provider.requests) == 2


async def answered(live: Live) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.ana.wait_idle)
            await live.later.wait_entered()
            live.later.release()
    assert (live.turn.state, live.turn.attempts) == ("done", 2)


WAIT = fail(429, retry_after=60)
IN_FLIGHT: dict[str, tuple[str, tuple[type, ...], Step | None, Callable[[Live], Any]]] = {
    "journal: a request": ("journal", (Request, Requests), None, accepted_once),
    "ledger: a statement": ("ledger", (RecordWait,), WAIT, held_once_and_until_its_time),
    "alarm: an instant": ("alarm", (WatchInstant,), WAIT, held_once_and_until_its_time),
    "slot: an acceptance": ("slot", (Accept,), None, accepted_once),
    "slot: a round": ("slot", (RecordRound,), call_tool("note"), recorded_once),
    "slot: a boundary": ("slot", (CloseGap,), call_tool("note"), recorded_once),
    "gate: a settlement": ("gate", (Settle,), None, settled_once),
    "gate: a settlement that states a wait": (
        *("gate", (Settle,), WAIT),
        held_once_and_until_its_time,
    ),
    "gate: an admission": ("gate", (Admit,), call_tool("note"), admitted_once),
    "agent: an ask": ("agent", (WaitIdle,), None, answered),
}


@pytest.mark.parametrize("before", [True, False], ids=["before it acted", "when it had acted"])
@pytest.mark.parametrize("row", IN_FLIGHT)
async def test_message_in_flight_is_delivered_again_and_takes_effect_once(
    world: World, virtual_time: MockClock, deaths: Deaths, row: str, before: bool
) -> None:
    actor, kinds, then, check = IN_FLIGHT[row]
    async with live_turn(world, deaths, then) as live:
        lives = live.lives(actor)
        deaths.arm(*kinds, before=before)
        await check(live)
        # One that had acted is taken off its queue, if what it handed over is in by then.
        assert deaths.delivered >= (2 if before else 1)
        assert live.lives(actor) == lives + 1
        assert world.runtime._system.quarantine.total == 0
        assert world.runtime._system.dead_letters.total == 0


async def test_request_that_is_out_when_the_writer_dies_keeps_its_future(
    world: World, virtual_time: MockClock, deaths: Deaths
) -> None:
    async with live_turn(world, deaths) as live:
        deaths.writer_left = 1
        await accepted_once(live)
        assert deaths.writer == 1


# -- the live turn -------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", BYSTANDERS)
async def test_live_turn_goes_on_with_its_call_and_its_next_round(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    async with live_turn(world, deaths, call_tool("note")) as live:
        await live.kill(actor)
        await wait_all_tasks_blocked()
        assert (live.turn.state, live.turn.attempts, live.turn.round) == ("running", 1, 1)
        assert world.state().state == "running"
        await live.finish()
        assert await shown(live.ana) == [
            *(*FIRST_ROUND, "assistant: <note>", "results: =noted", "assistant: said later"),
        ]
        assert len(live.provider.requests) == 3, "the call that was out was not made again"
        assert (live.turn.state, live.turn.attempts, live.tools) == ("done", 1, 2)
        assert live.lives("agent") == 1


async def test_live_turn_waits_at_its_next_commit_for_a_writer_that_died(
    world: World, virtual_time: MockClock, deaths: Deaths
) -> None:
    async with live_turn(world, deaths) as live:
        deaths.writer_left = 1
        await live.finish()
        assert deaths.writer == 1
        assert await shown(live.ana) == [*FIRST_ROUND, "assistant: said"]
        assert (live.turn.state, live.turn.attempts) == ("done", 1)


@pytest.mark.parametrize("actor", TAKEN_UP)
async def test_live_turn_is_taken_up_at_its_last_recorded_round_and_counted_before(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    async with live_turn(world, deaths) as live:
        (before,) = (key for key, _ in world.runtime._store.scan("turns", ("ana",)))
        await live.kill(actor)
        # In its call again: the attempt was counted before, and the recorded round is not repeated.
        assert (live.turn.state, live.turn.attempts, live.turn.round) == ("running", 2, 1)
        assert [key for key, _ in world.runtime._store.scan("turns", ("ana",))] == [before]
        last, again = live.provider.requests[-2:]
        assert again.messages == last.messages
        assert live.tools == 1
        await live.finish()
        assert await shown(live.ana) == [*FIRST_ROUND, "assistant: said later"]
        assert live.turn.state == "done"
        assert len(live.provider.requests) == 3


@pytest.mark.parametrize("actor", TAKEN_UP)
async def test_third_crash_fails_the_turn_with_a_marker_and_frees_all_it_held(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    async with live_turn(world, deaths) as live:
        live.provider._steps.append(third := Gate())  # type: ignore[union-attr]
        await live.kill(actor)
        for entered in (third, None):
            lives = live.lives("agent")
            if actor == "agent":
                world.ref("agent").kill("by a test")
            else:
                (scope,) = world.ref("agent")._cell.tasks
                scope.cancel()
            await until(lambda lives=lives: live.lives("agent") == lives + 1)
            if entered is not None:
                await entered.wait_entered()
                assert live.turn.attempts == 3
        await live.ana.wait_idle()
        assert live.turn.state == "failed"
        said = await shown(live.ana)
        assert said[:3] == FIRST_ROUND
        assert [line.split(":")[0] for line in said[3:]] == ["marker"]
        assert (live.lease.turn, live.lease.agent, live.lease.gap) == (None, None, None)
        assert not world.permits_out()
        assert world.state().state == "idle"


# -- the lease -----------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ACTORS)
async def test_lease_stands_and_is_granted_anew_only_with_its_turns_task(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    async with live_turn(world, deaths) as live:
        before = live.lease
        assert (before.agent, before.turn is None) == ("ana", False)
        await live.kill(actor)
        after = live.lease
        assert (after.agent, after.turn) == (before.agent, before.turn)
        assert after.token == before.token + (actor in TAKEN_UP)
        await live.finish()
        assert (live.lease.agent, live.lease.turn) == (None, None)


# -- permits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ACTORS)
async def test_permit_stays_out_with_its_call_or_is_returned_with_its_turns_task(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    async with live_turn(world, deaths) as live:
        (before,) = world.permits_out()
        await live.kill(actor)
        (after,) = world.permits_out()
        kept = world.ref("gate")._cell.kept
        if actor in TAKEN_UP:
            assert after != before
            # By its task on the way out or, if that comes too late, by death watch.
            assert kept.admitted == 3
            assert kept.returned <= 1
        else:
            assert after == before
            assert (kept.admitted, kept.returned) == (2, 0)
        await live.finish()
        assert not world.permits_out()


# -- who waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ACTORS)
async def test_who_waits_for_the_agent_waits_on_until_its_turn_is_over(
    world: World, virtual_time: MockClock, deaths: Deaths, actor: str
) -> None:
    idle = trio.Event()

    async def wait_idle(ana: AgentHandle) -> None:
        await ana.wait_idle()
        idle.set()

    async with live_turn(world, deaths) as live, trio.open_nursery() as nursery:
        nursery.start_soon(wait_idle, live.ana)
        await wait_all_tasks_blocked()
        await live.kill(actor)
        await wait_all_tasks_blocked()
        assert not idle.is_set()
        live.call.release()
        live.later.release()
        with trio.fail_after(60):
            await idle.wait()
        assert live.turn.state == "done"


# -- the writer, dead twice ----------------------------------------------------------------------


async def test_writer_that_dies_twice_ends_the_runtime_and_tells_everyone_who_waits(
    world: World, virtual_time: MockClock, deaths: Deaths
) -> None:
    told: list[type[BaseException]] = []

    async def wait(awaitable: Any) -> None:
        try:
            await awaitable
        except Exception as error:
            told.append(type(error))
        else:
            told.append(type(None))

    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreLostError):  # noqa: PT012 - the block is the subject.
            async with live_turn(world, deaths) as live:
                nursery.start_soon(wait, live.ana.wait_idle())
                await wait_all_tasks_blocked()
                deaths.writer_left = 2
                nursery.start_soon(wait, live.ana.send("more", id="m", wake=False))
                await trio.sleep_forever()
    assert sorted(error.__name__ for error in told) == sorted(
        [OutcomeUnknownError.__name__, RuntimeClosedError.__name__]
    )
    # What was acknowledged stands, and the turn goes on where it was.
    async with world.open():
        ana = await world.add([reply("after")], tools=[tool("note", lambda: "noted")])
        await ana.wait_idle()
        assert await shown(ana) == [*FIRST_ROUND, "assistant: after"]
        (turn,) = world.turns()
        assert (turn.state, turn.attempts) == ("done", 2)


# -- a group past its intensity ------------------------------------------------------------------


@pytest.mark.parametrize("actor", ["agent", "gate", "slot"])
async def test_group_past_its_intensity_is_parked_alone_and_resumed_with_all_it_accepted(
    world: World,
    virtual_time: MockClock,
    deaths: Deaths,
    actor: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with live_turn(world, deaths) as live:
        cy = await world.add([reply("fine")], "cy")
        accepted = ["user: accepted before"]
        await live.ana.send("accepted before", wake=False)
        ref = world.ref(actor)
        for _ in range(6):
            await until(lambda: ref.statistics().state == "running")
            lives = live.lives(actor)
            ref.kill("by a test")
            await until(
                lambda lives=lives: live.lives(actor) > lives or ref.statistics().state == "held"
            )
        await until(lambda: world.state().state == "parked")
        # One line, by which an operator finds it; nothing else of the runtime stands still.
        lines = [record.getMessage() for record in caplog.records]
        group = "slot:ana" if actor == "slot" else "agent:ana"
        assert len([line for line in lines if line.startswith(f"group {group} is parked")]) == 1
        assert [group.id for group in world.runtime._system.parked_groups()] == [group]
        assert world.state("cy").state == "idle"
        await cy.send("hi")
        await cy.wait_idle()
        assert await shown(cy) == ["user: hi", "assistant: fine"]
        with pytest.raises(AgentParkedError):
            await live.ana.wait_idle()
        with pytest.raises(AgentParkedError):
            await live.ana.rewind(to=0, requester="ops")
        if actor == "slot":
            with pytest.raises(AgentParkedError):
                await live.ana.send("nobody takes it")
        else:
            for number in range(3):
                await live.ana.send(f"while parked {number}")
                accepted.append(f"user: while parked {number}")
        live.provider._steps.append(reply("at last"))  # type: ignore[union-attr]
        live.provider._steps.append(reply("really"))  # type: ignore[union-attr]
        live.call.release()
        live.later.release()
        assert await world.runtime.resume_agent("ana")
        assert not await world.runtime.resume_agent("ana")
        assert world.runtime._system.parked_groups() == ()
        await live.ana.wait_idle()
        said = await shown(live.ana)
        assert [line for line in said if "accepted" in line or "parked" in line] == accepted
        assert world.state().inbox == world.state().wakes == 0
        assert not world.permits_out()
        assert live.lease.turn is None
