"""Tools: how bodies run, what the model is told, and what is recorded of each call."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import tool_context
from abeyance.actors.core.errors import AskCycleError
from abeyance.actors.testing import Gate, call_tool, reply
from abeyance.storage.tables.blocks import ToolUseBlock

from .world import Stop, World, shown, texts, tool, until


def use(name: str, id_: str, **fields: object) -> ToolUseBlock:
    return ToolUseBlock(id=id_, name=name, input=fields)


async def test_the_calls_of_one_reply_run_at_the_same_time_and_are_told_in_their_order(
    world: World, virtual_time: MockClock
) -> None:
    first, second = Stop("one"), Stop("two")
    async with world.open():
        ana = await world.add(
            [reply(use("first", "c1"), use("second", "c2"), use("plain", "c3")), reply("end")],
            tools=[first.tool("first"), second.tool("second"), tool("plain", lambda: "three")],
        )
        await ana.send("go")
        await first.entered.wait()
        await second.entered.wait()
        second.go.set()
        await until(lambda: [row.state for row in world.tool_calls()].count("done") == 2)
        assert world.tool_calls()[0].state == "started"
        first.go.set()
        await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =one =two =three"
        assert [row.state for row in world.tool_calls()] == ["done"] * 3


async def test_sync_bodies_run_in_threads_beside_one_another(
    world: World, virtual_time: MockClock
) -> None:
    meet = threading.Barrier(2)

    def body() -> str:
        meet.wait(10)
        return threading.current_thread().name

    async with world.open():
        ana = await world.add(
            [reply(use("look", "c1"), use("look", "c2")), reply("end")], tools=[tool("look", body)]
        )
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =tool look =tool look"


async def test_awaitable_that_a_sync_body_returns_is_awaited(
    world: World, virtual_time: MockClock
) -> None:
    async def later() -> str:
        await trio.sleep(1)
        return "looked"

    async with world.open():
        ana = await world.add(
            [reply(use("look", "c1")), reply("end")], tools=[tool("look", lambda: later())]
        )
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =looked"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "done"),
        ("as it is", "as it is"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        (7, "7"),
        ({1}, "[1]"),
        ("bad \ud800 half", "bad ? half"),
        ("x" * 1_000_001, "x" * 1_000_000 + "\n[cut]"),
    ],
    ids=["none", "text", "json", "number", "a set", "surrogate", "too long"],
)
async def test_what_a_body_returns_is_told_as_text_or_as_json(
    world: World, virtual_time: MockClock, value: object, told: str
) -> None:
    async with world.open():
        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", lambda: value)])
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2] == f"results: ={told}"


async def test_what_goes_wrong_with_a_call_is_told_to_the_model_as_an_error(
    world: World, virtual_time: MockClock
) -> None:
    def raising() -> None:
        raise KeyError("no such page")

    async with world.open():
        ana = await world.add(
            [
                reply(use("gone", "c1"), use("raises", "c2"), use("takes", "c3", wrong=1)),
                reply("end"),
            ],
            tools=[tool("raises", raising), tool("takes", lambda right: right)],
        )
        await ana.send("go")
        await ana.wait_idle()
        results = world.providers[0].requests[1].messages[-1].blocks
        assert all(block.is_error for block in results)
        told = [block.content[0].text for block in results]
        assert told[0] == "There is no tool named 'gone'."
        assert told[1] == "KeyError: 'no such page'"
        assert told[2].startswith("TypeError:")
        assert "wrong" in told[2]


async def test_a_body_knows_its_call_in_its_thread_too(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add(
            [call_tool("t"), reply("end")], tools=[tool("t", lambda: tool_context().call_id)]
        )
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =ana/1/1/0"
    with pytest.raises(LookupError, match="no tool call runs here"):
        tool_context()


async def test_a_call_past_its_time_limit_ends_the_wait_and_its_result_is_recorded_beside_it(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop("late")
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("went on")], tools=[stop.tool(time_limit_s=5)]
        )
        before = trio.current_time()
        await ana.send("go")
        await ana.wait_idle()
        assert 5 <= trio.current_time() - before < 6
        told = "No result within the time limit of 5 s. It may still have its effect."
        assert await shown(ana) == [
            *("user: go", "assistant: <wait>", f"results: =!{told}", "assistant: went on"),
        ]
        (row,) = world.tool_calls()
        assert (row.state, row.is_error, row.late) == ("unknown", True, None)
        stop.go.set()
        await until(lambda: world.tool_calls()[0].late is not None)
        (row,) = world.tool_calls()
        assert (row.state, row.late[0].text) == ("unknown", "late")
        assert (await shown(ana))[2] == f"results: =!{told}"


async def test_a_result_that_comes_while_the_limit_is_being_recorded_is_recorded_beside_it(
    world: World, virtual_time: MockClock
) -> None:
    async def body() -> str:
        # Due at the same instant: the wait ends first, and both records are on their way.
        await trio.sleep(5)
        return "late"

    async with world.open():
        ana = await world.add(
            [call_tool("t"), reply("went on")], tools=[tool("t", body, time_limit_s=5)]
        )
        await ana.send("go")
        await ana.wait_idle()
        (row,) = world.tool_calls()
        if row.state == "unknown":
            await until(lambda: world.tool_calls()[0].late is not None)
            assert world.tool_calls()[0].late[0].text == "late"
        else:
            assert (await shown(ana))[2] == "results: =late"


async def test_a_body_is_started_only_when_its_start_is_durable(
    world: World, virtual_time: MockClock
) -> None:
    seen: list[str] = []
    async with world.open():

        async def body() -> None:
            seen.extend(row.state for row in world.tool_calls())

        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", body)])
        await ana.send("go")
        await ana.wait_idle()
        assert seen == ["started"]


async def test_a_tool_that_waits_for_its_own_agent_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:

        async def ask_self() -> str:
            try:
                await runtime.agent("ana").wait_idle()
            except AskCycleError as error:
                return " > ".join(error.ring)
            return "waited"

        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", ask_self)])
        await ana.send("go")
        with trio.fail_after(100):
            await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =ana > ana"


async def test_a_ring_of_tools_that_wait_for_one_anothers_agents_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    waiting = trio.Event()
    async with world.open() as runtime:

        async def ask_bo() -> str:
            waiting.set()
            await runtime.agent("bo").wait_idle()
            return "bo is idle"

        async def ask_ana() -> str:
            await waiting.wait()
            await trio.testing.wait_all_tasks_blocked()
            await runtime.agent("ana").wait_idle()
            return "ana is idle"

        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", ask_bo)])
        bo = await world.add([call_tool("t"), reply("end")], "bo", tools=[tool("t", ask_ana)])
        await bo.send("go")
        await ana.send("go")
        with trio.fail_after(100):
            await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =bo is idle"
        assert "AskCycleError: bo -> ana -> bo" in (await shown(bo))[2]


async def test_a_sync_tool_that_waits_for_its_own_agent_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:

        def ask_self() -> str:
            try:
                trio.from_thread.run(runtime.agent("ana").wait_idle)
            except AskCycleError:
                return "refused"
            return "waited"

        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", ask_self)])
        await ana.send("go")
        with trio.fail_after(100):
            await ana.wait_idle()
        assert (await shown(ana))[2] == "results: =refused"


async def test_a_tool_sends_to_another_agent_under_its_calls_id_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:

        async def tell_bo(text: str) -> str:
            receipts = [
                await runtime.agent("bo").send(text, author="ana", id=tool_context().call_id)
                for _ in range(2)
            ]
            return str(len({receipt.seq for receipt in receipts}))

        ana = await world.add(
            [call_tool("tell", {"text": "hello"}), reply("told")], tools=[tool("tell", tell_bo)]
        )
        bo = await world.add([reply("heard")], "bo")
        await ana.send("go")
        await ana.wait_idle()
        await bo.wait_idle()
        assert (await shown(ana))[2] == "results: =1"
        assert await shown(bo) == ["user: hello", "assistant: heard"]


async def test_a_tool_that_sends_to_its_own_agent_mid_turn_is_heard_at_the_boundary(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:

        async def remember() -> str:
            await runtime.agent("ana").send("remember this", author="clock")
            return "ok"

        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", remember)])
        await ana.send("go")
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1])[-1] == "user: remember this"


async def test_a_stop_tells_a_running_call_as_cut_off_and_lets_no_thread_hold_the_end(
    world: World, virtual_time: MockClock
) -> None:
    entered, go = threading.Event(), threading.Event()

    def stuck() -> None:
        entered.set()
        go.wait(60)

    try:
        async with world.open():
            ana = await world.add([call_tool("t")], tools=[tool("t", stuck)])
            await ana.send("go")
            await until(entered.is_set)
    finally:
        go.set()
    async with world.open():
        ana = await world.add([reply("fresh")])
        await ana.wait_idle()
        lines = await shown(ana)
        assert lines[2].startswith("results: =!The outcome of this call is unknown: the turn was")
        assert lines[-1] == "assistant: fresh"


async def test_calls_that_differ_in_round_or_turn_never_share_a_record(
    world: World, virtual_time: MockClock
) -> None:
    effects: list[str] = []
    async with world.open():
        ana = await world.add(
            [call_tool("t"), call_tool("t"), reply("a"), call_tool("t"), reply("b")],
            tools=[tool("t", lambda: effects.append(tool_context().call_id))],
        )
        for word in ("go", "more"):
            await ana.send(word)
            await ana.wait_idle()
        assert effects == ["ana/1/1/0", "ana/1/2/0", "ana/2/1/0"]
        assert len(world.tool_calls()) == 3


async def test_a_slow_body_does_not_keep_other_agents_from_their_turns(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("end")], tools=[stop.tool()])
        bo = await world.add([Gate(then=reply("quick"))], "bo")
        world.providers[1]._steps[0].release()  # type: ignore[index, attr-defined]
        await ana.send("go")
        await stop.entered.wait()
        await bo.send("go")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: quick"
        stop.go.set()
        await ana.wait_idle()
