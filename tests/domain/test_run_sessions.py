"""Native sessions in runs: opened once, resumed exactly, and never silently begun anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import Budget, RunContext, RunStateError, StepFailedError
from abeyance.actors.domain.run_errors import InvalidRunError
from abeyance.actors.domain.run_sessions import CLOSE_S, RunSession
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.providers import ModelRequest, UsageWindow
from abeyance.actors.providers.port import Permit, PermitError, ProviderMessage, permitted
from abeyance.actors.providers.sessions import NativeSession, SessionLostError, has_sessions
from abeyance.actors.testing import ScriptedProvider, ScriptedSessions, fail, reply
from abeyance.storage.tables.blocks import TextBlock

from .test_runs import HOUR, RefusingStore, settled, states, wall
from .test_usage_book import call, window
from .world import World, texts, until


def said(text: str, model: str = "m") -> ModelRequest:
    return ModelRequest(model, (ProviderMessage("user", (TextBlock(text=text),)),))


class Coder:
    """A workflow that says three things in a session; what is said may be a wall first."""

    def __init__(self, world: World, sessions: ScriptedSessions | None = None) -> None:
        self.world = world
        self.sessions = sessions or ScriptedSessions()
        self.walls: dict[str, Any] = {}
        self.log: list[str] = []
        self.provider = world.provider(self._step, sessions=self.sessions, key="k")
        self.holding: dict[str, trio.Event] = {}

    def _step(self, request: ModelRequest) -> Any:
        text = texts(request)[-1].removeprefix("user: ")
        if self.walls.get(text):
            return self.walls[text].pop(0)
        return reply(f"{text}!")

    async def body(self, run: RunContext, params: Any) -> Any:
        found = [await run.do("before", self._act, "before")]
        async with run.session("coder", self.provider, name="claude") as coder:
            for text in ("plan", "build", "check"):
                found += [await run.do(text, self._say, coder, text)]
        found.append(await run.do("after", self._act, "after"))
        return found

    async def _act(self, name: str) -> str:
        self.log.append(name)
        return name

    async def _say(self, coder: RunSession, text: str) -> str:
        if text in self.holding:
            await self.holding[text].wait()
        answer = await coder.send(said(text))
        self.log.append(text)
        (block,) = answer.blocks
        assert isinstance(block, TextBlock)
        return block.text

    def wall_at(self, text: str, after_ms: int | None = HOUR) -> None:
        """Have the next saying of a text refused for an exhausted quota."""
        headers = {"anthropic-ratelimit-unified-status": "rejected"}
        if after_ms is not None:
            ends = (self.world.clock.now_ms() + after_ms) // 1_000
            headers |= {
                "anthropic-ratelimit-unified-5h-status": "rejected",
                "anthropic-ratelimit-unified-5h-utilization": "1.0",
                "anthropic-ratelimit-unified-5h-reset": str(ends),
                "anthropic-ratelimit-unified-reset": str(ends),
            }
        self.walls[text] = [fail(429, headers=headers, provider="anthropic")]

    def conversation(self, handle: str = "session-1") -> list[str]:
        return texts(ModelRequest("m", self.sessions.messages(handle)))


WHOLE = [
    "user: plan",
    "agent: plan!",
    "user: build",
    "agent: build!",
    "user: check",
    "agent: check!",
]
ALL = ["before", "plan", "build", "check", "after"]


async def walled(world: World, coder: Coder, at: str = "build") -> Any:
    coder.wall_at(at)
    world.runtime.add_workflow("code", coder.body)
    run = await world.runtime.start_run("code", "code")
    await until(lambda: run.status().state.startswith("waiting"))
    return run


async def passes(hours: float) -> None:
    await trio.sleep(hours * 3_600)
    await settled()


# -- what is recorded


@pytest.mark.behaviour("S-026", "S-002")
async def test_row_of_a_suspended_run_says_everything_of_its_wall_after_a_restart(
    world: World, virtual_time: MockClock
) -> None:
    """At the third of seven items, inside a session, in a run that a schedule started."""
    coder = Coder(world)
    texts_ = ("a", "b", "c", "d", "e", "f", "g")

    async def body(run: RunContext, params: Any) -> None:
        async with run.session("coder", coder.provider, name="claude") as session:
            run.folder.joinpath("draft.txt").write_text("a")
            with run.step("build", total=len(texts_)):
                for text in texts_:
                    await run.do(text, coder._say, session, text)

    async with world.open() as runtime:
        runtime.add_workflow("code", body, 3)
        due_ms = world.clock.now_ms() + HOUR
        await runtime.add_schedule("nightly", "code", {"x": 1}, every=3_600, key="k")
        # The limit states whole seconds.
        ends_ms = due_ms + 2 * HOUR
        coder.wall_at("c", ends_ms - world.clock.now_ms())
        await trio.sleep(3_600)
        await until(lambda: bool(runtime.runs(state="waiting_for_capacity")))
        await runtime.remove_schedule("nightly", requester="ops")
        (before,) = runtime.runs()
    await trio.sleep(3_600)
    async with world.open() as runtime:
        assert runtime.run("k") == before, "the same instants, an hour later"
        status = before
        assert (status.id, status.workflow, status.version) == ("k@1", "code", 3)
        assert (status.schedule, status.due_ms) == ("nightly", due_ms)
        assert (status.provider, status.model, status.window) == ("claude", "m", "five_hour")
        assert (status.retry_at_ms, status.resume_after_ms) == (ends_ms, ends_ms + 300_000)
        assert (status.step, status.steps_done) == ("build/c", 3)
        assert (status.place, status.total, status.phase) == (3, 7, "item")
        assert status.folder is not None
        assert (world.directory / status.folder / "draft.txt").read_text() == "a"
        assert status.code == "capacity_exhausted"
        assert (status.session, status.walls, status.lives) == ("session-1", 1, 1)
        assert "no capacity: claude/m (five_hour)" in status.reason
        (row,) = world.rows("runs")
        assert (row.suspension.ordinal, row.suspension.attempt) == (3, 1)
        assert row.suspension.told_by == "windows"
        assert row.suspension.folder == status.folder, "recorded, whatever is there now"
        assert row.suspension.failure == status.reason
        runtime.add_workflow("code", body, 3)
        assert (await runtime.wait_run("k")).state == "completed"
    assert coder.log == list(texts_)


# -- going on exactly


@pytest.mark.behaviour("S-023", "S-039", "S-040")
async def test_run_goes_on_in_the_session_that_met_the_wall(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:
        run = await walled(world, coder)
        status = run.status()
        assert (status.session, status.provider, status.window) == (
            "session-1",
            "claude",
            "five_hour",
        )
        assert runtime.run_steps(run.id)[1].result == "session-1"
        assert coder.log == ["before", "plan"]
        final = await run.wait()
    assert final.state == "completed", final.reason
    assert final.result == ["before", "plan!", "build!", "check!", "after"]
    assert coder.log == ALL
    assert coder.conversation() == WHOLE
    assert coder.sessions.handles == ("session-1",)
    assert coder.sessions.events == [
        "opened session-1",
        "closed session-1",
        "resumed session-1",
        "closed session-1",
    ]


@pytest.mark.behaviour("S-013")
async def test_wall_is_recorded_with_its_session_before_that_is_closed(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    seen: list[tuple[str, str | None]] = []

    async with world.open() as runtime:
        opening = coder.provider.session

        @asynccontextmanager
        async def watched(handle: str | None = None) -> AsyncIterator[NativeSession]:
            async with opening(handle) as session:
                try:
                    yield session
                finally:
                    status = runtime.run("code")
                    seen.append((status.state, status.session))
                    assert status.retry_at_ms is not None

        coder.provider.session = watched  # type: ignore[method-assign,assignment]
        await walled(world, coder)
        await until(lambda: coder.sessions.events[-1] == "closed session-1")
        assert seen == [("waiting_for_capacity", "session-1")]


@pytest.mark.behaviour("S-038")
async def test_who_waits_for_a_run_through_its_wall_waits_for_the_same_run(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:

        async def parent(run: RunContext, params: Any) -> Any:
            return await run.do("child", child)

        async def child() -> Any:
            started = await runtime.start_run("code", "code")
            ended = await started.wait()
            return [started.id, ended.id, ended.state]

        coder.wall_at("build")
        runtime.add_workflow("code", coder.body)
        runtime.add_workflow("parent", parent)
        run = await runtime.start_run("parent", "parent")
        await until(lambda: any(r.state == "waiting_for_capacity" for r in runtime.runs()))
        assert run.status().state == "running"
        assert (await run.wait()).result == ["code@1", "code@1", "completed"]
        assert [each.id for each in runtime.runs()] == ["code@1", "parent@1"]


async def test_restarted_process_resumes_the_session_that_is_recorded(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    coder = Coder(world, ScriptedSessions(tmp_path / "far"))
    async with world.open():
        run = await walled(world, coder)
    other = Coder(world, ScriptedSessions(tmp_path / "far"))
    async with world.open() as runtime:
        runtime.add_workflow("code", other.body)
        assert (await runtime.wait_run(run.id)).state == "completed"
    assert coder.log + other.log == ALL
    assert other.conversation() == WHOLE
    assert other.sessions.events == ["resumed session-1", "closed session-1"]


async def test_session_whose_block_is_over_is_not_resumed(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)

    async def body(run: RunContext, params: Any) -> Any:
        async with run.session("coder", coder.provider) as session:
            await run.do("plan", coder._say, session, "plan")
        await run.do("wait", meets)

    met = [True]

    async def meets() -> str:
        if met:
            met.pop()
            raise wall(world.clock.now_ms() + HOUR)
        return "through"

    async with world.open() as runtime:
        runtime.add_workflow("code", body)
        run = await runtime.start_run("code", "code")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().session is None
        coder.sessions.lose()
        assert (await run.wait()).state == "completed"
    assert coder.sessions.events == ["opened session-1", "closed session-1", "lost session-1"]


async def test_failed_item_ends_the_session_of_its_block(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)

    async def raises() -> None:
        raise ValueError("no")

    async def body(run: RunContext, params: Any) -> Any:
        try:
            async with run.session("coder", coder.provider):
                await run.do("bad", raises)
        except StepFailedError:
            return await run.do("after", coder._act, "after")

    async with world.open() as runtime:
        runtime.add_workflow("code", body)
        final = await (await runtime.start_run("code", "code")).wait()
        assert final.result == "after"
        (row, *_) = world.rows("run_items")
        assert (row.state, row.session) == ("done", "closed")
    assert coder.sessions.events == ["opened session-1", "closed session-1"]


# -- what cannot be proven


@pytest.mark.behaviour("S-046")
async def test_run_whose_session_is_lost_waits_for_an_operator_and_executes_nothing(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:
        run = await walled(world, coder)
        coder.sessions.lose()
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        assert "session-1" in run.status().reason
        assert coder.log == ["before", "plan"]
        assert coder.sessions.handles == (), "none was opened in its place"
        assert len(coder.provider.requests) == 2
        with pytest.raises(RunStateError):
            await runtime.resume_run(run.id, requester="ops")
        await passes(48)
        assert run.status().state == "recovery_required"
        # An operator has another opened: what was done is not done again.
        assert (await runtime.resume_run(run.id, requester="ops", in_doubt="retry")).changed
        assert (await run.wait()).result == ["before", "plan!", "build!", "check!", "after"]
    assert coder.log == ALL
    assert coder.conversation("session-2") == WHOLE[2:]


@pytest.mark.behaviour("S-046")
async def test_operator_names_the_session_that_a_run_is_to_go_on_with(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:
        run = await walled(world, coder)
        coder.sessions.lose()
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        async with coder.provider.session() as mended:
            handle = mended.handle
        receipt = await runtime.resume_run(run.id, requester="ops", in_doubt="done", result=handle)
        assert receipt.changed
        assert (await run.wait()).state == "completed"
    assert coder.conversation(str(handle)) == WHOLE[2:]


@pytest.mark.behaviour("S-045")
async def test_run_inside_a_session_without_a_handle_is_not_resumed_by_itself(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world, ScriptedSessions(resumable=False))
    async with world.open() as runtime:
        run = await walled(world, coder)
        assert run.status().session is None
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        assert "resuming" not in states(world, run.id)
        assert coder.log == ["before", "plan"]
        assert coder.sessions.events == ["opened session-1", "closed session-1"]
        with pytest.raises(RunStateError):
            await runtime.resume_run(run.id, requester="ops")
        await runtime.resume_run(run.id, requester="ops", in_doubt="retry")
        assert (await run.wait()).state == "completed"
    assert coder.log == ALL


@pytest.mark.behaviour("S-045", "S-046")
async def test_process_that_died_inside_a_session_without_a_handle_leaves_it_to_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world, ScriptedSessions(resumable=False))
    coder.holding["plan"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        run = await runtime.start_run("code", "code")
        await until(lambda: run.status().step == "plan")
    coder.holding.clear()
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        await until(lambda: runtime.run(run.id).state == "recovery_required")
        assert "has no handle" in runtime.run(run.id).reason
        assert coder.log == ["before"]


async def test_provider_that_opens_another_session_instead_of_resuming_is_not_gone_on_with(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open():
        run = await walled(world, coder)
        opening = coder.provider.session
        coder.provider.session = lambda handle=None: opening(None)  # type: ignore[method-assign]
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        assert "another in its place" in run.status().reason
        assert coder.log == ["before", "plan"]
        assert coder.sessions.events[-1] == "closed session-2"


async def test_session_that_is_lost_as_something_is_said_leaves_its_run_to_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    coder.holding["build"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        run = await runtime.start_run("code", "code")
        await until(lambda: run.status().step == "build")
        coder.sessions.lose()
        coder.holding.pop("build").set()
        await until(lambda: run.status().state == "recovery_required")
        assert coder.log == ["before", "plan"]
        assert [step.state for step in runtime.run_steps(run.id)] == [
            "done",
            "started",
            "done",
            "started",
        ]


async def test_wall_that_a_resume_meets_is_waited_for(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open():
        run = await walled(world, coder)
        opening = coder.provider.session
        ends = world.clock.now_ms() + 5 * HOUR

        def refusing(handle: str | None = None) -> Any:
            if world.clock.now_ms() < ends:
                raise wall(ends)
            return opening(handle)

        coder.provider.session = refusing  # type: ignore[method-assign]
        await passes(2)
        await until(lambda: run.status().walls == 2)
        assert (run.status().state, run.status().session) == ("waiting_for_capacity", "session-1")
        assert (await run.wait()).state == "completed"
    assert coder.conversation() == WHOLE


async def test_session_that_cannot_be_resumed_for_another_reason_is_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:
        run = await walled(world, coder)
        opening = coder.provider.session

        def broken(handle: str | None = None) -> Any:
            raise OSError("no such program")

        coder.provider.session = broken  # type: ignore[method-assign]
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        assert "no such program" in run.status().reason
        # It may be there still: no decision is needed to try again.
        coder.provider.session = opening  # type: ignore[method-assign]
        await runtime.resume_run(run.id, requester="ops")
        assert (await run.wait()).state == "completed"
    assert coder.conversation() == WHOLE


async def test_process_that_died_as_a_session_was_opened_opens_another(
    world: World, virtual_time: MockClock
) -> None:
    coder, entered = Coder(world), trio.Event()
    opening = coder.provider.session

    @asynccontextmanager
    async def slow(handle: str | None = None) -> AsyncIterator[Any]:
        entered.set()
        await trio.sleep_forever()
        yield None

    coder.provider.session = slow  # type: ignore[method-assign,assignment]
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        run = await runtime.start_run("code", "code")
        await entered.wait()
    coder.provider.session = opening  # type: ignore[method-assign]
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        assert (await runtime.wait_run(run.id)).state == "completed"
    assert coder.log == ALL


# -- the calls of a session


async def test_session_sends_nothing_while_its_account_is_known_to_be_out(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open() as runtime:
        ends = world.clock.now_ms() + HOUR
        await call(world, window(100.0, ends))
        runtime.add_workflow("code", coder.body)
        run = await runtime.start_run("code", "code")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().retry_at_ms == ends
        assert coder.provider.requests == []
        assert (await run.wait()).state == "completed"


async def test_reading_that_a_session_brings_is_kept(world: World, virtual_time: MockClock) -> None:
    coder = Coder(world)
    coder.walls["plan"] = [
        reply("plan!", windows=[UsageWindow(name="five_hour", used_percent=7.0)])
    ]
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        await (await runtime.start_run("code", "code")).wait()
        reading = runtime.account_usage(coder.provider)
        assert reading is not None
        assert reading.windows[0].used_percent == 7.0
    permits = coder.provider.permits
    assert len({permit.id for permit in permits}) == len(permits) == 3
    assert {permit.agent for permit in permits} == {"run:code@1"}


async def test_session_is_spoken_in_by_its_runs_items_only(
    world: World, virtual_time: MockClock
) -> None:
    coder, kept = Coder(world), list[RunSession]()

    async def body(run: RunContext, params: Any) -> Any:
        async with run.session("coder", coder.provider) as session:
            kept.append(session)
            with pytest.raises(InvalidRunError):
                await session.send(said("outside"))
        await run.do("late", late)

    async def late() -> None:
        with pytest.raises(InvalidRunError, match="closed"):
            await kept[0].send(said("late"))

    async with world.open() as runtime:
        runtime.add_workflow("code", body)
        final = await (await runtime.start_run("code", "code")).wait()
        assert final.state == "completed", final.reason
    assert coder.provider.requests == []


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("provider", ("coder", object())),
        ("id", ("a/b", ScriptedProvider([]))),
        ("name", ("coder", ScriptedProvider([]), "")),
    ],
)
async def test_malformed_session_is_refused_before_any_effect(
    world: World, virtual_time: MockClock, field: str, arguments: Any
) -> None:
    async def body(run: RunContext, params: Any) -> Any:
        id_, provider, *name = arguments
        async with run.session(id_, provider, name=name[0] if name else None):
            raise AssertionError("it was opened")

    async with world.open() as runtime:
        runtime.add_workflow("code", body)
        final = await (await runtime.start_run("code", "code")).wait()
        assert final.state == "failed"
        assert f"{field}" in final.reason
        assert world.rows("run_items") == []


@pytest.mark.parametrize("change", ["an item now", "a session now"])
async def test_session_in_an_items_place_is_not_taken_for_it(
    world: World, virtual_time: MockClock, change: str
) -> None:
    coder = Coder(world)

    async def item(run: RunContext, params: Any) -> Any:
        await run.do("coder", coder._act, "item")
        await run.do("wall", walls)

    async def session(run: RunContext, params: Any) -> Any:
        async with run.session("coder", coder.provider):
            await run.do("wall", walls)

    async def walls() -> None:
        raise wall(world.clock.now_ms() + HOUR)

    first, then = (session, item) if change == "an item now" else (item, session)
    async with world.open() as runtime:
        runtime.add_workflow("code", first)
        run = await runtime.start_run("code", "code")
        await until(lambda: run.status().state == "waiting_for_capacity")
    async with world.open() as runtime:
        runtime.add_workflow("code", then)
        await passes(2)
        await until(lambda: runtime.run(run.id).state == "recovery_required")
        assert "a session" in runtime.run(run.id).reason


async def test_handle_that_a_full_disk_keeps_from_being_recorded_is_waited_for(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said in a session before its handle is a row."""
    disk, coder = RefusingStore(monkeypatch), Coder(world)
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        opened: Callable[[], bool] = lambda: "opened session-1" in coder.sessions.events  # noqa: E731
        disk.refuses = lambda request: (
            opened() and any(put.table == "run_items" for put in request.puts)
        )
        run = await runtime.start_run("code", "code")
        await until(opened)
        await trio.sleep(30)
        assert coder.provider.requests == []
        disk.refuses = lambda _request: False
        assert (await run.wait()).state == "completed"
    assert coder.conversation() == WHOLE


