"""What a run takes for exhausted capacity, and what its row says of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, FallbackChain, ModelChoice, RunContext
from abeyance.actors.domain.errors import CallDeferredError, RunExhaustedError
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.providers.failures import refusal
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind
from abeyance.actors.testing import ScriptedProvider, fail, reply

from .test_auxiliary import ask
from .test_runs import HOUR, wall
from .world import World, until


def held(deadline_ms: int | None, now_ms: int, cause: str = "wait") -> CallDeferredError:
    return CallDeferredError(
        agent="ana", model="m", cause=cause, reason="r", deadline_ms=deadline_ms, now_ms=now_ms
    )


def limited(kind: WaitKind, at_ms: int) -> ProviderError:
    stated = StatedWait(kind=kind, ends=WaitEnds.UNTIL, deadline_ms=at_ms)
    return ProviderError("429", retryable=True, status=429, stated=stated)


def ended(deadline_ms: int | None, cause: str = "wait") -> RunExhaustedError:
    return RunExhaustedError(
        "over",
        agent="e",
        model="m",
        provider="p",
        cause=cause,
        deadline_ms=deadline_ms,
        stated_ms=1,
        sleep_max_ms=1,
    )


async def meets(world: World, raises: Callable[[int], BaseException]) -> Any:
    """The status of a run whose item raises this, once it is settled."""

    async def act() -> None:
        raise raises(world.clock.now_ms())

    async def body(run: RunContext, _params: Any) -> None:
        await run.do("act", act)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state != "running")
        return runtime.run("k")


@pytest.mark.parametrize(
    "raises",
    [
        lambda now: wall(now - HOUR),
        lambda now: ended(now - 1),
        lambda now: ended(now),
        lambda now: held(now - 1, now),
    ],
    ids=["a chain", "an ephemeral run", "at this instant", "a call that was refused unmade"],
)
async def test_instant_that_has_passed_is_unknown_whoever_states_it(
    world: World, virtual_time: MockClock, raises: Callable[[int], BaseException]
) -> None:
    status = await meets(world, raises)
    assert status.state == "waiting_for_capacity_unknown"
    assert (status.retry_at_ms, status.resume_after_ms) == (None, None)
    assert status.reason.startswith("what it states of when had passed"), "the text agrees"
    assert "resumes after" not in status.text()


@pytest.mark.behaviour("X-007")
@pytest.mark.parametrize(
    ("raises", "buffer_s"),
    [
        (lambda at: limited(WaitKind.RATE_LIMITED, at), 0),
        (lambda at: limited(WaitKind.QUOTA_EXHAUSTED, at), 300),
        (wall, 300),
        (ended, 0),
        (lambda at: held(at, at - 1), 0),
    ],
    ids=["a rate", "a quota", "a chain", "an ephemeral run", "a call that was refused unmade"],
)
async def test_wall_that_is_over_as_it_comes_to_light_is_waited_for_longer_each_time(
    world: World, virtual_time: MockClock, raises: Callable[[int], BaseException], buffer_s: int
) -> None:
    begun: list[int] = []
    ends: list[int] = []

    async def act() -> str:
        begun.append(world.clock.now_ms())
        if len(begun) == 13:
            return "done"
        ends.append(world.clock.now_ms() + 1_000)
        try:
            raise raises(ends[-1])
        finally:
            # What it cleans up takes longer than the wait that it was told.
            await trio.sleep(2)

    async def body(run: RunContext, _params: Any) -> Any:
        return await run.do("act", act)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        run = await runtime.start_run("k", "w")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert status.retry_at_ms == ends[0]
        assert status.resume_after_ms == max(ends[0] + buffer_s * 1_000, begun[0] + 3_000)
        assert (await run.wait()).result == "done"
    pauses = [(later - earlier) / 1_000 - 2 for earlier, later in pairwise(begun)]
    least = [max(min(2.0**number, 300), buffer_s - 1) for number in range(12)]
    assert all(pause >= each for pause, each in zip(pauses, least, strict=True)), pauses
    assert pauses[0] < least[0] + 1


@pytest.mark.parametrize("at_ms", [10**18, 2.0**70, float("nan"), float("inf"), -5, True])
@pytest.mark.parametrize("by", [ended, lambda at_ms: held(at_ms, 0)], ids=["ended", "deferred"])
async def test_instant_that_is_none_is_unknown_whoever_states_it(
    world: World, virtual_time: MockClock, at_ms: Any, by: Callable[[Any], BaseException]
) -> None:
    status = await meets(world, lambda _now: by(at_ms))
    assert status.state == "waiting_for_capacity_unknown"
    assert status.retry_at_ms is None
    assert status.reason.startswith("what it states of when had passed, or is no instant")


async def test_run_waits_for_the_soonest_of_its_models_whose_instant_is_to_come(
    world: World, virtual_time: MockClock
) -> None:
    def out(now: int) -> BaseException:
        facts = [("a", now - 1), ("b", now + 2 * HOUR), ("c", None), ("d", now + HOUR)]
        return CapacityExhaustedError(
            tuple(Exhaustion(provider="p", model=model, retry_at_ms=at) for model, at in facts)
        )

    now = world.clock.now_ms()
    status = await meets(world, out)
    assert (status.state, status.model) == ("waiting_for_capacity", "d")
    assert now + HOUR <= (status.retry_at_ms or 0) < now + HOUR + 60_000


def behind(error: BaseException, *, handled: BaseException, says_so: bool) -> BaseException:
    """The error as it is once it was raised while another one was handled, or from it."""
    try:
        try:
            raise handled
        except BaseException as cause:
            if says_so:
                raise error from cause
            raise error  # noqa: B904 - what this is about.
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("raises", "state"),
    [
        (lambda w: behind(ValueError("a bug"), handled=w, says_so=False), "failed"),
        (lambda w: behind(ValueError("it"), handled=w, says_so=True), "waiting_for_capacity"),
        (lambda w: ExceptionGroup("g", [ValueError("a bug"), w]), "failed"),
        (lambda w: ExceptionGroup("g", [w]), "waiting_for_capacity"),
        (lambda w: ExceptionGroup("g", [w, ExceptionGroup("h", [w])]), "waiting_for_capacity"),
        (
            lambda w: behind(ExceptionGroup("g", [ValueError("x")]), handled=w, says_so=True),
            "waiting_for_capacity",
        ),
        (lambda w: behind(w, handled=ValueError("before"), says_so=False), "waiting_for_capacity"),
    ],
    ids=[
        "raised while a wall was handled",
        "raised from a wall",
        "beside a wall",
        "a group of one",
        "nothing but walls",
        "a group that was raised from a wall",
        "a wall behind another error",
    ],
)
async def test_run_waits_where_its_items_failure_is_a_wall_and_fails_where_one_was_only_met(
    world: World, virtual_time: MockClock, raises: Callable[[BaseException], Any], state: str
) -> None:
    status = await meets(world, lambda now: raises(wall(now + HOUR)))
    assert status.state == state


async def test_item_that_met_several_walls_waits_for_the_latest(
    world: World, virtual_time: MockClock
) -> None:
    now = world.clock.now_ms()
    both = ExceptionGroup("g", [wall(now + 3 * HOUR), wall(now + HOUR)])
    assert (await meets(world, lambda _now: both)).retry_at_ms == now + 3 * HOUR


# -- who it is that is waited for


async def test_run_that_waits_names_provider_and_model_on_each_of_the_runtimes_own_ways(
    world: World, virtual_time: MockClock
) -> None:
    spec = AgentSpec(name="eve", provider=world.provider([fail(429, retry_after=7_200)]), model="e")

    async def turn(run: RunContext, _params: Any) -> str:
        return await run.ask("q", "ana", "hi")

    async def ephemeral(run: RunContext, _params: Any) -> str:
        return await run.ask("q", spec, "hi")

    async def auxiliary(run: RunContext, _params: Any) -> None:
        await run.do("q", world.runtime.agent("ana").auxiliary_call, ask())

    async with world.open() as runtime:
        await world.add([fail(429, retry_after=7_200), reply("ok")])
        for name, body in (("turn", turn), ("eph", ephemeral), ("aux", auxiliary)):
            runtime.add_workflow(name, body)
            await runtime.start_run(name, name)
            await until(lambda name=name: runtime.run(name).state.startswith("waiting"))  # type: ignore[misc]
        found = {key: runtime.run(key) for key in ("turn", "eph", "aux")}
    assert {(each.provider, each.model) for each in found.values()} == {
        ("ScriptedProvider", "m"),
        ("ScriptedProvider", "e"),
    }
    assert {each.code for each in found.values()} == {"held", "run_exhausted", "call_deferred"}
    assert "Waiting for ScriptedProvider capacity" in found["eph"].text()


async def test_wall_that_the_opening_of_a_session_meets_is_of_that_phase(
    world: World, virtual_time: MockClock
) -> None:
    async def body(run: RunContext, _params: Any) -> None:
        async with run.session("s", provider, name="claude"):
            pass

    class Walled(ScriptedProvider):
        def session(self, _handle: str | None = None) -> Any:
            raise refused

    refused = CapacityExhaustedError(wall(world.clock.now_ms() + HOUR).exhausted)
    provider = Walled([], clock=world.clock)
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state.startswith("waiting"))
        status = runtime.run("k")
        assert (status.provider, status.model, status.phase) == ("anthropic", "opus", "session")


async def test_refusal_that_an_item_raises_names_its_provider(
    world: World, virtual_time: MockClock
) -> None:
    status = await meets(
        world,
        lambda now: refusal(
            provider="anthropic",
            status=429,
            headers={"retry-after": "7200"},
            body=b"",
            message="slow down",
            received_at=now / 1_000,
        ),
    )
    assert (status.state, status.provider) == ("waiting_for_capacity", "anthropic")
    assert status.title == "Waiting for anthropic capacity"


# -- chains


A, B = ModelChoice("a", "m1"), ModelChoice("b", "m2")


@pytest.mark.parametrize(
    ("raises", "ends_ms"),
    [
        (lambda now: wall(now + HOUR), HOUR),
        (lambda now: wall(now - HOUR), None),
        (lambda now: ended(now + HOUR), HOUR),
        (lambda now: ended(None, "quota"), None),
        (lambda now: held(now + HOUR, now), HOUR),
        (lambda now: held(now - 1, now, "account"), None),
        (lambda now: ExceptionGroup("g", [ended(now + HOUR)]), HOUR),
    ],
    ids=[
        "another chain",
        "another chain, passed",
        "an ephemeral run",
        "an ephemeral run, unknown",
        "a refused call",
        "a refused call, passed",
        "in a group",
    ],
)
async def test_chain_falls_back_on_what_this_runtime_says_of_a_model_that_is_held(
    raises: Callable[[int], BaseException], ends_ms: int | None
) -> None:
    now, called, chain = 1_791_374_400_000, list[str](), FallbackChain([A, B])

    async def call(choice: ModelChoice) -> str:
        called.append(choice.provider)
        if choice == A:
            raise raises(now)
        return "from b"

    assert await chain.call(call, now_ms=lambda: now) == "from b"
    assert called == ["a", "b"]
    (fact,) = chain.exhausted
    assert (fact.provider, fact.model) == ("a", "m1")
    assert fact.retry_at_ms == (None if ends_ms is None else now + ends_ms)


@pytest.mark.parametrize(
    "raises",
    [
        lambda now: held(now + HOUR, now, "host"),
        lambda now: held(now + HOUR, now, "cooldown"),
        lambda now: ExceptionGroup("g", [ValueError("a bug"), wall(now + HOUR)]),
        lambda now: behind(ValueError("a bug"), handled=wall(now + HOUR), says_so=False),
    ],
    ids=["the host's pause", "a guessed pause", "beside another failure", "while it was handled"],
)
async def test_chain_does_not_fall_back_on_what_is_not_about_capacity(
    raises: Callable[[int], BaseException],
) -> None:
    now, chain = 1_791_374_400_000, FallbackChain([A, B])

    async def call(choice: ModelChoice) -> str:
        assert choice == A
        raise raises(now)

    with pytest.raises((ValueError, CallDeferredError, ExceptionGroup)):
        await chain.call(call, now_ms=lambda: now)
    assert chain.exhausted == ()


@pytest.mark.parametrize("step", [fail(402), fail(429, retry_after=7_200)], ids=["quota", "wait"])
async def test_chain_of_ephemeral_runs_in_an_item_falls_back_and_the_run_goes_on(
    world: World, virtual_time: MockClock, step: Any
) -> None:
    providers = {"a": world.provider([step]), "b": world.provider([reply("from b")])}
    chain = FallbackChain([A, B])

    async def call(choice: ModelChoice) -> str:
        spec = AgentSpec(name="eph", provider=providers[choice.provider], model=choice.model)
        return await world.runtime.run_ephemeral(spec, "hi")

    async def through() -> str:
        return await chain.call(call, now_ms=world.clock.now_ms)

    async def body(run: RunContext, _params: Any) -> Any:
        return await run.do("x", through)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        run = await runtime.start_run("k", "w")
        with trio.fail_after(600):
            assert (await run.wait()).result == "from b"
    assert [len(each.requests) for each in providers.values()] == [1, 1]


# -- directories


async def test_run_has_one_directory_in_each_of_its_lives_and_no_other_runs(
    world: World, virtual_time: MockClock
) -> None:
    seen, walls = list[Any](), [HOUR]

    async def act(run: RunContext) -> None:
        seen.append((run.id, run.folder, sorted(each.name for each in run.folder.iterdir())))
        run.folder.joinpath(f"{len(seen)}").write_text("made")
        if walls:
            raise wall(world.clock.now_ms() + walls.pop())

    async def body(run: RunContext, _params: Any) -> None:
        await run.do("act", act, run)

    key = "a/b: \u00fc" + "x" * 80
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await (await runtime.start_run(key, "w")).wait()
        await (await runtime.start_run(key, "w")).wait()
    assert [(run, made) for run, _folder, made in seen] == [
        (f"{key}@1", []),
        (f"{key}@1", ["1"]),
        (f"{key}@2", []),
    ]
    first, again, other = (folder for _run, folder, _made in seen)
    assert first == again != other
    assert first.parent == world.directory / "runs"
    assert first.stat().st_mode & 0o777 == 0o700


@pytest.mark.behaviour("R-24")
async def test_directory_that_a_store_that_is_gone_left_is_no_later_runs_of_that_name(
    world: World, virtual_time: MockClock, tmp_path: Any
) -> None:
    """The same key and number, with what an earlier run wrote of itself beside its outputs."""
    found = list[list[str]]()

    async def act(run: RunContext) -> None:
        found.append([each.name for each in run.folder.iterdir()])
        run.folder.joinpath("state.json").write_text('{"state": "waiting", "step": 7}')

    async def body(run: RunContext, _params: Any) -> str:
        await run.do("act", act, run)
        return "mine"

    for _ in range(2):
        async with world.open() as runtime:
            runtime.add_workflow("w", body)
            status = await (await runtime.start_run("k", "w")).wait()
            assert (status.id, status.state, status.result) == ("k@1", "completed", "mine")
        # The store is lost; what runs made is kept and put beside the next one.
        (world.directory / "store").rename(tmp_path / f"gone{len(found)}")
        (world.directory / "runs").rename(tmp_path / "kept")
        async with world.open():
            await trio.sleep(1)
        (tmp_path / "kept").rename(world.directory / "runs")
    assert found == [[], []]
