"""An opening that is cancelled leaves nothing open: at any of its checkpoints, and before them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, HostedRuntime, Runtime, open_runtime
from abeyance.actors.core import ActorSystem, AskTable, HostedSystem, TrioFuture
from abeyance.actors.domain.asks import ASKS
from abeyance.actors.ops.address import all_sockets
from abeyance.actors.testing import ProviderSimulator, ScriptedProvider, reply
from abeyance.storage.lmdb_store import LmdbStore

CHECKPOINTS_MAX = 200
pytestmark = pytest.mark.timeout(30)


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when the task that made this waits for the n-th time."""

    def __init__(self, nth: int, scope: trio.CancelScope) -> None:
        self._task = trio.lowlevel.current_task()
        self._left = nth
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


class Stores:
    """Which stores were opened and not closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[LmdbStore] = []
        opened, closed = LmdbStore.open, LmdbStore.close

        def watched_open(*args: Any, **kwargs: Any) -> LmdbStore:
            store = opened(*args, **kwargs)
            self.open.append(store)
            return store

        def watched_close(store: LmdbStore) -> None:
            closed(store)
            self.open.remove(store)

        monkeypatch.setattr(LmdbStore, "open", watched_open)
        monkeypatch.setattr(LmdbStore, "close", watched_close)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    return Stores(monkeypatch)


@contextlib.asynccontextmanager
async def systems(lent: bool) -> AsyncIterator[ActorSystem | None]:
    if not lent:
        yield None
        return
    async with ActorSystem(asks=AskTable(ASKS), ask_timeout_s=None) as system:
        yield system
        assert not system.actors(), "the runtime's actors live on in the system that it was lent"


async def check_opens_again(directory: Path, system: ActorSystem | None) -> None:
    async with open_runtime(directory, system=system) as runtime:
        agent = await runtime.add_agent(
            AgentSpec(name="ana", model="m", provider=ScriptedProvider([reply("hello")]))
        )
        await agent.send("hi")
        await agent.wait_idle()
        assert [row.text async for row in agent.transcript()] == ["hi", "hello"]


async def cancelled_at(nth: int, directory: Path, stores: Stores, *, lent: bool) -> bool:
    """Open a runtime, cancelled at a checkpoint of the opening; whether it had that many."""
    opened = False
    async with systems(lent) as system:
        with trio.CancelScope() as scope:
            instrument = CancelAt(nth, scope)
            trio.lowlevel.add_instrument(instrument)
            try:
                async with open_runtime(directory, system=system):
                    opened = True
                    trio.lowlevel.remove_instrument(instrument)
            finally:
                with contextlib.suppress(KeyError):
                    trio.lowlevel.remove_instrument(instrument)
        assert scope.cancelled_caught is not opened
        assert not stores.open
        assert not all_sockets(directory)
        if not opened:
            await check_opens_again(directory, system)
    return not opened


@pytest.mark.parametrize("lent", [False, True], ids=["its own system", "a lent system"])
def test_opening_cancelled_at_any_checkpoint_leaves_with_cancelled_and_opens_again_at_once(
    tmp_path: Path, stores: Stores, lent: bool
) -> None:
    nth = 1

    async def main() -> bool:
        return await cancelled_at(nth, tmp_path / str(nth), stores, lent=lent)

    while trio.run(main):
        nth += 1
        assert nth < CHECKPOINTS_MAX
    assert nth > 3


async def test_opening_under_a_deadline_that_has_passed_leaves_with_cancelled(
    tmp_path: Path, stores: Stores
) -> None:
    with trio.move_on_after(0) as scope:
        async with open_runtime(tmp_path / "state"):
            raise AssertionError("it opened")  # pragma: no cover
    assert scope.cancelled_caught
    assert not stores.open
    await check_opens_again(tmp_path / "state", None)


async def test_opening_ends_with_its_nursery_when_a_sibling_raises(
    tmp_path: Path, stores: Stores
) -> None:
    async def fail() -> None:
        raise ValueError("the host's")

    async def live() -> None:
        async with open_runtime(tmp_path / "state"):
            await trio.sleep_forever()

    with pytest.RaisesGroup(ValueError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            nursery.start_soon(fail)
    assert not stores.open
    await check_opens_again(tmp_path / "state", None)


@pytest.mark.parametrize("live", [False, True], ids=["before it opened", "as it opened"])
def test_hosted_opening_that_is_interrupted_leaves_no_thread_and_no_store_open(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    host = HostedRuntime(tmp_path / "state")
    get = TrioFuture.get
    threads: list[Any] = []
    opened = HostedSystem.open

    def watched_open(system: HostedSystem) -> None:
        opened(system)
        threads.append(system._thread)

    def interrupted(future: TrioFuture[Any], *args: Any, **kwargs: Any) -> Any:
        if future is not host._opened:
            return get(future, *args, **kwargs)
        if live:
            get(future, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(HostedSystem, "open", watched_open)
    monkeypatch.setattr(TrioFuture, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.open()
    assert not threads[0].is_alive()
    assert not stores.open
    monkeypatch.setattr(TrioFuture, "get", get)
    with host:
        assert isinstance(host.runtime, Runtime)


async def test_simulator_that_is_cancelled_while_it_starts_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    simulator = ProviderSimulator()
    with trio.move_on_after(0) as scope:
        async with simulator:
            raise AssertionError("it started")  # pragma: no cover
    assert scope.cancelled_caught
    async with ProviderSimulator() as another:
        assert another.port