async def test_session_that_does_not_close_keeps_its_run_for_a_bounded_time(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    opening = coder.provider.session

    @asynccontextmanager
    async def sticking(handle: str | None = None) -> AsyncIterator[NativeSession]:
        async with opening(handle) as session:
            try:
                yield session
            finally:
                await trio.sleep_forever()

    coder.provider.session = sticking  # type: ignore[method-assign,assignment]
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        began = trio.current_time()
        final = await (await runtime.start_run("code", "code")).wait()
        assert final.state == "completed"
        assert CLOSE_S <= trio.current_time() - began < CLOSE_S + 10


# -- the scripted far side


async def test_scripted_session_resumes_what_was_said_and_is_lost_when_it_is_told_to(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for sessions in (ScriptedSessions(), ScriptedSessions(tmp_path)):
        provider = ScriptedProvider(
            lambda request: reply(str(len(request.messages))), sessions=sessions
        )
        assert has_sessions(provider)
        async with provider.session() as first:
            handle = first.handle
            assert handle is not None
            with pytest.raises(PermitError):
                await first.send(said("a"), lambda _delta: None)
            assert sessions.messages(handle) == ()
            with permitted(Permit(1, "a", "m", "run")):
                await first.send(said("a"), lambda _delta: None)
        async with provider.session(handle) as again:
            with permitted(Permit(2, "a", "m", "run")):
                answer = await again.send(said("b"), lambda _delta: None)
            assert answer.blocks == (TextBlock(text="3"),)
            sessions.lose(handle)
            with pytest.raises(SessionLostError) as caught:
                await again.send(said("c"), lambda _delta: None)
            assert caught.value.handle == handle
        with pytest.raises(SessionLostError):
            async with provider.session(handle):
                raise AssertionError("it was resumed")


@pytest.mark.parametrize("door", ["stopped", "host", "host that dies"])
async def test_session_without_a_handle_that_an_operator_has_opened_anew_goes_on(
    world: World, virtual_time: MockClock, door: str
) -> None:
    """The decision stands, whoever executes the run after it."""
    coder = Coder(world, ScriptedSessions(resumable=False))
    async with world.open() as runtime:
        run = await walled(world, coder)
        await passes(2)
        await until(lambda: run.status().state == "recovery_required")
        if door != "stopped":
            if door == "host that dies":
                # It has claimed the run, and executes nothing of it.
                world.ref("runs").suspend()
            await runtime.resume_run(run.id, requester="ops", in_doubt="retry")
            assert run.status().state == "resuming"
    if door == "stopped":
        store = StoppedStore(world.directory, writing=True)
        assert store.resume_run(run.id, in_doubt="retry").changed
        store.close()
    async with world.open() as runtime:
        runtime.add_workflow("code", coder.body)
        with trio.fail_after(600):
            assert (await runtime.wait_run(run.id)).state == "completed"
    assert coder.log == ALL


async def test_what_a_run_says_in_a_session_is_counted_and_held_by_a_hosts_budget(
    world: World, virtual_time: MockClock
) -> None:
    coder = Coder(world)
    async with world.open(budgets=[Budget(per="hour", tokens=3)]) as runtime:
        runtime.add_workflow("code", coder.body)
        run = await runtime.start_run("k", "code")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity")
        # A token in and a word out for each; the second saying used it up.
        (line,) = (await runtime.usage(by="agent")).lines
        assert (line.agent, line.purpose, line.calls, line.tokens) == ("run:k@1", "run", 2, 4)
        assert len(coder.provider.requests) == 2
        assert runtime.run("k").retry_at_ms is not None
        await run.wait()
        assert runtime.run("k").state == "completed"
        assert (await runtime.usage("run:k@1")).calls == 3
