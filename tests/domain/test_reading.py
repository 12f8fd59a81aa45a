"""Whether a message was read: exactly what was carried by a request that was sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.domain.errors import InvalidSpecError
from abeyance.actors.domain.slot_messages import RewindSlot, UndoRewind
from abeyance.actors.domain.slot_reading import covers, joined, read_forked, read_reading
from abeyance.actors.domain.slot_rewind import plan_rewind, plan_undo
from abeyance.actors.domain.slot_turns import plan_end, plan_hold
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.testing import ScriptedProvider
from abeyance.actors.testing.scripted import Gate, call_tool, raise_, reply
from abeyance.storage.codec import encode
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.agents import Conversation

from .desk import rows
from .slots import AT, SLOT, BookDesk, end, hold, load, numbers
from .world import Stop, World, texts

Ending = Callable[[BookDesk, Any], Any]


def readings(desk: BookDesk) -> list[str]:
    """What each place of the slot was read, by the mirror and by the store alike."""
    found: list[str] = [desk.book.reading(seq) for seq in range(1, desk.book.seq_next)]
    stored = [read_reading(desk.store, SLOT, seq) for seq in range(1, desk.book.seq_next)]
    assert found == stored
    return found


def _taken_up(desk: BookDesk, turn: Any) -> None:
    desk.reload()
    desk.start()


ENDINGS: dict[str, tuple[Ending, str]] = {
    "its reply was recorded": (lambda desk, turn: desk.record(turn, 1, "done"), "read"),
    "a sent call was refused and holds it": (lambda desk, turn: desk.hold(turn), "read"),
    "a call that did not leave holds it": (
        lambda desk, turn: desk.run(plan_hold(desk.book, hold(turn, sent=False), desk.chain)),
        "unread",
    ),
    "it ended and nothing had left": (lambda desk, turn: desk.end(turn), "unread"),
    "it ended with the call out": (
        lambda desk, turn: desk.run(plan_end(desk.book, end(turn)._replace(sent=True), desk.chain)),
        "read",
    ),
    "its task died before it said": (_taken_up, "read"),
    "it was ended for a task that is gone": (
        lambda desk, turn: desk.run(plan_end(desk.book, end(turn)._replace(sent=None), desk.chain)),
        "read",
    ),
}


@pytest.mark.behaviour("R-12", "D-073", "D-075", "D-079")
@pytest.mark.parametrize(("ending", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_a_message_is_read_once_a_request_that_carried_it_was_sent_or_may_have_been(
    ending: Ending, expected: str
) -> None:
    desk = BookDesk()
    desk.accept("go")
    assert readings(desk) == ["unread"]
    turn = desk.start()
    assert readings(desk) == ["in_flight"]
    ending(desk, turn)
    assert readings(desk)[0] == expected
    desk.reload()
    assert readings(desk)[0] == expected


@pytest.mark.behaviour("R-12", "D-079")
def test_what_is_written_behind_a_request_stays_unread_when_that_request_is_sent() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("meanwhile")
    desk.record(turn, 1, "done")
    # The reply and what landed with it are in no request yet.
    assert readings(desk) == ["read", "unread", "unread"]
    desk.record(desk.start(), 1, "done again")
    assert readings(desk) == ["read", "read", "read", "unread"]


@pytest.mark.behaviour("D-074", "D-075", "R-13")
@pytest.mark.parametrize(
    "inject", [True, False], ids=["a provider that carries injections", "one that does not"]
)
def test_only_what_a_boundary_injects_is_on_its_way_to_being_read(inject: bool) -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    desk.boundary(turn, 1, "c1", inject=inject)
    before = readings(desk)
    desk.record(turn, 2, "Done")
    after = readings(desk)
    if inject:
        assert before == ["read", "in_flight", "in_flight", "in_flight"]
        assert after == ["read", "read", "read", "read", "unread"]
    else:
        assert before == ["read", "in_flight", "in_flight"]
        assert after == ["read", "read", "read", "unread", "unread"]


@pytest.mark.behaviour("D-075")
def test_what_is_stored_at_an_end_in_place_of_a_boundary_stays_unread() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    desk.end(turn, "c1")
    # Call, results, marker, message.
    assert readings(desk) == ["read", "unread", "unread", "unread", "unread"]


@pytest.mark.behaviour("D-076")
def test_what_was_read_stays_read_on_every_branch_and_what_was_not_stays_unread() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.record(desk.start(), 1, "done")
    desk.accept("note", wake=False)
    before = readings(desk)
    assert before == ["read", "unread", "unread"]
    rewind = RewindSlot(1, "act", "api:ops", AT)
    desk.commit(plan_rewind(desk.book, rewind, desk.chain)[0])
    assert readings(desk) == before
    desk.commit(plan_undo(desk.book, UndoRewind("u", "api:ops", AT), desk.chain, None)[0])
    desk.commit(plan_rewind(desk.book, rewind._replace(act="again"), desk.chain)[0])
    desk.accept("other")
    desk.record(desk.start(), 1, "other done")
    # The places of the branch that was left are in no request of the other.
    assert readings(desk) == [*before, "read", "unread"]


@pytest.mark.behaviour("D-077")
def test_joining_and_counting_as_on_its_way_are_one_request() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    before = len(desk.store.batches)
    desk.boundary(turn, 1, "c1")
    assert len(desk.store.batches) == before + 1
    assert readings(desk)[-1] == "in_flight"


@pytest.mark.behaviour("D-078")
def test_what_a_conversation_began_with_counts_as_read() -> None:
    desk = BookDesk()
    desk.accept("a", wake=False)
    desk.accept("b", wake=False)
    fork = Conversation(agent="ana.c", base_seq=1, state="forking", opened_ms=AT)
    desk.store.commit(Request(puts=(Put("conversations", (SLOT, "c"), encode(fork)),)))
    desk.reload()
    assert readings(desk) == ["forked", "unread"]
    assert load(desk.store).forked == read_forked(desk.store, SLOT) == 1


@pytest.mark.slow
def test_read_sets_stay_few_ranges_over_turns_that_leave_markers() -> None:
    desk = BookDesk()
    for number in range(40):
        desk.accept(str(number))
        turn = desk.start()
        if number % 3:
            desk.record(turn, 1, "done")
        else:
            desk.run(plan_end(desk.book, end(turn)._replace(sent=True), desk.chain))
    desk.reload()
    carried = list(rows(desk.store, "carried", (SLOT,)).values())
    assert max(len(row.rows) for row in carried) == 1
    assert len(desk.book.lease.read) == 1
    assert numbers(desk.book.lease.read) == list(range(1, 80))


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=8).map(
    lambda found: joined((), tuple((first, first + size) for first, size in found))
)


@given(RANGES, RANGES)
def test_ranges_say_what_sets_of_places_would(ranges: Any, more: Any) -> None:
    both = joined(ranges, more)
    assert numbers(both) == sorted({*numbers(ranges), *numbers(more)})
    assert all(first[1] + 1 < second[0] for first, second in pairwise(both))
    assert [seq for seq in range(70) if covers(both, seq)] == numbers(both)


@pytest.mark.behaviour("R-12")
async def test_a_request_of_which_one_call_was_sent_was_sent_whatever_its_last_call_came_to(
    world: World, virtual_time: MockClock
) -> None:
    sent = ProviderError("overloaded", retryable=True, status=529)
    unsent = ProviderError("no route", retryable=False, sent=False)
    async with world.open():
        ana = await world.add([raise_(sent), raise_(unsent)])
        await ana.send("go")
        await ana.wait_idle()
        assert [row.sent for row in world.rows("carried", "ana")] == [True]


@pytest.mark.behaviour("R-12")
async def test_a_death_with_the_request_out_counts_what_it_carried_as_read(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open():
        ana = await world.add([gate, reply("again")])
        await ana.send("go")
        await gate.wait_entered()
        world.ref("agent").kill()
        await ana.wait_idle()
        assert [row.sent for row in world.rows("carried", "ana")] == [None, True]
        (head,) = world.rows("leases", "ana")
        assert head.read == ((1, 1),)


@pytest.mark.behaviour("R-13", "D-013", "D-074")
@pytest.mark.parametrize("door", ["an agent", "an ephemeral run"])
async def test_an_adapter_that_declares_nothing_registers_nowhere_and_is_never_called(
    door: str, world: World, virtual_time: MockClock
) -> None:
    provider = ScriptedProvider([reply("never")])
    spec = AgentSpec(name="ana", provider=provider, model="m")
    del provider.carries_injections
    with pytest.raises(InvalidSpecError) as caught:
        replace(spec, name="bo")
    assert caught.value.field == "provider.carries_injections"
    async with world.open() as runtime:
        register = partial(runtime.add_agent, spec)
        run = partial(runtime.run_ephemeral, spec, "go")
        with pytest.raises(InvalidSpecError) as caught:
            await (register if door == "an agent" else run)()
        assert caught.value.field == "provider.carries_injections"
        assert runtime.status().agents == ()
        assert provider.requests == []


@pytest.mark.behaviour("D-014", "R-13")
@pytest.mark.parametrize("first", [True, False], ids=["carried before", "carries now"])
async def test_what_an_earlier_provider_carried_says_nothing_of_the_next_ones_turns(
    first: bool, world: World, virtual_time: MockClock
) -> None:
    requests = []
    for carries in (first, not first):
        stop = Stop()
        async with world.open():
            ana = await world.add(
                [call_tool("wait"), reply("Done"), reply("heard")],
                tools=[stop.tool()],
                carries_injections=carries,
            )
            await ana.send("go")
            await stop.entered.wait()
            await ana.send("meanwhile")
            stop.go.set()
            await ana.wait_idle()
            requests.append(texts(world.providers[-1].requests[1]))
    assert [request[-1] == "user: meanwhile" for request in requests] == [first, not first]


@pytest.mark.behaviour("R-12")
async def test_a_receipt_says_whether_its_message_was_read(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(then=reply("done"))
    async with world.open():
        ana = await world.add([gate])
        note = await ana.send("note", wake=False)
        assert not note.read
        assert not (await ana.receipt(note.id)).read
        await ana.send("go")
        await gate.wait_entered()
        assert not (await ana.receipt(note.id)).read, "its request is out and not settled"
        gate.release()
        await ana.wait_idle()
        assert (await ana.receipt(note.id)).read


async def test_a_long_backlog_is_read_in_one_look_at_each_message() -> None:
    desk = BookDesk()
    desk.fill(2_000, wake=False)
    desk.accept("go")
    turn = desk.start(prefixes=False)
    assert len(desk.book.unread) == 2_001
    desk.record(turn, 1, "done", prefixes=False)
    assert desk.book.unread == {}
