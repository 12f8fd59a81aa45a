"""The runtime: what it refuses before any effect, who owns what, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, Tool, open_runtime
from abeyance.actors import opening as opening_module
from abeyance.actors.core import ActorSystem, AskTable
from abeyance.actors.domain.agent import Agent
from abeyance.actors.domain.agent_acts import StopTurns
from abeyance.actors.domain.asks import ASKS
from abeyance.actors.domain.errors import (
    AgentExistsError,
    AgentOwnedElsewhereError,
    AgentParkedError,
    InvalidInputError,
    InvalidNameError,
    InvalidSpecError,
    RuntimeClosedError,
    UnknownAgentError,
)
from abeyance.actors.domain.gate import Gate as GateActor
from abeyance.actors.domain.slot import Slot
from abeyance.actors.domain.slot_messages import ReadOpenTurn
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.errors import StorageError, StoreLostError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored

from .world import SCHEMA, Stop, World, shown, texts, tool, until

CHILD = Path(__file__).parent / "children" / "owner.py"


def provider() -> ScriptedProvider:
    return ScriptedProvider([])


class Undeclared:
    async def call(self, request: Any, on_delta: Any) -> Any: ...


class Uncallable:
    carries_injections = True


class Named(ScriptedProvider):
    credential = "sk-a-key"  # type: ignore[assignment]


class Bounded(ScriptedProvider):
    context_tokens = 200_000


def spec(**fields: Any) -> AgentSpec:
    return AgentSpec(**{"name": "ana", "provider": provider(), "model": "m", **fields})


def bad_tool(**fields: Any) -> list[Tool]:
    given = {"name": "t", "description": "d", "input_schema": SCHEMA, "run": print, **fields}
    return [tool("fine", print), Tool(**given)]


def spec_with_tools_since(since: Any) -> AgentSpec:
    tools = [tool("fine", print)]
    made = spec(tools=tools)
    tools[:] = since if isinstance(since, list) else tools * 2
    return made


def spec_with_provider_since(lacks: str) -> AgentSpec:
    changed = Changeable([])
    made = spec(provider=changed)
    setattr(changed, lacks, None)
    return made


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: spec(name="*"), "name"),
        (lambda: spec(name="framework"), "name"),
        (lambda: spec(name=""), "name"),
        (lambda: spec(name="é" * 65), "name"),
        (lambda: spec(name="a\nb"), "name"),
        (lambda: spec(name=7), "name"),
        (lambda: spec(model="*"), "model"),
        (lambda: spec(model=None), "model"),
        (lambda: spec(provider=Undeclared()), "provider.carries_injections"),
        (lambda: spec(provider=Uncallable()), "provider.call"),
        (lambda: spec(provider=Named([])), "provider.credential"),
        (lambda: spec(provider=Bounded([])), "provider.context_tokens"),
        (lambda: spec(system=7), "system"),
        (lambda: spec(rounds_max=0), "rounds_max"),
        (lambda: spec(rounds_max=True), "rounds_max"),
        (lambda: spec(rounds_max=1.5), "rounds_max"),
        (lambda: spec(output_tokens_max="4096"), "output_tokens_max"),
        (lambda: spec(tools=5), "tools"),
        (lambda: spec(tools="look"), "tools"),
        (lambda: spec(tools=[print]), "tools[0]"),
        (lambda: spec(tools=bad_tool(name="no spaces")), "name"),
        (lambda: spec(tools=bad_tool(name="fine")), "tools[1].name"),
        (lambda: spec(tools=bad_tool(description=None)), "description"),
        (lambda: spec(tools=bad_tool(input_schema={"type": "array"})), "input_schema"),
        (lambda: spec(tools=bad_tool(input_schema=None)), "input_schema"),
        (
            lambda: spec(tools=bad_tool(input_schema={"type": "object", "default": float("nan")})),
            "input_schema",
        ),
        (lambda: spec(tools=bad_tool(run="print")), "run"),
        (lambda: spec(tools=bad_tool(in_doubt="guess")), "in_doubt"),
        (lambda: spec(tools=bad_tool(time_limit_s=0)), "time_limit_s"),
        (lambda: spec(tools=bad_tool(time_limit_s=float("nan"))), "time_limit_s"),
        (lambda: spec(tools=bad_tool(time_limit_s=True)), "time_limit_s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_specification_is_refused_by_its_field_as_it_is_made(
    make: Callable[[], AgentSpec], field: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        make()
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


class Changeable(ScriptedProvider):
    """An adapter that is sound as its specification is made, and may be no longer."""


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: {"name": "ana"}, "spec"),
        (lambda: spec_with_tools_since([print]), "tools[0]"),
        (lambda: spec_with_tools_since("again"), "tools[1].name"),
        (lambda: spec_with_provider_since("carries_injections"), "provider.carries_injections"),
        (lambda: spec_with_provider_since("call"), "provider.call"),
    ],
)
async def test_a_specification_that_is_none_any_more_is_refused_before_any_effect(
    world: World, virtual_time: MockClock, make: Callable[[], Any], field: str
) -> None:
    given = make()
    async with world.open() as runtime:
        with pytest.raises(InvalidInputError) as refused:
            await runtime.add_agent(given)
        assert refused.value.field == field
        assert not runtime.status().agents
        for table in ("agents", "owners", "heads", "leases"):
            assert not world.rows(table)
        await runtime.add_agent(spec())


async def test_an_agent_is_added_once(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        await world.add([])
        with pytest.raises(AgentExistsError, match="added before") as refused:
            await runtime.add_agent(spec())
        assert refused.value.agent == "ana"
        assert runtime.agent("ana").name == "ana"
        with pytest.raises(UnknownAgentError, match="no agent 'bo'"):
            runtime.agent("bo")


async def test_of_two_adds_at_once_one_is_refused(world: World, virtual_time: MockClock) -> None:
    outcomes: list[str] = []

    async def add() -> None:
        try:
            await world.runtime.add_agent(spec())
            outcomes.append("added")
        except AgentExistsError:
            outcomes.append("refused")

    async with world.open(), trio.open_nursery() as nursery:
        nursery.start_soon(add)
        nursery.start_soon(add)
    assert sorted(outcomes) == ["added", "refused"]


async def test_an_add_that_was_cancelled_can_be_made_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        for checkpoints in range(30):
            with trio.CancelScope() as scope:
                scope.cancel() if checkpoints == 0 else None
                async with trio.open_nursery() as nursery:

                    async def cancel_later(
                        scope: trio.CancelScope = scope, checkpoints: int = checkpoints
                    ) -> None:
                        for _ in range(checkpoints):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_later)
                    await runtime.add_agent(spec(name=f"a{checkpoints}"))
            if f"a{checkpoints}" not in runtime._members:
                await runtime.add_agent(spec(name=f"a{checkpoints}"))
            await runtime.agent(f"a{checkpoints}").wait_idle()


async def test_an_add_that_is_cancelled_while_its_actors_start_leaves_them_started(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trio.CancelScope() as scope:
        async with world.open() as runtime:
            started = GateActor.on_start

            def cancel(gate: GateActor) -> None:
                inner.cancel()
                started(gate)

            monkeypatch.setattr(GateActor, "on_start", cancel)
            with trio.CancelScope() as inner:
                await runtime.add_agent(spec(provider=ScriptedProvider([reply("hello")])))
            ana = runtime.agent("ana")
            await ana.send("hi")
            await ana.wait_idle()
            assert (await shown(ana))[-1] == "assistant: hello"
    assert not scope.cancelled_caught


async def test_an_agent_whose_actors_do_not_start_leaves_its_names_free(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(Agent, "on_start", lambda _self: 1 / 0)
            with pytest.raises(Exception, match="failed to start"):
                await runtime.add_agent(spec())
        assert not runtime.status().agents
        ana = await world.add([reply("hello")])
        await ana.send("hi")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: hello"


# -- ownership ---------------------------------------------------------------------------------


@contextmanager
def owner(directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), "ana"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_an_agent_of_a_live_process_is_refused_by_pid_and_a_dead_ones_is_taken_over(
    tmp_path: Path,
) -> None:
    with owner(tmp_path / "state") as process:
        async with open_runtime(tmp_path / "state", control=False) as runtime:
            with pytest.raises(AgentOwnedElsewhereError) as refused:
                await runtime.add_agent(spec())
            assert refused.value.pid == process.pid
            assert str(process.pid) in str(refused.value)
            assert not runtime.status().agents
            await runtime.add_agent(spec(name="bo"))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            ana = await runtime.add_agent(spec(provider=ScriptedProvider([reply("mine")])))
            await ana.send("hi")
            await ana.wait_idle()
            assert (await shown(ana))[-1] == "assistant: mine"


async def test_a_second_opener_in_the_same_process_is_refused_and_leaves_the_first_unharmed(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("hello")])
        with pytest.raises(StorageError):
            async with open_runtime(world.directory, control=False):
                raise AssertionError("opened twice")
        await ana.send("hi")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: hello"


async def test_a_state_directory_is_made_for_its_owner_only(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        assert world.directory.stat().st_mode & 0o777 == 0o700


# -- stop ----------------------------------------------------------------------------------------


@pytest.mark.behaviour("D-031", "D-032")
async def test_a_stop_gives_the_wakes_back_and_the_next_start_runs_one_fresh_turn(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open():
        ana = await world.add([gate])
        await ana.send("one")
        await gate.wait_entered()
        await ana.send("two")
        await ana.send("own", author="ana")
        before = trio.current_time()
    assert trio.current_time() - before < 1
    async with world.open():
        assert world.turns()[0].state == "cancelled"
        assert not world.rows("inbox"), "the end of the turn let the inbox land"
        ana = await world.add([reply("fresh"), reply("never")])
        await ana.wait_idle()
        (request,) = world.providers[1].requests
        assert texts(request) == ["user: one", "user: two", "agent: own"]
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]
        assert not world.rows("wakes", "ana")


async def test_a_stop_right_after_an_add_does_not_wait_for_anything(
    world: World, virtual_time: MockClock
) -> None:
    for _ in range(5):
        before = trio.current_time()
        async with world.open():
            await world.add([reply("x")])
        assert trio.current_time() - before < 1


async def test_a_stop_before_an_agent_knows_its_open_turn_is_answered(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, go = Slot.on_receive, trio.Event()

    async def slow(slot: Slot, message: Any) -> Any:
        if isinstance(message, ReadOpenTurn):
            await go.wait()
        return receive(slot, message)

    async with world.open():
        monkeypatch.setattr(Slot, "on_receive", slow)
        await world.add([])
        stopped = world.ref("agent").ask(StopTurns(), block=False)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        with trio.fail_after(5):
            await stopped


async def test_an_agent_that_was_told_to_stop_asks_nobody_and_starts_no_turn_in_its_next_life(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, go, slow_now = Slot.on_receive, trio.Event(), list[bool]()

    async def slow(slot: Slot, message: Any) -> Any:
        if isinstance(message, ReadOpenTurn) and slow_now:
            await go.wait()
        return receive(slot, message)

    monkeypatch.setattr(Slot, "on_receive", slow)
    async with world.open():
        ana = await world.add([reply("never")])
        agent = world.ref("agent")
        await agent.ask(StopTurns())
        slow_now.append(True)
        agent.kill()
        await until(lambda: agent.statistics().incarnation == 2)
        with trio.fail_after(5):
            await agent.ask(StopTurns())
        go.set()
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().state == "stopping"
        assert not world.providers[0].requests


async def test_a_stop_at_any_step_of_a_turn_loses_nothing_and_takes_no_time(
    world: World, virtual_time: MockClock
) -> None:
    """Stops after 0, 1, 2 ... looks at an idle loop; each start goes on from what is there."""
    for steps in range(14):
        name = f"a{steps}"
        async with world.open():
            agent = await world.add(
                [call_tool("t"), reply("end")], name, tools=[tool("t", lambda: "x")]
            )
            await agent.send("go")
            for _ in range(steps):
                await trio.testing.wait_all_tasks_blocked()
            before = trio.current_time()
        assert trio.current_time() - before < 1
        async with world.open():
            agent = await world.add(
                lambda request: reply("fresh"), name, tools=[tool("t", lambda: "x")]
            )
            await agent.wait_idle()
            lines = await shown(agent)
            assert lines[0] == "user: go"
            assert lines.count("user: go") == 1
            assert lines[-1] in ("assistant: end", "assistant: fresh")
            assert sum(line.startswith("results") for line in lines) == lines.count(
                "assistant: <t>"
            )
            assert not world.rows("wakes", name)


async def test_a_stop_of_a_turn_that_was_not_compiled_yet_closes_its_gap_with_its_own_calls(
    world: World, virtual_time: MockClock
) -> None:
    """A taken-up turn is stopped in the middle of a compile of several slices."""
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait")], tools=[stop.tool(in_doubt="retry")])
        for number in range(70):
            await ana.send(str(number), wake=False)
        await ana.send("go")
        await stop.entered.wait()
        agent = world.ref("agent")
        agent.kill()
        await until(lambda: world.state().attempts == 2)
    async with world.open():
        ana = await world.add([reply("fresh")])
        await ana.wait_idle()
        lines = await shown(ana)
        assert lines[71:73] == [
            "assistant: <wait>",
            "results: =!The outcome of this call is unknown: the turn was ended while it ran. "
            "It may have had its effect, or still have it.",
        ]
        assert lines[-1] == "assistant: fresh"


async def test_after_the_end_every_verb_says_so(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
    calls = [
        lambda: ana.send("hi"),
        ana.wait_idle,
        lambda: runtime.add_agent(spec()),
        lambda: runtime.release_provider_wait("ana", requester="ops"),
        lambda: anext(ana.transcript()),
        lambda: anext(ana.rewound()),
        lambda: ana.rewind(to=0, requester="ops"),
        lambda: ana.undo_rewind(requester="ops"),
    ]
    for call in calls:
        with pytest.raises(RuntimeClosedError):
            await call()
    for look in (runtime.status, runtime.provider_waits, lambda: runtime.agent("ana")):
        with pytest.raises(RuntimeClosedError):
            look()


async def test_who_waits_for_idleness_at_the_end_is_told_so(
    world: World, virtual_time: MockClock
) -> None:
    outcomes: list[type[BaseException]] = []

    async def wait(agent: Any) -> None:
        try:
            await agent.wait_idle()
        except RuntimeClosedError as error:
            outcomes.append(type(error))

    gate = Gate()
    async with trio.open_nursery() as nursery:
        async with world.open():
            ana = await world.add([fail(429, retry_after=5), gate])
            await ana.send("go")
            await ana.wait_idle()
            await trio.sleep(6)
            await gate.wait_entered()
            nursery.start_soon(wait, ana)
            await trio.testing.wait_all_tasks_blocked()
        # A stopped turn leaves its agent idle, so the wait may as well have ended well.
        with trio.fail_after(5):
            await trio.testing.wait_all_tasks_blocked()
    assert outcomes in ([], [RuntimeClosedError])


# -- parked groups -------------------------------------------------------------------------------


async def crash(ref: Any, times: int) -> None:
    for _ in range(times):
        incarnation = ref.statistics().incarnation
        await until(lambda: ref.statistics().state == "running")
        ref.kill("by a test")
        await until(
            lambda incarnation=incarnation: (
                ref.statistics().incarnation > incarnation or ref.statistics().state == "held"
            )
        )


@pytest.mark.parametrize("actor", ["agent", "gate", "slot"])
@pytest.mark.parametrize("when", ["idle", "in a call", "in a tool"])
async def test_a_group_that_crashes_for_ever_is_parked_alone_and_keeps_no_end_waiting(
    world: World, virtual_time: MockClock, actor: str, when: str
) -> None:
    gate, stop = Gate(), Stop()
    script = {"idle": [], "in a call": [gate], "in a tool": [call_tool("wait")]}[when]
    async with world.open():
        ana = await world.add(script, tools=[stop.tool()])
        bo = await world.add([reply("fine")], "bo")
        if when != "idle":
            await ana.send("go")
            await (gate.wait_entered() if when == "in a call" else stop.entered.wait())
        with trio.fail_after(100):
            await crash(world.ref(actor), 6)
            await until(lambda: world.state().state == "parked")
        assert world.state("bo").state == "idle"
        await bo.send("hi")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: fine"
        # What the turn comes back with finds nobody: it waits, and must not keep the end waiting.
        stop.go.set()
        gate.release()
        with pytest.raises(AgentParkedError, match="resume_agent"):
            await ana.wait_idle()
        if actor == "slot":
            with pytest.raises(AgentParkedError):
                await ana.send("nobody takes it")
        else:
            await ana.send("the inbox still accepts")
        before = trio.current_time()
    # An agent that owes answers has its five seconds to give them; the end's own bound is thirty.
    assert trio.current_time() - before < 10
    async with world.open():
        ana = await world.add(lambda request: reply("again"), tools=[tool("wait", lambda: 1)])
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"


# -- what leaves the block -----------------------------------------------------------------------


async def test_an_error_of_the_hosts_block_leaves_as_it_is(
    world: World, virtual_time: MockClock
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is the subject.
        async with world.open():
            ana = await world.add([Gate()])
            await ana.send("go")
            raise ZeroDivisionError
    with pytest.raises(ExceptionGroup) as group:
        async with world.open():
            raise ExceptionGroup("mine", [KeyError("a")])
    assert group.value.message == "mine"
    with pytest.raises(KeyboardInterrupt):
        async with world.open():
            raise KeyboardInterrupt


async def test_a_cancelled_block_ends_its_turns_as_a_stop_does(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    with trio.CancelScope() as scope:
        async with world.open():
            ana = await world.add([gate])
            await ana.send("go")
            await gate.wait_entered()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    async with world.open():
        assert world.turns()[0].state == "cancelled"
        ana = await world.add([reply("fresh")])
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: fresh"


async def test_what_fails_at_the_opening_leaves_as_it_is_and_lets_the_store_go(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no socket")

    monkeypatch.setattr(opening_module, "serve_control", serve)
    with pytest.raises(OSError, match="no socket"):
        async with open_runtime(world.directory, clock=world.clock):
            raise AssertionError("opened")
    async with world.open():
        await world.add([])


async def test_a_writer_that_is_lost_for_good_ends_the_runtime_with_its_error(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreLostError):  # noqa: PT012 - the block is the subject.
        async with world.open():
            ana = await world.add([Gate()])
            await ana.send("go")

            def lost(_store: LmdbStore, batch: Any, done: Any) -> None:
                done([NotStored(StoreLostError("the writer died twice"))] * len(batch))

            monkeypatch.setattr(LmdbStore, "submit", lost)
            with pytest.raises(Exception, match="commit failed"):
                await ana.send("more")
            await trio.sleep_forever()


# -- releases ------------------------------------------------------------------------------------


async def test_a_release_with_a_malformed_name_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([])
        for agent, model in (("*", None), ("", None), (7, None), ("ana", ""), ("ana", 7)):
            with pytest.raises(InvalidNameError):
                await runtime.release_provider_wait(agent, model, requester="ops")  # type: ignore[arg-type]
        with pytest.raises(InvalidNameError):
            runtime.provider_waits(42)  # type: ignore[arg-type]
        with pytest.raises(UnknownAgentError):
            await runtime.release_provider_wait("bo", requester="ops")
        receipt = await runtime.release_provider_wait("ana", model="*", requester="ops")
        assert receipt.released == ()


async def test_the_actors_of_an_agent_are_in_groups_of_their_own(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([])
        for actor, kind in (("agent", Agent), ("gate", GateActor), ("slot", Slot)):
            assert world.ref(actor).actor_class is kind


async def test_no_handler_of_a_turns_actors_waits_for_anybody(
    world: World, virtual_time: MockClock
) -> None:
    """In debug mode a handler that suspends more than once crashes its actor."""
    options: dict[str, Any] = {"asks": AskTable(ASKS), "clock": world.clock, "ask_timeout_s": None}
    async with (
        ActorSystem(debug=True, **options) as system,
        open_runtime(
            world.directory, clock=world.clock, control=False, system=system
        ) as world.runtime,
    ):
        ana = await world.add(
            [call_tool("t"), fail(429, retry_after=5), fail(500), reply("end")],
            tools=[tool("t", lambda: "x")],
        )
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(6)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: end"
        await world.runtime.release_provider_wait("ana", requester="ops")
        assert {actor.incarnation for actor in system.actors()} == {1}
        assert not system.quarantine.total


async def test_an_empty_name_of_a_directory_is_refused_and_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpecError, match="directory"):
        async with open_runtime(""):
            raise AssertionError
    assert not os.listdir(tmp_path)
