"""Agents that share a slot: one live turn at a time, and each hears the others as others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec
from abeyance.actors.core.errors import AskCycleError
from abeyance.actors.domain.errors import (
    AgentOwnedElsewhereError,
    InboxFullError,
    InvalidNameError,
    InvalidSpecError,
    QuiescedError,
    RewindRefusedError,
)
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.codec import encode, spread
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.ownership import Owner

from .world import Stop, World, shown, texts, tool, until


class Scripted:
    """Two agents in one slot, each with a provider of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.providers: dict[str, ScriptedProvider] = {}

    async def add(self, name: str, *script: Any, slot: str = "room", **more: Any) -> Any:
        provider = ScriptedProvider(list(script), clock=self.world.clock)
        self.providers[name] = provider
        return await self.world.runtime.add_agent(
            AgentSpec(name=name, provider=provider, model="m", slot=slot, **more)
        )

    def calls(self, name: str) -> int:
        return len(self.providers[name].requests)

    def request(self, name: str, number: int = -1) -> list[str]:
        return texts(self.providers[name].requests[number])


@pytest.fixture
def room(world: World, virtual_time: MockClock) -> Scripted:
    return Scripted(world)


async def order(world: World) -> list[tuple[str, str]]:
    return [(row.author, row.role) for row in world.rows("slots", "room")]


