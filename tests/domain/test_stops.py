"""Stopping in any state: nothing starts, nothing is lost, and whoever waits is answered at once."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec, HostedRuntime
from abeyance.actors.core.errors import OutcomeUnknownError
from abeyance.actors.domain.drafts import Draft
from abeyance.actors.domain.errors import (
    AgentEndedError,
    RunInterruptedError,
    RuntimeClosedError,
)
from abeyance.actors.domain.turn import TurnTask
from abeyance.actors.groups import Groups
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.errors import AlreadyOpenError

from .world import Stop, World, shown, texts, tool, until

SOON_S = 1.0
"""In virtual time: no wait of a turn, a tool or a provider is as short."""


def spec(name: str = "ana", *script: Any, **more: Any) -> AgentSpec:
    return AgentSpec(name=name, provider=ScriptedProvider(list(script)), model="m", **more)


def calls(world: World, at: int = 0) -> int:
    return len(world.providers[at].requests)


async def caught(into: list[Any], call: Callable[[], Awaitable[Any]]) -> None:
    """Call, and keep what became of it and when."""
    try:
        into.append(await call())
    except Exception as error:
        into.append(error)


async def workflow(_run: Any, _params: Any) -> None:
    """Never runs."""


# -- every verb, once it has ended ---------------------------------------------------------------

REQUEST = ModelRequest(model="m", messages=(), system=None, tools=(), output_tokens_max=1)
RUNTIME_VERBS: dict[str, Callable[[Any], Any]] = {
    "add_agent": lambda runtime: runtime.add_agent(spec("new")),
    "add_provider": lambda runtime: runtime.add_provider("p", ScriptedProvider([])),
    "agent": lambda runtime: runtime.agent("ana"),
    "alerts": lambda runtime: runtime.alerts(),
    "approvals": lambda runtime: runtime.approvals(),
    "approve": lambda runtime: runtime.approve("ana/1/1/0", requester="o"),
    "deny": lambda runtime: runtime.deny("ana/1/1/0", requester="o"),
    "outbox": lambda runtime: runtime.outbox("o"),
    "outboxes": lambda runtime: runtime.outboxes(),
    "remove_outbox": lambda runtime: runtime.remove_outbox("o"),
    "dead_letters": lambda runtime: runtime.dead_letters(),
    "events": lambda runtime: runtime.events(),
    "import_deferred": lambda runtime: runtime.import_deferred([]),
    "inbox": lambda runtime: runtime.inbox("ana"),
    "health": lambda runtime: runtime.health(),
    "open_conversation": lambda runtime: runtime.open_conversation("ana", channel="c"),
    "provider_waits": lambda runtime: runtime.provider_waits(),
    "quarantine": lambda runtime: runtime.quarantine(),
    "quiesce": lambda runtime: runtime.quiesce("r"),
    "release_provider_wait": lambda runtime: runtime.release_provider_wait("ana", requester="o"),
    "remove_agent": lambda runtime: runtime.remove_agent("ana"),
    "replay_dead_letter": lambda runtime: runtime.replay_dead_letter(1, requester="o"),
    "replay_quarantined": lambda runtime: runtime.replay_quarantined(1, requester="o"),
    "resume": lambda runtime: runtime.resume(),
    "resume_agent": lambda runtime: runtime.resume_agent("ana"),
    "run_ephemeral": lambda runtime: runtime.run_ephemeral(spec("sum"), "go"),
    "statistics": lambda runtime: runtime.statistics(),
    "status": lambda runtime: runtime.status(),
    "tree": lambda runtime: runtime.tree(),
    "unpark": lambda runtime: runtime.unpark("runs"),
    "account_usage": lambda runtime: runtime.account_usage(ScriptedProvider([])),
    "usage": lambda runtime: runtime.usage("ana"),
    "prune": lambda runtime: runtime.prune(),
    "add_workflow": lambda runtime: runtime.add_workflow("w", workflow),
    "cancel_run": lambda runtime: runtime.cancel_run("k", requester="o"),
    "resume_run": lambda runtime: runtime.resume_run("k", requester="o"),
    "run": lambda runtime: runtime.run("k"),
    "run_history": lambda runtime: runtime.run_history("k"),
    "run_steps": lambda runtime: runtime.run_steps("k"),
    "runs": lambda runtime: runtime.runs(),
    "take_over_run": lambda runtime: runtime.take_over_run("k", requester="o"),
    "wait_run": lambda runtime: runtime.wait_run("k"),
    "add_schedule": lambda runtime: runtime.add_schedule("s", "w", every=60),
    "occurrences": lambda runtime: runtime.occurrences("s"),
    "pause_schedule": lambda runtime: runtime.pause_schedule("s", requester="o"),
    "remove_schedule": lambda runtime: runtime.remove_schedule("s", requester="o"),
    "resume_schedule": lambda runtime: runtime.resume_schedule("s", requester="o"),
    "schedule": lambda runtime: runtime.schedule("s"),
    "schedules": lambda runtime: runtime.schedules(),
    "start_run": lambda runtime: runtime.start_run("k", "w"),
    "use_fallback": lambda runtime: runtime.use_fallback(
        "k", provider="p", model="m", requester="o"
    ),
}
HANDLE_VERBS: dict[str, Callable[[Any], Any]] = {
    "auxiliary_call": lambda ana: ana.auxiliary_call(REQUEST),
    "backfill": lambda ana: ana.backfill([Draft("hi", at_ms=1)]),
    "cancel_turn": lambda ana: ana.cancel_turn(requester="o"),
    "set_model": lambda ana: ana.set_model("m2"),
    "edit": lambda ana: ana.edit("m1", "x", requester="o"),
    "edits": lambda ana: ana.edits(),
    "follow": lambda ana: anext(ana.follow("m1")),
    "receipt": lambda ana: ana.receipt("m1"),
    "hand_over": lambda ana: ana.hand_over("hi"),
    "hand_over_many": lambda ana: ana.hand_over_many([Draft("hi")]),
    "summaries": lambda ana: ana.summaries(),
    "retract": lambda ana: ana.retract("m1"),
    "run_tool": lambda ana: ana.run_tool("look", requester="o"),
    "rewind": lambda ana: ana.rewind(to=0, requester="o"),
    "rewound": lambda ana: anext(ana.rewound()),
    "send": lambda ana: ana.send("hi"),
    "send_many": lambda ana: ana.send_many([Draft("hi")]),
    "transcript": lambda ana: anext(ana.transcript()),
    "undo_edit": lambda ana: ana.undo_edit(1, requester="o"),
    "undo_rewind": lambda ana: ana.undo_rewind(requester="o"),
    "wait_idle": lambda ana: ana.wait_idle(),
}


async def refused(call: Callable[[], Any]) -> None:
    async def made() -> None:
        outcome = call()
        if inspect.isawaitable(outcome):
            await outcome

    with pytest.raises(RuntimeClosedError):
        await made()


@pytest.mark.behaviour("R-10", "D-039")
async def test_a_runtime_that_has_ended_is_not_half_alive(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("x")])
        fork = await runtime.open_conversation("ana", channel="c")
    for verb in RUNTIME_VERBS.values():
        await refused(partial(verb, runtime))
    for handle in (ana, fork):
        for verb in HANDLE_VERBS.values():
            await refused(partial(verb, handle))
    await refused(fork.close)
    assert calls(world) == 0


@pytest.mark.behaviour("R-10", "D-039", "X-002")
async def test_a_runtime_that_is_ending_refuses_each_verb_at_once(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the end, while the live turn's last commit is out."""
    gate, entered, go = Gate(), trio.Event(), trio.Event()
    end = TurnTask.end

    async def slow(self: TurnTask, *args: Any, **more: Any) -> Any:
        entered.set()
        with trio.CancelScope(shield=True):
            await go.wait()
        return await end(self, *args, **more)

    monkeypatch.setattr(TurnTask, "end", slow)
    tried: list[str] = []

    async def try_all(runtime: Any, *handles: Any) -> None:
        await entered.wait()
        began = trio.current_time()
        for name, verb in RUNTIME_VERBS.items():
            await refused(partial(verb, runtime))
            tried.append(name)
        for handle in handles:
            for verb in HANDLE_VERBS.values():
                await refused(partial(verb, handle))
        await refused(handles[1].close)
        assert trio.current_time() - began < SOON_S
        go.set()

    async with trio.open_nursery() as nursery, world.open() as runtime:
        ana = await world.add([gate])
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(try_all, runtime, ana, fork)
    assert tried == list(RUNTIME_VERBS)
    assert calls(world) == 1
    async with world.open():
        assert [turn.state for turn in world.turns()] == ["cancelled"]
        assert len(world.rows("wakes", "ana")) == 1, "what was asked for stands"


