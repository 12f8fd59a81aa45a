"""Editing the transcript of an agent that lives: what its next requests carry, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core.asks import in_role
from abeyance.actors.domain import slot_plans
from abeyance.actors.domain.errors import (
    CompactionAbandonedError,
    EditRefusedError,
    InvalidInputError,
    InvalidMessageError,
    MessageReadError,
    RuntimeClosedError,
    UnknownMessageError,
)
from abeyance.actors.domain.slot_edits import KEPT_MS, plan_edit
from abeyance.actors.domain.slot_messages import EditReceipt
from abeyance.actors.testing import call_tool, fail, reply
from abeyance.storage.tables.blocks import TextBlock, ThinkingBlock, ToolResultBlock

from .talk import ByHand, Talk, add, kept, say, turns
from .world import Stop, World, shown, texts, tool, until


def requests(world: World, at: int = 0) -> list[list[str]]:
    return [texts(request) for request in world.providers[at].requests]


def thinking(words: str, thought: str) -> Any:
    return reply(ThinkingBlock(thinking=thought, signature="s"), TextBlock(text=words))


def thoughts(world: World) -> list[str]:
    """The reasoning that the last request carried."""
    return [
        block.thinking
        for message in world.providers[-1].requests[-1].messages
        for block in message.blocks
        if isinstance(block, ThinkingBlock)
    ]


async def talk(world: World, *words: str, **how: Any) -> Any:
    """An agent that was told some words, and answered each."""
    ana = await world.add([*[reply(f"re {said}") for said in words], *[reply("more")] * 3], **how)
    for said in words:
        await ana.send(said, id=f"id-{said}")
        await ana.wait_idle()
    return ana


@pytest.mark.behaviour("D-001")
async def test_the_next_fresh_compile_is_the_first_to_carry_an_edit_and_its_undo(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await talk(world, "a", "b")
        receipt = await ana.edit("id-a", "other", requester="ops")
        assert receipt == EditReceipt(receipt.edit, "id-a", 1)
        removed = await ana.edit(2, None, requester="ops")
        await ana.send("c")
        await ana.wait_idle()
        assert requests(world)[-1] == ["user: other", "user: b", "agent: re b", "user: c"]
        await ana.undo_edit(receipt.edit, requester="ops")
        await ana.undo_edit(removed.edit, requester="ops")
    async with world.open():
        ana = await world.add([reply("at last")])
        await ana.send("d")
        await ana.wait_idle()
        assert requests(world, 1)[-1][:3] == ["user: a", "agent: re a", "user: b"]
        first, second = ana.edits()
        assert (first.id, first.does, first.text, first.undone_by) == (
            *("id-a", "changed", "a"),
            "api:ops",
        )
        assert (second.seq, second.does, second.text) == (2, "removed", "re a")


@pytest.mark.behaviour("D-001")
async def test_a_held_turn_goes_on_from_a_fresh_compile_with_what_was_edited(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add(
            [call_tool("look"), fail(429, retry_after=100), reply("done")],
            tools=[tool("look", lambda: "secret")],
        )
        await ana.send("go")
        await until(lambda: world.state().state == "held")
        (results,) = [row async for row in ana.transcript(after=2, limit=1)]
        (was,) = results.blocks
        assert isinstance(was, ToolResultBlock)
        withheld = {"type": "tool_result", "tool_use_id": was.tool_use_id, "content": []}
        await ana.edit(3, [withheld], requester="ops")
        await ana.edit(1, "go on", requester="ops")
        await trio.sleep(100)
        await ana.wait_idle()
        assert requests(world)[-1][0] == "user: go on"
        assert "secret" not in " ".join(requests(world)[-1])
        assert [turn.state for turn in world.turns()] == ["done"]


async def test_an_edit_is_refused_while_a_turn_lives_and_done_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("after")], tools=[stop.tool()])
        first = await ana.send("a")
        await stop.entered.wait()
        for message in (first.id, 2):
            with pytest.raises(EditRefusedError) as refused:
                await ana.edit(message, "b", requester="ops")
            assert refused.value.reason == "leased"
        assert world.turns()[0].state == "running"
        stop.go.set()
        await ana.wait_idle()
        await ana.edit(first.id, "b", requester="ops")
        assert (await shown(ana))[0] == "user: b"


BAD: dict[str, tuple[Any, Any, Any, type[Exception]]] = {
    "no message": (None, "x", "ops", InvalidInputError),
    "a place below zero": (-1, "x", "ops", InvalidInputError),
    "an id that nobody sent": ("nobody", "x", "ops", UnknownMessageError),
    "no blocks": (1, [], "ops", InvalidMessageError),
    "bytes": (1, b"x", "ops", InvalidMessageError),
    "a block of no kind": (1, [{"type": "image"}], "ops", InvalidMessageError),
    "a lone surrogate": (1, "\ud83d", "ops", InvalidMessageError),
    "a tool block": (
        1,
        [{"type": "tool_use", "id": "c", "name": "n", "input": {}}],
        "ops",
        InvalidMessageError,
    ),
    "too long": (1, [{"type": "text", "text": "x" * 3_900_000}] * 5, "ops", InvalidMessageError),
    "nobody asks": (1, "x", "", InvalidInputError),
}


@pytest.mark.parametrize(("message", "blocks", "by", "error"), BAD.values(), ids=list(BAD))
async def test_a_malformed_edit_is_refused_before_any_effect(
    world: World, virtual_time: MockClock, message: Any, blocks: Any, by: Any, error: Any
) -> None:
    async with world.open():
        ana = await talk(world, "a")
        was = (await shown(ana), len(world.rows("log")))
        with pytest.raises(error):
            await ana.edit(message, blocks, requester=by)
        assert (await shown(ana), len(world.rows("log"))) == was
        for bad in (True, 0, "1", None):
            with pytest.raises(InvalidInputError):
                await ana.undo_edit(bad, requester="ops")


async def test_a_message_of_another_slot_is_none_of_this_one(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await talk(world, "a")
        bo = await world.add([reply("x")], "bo")
        with pytest.raises(UnknownMessageError):
            await bo.edit("id-a", "b", requester="ops")
        assert (await shown(ana))[0] == "user: a"


async def test_a_message_that_was_taken_out_says_so_and_its_id_stays_used(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await talk(world, "a")
        edit = await ana.edit("id-a", None, requester="ops")
        receipt = await ana.receipt("id-a")
        assert (receipt.state, receipt.seq) == ("removed", 1)
        assert [each.state async for each in ana.follow("id-a")] == ["removed"]
        assert (await ana.send("a", id="id-a")).state == "removed"
        assert (await ana.retract("id-a")).state == "removed"
        await ana.undo_edit(edit.edit, requester="ops")
        assert (await ana.receipt("id-a")).state == "stored"
        with pytest.raises(MessageReadError):
            await ana.retract("id-a")


async def test_edits_tell_who_made_them_and_watchers_hear_of_them(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await talk(world, "a")
        with runtime.events(kinds=["message_edited", "edit_undone"]) as events:
            edit = await ana.edit("id-a", "b", requester="ops\n[admin] forged")
            await ana.undo_edit(edit.edit, requester="ops")
            heard = [await anext(events), await anext(events)]
        told = [(event.kind, event.id, event.edit, event.seq) for event in heard]  # type: ignore[attr-defined]
        assert told == [
            ("message_edited", "id-a", edit.edit, 1),
            ("edit_undone", "id-a", edit.edit, 1),
        ]
        lines = [(line.event, line.text) for line in world.rows("log") if "edit" in line.event]
        text = f"edit {edit.edit} of place 1 (changed) by api:ops"
        assert lines == [
            ("message_edited", f"{text} [admin] forged"),
            ("edit_undone", text),
        ]


# -- what was written behind other words -----------------------------------------------------


async def test_reasoning_that_was_given_behind_other_words_is_not_sent_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([thinking(f"re {n}", f"thought {n}") for n in range(5)])
        for words in ("a", "b", "c"):
            await ana.send(words)
            await ana.wait_idle()
        assert thoughts(world) == ["thought 0", "thought 1"]
        edit = await ana.edit(3, "other", requester="ops")
        await ana.send("d")
        await ana.wait_idle()
        # The first was given before what was edited; the last behind the new words.
        assert thoughts(world) == ["thought 0"]
        await ana.send("e")
        await ana.wait_idle()
        assert thoughts(world) == ["thought 0", "thought 3"]
        await ana.undo_edit(edit.edit, requester="ops")
    async with world.open():
        ana = await world.add([thinking("x", "y")])
        await ana.send("f")
        await ana.wait_idle()
        assert thoughts(world) == ["thought 0"]


async def test_a_reply_keeps_reasoning_of_its_own_where_its_words_are_edited(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([thinking("so", "thought"), reply("x"), reply("y")])
        await ana.send("a")
        await ana.wait_idle()
        thought = ThinkingBlock(thinking="thought", signature="s")
        await ana.edit(2, [thought, TextBlock(text="thus")], requester="ops")
        await ana.send("b")
        await ana.wait_idle()
        assert thoughts(world) == ["thought"]
        assert requests(world)[-1][1].endswith("thus")


async def test_a_summary_of_what_was_edited_ends_and_another_is_made(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk())
        await say(world, ana, "a", "b", "c", "d", "e")
        before = kept(world)
        assert before
        await ana.edit(1, "other", requester="ops")
        assert kept(world) == []
        assert ana.summaries() == ()
        await say(world, ana, "f")
        # The whole slot again, in its new words; and a summary of those behind it.
        assert turns(provider)[-1][0] == "user: other"
        assert kept(world)


async def test_a_summary_of_what_stands_before_an_edited_message_stays(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk())
        await say(world, ana, "a", "b", "c", "d", "e")
        before = kept(world)
        await ana.edit(before[-1] + 1, "other", requester="ops")
        assert kept(world) == before
        await say(world, ana, "f")
        assert turns(provider)[-1][1] == "user: other"


async def test_a_summary_that_is_made_of_words_that_were_edited_meanwhile_is_not_kept(
    world: World, virtual_time: MockClock
) -> None:
    hand = ByHand()
    async with world.open():
        ana = await world.add([*[reply("x")] * 4], context=hand)
        await say(world, ana, "a", "b")
        desk = hand.desk
        await ana.edit(1, "other", requester="ops")
        with pytest.raises(CompactionAbandonedError):
            await desk.keep("of a", last=2)
        assert kept(world) == []
        # Of what stands behind nothing that was read is edited.
        await say(world, ana, "c")
        await ana.edit(5, "later", requester="ops")
        await hand.desk.keep("of other", last=2)
        assert [summary.text for summary in ana.summaries()] == ["of other"]


async def test_a_conversation_keeps_what_it_began_with_and_a_later_one_begins_with_the_edit(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([thinking("re a", "thought"), *[reply("x")] * 4])
        await ana.send("a")
        await ana.wait_idle()
        before = await runtime.open_conversation("ana", channel="before")
        edit = await ana.edit(1, "other", requester="ops")
        after = await runtime.open_conversation("ana", channel="after")
        assert (await shown(before))[0] == "user: a"
        assert (await shown(after))[0] == "user: other"
        await ana.undo_edit(edit.edit, requester="ops")
        assert (await shown(after))[0] == "user: other"
        await before.send("?")
        await before.wait_idle()
        assert thoughts(world) == ["thought"]
        await after.send("?")
        await after.wait_idle()
        assert thoughts(world) == []
        # What a conversation edits of what it took over is its own.
        await after.edit(1, "mine", requester="ops")
        assert (await shown(after))[0] == "user: mine"
        assert (await shown(ana))[0] == "user: a"


async def test_the_words_of_an_edit_are_forgotten_after_seven_days_by_a_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("re a")])
        await ana.send("secret")
        await ana.wait_idle()
        edit = await ana.edit(1, "[withheld]", requester="ops")
        assert [row.text for row in ana.edits()] == ["secret"]
    world.clock.advance(KEPT_MS)
    async with world.open():
        ana = await world.add([reply("x")])
        await until(lambda: ana.edits() == ())
        assert "secret" not in repr(world.rows("bodies"))
        with pytest.raises(EditRefusedError) as refused:
            await ana.undo_edit(edit.edit, requester="ops")
        assert refused.value.reason == "unknown"
        assert (await shown(ana))[0] == "user: [withheld]"


# -- drains ----------------------------------------------------------------------------------


@pytest.mark.behaviour("D-021", "D-059", "D-080")
async def test_what_comes_while_an_edit_is_on_its_way_lands_behind_it_once_and_in_order(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open():
        ana = await world.add([reply("re a")], slot="room")
        bo = await world.add([], "bo", slot="room")
        await ana.send("a")
        await ana.wait_idle()
        said: list[Any] = []

        def planned(*asked: Any) -> Any:
            """Has them sent while the edit is planned, and not committed."""
            plan = plan_edit(*asked)
            with in_role(None):
                for words, agent in (("A1", ana), ("B1", bo), ("A2", ana), ("B2", bo)):
                    said.append(agent.hand_over(words, wake=False, id=words))
            return plan

        monkeypatch.setattr(slot_plans, "plan_edit", planned)
        await ana.edit(1, "b", requester="ops")
        receipts = [await each for each in said]
        assert world.ref("slot", "room")._cell.actor._book.edits.under_way == set()
        assert await shown(ana) == [
            *("user: b", "assistant: re a"),
            *("user: A1", "user: B1", "user: A2", "user: B2"),
        ]
        assert [receipt.id for receipt in receipts] == ["A1", "B1", "A2", "B2"]
        assert [row.id async for row in ana.transcript(after=2)] == ["A1", "B1", "A2", "B2"]


async def test_an_edit_while_the_host_is_quiesced_leaves_what_waits_waiting(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await talk(world, "a")
        await runtime.quiesce("maintenance")
        await ana.send("waits")
        await ana.edit(1, "b", requester="ops")
        assert await shown(ana) == ["user: b", "assistant: re a"]
        assert len(world.rows("inbox")) == 1
        await runtime.resume()
        await ana.wait_idle()
        assert requests(world)[-1] == ["user: b", "agent: re a", "user: waits"]


async def test_edits_of_one_message_that_are_asked_for_together_are_done_one_after_the_other(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await talk(world, "a")
        done: list[EditReceipt] = []

        async def edit(words: str) -> None:
            done.append(await ana.edit(1, words, requester=words))

        async with trio.open_nursery() as nursery:
            for words in "bcde":
                nursery.start_soon(edit, words)
        assert len({receipt.edit for receipt in done}) == 4
        assert [row.by for row in ana.edits()][-1] == f"api:{(await shown(ana))[0][-1]}"
        for receipt in sorted(done, reverse=True):
            await ana.undo_edit(receipt.edit, requester="ops")
        assert (await shown(ana))[0] == "user: a"


# -- deaths ----------------------------------------------------------------------------------


@pytest.mark.drawn(12)
@pytest.mark.parametrize("victim", ["agent", "slot", "journal"])
@pytest.mark.parametrize("after", range(0, 24, 2))
async def test_an_edit_and_its_undo_are_done_once_when_an_actor_dies_under_them(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    async with world.open():
        ana = await talk(world, "a", "b")

        async def kill() -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            first = await ana.edit(1, "x", requester="ops")
        await ana.wait_idle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            second = await ana.edit(3, None, requester="ops")
        assert len(ana.edits()) == 2
        await ana.wait_idle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            assert await ana.undo_edit(second.edit, requester="ops") == second
        assert await shown(ana) == ["user: x", "assistant: re a", "user: b", "assistant: re b"]
        await ana.undo_edit(first.edit, requester="ops")
        await ana.send("c")
        await ana.wait_idle()
        assert requests(world)[-1][0] == "user: a"


async def test_edits_of_a_runtime_that_has_ended_are_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await talk(world, "a")
    with pytest.raises(RuntimeClosedError):
        ana.edits()
