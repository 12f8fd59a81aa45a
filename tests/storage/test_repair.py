"""Repair: what cannot be read is set aside, whole, by commits that a death may come between."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abeyance.actors.ops import cli
from abeyance.actors.testing import WallClock
from abeyance.storage import mending_rules
from abeyance.storage import repair as room
from abeyance.storage.batch import KEPT_BY_THE_STORE
from abeyance.storage.check import check
from abeyance.storage.codec import encode, frame
from abeyance.storage.crashpoints import arm
from abeyance.storage.errors import (
    DiskFullError,
    StorageError,
    StoreInUseError,
    UnreadableRecordError,
)
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.mending import Mending, Stays
from abeyance.storage.repair import listed, repair, undo
from abeyance.storage.store import Append, Committed, Key, Put, Request, Row
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.attachments import Attachment, AttachmentPiece, AttachmentUse
from abeyance.storage.tables.blocks import ImageBlock, TextBlock
from abeyance.storage.tables.repairs import SetAside
from abeyance.storage.tables.runs import Run, RunItem
from abeyance.storage.tables.slots import Body, Carried, Entry, Turn
from abeyance.storage.tables.waits import Wait

from ..golden.samples import key_of, samples
from ..lives import KILLED, begin, lived

CLOCK = WallClock()
META = ("meta", ("store",))


def opened(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=CLOCK.now_ms, **options)


def garble(state: Path, table: str, key: Any, raw: bytes | None = None) -> None:
    """Flip a bit of a row on disk; or put these bytes under a key, which may be none."""
    store = opened(state)
    named = key if isinstance(key, bytes) else encode_key(tuple(map(type, key)), key)
    bad = raw
    if bad is None:
        found = store._environment.get(table, named)
        assert found is not None
        bad = found[:-1] + bytes([found[-1] ^ 1])
    with store._environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        transaction.put(named, bad, db=store._environment.tables[table])
    store.close()


def looked(state: Path, *, kept: bool = False) -> list[Any]:
    store = opened(state, read_only=True)
    try:
        return list(listed(store)) if kept else list(check(store).findings)
    finally:
        store.close()


def rows_of(state: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    store = opened(state, read_only=True)
    try:
        return {
            table: store._environment.page(
                table, b"", after=None, reverse=False, rows_max=10**6, bytes_max=10**9
            )[0]
            for table in TABLES
            if table not in ("set_aside", "sequences")
        }
    finally:
        store.close()


def mend(state: Path, name: str = "copy") -> room.Repaired:
    return repair(state, state.with_name(name), clock_ms=CLOCK.now_ms)


def filled(state: Path) -> None:
    """A row of every kind in every table, without regard to what they name."""
    store = opened(state)
    for table in TABLES.values():
        if table.name in KEPT_BY_THE_STORE or table.name == "processes":
            continue
        values = [encode(record) for kind in table.kinds for record in samples(kind)]
        if table.append:
            request = Request(appends=tuple(Append(table.name, each) for each in values))
        else:
            # The key of number 1 has the largest integers there are: nothing goes on behind it.
            keys = (key_of(table.name, 2 * number) for number in range(len(values)))
            both = zip(keys, values, strict=True)
            request = Request(puts=tuple(Put(table.name, key, each) for key, each in both))
        (outcome,) = store.commit(request)
        assert isinstance(outcome, Committed)
    store.close()


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    """A store of 300 messages."""
    state = tmp_path / "state"
    store = opened(state)
    puts = []
    for number in range(1, 301):
        entry = Entry(entry=number, message=f"m{number}", author="user", role="user", at_ms=1)
        puts += [
            Put("slots", ("ana", number), encode(entry)),
            Put("bodies", ("ana", number), encode(Body(blocks=(TextBlock(text=f"t{number}"),)))),
        ]
    store.commit(Request(puts=tuple(puts)))
    store.close()
    return state


def spoiled(state: Path, count: int) -> None:
    store = opened(state)
    environment = store._environment
    with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        for number in range(1, count + 1):
            key = encode_key((str, int), ("ana", number))
            raw = transaction.get(key, db=environment.tables["bodies"])
            transaction.put(key, raw[:-1] + b"!", db=environment.tables["bodies"])
    store.close()


def test_each_table_and_each_reference_has_its_rule() -> None:
    assert mending_rules.RULES.keys() == TABLES.keys()
    source = Path(mending_rules.__file__).with_name("check.py").read_text("utf-8")
    assert source.count("wanted.append((") + source.count("wanted += [(") >= 8
    for table, other in mending_rules.DANGLING:
        assert {table, other} <= set(TABLES)


def test_a_damaged_row_of_each_table_is_set_aside_whole_and_put_back_as_it_was(
    tmp_path: Path,
) -> None:
    """Of all tables at once, in a store whose rows name one another by chance, if at all."""
    state = tmp_path / "state"
    filled(state)
    mend(state, "sound")
    undo(state)
    keys = {}
    store = opened(state)
    for table in TABLES:
        # The last, so that the numbers of a table that is appended to are not what is damaged.
        found = [key for key, _ in store.scan(table, limit=2)]
        keys[table] = found[0]
    store.close()
    for table, key in keys.items():
        if table not in ("meta", "set_aside"):
            garble(state, table, key)
    damaged, before = rows_of(state), looked(state)
    assert {each.table for each in before if each.problem == "unreadable"} == {
        *set(TABLES) - {"meta", "set_aside"}
    }
    done = mend(state)
    stay = {(each.finding.table, each.finding.key) for each in done.stays}
    assert stay <= {("run_items", keys["run_items"])}
    left = [each for each in looked(state) if (each.table, each.key) not in stay]
    assert left == []
    kept = {(each.table, each.key) for each in looked(state, kept=True)}
    named = {(table, key) for table, key in keys.items() if table not in ("meta", "set_aside")}
    assert named - kept <= stay
    undone = undo(state)
    assert undone.rows == done.rows
    assert undone.stays == ()
    assert rows_of(state) == damaged
    assert not [each for each in looked(state, kept=True) if each.repair == done.repair]


def test_a_row_of_what_was_set_aside_that_cannot_be_read_is_set_aside_itself(
    messages: Path,
) -> None:
    spoiled(messages, 2)
    assert mend(messages, "one").rows == 2
    garble(messages, "set_aside", (1,))
    done = mend(messages, "two")
    assert (done.rows, done.stays, looked(messages)) == (1, (), [])
    assert [each.table for each in looked(messages, kept=True)] == ["bodies", "set_aside"]


def test_a_key_that_says_nothing_is_taken_out(messages: Path) -> None:
    garble(messages, "waits", b"\xff\x00no key", b"no value")
    (found,) = looked(messages)
    assert found.problem == "unreadable"
    assert mend(messages).rows == 1
    assert looked(messages) == []
    undo(messages)
    assert [each.table for each in looked(messages)] == ["waits"]


@pytest.mark.parametrize("table", ["waits", "account_waits"])
@pytest.mark.parametrize(
    "key", [b"\2anc\0\2m1\0", b"\3ana\0\2m1\0"], ids=["another's key", "no key"]
)
def test_a_wait_under_a_damaged_key_is_repaired_under_the_key_it_was_written_under(
    messages: Path, table: str, key: bytes
) -> None:
    state, own = messages, encode_key((str, str), ("ana", "m1"))
    was = frame(table, own, 1, encode(Wait(deadline_ms=9, reason="w", set_ms=1, act="a")))
    garble(state, table, key, was)
    (finding,) = looked(state)
    assert finding.home == ("ana", "m1")
    assert "written under ('ana', 'm1')" in finding.text
    mend(state)
    store = opened(state)
    ((held, row),) = store.scan(table)
    store.close()
    assert isinstance(row, Row)
    assert (held, row.record.deadline_ms) == (("ana", "m1"), None)
    undo(state)
    assert rows_of(state)[table] == [(key, was)]


def test_a_copy_of_anothers_wait_is_repaired_where_it_stands(messages: Path) -> None:
    own, place = (encode_key((str, str), ("ana", model)) for model in ("m1", "m3"))
    was = frame("waits", own, 1, encode(Wait(deadline_ms=9, reason="w", set_ms=1, act="a")))
    for key in (own, place):
        garble(messages, "waits", key, was)
    (finding,) = looked(messages)
    assert finding.home is None
    mend(messages)
    store = opened(messages)
    ends = {key: row.record.deadline_ms for key, row in store.scan("waits")}  # type: ignore[union-attr]
    store.close()
    assert ends == {("ana", "m1"): 9, ("ana", "m3"): None}


def test_words_take_the_place_of_content_that_is_gone(messages: Path) -> None:
    spoiled(messages, 1)
    mend(messages)
    store = opened(messages, read_only=True)
    (block,) = store.get("bodies", ("ana", 1)).record.blocks  # type: ignore[union-attr]
    assert "set aside" in block.text
    assert store.get("bodies", ("ana", 2)).record.blocks[0].text == "t2"  # type: ignore[union-attr]
    store.close()


def test_what_was_changed_twice_is_put_back_twice_and_the_file_stays_sound(messages: Path) -> None:
    store = opened(messages)
    key = encode_key((str, int), ("ana", 1))
    values = []
    for size in (6_000, 30_000, 10):
        body = Body(blocks=(TextBlock(text="x" * size),))
        store.commit(Request(puts=(Put("bodies", ("ana", 1), encode(body)),)))
        values.append(store._environment.get("bodies", key))
    for before, behind in itertools.pairwise(values):
        kept = SetAside(
            repair="r", table="bodies", key=key, raw=before, placed=behind, problem="unreadable",
            reason="", then="", at_ms=1,
        )  # fmt: skip
        store.commit(Request(appends=(Append("set_aside", encode(kept)),)))
    store.close()
    assert undo(messages).rows == 2
    store = opened(messages, verify=True)
    assert store._environment.get("bodies", key) == values[0]
    store.close()


def test_what_names_an_attachment_whose_head_is_damaged_says_so(messages: Path) -> None:
    data = b"png"
    digest = hashlib.sha256(data).hexdigest()
    image = ImageBlock(digest=digest, media_type="image/png", size_bytes=3, name="a.png")
    head = Attachment(state="whole", media_type="image/png", size_bytes=3, pieces=1, attached_ms=1)
    rows: list[Any] = [
        ("attachments", (digest,), head),
        ("attachment_pieces", (digest, 0), AttachmentPiece(data=data)),
        ("attachment_uses", (digest, "entry", "ana", 1), AttachmentUse(at_ms=1)),
        ("bodies", ("ana", 1), Body(blocks=(image,))),
    ]
    store = opened(messages)
    puts = tuple(Put(table, key, encode(record)) for table, key, record in rows)
    store.commit(Request(puts=puts))
    store.close()
    assert looked(messages) == []
    garble(messages, "attachments", (digest,))
    mend(messages)
    assert looked(messages) == []
    store = opened(messages, read_only=True)
    (gone,) = store.get("bodies", ("ana", 1)).record.blocks  # type: ignore[union-attr]
    assert "a.png" in gone.text
    store.close()
    undo(messages)
    assert [each.table for each in looked(messages)] == ["attachments"]


def test_what_names_an_attachment_that_is_gone_says_so(messages: Path) -> None:
    store = opened(messages)
    image = ImageBlock(digest="0" * 64, media_type="image/png", size_bytes=3, name="a.png")
    body = Body(blocks=(TextBlock(text="see"), image))
    store.commit(Request(puts=(Put("bodies", ("ana", 1), encode(body)),)))
    store.close()
    assert {each.problem for each in looked(messages)} == {"dangling"}
    mend(messages)
    assert looked(messages) == []
    store = opened(messages, read_only=True)
    see, gone = store.get("bodies", ("ana", 1)).record.blocks  # type: ignore[union-attr]
    assert (see.text, "a.png" in gone.text) == ("see", True)
    store.close()


@pytest.mark.parametrize("sequence", ["changes", "log", "set_aside"])
def test_numbers_go_on_behind_all_that_were_given(messages: Path, sequence: str) -> None:
    spoiled(messages, 3)
    mend(messages, "one")
    filled(messages)
    garble(messages, "sequences", (sequence,))
    mend(messages, "two")
    store = opened(messages)
    last = [key[0] for key, _ in store.scan(sequence)][-1]
    following = store.get("sequences", (sequence,)).record.next  # type: ignore[union-attr]
    assert following > last  # type: ignore[operator]
    store.close()
    filled(messages)
    assert looked(messages, kept=True)


def test_a_store_that_would_give_a_revision_twice_is_found_and_mended(messages: Path) -> None:
    store = opened(messages)
    environment, key = store._environment, encode_key((str,), ("changes",))
    with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        transaction.delete(key, db=environment.tables["sequences"])
    store.close()
    (found,) = looked(messages)
    assert (found.problem, found.table) == ("sequence", "changes")
    mend(messages)
    assert looked(messages) == []
    filled(messages)


@pytest.mark.parametrize(
    ("table", "names"),
    [(("turns", ("ana", 4)), "heads"), (("carried", ("ana", 4)), "leases")],
    ids=["turns", "requests"],
)
def test_a_row_that_is_gone_and_had_the_next_number_of_others_is_found_and_made_anew(
    messages: Path, table: tuple[str, Key], names: str
) -> None:
    store = opened(messages)
    records: dict[str, Any] = {
        "turns": Turn(
            slot="ana", state="done", round=1, attempts=1, provider="P", model="m", started_ms=1
        ),
        "carried": Carried(agent="ana", turn=1, round=1, rows=((1, 9),), sent=True),
    }
    store.commit(Request(puts=(Put(*table, encode(records[table[0]])),)))
    store.close()
    (found,) = looked(messages)
    assert (found.table, found.names) == (table[0], (names, ("ana",)))
    mend(messages)
    assert looked(messages) == []
    store = opened(messages, read_only=True)
    row = store.get(names, ("ana",))
    store.close()
    assert row is not None
    if names == "heads":
        assert row.record.last_turn == 4
    else:
        assert row.record.request_next == 5
        assert min(row.record.seq_next, row.record.entry_next) > 300


def test_a_step_of_a_run_that_may_go_on_stays_and_says_what_to_do(messages: Path) -> None:
    store = opened(messages)
    run = Run(
        workflow="w", version=1, state="recovery_required", params=b"\xc0", started_ms=1,
        changed_ms=1,
    )  # fmt: skip
    item = RunItem(path="a", state="done", started_ms=1)
    puts = (Put("runs", ("k", 1), encode(run)), Put("run_items", ("k", 1, 0), encode(item)))
    store.commit(Request(puts=puts))
    store.close()
    garble(messages, "run_items", ("k", 1, 0))
    done = mend(messages)
    ((finding, answer),) = done.stays
    assert (done.rows, done.repair, finding.table) == (0, "", "run_items")
    assert isinstance(answer, Stays)
    assert "abeyance cancel DIR k@1" in answer.why


def test_a_store_whose_own_row_is_bad_is_found_mended_and_put_back(
    messages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = opened(messages)
    was = store.get(*META)
    assert was is not None
    raw = store._environment.get("meta", encode_key((str,), META[1]))
    assert raw is not None
    bad = raw[:-1] + bytes([raw[-1] ^ 1])
    store.close()
    garble(messages, *META, raw=bad)
    with pytest.raises(UnreadableRecordError, match="abeyance check"):
        opened(messages)
    assert [(each.problem, each.table, each.key) for each in looked(messages)] == [
        ("unreadable", *META)
    ]
    assert run("check", messages) == 1
    assert run("check", messages, "--repair", "--yes", "--backup", messages.with_name("b")) == 0
    assert "store.json" in " ".join(capsys.readouterr().out.split())
    assert [each.table for each in looked(messages.with_name("b"))] == ["meta"]
    repaired = looked_up(messages, META)
    assert repaired.counter > was.counter
    assert (repaired.record.format, repaired.record.store_id, repaired.record.created_ms) == (
        was.record.format,
        was.record.store_id,
        was.record.created_ms,
    )
    assert undo(messages).rows == 1
    with pytest.raises(UnreadableRecordError):
        opened(messages)
    assert mend(messages, "again").rows == 1
    opened(messages).close()
    assert looked(messages) == []


def test_a_row_of_the_store_that_a_newer_version_wrote_is_refused_and_stays(
    messages: Path,
) -> None:
    raw_key = encode_key((str,), META[1])
    store = opened(messages, read_only=True)
    row = store.get(*META)
    assert row is not None
    store.close()
    value = msgspec.structs.replace(encode(row.record), version=9)
    garble(messages, *META, raw=frame("meta", raw_key, 9, value))
    before = (messages / "store" / "data.mdb").read_bytes()
    for act in (mend, undo, looked):
        with pytest.raises(UnreadableRecordError) as caught:
            act(messages)
        assert caught.value.other_version
    assert (messages / "store" / "data.mdb").read_bytes() == before


def looked_up(state: Path, place: tuple[str, Any]) -> Any:
    store = opened(state, read_only=True)
    try:
        return store.get(*place)
    finally:
        store.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_death_between_its_commits_leaves_a_store_that_the_next_repair_finishes(
    messages: Path, nth: int
) -> None:
    spoiled(messages, 150)
    damaged = rows_of(messages)
    assert lived(dies, messages, nth).status == KILLED
    left = [each for each in looked(messages) if each.problem == "unreadable"]
    assert len(left) == max(0, 150 - 64 * nth)
    done = mend(messages, "again")
    assert looked(messages) == []
    assert len(looked(messages, kept=True)) == 150
    undo(messages)
    if done.rows:
        assert lived(undoes, messages).status in (0, KILLED)
        undo(messages)
    assert looked(messages, kept=True) == []
    assert rows_of(messages) == damaged


def dies(state: Path, nth: int) -> None:
    arm(f"repair.between_commits:{nth}")
    mend(state, "first")


def undoes(state: Path) -> None:
    arm("repair.between_commits")
    undo(state)


@pytest.mark.slow
def test_nothing_is_changed_where_the_copy_finds_no_room(messages: Path) -> None:
    spoiled(messages, 3)
    before = rows_of(messages)
    assert lived(bounded, messages).status == 0
    assert rows_of(messages) == before
    assert looked(messages, kept=True) == []
    assert not messages.with_name("copy").exists()


def bounded(state: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    with pytest.raises(StorageError, match="making a backup"):
        mend(state)


def test_a_full_disk_under_a_repair_leaves_what_was_there(
    messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(messages, 100)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(room.Writing, "transaction", full)
        with pytest.raises(DiskFullError):
            mend(messages, "one")
    assert len(looked(messages)) == 100
    assert mend(messages, "two").rows == 100


def test_a_store_that_is_open_is_refused_by_the_pid_that_has_it(messages: Path) -> None:
    spoiled(messages, 1)
    for name in ("held", "go"):
        os.mkfifo(messages.parent / name)
    holder = begin(hold, messages)
    (messages.parent / "held").read_text()
    for act in (lambda: mend(messages), lambda: undo(messages)):
        with pytest.raises(StoreInUseError) as caught:
            act()
        assert caught.value.pids == (holder.pid,)
        assert str(holder.pid) in str(caught.value)
    (messages.parent / "go").write_text("go")
    assert holder.wait().status == 0
    assert not messages.with_name("copy").exists()
    assert mend(messages).rows == 1


def hold(state: Path) -> None:
    import socket

    from abeyance.storage.ownership import Ownership

    store = opened(state)
    owned = Ownership(store, store.directory, host=socket.gethostname(), pid=os.getpid())
    (state.parent / "held").write_text("held")
    (state.parent / "go").read_text()
    owned.close()
    store.close()


def test_a_row_that_was_written_since_is_not_put_back(messages: Path) -> None:
    spoiled(messages, 2)
    mend(messages)
    store = opened(messages)
    body = Body(blocks=(TextBlock(text="new"),))
    store.commit(Request(puts=(Put("bodies", ("ana", 1), encode(body)),)))
    store.close()
    undone = undo(messages)
    assert undone.rows == 1
    assert [each.key for each in undone.stays] == [("ana", 1)]
    assert [each.key for each in looked(messages, kept=True)] == [("ana", 1)]
    store = opened(messages, read_only=True)
    assert store.get("bodies", ("ana", 1)).record == body  # type: ignore[union-attr]
    store.close()


# -- the command -------------------------------------------------------------------------------


def run(*arguments: Any) -> int:
    return cli.main([str(each) for each in arguments])


def test_command_says_what_it_will_do_asks_and_does_it(
    messages: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(messages, 2)
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def answer(yes: bool) -> Any:
        return lambda text, **_: asked.append(text) or yes

    monkeypatch.setattr("typer.confirm", answer(False))
    assert run("check", messages, "--repair") == 1
    said = capsys.readouterr()
    assert "set aside" in said.out
    assert "the transcript says in its place that it could not be read" in " ".join(
        said.out.split()
    )
    assert "nothing was changed" in said.err
    assert len(looked(messages)) == 2
    monkeypatch.setattr("typer.confirm", answer(True))
    assert run("check", messages, "--repair", "--backup", messages.with_name("b")) == 0
    assert len(asked) == 2
    assert "2 rows" in capsys.readouterr().out
    assert len(looked(messages.with_name("b"))) == 2
    assert run("check", messages) == 0
    assert "2 rows are set aside" in capsys.readouterr().out
    assert run("check", messages, "--undo-repair", "--yes") == 0
    assert run("check", messages) == 1


def test_command_repairs_without_a_terminal_only_where_it_is_told_to(
    messages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(messages, 1)
    assert run("check", messages, "--repair") == 2
    assert "--yes" in capsys.readouterr().err
    assert run("check", messages, "--repair", "--json") == 2
    capsys.readouterr()
    assert run("check", messages, "--repair", "--undo-repair", "--yes") == 2
    capsys.readouterr()
    assert run("check", messages, "--repair", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 1
    assert (told["stays"], told["findings"]) == ([], [])
    (copy,) = messages.parent.glob("state.before-repair-*")
    assert told["backup"] == str(copy)
    assert len(looked(copy)) == 1
    assert run("check", messages, "--json") == 0
    (kept,) = json.loads(capsys.readouterr().out)["set_aside"]
    assert (kept["table"], kept["repair"]) == ("bodies", told["repair"])
    assert run("check", messages, "--repair", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0
    assert len(list(messages.parent.glob("state.before-repair-*"))) == 1, "nothing to do, no copy"
    assert run("check", messages, "--undo-repair", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert run("check", messages, "--undo-repair", "--yes") == 0
    assert "nothing is set aside" in capsys.readouterr().out


def test_command_refuses_a_store_that_is_open(
    messages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(messages, 1)
    for name in ("held", "go"):
        os.mkfifo(messages.parent / name)
    holder = begin(hold, messages)
    (messages.parent / "held").read_text()
    assert run("check", messages, "--repair", "--yes") == 2
    assert str(holder.pid) in capsys.readouterr().err
    assert run("check", messages, "--undo-repair", "--yes") == 2
    assert str(holder.pid) in capsys.readouterr().err
    (messages.parent / "go").write_text("go")
    holder.wait()
    assert list(messages.parent.glob("state.before-repair-*")) == []


def test_mending_answers_are_of_rows_that_a_check_named() -> None:
    """A rule takes what a check says of, and says what that means."""
    assert all(
        isinstance(rule(None, ("x",)), Mending | Stays)  # type: ignore[arg-type]
        for table, rule in mending_rules.RULES.items()
        if table in mending_rules.OUT or table == "meta"
    )


def test_what_was_set_aside_is_forgotten_once_one_says_so_and_the_copy_has_it(
    messages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(messages, 70)
    assert run("check", messages, "--forget-repairs") == 0
    assert "nothing is set aside" in capsys.readouterr().out
    mend(messages, "one")
    assert run("check", messages, "--forget-repairs") == 2
    assert "--yes" in capsys.readouterr().err
    assert len(looked(messages, kept=True)) == 70
    copy = messages.with_name("two")
    assert run("check", messages, "--forget-repairs", "--yes", "--json", "--backup", copy) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["backup"]) == (70, str(copy))
    assert looked(messages, kept=True) == []
    assert looked(messages) == []
    assert run("check", messages, "--forget-repairs", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["backup"]) == (0, None)
    # The copy is a store with all of them, which can be put back there.
    assert len(looked(copy, kept=True)) == 70
    assert undo(copy).rows == 70


def test_numbers_of_what_is_set_aside_go_on_behind_what_was_forgotten(messages: Path) -> None:
    spoiled(messages, 2)
    mend(messages, "one")
    last = max(each.number for each in looked(messages, kept=True))
    room.forget(messages, messages.with_name("two"), clock_ms=CLOCK.now_ms)
    garble(messages, "bodies", ("ana", 5))
    mend(messages, "three")
    assert [each.number for each in looked(messages, kept=True)] == [last + 1]


def test_nothing_is_forgotten_where_a_process_has_the_store_or_the_copy_fails(
    messages: Path,
) -> None:
    spoiled(messages, 1)
    mend(messages, "one")
    store = opened(messages)
    with pytest.raises(StoreInUseError):
        room.forget(messages, messages.with_name("two"), clock_ms=CLOCK.now_ms)
    store.close()
    with pytest.raises(StorageError, match="is not empty"):
        room.forget(messages, messages.with_name("one"), clock_ms=CLOCK.now_ms)
    assert len(looked(messages, kept=True)) == 1
