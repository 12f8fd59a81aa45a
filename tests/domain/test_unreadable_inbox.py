"""A message that waits and whose own row cannot be read: it leaves, and its agent goes on.

The damage is done to the file, as in `test_bad_rows`: while nobody has it open, or under a runtime
while its writer has nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Runtime
from abeyance.actors.core.errors import MessageNotKeptError
from abeyance.actors.testing import Faults, call_tool, reply
from abeyance.storage import codec
from abeyance.storage.check import check
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Value
from abeyance.storage.tables import TABLES

from .damage import DAMAGES, damage, spoil
from .test_conversations import leave_in_inbox
from .world import Stop, World, shown, until

each_damage = pytest.mark.parametrize("how", DAMAGES)


@contextmanager
def stopped(world: World) -> Iterator[LmdbStore]:
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms)
    try:
        yield store
    finally:
        store.close()


async def left_behind(world: World, *, wake: bool) -> None:
    """What a death left: three messages that were accepted, the second of them damaged next."""
    async with world.open():
        for place, word in enumerate("abc", 1):
            leave_in_inbox(world, word, word, place, wake=wake)


def letter_of(runtime: Runtime) -> Any:
    (letter,) = runtime.dead_letters()
    return letter


async def check_dead(ana: AgentHandle, letter: Any, message: str = "b") -> None:
    receipt = await ana.receipt(message)
    assert (receipt.state, receipt.cause) == ("dead", letter.reason)
    assert "inbox" in letter.reason


@pytest.mark.behaviour("R-3", "D-061")
@each_damage
async def test_a_waiting_row_that_cannot_be_read_is_a_dead_letter_and_its_agent_goes_on(
    world: World, virtual_time: MockClock, how: str
) -> None:
    await left_behind(world, wake=True)
    damage(world.directory, world.clock, "inbox", ("ana", 2), how)
    async with world.open() as runtime:
        ana = await world.add([reply("heard"), reply("again")])
        with trio.fail_after(300):
            await ana.wait_idle()
        assert await shown(ana) == ["user: a", "user: c", "assistant: heard"]
        assert world.rows("wakes") == world.rows("inbox") == []
        letter = letter_of(runtime)
        assert letter.message == "message 'b' by 'user'"
        await check_dead(ana, letter)
        # Its wake says whose it is and where an answer belongs: it can be sent again.
        await runtime.replay_dead_letter(letter.id, requester="ops")
        with trio.fail_after(300):
            await until(lambda: len(world.rows("slots", "ana")) == 5)
        assert (await shown(ana))[-2:] == ["user: b", "assistant: again"]
    with stopped(world) as store:
        assert not check(store).findings


@pytest.mark.behaviour("R-3")
@each_damage
async def test_a_waiting_row_that_nothing_says_the_author_of_is_kept_as_text_and_never_guessed(
    world: World, virtual_time: MockClock, how: str
) -> None:
    await left_behind(world, wake=False)
    damage(world.directory, world.clock, "inbox", ("ana", 2), how)
    async with world.open() as runtime:
        ana = await world.add([])
        with trio.fail_after(300):
            await until(lambda: bool(runtime.dead_letters()))
        assert await shown(ana) == ["user: a", "user: c"]
        letter = letter_of(runtime)
        assert letter.message == "message 'b', of which nothing says by whom: 'b'"
        await check_dead(ana, letter)
        with pytest.raises(MessageNotKeptError):
            await runtime.replay_dead_letter(letter.id, requester="ops")
    with stopped(world) as store:
        assert not check(store).findings


@pytest.mark.behaviour("R-3")
@each_damage
async def test_a_turn_that_only_an_unreadable_waiting_row_asked_for_never_starts(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        leave_in_inbox(world, "b", "b", 1, wake=True)
    damage(world.directory, world.clock, "inbox", ("ana", 1), how)
    async with world.open() as runtime:
        ana = await world.add([])
        with trio.fail_after(300):
            await until(lambda: bool(runtime.dead_letters()))
            await ana.wait_idle()
        await check_dead(ana, letter_of(runtime))
        assert world.turns() == []


@pytest.mark.behaviour("R-3")
async def test_a_waiting_row_whose_id_cannot_be_read_either_is_named_by_its_number(
    world: World, virtual_time: MockClock
) -> None:
    await left_behind(world, wake=False)
    with stopped(world) as store:
        for table, key in (("inbox", 2), ("ids", "b"), ("bodies", 2)):
            spoil(store, table, ("ana", key), DAMAGES[0])
        assert {finding.table for finding in check(store).findings} == {"inbox", "ids", "bodies"}
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        await ana.send("go")
        with trio.fail_after(300):
            await ana.wait_idle()
        assert await shown(ana) == ["user: a", "user: c", "user: go", "assistant: heard"]
        assert letter_of(runtime).message == "message number 2, of which nothing says by whom"
        with pytest.raises(UnreadableRecordError):
            await ana.receipt("b")


@pytest.mark.behaviour("R-3")
@each_damage
async def test_an_unreadable_waiting_row_holds_up_nobody_who_shares_its_slot(
    world: World, virtual_time: MockClock, how: str
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("Done")], slot="room", tools=[stop.tool()])
        bo = await world.add([reply("here")], "bo", slot="room")
        await ana.send("go")
        await stop.entered.wait()
        spoiled = await bo.send("b", id="b")
        await bo.send("c", id="c")
        await ana.send("a", id="a", wake=False)
        await trio.testing.wait_all_tasks_blocked()
        spoil(runtime._store, "inbox", ("room", spoiled.seq), how)
        # The slot is read anew, while the turn lives.
        world.ref("slot", "room").kill("a test")
        stop.go.set()
        with trio.fail_after(300):
            await ana.wait_idle()
            await bo.wait_idle()
        said = [line for line in await shown(ana) if line.startswith("user")]
        assert said == ["user: go", "user: c", "user: a"]
        letter = letter_of(runtime)
        assert letter.message == "message 'b' by 'user'"
        await check_dead(bo, letter)
        assert world.rows("wakes") == world.rows("inbox") == []


@pytest.mark.behaviour("R-3")
async def test_the_end_of_an_unreadable_waiting_row_is_tried_again_where_the_store_refuses_it(
    world: World, virtual_time: MockClock
) -> None:
    await left_behind(world, wake=False)
    damage(world.directory, world.clock, "inbox", ("ana", 2), DAMAGES[0])
    faults = Faults(seed=1)
    refused: list[float] = []

    def ends(requests: Any) -> bool:
        if not any(each.appends for each in requests) or len(refused) == 3:
            return False
        refused.append(trio.current_time())
        return True

    faults.at("before_commit", message=ends).refuse()
    async with world.open(faults=faults) as runtime:
        ana = await world.add([])
        await until(lambda: bool(refused))
        receipt = await ana.receipt("b")
        assert (receipt.state, receipt.cause) == ("held", "unreadable")
        told: list[Exception] = []

        async def retract() -> None:
            try:
                await ana.retract("b")
            except UnreadableRecordError as error:
                told.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(retract)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert len(told) == 1
        with trio.fail_after(300):
            await until(lambda: bool(runtime.dead_letters()))
        await check_dead(ana, letter_of(runtime))
        assert await shown(ana) == ["user: a", "user: c"]
        # At once would be as often as the disk can refuse.
        assert all(later - at >= 4 for at, later in itertools.pairwise(refused))


@pytest.mark.behaviour("R-3")
async def test_a_waiting_row_of_another_version_is_no_damage_and_stays_until_it_is_read(
    world: World, virtual_time: MockClock
) -> None:
    await left_behind(world, wake=True)
    with stopped(world) as store:
        write_newer(store, ("ana", 2))
    async with world.open() as runtime:
        for _ in range(2):
            with pytest.raises(UnreadableRecordError) as caught:
                await world.add([])
            assert (caught.value.table, caught.value.key) == ("inbox", ("ana", 2))
            assert caught.value.other_version
        assert not runtime.dead_letters()
    with stopped(world) as store:
        assert len(list(store.scan("inbox", ("ana",)))) == 3


def write_newer(store: LmdbStore, key: tuple[str, int]) -> None:
    """Write over a waiting row what a later version of this program would."""
    table, environment = TABLES["inbox"], store._environment
    kind, encoded = table.kinds[0], encode_key(table.key, key)
    body = codec.pack({"what": "later versions know"})
    value = Value(kind.KIND, kind.VERSION + 1, body, codec.checksum(body))
    with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        row = codec.frame("inbox", encoded, 1, value)
        transaction.put(encoded, row, db=environment.tables["inbox"])


@pytest.mark.behaviour("R-3")
async def test_a_page_of_unreadable_waiting_rows_leaves_and_what_is_readable_keeps_its_order(
    world: World, virtual_time: MockClock
) -> None:
    names = [f"m{number:03}" for number in range(200)]
    async with world.open() as runtime:
        for place, name in enumerate(names, 1):
            leave_in_inbox(world, name, name, place, wake=place % 2 == 0)
        for place in range(40, 120):
            spoil(runtime._store, "inbox", ("ana", place), DAMAGES[place % len(DAMAGES)])
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        with trio.fail_after(300):
            await ana.wait_idle()
            await until(lambda: not world.rows("inbox"))
        good = [f"user: {name}" for name in names[:39] + names[119:]]
        assert await shown(ana) == [*good, "assistant: heard"]
        dead = [letter.message.split("'")[1] for letter in runtime.dead_letters(limit=100)]
        assert dead == names[39:119][::-1]
        assert world.rows("wakes") == []
