"""Conversation agents and removed ones: what a fork begins with, and what an end leaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, Conversation, Tool
from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.domain.errors import (
    AgentEndedError,
    AgentExistsError,
    InvalidInputError,
    InvalidNameError,
    UnknownAgentError,
)
from abeyance.actors.domain.ingress import body_crc, encode_body
from abeyance.actors.domain.slot_messages import Dispose
from abeyance.actors.domain.slot_rewind import KEPT_MS
from abeyance.actors.providers.port import ModelReply, ReplyDelta
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import ScriptedCall
from abeyance.storage.codec import encode
from abeyance.storage.errors import DiskFullError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, NeedsService, NotStored, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Inboxed, MessageId, Wake

from .world import Stop, World, shown, texts, tool, until

HOUR_MS = 3_600_000


def provider_of(world: World, script: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(script, clock=world.clock, **options)


class Midstream:
    """A step whose stream begins, and then fails with a stated wait."""

    async def play(self, call: ScriptedCall) -> ModelReply:
        call.on_delta(ReplyDelta("text", 0, "half a"))
        return await fail(429, retry_after=1_200).play(call)


async def resident(
    world: World, script: Any, name: str = "ana", tools: Sequence[Tool] = (), model: str = "m"
) -> ScriptedProvider:
    provider = provider_of(world, script)
    spec = AgentSpec(name=name, provider=provider, model=model, tools=tools)
    await world.runtime.add_agent(spec)
    return provider


async def test_a_fork_begins_with_the_residents_rows_and_goes_its_own_way(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [reply("hello"), reply("in the fork"), reply("at home")])
        ana = runtime.agent("ana")
        await ana.send("hi")
        await ana.wait_idle()
        bodies = len(world.rows("bodies"))
        fork = await runtime.open_conversation("ana", channel="c1")
        assert len(world.rows("bodies")) == bodies, "no content is copied"
        assert await shown(fork) == ["user: hi", "assistant: hello"]
        await fork.send("aside")
        await fork.wait_idle()
        await ana.send("and here")
        await ana.wait_idle()
        assert [texts(request) for request in provider.requests[1:]] == [
            ["user: hi", "agent: hello", "user: aside"],
            ["user: hi", "agent: hello", "user: and here"],
        ]
        assert (await shown(fork))[2:] == ["user: aside", "assistant: in the fork"]
        (row,) = world.rows("conversations", "ana")
        assert (row.agent, row.state) == (fork.name, "open")
        assert world.rows("agents", fork.name)[0].parent == "ana"


async def test_what_is_sent_to_a_conversation_is_of_its_channel(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [reply("there")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("aside")
        await fork.wait_idle()
        (first, _) = world.rows("slots", fork.name)
        assert first.channel == "c1"


async def test_a_conversation_that_is_open_is_handed_out_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [])
        found: list[str] = []

        async def open_it(channel: str) -> None:
            found.append((await runtime.open_conversation("ana", channel=channel)).name)

        async with trio.open_nursery() as nursery:
            for channel in ("c1", "c1", "c1", "c2"):
                nursery.start_soon(open_it, channel)
        assert len(set(found)) == 2, "one a channel, however many open it at once"


async def test_a_fork_of_a_slot_in_a_tool_gap_begins_before_the_call(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        provider = await resident(
            world, [call_tool("wait"), reply("in the fork"), reply("done")], tools=[stop.tool()]
        )
        await runtime.agent("ana").send("go")
        await stop.entered.wait()
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("aside")
        await fork.wait_idle()
        assert texts(provider.requests[1]) == ["user: go", "user: aside"]
        stop.go.set()
        await runtime.agent("ana").wait_idle()


async def test_a_fork_takes_nothing_over_that_was_rewound(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [reply("one"), reply("two"), reply("aside")])
        ana = runtime.agent("ana")
        for text in ("first", "second"):
            await ana.send(text)
            await ana.wait_idle()
        rows = [row async for row in ana.transcript()]
        await ana.rewind(to=rows[1].id, requester="ops")
        fork = await runtime.open_conversation("ana", channel="c1")
        assert await shown(fork) == ["user: first", "assistant: one"]
        await fork.send("and")
        await fork.wait_idle()
        assert texts(provider.requests[2]) == ["user: first", "agent: one", "user: and"]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("of", ["the resident", "the fork"])
async def test_what_a_rewind_deletes_leaves_the_other_its_content(
    world: World, virtual_time: MockClock, of: str
) -> None:
    async with world.open() as runtime:
        await resident(world, [reply("one"), reply("aside")])
        ana = runtime.agent("ana")
        await ana.send("first")
        await ana.wait_idle()
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("and")
        await fork.wait_idle()
        rows = [row async for row in ana.transcript()]
        rewound, other = (ana, fork) if of == "the resident" else (fork, ana)
        before, bodies = await shown(other), len(world.rows("bodies", fork.name))
        await rewound.rewind(to=rows[0].seq, requester="ops")
        await trio.sleep(KEPT_MS / 1_000 + 4_000)
        await until(lambda: len(world.rows("slots", rewound.name)) == 1)
        assert await shown(other) == before
        if of == "the fork":
            assert len(world.rows("bodies", "ana")) == 2, "its base is not its own to delete"
            assert len(world.rows("bodies", fork.name)) == 0, bodies


async def test_a_long_slot_is_taken_over_in_order_across_commits(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [])
        ana = runtime.agent("ana")
        for number in range(230):
            await ana.send(f"note {number}", wake=False)
        fork = await runtime.open_conversation("ana", channel="c1")
        assert await shown(fork) == [f"user: note {number}" for number in range(230)]


async def test_a_fork_goes_on_with_its_slot_after_a_restart(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [reply("one")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("aside")
        await fork.wait_idle()
        name = fork.name
    async with world.open() as runtime:
        await resident(world, [reply("two")])
        fork = await runtime.open_conversation("ana", channel="c1")
        assert fork.name == name
        await fork.send("more")
        await fork.wait_idle()
        assert (await shown(fork))[2:] == ["user: more", "assistant: two"]


@pytest.mark.behaviour("W-079")
@pytest.mark.parametrize("partial", [False, True], ids=["thrown", "in the stream"])
async def test_a_conversation_agents_wait_is_recorded_and_holds_its_turn(
    world: World, virtual_time: MockClock, partial: bool
) -> None:
    async with world.open() as runtime:
        failing = Midstream() if partial else fail(429, retry_after=1_200)
        provider = await resident(world, [failing, reply("later")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        assert len(provider.requests) == 1
        (wait,) = runtime.provider_waits()
        assert (wait.agent, wait.model) == (fork.name, "m")
        assert world.state(fork.name).state == "held"
        await trio.sleep(1_199)
        assert len(provider.requests) == 1
        await trio.sleep(2)
        await fork.wait_idle()
        assert len(provider.requests) == 2
        assert (await shown(fork))[-1] == "assistant: later"


@pytest.mark.behaviour("W-079")
async def test_a_conversation_agents_hold_ends_by_a_release(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=7_200), reply("later")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        await runtime.release_provider_wait(fork.name, requester="ops")
        await fork.wait_idle()
        assert (await shown(fork))[-1] == "assistant: later"


@pytest.mark.behaviour("W-080")
async def test_a_terminal_failure_of_a_conversation_binds_the_calls_after_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        failing = fail(400, retry_after=1)
        provider = await resident(world, [failing, reply("later")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        assert "failed" in (await shown(fork))[-1]
        assert not world.rows("wakes", fork.name)
        await fork.send("again")
        await fork.wait_idle()
        assert len(provider.requests) == 1, "held"
        await trio.sleep(1.5)
        await fork.wait_idle()
        assert len(provider.requests) == 2


@pytest.mark.behaviour("W-081", "R-28")
async def test_closing_a_held_conversation_drops_its_wakes_as_dead_letters(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=3_600), reply("at home")])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("first", id="w1")
        await fork.wait_idle()
        await fork.send("second", id="w2")
        await fork.wait_idle()
        await fork.close()
        assert "w1" in caplog.text
        assert "w2" in caplog.text
        letters = runtime.dead_letters()
        assert sorted("w1" in letter.message for letter in letters) == [False, True]
        assert all(letter.replayable for letter in letters)
        (turn,) = world.turns(fork.name)
        assert (turn.state, turn.held) == ("cancelled", None)
        assert not world.rows("wakes", fork.name)
        assert world.rows("agents", fork.name)[0].ended_ms is not None
        assert [wait.agent for wait in runtime.provider_waits()] == [fork.name]
        await trio.sleep(4_000)
        assert len(provider.requests) == 1, "no turn runs later"
        assert not runtime.provider_waits()
        # What nobody answered can be given to the resident.
        (second,) = [letter for letter in letters if "w2" in letter.message]
        await runtime.replay_dead_letter(second.id, requester="ops")
        await until(lambda: len(provider.requests) == 2)
        assert texts(provider.requests[1]) == ["user: second"]


@pytest.mark.behaviour("W-132")
async def test_a_closed_conversations_wait_is_listed_and_holds_nobody_else(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=3_600), reply("free")])
        bob = await resident(world, [reply("free too")], "bob")
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        await fork.close()
        for name in ("ana", "bob"):
            await runtime.agent(name).send("go")
            await runtime.agent(name).wait_idle()
        assert len(bob.requests) == 1
        assert (await shown(runtime.agent("ana")))[-1] == "assistant: free"
        (wait,) = runtime.provider_waits()
        assert wait.agent == fork.name
        again = await runtime.open_conversation("ana", channel="c1")
        assert again.name != fork.name, "a closed one's wait would hold whoever has its name"
        await runtime.release_provider_wait(fork.name, requester="ops")
        assert not runtime.provider_waits()


async def test_closing_lets_the_turns_run_that_were_asked_for(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        await resident(world, [call_tool("wait"), reply("bye")], tools=[stop.tool()])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await stop.entered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fork.close)
            nursery.start_soon(fork.close)
            await fork.send("a note", wake=False)
            stop.go.set()
        assert not runtime.dead_letters()
        said = [f"{row.role}" for row in world.rows("slots", fork.name)]
        assert said[-1] == "assistant"
        assert "user" in said[1:], "what was queued is in the slot"
        with pytest.raises(UnknownAgentError):
            await fork.send("late")
        await fork.close()


def keep_from_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every request that moves a message from an inbox to its slot, as a full disk may."""
    submit = LmdbStore.submit

    def lands(request: Any) -> bool:
        taken = any(delete.table == "inbox" for delete in request.deletes)
        return taken and any(put.table == "slots" for put in request.puts)

    def refuse(store: LmdbStore, batch: Any, done: Any) -> None:
        # With what depends on it. What else shares its batch is not refused: that depends on how
        # busy the machine is.
        chains = {request.chain for request in batch if lands(request)} - {None}
        fails = [lands(request) or request.chain in chains for request in batch]
        others = [request for request, refused in zip(batch, fails, strict=True) if not refused]

        def settle(outcomes: Any) -> None:
            if isinstance(outcomes, NeedsService):
                done(outcomes)
                return
            left = iter(outcomes)
            full = NotStored(DiskFullError("full", path="x"))
            done([full if refused else next(left) for refused in fails])

        if others:
            submit(store, others, settle)
        else:
            settle([])

    monkeypatch.setattr(LmdbStore, "submit", refuse)


