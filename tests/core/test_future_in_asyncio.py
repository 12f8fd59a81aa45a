"""A future awaited in a program of asyncio: its loop goes on, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import trio

from abeyance.actors.core import HostedSystem, TrioActor, TrioFuture
from abeyance.actors.core.errors import OutcomeUnknownError

WAIT_S = 20.0
KEPT_S = 5.0


class Keeper(TrioActor):
    """Answers once it is let."""

    def __init__(self, let: threading.Event) -> None:
        super().__init__()
        self.let = let

    async def on_receive(self, message: str) -> str:
        if message == "fail":
            raise ValueError("no")
        if message == "never":
            await trio.sleep_forever()
        if not await trio.to_thread.run_sync(self.let.wait, KEPT_S):
            raise TimeoutError("nobody let it: the loop stood still")
        return message


@pytest.fixture
def system() -> Iterator[HostedSystem]:
    with HostedSystem() as opened:
        yield opened


def test_asyncios_loop_goes_on_while_a_future_is_awaited_there(system: HostedSystem) -> None:
    let = threading.Event()
    keeper = system.start(Keeper, let)

    async def main() -> list[str]:
        async def let_it() -> None:
            for _ in range(3):  # Behind the first step of each wait.
                await asyncio.sleep(0)
            let.set()

        first, second = keeper.ask("a", block=False), keeper.ask("b", block=False)
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(_of(first), _of(second), let_it())
        return [answers[0], answers[1]]

    assert asyncio.run(main()) == ["a", "b"]


def test_future_that_failed_raises_its_error_in_asyncio(system: HostedSystem) -> None:
    keeper = system.start(Keeper, threading.Event())

    async def main() -> None:
        with pytest.raises(ValueError, match="no") as raised:
            await keeper.ask("fail", block=False)
        assert raised.value.__context__ is None, "its cause is not where it was awaited"
        settled: TrioFuture[int] = TrioFuture()
        settled.set(1)
        assert await settled == 1

    asyncio.run(main())


def test_await_that_asyncio_cancels_leaves_the_future_as_it_was() -> None:
    future: TrioFuture[int] = TrioFuture()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await future
        assert future.__dict__["_callbacks"] == []
        asyncio.get_running_loop().call_soon(future.set, 3)
        assert await future == 3

    asyncio.run(main())


def test_future_that_is_settled_when_its_waiters_loop_is_closed_is_settled() -> None:
    future: TrioFuture[int] = TrioFuture()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(_of(future))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    future.set(3)
    assert future.get() == 3
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_derived_future_is_awaited_in_asyncio_without_blocking_its_loop(
    system: HostedSystem,
) -> None:
    let = threading.Event()
    keeper = system.start(Keeper, let)

    async def main() -> str:
        longer = keeper.ask("a", block=False).map(lambda word: word * 3)
        asyncio.get_running_loop().call_soon(let.set)
        async with asyncio.timeout(WAIT_S):
            found: str = await longer
        return found

    assert asyncio.run(main()) == "aaa"


def test_asks_whose_system_ends_are_settled_in_asyncio() -> None:
    async def main() -> None:
        hosted = HostedSystem(shutdown_s=0)
        await asyncio.to_thread(hosted.open)
        asked = hosted.start(Keeper, threading.Event()).ask("never", block=False)
        waiting = asyncio.create_task(_of(asked))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(hosted.close))
        with pytest.raises(OutcomeUnknownError):
            async with asyncio.timeout(WAIT_S):
                await waiting
        await closing

    asyncio.run(main())


async def _of(future: TrioFuture[str]) -> str:
    return await future
