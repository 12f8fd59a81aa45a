"""What every store does: written against the port alone, and run on each store there is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abeyance.storage import codec
from abeyance.storage.errors import (
    InvalidRequestError,
    RequestTooLargeError,
    RevisionPrunedError,
    StoreBusyError,
    StoreClosedError,
)
from abeyance.storage.store import (
    Append,
    Chain,
    Committed,
    Delete,
    Guard,
    NotStored,
    Put,
    Refused,
    Request,
    Rows,
    Value,
)
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.agents import Agent, Conversation, Ephemeral, Sharer
from abeyance.storage.tables.approvals import Approval
from abeyance.storage.tables.attachments import Attachment, AttachmentPiece, AttachmentUse
from abeyance.storage.tables.blocks import (
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from abeyance.storage.tables.contexts import Context
from abeyance.storage.tables.edits import Edit, Revision
from abeyance.storage.tables.kept import (
    DeadLetter,
    Delivery,
    EntryOrigin,
    Quarantined,
    Reminder,
)
from abeyance.storage.tables.outboxes import Cursor, Outbox
from abeyance.storage.tables.ownership import Mode, Owner
from abeyance.storage.tables.prompts import Prompt
from abeyance.storage.tables.repairs import SetAside
from abeyance.storage.tables.runs import (
    Choice,
    Run,
    RunIndexed,
    RunItem,
    RunKey,
    RunTransition,
    Suspension,
)
from abeyance.storage.tables.schedules import DrawsOn, Occurrence, Schedule, ScheduleIndexed
from abeyance.storage.tables.slots import (
    Body,
    Carried,
    Entry,
    Head,
    Held,
    Inboxed,
    Lease,
    MessageId,
    ToolCall,
    Turn,
    Wake,
)
from abeyance.storage.tables.spent import Budgeted, Spent, SpentPart, SpentQuarter
from abeyance.storage.tables.usage import Usage, Window
from abeyance.storage.tables.waits import (
    Alert,
    Alerted,
    AlertOwed,
    LogLine,
    Override,
    WaitReleased,
)

A, B = ("ana", 1), ("ana", 2)

RECORDS = {
    "sharers": Sharer(since_ms=1),
    "agents": Agent(kind="resident", slot="s", provider="p", model="m", created_ms=1),
    "conversations": Conversation(agent="a.1", base_seq=4, state="open", opened_ms=1),
    "ephemerals": Ephemeral(started_ms=1),
    "owners": Owner(nonce="n", fence=3),
    "modes": Mode(state="quiesced", reason="upgrade", by="ops", at_ms=2, act="x"),
    "attachments": Attachment(
        state="whole", media_type="image/png", size_bytes=5, pieces=1, attached_ms=3
    ),
    "attachment_pieces": AttachmentPiece(data=b"\0\xffabc"),
    "attachment_uses": AttachmentUse(at_ms=3),
    "ids": MessageId(entry=4, state="slot", seq=2, body_crc=2**32 - 1),
    "bodies": Body(
        blocks=(
            TextBlock(text="héllo\0 🌍"),
            ThinkingBlock(thinking="hm", signature="s", redacted=True),
            ToolUseBlock(id="c", name="look", input={"n": [1, 2.5, None, {"deep": True}], "": -1}),
            ToolResultBlock(tool_use_id="c", content=(TextBlock(text=""),), is_error=True),
        )
    ),
    "inbox": Inboxed(
        message="m",
        author="a",
        agent="g",
        wake=True,
        injectable=False,
        own=False,
        body_crc=1,
        body_bytes=2,
        accepted_ms=8_640_000_000_000_000,
    ),
    "slots": Entry(entry=1, message="m", author="a", role="marker", at_ms=0),
    "leases": Lease(token=1, entry_next=2, seq_next=3, request_next=4),
    "carried": Carried(agent="a", turn=1, round=2, rows=((1, 4), (6, 6)), sent=False),
    "wakes": Wake(reason="operator", author="a", at_ms=1),
    "heads": Head(last_turn=2, open_turn=2),
    "turns": Turn(
        slot="s",
        state="held",
        round=1,
        attempts=2,
        held=Held(agent="a", model="m", cause="wait"),
        provider="p",
        model="m",
        answers=(1, 2, 3),
        started_ms=5,
    ),
    "tool_calls": ToolCall(
        id="c", name="look", state="done", result=(TextBlock(text="r"),), started_ms=1, ended_ms=2
    ),
    "approvals": Approval(
        id="c",
        tool="pay",
        input="{}",
        state="denied",
        otherwise="deny",
        asked_ms=1,
        deadline_ms=2,
        by="api:ops",
        note="no",
        decided_ms=2,
    ),
    "waits": WaitReleased(by="ops", at_ms=3, act="x"),
    "account_waits": WaitReleased(by="ops", at_ms=3, act="x"),
    "overrides": Override(fingerprint="f", by="ops", at_ms=3, act="x"),
    "alerts": Alert(kind="k", agent="a", model="m", text="t", episode="e", at_ms=1),
    "alerted": Alerted(episode="e"),
    "alerts_owed": AlertOwed(at_ms=1),
    "prompts": Prompt(text="You are Ana.", made_ms=1),
    "contexts": Context(first=1, text="earlier", strategy="Summary", made_ms=1),
    "usage": Usage(windows=(Window(name="five_hour", used_percent=12.5, resets_ms=2),), read_ms=1),
    "spent": Spent(
        purpose="turn",
        provider="p",
        model="m",
        outcome="replied",
        input_tokens=1,
        output_tokens=2,
        cache_read_tokens=0,
        cache_write_tokens=3,
        cost=2**62,
        currency="EUR",
        at_ms=1,
    ),
    "budgets": Budgeted(period_ms=900_000, allowances=2, used_up_ms=1_000_000),
    "spent_quarters": SpentQuarter(
        parts=(SpentPart(provider=None, model="m", calls=1, unknown=1),)
    ),
    "edits": Edit(
        seq=3,
        row=Entry(entry=1, message="m", author="a", role="user", at_ms=0, edited=4),
        removes=True,
        act="x",
        by="ops",
        at_ms=1,
    ),
    "revisions": Revision(recast=((3, 5), (7, 9))),
    "run_keys": RunKey(generation=2, is_open=True),
    "runs": Run(
        workflow="report",
        version=1,
        state="waiting_for_capacity",
        params=b"\x80",
        suspension=Suspension(path="a/b", ordinal=3, attempt=1, failure="limit", since_ms=4),
        choice=Choice(provider="p", model="m"),
        started_ms=1,
        changed_ms=4,
    ),
    "run_items": RunItem(path="a/b", state="done", result=b"\xc0", started_ms=1, ended_ms=2),
    "run_transitions": RunTransition(before=None, after="running", by="host", at_ms=1),
    "run_index": RunIndexed(workflow="report"),
    "schedules": Schedule(
        workflow="report",
        run_key="nightly",
        params=b"\xc0",
        anchor_ms=1,
        cron="0 3 * * *",
        zone="Europe/Vienna",
        draws_on=(DrawsOn(credential=None, model="m"),),
        next_ms=2,
        by="host",
        added_ms=1,
        changed_ms=1,
    ),
    "schedule_index": ScheduleIndexed(),
    "occurrences": Occurrence(due_ms=1, outcome="skipped", cause="run_open", run="k@1", at_ms=1),
    "outboxes": Outbox(agent="ana", begun_ms=1),
    "cursors": Cursor(seq=3, message="m", at_ms=2),
    "reminders": Reminder(due_ms=5, every_ms=7, body=b"\xc0", set_ms=1),
    "deliveries": Delivery(deliveries=2, process="nonce", at_ms=1),
    "dead_letters": DeadLetter(
        actor="a",
        reason="r",
        message="m",
        body=b"\xa1m",
        origin=EntryOrigin(kind="quarantine", seq=3),
        replays=1,
        replayed_by="ops",
        replayed_ms=2,
        at_ms=1,
    ),
    "quarantine": Quarantined(actor="a", incarnation=1, message="m", error="e", at_ms=1),
    "set_aside": SetAside(
        repair="r1",
        table="ids",
        key=b"\x02",
        raw=b"\xff\x00",
        placed=None,
        problem="unreadable",
        reason="checksum",
        then="gone",
        at_ms=1,
    ),
    "log": LogLine(event="e", at_ms=1),
}
KEPT = {"meta", "processes", "sequences", "changes"}


def _key(table: str) -> tuple[Any, ...]:
    parts = {str: f"{table} name", int: 7}
    return tuple(parts[kind] for kind in TABLES[table].key)


# --- rows and counters


def test_a_row_counts_its_puts_from_one(store: Any, rows: Any) -> None:
    assert store.get("wakes", A) is None
    for counter in (1, 2, 3):
        (outcome,) = store.commit(Request(puts=(rows.put(A, f"author {counter}"),)))
        assert isinstance(outcome, Committed)
        row = store.get("wakes", A)
        assert (row.counter, row.record) == (counter, rows.wake(f"author {counter}"))


@pytest.mark.parametrize("table", sorted(set(TABLES) - KEPT))
def test_a_record_is_read_as_it_was_written(store: Any, opener: Any, table: str) -> None:
    record = RECORDS[table]
    value = codec.encode(record)
    if TABLES[table].append:
        (outcome,) = store.commit(Request(appends=(Append(table, value),)))
        (key,) = outcome.allotted
    else:
        key = _key(table)
        store.commit(Request(puts=(Put(table, key, value),)))
    assert store.get(table, key).record == record
    assert [(found, row.record) for found, row in opener.crash(store).scan(table)] == [
        (key, record)
    ]


def test_a_deleted_row_is_gone_and_begins_again_at_one(store: Any, rows: Any) -> None:
    store.commit(Request(puts=(rows.put(A),)), Request(puts=(rows.put(A),)))
    store.commit(Request(deletes=(Delete("wakes", A),)))
    assert store.get("wakes", A) is None
    assert list(store.scan("wakes")) == []
    store.commit(rows.cas(A, 0))
    assert store.get("wakes", A).counter == 1


def test_deleting_a_row_that_is_not_there_holds(store: Any) -> None:
    (outcome,) = store.commit(Request(deletes=(Delete("wakes", A),)))
    assert isinstance(outcome, Committed)


# --- guards


@pytest.mark.parametrize("there", [0, 1, 2])
@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_guard_holds_only_for_the_rows_counter(
    store: Any, rows: Any, there: int, asked: int
) -> None:
    for _ in range(there):
        store.commit(Request(puts=(rows.put(A),)))
    (outcome,) = store.commit(Request(guards=(rows.guard(A, asked),), puts=(rows.put(B),)))
    assert isinstance(outcome, Committed if there == asked else Refused)
    assert (store.get("wakes", B) is not None) == (there == asked)


def test_a_refused_request_leaves_no_trace_and_does_not_fail_its_batch(
    store: Any, rows: Any
) -> None:
    store.commit(Request(puts=(rows.put(A, "first"),)))
    before = store.revision()
    outcomes = store.commit(
        rows.cas(("bea", 1), 0),
        Request(
            guards=(rows.guard(A, 0),),
            puts=(rows.put(A, "second"), rows.put(B)),
            appends=(rows.log("lost"),),
            deletes=(Delete("wakes", ("bea", 1)),),
        ),
        rows.cas(("bea", 2), 0),
    )
    assert [type(outcome) for outcome in outcomes] == [Committed, Refused, Committed]
    assert store.get("wakes", A).record.author == "first"
    assert sorted(rows.all(store)) == [A, ("bea", 1), ("bea", 2)]
    assert rows.all(store, "log") == {}
    assert {key for _, _, key in store.changes(before)} == {("bea", 1), ("bea", 2)}


def test_a_refusal_returns_every_row_it_was_refused_by(store: Any, rows: Any) -> None:
    store.commit(Request(puts=(rows.put(A, "there"),)))
    guards = (rows.guard(A, 5), rows.guard(B, 1), rows.guard(("cy", 1), 0))
    (refused,) = store.commit(Request(guards=guards, puts=(rows.put(B),)))
    assert not refused.behind
    assert [refusal.guard for refusal in refused.refusals] == [guards[0], guards[1]]
    assert refused.refusals[0].row == store.get("wakes", A)
    assert refused.refusals[1].row is None


def test_a_guard_sees_what_earlier_requests_of_its_batch_did(store: Any, rows: Any) -> None:
    outcomes = store.commit(
        rows.cas(A, 0, "one"),
        rows.cas(A, 1, "two"),
        rows.cas(A, 1, "lost"),
        Request(guards=(rows.guard(A, 2),), deletes=(Delete("wakes", A),)),
        rows.cas(A, 2, "lost"),
        rows.cas(A, 0, "three"),
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Committed, Committed, Refused, Committed, Refused, Committed]
    assert outcomes[2].refusals[0].row.record.author == "two"
    assert outcomes[4].refusals[0].row is None
    assert (store.get("wakes", A).counter, store.get("wakes", A).record.author) == (1, "three")


def test_a_guard_does_not_see_its_own_requests_puts(store: Any, rows: Any) -> None:
    request = Request(guards=(rows.guard(A, 1),), puts=(rows.put(A),))
    (outcome,) = store.commit(request)
    assert isinstance(outcome, Refused)


def many(rows: Any, agent: str, *places: int, author: str = "u", fresh: bool = False) -> Rows:
    wakes = [codec.pack_record(rows.wake(author)) for _ in places]
    return Rows("wakes", "wake", 1, (agent,), list(places), wakes, fresh)


def test_rows_are_puts_each_of_which_counts(store: Any, rows: Any) -> None:
    first = Request(puts=(rows.put(("bea", 1)),), rows=(many(rows, "ana", 1, 2, author="one"),))
    assert first.ops == 3
    outcomes = store.commit(first, Request(rows=(many(rows, "ana", 1, author="two"),)))
    assert [type(outcome) for outcome in outcomes] == [Committed, Committed]
    assert store.get("wakes", A).counter == 2
    assert store.get("wakes", A).record.author == "two"
    assert (store.get("wakes", B).counter, store.get("wakes", B).record.author) == (1, "one")


def test_fresh_rows_are_refused_together_where_one_is_there(store: Any, rows: Any) -> None:
    store.commit(Request(puts=(rows.put(B, "there"),)))
    fresh = Request(rows=(many(rows, "ana", 1, 2, fresh=True),))
    assert fresh.ops == 4
    refused, held = store.commit(fresh, Request(rows=(many(rows, "bea", 1, fresh=True),)))
    (refusal,) = refused.refusals
    assert (refusal.guard, refusal.row) == (rows.guard(B, 0), store.get("wakes", B))
    assert isinstance(held, Committed)
    assert store.get("wakes", A) is None


def test_a_guard_alone_changes_nothing(store: Any, rows: Any) -> None:
    store.commit(Request(puts=(rows.put(A),)))
    before = store.revision()
    (outcome,) = store.commit(Request(guards=(rows.guard(A, 1),)))
    assert outcome == Committed(before)
    assert store.revision() == before


# --- appends


def test_appends_get_keys_in_commit_order(store: Any, rows: Any) -> None:
    outcomes = store.commit(
        Request(appends=(rows.log("a"), rows.log("b"))), Request(appends=(rows.log("c"),))
    )
    keys = [key for outcome in outcomes for key in outcome.allotted]
    assert keys == sorted(set(keys))
    assert [rows.all(store, "log")[key].record.text for key in keys] == ["a", "b", "c"]


def test_a_key_is_never_allotted_twice(store: Any, opener: Any, rows: Any) -> None:
    seen: list[Any] = []
    for _ in range(3):
        (outcome,) = store.commit(Request(appends=(rows.log(), rows.log())))
        seen += outcome.allotted
        store.commit(Request(deletes=tuple(Delete("log", key) for key in outcome.allotted)))
        store = opener.crash(store)
    assert seen == sorted(set(seen))


def test_a_put_carries_the_key_its_request_was_allotted(store: Any, rows: Any) -> None:
    request = Request(
        puts=(rows.put(A, allotted=1), rows.put(B)), appends=(rows.log("x"), rows.log("y"))
    )
    (outcome,) = store.commit(request)
    assert store.get("wakes", A).allotted == outcome.allotted[1]
    assert store.get("wakes", B).allotted is None


def test_an_appended_row_may_be_put_under_its_guard_and_deleted(store: Any, rows: Any) -> None:
    (outcome,) = store.commit(Request(appends=(rows.log("x"),)))
    (key,) = outcome.allotted
    value = rows.log("y").value
    store.commit(Request(guards=(Guard("log", key, 1),), puts=(Put("log", key, value),)))
    assert (store.get("log", key).counter, store.get("log", key).record.text) == (2, "y")


# --- chains


def test_a_refusal_refuses_what_was_predicted_on_it(store: Any, rows: Any) -> None:
    chain, other = Chain("slot ana", 0), Chain("slot bea", 0)
    outcomes = store.commit(
        rows.cas(A, 0, chain=chain),
        rows.cas(B, 7, chain=chain),
        rows.cas(("ana", 3), 0, chain=chain),
        rows.cas(("bea", 1), 0, chain=other),
        rows.cas(("cy", 1), 0),
    )
    assert [type(outcome) for outcome in outcomes] == [
        Committed,
        Refused,
        Refused,
        Committed,
        Committed,
    ]
    assert [outcome.behind for outcome in outcomes[1:3]] == [False, True]
    assert outcomes[2].refusals == ()
    assert store.get("wakes", ("ana", 3)) is None


def test_a_chain_stays_refused_in_later_batches_until_its_epoch_rises(
    store: Any, rows: Any
) -> None:
    store.commit(rows.cas(A, 7, chain=Chain("s", 0)))
    (late,) = store.commit(rows.cas(B, 0, chain=Chain("s", 0)))
    assert late == Refused(behind=True)
    (anew,) = store.commit(rows.cas(B, 0, chain=Chain("s", 1)))
    assert isinstance(anew, Committed)
    (older,) = store.commit(rows.cas(A, 0, chain=Chain("s", 0)))
    assert older == Refused(behind=True)


def test_requests_can_be_pipelined_on_predicted_counters(store: Any, rows: Any) -> None:
    chain = Chain("s", 0)
    outcomes = store.commit(*(rows.cas(A, n, f"{n}", chain=chain) for n in range(20)))
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert store.get("wakes", A).counter == 20


# --- batches


def test_outcomes_come_in_the_order_of_the_requests(store: Any, rows: Any) -> None:
    outcomes = store.commit(*(rows.cas(("ana", n % 7), 0) for n in range(20)))
    assert [isinstance(outcome, Committed) for outcome in outcomes] == [True] * 7 + [False] * 13


def test_an_empty_request_is_a_barrier(store: Any, rows: Any) -> None:
    first, barrier = store.commit(Request(puts=(rows.put(A),)), Request())
    assert barrier == Committed(first.revision)
    assert store.commit(Request()) == [Committed(first.revision)]
    assert store.commit() == []


def test_one_batch_is_out_at_a_time(store: Any, opener: Any, rows: Any) -> None:
    told = threading.Event()
    go_on = opener.stall(store)
    answers: list[Any] = []

    def done(result: Any) -> None:
        answers.append(result)
        told.set()

    store.submit([rows.cas(A, 0)], done)
    with pytest.raises(StoreBusyError):
        store.submit([rows.cas(B, 0)], done)
    go_on()
    assert told.wait(60)
    assert len(answers) == 1
    assert isinstance(answers[0][0], Committed)
    assert store.get("wakes", B) is None


def test_commit_waits_for_a_batch_that_is_out(store: Any, opener: Any, rows: Any) -> None:
    go_on = opener.stall(store)
    store.submit([rows.cas(A, 0)], lambda _: None)
    threading.Timer(0.05, go_on).start()
    (outcome,) = store.commit(rows.cas(B, 0))
    assert isinstance(outcome, Committed)
    assert store.get("wakes", A) is not None


def test_done_may_submit_the_next_batch(store: Any, rows: Any) -> None:
    told = threading.Event()

    def first(result: Any) -> None:
        store.submit([rows.cas(A, 1)], lambda result: told.set())

    store.submit([rows.cas(A, 0)], first)
    assert told.wait(60)
    assert store.get("wakes", A).counter == 2


def test_a_request_over_the_limits_is_refused_before_any_effect(store: Any, rows: Any) -> None:
    limits = store.limits
    fits = Request(guards=(rows.guard(A, 0),) * limits.ops_max)
    assert isinstance(store.commit(fits)[0], Committed)
    many = Request(guards=(rows.guard(A, 0),) * (limits.ops_max + 1))
    with pytest.raises(RequestTooLargeError) as caught:
        store.commit(rows.cas(A, 0), many)
    assert (caught.value.field, caught.value.size) == ("batch[1].ops", limits.ops_max + 1)
    body = b"x" * limits.payload_bytes_max
    large = Request(puts=(Put("wakes", A, Value("wake", 1, body, 0)),))
    with pytest.raises(RequestTooLargeError) as caught:
        store.commit(rows.cas(A, 0), large)
    assert caught.value.field == "batch[1].payload"
    assert store.get("wakes", A) is None


_WAKE = Value("wake", 1, b"", 0)
_LOG = Value("log_line", 1, b"", 0)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(guards=(Guard("nothing", A, 0),)), "batch[0].guards[0].table"),
        (Request(puts=(Put("nothing", A, _WAKE),)), "batch[0].puts[0].table"),
        (Request(deletes=(Delete("nothing", A),)), "batch[0].deletes[0].table"),
        (Request(appends=(Append("nothing", _LOG),)), "batch[0].appends[0].table"),
        (Request(guards=(Guard("wakes", ("ana",), 0),)), "batch[0].guards[0].key"),
        (Request(guards=(Guard("wakes", ["ana", 1], 0),)), "batch[0].guards[0].key"),  # type: ignore[arg-type]
        (Request(puts=(Put("wakes", (1, "ana"), _WAKE),)), "batch[0].puts[0].key[0]"),
        (Request(puts=(Put("wakes", ("ana", -1), _WAKE),)), "batch[0].puts[0].key[1]"),
        (Request(puts=(Put("wakes", ("ana", 2**64), _WAKE),)), "batch[0].puts[0].key[1]"),
        (Request(puts=(Put("wakes", ("ana", True), _WAKE),)), "batch[0].puts[0].key[1]"),
        (Request(deletes=(Delete("wakes", ("\ud800", 1)),)), "batch[0].deletes[0].key[0]"),
        (Request(deletes=(Delete("wakes", ("x" * 600, 1)),)), "batch[0].deletes[0].key[0]"),
        (Request(puts=(Put("wakes", A, _LOG),)), "batch[0]"),
        (Request(puts=(Put("wakes", A, _WAKE),) * 2), "batch[0]"),
        (Request(puts=(Put("wakes", A, _WAKE),), deletes=(Delete("wakes", A),)), "batch[0]"),
        (Request(deletes=(Delete("wakes", A),) * 2), "batch[0]"),
        (Request(appends=(Append("wakes", _WAKE),)), "batch[0]"),
        (Request(appends=(Append("log", _WAKE),)), "batch[0]"),
        (Request(puts=(Put("log", (1,), _LOG),)), "batch[0]"),
        (Request(puts=(Put("wakes", A, msgspec.structs.replace(_WAKE, allotted=0)),)), "batch[0]"),
        (Request(puts=(Put("meta", ("x",), Value("store", 1, b"", 0)),)), "batch[0]"),
        (Request(puts=(Put("sequences", ("log",), Value("sequence", 1, b"", 0)),)), "batch[0]"),
        (Request(puts=(Put("processes", ("x",), Value("process", 1, b"", 0)),)), "batch[0]"),
        (Request(deletes=(Delete("sequences", ("log",)),)), "batch[0]"),
        (Request(deletes=(Delete("meta", ("store",)),)), "batch[0]"),
        ("a request", "batch[0]"),
    ],
)
def test_what_is_no_request_is_refused_by_field_before_any_effect(
    store: Any, rows: Any, request_: Any, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        store.commit(request_, rows.cas(B, 0))
    assert caught.value.field == field
    assert rows.all(store) == {}


# --- reading


def test_a_scan_reads_the_rows_of_a_prefix_in_key_order(store: Any, rows: Any) -> None:
    keys = [("a", 1), ("a", 2), ("a", 255), ("a", 256), ("a\0", 0), ("ab", 1), ("b", 0)]
    store.commit(*(Request(puts=(rows.put(key),)) for key in reversed(keys)))
    assert [key for key, _ in store.scan("wakes")] == keys
    assert [key for key, _ in store.scan("wakes", reverse=True)] == keys[::-1]
    assert [key for key, _ in store.scan("wakes", ("a",))] == keys[:4]
    assert [key for key, _ in store.scan("wakes", ("a",), reverse=True)] == keys[3::-1]
    assert [key for key, _ in store.scan("wakes", ("a", 255))] == [("a", 255)]
    assert list(store.scan("wakes", ("nobody",))) == []


def test_rows_of_a_table_are_counted(store: Any, opener: Any, rows: Any) -> None:
    assert store.count("wakes") == 0
    store.commit(*(Request(puts=(rows.put(("a", place)),)) for place in range(1, 301)))
    store.commit(Request(deletes=(Delete("wakes", ("a", 7)), Delete("wakes", ("a", 999)))))
    assert store.count("wakes") == len(list(store.scan("wakes"))) == 299
    assert opener.reopen(store).count("wakes") == 299


@pytest.mark.parametrize(
    ("after", "reverse", "wanted"),
    [
        (("a", 2), False, [3, 4]),
        (("a", 2), True, [1, 0]),
        (("a", 9), False, []),
        (("a", 9), True, [4, 3, 2, 1, 0]),
        (("", 0), False, [0, 1, 2, 3, 4]),
        (("", 0), True, []),
        (("b", 0), False, []),
        (("b", 0), True, [4, 3, 2, 1, 0]),
    ],
)
def test_a_scan_goes_on_after_a_key(
    store: Any, rows: Any, after: Any, reverse: bool, wanted: list[int]
) -> None:
    store.commit(*(Request(puts=(rows.put(("a", n)),)) for n in range(5)))
    store.commit(Request(puts=(rows.put(("b", 1)), rows.put(("A", 1)))))
    found = store.scan("wakes", ("a",), after=after, reverse=reverse)
    assert [key[1] for key, _ in found] == wanted
    found = store.scan("wakes", ("a",), after=after, reverse=reverse, limit=1)
    assert [key[1] for key, _ in found] == wanted[:1]


def test_a_scan_with_a_limit_reads_no_more(store: Any, rows: Any) -> None:
    store.commit(*(Request(puts=(rows.put(("a", n)),)) for n in range(5)))
    assert [key[1] for key, _ in store.scan("wakes", limit=3)] == [0, 1, 2]
    assert [key[1] for key, _ in store.scan("wakes", limit=2, reverse=True)] == [4, 3]
    assert list(store.scan("wakes", limit=0)) == []


def test_a_scan_begun_is_of_the_state_it_began_in(store: Any, rows: Any) -> None:
    store.commit(*(Request(puts=(rows.put(("a", n)),)) for n in range(5)))
    scan = store.scan("wakes", limit=1000)
    first = next(scan)
    store.commit(Request(deletes=(Delete("wakes", ("a", 3)),), puts=(rows.put(("a", 9)),)))
    assert [key[1] for key, _ in [first, *scan]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("call", ["get", "scan", "prefix", "after"])
def test_reading_what_is_no_key_is_refused(store: Any, call: str) -> None:
    calls = {
        "get": lambda: store.get("wakes", ("ana",)),
        "scan": lambda: list(store.scan("nothing")),
        "prefix": lambda: list(store.scan("wakes", (1,))),
        "after": lambda: list(store.scan("wakes", after=("ana",))),
    }
    with pytest.raises(InvalidRequestError):
        calls[call]()


# --- revisions and changes


def test_each_writing_batch_takes_the_next_revision(store: Any, rows: Any) -> None:
    first = store.revision()
    one, two = store.commit(rows.cas(A, 0), rows.cas(B, 0))
    (three,) = store.commit(rows.cas(A, 1))
    assert first < one.revision == two.revision < three.revision == store.revision()


def test_changes_tell_what_was_written_and_deleted_since(
    store: Any, opener: Any, rows: Any
) -> None:
    start = store.revision()
    (one,) = store.commit(Request(puts=(rows.put(A),), appends=(rows.log(),)))
    (two,) = store.commit(Request(deletes=(Delete("wakes", A),), puts=(rows.put(B),)))
    store = opener.reopen(store)
    assert sorted(store.changes(start)) == sorted(
        [
            (one.revision, "log", one.allotted[0]),
            (one.revision, "wakes", A),
            (two.revision, "wakes", A),
            (two.revision, "wakes", B),
        ]
    )
    assert {change[0] for change in store.changes(one.revision)} == {two.revision}
    assert list(store.changes(two.revision)) == []


def test_changes_never_cut_a_revision(store: Any, rows: Any) -> None:
    start = store.revision()
    for _ in range(3):
        store.commit(Request(puts=tuple(rows.put(("a", n)) for n in range(100))))
    found = store.changes(start, limit=50)
    assert len(found) == 100
    assert len({revision for revision, _, _ in found}) == 1
    assert len(store.changes(start, limit=101)) == 200


def test_changes_that_are_pruned_are_an_error(opener: Any, rows: Any) -> None:
    store = opener.open(changes_kept=10)
    for n in range(150):
        store.commit(Request(puts=(rows.put(("a", n)),)))
    with pytest.raises(RevisionPrunedError) as caught:
        store.changes(1)
    oldest = caught.value.oldest
    assert store.changes(oldest - 1)[0][0] == oldest
    assert len(store.changes(store.revision() - 10)) == 10


# --- openings


def test_what_was_committed_survives_closing_and_dying(store: Any, opener: Any, rows: Any) -> None:
    store.commit(rows.cas(A, 0, "one"))
    store = opener.reopen(store)
    store.commit(rows.cas(A, 1, "two"), Request(appends=(rows.log("x"),)))
    revision = store.revision()
    store = opener.crash(store)
    assert (store.get("wakes", A).counter, store.get("wakes", A).record.author) == (2, "two")
    assert store.revision() == revision


def test_every_opening_has_a_nonce_of_its_own(store: Any, opener: Any) -> None:
    first = store.nonce
    assert store.get("processes", (first,)) is not None
    store = opener.reopen(store)
    assert store.nonce != first
    assert store.get("processes", (store.nonce,)) is not None


def test_a_closed_store_refuses_everything(store: Any, rows: Any) -> None:
    store.close()
    store.close()
    for call in (
        lambda: store.submit([rows.cas(A, 0)], lambda result: None),
        lambda: store.commit(rows.cas(A, 0)),
        lambda: store.get("wakes", A),
        lambda: list(store.scan("wakes")),
        lambda: store.count("wakes"),
        lambda: store.revision(),
        lambda: store.changes(0),
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_close_waits_for_the_batch_that_is_out(lmdb_opener: Any, rows: Any) -> None:
    """The memory store answers before `submit` returns, or when the test itself says so."""
    store = lmdb_opener.open()
    answers: list[Any] = []
    store.submit([rows.cas(A, 0)], answers.append)
    store.close()
    assert isinstance(answers[0][0], Committed)


# --- what only the memory store can be told


def test_a_batch_that_is_not_stored_breaks_its_chains(rows: Any, make_opener: Any) -> None:
    store = make_opener("memory", Path()).open()
    store.fail_next = OSError("told to")
    (outcome,) = store.commit(rows.cas(A, 0, chain=Chain("s", 0)))
    assert isinstance(outcome, NotStored)
    assert store.commit(rows.cas(B, 0, chain=Chain("s", 0))) == [Refused(behind=True)]
    assert isinstance(store.commit(rows.cas(B, 0, chain=Chain("s", 1)))[0], Committed)


def test_the_memory_store_refuses_serves_and_answers_from_a_thread_when_told(
    rows: Any, make_opener: Any
) -> None:
    store = make_opener("memory", Path()).open()
    store.refuse_next = 1
    assert store.commit(rows.cas(A, 0), rows.cas(B, 0))[0] == Refused()
    store.service_next = "told to"
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)
    store.done_in_thread = True
    threads: list[Any] = []
    told = threading.Event()
    store.submit([], lambda result: (threads.append(threading.current_thread()), told.set()))
    assert told.wait(60)
    assert threads[0] is not threading.current_thread()
