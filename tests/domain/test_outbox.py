"""Outboxes: what agents said is given to a bridge in order, until it was acknowledged."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import HostedRuntime, OutboxReply, Runtime
from abeyance.actors.domain import outbox_rows
from abeyance.actors.domain.errors import (
    InvalidInputError,
    InvalidNameError,
    NotStoredError,
    OutboxBusyError,
    OutboxLostError,
    RuntimeClosedError,
    UnknownAgentError,
    UnknownMessageError,
    UnknownOutboxError,
)
from abeyance.actors.testing import Faults, ScriptedProvider, WallClock, call_tool, reply
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.errors import RevisionPrunedError, UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.ownership import Owner

from .damage import DAMAGES, damage
from .world import World, tool, until

each_damage = pytest.mark.parametrize("how", DAMAGES)


async def says(agent: Any, *texts: str, **how: Any) -> None:
    for text in texts:
        await agent.send(text, **how)
        await agent.wait_idle()


async def take(outbox: Any, count: int, *, acks: bool = True) -> list[OutboxReply]:
    taken: list[OutboxReply] = []
    async for each in outbox:
        taken.append(each)
        if acks:
            await each.done()
        if len(taken) == count:
            break
    return taken


async def texts(outbox: Any, count: int, *, acks: bool = True) -> list[str]:
    return [each.text for each in await take(outbox, count, acks=acks)]


async def pending(runtime: Runtime, name: str = "chat") -> int:
    (lag,) = [each.lag for each in await runtime.outboxes() if each.name == name]
    return lag


def echo(world: World) -> Any:
    return ScriptedProvider.echo()


# -- what is given -------------------------------------------------------------------------------


async def test_replies_are_given_in_order_with_where_they_belong(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(echo(world))
        await says(ana, "one", "two", channel="c1")
        first, second = await take(outbox, 2)
        rows = [row async for row in ana.transcript() if row.role == "assistant"]
        assert [(each.id, each.text, each.seq) for each in (first, second)] == [
            (row.id, row.text, row.seq) for row in rows
        ]
        assert (first.agent, first.channel, first.turn, first.round, first.final) == (
            "ana",
            "c1",
            1,
            1,
            True,
        )
        assert first.at_ms == rows[0].at_ms


async def test_what_is_no_reply_with_words_is_not_given(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(
            [call_tool("look"), reply("seen"), reply("on")], tools=[tool("look", lambda: "a tree")]
        )
        await ana.send("in the agent's name", author="ana", wake=False)
        await says(ana, "look", "go on")
        assert await texts(outbox, 2) == ["seen", "on"]


async def test_what_a_fork_took_over_is_given_once_and_what_it_says_is_its_own(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat", begin="first") as outbox:
        ana = await world.add(echo(world))
        await says(ana, "one")
        fork = await runtime.open_conversation("ana", channel="c1")
        await says(fork, "two")
        await fork.close()
        given = await take(outbox, 2)
        assert [(each.agent == "ana", each.text, each.channel) for each in given] == [
            (True, "one", None),
            (False, "two", "c1"),
        ]
        assert await pending(runtime) == 0


async def test_agents_that_share_a_slot_have_their_own_replies(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        for name in ("ana", "bo"):
            await says(await world.add([reply(name)] * 2, name, slot="room"), "hello")
        outbox = runtime.outbox("chat", "bo", begin="first")
        assert await texts(outbox, 1) == ["bo"]
        assert await pending(runtime) == 0


async def test_an_outbox_of_all_agents_has_those_that_come_later_from_their_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add(echo(world))
        await says(ana, "before")
        async with runtime.outbox("chat"):
            pass
        bo = await world.add(echo(world), "bo")
        await says(bo, "hello")
        await says(ana, "after")
        async with runtime.outbox("chat") as outbox:
            assert sorted(await texts(outbox, 2)) == ["after", "hello"]


async def test_an_outbox_that_is_open_has_who_comes_meanwhile_in_a_slot_of_others_too(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        given: list[str] = []

        async def read() -> None:
            given.extend(await texts(outbox, 3))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await until(lambda: bool(runtime._outboxes._waiting))
                for name, slot in (("ana", None), ("bo", "room"), ("cy", "room")):
                    more = {} if slot is None else {"slot": slot}
                    await says(await world.add([reply(name)] * 3, name, **more), "hello")
        assert sorted(given) == ["ana", "bo", "cy"]


async def test_a_reader_that_waits_is_told_of_a_reply_at_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(echo(world))
        given: list[float] = []

        async def read() -> None:
            await take(outbox, 1)
            given.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: bool(runtime._outboxes._waiting))
            await ana.send("one")
            await ana.wait_idle()
            stored = trio.current_time()
        assert given[0] - stored < 0.5


async def test_an_agent_that_says_much_keeps_no_other_waiting(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana, bo = await world.add(echo(world)), await world.add(echo(world), "bo")
        await says(ana, *"abcdef")
        await says(bo, "x")
        assert "x" in await texts(outbox, 2)


async def test_nobody_waits_for_a_slow_bridge(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(echo(world))
        await says(ana, "one")
        await take(outbox, 1, acks=False)
        await says(ana, *(str(number) for number in range(20)))
        assert await pending(runtime) == 21


# -- where one begins and goes on ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "given"),
    [("now", ["three"]), ("first", ["one", "two", "three"]), ("m2", ["two", "three"])],
    ids=["now", "first", "behind a message"],
)
async def test_a_new_outbox_begins_where_it_was_told_and_only_then(
    world: World, virtual_time: MockClock, begin: str, given: list[str]
) -> None:
    async with world.open() as runtime:
        ana = await world.add(echo(world))
        await says(ana, "one")
        await says(ana, "two", id="m2")
        async with runtime.outbox("chat", "ana", begin=begin):
            pass
        await says(ana, "three")
        async with runtime.outbox("chat", "ana", begin="now") as outbox:
            assert await texts(outbox, len(given)) == given


async def test_what_was_not_acknowledged_is_given_again_after_a_restart_under_its_id(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        await says(await world.add(echo(world)), "one", "two", "three")
        first, second, third = await take(outbox, 3, acks=False)
        await first.done()
        await first.done()
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        again = await take(outbox, 2, acks=False)
        assert [each.id for each in again] == [second.id, third.id]
        await again[1].done()  # And with it the one ahead of it.
        assert await pending(runtime) == 0
        await again[0].done()
        assert await pending(runtime) == 0


async def test_rewound_replies_are_not_given_and_what_comes_behind_them_is(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(echo(world))
        await says(ana, "one")
        (one,) = await take(outbox, 1)
        await says(ana, "two")
        await ana.rewind(one.seq, requester="ops")
        await says(ana, "three")
        assert await texts(outbox, 1) == ["three"]
        assert await pending(runtime) == 0


async def test_a_rewind_that_is_undone_gives_what_was_not_given_and_repeats_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        ana = await world.add(echo(world))
        await says(ana, "one", "two")
        await take(outbox, 1)
        await ana.rewind(0, requester="ops")
        with trio.move_on_after(5) as given:
            await take(outbox, 1)
        assert given.cancelled_caught
        await ana.undo_rewind(requester="ops")
        assert await texts(outbox, 1) == ["two"]
        assert await pending(runtime) == 0


async def test_a_removed_agents_outbox_gives_the_rest_and_ends_and_goes_on_once_it_is_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add(echo(world))
        async with runtime.outbox("chat", "ana", begin="first"):
            pass
        await says(ana, "one", "two")
        await runtime.remove_agent("ana")
        assert [each.text async for each in runtime.outbox("chat", "ana")] == ["one", "two"]
        async with runtime.outbox("chat", "ana") as outbox:
            await take(outbox, 2)
        await says(await world.add(echo(world)), "three")
        async with runtime.outbox("chat", "ana") as outbox:
            assert await texts(outbox, 1) == ["three"]


async def test_an_outbox_ends_with_its_runtime(world: World, virtual_time: MockClock) -> None:
    async with trio.open_nursery() as nursery, world.open() as runtime:
        outbox = runtime.outbox("chat")
        nursery.start_soon(take, outbox, 1)
        await until(lambda: bool(runtime._outboxes._waiting))
    assert [each async for each in outbox] == []
    with pytest.raises(RuntimeClosedError):
        runtime.outbox("chat")


async def test_changes_that_are_not_known_any_more_have_everything_looked_at(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        await says(await world.add(echo(world)), "one")

        def gone(after: int, limit: int = 1000) -> Any:
            raise RevisionPrunedError("gone", after=after, oldest=after + 9)

        with monkeypatch.context() as patched:
            patched.setattr(runtime._store, "changes", gone)
            assert await texts(outbox, 1) == ["one"]
            with trio.move_on_after(5):
                await take(outbox, 1)
            assert outbox._dirty == {}
            await says(world.runtime.agent("ana"), "two")
            assert await texts(outbox, 1) == ["two"]


# -- one reader ----------------------------------------------------------------------------------


async def test_an_outbox_has_one_reader_at_a_time(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        async with runtime.outbox("chat") as first:
            for again in (runtime.outbox("chat"), first):
                with pytest.raises(OutboxBusyError, match="in this process"):
                    await again.__aenter__()
            with pytest.raises(OutboxBusyError):
                await runtime.remove_outbox("chat")
            await says(await world.add(echo(world)), "one")
            (one,) = await take(first, 1, acks=False)
        with pytest.raises(OutboxLostError, match="closed"):
            await one.done()
        assert await pending(runtime) == 1
        async with runtime.outbox("chat") as second:
            assert (await take(second, 1))[0].id == one.id


async def test_a_loop_alone_opens_its_outbox_and_lets_go_of_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await says(await world.add(echo(world)), "one", "two")
        async for each in runtime.outbox("chat", begin="first"):
            assert each.text == "one"
            assert (await runtime.outboxes())[0].is_read
            break
        del each
        assert not (await runtime.outboxes())[0].is_read
        assert await texts(runtime.outbox("chat"), 2) == ["one", "two"]


async def test_a_reader_whose_outbox_another_process_has_stores_nothing_more(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        await says(await world.add(echo(world)), "one")
        (one,) = await take(outbox, 1, acks=False)
        owner = Put("owners", ("outbox", "chat"), encode(Owner(nonce="another", fence=9)))
        await runtime._journal.ask(Request(puts=(owner,)))
        with pytest.raises(OutboxLostError, match="another process"):
            await one.done()
        assert runtime._store.get("cursors", ("chat", "ana", "ana")) is None
        assert [each async for each in outbox] == [], "it reads no more"


async def test_an_outbox_of_a_process_that_lives_is_refused_by_its_pid(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        async with runtime.outbox("chat"):
            pass
        other = await trio.run_process(
            [
                sys.executable,
                "-c",
                "import sys, trio\n"
                "from abeyance.actors import open_runtime\n"
                "async def main():\n"
                "    async with open_runtime(sys.argv[1], control=False) as runtime:\n"
                "        (each,) = await runtime.outboxes()\n"
                "        try:\n"
                "            await runtime.outbox('chat').__aenter__()\n"
                "        except Exception as error:\n"
                "            print(type(error).__name__, error.pid == each.pid)\n"
                "trio.run(main)\n",
                str(world.directory),
            ],
            capture_stdout=True,
        )
        assert other.stdout == b"OutboxBusyError True\n"


# -- looking and removing ------------------------------------------------------------------------


async def test_a_listing_says_how_far_each_outbox_is(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        assert await runtime.outboxes() == ()
        ana = await world.add(echo(world))
        async with runtime.outbox("chat", "ana") as outbox:
            await says(ana, "one")
            stored_ms = world.clock.now_ms()
            world.clock.advance(1)
            await says(ana, "two")
            (status,) = await runtime.outboxes()
            assert (status.name, status.agent, status.is_read) == ("chat", "ana", True)
            assert (status.lag, status.oldest_ms, status.unreadable) == (2, stored_ms, ())
            await take(outbox, 2)
        (status,) = await runtime.outboxes()
        assert (status.is_read, status.lag, status.oldest_ms) == (False, 0, None)


async def test_a_removed_outbox_begins_anew(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_rows, "ROWS_A_COMMIT", 2)
    async with world.open() as runtime:
        agents = [await world.add(echo(world), f"a{number}") for number in range(5)]
        for agent in agents:
            await says(agent, "one")
        async with runtime.outbox("chat"):
            pass
        assert len(world.rows("cursors")) == 5
        await runtime.remove_outbox("chat", requester="ops")
        assert await runtime.outboxes() == ()
        assert world.rows("cursors") == []
        with pytest.raises(UnknownOutboxError):
            await runtime.remove_outbox("chat", requester="ops")
        async with runtime.outbox("chat", begin="first") as outbox:
            assert await texts(outbox, 5) == ["one"] * 5


async def test_cursors_that_a_removal_left_over_count_for_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await says(await world.add(echo(world)), "one")
        async with runtime.outbox("chat"):
            pass
        left = Request(deletes=(outbox_rows.Delete("outboxes", ("chat",)),))
        await runtime._journal.ask(left)
        async with runtime.outbox("chat", begin="first") as outbox:
            assert await texts(outbox, 1) == ["one"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("",), InvalidNameError),
        (("x" * 129,), InvalidNameError),
        ((7,), InvalidNameError),
        (("chat", ""), InvalidNameError),
        (("chat", None, "m1"), InvalidInputError),
        (("chat", "nobody"), UnknownAgentError),
        (("chat", "ana", "no such message"), UnknownMessageError),
        (("chat", "ana", -1), InvalidInputError),
        (("all", "ana"), InvalidInputError),
    ],
    ids=str,
)
async def test_what_names_no_outbox_is_refused_and_begins_none(
    world: World, virtual_time: MockClock, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    async with world.open() as runtime:
        await world.add(echo(world))
        async with runtime.outbox("all"):
            pass
        name, agent, begin = (*arguments, None, "now")[:3] if len(arguments) < 3 else arguments
        with pytest.raises(error):
            async with runtime.outbox(name, agent, begin=begin):
                pass
        assert [each.name for each in await runtime.outboxes()] == ["all"]
        async with runtime.outbox("chat", "ana"):
            pass


# -- faults --------------------------------------------------------------------------------------


async def test_an_acknowledgement_that_is_not_stored_can_be_given_again(
    world: World, virtual_time: MockClock
) -> None:
    faults = Faults()
    async with world.open(faults=faults) as runtime, runtime.outbox("chat") as outbox:
        await says(await world.add(echo(world)), "one")
        (one,) = await take(outbox, 1, acks=False)
        faults.at("before_commit").refuse()
        with pytest.raises(NotStoredError):
            await one.done()
        faults.clear()
        assert await pending(runtime) == 1
        await one.done()
        assert await pending(runtime) == 0


@each_damage
@pytest.mark.parametrize("table", ["cursors", "slots"])
async def test_bad_row_stops_the_agent_it_is_of_and_no_other(
    world: World,
    virtual_time: MockClock,
    how: str,
    table: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world.open() as runtime, runtime.outbox("chat") as outbox:
        for name in ("ana", "bo"):
            await says(await world.add(echo(world), name), f"{name} 1", f"{name} 2")
        await take(outbox, 2)
    if table == "cursors":
        damage(world.directory, world.clock, "cursors", ("chat", "ana", "ana"), how)
    else:
        damage(world.directory, world.clock, "slots", ("ana", 4), how)
    with caplog.at_level(logging.ERROR):
        async with world.open() as runtime, runtime.outbox("chat") as outbox:
            assert await texts(outbox, 1) == ["bo 2"]
            with trio.move_on_after(5) as given:
                await take(outbox, 1)
            assert given.cancelled_caught
            (status,) = await runtime.outboxes()
            assert (status.lag, status.unreadable) == (0, ("ana",))
    stands = [each for each in caplog.records if "stands at 'ana'" in each.message]
    assert len(stands) == 1, "it is told of once, not at every look"


@each_damage
async def test_bad_row_of_an_outbox_is_named_and_it_can_be_removed(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime, runtime.outbox("chat"), runtime.outbox("other"):
        pass
    damage(world.directory, world.clock, "outboxes", ("chat",), how)
    async with world.open() as runtime:
        with pytest.raises(UnreadableRecordError) as caught:
            await runtime.outbox("chat").__aenter__()
        assert (caught.value.table, caught.value.key) == ("outboxes", ("chat",))
        assert [each.name for each in await runtime.outboxes()] == ["other"]
        await runtime.remove_outbox("chat", requester="ops")
        async with runtime.outbox("chat"):
            pass


def live(directory: Path, posts: Path, messages: int, point: str) -> int:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.domain.children.posting",
            *(str(directory), str(posts), str(messages), point),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
def test_bridge_that_is_killed_posts_each_reply_at_least_once_in_order(tmp_path: Path) -> None:
    """Killed at each place between a reply and its acknowledgement, one life after the other."""
    state, posts = tmp_path / "state", tmp_path / "posts"
    deaths = {
        # Where it dies, and what it posts in that life: of three replies that are stored.
        "outbox.given:1": [],
        "host.posted": ["0"],
        "writer.before_commit:1": ["0"],
        "writer.after_commit:1": ["0"],
        "outbox.given:2": ["1"],
        "outbox.acknowledged:1": ["2"],
    }
    said: list[str] = []
    for point, posted in deaths.items():
        assert live(state, posts, 3, point) == -signal.SIGKILL, point
        said += posted
        lines = posts.read_text().splitlines() if posts.exists() else []
        assert [line.split()[1] for line in lines] == said, point
    assert live(state, posts, 4, "outbox.given:100") == 0
    lines = posts.read_text().splitlines()
    ids = dict.fromkeys(lines)
    assert [line.split()[1] for line in ids] == ["0", "1", "2", "3"]
    assert len({line.split()[0] for line in ids}) == 4, "a repeat has the id of what it repeats"
    store = LmdbStore.open(state, clock_ms=WallClock().now_ms)
    try:
        assert check(store).findings == ()
        assert store.get("cursors", ("chat", "ana", "ana")).record.seq == 8  # type: ignore[union-attr]
    finally:
        store.close()


# -- threads -------------------------------------------------------------------------------------


def test_threaded_host_has_the_same(tmp_path: Path) -> None:
    from abeyance.actors import AgentSpec

    with HostedRuntime(tmp_path, control=False) as host:
        spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
        ana = host.add_agent(spec)
        with host.outbox("chat") as outbox:
            for text in ("one", "two"):
                ana.send(text)
                ana.wait_idle()
            given = iter(outbox)
            first, second = next(given), next(given)
            first.done()
            assert (host.outboxes()[0].lag, host.outboxes()[0].is_read) == (1, True)
            outbox.ack(second)
        assert [(each.lag, each.is_read) for each in host.outboxes()] == [(0, False)]
        host.remove_outbox("chat", requester="ops")
        assert host.outboxes() == ()
