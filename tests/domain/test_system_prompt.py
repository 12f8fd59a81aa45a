"""The system prompt of a turn: decided once a compile, stored, and the same in all its requests."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, TurnInfo
from abeyance.actors.domain import episodes, slot_prompt, system_prompt
from abeyance.actors.domain.errors import InvalidSpecError, RunFailedError
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.invariant import Exchange, Said, violations
from abeyance.storage.check import check

from .damage import DAMAGES, damage
from .test_alerts import settled
from .test_recovery import KillAtStep
from .world import World, shown, tool, until


def systems(world: World, at: int = 0) -> list[str | None]:
    return [request.system for request in world.providers[at].requests]


def prompts(world: World, agent: str = "ana") -> list[str]:
    return [row.text for row in world.rows("prompts", agent)]


def look() -> list[Any]:
    return [tool("look", lambda: "seen")]


async def test_a_text_is_stored_once_and_named_by_each_turn_that_carries_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two")], system="You are Ana.")
        for text in ("a", "b"):
            await ana.send(text)
            await ana.wait_idle()
        assert systems(world) == ["You are Ana."] * 2
        assert [turn.prompt for turn in world.turns()] == [1, 1]
    async with world.open() as runtime:
        ana = await world.add([reply("three"), reply("four")], system="You are Bo.")
        for text in ("c", "d"):
            await ana.send(text)
            await ana.wait_idle()
        assert systems(world, 1) == ["You are Bo."] * 2
        assert [turn.prompt for turn in world.turns()] == [1, 1, 2, 2]
        assert prompts(world) == ["You are Ana.", "You are Bo."]
        assert check(runtime._store).findings == ()
    async with world.open():
        ana = await world.add([reply("five")])
        await ana.send("e")
        await ana.wait_idle()
        assert systems(world, 2) == [None]
        assert world.turns()[-1].prompt == 0


async def test_a_functions_text_is_stored_once_for_as_long_as_it_says_the_same(
    world: World, virtual_time: MockClock
) -> None:
    text = "é" * (system_prompt.PROMPT_BYTES_MAX // 2)
    async with world.open():
        script = [call_tool("look"), reply("one"), reply("two")]
        ana = await world.add(script, system=lambda turn: text, tools=look())
        for said in ("a", "b"):
            await ana.send(said)
            await ana.wait_idle()
        assert systems(world) == [text] * 3
        assert prompts(world) == [text]


async def test_a_text_that_does_not_fit_beside_a_start_has_a_commit_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    text = "x" * 1_000_000
    async with world.open():
        ana = await world.add([reply("one")], system=text)
        await ana.send("a")
        await ana.wait_idle()
        assert systems(world) == prompts(world) == [text]


@pytest.mark.parametrize("kind", ["plain", "async", "returns an awaitable"])
async def test_a_function_is_asked_once_a_turn_and_told_of_it(
    world: World, virtual_time: MockClock, kind: str
) -> None:
    told: list[TurnInfo] = []

    def plain(turn: TurnInfo) -> str:
        told.append(turn)
        return f"turn {turn.turn}"

    async def asynchronous(turn: TurnInfo) -> str:
        await trio.sleep(1)
        return plain(turn)

    functions: dict[str, Any] = {
        "plain": plain,
        "async": asynchronous,
        "returns an awaitable": lambda turn: asynchronous(turn),
    }
    script = [call_tool("look"), call_tool("look"), reply("one"), reply("two")]
    async with world.open():
        ana = await world.add(script, system=functions[kind], tools=look())
        await ana.send("a", channel="c1")
        await ana.wait_idle()
        await ana.send("b")
        await ana.wait_idle()
        assert systems(world) == ["turn 1"] * 3 + ["turn 2"]
        assert [(turn.turn, turn.channel, turn.round) for turn in told] == [
            (1, "c1", 0),
            (2, None, 0),
        ]
        assert (told[0].agent, told[0].slot, told[0].model) == ("ana", "ana", "m")
        assert told[0].resident is None
        assert prompts(world) == ["turn 1", "turn 2"]


async def test_a_plain_function_runs_in_a_thread_and_stalls_nobody(
    world: World, virtual_time: MockClock
) -> None:
    go, ran_in = threading.Event(), []

    def slow(turn: TurnInfo) -> str:
        ran_in.append(threading.current_thread())
        assert go.wait(30)
        return "slow"

    async with world.open():
        ana = await world.add([reply("one")], system=slow)
        bo = await world.add([reply("two")], "bo")
        await ana.send("a")
        await until(lambda: bool(ran_in))
        await bo.send("b")
        await bo.wait_idle()
        assert await shown(bo) == ["user: b", "assistant: two"]
        go.set()
        await ana.wait_idle()
        assert systems(world) == ["slow"]
        assert ran_in[0] is not threading.current_thread()


async def test_all_requests_of_a_turn_carry_one_text_whenever_its_agent_is_killed(
    world: World, virtual_time: MockClock
) -> None:
    asked = iter(range(10_000))
    ends = False

    def choose(request: ModelRequest) -> Any:
        return reply("done") if len(request.messages) % 4 == 3 else call_tool("look")

    async with world.open():
        for step in range(1, 200):
            name = f"ana{step}"
            world.providers.clear()
            system = lambda turn: f"text {next(asked)}"  # noqa: E731 - as a host writes it.
            ana = await world.add(choose, name, system=system, tools=look())
            kill = KillAtStep(world, name, step)
            trio.lowlevel.add_instrument(kill)
            await ana.send("go")
            await ana.wait_idle()
            trio.lowlevel.remove_instrument(kill)
            (turn,) = world.turns(name)
            assert turn.state == "done", (step, turn)
            assert len(set(systems(world))) == 1, step
            assert systems(world)[0] == prompts(world, name)[turn.prompt - 1], step
            ends = not kill.killed
            if ends:
                break
    assert ends, "each step of a turn was killed once"


def live(directory: Path, point: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "tests.domain.children.prompting", str(directory), point],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    ).returncode


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "point", ["turn.before_prompt", "turn.after_prompt", "turn.after_reply", "turn.after_round"]
)
async def test_a_turn_keeps_its_text_through_a_sigkill_whatever_the_function_says_by_then(
    world: World, virtual_time: MockClock, point: str
) -> None:
    assert live(world.directory, point) == -signal.SIGKILL
    async with world.open() as runtime:
        ana = await world.add([reply("two")], system=lambda turn: "second", tools=look())
        await ana.wait_idle()
        kept = point != "turn.before_prompt"
        assert systems(world) == ["first" if kept else "second"]
        assert prompts(world) == systems(world)
        assert [turn.state for turn in world.turns()] == ["done"]
        assert check(runtime._store).findings == ()


async def test_a_turn_that_was_held_is_compiled_with_what_the_function_says_then(
    world: World, virtual_time: MockClock
) -> None:
    said = iter(["before", "after", "next"])
    script = [call_tool("look"), fail(429, retry_after=7_200), reply("one"), reply("two")]
    async with world.open():
        ana = await world.add(script, system=lambda turn: next(said), tools=look())
        await ana.send("a")
        await ana.wait_idle()
        assert systems(world) == ["before", "before"]
        await trio.sleep(7_300)
        await ana.wait_idle()
        assert systems(world) == ["before", "before", "after"]
        assert [turn.prompt for turn in world.turns()] == [2]
        await ana.send("b")
        await ana.wait_idle()
        assert systems(world)[-1] == "next"


async def late(turn: TurnInfo) -> str:
    await trio.sleep_forever()
    raise AssertionError


def broken(turn: TurnInfo) -> str:
    raise LookupError("no such page")


FAILURES: dict[str, tuple[Any, str]] = {
    "raises": (broken, "LookupError: no such page"),
    "ends the program": (lambda turn: sys.exit("bye"), "SystemExit: bye"),
    "returns nothing": (lambda turn: None, "must be text, not None"),
    "returns bytes": (lambda turn: b"x", "must be text, not bytes"),
    "is too long": (lambda turn: "x" * 1_000_001, "at most 1,000,000 bytes"),
    "is no Unicode": (lambda turn: "\ud800", "lone surrogate"),
    "is late": (late, "within 30 s"),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_function_that_gives_no_text_fails_its_turn_with_an_alert_and_loses_nothing(
    world: World, virtual_time: MockClock, how: str
) -> None:
    function, problem = FAILURES[how]
    functions = iter([function, lambda turn: "mended"])
    mending = {"now": next(functions)}
    async with world.open() as runtime:
        ana = await world.add([reply("one")], system=lambda turn: mending["now"](turn))
        await ana.send("a")
        await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.failure) == ("failed", "system_prompt_failed")
        assert problem in turn.error
        assert systems(world) == []
        assert world.permits_out() == {}
        await until(lambda: bool(runtime.alerts()))
        (alert,) = runtime.alerts()
        assert (alert.kind, alert.agent) == ("system_prompt", "ana")
        assert problem in alert.text
        assert "system prompt" in alert.text
        mending["now"] = next(functions)
        await ana.send("b")
        await ana.wait_idle()
        assert (await shown(ana))[0] == "user: a"
        assert (await shown(ana))[-2:] == ["user: b", "assistant: one"]
        assert systems(world) == ["mended"]
        assert [one.state for one in world.turns()] == ["failed", "done"]


async def test_a_function_that_fails_turn_after_turn_alerts_once_until_it_has_worked(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "EPISODE_TURNS", 4)
    says: list[Any] = [broken]

    def prompt(turn: TurnInfo) -> Any:
        return says[0](turn)

    async def go(times: int) -> list[str]:
        async with world.open():
            ana = await world.add([reply("ok")] * times, system=prompt)
            for _ in range(times):
                await ana.send("go")
                await ana.wait_idle()
            return [alert.episode for alert in await settled(world)]

    assert await go(3) == ["prompt:1:ana"]
    # A restart is no new episode, nor are more turns than are looked back at.
    assert await go(2) == ["prompt:1:ana"]
    says[0] = late
    async with world.open():
        ana = await world.add([], system=prompt)
        await ana.send("go")
        await until(lambda: world.state().state == "running")
        await ana.cancel_turn(requester="ops")
        await ana.wait_idle()
    says[0] = broken
    assert await go(1) == ["prompt:1:ana"]
    says[0] = lambda turn: "mended"
    await go(1)
    says[0] = broken
    assert await go(2) == ["prompt:1:ana", "prompt:9:ana"]


async def test_a_turn_is_cancelled_while_its_function_is_asked(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one")], system=late)
        await ana.send("a")
        await until(lambda: world.state().state == "running")
        await ana.cancel_turn(requester="ops")
        await ana.wait_idle()
        assert [turn.state for turn in world.turns()] == ["cancelled"]
        assert systems(world) == []


async def test_an_ephemeral_run_asks_its_function_and_fails_by_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = ScriptedProvider([reply("one")])
        spec = {"provider": provider, "model": "m"}
        said = AgentSpec(name="eph", system=lambda turn: f"for {turn.model}", **spec)
        assert await runtime.run_ephemeral(said, "a") == "one"
        assert [request.system for request in provider.requests] == ["for m"]
        with pytest.raises(RunFailedError, match="no such page"):
            await runtime.run_ephemeral(AgentSpec(name="eph", system=broken, **spec), "a")


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_damaged_prompt_is_never_sent_and_its_text_is_written_anew(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        ana = await world.add([reply("one")], system="You are Ana.")
        await ana.send("a")
        await ana.wait_idle()
    damage(world.directory, world.clock, "prompts", ("ana", 1), how)
    async with world.open():
        ana = await world.add([reply("two")], system="You are Ana.")
        await ana.send("b")
        await ana.wait_idle()
        # What cannot be read is not compared with: the text is written anew.
        assert systems(world, 1) == ["You are Ana."]
        assert [turn.prompt for turn in world.turns()] == [1, 2]


async def test_a_turn_whose_prompt_is_gone_sends_nothing_and_says_so(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open():
        monkeypatch.setattr(
            "abeyance.actors.domain.turn.read_prompt",
            lambda store, agent, number: system_prompt.read_prompt(store, agent, number + 1),
        )
        ana = await world.add([reply("one")], system="You are Ana.")
        await ana.send("a")
        await ana.wait_idle()
        (turn,) = world.turns()
        assert turn.state == "failed"
        assert "table prompts is gone" in turn.error
        assert systems(world) == []


async def test_only_the_newest_prompts_of_an_agent_are_kept(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_prompt, "PROMPTS_KEPT", 2)
    async with world.open():
        ana = await world.add([reply("x")] * 5, system=lambda turn: f"turn {turn.turn}")
        for _ in range(5):
            await ana.send("a")
            await ana.wait_idle()
        assert prompts(world) == ["turn 4", "turn 5"]
        assert systems(world) == [f"turn {n}" for n in range(1, 6)]


@pytest.mark.parametrize(
    ("system", "problem"),
    [
        pytest.param(7, "must be text, not int 7", id="no text"),
        pytest.param("x" * 1_000_001, "at most 1,000,000 bytes", id="too long"),
        pytest.param("\ud800", "lone surrogate", id="no Unicode"),
    ],
)
async def test_a_text_that_could_not_be_sent_is_refused_by_its_field(
    world: World, virtual_time: MockClock, system: Any, problem: str
) -> None:
    async with world.open():
        with pytest.raises(InvalidSpecError, match=problem) as refused:
            await world.add([], system=system)
        assert refused.value.field == "system"


def test_checker_finds_a_system_prompt_that_changes_within_a_compile() -> None:
    user = Said("user", ('{"text":"a","type":"text"}',))
    one = Exchange(1, "ana", (user,), None, begins=True, system="a")
    two = Exchange(2, "ana", (user,), None, begins=False, system="b")
    assert violations([one, two]) == ["call 2 of ana has another system prompt than call 1"]
    fresh = Exchange(2, "ana", (user,), None, begins=True, system="b")
    assert violations([one, fresh]) == []
