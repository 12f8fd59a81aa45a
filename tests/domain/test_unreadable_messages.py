"""A message that waits and whose content cannot be read: it leaves, the rest lands in order.

The damage is done to the file, as in `test_bad_rows`: while nobody has it open, or under a runtime
while its writer has nothing.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Runtime
from abeyance.actors.testing import Gate, call_tool, fail, reply

from .damage import DAMAGES, GONE, damage, spoil
from .test_conversations import keep_from_landing, leave_in_inbox
from .world import Stop, World, shown, until

each_damage = pytest.mark.parametrize("how", [*DAMAGES, GONE])


def entry_of(world: World, message: str, slot: str = "ana") -> int:
    row = world.runtime._store.get("ids", (slot, message))
    assert row is not None
    return int(row.record.entry)


async def spoil_body(world: World, message: str, how: str, slot: str = "ana") -> None:
    await trio.testing.wait_all_tasks_blocked()
    spoil(world.runtime._store, "bodies", (slot, entry_of(world, message, slot)), how)


async def check_letter(runtime: Runtime, ana: AgentHandle, message: str = "b") -> None:
    """The message is a dead letter with the cause, and its sender can learn it."""
    (letter,) = runtime.dead_letters()
    assert letter.message == f"message {message!r} by 'user'"
    receipt = await ana.receipt(message)
    assert receipt.state == "dead"
    assert receipt.cause == letter.reason
    assert "bodies" in letter.reason


def said(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("user")]


@pytest.mark.behaviour("R-3")
@each_damage
@pytest.mark.parametrize("where", ["boundary", "reply", "hold", "cancel", "failure"])
async def test_waiting_content_that_cannot_be_read_leaves_where_it_was_to_land(
    world: World, virtual_time: MockClock, where: str, how: str
) -> None:
    stop, last = Stop(), Gate(reply("Done"))
    script: dict[str, Any] = {
        "boundary": [call_tool("wait"), reply("Done"), reply("more")],
        "reply": [last, reply("more")],
        "hold": [Gate(fail(429, retry_after=60)), reply("Done"), reply("more")],
        "cancel": [last, reply("more")],
        "failure": [Gate(fail(400)), reply("more")],
    }
    async with world.open() as runtime:
        ana = await world.add(script[where], tools=[stop.tool()])
        await ana.send("go")
        gate = script[where][0]
        await (stop.entered.wait() if where == "boundary" else gate.wait_entered())
        for word in "abc":
            await ana.send(word, id=word)
        await spoil_body(world, "b", how)
        with trio.fail_after(300):
            if where == "cancel":
                await ana.cancel_turn(requester="ops")
            stop.go.set()
            if where != "boundary":
                gate.release()
            await ana.wait_idle()
            if where == "hold":
                assert not world.rows("inbox"), "it lands as the turn is put down"
                await runtime.release_provider_wait("ana", requester="ops")
                await ana.wait_idle()
            await until(lambda: not world.rows("inbox"))
        assert said(await shown(ana)) == ["user: go", "user: a", "user: c"]
        failed = [turn.error for turn in world.turns() if turn.state == "failed"]
        assert len(failed) == (where == "failure"), failed
        assert world.rows("wakes") == []
        await check_letter(runtime, ana)


@pytest.mark.behaviour("R-3", "D-044")
@each_damage
async def test_content_that_a_start_cannot_read_is_a_dead_letter_and_the_rest_is_answered(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime:
        for place, word in enumerate("abc", 1):
            leave_in_inbox(world, word, word, place, wake=True)
        if how == GONE:
            spoil(runtime._store, "bodies", ("ana", 2), how)
    if how != GONE:
        damage(world.directory, world.clock, "bodies", ("ana", 2), how)
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        with trio.fail_after(300):
            await ana.wait_idle()
        assert await shown(ana) == ["user: a", "user: c", "assistant: heard"]
        assert world.rows("wakes") == world.rows("inbox") == []
        await check_letter(runtime, ana)


@pytest.mark.behaviour("R-3")
async def test_a_turn_that_only_unreadable_content_asked_for_never_starts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        leave_in_inbox(world, "b", "b", 1, wake=True)
    damage(world.directory, world.clock, "bodies", ("ana", 1), DAMAGES[0])
    async with world.open() as runtime:
        ana = await world.add([])
        with trio.fail_after(300):
            await ana.wait_idle()
            await until(lambda: not world.rows("inbox"))
        assert world.turns() == []
        await check_letter(runtime, ana)


@pytest.mark.behaviour("R-3", "D-041")
@each_damage
async def test_unreadable_content_for_one_who_shares_a_slot_holds_up_none_of_them(
    world: World, virtual_time: MockClock, how: str
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("Done")], slot="room", tools=[stop.tool()])
        bo = await world.add([reply("here")], "bo", slot="room")
        await ana.send("go")
        await stop.entered.wait()
        await bo.send("b", id="b")
        await bo.send("c", id="c")
        await ana.send("a", id="a", wake=False)
        await spoil_body(world, "b", how, "room")
        stop.go.set()
        with trio.fail_after(300):
            await ana.wait_idle()
            await bo.wait_idle()
        assert said(await shown(ana)) == ["user: go", "user: c", "user: a"]
        assert (await shown(ana))[-1] == "user [bo]: here" or "here" in (await shown(bo))[-1]
        await check_letter(runtime, bo)


@pytest.mark.behaviour("R-3")
async def test_a_whole_page_of_unreadable_content_leaves_at_once(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("Done")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        names = [str(number) for number in range(60)]
        await ana.send_many([_draft(name) for name in names])
        bad = names[5:45]
        for name in bad:
            await spoil_body(world, name, DAMAGES[0])
        stop.go.set()
        with trio.fail_after(300):
            await ana.wait_idle()
        good = [name for name in names if name not in bad]
        assert said(await shown(ana)) == ["user: go", *(f"user: {name}" for name in good)]
        assert [letter.message for letter in runtime.dead_letters(limit=100)] == [
            f"message {name!r} by 'user'" for name in reversed(bad)
        ]
        # The first that is met tells of them all: no other is tried, let alone three times.
        lines = [line.message for line in caplog.records if line.levelno == logging.WARNING]
        assert len([line for line in lines if "does not land in slot" in line]) == len(bad)
        assert not [line for line in lines if "was refused" in line]


def _draft(name: str) -> Any:
    from abeyance.actors import Draft

    return Draft(name, id=name, wake=False)


@pytest.mark.behaviour("R-3", "R-28")
@each_damage
async def test_an_agent_with_unreadable_content_waiting_can_be_removed(
    world: World, virtual_time: MockClock, how: str
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        for word in "abc":
            await ana.send(word, id=word, wake=False)
        await spoil_body(world, "b", how)
        with trio.fail_after(300):
            await runtime.remove_agent("ana", requester="ops")
        assert not world.rows("inbox")
        rows = world.rows("slots", "ana")
        assert [row.message for row in rows if row.role == "user"][1:] == ["a", "c"]
        letters = [letter.message for letter in runtime.dead_letters()]
        assert "message 'b' by 'user'" in letters


@pytest.mark.behaviour("R-3", "R-28")
async def test_unreadable_content_that_was_not_to_land_is_a_dead_letter_without_words(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        leave_in_inbox(world, "a", "a", 1, wake=False)
        leave_in_inbox(world, "b", "b", 2, wake=True)
        keep_from_landing(monkeypatch)
        await world.add([])
        await spoil_body(world, "b", DAMAGES[0])
        with trio.fail_after(300):
            await runtime.remove_agent("ana", requester="ops")
        monkeypatch.undo()
        assert not world.rows("inbox")
        letters = {letter.message: letter.replayable for letter in runtime.dead_letters()}
        assert letters == {"message 'a' by 'user'": True, "message 'b' by 'user'": False}


@pytest.mark.behaviour("R-3")
@each_damage
async def test_a_newer_message_takes_the_subject_of_one_that_cannot_be_read(
    world: World, virtual_time: MockClock, how: str
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("Done"), reply("m")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("b", id="b", subject="s")
        await ana.send("old", id="old", subject="t")
        # Its content was put twice by now.
        await ana.send("new", id="new", subject="t")
        await spoil_body(world, "b", how)
        await ana.send("c", id="c", subject="s")
        await spoil_body(world, "new", how)
        stop.go.set()
        with trio.fail_after(300):
            await ana.wait_idle()
        assert said(await shown(ana)) == ["user: go", "user: c"]
        letters = [letter.message for letter in runtime.dead_letters()]
        assert "message 'new' by 'user'" in letters
        assert (await ana.receipt("b")).state in ("dead", "replaced")