@pytest.mark.behaviour("R-8", "R-36")
async def test_turns_of_two_agents_on_one_slot_never_interleave(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    stop = Stop()
    async with world.open():
        ana = await room.add(
            "ana", call_tool("wait"), reply("done"), reply("again"), tools=[stop.tool()]
        )
        bo = await room.add("bo", reply("yes"), reply("and"))
        await ana.send("go")
        await stop.entered.wait()
        await bo.send("you?")
        await ana.send("more")
        await wait_all_tasks_blocked()
        assert room.calls("bo") == 0, "the slot is leased"
        assert world.state("bo").state == "starting"
        stop.go.set()
        await ana.wait_idle()
        await bo.wait_idle()
        assert world.ref("slot", "room").statistics().incarnation == 1
        turns: list[tuple[str, Any]] = []
        for row in world.rows("slots", "room"):
            key = (row.author, row.turn)
            if row.turn is not None and key not in turns[-1:]:
                turns.append(key)
        assert len(turns) == len(set(turns)), f"a turn was interrupted: {turns}"
        assert not world.rows("wakes")
        assert [turn.state for turn in world.rows("turns")] == ["done"] * len(world.rows("turns"))


@pytest.mark.behaviour("R-8")
async def test_each_sharer_is_told_its_own_words_as_its_own_and_the_others_by_name(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    free, gate = Stop("found"), Gate(reply("good"))
    free.go.set()
    async with world.open():
        ana = await room.add(
            "ana", call_tool("wait", {"at": "door"}, text="looking"), reply("it is open"),
            reply("bye"), tools=[free.tool()],
        )  # fmt: skip
        bo = await room.add("bo", gate)
        await ana.send("look")
        await ana.wait_idle()
        await bo.send("well?")
        await gate.wait_entered()
        await bo.send("as ana", author="ANA", wake=False)
        gate.release()
        await bo.wait_idle()
        assert room.request("bo") == [
            "user: look",
            'user: [ana] looking [ana called wait] {"at": "door"}',
            "user: [ana was told] found",
            "user: [ana] it is open",
            "user: well?",
        ]
        await ana.send("thanks")
        await ana.wait_idle()
        assert room.request("ana") == [
            "user: look",
            "agent: looking <wait>",
            "user: =found",
            "agent: it is open",
            "user: well?",
            "user: [bo] good",
            "agent: as ana",
            "user: thanks",
        ]
        assert (await shown(ana)) == (await shown(bo)), "it is one transcript"


async def test_a_message_in_the_words_of_the_live_turns_agent_does_not_join_it(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    """Whoever it is for: it would be told as what that agent had said itself."""
    stop = Stop()
    async with world.open():
        ana = await room.add("ana", call_tool("wait"), reply("done"), tools=[stop.tool()])
        bo = await room.add("bo", reply("yes"))
        await ana.send("go")
        await stop.entered.wait()
        await bo.send("first", id="first", wake=False)
        await bo.send("i am ana", author="ana", id="named", wake=False)
        await bo.send("behind", id="behind", wake=False)
        told = [(row.id, row.state, row.cause, row.behind) for row in await world.runtime.inbox()]
        assert told == [
            ("first", "accepted", "turn", None),
            ("named", "held", "own", None),
            ("behind", "held", "behind", "named"),
        ]
        assert (await bo.receipt("named")).cause == "own"
        stop.go.set()
        await ana.wait_idle()
        assert room.request("ana") == ["user: go", "agent: <wait>", "user: =done", "user: first"]
        rows = [row.message for row in world.rows("slots", "room") if row.turn is None]
        assert rows[-3:] == ["first", "named", "behind"]


@pytest.mark.behaviour("D-025", "D-026")
async def test_another_agents_tools_hold_nothing_of_an_agent_with_a_slot_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    stop, gate = Stop(), Gate(reply("done"))
    async with world.open():
        bo = await world.add([call_tool("wait"), reply("x")], "bo", tools=[stop.tool()])
        ana = await world.add([gate])
        await bo.send("go")
        await stop.entered.wait()
        receipt = await ana.send("to an idle agent", wake=False)
        assert receipt.state == "stored"
        await ana.send("go")
        await gate.wait_entered()
        await ana.send("own", author="ana", id="own")
        await ana.send("behind", id="behind", wake=False)
        gate.release()
        await ana.wait_idle()
        assert [row.message for row in world.rows("slots", "ana")][-2:] == ["own", "behind"]
        assert not world.rows("inbox", "ana"), "bo is still in its tool"
        stop.go.set()
        await bo.wait_idle()


@pytest.mark.behaviour("D-027")
async def test_messages_for_all_who_share_a_slot_land_in_one_order_by_one_rule(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    gate = Gate(reply("done"))
    async with world.open():
        ana = await room.add("ana", gate)
        bo = await room.add("bo")
        await ana.send("go", id="go")
        await gate.wait_entered()
        for name, agent, author in (
            ("a1", ana, "eve"),
            ("b1", bo, "eve"),
            ("a2", ana, "ana"),
            ("b2", bo, "bo"),
            ("a3", ana, "eve"),
        ):
            receipt = await agent.send(name, author=author, id=name, wake=False)
            assert receipt.state == "accepted"
        gate.release()
        await ana.wait_idle()
        rows = [row.message for row in world.rows("slots", "room") if row.turn is None]
        assert rows == ["go", "a1", "b1", "a2", "b2", "a3"]


@pytest.mark.behaviour("D-031")
@pytest.mark.parametrize("how", ["serving", "quiesced"])
async def test_a_stop_lands_what_waits_for_two_agents_interleaved_as_it_came(
    world: World, virtual_time: MockClock, room: Scripted, how: str
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await room.add("ana", gate)
        bo = await room.add("bo")
        await ana.send("go", id="go")
        await gate.wait_entered()
        for name, agent in (("a1", ana), ("b1", bo), ("a2", ana), ("b2", bo)):
            receipt = await agent.send(name, id=name)
            assert receipt.state == "accepted"
        if how == "quiesced":
            with suppress(QuiescedError):
                await runtime.quiesce("a test", within_s=0)
    async with world.open() as runtime:
        waits, lands = (
            [row.message for row in world.rows(table, "room") if getattr(row, "turn", None) is None]
            for table in ("inbox", "slots")
        )
        came = ["a1", "b1", "a2", "b2"]
        assert (waits, lands) == ((came, ["go"]) if how == "quiesced" else ([], ["go", *came]))


@pytest.mark.behaviour("D-029")
async def test_what_waited_for_a_turns_end_is_in_before_a_successor_compiles(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    """Also where it takes more commits than one."""
    gate, stop = Gate(reply("done")), Stop()
    async with world.open():
        ana = await room.add("ana", gate)
        bo = await room.add("bo", call_tool("wait"), reply("last"), tools=[stop.tool()])
        await ana.send("go", id="go")
        await gate.wait_entered()
        await bo.send("you?", id="you")
        named = [f"m{number:04}" for number in range(2_600)]
        await ana.send_many([_own(name) for name in named[:1_300]])
        await ana.send_many([_own(name) for name in named[1_300:]])
        gate.release()
        await stop.entered.wait()
        first = room.providers["bo"].requests[0]
        assert len(first.messages) == 3 + len(named)
        await ana.send("late", author="ana", id="late")
        stop.go.set()
        await bo.wait_idle()
        rows = [row for row in world.rows("slots", "room") if row.role != "marker"]
        said = [row.message for row in rows if row.turn is None]
        assert said == ["go", "you", *named, "late"]
        last = [row.role for row in rows if row.author == "bo"]
        assert last == ["assistant", "results", "assistant"]
        assert rows[-1].message == "late", "it landed behind the successor's last reply"


def _own(name: str) -> Any:
    from abeyance.actors import Draft

    return Draft(name, author="ana", id=name)


async def test_a_held_turn_does_not_lock_the_others_out(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    async with world.open():
        ana = await room.add("ana", fail(429, retry_after=100), reply("late"))
        bo = await room.add("bo", reply("yes"))
        await ana.send("go")
        await ana.wait_idle()
        assert world.state("ana").state == "held"
        await bo.send("you?")
        await bo.wait_idle()
        assert room.calls("bo") == 1
        await trio.sleep(101)
        await ana.wait_idle()
        assert room.request("ana") == ["user: go", "user: you?", "user: [bo] yes"]
        assert (await order(world))[-1] == ("ana", "assistant")


async def test_the_inbox_has_one_bound_for_all_who_share_it_and_each_sees_its_own(
    world: World, virtual_time: MockClock, room: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from abeyance.actors.domain import slot_book

    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 3)
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await room.add("ana", gate)
        bo = await room.add("bo")
        await ana.send("go")
        await gate.wait_entered()
        await ana.send("a1", wake=False)
        await bo.send("b1", id="b1", wake=False)
        await bo.send("b2", wake=False)
        with pytest.raises(InboxFullError):
            await ana.send("a2")
        assert (world.state("ana").inbox, world.state("bo").inbox) == (1, 2)
        assert runtime.statistics().inbox == 3
        gate.release()
        await ana.wait_idle()


@pytest.mark.parametrize("live", [True, False], ids=["another's turn lives", "nobody's turn lives"])
async def test_a_sharer_that_is_removed_leaves_the_others_what_is_theirs(
    world: World, virtual_time: MockClock, room: Scripted, live: bool
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await room.add("ana", gate)
        bo = await room.add("bo", reply("never"))
        if live:
            await ana.send("go")
            await gate.wait_entered()
        else:
            gate.release()
            await runtime.quiesce("so that all waits")
        await bo.send("b1", id="b1")
        await ana.send("a1", id="a1", wake=False)
        await bo.send("b2", id="b2", wake=False)
        await runtime.remove_agent("bo")
        (letter,) = runtime.dead_letters()
        assert "b1" in letter.message
        assert [row.message for row in world.rows("inbox", "room")] == ["b1", "a1", "b2"]
        if not live:
            await runtime.resume()
        gate.release()
        await ana.wait_idle()
        rows = [row.message for row in world.rows("slots", "room") if row.turn is None]
        assert rows[-3:] == ["b1", "a1", "b2"], "what is accepted is not lost, and in order"
        assert room.calls("bo") == 0
        await ana.send("still here", wake=False)
        again = await room.add("bo", reply("back"))
        await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: room.calls("bo") == 1)
        await again.wait_idle()
        assert (await order(world))[-1] == ("bo", "assistant")


async def test_the_last_sharer_that_is_removed_takes_the_slots_actor_along(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    async with world.open() as runtime:
        await room.add("ana")
        await room.add("bo")
        await runtime.remove_agent("ana")
        assert world.ref("slot", "room").statistics().state == "running"
        await runtime.remove_agent("bo")
        assert runtime.system.find("slot:room") is None
        await room.add("cy")
        assert world.ref("slot", "room").statistics().state == "running"


async def test_a_rewind_by_one_sharer_waits_for_no_other_and_is_refused_while_one_lives(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    gate = Gate(reply("done"))
    async with world.open():
        ana = await room.add("ana", reply("hello"), reply("so?"))
        bo = await room.add("bo", gate, reply("again"))
        await ana.send("one", id="one")
        await ana.wait_idle()
        await bo.send("two", id="two")
        await gate.wait_entered()
        with pytest.raises(RewindRefusedError, match="'bo'"):
            await ana.rewind(to="one", requester="ops")
        gate.release()
        await bo.wait_idle()
        # What ana said is something for bo to answer, and nothing for ana.
        receipt = await bo.rewind(to=2, requester="ops")
        assert receipt.first == 3
        await bo.undo_rewind(requester="ops")
        await bo.rewind(to=2, requester="ops")
        assert [row.text async for row in bo.transcript()] == ["one", "hello"]


async def test_a_crash_of_the_slot_or_of_a_sharer_lets_each_turn_come_to_its_end(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    for actor, name in (("slot", "room"), ("agent", "ana"), ("agent", "bo")):
        world.directory = world.directory.with_name(f"state{actor}{name}")
        stop = Stop()
        async with world.open():
            script = [call_tool("wait"), reply("done"), reply("more")]
            ana = await room.add("ana", *script, tools=[stop.tool()])
            bo = await room.add("bo", reply("yes"))
            await ana.send("go", id="go")
            await stop.entered.wait()
            await bo.send("you?", id="you")
            await wait_all_tasks_blocked()
            world.ref(actor, name).kill("a test")
            await until(
                lambda actor=actor, name=name: (  # type: ignore[misc]
                    world.ref(actor, name).statistics().incarnation == 2
                )
            )
            stop.go.set()
            await ana.wait_idle()
            await bo.wait_idle()
            assert stop.effects == 1
            assert not world.rows("wakes")
            assert {turn.state for turn in world.rows("turns")} == {"done"}
            roles = await order(world)
            assert roles.count(("bo", "assistant")) == 1
            at = roles.index(("ana", "results"))
            assert roles[at - 1] == ("ana", "assistant")


async def test_a_parked_slot_answers_whoever_waits_for_any_of_its_agents(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    gate = Gate()
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await room.add("ana", gate, reply("done"))
        bo = await room.add("bo", reply("yes"))
        await ana.send("go")
        await gate.wait_entered()
        await bo.send("you?")
        told: list[str] = []

        async def wait(agent: Any) -> None:
            try:
                await agent.wait_idle()
            except Exception as error:
                told.append(type(error).__name__)

        nursery.start_soon(wait, ana)
        nursery.start_soon(wait, bo)
        await wait_all_tasks_blocked()
        ref = world.ref("slot", "room")
        while not runtime._members["ana"].is_parked:
            incarnation = ref.statistics().incarnation
            ref.kill("a test")
            await until(
                lambda before=incarnation: (  # type: ignore[misc]
                    ref.statistics().incarnation > before or runtime._members["ana"].is_parked
                )
            )
        await until(lambda: len(told) == 2)
        assert told == ["AgentParkedError"] * 2
        assert runtime._members["bo"].is_parked


async def test_a_tool_that_waits_for_who_needs_its_slot_is_refused(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    problems: list[Exception] = []
    handles: dict[str, Any] = {}

    async def body() -> str:
        try:
            await handles["bo"].wait_idle()
        except AskCycleError as error:
            problems.append(error)
        return "went on"

    async with world.open():
        ana = await room.add("ana", call_tool("ask"), reply("done"), tools=[tool("ask", body)])
        handles["bo"] = await room.add("bo", reply("yes"))
        await handles["bo"].send("later", wake=False)
        await ana.send("go")
        with trio.fail_after(5):
            await ana.wait_idle()
        assert len(problems) == 1


async def test_a_fork_of_a_shared_slot_goes_on_in_its_residents_words(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    async with world.open() as runtime:
        ana = await room.add("ana", reply("hello"), reply("aside"))
        bo = await room.add("bo", reply("yes"))
        await ana.send("one")
        await ana.wait_idle()
        await bo.send("two")
        await bo.wait_idle()
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("three", id="three")
        await fork.wait_idle()
        assert room.request("ana") == [
            "user: one",
            "agent: hello",
            "user: two",
            "user: [bo] yes",
            "user: three",
        ]
        assert [row.origin for row in world.rows("slots", fork.name)][:4] == ["room"] * 4
        await fork.send("four", id="four", wake=False)
        room.providers["ana"]._steps = iter(())  # type: ignore[attr-defined]
        await fork.close()
        assert not runtime.dead_letters()


async def test_sharers_find_their_slot_and_their_turns_again_after_a_restart(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    gate = Gate()
    async with world.open():
        ana = await room.add("ana", gate)
        bo = await room.add("bo")
        await ana.send("go", id="go")
        await gate.wait_entered()
        await bo.send("you?", id="you")
        await until(lambda: world.state("bo").state == "starting")
    async with world.open():
        assert [turn.state for turn in world.rows("turns")] == ["cancelled"]
        assert len(world.rows("wakes")) == 2, "a start that waited was withdrawn, not begun"
        bo = await room.add("bo", reply("yes"))
        await bo.wait_idle()
        ana = await room.add("ana", reply("done"))
        await ana.wait_idle()
        assert [author for author, role in await order(world) if role == "assistant"] == [
            "bo",
            "ana",
        ]


@pytest.mark.behaviour("R-9")
async def test_nobody_but_the_slots_actor_writes_a_slot(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    """What is written under a live turn comes with its lease, or waits."""
    stop, written = Stop(), []
    async with world.open() as runtime:
        submit = type(runtime._store).submit

        def watched(store: Any, batch: Any, done: Any) -> None:
            written.extend(
                (put.table, request.chain, request.guards)
                for request in map(spread, batch)
                for put in request.puts
                if put.table in ("slots", "leases", "inbox")
            )
            submit(store, batch, done)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime._store), "submit", watched)
            script = [call_tool("wait"), reply("done"), reply("more")]
            ana = await room.add("ana", *script, tools=[stop.tool()])
            bo = await room.add("bo", reply("yes"))
            await ana.send("go")
            await stop.entered.wait()
            before = len(written)
            receipt = await bo.send("without the lease")
            assert receipt.state == "accepted"
            assert {table for table, _, _ in written[before:]} == {"inbox"}
            stop.go.set()
            await ana.wait_idle()
            await bo.wait_idle()
    assert written
    for table, chain, guards in written:
        assert chain is not None, table
        assert chain.sender.startswith("slot:room:"), table
        assert any(guard.table == "owners" for guard in guards), table


# -- who may share -------------------------------------------------------------------------------


async def test_a_slot_of_a_live_process_is_refused_by_name(
    world: World, virtual_time: MockClock, room: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        owner = encode(Owner(nonce="elsewhere", fence=1))
        runtime._store.commit(Request(puts=(Put("owners", ("slot", "room"), owner),)))
        monkeypatch.setattr(runtime._ownership, "is_alive", lambda nonce: True)
        with pytest.raises(AgentOwnedElsewhereError, match="the slot 'room' of agent 'ana'"):
            await room.add("ana")
        assert not world.rows("agents")
        monkeypatch.undo()
        await room.add("ana")


async def test_an_agent_speaks_in_one_slot_until_it_is_removed(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    async with world.open():
        await room.add("ana")
    async with world.open() as runtime:
        with pytest.raises(InvalidSpecError, match="'room'") as refused:
            await room.add("ana", slot="hall")
        assert refused.value.field == "slot"
        await room.add("ana")
        await runtime.remove_agent("ana")
        await room.add("ana", slot="hall")
        assert world.rows("agents")[0].slot == "hall"


@pytest.mark.parametrize("slot", ["", "*", 7, "a\nb", "framework", "account:x"])
async def test_a_malformed_slot_is_refused_by_its_field(
    world: World, virtual_time: MockClock, room: Scripted, slot: Any
) -> None:
    async with world.open():
        with pytest.raises(InvalidNameError) as refused:
            await room.add("ana", slot=slot)
        assert refused.value.field == "slot"
        assert not world.rows("agents")


async def test_an_ephemeral_run_has_a_slot_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        used = AgentSpec(name="sum", provider=ScriptedProvider([]), model="m", slot="room")
        with pytest.raises(InvalidSpecError):
            await runtime.run_ephemeral(used, "go")
        assert not world.rows("ephemerals")


async def test_two_agents_that_are_added_together_share_one_actor(
    world: World, virtual_time: MockClock, room: Scripted
) -> None:
    async with world.open():
        async with trio.open_nursery() as nursery:
            for name in ("ana", "bo", "cy"):
                nursery.start_soon(room.add, name)
        members = world.runtime._members
        assert len({id(member.home) for member in members.values()}) == 1
