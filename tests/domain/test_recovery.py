"""What goes on after a death: of the agent's actor at each step, and of the process anywhere."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import ToolContext, tool_context
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, call_tool, reply
from abeyance.actors.testing.scripted import Step, rounds_made
from abeyance.storage.tables.blocks import ToolResultBlock, ToolUseBlock

from .children.crashing import act, script
from .world import Stop, World, shown, texts, tool, until

CHILD = Path(__file__).parent / "children" / "crashing.py"


# -- the agent's actor dies ----------------------------------------------------------------------


class KillAtStep(trio.abc.Instrument):
    """Kills an agent after the n-th step that its tasks make, and notes where its turn was."""

    def __init__(self, world: World, name: str, step: int) -> None:
        self._world = world
        self._mine = f"agent:{name}"
        self._name = name
        self._left = step
        self.killed = False
        self.rounds: list[int] = []
        """Behind each step: how many rounds of its turn were recorded."""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.killed or not ("TurnTask" in task.name or task.name.startswith(self._mine)):
            return
        self.rounds.append(sum(turn.round for turn in self._world.turns(self._name)))
        self._left -= 1
        if self._left == 0:
            self.killed = True
            self._world.ref("agent", self._name).kill(f"step {self._left}")


async def test_an_agent_killed_at_any_step_of_a_turn_loses_and_repeats_nothing(
    world: World, virtual_time: MockClock
) -> None:
    effects: list[str] = []

    async def first() -> str:
        context = tool_context()
        effects.append(context.call_id)
        await world.runtime.agent(context.agent).send("note", id="note")
        await trio.sleep(1)
        return "one"

    def second() -> str:
        effects.append(tool_context().call_id)
        return "two"

    def choose(request: ModelRequest) -> Step:
        match rounds_made(request):
            case 0:
                calls = (("c1", "first"), ("c2", "second"))
                return reply(*(ToolUseBlock(id=i, name=n, input={}) for i, n in calls))
            case 1:
                return call_tool("second")
            case _:
                return reply("end")

    tools = [tool("first", first), tool("second", second)]
    expected = [
        *("user: go", "assistant: <first> <second>", "results: =one =two", "user: note"),
        *("assistant: <second>", "results: =two", "assistant: end"),
    ]
    async with world.open():
        killed_at, passed = set[int](), set[int]()
        for step in itertools.count(1):
            name = f"a{step}"
            agent = await world.add(choose, name, tools=tools)
            await agent.wait_idle()
            effects.clear()
            kill = KillAtStep(world, name, step)
            trio.lowlevel.add_instrument(kill)
            await agent.send("go")
            await agent.wait_idle()
            trio.lowlevel.remove_instrument(kill)
            if not kill.killed:
                # It had no more steps: nothing disturbed this one.
                passed = set(kill.rounds)
                break
            killed_at.add(kill.rounds[step - 1])
            assert await shown(agent) == expected, step
            assert sorted(effects) == [f"{name}/1/1/0", f"{name}/1/1/1", f"{name}/1/2/0"], step
            (turn,) = world.turns(name)
            assert (turn.state, turn.round) == ("done", 3)
            assert turn.attempts <= 2
            assert not world.rows("wakes", name)
            statistics = world.ref("agent", name).statistics
            await until(lambda statistics=statistics: statistics().incarnation == 2)
            await until(lambda name=name: not world.permits_out(name))
    assert killed_at == passed == {0, 1, 2, 3}, "one was killed in each round, and behind the last"


async def test_a_body_that_runs_is_joined_and_not_started_again(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop("once")
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("end")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        for attempt in (2, 3):
            world.ref("agent").kill()
            await until(lambda attempt=attempt: world.state().attempts == attempt)
        stop.go.set()
        await ana.wait_idle()
        assert stop.effects == 1
        assert await shown(ana) == [
            *("user: go", "assistant: <wait>", "results: =once", "assistant: end"),
        ]
        assert world.turns()[0].attempts == 3


@pytest.mark.parametrize("where", ["in a call", "in a tool"])
async def test_the_third_crash_of_a_turn_fails_it_with_a_marker_and_a_closed_gap(
    world: World, virtual_time: MockClock, where: str
) -> None:
    stop, gate = Stop(), Gate()
    both = (
        ToolUseBlock(id="c1", name="quick", input={}),
        ToolUseBlock(id="c2", name="wait", input={}),
    )
    script = [reply(*both)] if where == "in a tool" else [gate] * 3
    async with world.open():
        tools = [tool("quick", lambda: "quick"), stop.tool()]
        ana = await world.add([*script, reply("fresh")], tools=tools)
        await ana.send("go")
        await (stop.entered.wait() if where == "in a tool" else gate.wait_entered())
        for attempt in (2, 3):
            world.ref("agent").kill()
            await until(
                lambda attempt=attempt: (
                    world.state().attempts == attempt and world.state().state == "running"
                )
            )
            if where == "in a call":
                await until(lambda attempt=attempt: len(world.providers[0].requests) == attempt)
        world.ref("agent").kill()
        await ana.wait_idle()
        lines = await shown(ana)
        assert lines[-1] == "marker: this turn failed: its task died 3 times"
        assert (world.turns()[0].state, world.turns()[0].failure) == ("failed", "turn_died")
        with trio.fail_after(30):
            await until(lambda: bool(world.runtime.alerts()))
        (alert,) = world.runtime.alerts()
        assert (alert.kind, alert.agent) == ("turn_died", "ana")
        assert "its task died 3 times" in alert.text
        assert "abeyance rewind" in alert.text
        if where == "in a tool":
            assert lines[-2].startswith("results: =quick =!The outcome of this call is unknown")
        stop.go.set()
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: fresh"
        request = world.providers[0].requests[-1]
        assert open_calls(request) == set(), "each tool call in a request has its result"


def open_calls(request: ModelRequest) -> set[str]:
    blocks = [block for message in request.messages for block in message.blocks]
    called = {block.id for block in blocks if isinstance(block, ToolUseBlock)}
    told = {block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)}
    return called ^ told


async def test_a_turn_that_crashes_by_itself_goes_on_and_fails_at_the_third_crash(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task raises is treated as its death is."""
    from abeyance.actors.domain.turn import TurnTask

    lives: list[int] = []

    async def broken(turn: TurnTask) -> None:
        lives.append(turn.start.attempts)
        raise RuntimeError("a fault of the runtime's own")

    monkeypatch.setattr(TurnTask, "_rounds", broken)
    async with world.open():
        ana = await world.add([])
        await ana.send("go")
        await ana.wait_idle()
        assert lives == [1, 2, 3]
        assert (await shown(ana))[-1] == "marker: this turn failed: its task died 3 times"


