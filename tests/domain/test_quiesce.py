"""Quiescing a host: what runs on, what is ended, what waits, and what a resume finds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec
from abeyance.actors.domain.errors import (
    InvalidInputError,
    NotPermittedError,
    NotStoredError,
    QuiescedError,
    ResumedError,
    RunInterruptedError,
    RuntimeClosedError,
)
from abeyance.actors.domain.mode import MODE_KEY
from abeyance.actors.domain.requesters import OperatorAct
from abeyance.actors.testing import Faults, Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.codec import encode
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.ownership import Mode

from .desk import disk_full, make_unreadable
from .world import Stop, World, shown, texts, until


def inbox(world: World, agent: str = "ana") -> list[str]:
    return [row.message for row in world.rows("inbox", agent)]


def calls(world: World, at: int = 0) -> int:
    return len(world.providers[at].requests)


async def quiesced(world: World, into: list[Any], **how: Any) -> None:
    """Quiesce, and keep what became of it."""
    try:
        into.append(await world.runtime.quiesce("upgrade", **how))
    except Exception as error:
        into.append(error)


# -- what it means to be quiesced ----------------------------------------------------------------


@pytest.mark.behaviour("D-024", "D-030", "D-083")
async def test_what_is_sent_to_a_quiesced_host_is_durable_and_waits_for_the_resume(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("both")])
        await ana.send("before", author="bo", wake=False, id="m0")
        receipt = await runtime.quiesce("upgrade")
        assert (receipt.abandoned, receipt.held, receipt.runs_ended) == ((), (), ())
        receipts = [await ana.send(text, id=text) for text in ("one", "two")]
        assert [each.state for each in receipts] == ["accepted", "accepted"]
        await ana.wait_idle()
        assert inbox(world) == ["one", "two"]
        assert await shown(ana) == ["user: before"]
        assert calls(world) == 0
        assert world.state().state == "quiesced"
        mode = runtime.status().mode
        assert (mode.state, mode.reason, mode.by) == ("quiesced", "upgrade", "api:host")
        landed = await runtime.resume()
        assert (landed.was_quiesced, landed.reason, landed.landed) == (True, "upgrade", 2)
        assert not inbox(world), "the resume lifted the mode before it landed what waited"
        await ana.wait_idle()
        assert await shown(ana) == ["user: before", "user: one", "user: two", "assistant: both"]
        assert runtime.status().mode.state == "serving"


@pytest.mark.behaviour("D-036")
async def test_a_stop_and_a_start_while_quiesced_leave_the_inbox_as_it_is(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        await runtime.quiesce("upgrade")
        await ana.send("one", id="one")
        await ana.send("own", author="ana", id="own")
        await ana.send("two", id="two")
    for _ in range(2):
        async with world.open() as runtime:
            ana = await world.add([])
            assert runtime.status().mode.reason == "upgrade"
            await ana.wait_idle()
            await wait_all_tasks_blocked()
            assert inbox(world) == ["one", "own", "two"]
            assert await shown(ana) == []
    async with world.open() as runtime:
        ana = await world.add([reply("both")])
        await runtime.resume()
        await ana.wait_idle()
        (request,) = world.providers[-1].requests
        assert texts(request) == ["user: one", "agent: own", "user: two"]
    async with world.open() as runtime:
        assert runtime.status().mode.state == "serving", "a resume is durable, too"


@pytest.mark.behaviour("D-086")
async def test_a_turn_in_tools_gets_its_results_while_the_host_drains(
    world: World, virtual_time: MockClock
) -> None:
    stop, outcomes = Stop("found"), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add(
            [call_tool("wait"), reply("done"), reply("later")], tools=[stop.tool()]
        )
        await ana.send("go")
        await stop.entered.wait()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        await ana.send("meanwhile")
        stop.go.set()
        await until(lambda: bool(outcomes))
        assert outcomes[0].abandoned == ()
        assert await shown(ana) == [
            "user: go",
            "assistant: <wait>",
            "results: =found",
            "assistant: done",
        ]
        assert [
            words for words in texts(world.providers[0].requests[1]) if "meanwhile" in words
        ] == []
        assert len(inbox(world)) == 1, "nothing but the turn's own rows entered"
        await runtime.resume()
        await ana.wait_idle()
        assert (await shown(ana))[-2:] == ["user: meanwhile", "assistant: later"]


@pytest.mark.parametrize("where", ["call", "tool", "retry"])
async def test_a_turn_that_outlives_the_window_gives_its_wakes_back_for_one_fresh_turn(
    world: World, virtual_time: MockClock, where: str
) -> None:
    gate, stop = Gate(), Stop()
    first = {"call": gate, "tool": call_tool("wait"), "retry": fail(500)}[where]
    async with world.open() as runtime:
        ana = await world.add([first, reply("fresh")], tools=[stop.tool()])
        await ana.send("one")
        await until(lambda: calls(world) == 1)
        if where == "tool":
            await stop.entered.wait()
        await wait_all_tasks_blocked()
        began = trio.current_time()
        receipt = await runtime.quiesce("upgrade", within_s=0 if where == "retry" else 2)
        assert trio.current_time() - began < 3
        assert receipt.abandoned == ("ana",)
        assert receipt.bodies_running == (where == "tool")
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("cancelled", 1 if where == "retry" else 0)
        (wake,) = world.rows("wakes", "ana")
        assert wake.reason == "stopped"
        assert world.rows("leases", "ana")[0].turn is None
        if where == "tool":
            # The gap was closed before anything else was decided about the turn.
            assert [row.role for row in world.rows("slots", "ana")][1:3] == ["assistant", "results"]
        await ana.send("two")
        await runtime.resume()
        await ana.wait_idle()
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]
        request = texts(world.providers[0].requests[-1])
        assert request[0] == "user: one"
        assert request[-1] == "user: two"


async def test_a_turn_that_is_held_counts_as_drained_and_goes_on_after_the_resume(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=100), reply("late")])
        await ana.send("go")
        await ana.wait_idle()
        began = trio.current_time()
        receipt = await runtime.quiesce("upgrade", within_s=50)
        assert trio.current_time() - began < 1
        assert receipt.held == ("ana",)
        await trio.sleep(200)
        await ana.wait_idle()
        assert calls(world) == 1, "its wait is over, and the host is still quiesced"
        assert world.turns()[0].state == "held"
        await runtime.resume()
        await ana.wait_idle()
        assert [turn.state for turn in world.turns()] == ["done"]


async def test_a_turn_that_is_put_down_while_the_host_drains_is_drained(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(fail(429, retry_after=100)), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([gate, reply("late")])
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        gate.release()
        await until(lambda: bool(outcomes))
        assert (outcomes[0].held, outcomes[0].abandoned) == (("ana",), ())
        await runtime.release_provider_wait("ana", requester="ops")
        await wait_all_tasks_blocked()
        assert calls(world) == 1
        assert world.state().state == "quiesced"
        await runtime.resume()
        await ana.wait_idle()
        assert calls(world) == 2


async def test_a_boot_while_quiesced_leaves_an_open_turn_to_the_resume(
    world: World, virtual_time: MockClock
) -> None:
    """As a death in the middle of a drain leaves it."""
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait")], tools=[Stop().tool(in_doubt="retry")])
        await ana.send("go")
        await until(lambda: world.tool_calls() != [])
        world.ref("agent").kill("a death")
        row = Mode(state="quiesced", reason="upgrade", by="x", at_ms=1, act="elsewhere")
        (outcome,) = world.runtime._store.commit(
            Request(puts=(Put("modes", MODE_KEY, encode(row)),))
        )
        assert isinstance(outcome, Committed)
        copy = world.turns()[0]
        assert copy.state == "running"
        stopping, world.runtime._members = world.runtime._members, {}
        assert stopping
    async with world.open() as runtime:
        free = Stop("again")
        free.go.set()
        ana = await world.add([reply("done")], tools=[free.tool(in_doubt="retry")])
        await ana.wait_idle()
        await wait_all_tasks_blocked()
        assert world.state().state == "quiesced"
        assert world.rows("leases", "ana")[0].gap == 1, "nothing was drained into an open turn"
        assert free.effects == 0
        await ana.send("later")
        assert len(inbox(world)) == 1
        await runtime.resume()
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: go",
            "assistant: <wait>",
            "results: =again",
            "user: later",
            "assistant: done",
        ]


# -- who else is about ---------------------------------------------------------------------------


async def test_an_ephemeral_run_may_end_within_the_window_and_none_begins(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes, said = Gate(reply("in short")), [], []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        used = AgentSpec(name="sum", provider=ScriptedProvider([gate]), model="m")

        async def run() -> None:
            said.append(await runtime.run_ephemeral(used, "go"))

        nursery.start_soon(run)
        await gate.wait_entered()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        with pytest.raises(QuiescedError, match="upgrade") as refused:
            await runtime.run_ephemeral(used, "go")
        assert refused.value.reason == "upgrade"
        gate.release()
        await until(lambda: bool(outcomes))
        assert said == ["in short"]
        assert outcomes[0].runs_ended == ()


@pytest.mark.parametrize("state", ["calling", "sleeping", "about to sleep"])
async def test_an_ephemeral_run_that_outlives_the_window_ends_and_says_so(
    world: World, virtual_time: MockClock, state: str
) -> None:
    gate, caught = Gate(fail(429, retry_after=500)), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        script = [fail(429, retry_after=500)] if state == "sleeping" else [gate]
        provider = ScriptedProvider(script, clock=world.clock)
        used = AgentSpec(name="sum", provider=provider, model="m")

        async def run() -> None:
            with pytest.raises(RunInterruptedError, match="the host is quiesced") as error:
                await runtime.run_ephemeral(used, "go")
            caught.append(error.value)

        nursery.start_soon(run)
        await until(lambda: len(provider.requests) == 1)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        if state == "about to sleep":
            nursery.start_soon(quiesced, world, [])
            await until(lambda: runtime.status().mode.state == "draining")
            gate.release()
            await until(lambda: bool(caught))
        else:
            receipt = await runtime.quiesce("upgrade", within_s=5)
            assert len(receipt.runs_ended) == (1 if state == "calling" else 0)
        assert trio.current_time() - began < (6 if state == "calling" else 1)
        await until(lambda: bool(caught))
        assert not world.rows("ephemerals")


async def test_an_agent_that_is_added_to_a_quiesced_host_starts_with_the_resume(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        await ana.send("one", wake=True)
    async with world.open() as runtime:
        await runtime.quiesce("upgrade")
        ana = await world.add([reply("hello")])
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.send("two")
        await fork.send("three", wake=False)
        await wait_all_tasks_blocked()
        assert calls(world, 1) == 0
        await runtime.resume()
        await ana.wait_idle()
        assert calls(world, 1) == 1


async def test_a_conversation_whose_turns_cannot_run_is_not_closed_and_can_be_removed(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([reply("x"), reply("y")])
        fork = await runtime.open_conversation("ana", channel="c")
        idle = await runtime.open_conversation("ana", channel="idle")
        await runtime.quiesce("upgrade")
        await fork.send("hello", id="h1")
        await idle.close()
        with pytest.raises(QuiescedError):
            await fork.close()
        assert not runtime.dead_letters()
        await runtime.remove_agent(fork.name)
        (letter,) = runtime.dead_letters()
        assert "h1" in letter.message
        assert [row.message for row in world.rows("slots", fork.name)] == ["h1"], "it flushed first"


async def test_a_rewind_of_a_quiesced_agent_is_done_at_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("hello"), reply("again")])
        await ana.send("one", id="one")
        await ana.wait_idle()
        await runtime.quiesce("upgrade")
        await ana.send("two")
        receipt = await ana.rewind(to="one", requester="ops")
        assert receipt.first == 2
        assert await shown(ana) == ["user: one"]
        await runtime.resume()
        await ana.wait_idle()
        assert await shown(ana) == ["user: one", "user: two", "assistant: again"]


async def test_a_rewind_in_the_window_ends_the_live_turn_and_the_host_is_drained(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([reply("hello"), gate, reply("again")])
        await ana.send("one", id="one")
        await ana.wait_idle()
        await ana.send("two")
        await gate.wait_entered()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        await ana.rewind(to="one", requester="ops")
        await until(lambda: bool(outcomes))
        assert outcomes[0].abandoned == ()
        assert world.state().state == "quiesced"


@pytest.mark.behaviour("D-086")
async def test_an_agent_that_crashes_while_the_host_drains_comes_to_its_end(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([gate, reply("done")])
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        world.ref("agent").kill("a test")
        await until(lambda: bool(outcomes))
        assert outcomes[0].abandoned == ()
        assert (await shown(ana))[-1] == "assistant: done"
        assert world.turns()[0].state == "done"


@pytest.mark.parametrize("actor", ["agent", "slot", "gate", "journal"])
async def test_an_actor_that_dies_in_a_quiesced_host_starts_nothing(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("hello")])
        await runtime.quiesce("upgrade")
        await ana.send("one", id="one")
        world.ref(actor).kill("a test")
        await until(lambda: world.ref(actor).statistics().incarnation == 2)
        await ana.send("two", id="two")
        await wait_all_tasks_blocked()
        assert inbox(world) == ["one", "two"]
        assert calls(world) == 0
        await runtime.resume()
        await ana.wait_idle()
        assert calls(world) == 1


async def test_a_parked_agent_keeps_no_quiesce_waiting_and_starts_nothing_when_it_is_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("hello")])
        while not runtime._members["ana"].is_parked:
            incarnation = world.ref("agent").statistics().incarnation
            world.ref("agent").kill("a test")
            await until(
                lambda before=incarnation: (  # type: ignore[misc]
                    world.ref("agent").statistics().incarnation > before
                    or runtime._members["ana"].is_parked
                )
            )
        await runtime.quiesce("upgrade", within_s=1)
        await ana.send("one")
        await runtime.resume_agent("ana")
        await ana.wait_idle()
        assert calls(world) == 0
        await runtime.resume()
        await ana.wait_idle()
        assert calls(world) == 1


# -- more than one that asks ---------------------------------------------------------------------


async def test_a_resume_answers_who_waits_for_the_drain(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(reply("done")), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([gate])
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(quiesced, world, outcomes)
        await until(lambda: runtime.status().mode.state == "draining")
        began = trio.current_time()
        await runtime.resume()
        await until(lambda: bool(outcomes))
        assert trio.current_time() - began < 1
        assert isinstance(outcomes[0], ResumedError)
        gate.release()
        await ana.wait_idle()
        assert world.turns()[0].state == "done", "the live turn lived on"


async def test_a_later_quiesce_shortens_the_window_and_replaces_the_reason(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([gate, reply("x")])
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(lambda: quiesced(world, outcomes, within_s=1_000))
        await until(lambda: runtime.status().mode.state == "draining")
        began = trio.current_time()
        receipt = await runtime.quiesce("now", within_s=1)
        await until(lambda: bool(outcomes))
        assert trio.current_time() - began < 2
        assert receipt.abandoned == ("ana",)
        assert outcomes[0].abandoned == ()
        assert runtime.status().mode.reason == "now"


async def test_a_stop_answers_who_waits_for_the_drain_and_the_mode_stands(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(), []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            ana = await world.add([gate])
            await ana.send("go")
            await gate.wait_entered()
            nursery.start_soon(lambda: quiesced(world, outcomes, within_s=1_000))
            await until(lambda: runtime.status().mode.state == "draining")
            began = trio.current_time()
        assert trio.current_time() - began < 1
        await until(lambda: bool(outcomes))
    assert isinstance(outcomes[0], RuntimeClosedError)
    async with world.open() as runtime:
        assert runtime.status().mode.state == "quiesced"
        ana = await world.add([reply("fresh")])
        await runtime.resume()
        await ana.wait_idle()
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]


async def test_a_resume_of_a_host_that_serves_does_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([])
        assert (await runtime.resume()).was_quiesced is False
        assert not world.rows("modes")


async def test_a_host_is_quiesced_and_resumed_again_and_again_and_each_message_is_there_once(
    world: World, virtual_time: MockClock
) -> None:
    provider = ScriptedProvider.echo()
    async with world.open() as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        sent = []

        async def send() -> None:
            for number in range(60):
                sent.append((await ana.send(f"m{number}", id=f"m{number}")).id)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for _ in range(6):
                await trio.sleep(0.05)
                await runtime.quiesce("upgrade", within_s=0)
                await trio.sleep(0.03)
                await runtime.resume()
        await ana.wait_idle()
        seen = [row.message for row in world.rows("slots", "ana") if row.role == "user"]
        assert seen == sent
        assert not world.rows("wakes", "ana")


# -- other processes, and the store --------------------------------------------------------------


def write_mode(world: World, state: Any, act: str) -> None:
    """As another process of the directory does."""
    row = Mode(state=state, reason="elsewhere", by="x", at_ms=1, act=act)
    (outcome,) = world.runtime._store.commit(Request(puts=(Put("modes", MODE_KEY, encode(row)),)))
    assert isinstance(outcome, Committed)


async def test_a_quiesce_of_another_process_starts_no_turn_here_from_its_commit_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("x")])
        await ana.send("wakes nobody", wake=False)
        write_mode(world, "quiesced", "a1")
        await ana.send("go")
        await until(lambda: world.state().state == "quiesced")
        assert calls(world) == 0
        assert not world.turns()
        assert runtime.status().mode.reason == "elsewhere"
        write_mode(world, "serving", "a2")
        began = trio.current_time()
        await until(lambda: calls(world) == 1)
        assert trio.current_time() - began < 31


async def test_a_start_that_races_with_another_processes_quiesce_is_refused_whole(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from abeyance.actors.domain import slot_turns

    async with world.open():
        ana = await world.add([reply("x")])
        read = slot_turns.read_mode

        def stale(store: Any) -> Any:
            mode = read(store)
            if not world.rows("modes"):
                write_mode(world, "quiesced", "a1")
            return mode

        monkeypatch.setattr(slot_turns, "read_mode", stale)
        await ana.send("go")
        await until(lambda: world.state().state == "quiesced")
        assert not world.turns()
        assert len(world.rows("wakes", "ana")) == 1


async def test_a_mode_that_cannot_be_read_starts_nothing_and_a_resume_mends_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await runtime.quiesce("upgrade")
        make_unreadable(runtime._store, "modes", MODE_KEY)
    async with world.open() as runtime:
        ana = await world.add([reply("x")])
        await ana.send("go")
        await ana.wait_idle()
        assert calls(world) == 0
        assert "cannot be read" in runtime.status().mode.reason
        await runtime.resume()
        await ana.wait_idle()
        assert calls(world) == 1
        assert world.rows("modes")[0].state == "serving"


@pytest.mark.parametrize("verb", ["quiesce", "resume"])
async def test_a_mode_that_cannot_be_stored_changes_nothing(
    world: World, virtual_time: MockClock, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from abeyance.storage.store import NotStored

    async with world.open() as runtime:
        ana = await world.add([reply("x"), reply("y")])
        if verb == "resume":
            await runtime.quiesce("upgrade")
        before = runtime.status().mode
        ask = type(runtime._journal).ask
        refused = []

        async def refusing(self: Any, request: Any, *args: Any, **more: Any) -> Any:
            if not isinstance(request, tuple):
                return await ask(self, request, *args, **more)
            if any(put.table == "modes" for each in request for put in each.puts):
                refused.append(request)
                return tuple(NotStored(disk_full()) for _ in request)
            return await ask(self, request, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(type(runtime._journal), "ask", refusing)
            with pytest.raises(NotStoredError):
                await (runtime.quiesce("again") if verb == "quiesce" else runtime.resume())
        assert refused
        assert runtime.status().mode == before
        await ana.send("go")
        await ana.wait_idle()
        assert calls(world) == (1 if verb == "quiesce" else 0)


async def test_a_resume_stands_though_the_landing_of_what_waits_is_refused_once(
    world: World, virtual_time: MockClock
) -> None:
    faults = Faults(seed=1)
    async with world.open(faults=faults) as runtime:
        ana = await world.add([reply("both")])
        await runtime.quiesce("upgrade")
        await ana.send("one")
        await ana.send("two")
        # The first is the mode's row.
        faults.at("before_commit", nth=2).refuse()
        assert (await runtime.resume()).was_quiesced
        assert [fault.action.kind for fault in faults.fired] == ["refuse"]
        await ana.wait_idle()
        assert await shown(ana) == ["user: one", "user: two", "assistant: both"]
        assert not inbox(world)


# -- who may, and what is told -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"reason": " \n"}, "reason"),
        ({"reason": 7}, "reason"),
        ({"reason": "r", "within_s": -1}, "within_s"),
        ({"reason": "r", "within_s": math.nan}, "within_s"),
        ({"reason": "r", "within_s": math.inf}, "within_s"),
        ({"reason": "r", "within_s": 86_401}, "within_s"),
        ({"reason": "r", "within_s": True}, "within_s"),
        ({"reason": "r", "within_s": "3"}, "within_s"),
        ({"reason": "r", "requester": " "}, "requester"),
        ({"reason": "r", "requester": None}, "requester"),
    ],
    ids=str,
)
async def test_a_malformed_quiesce_is_refused_by_its_field(
    world: World, virtual_time: MockClock, given: Any, field: str
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidInputError) as refused:
            await runtime.quiesce(**given)
        assert refused.value.field == field
        assert not world.rows("modes")
        assert runtime.status().mode.state == "serving"


async def test_a_quiesce_and_a_resume_ask_the_hosts_gate(
    world: World, virtual_time: MockClock
) -> None:
    asked: list[OperatorAct] = []

    def admin(act: OperatorAct) -> bool:
        asked.append(act)
        return act.requester == "api:ops"

    async with world.open(admin=admin) as runtime:
        for verb in (lambda who: runtime.quiesce("r", requester=who), runtime_resume(runtime)):
            with pytest.raises(NotPermittedError):
                await verb("eve")
            await verb("ops")
    assert [(act.verb, act.agent) for act in asked] == [("quiesce", "*")] * 2 + [
        ("resume", "*")
    ] * 2


def runtime_resume(runtime: Any) -> Any:
    return lambda who: runtime.resume(requester=who)


async def test_a_quiesce_and_a_resume_are_events_and_in_the_log(
    world: World, virtual_time: MockClock
) -> None:
    kinds = ["host_quiesced", "host_drained", "host_resumed"]
    async with world.open() as runtime:
        await world.add([])
        with runtime.events(kinds=kinds) as seen:
            await runtime.quiesce("upgrade", requester="eve")
            await runtime.resume(requester="bo")
            found = [await anext(seen) for _ in kinds]
        assert [event.kind for event in found] == kinds
        first: Any = found[0]
        assert (first.reason, first.by) == ("upgrade", "api:eve")
        logged = [(line.event, line.text) for line in world.rows("log")]
        assert ("host_quiesced", "by api:eve: upgrade") in logged
        assert ("host_resumed", "by api:bo: upgrade") in logged


async def test_a_resume_by_another_process_stands_though_the_landing_here_is_refused_once(
    world: World, virtual_time: MockClock
) -> None:
    faults = Faults(seed=1)
    async with world.open(faults=faults) as runtime:
        ana = await world.add([reply("both")])
        await runtime.quiesce("upgrade")
        await ana.send("one")
        await ana.send("two")
        write_mode(world, "serving", "their resume")
        faults.at("before_commit", nth=1).refuse()
        await until(lambda: runtime.status().mode.state == "serving")
        await ana.wait_idle()
        assert [fault.action.kind for fault in faults.fired] == ["refuse"]
        assert await shown(ana) == ["user: one", "user: two", "assistant: both"]
        assert not inbox(world)
        # Whoever watches the mode goes on watching it.
        write_mode(world, "quiesced", "their quiesce")
        await until(lambda: runtime.status().mode.state == "quiesced")