def leave_in_inbox(world: World, text: str, name: str, entry: int, *, wake: bool) -> None:
    """An accepted message as a death leaves it while a turn lives."""
    blocks = (TextBlock(text=text),)
    body = encode_body(blocks)
    crc = body_crc(body)
    inboxed = Inboxed(
        message=name,
        author="user",
        agent="ana",
        wake=wake,
        injectable=True,
        own=False,
        body_crc=crc,
        body_bytes=len(body.body),
        accepted_ms=1,
    )
    puts = [
        Put("ids", ("ana", name), encode(MessageId(entry=entry, state="inbox", body_crc=crc))),
        Put("bodies", ("ana", entry), body),
        Put("inbox", ("ana", entry), encode(inboxed)),
    ]
    if wake:
        asked = Wake(reason="message", author="user", message=name, at_ms=1)
        puts.append(Put("wakes", ("ana", entry), encode(asked)))
    (outcome,) = world.runtime._store.commit(Request(puts=tuple(puts)))
    assert isinstance(outcome, Committed)


@pytest.mark.behaviour("R-28")
async def test_what_cannot_land_at_the_end_becomes_dead_letters_with_its_content(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        leave_in_inbox(world, "a note", "n1", 1, wake=False)
        leave_in_inbox(world, "a question", "q1", 2, wake=True)
        keep_from_landing(monkeypatch)
        await resident(world, [])
        await runtime.remove_agent("ana", requester="ops")
        monkeypatch.undo()
        assert not world.rows("inbox")
        assert not world.rows("wakes")
        letters = runtime.dead_letters()
        assert [letter.message for letter in letters] == [
            "message 'q1' by 'user'",
            "message 'n1' by 'user'",
        ]
        assert [row.state for row in world.rows("ids", "ana")] == ["dead", "dead"]
        provider = await resident(world, [reply("here")])
        for letter in reversed(letters):
            await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: len(provider.requests) == 1)
        await runtime.agent("ana").wait_idle()
        assert await shown(runtime.agent("ana")) == [
            "user: a note",
            "user: a question",
            "assistant: here",
        ]