# -- whoever waits -------------------------------------------------------------------------------


@pytest.mark.behaviour("R-11", "D-038")
@pytest.mark.parametrize(
    "state",
    ["before it starts", "compiling", "admitting", "calling", "retrying", "sleeping", "in a tool"],
)
async def test_a_stop_answers_an_ephemeral_run_in_any_state(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    gate, stop, there = Gate(), Stop(), trio.Event()
    script = {
        "calling": gate,
        "retrying": fail(500),
        "sleeping": fail(429, retry_after=500),
        "in a tool": call_tool("wait"),
    }.get(state, reply("never"))

    async def hang(*_args: Any, **_more: Any) -> Any:
        there.set()
        await trio.sleep_forever()

    place = {
        "before it starts": (Groups, "record"),
        "compiling": (TurnTask, "_compile"),
    }.get(state)
    if state == "before it starts":
        record = Groups.record

        async def slow(self: Any, *args: Any, **more: Any) -> None:
            there.set()
            await trio.sleep(0.1)
            await record(self, *args, **more)

        monkeypatch.setattr(Groups, "record", slow)
    elif place is not None:
        monkeypatch.setattr(*place, hang)
    elif state == "admitting":
        from abeyance.actors.domain.call import Calls

        monkeypatch.setattr(Calls, "reply", hang)
    outcomes: list[Any] = []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            provider = ScriptedProvider([script], clock=world.clock)
            used = AgentSpec(name="sum", provider=provider, model="m", tools=[stop.tool()])
            nursery.start_soon(caught, outcomes, lambda: runtime.run_ephemeral(used, "go"))
            reached = place is not None or state == "admitting"
            await until(lambda: there.is_set() if reached else len(provider.requests) == 1)
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began < SOON_S
    (outcome,) = outcomes
    assert isinstance(outcome, RunInterruptedError)
    assert "the runtime stops" in str(outcome)
    assert len(provider.requests) == (0 if reached else 1)
    monkeypatch.undo()
    async with world.open() as runtime:
        await until(lambda: not world.rows("ephemerals"))
        assert {turn.state for turn in world.rows("turns")} <= {"cancelled"}


async def test_a_run_that_fails_to_begin_keeps_no_stop_waiting(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, go = trio.Event(), trio.Event()

    async def failing(*_args: Any, **_more: Any) -> None:
        there.set()
        await go.wait()
        raise ValueError("no room")

    outcomes: list[Any] = []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            monkeypatch.setattr(Groups, "record", failing)
            nursery.start_soon(caught, outcomes, lambda: runtime.run_ephemeral(spec("sum"), "go"))
            await there.wait()

            async def let_go() -> None:
                await trio.sleep(0.1)
                go.set()

            nursery.start_soon(let_go)
            began = trio.current_time()
        assert trio.current_time() - began < SOON_S
    assert isinstance(outcomes[0], ValueError)


async def test_a_stop_answers_whoever_waits_for_an_agent(
    world: World, virtual_time: MockClock
) -> None:
    gate, read, outcomes = Gate(), [], []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            ana = await world.add([gate])
            bo = await world.add([], "bo")
            for number in range(5):
                await bo.send(f"m{number}", wake=False)
            fork = await runtime.open_conversation("ana", channel="c")
            await ana.send("go", id="go")
            await gate.wait_entered()

            async def follow() -> None:
                async for message in bo.transcript():
                    read.append(message.text)
                    await trio.sleep(0.2)

            for call in (ana.wait_idle, follow):
                nursery.start_soon(caught, outcomes, call)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            assert fork.name
        assert trio.current_time() - began < SOON_S
        await until(lambda: len(outcomes) == 2)
        assert trio.current_time() - began < SOON_S
    assert [type(outcome) for outcome in outcomes] == [RuntimeClosedError] * 2
    assert len(read) < 5


async def test_a_close_that_waits_for_its_turns_leaves_the_conversation_open_at_a_stop(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(), []
    async with trio.open_nursery() as nursery, world.open() as runtime:
        await runtime.add_agent(spec("ana", gate))
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("go", id="go")
        await gate.wait_entered()
        nursery.start_soon(caught, outcomes, fork.close)
        await wait_all_tasks_blocked()
    assert isinstance(outcomes[0], RuntimeClosedError)
    async with world.open() as runtime:
        await runtime.add_agent(spec("ana", reply("done")))
        assert not runtime.dead_letters()
        again = await runtime.open_conversation("ana", channel="c")
        assert again.name == fork.name
        await again.wait_idle()
        assert await shown(again) == [
            "user: go",
            "marker: this turn was ended by a stop; its wakes go on at the next start",
            "assistant: done",
        ]


async def test_whoever_waits_for_an_agent_that_is_removed_is_told_so(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime, trio.open_nursery() as nursery:
        gate, outcomes = Gate(), []
        ana = await world.add([gate])
        await ana.send("go")
        await gate.wait_entered()
        world.ref("agent").suspend()
        nursery.start_soon(caught, outcomes, ana.wait_idle)
        await wait_all_tasks_blocked()
        await runtime._members["ana"].group.stop()
        await until(lambda: bool(outcomes))
        assert isinstance(outcomes[0], AgentEndedError)


@pytest.mark.parametrize("verb", ["add_agent", "open_conversation"])
async def test_an_agent_that_is_being_added_at_a_stop_is_refused_or_stopped_with_the_rest(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """At each step of the adding."""
    for steps in range(0, 40, 2):
        outcomes: list[Any] = []
        world.directory = world.directory.with_name(f"state{verb}{steps}")
        async with trio.open_nursery() as nursery:
            async with world.open() as runtime:
                ana = await world.add([])
                await ana.send("earlier", wake=False)
                provider = ScriptedProvider([reply("never"), reply("never")])
                new = AgentSpec(name="new", provider=provider, model="m")
                if verb == "add_agent":
                    nursery.start_soon(caught, outcomes, partial(runtime.add_agent, new))
                else:
                    fork = partial(runtime.open_conversation, "ana", channel="c")
                    nursery.start_soon(caught, outcomes, fork)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                began = trio.current_time()
            assert trio.current_time() - began < SOON_S, steps
        (outcome,) = outcomes
        assert isinstance(outcome, (RuntimeClosedError, AgentHandle)), (steps, outcome)
        assert not runtime.system.tree().children, steps


# -- turns ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("D-033")
@pytest.mark.parametrize("starts_again", [False, True], ids=["stop", "stop and start"])
async def test_a_turn_that_compiles_at_a_stop_opens_no_stream(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, starts_again: bool
) -> None:
    compiling, go = trio.Event(), trio.Event()
    compile_ = TurnTask._compile

    async def slow(self: TurnTask) -> None:
        # As one whose last step does not notice that it is cancelled.
        compiling.set()
        with trio.CancelScope(shield=True):
            await go.wait()
            await compile_(self)

    monkeypatch.setattr(TurnTask, "_compile", slow)
    async with world.open():
        ana = await world.add([reply("never")])
        await ana.send("go", id="go")
        await compiling.wait()
        await ana.send("meanwhile", id="meanwhile")
        await ana.send("own", author="ana", id="own")
        async with trio.open_nursery() as nursery:

            async def let_go() -> None:
                await trio.sleep(0.1)
                go.set()

            nursery.start_soon(let_go)
            await world.runtime._stop()
    assert calls(world) == 0
    monkeypatch.undo()
    async with world.open():
        assert [row.message for row in world.rows("slots", "ana") if row.turn is None] == [
            "go",
            "meanwhile",
            "own",
        ]
        if starts_again:
            ana = await world.add([reply("fresh")])
            await ana.wait_idle()
            (request,) = world.providers[-1].requests
            assert texts(request) == ["user: go", "user: meanwhile", "agent: own"]
            assert calls(world) == 0, "the old one's turn is over for good"


@pytest.mark.behaviour("D-032")
async def test_a_wake_that_arrives_while_the_runtime_stops_calls_nobody_until_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("never")])
        # On its way as the stop begins: its commit, and so its wake, come behind that.
        handed = ana.hand_over("go", id="go")
    assert (await handed).id == "go"
    assert calls(world) == 0
    async with world.open():
        ana = await world.add([reply("heard")])
        await ana.wait_idle()
        said = [line for line in await shown(ana) if not line.startswith("marker")]
        assert said == ["user: go", "assistant: heard"]


@pytest.mark.behaviour("D-035")
async def test_a_body_that_does_not_end_keeps_nothing_from_being_stored_at_a_stop(
    world: World, virtual_time: MockClock
) -> None:
    """A stray frame: a thread that runs on after the runtime has ended."""
    entered, go = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def body() -> str:
        token.run_sync_soon(entered.set)
        go.wait(10)
        return "late"

    began = time.monotonic()
    try:
        # Virtual time stands still while the thread runs.
        async with world.open():
            ana = await world.add([call_tool("wait")], tools=[tool("wait", body)])
            await ana.send("go", id="go")
            await entered.wait()
            await ana.send("one", id="one")
            await ana.send("own", author="ana", id="own")
        assert time.monotonic() - began < 8, "the end waited for the thread"
    finally:
        go.set()
    async with world.open():
        rows = world.rows("slots", "ana")
        assert [row.role for row in rows] == [
            "user",
            "assistant",
            "results",
            "marker",
            "user",
            "assistant",
        ]
        assert [row.message for row in rows if row.turn is None] == ["go", "one", "own"]
        assert not world.rows("inbox")


@pytest.mark.behaviour("D-037")
async def test_what_was_for_an_agent_that_is_gone_is_a_dead_letter_whatever_stops_and_starts_follow(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await runtime.add_agent(spec("ana", fail(429, retry_after=7_200)))
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("hello", id="h1")
        await fork.wait_idle()
        await fork.close()
    for _ in range(2):
        async with world.open() as runtime:
            (letter,) = runtime.dead_letters()
            assert "h1" in letter.message
            assert letter.replayable
    async with world.open() as runtime:
        ana = await world.add([reply("sorry")])
        await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: bool(world.providers[-1].requests))
        await ana.wait_idle()
        assert (await shown(ana))[-2:] == ["user: hello", "assistant: sorry"]


# -- starting again ------------------------------------------------------------------------------


@pytest.mark.behaviour("R-10")
async def test_a_directory_is_refused_while_its_runtime_ends_and_free_right_after(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, outcomes = Gate(), []
    end = TurnTask.end
    entered, go = trio.Event(), trio.Event()

    async def slow(self: TurnTask, *args: Any, **more: Any) -> Any:
        entered.set()
        with trio.CancelScope(shield=True):
            await go.wait()
        return await end(self, *args, **more)

    monkeypatch.setattr(TurnTask, "end", slow)

    async def open_again() -> None:
        await entered.wait()
        try:
            async with world.open():
                outcomes.append("opened")
        except AlreadyOpenError as error:
            outcomes.append(error)
        go.set()

    async with trio.open_nursery() as nursery:
        async with world.open():
            ana = await world.add([gate])
            await ana.send("go")
            await gate.wait_entered()
            nursery.start_soon(open_again)
        assert isinstance(outcomes[0], AlreadyOpenError)
        monkeypatch.undo()
        async with world.open():
            ana = await world.add([reply("fresh")])
            await ana.wait_idle()
            assert [turn.state for turn in world.turns()] == ["cancelled", "done"]


@pytest.mark.behaviour("R-10")
async def test_a_storm_of_stops_and_starts_calls_and_writes_for_no_generation_but_its_own(
    world: World, virtual_time: MockClock
) -> None:
    sent: list[str] = []
    generations: list[tuple[Any, int]] = []
    for number in range(12):
        provider = ScriptedProvider.echo(tool="wait", rounds=2)
        async with world.open() as runtime:
            free = Stop()
            free.go.set()
            ana = await runtime.add_agent(
                AgentSpec(name="ana", provider=provider, model="m", tools=[free.tool()])
            )

            async def send(ana: Any = ana, number: int = number) -> None:
                for step in range(3):
                    name = f"{number}.{step}"
                    with trio.move_on_after(1):
                        try:
                            sent.append((await ana.send(name, id=name)).id)
                        except (RuntimeClosedError, OutcomeUnknownError):
                            return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                for _ in range(number * 7):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(runtime._stop)
        generations.append((provider, len(provider.requests)))
    provider = ScriptedProvider.echo()
    async with world.open() as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.wait_idle()
        stored = [row.message for row in world.rows("slots", "ana") if row.turn is None]
        assert [message for message in stored if message in sent] == sent
        assert len(set(stored)) == len(stored)
        assert not world.rows("wakes", "ana")
        assert not world.rows("inbox")
        assert {turn.state for turn in world.turns()} <= {"done", "cancelled"}
    for old, made in generations:
        assert len(old.requests) == made, "no call was made for an old generation"


@pytest.mark.behaviour("R-10")
def test_hosts_that_open_and_close_one_directory_from_many_threads_are_refused_or_whole(
    tmp_path: Path,
) -> None:
    host = HostedRuntime(tmp_path / "state", control=False)
    problems: list[BaseException] = []
    opened: list[int] = []

    def storm(number: int) -> None:
        for turn in range(4):
            try:
                host.open()
            except (RuntimeError, AlreadyOpenError):
                pass  # It is open, or still closing; nothing was done.
            except BaseException as error:
                problems.append(error)
            try:
                ana = host.add_agent(spec(f"a{number}.{turn}"))
                ana.send("hello", wake=False)
                opened.append(number)
            except (RuntimeClosedError, OutcomeUnknownError):
                pass
            except BaseException as error:
                problems.append(error)
            try:
                host.close()
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    assert opened, "nobody got through"
    with host:
        assert host.status().agents == ()
