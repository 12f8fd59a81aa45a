"""Import of an older queue: what is read, mended, dropped and refused, and what is accepted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from abeyance.actors import AgentSpec, HostedRuntime, ImportReport
from abeyance.actors import importing as importing_module
from abeyance.actors.domain.errors import InvalidInputError, NotPermittedError, NotStoredError
from abeyance.actors.domain.imports import NUMBER_MAX, ImportPlan, read_import
from abeyance.actors.domain.requesters import OperatorAct
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.storage import lmdb_store
from abeyance.storage.errors import DiskFullError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Limits, NotStored

from .test_ingress import trees
from .world import World, shown


def text(said: str) -> list[Any]:
    return [{"type": "text", "text": said}]


def entry(said: str, **fields: Any) -> dict[str, Any]:
    return {"participant": "user", "content": text(said), **fields}


def document(*entries: Any, **fields: Any) -> str:
    whole = {"format": "abeyance-deferred", "version": 1, "entries": list(entries), **fields}
    return json.dumps(whole)


def stream(*entries: Any, **fields: Any) -> io.StringIO:
    return io.StringIO(document(*entries, **fields))


def plan(*entries: Any, agent: str | None = "ana") -> ImportPlan:
    raw = document(*entries).encode("utf-8", "surrogatepass")
    return read_import(raw, agent=agent, wake=False, now_ms=1)


def repairs(found: ImportPlan | ImportReport) -> list[tuple[str, int | None, str | None]]:
    return [(repair.kind, repair.place, repair.id) for repair in found.repairs]


def order(found: ImportPlan) -> list[tuple[str, int]]:
    return [(item.accept.message, item.number) for item in found.entries]


# -- shapes ----------------------------------------------------------------------------------------

MALFORMED: dict[str, tuple[Any, str, str | None]] = {
    "null": (None, "an entry must be an object, not null", None),
    "text": ("hi", "an entry must be an object, not text", None),
    "a number": (3, "an entry must be an object, not a number", None),
    "a list": ([], "an entry must be an object, not a list", None),
    "no participant": (
        {"id": "x", "content": text("a")}, "participant must be text, not null", None),
    "a participant that is a number": (
        {"id": "x", "participant": 7, "content": text("a")},
        "participant must be text, not a number", "a number"),
    "a participant that is an object": (
        {"id": "x", "participant": {}, "content": text("a")},
        "participant must be text, not an object", "an object"),
    "content that is text": (
        {"id": "x", "participant": "bo", "content": "a"},
        "content must be a list, not text", "bo"),
    "no content": ({"id": "x", "participant": "bo"}, "content must be a list, not null", "bo"),
    "a null block": (
        {"id": "x", "participant": "bo", "content": [*text("a"), None]},
        "content[1] must be an object, not null", "bo"),
    "a text block that is text": (
        {"id": "x", "participant": "bo", "content": ["a"]},
        "content[0] must be an object, not text", "bo"),
    "a block that is a number": (
        {"id": "x", "participant": "bo", "content": [1.5]},
        "content[0] must be an object, not a number", "bo"),
}  # fmt: skip


@pytest.mark.behaviour("D-061", "R-29")
@pytest.mark.parametrize(("bad", "why", "participant"), MALFORMED.values(), ids=MALFORMED)
async def test_an_entry_of_which_nobody_can_tell_what_it_was_is_dropped_and_named(
    world: World, virtual_time: MockClock, bad: Any, why: str, participant: str | None
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("yes")])
        file = stream(entry("one", id="1"), bad, entry("two", id="2"))
        report = await runtime.import_deferred(file, agent="ana")
        (repair,) = report.repairs
        assert (repair.kind, repair.place, repair.text) == ("dropped", 1, why)
        assert repair.participant == participant
        assert repair.id == ("x" if isinstance(bad, dict) else None)
        assert [message.id for message in report.messages] == ["1", "2"]
        assert (report.total, report.dropped, report.refused) == (3, 1, 0)
        await ana.send("and?")
        await ana.wait_idle()
        assert await shown(ana) == ["user: one", "user: two", "user: and?", "assistant: yes"]


@pytest.mark.behaviour("D-065")
@pytest.mark.parametrize("target", ["", None, 7, [], {}], ids=repr)
def test_an_entry_whose_target_is_none_is_dropped_and_one_without_is_the_primarys(
    target: Any,
) -> None:
    found = plan(
        entry("a", id="1", target=target), entry("b", id="2"), entry("c", id="3", target="bo")
    )
    assert repairs(found) == [("dropped", 0, "1")]
    assert [(item.accept.message, item.accept.agent) for item in found.entries] == [
        ("2", "ana"), ("3", "bo"),
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"entries\[1\] has no target") as caught:
        plan(entry("a", target="bo"), entry("b"), agent=None)
    assert caught.value.field == "agent"


@pytest.mark.behaviour("D-062", "R-29")
def test_of_entries_with_one_id_the_first_is_kept_and_one_without_gets_its_own_for_ever() -> None:
    found = plan(entry("a", id="x"), entry("b", id="x"), entry("c"), entry("c"), entry("d", id=7))
    made = found.entries[1].accept.message
    assert made.startswith("import-")
    assert len(made) == len("import-") + 32
    assert [item.accept.message for item in found.entries][:3] == ["x", made, f"{made}-2"]
    assert repairs(found) == [
        ("dropped", 1, "x"),
        ("id", 2, made),
        ("id", 3, f"{made}-2"),
        ("id", 4, found.entries[3].accept.message),
    ]
    assert "entries[0] has this id already" in found.repairs[0].text
    again = plan(entry("c"), entry("c"))
    assert [item.accept.message for item in again.entries] == [made, f"{made}-2"]


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("D-063")
def test_entries_with_invalid_numbers_go_last_in_the_order_of_the_file() -> None:
    seqs: list[Any] = [7, "a", 0, 3, True, -1, 1.0, 2**53, None]
    found = plan(*(entry(str(place), id=str(place), seq=seq) for place, seq in enumerate(seqs)))
    assert order(found) == [
        ("3", 3), ("0", 7),
        ("1", 8), ("2", 9), ("4", 10), ("5", 11), ("6", 12), ("7", 13), ("8", 14),
    ]  # fmt: skip
    assert [(kind, place) for kind, place, _ in repairs(found)] == [
        ("number", place) for place in (1, 2, 4, 5, 6, 7, 8)
    ]
    assert found.repairs[0].text == 'seq "a" is no number from 1 to 2^53-1; it is 8'


@pytest.mark.behaviour("D-064")
def test_a_file_without_numbers_keeps_its_order_and_nothing_is_told_of_them() -> None:
    found = plan(*(entry(id_, id=id_) for id_ in ("c", "a", "b")))
    assert order(found) == [("c", 1), ("a", 2), ("b", 3)]
    assert found.repairs == ()


@pytest.mark.behaviour("D-066")
async def test_numbers_that_would_not_be_exact_are_all_given_anew_and_the_next_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        file = stream(entry("b", id="b"), entry("a", id="a", seq=NUMBER_MAX), entry("c", id="c"))
        report = await runtime.import_deferred(file, agent="ana")
        assert [(m.id, m.number, m.seq) for m in report.messages] == [
            ("a", 1, 1), ("b", 2, 2), ("c", 3, 3),
        ]  # fmt: skip
        assert repairs(report) == [("renumbered", None, None)]
        assert (await ana.send("d", wake=False)).seq == 4
        assert await shown(ana) == ["user: a", "user: b", "user: c", "user: d"]
    fits = plan(entry("a", id="a", seq=NUMBER_MAX - 1), entry("b", id="b"))
    assert order(fits) == [("a", NUMBER_MAX - 1), ("b", NUMBER_MAX)]


# -- what is refused, what is mended ---------------------------------------------------------------


@pytest.mark.behaviour("D-067", "D-090", "R-15", "R-29")
async def test_an_entry_that_this_store_does_not_take_is_named_each_time_and_the_rest_lands(
    world: World, virtual_time: MockClock
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        (entry("", id="1", content=[{"type": "video", "data": "x"}]), "content[0].type"),
        (entry("", id="2", content=[{"type": "text", "text": 7}]), "content[0].text"),
        (entry("", id="3", content=[]), "content"),
        (entry(" ", id="4"), "content must hold text"),
        (entry("a", id="5", participant="a\nb"), "participant"),
        (entry("a", id="6", target="*"), "target"),
        (entry("a", id="7", target="nobody"), "agent 'nobody' was not added"),
        (entry("", id="8", content=[{"type": "tool_use", "id": "c", "name": "n", "input": {}}]),
         "content[0].type"),
        (entry("\ud800", id="9"), "content[0].text"),
    ]  # fmt: skip
    sound = entry("sound", id="0"), entry("behind", id="z")
    async with world.open() as runtime:
        ana = await world.add([])
        await ana.send("mine", id="used", wake=False)
        bad.append((entry("theirs", id="used"), "its id is used for other content"))
        for _ in range(2):
            file = stream(sound[0], *(each for each, _ in bad), sound[1])
            report = await runtime.import_deferred(file, agent="ana")
            assert [m.id for m in report.messages] == ["0", "z"]
            assert report.refused == len(bad)
            for repair, (each, why) in zip(report.repairs, bad, strict=True):
                assert (repair.kind, repair.id) == ("refused", each["id"])
                assert repair.text.startswith(why)
        assert await shown(ana) == ["user: mine", "user: sound", "user: behind"]


@pytest.mark.behaviour("R-29")
def test_fields_that_are_not_sound_are_left_out_and_told_of() -> None:
    found = plan(
        entry("a", id="1", channel="c", at_ms=5, wake=True),
        entry("b", id="2", channel="", at_ms=-1, wake="yes"),
        entry("c", id="3", channel=None, at_ms=None, wake=None),
    )
    accepts = [item.accept for item in found.entries]
    assert [(each.channel, each.wake) for each in accepts] == [
        ("c", True), (None, False), (None, False),
    ]  # fmt: skip
    assert accepts[0].at_ms == 5
    assert sorted(repairs(found)) == [(kind, 1, "2") for kind in ("at_ms", "channel", "wake")]


FILES: dict[str, tuple[Any, str]] = {
    "nothing": (b"", "source"),
    "no JSON": (b"hi", "source"),
    "half of it": (document(entry("a"))[:-5].encode(), "source"),
    "bytes that are no text": (b"\xff\xfe{}", "source"),
    "a list": (b"[]", "source"),
    "too deep": (b"[" * 100_000, "source"),
    "another format": (document(format="queue"), "format"),
    "no format": (b"{}", "format"),
    "a later version": (document(version=2), "version"),
    "a version that is a flag": (document(version=True), "version"),
    "no entries": (json.dumps({"format": "abeyance-deferred", "version": 1}), "entries"),
    "entries that are none": (
        json.dumps({"format": "abeyance-deferred", "version": 1, "entries": {}}), "entries"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "field"), FILES.values(), ids=FILES)
async def test_what_is_no_such_file_is_refused_whole(
    world: World, virtual_time: MockClock, raw: Any, field: str
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        file: Any = io.StringIO(raw) if isinstance(raw, str) else io.BytesIO(raw)
        with pytest.raises(InvalidInputError) as caught:
            await runtime.import_deferred(file, agent="ana")
        assert caught.value.field == field
        assert await shown(ana) == []


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"source": None}, "source"),
    "a number": ({"source": 7}, "source"),
    "an empty path": ({"source": ""}, "source"),
    "a path to nothing": ({"source": "/nowhere/at/all"}, "source"),
    "a path with NUL": ({"source": "a\0b"}, "source"),
    "a directory": ({"source": "."}, "source"),
    "an agent that is none": ({"agent": ""}, "agent"),
    "an agent that is a number": ({"agent": 7}, "agent"),
    "a wake that is none": ({"wake": 1}, "wake"),
    "a dry run that is none": ({"dry_run": None}, "dry_run"),
}


@pytest.mark.parametrize(("how", "field"), ARGUMENTS.values(), ids=ARGUMENTS)
async def test_a_malformed_import_is_refused_by_its_argument(
    world: World, virtual_time: MockClock, how: dict[str, Any], field: str
) -> None:
    async with world.open() as runtime:
        await world.add([])
        with pytest.raises(InvalidInputError) as caught:
            await runtime.import_deferred(**{"source": stream(entry("a")), "agent": "ana", **how})
        assert caught.value.field == field


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            trees,
            st.fixed_dictionaries(
                {"participant": trees, "content": trees},
                optional=dict.fromkeys(("id", "seq", "target", "channel", "at_ms"), trees),
            ),
            st.fixed_dictionaries({"participant": st.just("bo"), "content": st.lists(trees)}),
        ),
        max_size=4,
    )
)
def test_whatever_a_file_holds_each_entry_is_accepted_or_told_of(entries: list[Any]) -> None:
    try:
        raw = json.dumps(
            {"format": "abeyance-deferred", "version": 1, "entries": entries}, default=str
        ).encode("utf-8", "surrogatepass")
    except TypeError:
        return
    try:
        found = read_import(raw, agent="ana", wake=False, now_ms=1)
    except InvalidInputError as error:
        assert error.field == "source"  # noqa: PT017 - bytes that are no UTF-8.
        return
    gone = {r.place for r in found.repairs if r.kind in ("dropped", "refused")}
    assert gone | {item.place for item in found.entries} == set(range(len(entries)))
    assert not gone & {item.place for item in found.entries}
    assert [item.number for item in found.entries] == sorted(item.number for item in found.entries)


# -- accepting -------------------------------------------------------------------------------------


@pytest.mark.behaviour("D-068", "R-29")
async def test_a_file_imported_again_accepts_nothing_twice_and_a_dry_run_nothing_at_all(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    path = tmp_path / "queue.json"
    path.write_text(document(*(entry(str(number)) for number in range(20))), encoding="utf-8-sig")
    before = path.read_bytes()
    async with world.open() as runtime:
        ana = await world.add([])
        dry = await runtime.import_deferred(path, agent="ana", dry_run=True)
        assert dry.dry_run
        assert {message.seq for message in dry.messages} == {None}
        assert await shown(ana) == []
        first = await runtime.import_deferred(str(path), agent="ana")
        assert [message.id for message in first.messages] == [m.id for m in dry.messages]
        assert await runtime.import_deferred(path, agent="ana") == first
    async with world.open() as runtime:
        ana = await world.add([])
        assert await runtime.import_deferred(path, agent="ana") == first
        assert await shown(ana) == [f"user: {number}" for number in range(20)]
    assert path.read_bytes() == before


@pytest.mark.behaviour("R-29", "D-064")
async def test_an_import_that_was_cut_off_goes_on_where_it_was(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing_module, "COMMIT_MESSAGES_MAX", 3)
    submit, batches = LmdbStore.submit, [0]

    def full(store: LmdbStore, batch: Any, done: Any) -> None:
        if any(put.table == "bodies" for request in batch for put in request.puts):
            batches[0] += 1
            if batches[0] == 3:
                done([NotStored(DiskFullError("full", path="x"))] * len(batch))
                return
        submit(store, batch, done)

    lines = [entry(str(number), id=str(number), target="ana") for number in range(10)]
    async with world.open() as runtime:
        ana = await world.add([])
        monkeypatch.setattr(LmdbStore, "submit", full)
        with pytest.raises(NotStoredError):
            await runtime.import_deferred(stream(*lines))
        assert await shown(ana) == [f"user: {number}" for number in range(6)]
        report = await runtime.import_deferred(stream(*lines))
        assert len(report.messages) == 10
        assert await shown(ana) == [f"user: {number}" for number in range(10)]


@pytest.mark.behaviour("D-068")
@pytest.mark.parametrize("fault", ["refused", "slot killed"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_an_import_into_a_store_of_128_operations_is_done_once_whatever_commit_of_it_fails(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, nth: int, fault: str
) -> None:
    limits = Limits(128, lmdb_store.LIMITS.payload_bytes_max)
    monkeypatch.setattr(lmdb_store, "LIMITS", limits)
    submit, sizes = LmdbStore.submit, list[int]()

    def faulty(store: LmdbStore, batch: Any, done: Any) -> None:
        bodies = sum(put.table == "bodies" for request in batch for put in request.puts)
        if bodies:
            sizes.append(bodies)
            if len(sizes) == nth and fault == "refused":
                done([NotStored(DiskFullError("full", path="x"))] * len(batch))
                return
        submit(store, batch, done)
        if len(sizes) == nth and bodies:
            trio.lowlevel.current_trio_token().run_sync_soon(world.ref("slot").kill, "a test")

    lines = [entry(str(number), id=str(number), target="ana") for number in range(60)]
    async with world.open() as runtime:
        ana = await world.add([])
        monkeypatch.setattr(LmdbStore, "submit", faulty)
        if fault == "refused":
            with pytest.raises(NotStoredError):
                await runtime.import_deferred(stream(*lines))
            assert len(await shown(ana)) == 25 * (nth - 1)
        report = await runtime.import_deferred(stream(*lines))
        assert len(report.messages) == 60
        assert max(sizes) == 25, "one commit holds no more"
        assert await shown(ana) == [f"user: {number}" for number in range(60)]
    async with world.open():
        ana = await world.add([])
        assert await shown(ana) == [f"user: {number}" for number in range(60)]


async def test_entries_of_several_agents_are_each_in_order_and_those_that_ask_get_a_turn(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        bo = await world.add([reply("heard")], "bo")
        lines = [
            entry(f"{name}{number}", id=f"{name}{number}", target=name, seq=10 - number,
                  wake=name == "bo" and number == 0)
            for number in range(3)
            for name in ("ana", "bo")
        ]  # fmt: skip
        report = await runtime.import_deferred(stream(*lines))
        assert [message.number for message in report.messages] == [8, 8, 9, 9, 10, 10]
        with trio.fail_after(60):
            await bo.wait_idle()
        assert await shown(ana) == ["user: ana2", "user: ana1", "user: ana0"]
        assert await shown(bo) == ["user: bo2", "user: bo1", "user: bo0", "assistant: heard"]


async def test_an_id_that_two_agents_of_one_slot_use_is_the_firsts_and_the_other_is_named(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([], slot="room")
        await world.add([], "bo", slot="room")
        lines = [entry(name, id="m1", target=name, wake=False) for name in ("ana", "bo")]
        report = await runtime.import_deferred(stream(*lines))
        assert len(report.messages) == 1
        ((kind, place, id_),) = repairs(report)
        assert (kind, place, id_) == ("refused", 1, "m1")
        assert await shown(ana) == ["user: ana"]
        assert (await ana.receipt("m1")).state == "stored"


def test_a_threaded_host_imports_a_file(tmp_path: Path) -> None:
    path = tmp_path / "queue.json"
    path.write_text(document(entry("a", id="1"), None))
    with HostedRuntime(tmp_path / "state", control=False) as host:
        spec = AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        ana = host.add_agent(spec)
        report = host.import_deferred(path, agent="ana", block=False).get()
        assert (len(report.messages), report.dropped) == (1, 1)
        assert [message.text for message in ana.transcript()] == ["a"]


async def test_who_imports_is_recorded_ahead_of_the_first_message_and_a_dry_run_is_not(
    world: World, virtual_time: MockClock
) -> None:
    def asks(act: OperatorAct) -> bool:
        asked.append(act)
        return act.requester == "api:ops"

    asked: list[OperatorAct] = []
    async with world.open(admin=asks) as runtime:
        await world.add([])
        for by in ("", " ", None):
            with pytest.raises(InvalidInputError):
                await runtime.import_deferred(
                    stream(entry("a")),
                    agent="ana",
                    requester=by,  # type: ignore[arg-type]
                )
        await runtime.import_deferred(
            stream(entry("a")), agent="ana", dry_run=True, requester="eve"
        )
        assert asked == []
        with pytest.raises(NotPermittedError):
            await runtime.import_deferred(stream(entry("a")), agent="ana", requester="eve")
        assert world.rows("slots") == world.rows("log") == []
        await runtime.import_deferred(stream(entry("a"), entry("b")), agent="ana", requester="ops")
        assert [act.requester for act in asked] == ["api:eve", "api:ops"]
        assert {act.verb for act in asked} == {"import_deferred"}
        (line,) = world.rows("log")
        assert (line.event, line.text) == ("deferred_imported", "2 messages by api:ops")
        assert len(world.rows("slots")) == 2
