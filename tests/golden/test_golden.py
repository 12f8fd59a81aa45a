"""Stores of earlier versions, kept as files, read as they were written: for ever.

`rows.json` of each says what its rows are, from the day they were put. A field that came later has
its default in an older row. A store is never written again; `python -m tests.golden DAY` adds one.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.batch import KEPT_BY_THE_STORE
from abeyance.storage.codec import encode
from abeyance.storage.directory import prepare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Append, Committed, Put, Record, Request
from abeyance.storage.tables import FORMATS, TABLES

from .__main__ import HERE, write
from .samples import plain, samples

STORES = sorted(path.name for path in HERE.iterdir() if (path / "rows.json.gz").is_file())
BYTES_MAX = 64 * 1024
"""Of one store, all its files; it is in every clone for ever."""
ALL_BYTES_MAX = 1024 * 1024
CLOCK = WallClock()


def laid_out(name: str, state: Path) -> Path:
    """A state directory with that store."""
    state.mkdir()
    prepare(state / "store")
    for kept in ("store.json", "closed.json"):
        (state / "store" / kept).write_bytes((HERE / name / kept).read_bytes())
    packed = (HERE / name / "data.mdb.gz").read_bytes()
    (state / "store" / "data.mdb").write_bytes(gzip.decompress(packed))
    return state


def listed(name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        gzip.decompress((HERE / name / "rows.json.gz").read_bytes())
    )
    return found


def differences(was: Any, now: Any, at: str = "") -> list[str]:
    """Where what was decoded (`now`) is something else than what was put (`was`, as JSON)."""
    match was, now:
        case dict(), msgspec.Struct():
            found: list[str] = []
            config = now.__struct_config__
            was = dict(was)
            if config.tag is not None and was.pop(config.tag_field) != config.tag:
                found.append(f"{at}: another kind")
            for field in msgspec.structs.fields(now):
                value = getattr(now, field.name)
                if field.name in was:
                    found += differences(was.pop(field.name), value, f"{at}.{field.name}")
                elif value != field.default:
                    found.append(f"{at}.{field.name}: {value!r} is not the default")
            return found + [f"{at}.{name}: gone" for name in was]
        case list(), tuple() if len(was) == len(now):
            both = enumerate(zip(was, now, strict=True))
            return [
                each for n, (one, other) in both for each in differences(one, other, f"{at}[{n}]")
            ]
        case _:
            return [] if plain(now) == was else [f"{at}: {was!r} reads as {now!r}"]


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("read_only", [True, False], ids=["to look", "to write"])
def test_a_store_of_an_earlier_version_reads_as_it_was_written(
    name: str, read_only: bool, tmp_path: Path
) -> None:
    state = laid_out(name, tmp_path / "state")
    store = LmdbStore.open(state, clock_ms=CLOCK.now_ms, read_only=read_only, verify=True)
    found: list[str] = []
    try:
        for table, put in listed(name).items():
            read = dict(store.scan(table))
            if not read_only and table == "processes":
                del read[(store.nonce,)]
            at = {tuple(each["key"]): each for each in put}
            assert read.keys() == at.keys(), table
            for key, was in at.items():
                row = read[key]
                if isinstance(row, Exception):
                    found.append(str(row))
                elif not read_only and table == "meta":
                    assert row.record.boots == was["fields"]["boots"] + 1
                else:
                    assert (row.record.KIND, row.counter) == (was["kind"], was["counter"])
                    assert plain(row.allotted) == was["allotted"]
                    found += differences(was["fields"], row.record, f"{table} {key!r}")
    finally:
        store.close()
    assert found == []


def test_a_store_of_an_earlier_version_is_written_on(name: str, tmp_path: Path) -> None:
    """Each of its rows can be put again as it reads, and its sequences go on."""
    store = LmdbStore.open(laid_out(name, tmp_path / "state"), clock_ms=CLOCK.now_ms)
    kept = {"meta", "sequences", "changes", "processes"}
    try:
        before = {each: dict(store.scan(each)) for each in TABLES if each not in kept}
        for table, found in before.items():
            for key, row in found.items():
                assert not isinstance(row, Exception)
                if TABLES[table].append:
                    request = Request(appends=(Append(table, encode(row.record)),))
                else:
                    request = Request(puts=(Put(table, key, encode(row.record)),))
                (outcome,) = store.commit(request)
                assert isinstance(outcome, Committed)
                if TABLES[table].append:
                    ((number,),) = outcome.allotted
                    assert all(number > each[0] for each in found)  # type: ignore[operator]
                else:
                    again = store.get(table, key)
                    assert again == row._replace(counter=row.counter + 1, allotted=None)
    finally:
        store.close()


class WaitOfBefore(Record, frozen=True, kw_only=True):
    """A wait as it was before it had a window."""

    KIND = "wait"
    deadline_ms: int | None
    reason: str
    set_ms: int
    act: str
    hold: str | None = None
    since_ms: int | None = None


class HeldOfBefore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stops a turn, as it was before it had a window."""

    agent: str
    model: str
    cause: str