@pytest.mark.behaviour("R-28")
async def test_a_removed_agents_wakes_are_dead_letters_that_wake_it_when_it_is_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=60)])
        await runtime.agent("ana").send("go", id="w1")
        await runtime.agent("ana").wait_idle()
        await runtime.remove_agent("ana", requester="ops")
        with pytest.raises(UnknownAgentError):
            runtime.agent("ana")
        (letter,) = runtime.dead_letters()
        with pytest.raises(ActorDeadError):
            await runtime.replay_dead_letter(letter.id, requester="ops")
        await trio.sleep(100)
        assert len(provider.requests) == 1
        back = await resident(world, [reply("here")])
        await runtime.agent("ana").wait_idle()
        assert not back.requests, "it was given up; nothing brings it back by itself"
        await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: len(back.requests) == 1)
        await runtime.agent("ana").wait_idle()
        assert await shown(runtime.agent("ana")) == ["user: go", "assistant: here"]


async def test_removing_an_agent_cancels_its_turn_and_names_what_it_was_to_answer(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        await resident(world, [call_tool("wait")], tools=[stop.tool()])
        await runtime.agent("ana").send("go", id="w1")
        await stop.entered.wait()
        await runtime.remove_agent("ana")
        (letter,) = runtime.dead_letters()
        assert "w1" in letter.message
        assert world.turns()[0].state == "cancelled"
        assert world.rows("leases", "ana")[0].turn is None
        stop.go.set()


async def test_more_wakes_than_one_commit_holds_all_become_dead_letters(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=3_600)])
        ana = runtime.agent("ana")
        for number in range(100):
            await ana.send(f"note {number}", id=f"w{number}")
            await ana.wait_idle()
        await runtime.remove_agent("ana")
        named = {letter.message.split("'")[-2] for letter in runtime.dead_letters(limit=200)}
        assert named == {f"w{number}" for number in range(100)}
        assert not world.rows("wakes", "ana")


