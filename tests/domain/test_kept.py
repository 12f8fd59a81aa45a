"""What the kernel could not deliver, reminders, and deliveries that end the process: as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    MessageNotKeptError,
    Reminder,
    ReplaysExceededError,
    SupervisorSpec,
    TrioActor,
    UnknownEntryError,
)
from abeyance.actors.domain.archive_book import (
    ArchiveBook,
    message_text,
    pack_message,
    traceback_text,
)
from abeyance.actors.domain.errors import InvalidInputError, InvalidMessageError
from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Guard, Put, Request, Value

from ..lives import KILLED, lived
from .children import kept
from .children.kept import FAR_MS, Act
from .world import World, until

CHILD = Path(__file__).parent / "children" / "kept.py"


class Host(TrioActor):
    """A host's actor that crashes until it is mended."""

    @classmethod
    def make_kept(cls) -> dict[str, Any]:
        return {"seen": [], "mended": False, "reminders": []}

    def on_receive(self, message: Any) -> Any:
        match message:
            case Reminder():
                self.kept["reminders"].append((message.name, message.message, message.due_ms))
            case {"remind": arguments}:
                self.remind(**arguments)
            case {"forget": name}:
                self.forget_reminder(name)
            case {"crash": _} | ("crash", _) if not self.kept["mended"]:
                raise ValueError("crash \x1b[31mred")
            case _:
                self.kept["seen"].append(message)
        return message


async def start(world: World, name: str = "host", **options: Any) -> Any:
    spec = SupervisorSpec(
        id=f"group {name}",
        children=(ChildSpec("host", Host, name=name, **options),),
        intensity=50,
        backoff=Backoff(0.01),
    )
    supervisor = await world.runtime._system.start_supervisor(spec)
    return supervisor.refs["host"]


async def stored(world: World) -> None:
    """What was told so far is in rows."""
    archive = world.ref("archive")
    await until(lambda: not (archive.statistics().queued or archive.statistics().owed))
    await world.runtime._journal.ask(Request())


async def crashed(world: World, host: Any, message: Any) -> int:
    host.tell(message)
    await host.ask("sync")
    await stored(world)
    return world.runtime.quarantine()[0].id


# -- rows