def test_a_reader_of_before_a_field_refuses_rows_that_have_it_by_name_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a checkout from before the first release makes of fields that came without a version."""
    kinds = codec._BY_TABLE
    turn = kinds["turns"]["turn"].record
    turn_of_before = msgspec.defstruct(
        "TurnOfBefore",
        [
            (each.name, HeldOfBefore | None if each.name == "held" else each.type, each.default)
            for each in sorted(msgspec.structs.fields(turn), key=lambda each: not each.required)
        ],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    for table, kind, record in [
        ("waits", "wait", WaitOfBefore),
        ("account_waits", "wait", WaitOfBefore),
        ("turns", "turn", turn_of_before),
    ]:
        known = kinds[table][kind]
        older = known._replace(record=record)
        monkeypatch.setitem(kinds[table], kind, older)
        written = [
            (*each[:2], older if each[2] is known else each[2]) for each in codec._WRITTEN[table]
        ]
        monkeypatch.setitem(codec._WRITTEN, table, written)
    name = "2026-12-03-windows"
    state = laid_out(name, tmp_path / "state")
    store = LmdbStore.open(state, clock_ms=CLOCK.now_ms, read_only=True)
    try:
        for table, put in listed(name).items():
            read = dict(store.scan(table))
            for each in put:
                row = read[tuple(each["key"])]
                fields = each["fields"]
                held = fields.get("held") if table == "turns" else None
                if "of_quota" in fields:
                    assert isinstance(row, UnreadableRecordError)
                    assert "unknown field `window`" in str(row)
                elif held is not None and held["window"] is not None:
                    assert isinstance(row, UnreadableRecordError)
                    assert "unknown field `window` - at `$.held`" in str(row)
                else:
                    assert not isinstance(row, Exception), row
    finally:
        store.close()


def test_every_kind_of_record_is_in_a_store_that_is_kept() -> None:
    """A new kind, or a new version of one, is to be read for ever from its first day on."""
    kept = {
        (table, row["kind"], row["version"])
        for name in STORES
        for table, found in listed(name).items()
        for row in found
    }
    written = {
        (table.name, kind.KIND, kind.VERSION) for table in TABLES.values() for kind in table.kinds
    }
    assert written - kept == set(), "run python -m tests.golden DAY"


def parts_of(value: Any) -> set[str]:
    """What a record is made of, its names at their places; a choice by its name and its value."""
    match value:
        case dict():
            return {
                f".{name}{rest}" for name, each in value.items() for rest in {"", *parts_of(each)}
            }
        case list():
            return {f"[]{rest}" for each in value for rest in parts_of(each)}
        case str() if value.replace("_", "").islower() and value.isascii() and len(value) < 30:
            return {f"={value}"}
        case _:
            return set()


def test_every_field_and_every_choice_of_a_record_is_in_a_store_that_is_kept() -> None:
    """A new one is to be read for ever from its first day on, as a new kind is."""
    kept = {
        f"{table} {row['kind']}{part}"
        for name in STORES
        for table, found in listed(name).items()
        for row in found
        for part in parts_of(row["fields"])
    }
    written = {
        f"{table.name} {kind.KIND}{part}"
        for table in TABLES.values()
        if table.name not in KEPT_BY_THE_STORE and table.name != "processes"
        for kind in table.kinds
        # The first of the wakes is deleted again, as rows with a history are made.
        for record in list(samples(kind))[table.name == "wakes" :]
        for part in parts_of(plain(record))
    }
    assert sorted(written - kept) == [], "run python -m tests.golden DAY-WHAT"


def test_every_format_is_kept() -> None:
    kept = {json.loads((HERE / name / "store.json").read_bytes())["format"] for name in STORES}
    assert kept == set(FORMATS), "run python -m tests.golden DAY FORMAT"


def test_what_is_kept_is_small() -> None:
    sizes = {name: sum(each.stat().st_size for each in (HERE / name).iterdir()) for name in STORES}
    assert sizes
    assert max(sizes.values()) <= BYTES_MAX
    assert sum(sizes.values()) <= ALL_BYTES_MAX


def test_the_script_writes_a_store_with_rows_in_every_table(tmp_path: Path) -> None:
    write(tmp_path / "new")
    found = json.loads(gzip.decompress((tmp_path / "new" / "rows.json.gz").read_bytes()))
    assert found.keys() == TABLES.keys()
    assert all(found.values())
    with pytest.raises(FileExistsError):
        write(tmp_path / "new")