async def test_an_agent_whose_group_is_parked_can_be_removed(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=3_600)])
        await runtime.agent("ana").send("go", id="w1")
        await runtime.agent("ana").wait_idle()
        ref = world.ref("agent")
        for _ in range(6):
            await until(lambda: ref.statistics().state == "running")
            lives = ref.statistics().incarnation
            ref.kill("by a test")
            await until(
                lambda lives=lives: (
                    ref.statistics().incarnation > lives or ref.statistics().state == "held"
                )
            )
        await until(lambda: world.state().state == "parked")
        await runtime.remove_agent("ana")
        (letter,) = runtime.dead_letters()
        assert "w1" in letter.message


async def test_a_tool_that_would_close_its_own_conversation_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    forks: list[Conversation] = []

    async def close(**_input: Any) -> str:
        await forks[0].close()
        return "closed"

    async with world.open() as runtime:
        script = [call_tool("close"), reply("so be it")]
        await resident(world, script, tools=[tool("close", close)])
        forks.append(await runtime.open_conversation("ana", channel="c1"))
        await forks[0].send("go")
        await forks[0].wait_idle()
        assert (await shown(forks[0]))[-1] == "assistant: so be it"
        await forks[0].close()
        assert not runtime.dead_letters()


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (lambda runtime: runtime.open_conversation("", channel="c"), InvalidNameError, "agent"),
        (lambda runtime: runtime.open_conversation("ana", channel=""), InvalidNameError, "channel"),
        (lambda runtime: runtime.open_conversation("ana", channel=7), InvalidNameError, "channel"),
        (lambda runtime: runtime.open_conversation("bob", channel="c"), UnknownAgentError, None),
        (lambda runtime: runtime.remove_agent("bob"), UnknownAgentError, None),
    ],
    ids=["no agent", "empty channel", "channel is no text", "unknown agent", "remove unknown"],
)
async def test_bad_input_is_refused_before_anything_is_done(
    world: World, virtual_time: MockClock, call: Any, error: type[Exception], field: str | None
) -> None:
    async with world.open() as runtime:
        await resident(world, [])
        with pytest.raises(error) as caught:
            await call(runtime)
        if field is not None:
            assert getattr(caught.value, "field") == field  # noqa: B009
        assert not world.rows("conversations")


async def test_what_reaches_an_agent_behind_its_end_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [])
        ending = Dispose("ana", "resident", None, None, "ops", world.clock.now_ms())
        await world.ref("slot").ask(ending)
        with pytest.raises(AgentEndedError):
            await runtime.agent("ana").send("late")
        assert not world.rows("ids")


async def test_a_conversation_is_no_resident_and_is_not_forked(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [])
        fork = await runtime.open_conversation("ana", channel="c1")
        with pytest.raises(InvalidInputError):
            await runtime.open_conversation(fork.name, channel="c1")
        await fork.close()
        with pytest.raises(AgentExistsError):
            await resident(world, [], fork.name)
