"""What an agent says while it says it: named deltas, what takes them back, and what is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    AgentHandle,
    AgentSpec,
    HostedRuntime,
    StreamDelta,
    StreamItem,
    StreamSkipped,
    StreamStored,
    StreamSuperseded,
    open_runtime,
)
from abeyance.actors.domain.errors import (
    InvalidInputError,
    RuntimeClosedError,
    UnknownMessageError,
)
from abeyance.actors.domain.streaming import DELTAS_KEPT_MAX, Attempt
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.providers.port import ModelReply, ProviderError, ReplyDelta
from abeyance.actors.testing import (
    Answer,
    Gate,
    ProviderSimulator,
    ScriptedProvider,
    call_tool,
    reply,
)
from abeyance.actors.testing.scripted import ScriptedCall, Step

from .world import World, tool, until

SPEAKING = Path(__file__).parent / "children" / "speaking.py"


class Spoken:
    """A step that says these pieces, then does what it is told: by default it replies with them."""

    def __init__(self, *pieces: str, then: Callable[[], Awaitable[Any]] | None = None) -> None:
        self._pieces = pieces
        self._then = then
        self.said = trio.Event()

    async def play(self, call: ScriptedCall) -> ModelReply:
        for piece in self._pieces:
            call.on_delta(ReplyDelta("text", 0, piece))
        self.said.set()
        if self._then is not None:
            await self._then()
        return await reply("".join(self._pieces)).play(call)


def sparsely(item: StreamItem) -> tuple[Any, ...]:
    """An item as a test compares it."""
    match item:
        case StreamDelta(turn, round_, _, _, _, text):
            return ("delta", turn, round_, text)
        case StreamSuperseded(turn, round_):
            return ("superseded", turn, round_)
        case StreamStored(message):
            return ("stored", message.role, message.text)
        case StreamSkipped(count):
            return ("skipped", count)


class Looking:
    """A reader in a task of its own."""

    def __init__(self, ana: AgentHandle, after: Any = None) -> None:
        self.items: list[StreamItem] = []
        self.over = False
        self._ana = ana
        self._after = after

    async def run(self) -> None:
        async for item in self._ana.stream(after=self._after):
            self.items.append(item)
        self.over = True

    @property
    def seen(self) -> list[tuple[Any, ...]]:
        return [sparsely(item) for item in self.items]

    def attempts(self) -> list[Any]:
        return [item.attempt for item in self.items if isinstance(item, StreamDelta)]


async def look(nursery: trio.Nursery, ana: AgentHandle, after: Any = None) -> Looking:
    looking = Looking(ana, after)
    nursery.start_soon(looking.run)
    await trio.testing.wait_all_tasks_blocked()
    return looking


async def test_deltas_are_named_and_come_before_the_message_that_stands_for_them(
    world: World, virtual_time: MockClock
):
    async with world.open(), trio.open_nursery() as nursery:
        script: list[Step] = [call_tool("look", text="Let me see."), reply("It rains.")]
        ana = await world.add(script, tools=[tool("look", lambda: "rain")])
        looking = await look(nursery, ana)
        await ana.send("Does it rain?", author="user")
        await ana.wait_idle()
        await until(lambda: ("stored", "assistant", "It rains.") in looking.seen)
        assert [one for one in looking.seen if one[1:3] != (1, 1) or one[3] == "Let me see."] == [
            ("stored", "user", "Does it rain?"),
            ("delta", 1, 1, "Let me see."),
            ("stored", "assistant", "Let me see."),
            ("stored", "results", ""),
            ("delta", 1, 2, "It rains."),
            ("stored", "assistant", "It rains."),
        ]
        told = [item for item in looking.items if isinstance(item, StreamStored)]
        assert [(item.message.turn, item.message.round) for item in told][-1] == (1, 2)
        nursery.cancel_scope.cancel()


async def test_what_a_failed_call_said_is_taken_back_before_the_next_one_says_anything(
    world: World, virtual_time: MockClock
):
    async def refuse() -> None:
        raise ProviderError("no", retryable=True)

    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([Spoken("It is", then=refuse), reply("It rains.")])
        looking = await look(nursery, ana)
        await ana.send("Does it rain?", author="user")
        await ana.wait_idle()
        await until(lambda: len(looking.seen) == 5)
        assert looking.seen[1:] == [
            ("delta", 1, 1, "It is"),
            ("superseded", 1, 1),
            ("delta", 1, 1, "It rains."),
            ("stored", "assistant", "It rains."),
        ]
        first, second = looking.attempts()
        assert first < second
        assert isinstance(taken := looking.items[2], StreamSuperseded)
        assert first <= taken.attempt < second
        nursery.cancel_scope.cancel()


async def test_what_an_agent_said_that_died_is_taken_back(world: World, virtual_time: MockClock):
    spoken = Spoken("It is", then=trio.sleep_forever)
    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([spoken, reply("It rains.")])
        looking = await look(nursery, ana)
        await ana.send("Does it rain?", author="user")
        await spoken.said.wait()
        world.ref("agent").kill()
        await until(lambda: ("stored", "assistant", "It rains.") in looking.seen)
        assert looking.seen[1:] == [
            ("delta", 1, 1, "It is"),
            ("superseded", 1, 1),
            ("superseded", 1, 1),
            ("delta", 1, 1, "It rains."),
            ("stored", "assistant", "It rains."),
        ]
        first, second = looking.attempts()
        assert first < second
        nursery.cancel_scope.cancel()


def spoken_and_killed(directory: Path) -> Attempt:
    """The attempt of a process that was killed in the middle of its reply."""
    command = [sys.executable, str(SPEAKING), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            return Attempt(*(int(word) for word in process.stdout.readline().split()))
        finally:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.slow
async def test_what_a_process_said_that_died_is_taken_back_by_the_next_one(
    world: World, virtual_time: MockClock
):
    first = spoken_and_killed(world.directory)
    async with world.open(), trio.open_nursery() as nursery:
        gate = trio.Event()
        ana = await world.add([Spoken("It rains.", then=gate.wait)])
        looking = await look(nursery, ana, after=0)
        await until(lambda: len(looking.attempts()) == 1)
        gate.set()
        await until(lambda: ("stored", "assistant", "It rains.") in looking.seen)
        assert sorted(looking.seen[:2]) == [
            ("stored", "user", "Does it rain?"),
            ("superseded", 1, 1),
        ]
        (taken,) = (item for item in looking.items if isinstance(item, StreamSuperseded))
        assert first < taken.attempt < looking.attempts()[0]
        nursery.cancel_scope.cancel()


async def test_a_reply_that_cannot_be_stored_is_taken_back(world: World, virtual_time: MockClock):
    class Huge:
        async def play(self, call: ScriptedCall) -> ModelReply:
            call.on_delta(ReplyDelta("text", 0, "so"))
            return await reply("x" * 4_000_001).play(
                ScriptedCall(call.request, call.permit, lambda _delta: None, call.clock)
            )

    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([Huge()])
        looking = await look(nursery, ana)
        await ana.send("go", author="user")
        await ana.wait_idle()
        await until(lambda: looking.seen[-1][:2] == ("stored", "marker"))
        assert looking.seen[1:3] == [("delta", 1, 1, "so"), ("superseded", 1, 1)]
        nursery.cancel_scope.cancel()


async def test_a_slow_reader_misses_deltas_and_no_message(world: World, virtual_time: MockClock):
    pieces = [f"{number} " for number in range(DELTAS_KEPT_MAX + 500)]
    async with world.open():
        gate = Gate(then=Spoken(*pieces))
        ana = await world.add([gate, reply("and more")])
        stream = ana.stream()
        await ana.send("one", author="user")
        first = await anext(stream)  # From here on it does not read.
        # Nothing is said before it listens: a stream begins with its first item. What is accepted
        # now stirs the slot before the first piece, and must not show what comes after it.
        await ana.send("two", author="user")
        gate.release()
        await ana.wait_idle()
        seen = [sparsely(first)]
        async for item in stream:
            seen.append(sparsely(item))
            if seen[-1] == ("stored", "assistant", "and more"):
                break
        await stream.aclose()
    told = [one for one in seen if one[0] == "delta"]
    skipped = sum(one[1] for one in seen if one[0] == "skipped")
    assert len(told) == DELTAS_KEPT_MAX
    assert skipped == 500 + 1 + 1  # The reply's own, and the whole of the second.
    reply_at = seen.index(("stored", "assistant", "".join(pieces)))
    assert max(at for at, one in enumerate(seen) if one[0] == "delta") < reply_at
    assert [one for one in seen if one[0] == "stored"] == [
        ("stored", "user", "one"),
        ("stored", "assistant", "".join(pieces)),
        ("stored", "user", "two"),
        ("stored", "assistant", "and more"),
    ]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (0, ["one", "you said: one"]),
        (1, ["you said: one"]),
        ("first", ["you said: one"]),
        (None, []),
    ],
)
async def test_a_reader_begins_behind_what_it_names(
    world: World, virtual_time: MockClock, after: Any, expected: list[str]
):
    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add(lambda _request: reply("you said: one"))
        await ana.send("one", author="user", id="first")
        await ana.wait_idle()
        looking = await look(nursery, ana, after)
        assert [one[2] for one in looking.seen] == expected
        await ana.send("two", author="user")
        await ana.wait_idle()
        await until(lambda: len(looking.seen) == len(expected) + 3)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("after", "error"),
    [("nobody", UnknownMessageError), (-1, InvalidInputError), (1.5, InvalidInputError)],
)
async def test_what_names_no_message_is_refused(
    world: World, virtual_time: MockClock, after: Any, error: type[Exception]
):
    async with world.open():
        ana = await world.add([])
        with pytest.raises(error):
            await anext(ana.stream(after=after))


async def test_a_stream_ends_with_its_agent_and_with_the_runtime(
    world: World, virtual_time: MockClock
):
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            ana, bo = await world.add([]), await world.add([], name="bo")
            of_ana, of_bo = await look(nursery, ana), await look(nursery, bo)
            await runtime.remove_agent("ana", requester="test")
            await until(lambda: of_ana.over)
            assert not of_bo.over
        await until(lambda: of_bo.over)
        with pytest.raises(RuntimeClosedError):
            await anext(bo.stream())


async def test_who_shares_a_slot_sees_what_the_others_store_and_only_its_own_deltas(
    world: World, virtual_time: MockClock
):
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([reply("from ana")], slot="table")
        bo = await world.add([], name="bo", slot="table")
        of_bo = await look(nursery, bo)
        await ana.send("go", author="user")
        await ana.wait_idle()
        await until(lambda: ("stored", "assistant", "from ana") in of_bo.seen)
        assert not of_bo.attempts()
        await runtime.remove_agent("bo", requester="test")
        await until(lambda: of_bo.over)
        nursery.cancel_scope.cancel()


async def test_a_reader_that_leaves_is_kept_nowhere(world: World, virtual_time: MockClock):
    async with world.open() as runtime:
        ana = await world.add([reply("a"), reply("b")])
        stream = ana.stream(after=0)
        await ana.send("go", author="user")
        await anext(stream)
        await stream.aclose()
        with trio.move_on_after(1):
            async for _ in ana.stream():
                pass
        assert runtime._members["ana"].stream._readers == []


async def test_deltas_of_a_real_client_arrive_as_they_are_sent(tmp_path: Path):
    answer = Answer(text="It rains in Oslo.", chunk_chars=4, hold_in_stream="mid")
    async with ProviderSimulator(lambda _: answer) as simulator:
        provider = AnthropicProvider(api_key="any", base_url=simulator.base_url)
        spec = AgentSpec(name="ana", provider=provider, model="m")
        with trio.fail_after(60):
            async with open_runtime(tmp_path / "state") as runtime:
                ana = await runtime.add_agent(spec)
                stream = ana.stream()
                await ana.send("Does it rain?", author="user")
                texts = []
                async for item in stream:
                    if isinstance(item, StreamDelta):
                        texts.append(item.text)
                        if len(texts) == 1:
                            await simulator.wait_held("mid")
                            simulator.release("mid")
                    elif isinstance(item, StreamStored) and item.message.role == "assistant":
                        break
                await stream.aclose()
            await provider.aclose()
    assert texts == ["It r", "ains", " in ", "Oslo", "."]


def test_a_thread_reads_what_is_said(tmp_path: Path):
    with HostedRuntime(tmp_path / "state") as host:
        spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
        ana = host.add_agent(spec)
        ana.send("hello", author="user")
        seen = []
        for item in ana.stream(after=0):
            seen.append(sparsely(item))
            if seen[-1][:2] == ("stored", "assistant"):
                break
        assert [one for one in seen if one[0] == "stored"] == [
            ("stored", "user", "hello"),
            ("stored", "assistant", "hello"),
        ]