async def test_a_call_that_was_done_by_a_tool_that_is_gone_keeps_its_result(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop()
    calls = [
        ToolUseBlock(id="c1", name="quick", input={}),
        ToolUseBlock(id="c2", name="wait", input={}),
    ]
    async with world.open() as runtime:
        ana = await world.add(
            [reply(*calls)], tools=[tool("quick", lambda: "done before"), stop.tool()]
        )
        await ana.send("go")
        await until(lambda: [row.state for row in world.tool_calls()] == ["done", "started"])
        # As a death of the process does: nothing is ended, nothing is given back.
        with monkeypatch.context() as patch:
            patch.setattr(type(runtime), "_stop", lambda self: self._root.stop())
            await runtime._stop()
    async with world.open():
        ana = await world.add([reply("end")])
        await ana.wait_idle()
        results = (await shown(ana))[2]
        assert "=done before" in results
        assert "=!The outcome of this call is unknown: the process died" in results


# -- the process dies ----------------------------------------------------------------------------


class Crashed(NamedTuple):
    """What a killed process left."""

    directory: Path
    status: int

    @property
    def effects(self) -> list[str]:
        file = self.directory / "effects"
        return file.read_text().split() if file.exists() else []


class Job(NamedTuple):
    point: str
    policy: str = "report"
    refuses: bool = False
    copy: str = ""
    """Tells jobs apart that are otherwise the same."""


TOOL_JOBS = [
    Job(f"tool.{point}", policy)
    for point in ("after_started", "after_body", "after_done")
    for policy in ("report", "retry")
]
TURN_JOBS = [Job("turn.after_reply"), Job("turn.after_round"), Job("turn.after_round:2")]
HOLD_JOBS = [Job("turn.after_wait", refuses=True), Job("turn.after_hold", refuses=True)]
WRITER_JOBS = [
    Job(f"writer.{point}:{hit}", "retry")
    for point in ("before_commit", "after_commit")
    for hit in range(1, 13)
]
RECONCILE_JOBS = [
    Job("tool.after_body", copy=f"{kind} {answer}")
    for kind in ("sync", "async")
    for answer in ("knows", "does not know", "raises")
]
JOBS = [*RECONCILE_JOBS, *TOOL_JOBS, *TURN_JOBS, *HOLD_JOBS, *WRITER_JOBS]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Crashed]:
    """One killed process for each job, all made by forks of one child."""
    root = tmp_path_factory.mktemp("crashed")
    places = {job: root / str(number) for number, job in enumerate(JOBS)}
    for place in places.values():
        place.mkdir()
    asked = [{"directory": str(places[job]), **job._asdict()} for job in JOBS]
    ran = subprocess.run(
        [sys.executable, str(CHILD)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not ran.stderr, ran.stderr
    statuses = json.loads(ran.stdout)
    found = {job: Crashed(places[job], status) for job, status in zip(JOBS, statuses, strict=True)}
    return found.__getitem__


async def recover(world: World, left: Crashed, policy: Any, **options: Any) -> tuple[Any, Any]:
    """Add the dead process's agent here, send its message again, and run to rest."""
    provider = world.provider(script(**options))
    ana = await world.add(provider, tools=[act(left.directory, policy)])
    await ana.send("go", id="m1")
    await ana.wait_idle()
    return ana, provider


def name_of(job: Job) -> str:
    return f"{job.point}-{job.policy}"


UNKNOWN = (
    "=!The outcome of this call is unknown: the process died while it ran. "
    "It may have had its effect."
)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("job", TOOL_JOBS, ids=name_of)
async def test_a_tool_call_that_a_death_cut_off_ends_by_its_policy(
    world: World, virtual_time: MockClock, crashed: Callable[[Job], Crashed], job: Job
) -> None:
    left = crashed(job)
    assert left.status == -signal.SIGKILL
    world.directory = left.directory / "state"
    before = left.effects
    async with world.open():
        ana, _ = await recover(world, left, job.policy)
        lines = await shown(ana)
        told = {
            ("tool.after_started", "report"): (UNKNOWN, 0),
            ("tool.after_started", "retry"): ("=acted", 1),
            ("tool.after_body", "report"): (UNKNOWN, 1),
            ("tool.after_body", "retry"): ("=acted", 2),
            ("tool.after_done", "report"): ("=acted", 1),
            ("tool.after_done", "retry"): ("=acted", 1),
        }[job.point, job.policy]
        assert lines == [
            *("user: go", "assistant: Moving <act>", f"results: {told[0]}", "assistant: end"),
        ]
        assert len(before) == (0 if job.point == "tool.after_started" else 1)
        assert left.effects == ["ana/1/1/0"] * told[1], "the same call id each time"
        (turn,) = world.turns()
        assert (turn.attempts, turn.state) == (2, "done")
        assert world.tool_calls()[0].state == ("unknown" if told[0] == UNKNOWN else "done")


ANSWERS: dict[str, tuple[Callable[[ToolContext, dict[str, Any]], Any], str]] = {
    "knows": (lambda context, _input: {"found": context.call_id}, '={"found": "ana/1/1/0"}'),
    "does not know": (lambda _context, _input: None, UNKNOWN),
    "raises": (lambda _context, _input: 1 / 0, f"{UNKNOWN} Asking failed: ZeroDivisionError: "),
}


@pytest.mark.parametrize("job", RECONCILE_JOBS, ids=lambda job: job.copy)
async def test_a_reconcile_function_is_asked_about_a_call_in_doubt(
    world: World, virtual_time: MockClock, crashed: Callable[[Job], Crashed], job: Job
) -> None:
    kind, _, answer = job.copy.partition(" ")
    answers, told = ANSWERS[answer]

    async def later(context: ToolContext, input_: dict[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return answers(context, input_)

    left = crashed(job)
    world.directory = left.directory / "state"
    async with world.open():
        ana, _ = await recover(world, left, later if kind == "async" else answers)
        assert (await shown(ana))[2].startswith(f"results: {told}")
        assert len(left.effects) == 1, "asked, not run again"
        assert world.tool_calls()[0].state == ("done" if answer == "knows" else "unknown")


@pytest.mark.parametrize("job", TURN_JOBS, ids=name_of)
async def test_a_turn_goes_on_at_its_last_recorded_round(
    world: World, virtual_time: MockClock, crashed: Callable[[Job], Crashed], job: Job
) -> None:
    left = crashed(job)
    assert left.status == -signal.SIGKILL
    world.directory = left.directory / "state"
    async with world.open():
        ana, provider = await recover(world, left, "report")
        assert await shown(ana) == [
            *("user: go", "assistant: Moving <act>", "results: =acted", "assistant: end"),
        ]
        assert left.effects == ["ana/1/1/0"]
        calls = {"turn.after_reply": 2, "turn.after_round": 1, "turn.after_round:2": 0}
        assert len(provider.requests) == calls[job.point]


@pytest.mark.parametrize("job", HOLD_JOBS, ids=name_of)
@pytest.mark.behaviour("W-022")
async def test_a_wait_that_was_recorded_before_a_death_holds_the_turn_after_it(
    world: World, virtual_time: MockClock, crashed: Callable[[Job], Crashed], job: Job
) -> None:
    left = crashed(job)
    assert left.status == -signal.SIGKILL
    world.directory = left.directory / "state"
    world.clock.set(time.time_ns() // 1_000_000)
    async with world.open() as runtime:
        ana, provider = await recover(world, left, "report")
        assert not provider.requests
        assert world.state().state == "held"
        (wait,) = runtime.provider_waits("ana")
        assert wait.deadline_ms is not None
        await trio.sleep((wait.deadline_ms - world.clock.now_ms()) / 1_000 - 1)
        await ana.wait_idle()
        assert not provider.requests
        await trio.sleep(2)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: end"
        assert texts(provider.requests[0]) == ["user: go"]
        (turn,) = world.turns()
        assert turn.state == "done"


@pytest.mark.parametrize("job", WRITER_JOBS, ids=name_of)
async def test_a_death_around_any_commit_loses_and_repeats_nothing(
    world: World, virtual_time: MockClock, crashed: Callable[[Job], Crashed], job: Job
) -> None:
    left = crashed(job)
    assert left.status in (0, -signal.SIGKILL)
    world.directory = left.directory / "state"
    acknowledged = (left.directory / "acknowledged").exists()
    async with world.open():
        stored = {row.message for row in world.rows("slots", "ana")}
        stored |= {row.message for row in world.rows("inbox", "ana")}
        assert not acknowledged or "m1" in stored, "what was acknowledged is there"
        ana, _ = await recover(world, left, job.policy)
        assert await shown(ana) == [
            *("user: go", "assistant: Moving <act>", "results: =acted", "assistant: end"),
        ]
        assert set(left.effects) == {"ana/1/1/0"}
        assert len(left.effects) <= 2
        assert not world.rows("wakes", "ana")


def test_most_of_the_writers_crash_points_were_reached(crashed: Callable[[Job], Crashed]) -> None:
    killed = [job for job in WRITER_JOBS if crashed(job).status == -signal.SIGKILL]
    assert len(killed) >= 16


async def test_a_turn_whose_task_died_three_times_is_not_begun_a_fourth_and_says_so(
    world: World, virtual_time: MockClock
) -> None:
    gates = [Gate() for _ in range(3)]
    async with world.open():
        ana = await world.add([*gates, reply("never")])
        await ana.send("go")
        for lives, gate in enumerate(gates, 1):
            await gate.wait_entered()
            assert world.state().attempts == lives
            world.ref("agent").kill("a test")
        await until(lambda: world.turns()[-1].state == "failed")
        await ana.wait_idle()
        shown_ = [message.text async for message in ana.transcript()]
        assert shown_ == ["go", "this turn failed: its task died 3 times"]
        await ana.send("again")
        await ana.wait_idle()
        assert [message.text async for message in ana.transcript()][-1] == "never"