async def test_crashed_message_is_a_row_with_traceback_and_incarnation(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await crashed(world, await start(world), {"crash": [1]})
        (entry,) = runtime.quarantine()
    assert (entry.id, entry.kind, entry.actor, entry.reason) == (
        1,
        "quarantine",
        "host",
        "ValueError",
    )
    assert (entry.incarnation, entry.deliveries, entry.replays) == (1, 1, 0)
    assert entry.message == "{'crash': [1]}"
    assert entry.replayable
    assert 'raise ValueError("crash' in entry.error
    assert "\x1b" not in entry.error
    async with world.open() as runtime:
        assert runtime.quarantine() == (entry,)


async def test_unhandled_message_is_a_row_with_its_reason(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        gone = runtime._system.start(Host, name="gone")
        gone.tell("left")
        gone.stop(now=True)
        await gone.stopped()
        await stored(world)
        (entry,) = runtime.dead_letters()
        assert (entry.actor, entry.reason, entry.message) == ("gone", "stopped", "'left'")
        assert (entry.error, entry.incarnation, entry.deliveries) == ("", None, None)


async def test_what_dies_with_the_system_after_the_archive_is_a_row_all_the_same(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        gone = runtime._system.start(Host, name="gone")
        gone._cell.shutdown_s = 0.1

        async def hang(_message: Any) -> None:
            await trio.sleep_forever()

        await gone.ask("started")
        gone._cell.actor.on_receive = hang
        gone.stop()
        gone.stop()
        other = runtime._system.start(Hanging, name="hanging")
        other.tell("first")
        other.tell("second")
        await trio.sleep(0.01)
    async with world.open() as runtime:
        rows = [*runtime.dead_letters(), *runtime.quarantine()]
        assert sorted(row.message for row in rows) == ["'first'", "'second'"]


@pytest.mark.parametrize("journal_has", ["nothing else out", "another batch out", "ended"])
async def test_entry_that_outlasts_archive_and_journal_is_one_row_whatever_the_writer_had(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    journal_has: str,
) -> None:
    submit, close = LmdbStore.submit, ArchiveBook.close
    stuck: list[Any] = []
    is_stuck = False

    def submit_or_hang(store: Any, batch: Any, done: Any) -> None:
        if is_stuck:
            stuck.append((store, batch, done))
        else:
            submit(store, batch, done)

    def close_when_it_goes_on(book: ArchiveBook) -> None:
        nonlocal is_stuck
        if is_stuck:
            is_stuck = False
            for each in stuck:
                submit(*each)
        close(book)

    monkeypatch.setattr(LmdbStore, "submit", submit_or_hang)
    monkeypatch.setattr(ArchiveBook, "close", close_when_it_goes_on)
    async with world.open() as runtime:
        host = await start(world)
        await world.runtime._journal.ask(Request())
        is_stuck = True
        if journal_has == "another batch out":
            runtime._journal.ask(Request())
            await wait_all_tasks_blocked()
        if journal_has == "ended":
            runtime._journal._cell.box.close()
        host.tell({"crash": 1})
        await host.ask("sync")
        await wait_all_tasks_blocked()
        assert len(stuck) == (journal_has != "ended")
    async with world.open() as runtime:
        assert [row.message for row in runtime.quarantine()] == ["{'crash': 1}"]
        assert {row.actor for row in runtime.dead_letters()} <= {"journal"}


class Hanging(TrioActor):
    async def on_receive(self, message: Any) -> None:
        await trio.sleep_forever()


async def test_message_that_is_no_plain_data_stays_in_this_process_and_its_row_has_its_text(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        host = await start(world)
        number = await crashed(world, host, ("crash", "tuple"))
        (entry,) = runtime.quarantine()
        assert entry.replayable
        host._cell.kept["mended"] = True
        await runtime.replay_quarantined(number, requester="ops")
        await host.ask("sync")
        assert ("crash", "tuple") in host._cell.kept["seen"]
        host._cell.kept["mended"] = False
        second = await crashed(world, host, ("crash", "again"))
    async with world.open() as runtime:
        await start(world)
        assert [row.replayable for row in runtime.quarantine()] == [False, False]
        assert runtime.quarantine()[0].message == "('crash', 'again')"
        with pytest.raises(MessageNotKeptError) as caught:
            await runtime.replay_quarantined(second, requester="ops")
        assert caught.value.entry == second
        assert runtime.quarantine()[0].replays == 0


@pytest.mark.parametrize(
    ("message", "comes_back"),
    [
        ({"a": [1, 2.5, None, True, "é", b"x", {}]}, True),
        (float("nan"), True),
        ((1, 2), False),
        ({"deep": [(1,)]}, False),
        ({1, 2}, False),
        (object(), False),
        (2**70, False),
        ("\ud800", False),
        (b"x" * 300_000, False),
        (Act("a", "b"), False),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_only_what_comes_back_as_it_was_is_stored(message: Any, comes_back: bool) -> None:
    assert (pack_message(message) is not None) is comes_back


def test_text_of_a_message_is_bounded_and_cannot_fail() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    assert message_text(Bad()) == "<Bad, whose repr failed: RuntimeError>"
    assert len(message_text("x" * 10_000)) == 4_000
    assert len(traceback_text("line\x07\n" * 5_000)) <= 8_000
    assert "\x07" not in traceback_text("line\x07\n" * 5_000)


async def test_rows_wait_out_a_store_that_takes_nothing(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from abeyance.storage.errors import DiskFullError
    from abeyance.storage.store import NotStored

    async with world.open() as runtime:
        host = await start(world)
        submit, full = LmdbStore.submit, [True]

        def submit_or_fail(store: Any, batch: Any, done: Any) -> None:
            if full and any(request.appends for request in batch):
                done([NotStored(DiskFullError("full; nothing was stored", path="x"))] * len(batch))
            else:
                submit(store, batch, done)

        monkeypatch.setattr(LmdbStore, "submit", submit_or_fail)
        host.tell({"crash": 1})
        await host.ask("sync")
        await trio.sleep(12)
        assert runtime.quarantine() == ()
        full.clear()
        await trio.sleep(12)
        await stored(world)
        assert [row.message for row in runtime.quarantine()] == ["{'crash': 1}"]


async def test_entry_is_one_row_whenever_the_archive_crashes(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        host = await start(world)
        archive = world.ref("archive")
        for n in range(12):
            host.tell({"crash": n})
            await host.ask("sync")
            if n % 2:
                archive.kill()
            await trio.sleep(60)
        await stored(world)
        seen = sorted(row.message for row in runtime.quarantine())
        assert seen == sorted(f"{{'crash': {n}}}" for n in range(12))


# -- listing


async def test_listing_is_newest_first_and_in_pages(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        host = await start(world)
        for n in range(5):
            await crashed(world, host, {"crash": n})
        assert [row.id for row in runtime.quarantine(limit=2)] == [5, 4]
        assert [row.id for row in runtime.quarantine(limit=2, before=4)] == [3, 2]
        assert [row.id for row in runtime.quarantine(before=1)] == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1_001}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "1"}, "limit"),
        ({"before": 0}, "before"),
        ({"before": "x"}, "before"),
    ],
    ids=str,
)
async def test_page_out_of_bounds_is_refused_by_field(
    world: World, virtual_time: MockClock, arguments: Any, field: str
) -> None:
    async with world.open() as runtime:
        for listing in (runtime.dead_letters, runtime.quarantine):
            with pytest.raises(InvalidInputError) as caught:
                listing(**arguments)
            assert caught.value.field == field


async def test_unreadable_row_is_listed_as_such_and_hides_no_other(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        host = await start(world)
        for n in range(3):
            await crashed(world, host, {"crash": n})
        store = runtime._store
        damage(store, "quarantine", 2)
        assert [row.reason for row in runtime.quarantine()] == [
            "ValueError",
            "unreadable",
            "ValueError",
        ]
        with pytest.raises(MessageNotKeptError):
            await runtime.replay_quarantined(2, requester="ops")
        assert [finding.table for finding in check(store).findings] == ["quarantine"]


def damage(store: LmdbStore, table: str, number: int) -> None:
    """Put a record of a later version over a row, which this one does not read."""
    from abeyance.storage.codec import encode
    from abeyance.storage.tables.kept import Quarantined

    record = Quarantined(actor="x", incarnation=1, message="m", error="e", at_ms=1)
    made = encode(record)
    value = Value(made.kind, 99, made.body, made.body_crc)
    guard = Guard(table, (number,), 1)
    store.commit(Request(guards=(guard,), puts=(Put(table, (number,), value),)))


# -- replays


async def test_replay_from_an_earlier_life_is_handled_and_counted(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        number = await crashed(world, await start(world), {"crash": "x"})
    async with world.open() as runtime:
        host = await start(world)
        host._cell.kept["mended"] = True
        entry = await runtime.replay_quarantined(number, requester="ops\x1b[0m\n")
        assert entry.replays == 1
        await host.ask("sync")
        assert host._cell.kept["seen"] == [{"crash": "x"}, "sync"]
        (record,) = world.rows("quarantine")
        assert (record.replays, record.replayed_by) == (1, "api:ops [0m")
        assert [line.text for line in world.rows("log")] == ["quarantine 1 by api:ops [0m"]
    async with world.open() as runtime:
        await start(world)
        with pytest.raises(ReplaysExceededError) as caught:
            await runtime.replay_quarantined(number, requester="ops")
        assert (caught.value.entry, caught.value.replays) == (1, 1)


async def test_replay_that_dies_again_is_a_row_that_names_its_origin(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        number = await crashed(world, await start(world), {"crash": "x"})
    async with world.open() as runtime:
        host = await start(world)
        await runtime.replay_quarantined(number, requester="ops")
        await host.ask("sync")
        await stored(world)
        newest, first = runtime.quarantine()
        assert (first.id, first.replays, first.origin) == (1, 1, None)
        assert (newest.id, newest.replays) == (2, 0)
        assert (newest.origin_kind, newest.origin) == ("quarantine", 1)


async def test_replay_of_a_dead_letter_goes_to_the_actor_that_has_its_name_now(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        gone = runtime._system.start(Host, name="gone")
        gone.tell("left")
        gone.stop(now=True)
        await gone.stopped()
        await stored(world)
        with pytest.raises(ActorDeadError):
            await runtime.replay_dead_letter(1, requester="ops")
        assert runtime.dead_letters()[0].replays == 0
        heir = runtime._system.start(Host, name="gone")
        await runtime.replay_dead_letter(1, requester="ops")
        await heir.ask("sync")
        assert heir._cell.kept["seen"] == ["left", "sync"]


async def test_replays_of_one_row_that_race_send_it_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        host = await start(world)
        number = await crashed(world, host, {"crash": "x"})
        host._cell.kept["mended"] = True
        outcomes: list[str] = []

        async def replay() -> None:
            try:
                await runtime.replay_quarantined(number, requester="ops")
                outcomes.append("sent")
            except ReplaysExceededError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(replay)
        await host.ask("sync")
        assert sorted(outcomes) == ["refused"] * 4 + ["sent"]
        assert host._cell.kept["seen"].count({"crash": "x"}) == 1


async def test_replay_that_nobody_takes_is_counted_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        host = await start(world)
        number = await crashed(world, host, {"crash": "x"})
        host._cell.box.room = host._cell.box.capacity = 0
        with pytest.raises(Exception, match="holds 0 messages"):
            await runtime.replay_quarantined(number, requester="ops")
        host._cell.box.room = host._cell.box.capacity = 10
        assert runtime.quarantine()[0].replays == 0
        assert (await runtime.replay_quarantined(number, requester="ops")).replays == 1


@pytest.mark.parametrize("number", [0, -1, True, "1", 2**63], ids=str)
async def test_replay_of_no_number_is_refused_by_field(
    world: World, virtual_time: MockClock, number: Any
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidInputError) as caught:
            await runtime.replay_dead_letter(number, requester="ops")
        assert caught.value.field == "id"


async def test_replay_of_an_unknown_number_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        with pytest.raises(UnknownEntryError) as caught:
            await runtime.replay_dead_letter(7, requester="ops")
        assert caught.value.entry == 7


# -- reminders


async def test_reminder_that_came_due_while_nothing_ran_comes_once_at_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    due = world.clock.now_ms() + 60_000
    async with world.open():
        host = await start(world)
        await host.ask({"remind": {"name": "n", "message": {"x": [1]}, "at_ms": due}})
        await trio.sleep(1)
        assert [row.due_ms for row in world.rows("reminders", "host")] == [due]
    await trio.sleep(3_600)
    async with world.open():
        host = await start(world)
        await trio.sleep(1)
        assert host._cell.kept["reminders"] == [("n", {"x": [1]}, due)]
        assert world.rows("reminders", "host") == []
    async with world.open():
        host = await start(world)
        await trio.sleep(3_600)
        assert host._cell.kept["reminders"] == []


async def test_reminder_comes_at_its_instant_in_a_later_run(
    world: World, virtual_time: MockClock
) -> None:
    due = world.clock.now_ms() + 60_000
    async with world.open():
        host = await start(world)
        await host.ask({"remind": {"name": "n", "at_ms": due}})
    async with world.open():
        host = await start(world)
        await trio.sleep((due - world.clock.now_ms()) / 1_000 - 0.5)
        assert host._cell.kept["reminders"] == []
        await trio.sleep(1)
        assert host._cell.kept["reminders"] == [("n", None, due)]


async def test_periodic_reminder_goes_on_in_a_later_run_and_missed_periods_come_once(
    world: World, virtual_time: MockClock
) -> None:
    first = world.clock.now_ms() + 1_000
    async with world.open():
        host = await start(world)
        await host.ask({"remind": {"name": "n", "at_ms": first, "every_ms": 10_000}})
        await trio.sleep(15)
        assert len(host._cell.kept["reminders"]) == 2
    await trio.sleep(100)
    async with world.open():
        host = await start(world)
        await trio.sleep(1)
        assert [due - first for *_, due in host._cell.kept["reminders"]] == [20_000]
        (row,) = world.rows("reminders", "host")
        assert (row.due_ms - first) % 10_000 == 0
        assert row.due_ms > world.clock.now_ms()


async def test_cancelled_reminder_has_no_row(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        host = await start(world)
        await host.ask({"remind": {"name": "n", "at_ms": world.clock.now_ms() + 1_000}})
        await host.ask({"forget": "n"})
        await trio.sleep(5)
        assert host._cell.kept["reminders"] == []
        assert world.rows("reminders") == []


async def test_reminder_whose_message_is_no_plain_data_is_refused_before_any_effect(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        host = await start(world)
        with pytest.raises(InvalidMessageError) as caught:
            await host.ask({"remind": {"name": "n", "message": (1, 2), "at_ms": 5}})
        assert caught.value.field == "message"
        await trio.sleep(1)
        assert host._cell.kept["reminders"] == []
        assert world.rows("reminders") == []


async def test_reminders_are_kept_whenever_their_actor_crashes(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        host = await start(world)
        at_ms = world.clock.now_ms() + 1_000_000
        for n in range(10):
            await host.ask({"remind": {"name": f"n{n}", "at_ms": at_ms}})
            if n % 2:
                world.ref("reminders").kill()
            await trio.sleep(60)
        assert len(world.rows("reminders", "host")) == 10
        await trio.sleep(1_000)
        assert len(host._cell.kept["reminders"]) == 10
        await trio.sleep(1)
        assert world.rows("reminders", "host") == []


async def test_hosts_system_has_its_own_ports_again_when_the_runtime_has_ended(
    world: World, virtual_time: MockClock
) -> None:
    from abeyance.actors import open_runtime

    async with ActorSystem(ask_timeout_s=None, clock=world.clock) as system:
        before = type(system.reminders)
        async with open_runtime(
            world.directory, clock=world.clock, control=False, system=system
        ) as runtime:
            assert type(system.reminders) is not before
            assert system.deliveries is not None
            assert runtime.dead_letters() == ()
        assert type(system.reminders) is before
        assert system.deliveries is None
        assert system.dead_letters._sinks == ()


# -- lives that end by SIGKILL


class Lives:
    """What lives of one state directory ended with, and what is there afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def play(self, *lives: str) -> list[int | str]:
        """Of each: KILLED, the code of the error that ended it, or nothing."""
        ended = [lived(kept.live, self.directory, life) for life in lives]
        return [one.status or one.out.strip() for one in ended]

    def rows(self, table: str) -> list[Any]:
        store = LmdbStore.open(self.directory / "state", clock_ms=lambda: 0, read_only=True)
        try:
            return [row.record for _, row in store.scan(table)]  # type: ignore[union-attr]
        finally:
            store.close()

    @property
    def seen(self) -> list[str]:
        return (self.directory / "seen").read_text().splitlines()


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


def test_message_that_kills_the_process_is_quarantined_after_its_last_life(lives: Lives) -> None:
    assert lives.play(*["poison"] * 5) == [*[KILLED] * 3, *["deliveries_spent"] * 2]
    assert lives.seen == ["die"] * 3
    assert [(row.reason, row.deliveries) for row in lives.rows("quarantine")] == [
        ("DeliveriesSpentError", 3)
    ] * 2
    assert [row.deliveries for row in lives.rows("deliveries")] == [3]


def test_crashes_and_deaths_of_a_message_add_up_over_lives(lives: Lives) -> None:
    played = lives.play("crash_then_poison", "poison", "poison")
    assert played == [KILLED, KILLED, "deliveries_spent"]
    assert lives.seen == ["crash", "die", "die"]


def test_death_of_the_process_with_nothing_in_flight_counts_nothing(lives: Lives) -> None:
    assert lives.play("poison", "work", "work") == [KILLED] * 3
    assert lives.rows("deliveries") == []
    assert lives.play(*["poison"] * 4) == [*[KILLED] * 3, "deliveries_spent"]


def test_accept_that_kills_the_process_is_refused_after_its_last_life(lives: Lives) -> None:
    assert lives.play(*["poison_accept"] * 4) == [*[KILLED] * 3, "deliveries_spent"]
    rows = lives.rows("quarantine")
    assert [(row.actor, row.deliveries) for row in rows] == [("slot:ana", 3)]


def test_dead_letters_and_quarantine_are_there_once_after_a_kill(lives: Lives) -> None:
    assert lives.play("bury") == [KILLED]
    quarantined = lives.rows("quarantine")
    assert [(row.message, row.body is not None) for row in quarantined] == [
        ("'crash'", True),
        ("Act(act_id='order-2', does='crash')", False),
    ]
    assert all("ValueError: crash" in row.error and "\x1b" not in row.error for row in quarantined)
    letters = lives.rows("dead_letters")
    assert [(row.actor, row.body is not None) for row in letters] == [
        ("gone", True),
        ("gone", False),
    ]
    store = LmdbStore.open(lives.directory / "state", clock_ms=lambda: 0, read_only=True)
    assert check(store).is_sound
    store.close()


async def test_reminder_due_during_an_outage_comes_once_after_a_kill(
    lives: Lives, world: World, virtual_time: MockClock
) -> None:
    assert lives.play("remind_far") == [KILLED]
    world.directory = lives.directory / "state"
    world.clock.set(FAR_MS + 1)
    for expected in ([("n", {"does": "work"}, FAR_MS)], []):
        async with world.open():
            host = await start(world)
            await trio.sleep(1)
            assert host._cell.kept["reminders"] == expected


async def test_reminder_that_kills_the_process_is_quarantined_after_its_last_life(
    lives: Lives, world: World, virtual_time: MockClock
) -> None:
    assert lives.play("remind_poison", *["wait_late"] * 3) == [KILLED] * 4
    assert lives.seen[1:] == ["die"] * 3
    world.clock.set(FAR_MS + 2)
    world.directory = lives.directory / "state"
    async with world.open() as runtime:

        class Again(Host):
            max_deliveries = 3

        runtime._system.start(Again, name="host")
        await trio.sleep(1)
        await stored(world)
        (entry,) = runtime.quarantine()
        assert (entry.reason, entry.deliveries) == ("DeliveriesSpentError", 3)
        assert world.rows("reminders") == []
        assert world.rows("deliveries") == []


def test_reminder_that_was_handled_as_the_process_died_is_no_delivery_at_least_once(
    lives: Lives,
) -> None:
    """Its row was not committed as gone yet, so it comes again, however often that is so."""
    assert lives.play("remind_beside_poison", *["wait_late"] * 2) == [KILLED] * 3
    assert lives.seen[2:] == ["work", "die"] * 2
    # The last life counted the death of the one before: of the one that was being handled then.
    assert [row.deliveries for row in lives.rows("deliveries")] == [1]


def test_reminder_that_was_handled_as_the_process_died_does_not_come_again_at_most_once(
    lives: Lives,
) -> None:
    assert lives.play("remind_beside_poison", "wait_late_once") == [KILLED] * 2
    assert lives.seen[2:] == ["work", "die"]
    assert lives.play("wait_late_once_settled") == [KILLED]
    assert lives.seen[4:] == []
    assert [row.deliveries for row in lives.rows("quarantine")] == [1, 1]
    assert lives.rows("reminders") == lives.rows("deliveries") == []
