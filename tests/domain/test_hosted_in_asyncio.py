"""A runtime in a program of asyncio: verbs are awaited there, and what agents say is read there."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from abeyance.actors import AgentSpec, HostedAgent, HostedRuntime, StreamStored
from abeyance.actors.domain.errors import RuntimeClosedError, UnknownMessageError
from abeyance.actors.hosted_items import HostedItems
from abeyance.actors.testing import ScriptedProvider

WAIT_S = 20.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostedRuntime]:
    with HostedRuntime(tmp_path / "state", control=False) as opened:
        yield opened


def add(host: HostedRuntime) -> HostedAgent:
    return host.add_agent(AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m"))


async def next_stored(items: HostedItems[object]) -> str:
    async for item in items:
        if isinstance(item, StreamStored):
            return item.message.text
    return "(its end)"


def readers(host: HostedRuntime) -> int:
    """How many read what ana says."""
    host.agent("ana").wait_idle()  # Behind what was handed to the runtime's loop before.
    return len(host.runtime._member("ana").stream._readers)


def test_verbs_are_awaited_in_asyncio_and_what_is_said_is_read_there(host: HostedRuntime) -> None:
    async def main() -> list[str]:
        ana = await host.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m"), block=False
        )
        async with asyncio.timeout(WAIT_S), ana.stream() as said:
            receipt = await ana.send("one", id="m1", block=False)
            assert receipt.id == "m1"
            texts = [await next_stored(said), await next_stored(said)]
            states = [found.state async for found in ana.follow("m1")]
            assert states[-1] == "stored"
        return texts

    assert asyncio.run(main()) == ["one", "one"]
    assert readers(host) == 0


def test_reading_that_timed_out_in_asyncio_loses_nothing(host: HostedRuntime) -> None:
    ana = add(host)

    async def main() -> list[str]:
        async with ana.stream() as said:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(said)
            for text in ("one", "two"):
                await ana.send(text, wake=False, block=False)
            async with asyncio.timeout(WAIT_S):
                return [await next_stored(said), await next_stored(said)]

    assert asyncio.run(main()) == ["one", "two"]


@pytest.mark.parametrize("close", [HostedItems.close, lambda items: asyncio.run(items.aclose())])
def test_close_from_another_thread_ends_a_wait_for_an_item(
    host: HostedRuntime, close: Callable[[HostedItems[object]], None]
) -> None:
    said = add(host).stream()
    waiting, ended = threading.Event(), threading.Event()

    def read() -> None:
        waiting.set()
        for _ in said:
            raise AssertionError("nothing was said")
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(WAIT_S)
    close(said)
    assert ended.wait(WAIT_S)
    reader.join()
    close(said)
    assert list(said) == []


def test_stream_that_nobody_refers_to_any_more_waits_for_nothing(host: HostedRuntime) -> None:
    ana = add(host)
    ana.send("one")
    for _ in ana.stream(after=0):
        break
    gc.collect()
    assert readers(host) == 0


def test_stream_ends_with_its_runtime_and_says_so_to_who_asks_again(tmp_path: Path) -> None:
    host = HostedRuntime(tmp_path / "state", control=False)
    host.open()
    said = add(host).stream()

    async def main() -> str:
        reading = asyncio.create_task(next_stored(said))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(host.close)
            return await reading

    assert asyncio.run(main()) == "(its end)"
    said.close()
    with pytest.raises(RuntimeClosedError):
        next(said)


def test_what_a_reading_raises_is_raised_where_it_is_read(host: HostedRuntime) -> None:
    ana = add(host)
    with pytest.raises(UnknownMessageError):
        next(ana.follow("none"))

    async def main() -> None:
        with pytest.raises(UnknownMessageError):
            await anext(ana.follow("none"))

    asyncio.run(main())
