"""A turn's life on its slot: start, reply, boundary, hold, end, and every prefix of their plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from abeyance.actors.domain.errors import LeaseLostError
from abeyance.actors.domain.slot_long import whole
from abeyance.actors.domain.slot_messages import NothingToDo, TurnStart
from abeyance.actors.domain.slot_turns import (
    UNKNOWN,
    has_done,
    plan_boundary,
    plan_end,
    plan_hold,
    plan_round,
    plan_start,
)
from abeyance.storage.errors import InvalidRecordError, RequestTooLargeError
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock
from abeyance.storage.tables.slots import Turn

from .desk import rows
from .slots import (
    SLOT,
    BookDesk,
    accept,
    check,
    close,
    end,
    hold,
    load,
    places,
    record,
    results,
    shown,
    start,
    text,
    waiting,
    wakes_of,
)

MANY = 300


def turn_of(desk: BookDesk, agent: str = "ana") -> Turn:
    found: Turn = list(rows(desk.store, "turns", (agent,)).values())[-1]
    return found


def carried(desk: BookDesk) -> list[tuple[int, list[int], bool | None]]:
    return [
        (row.round, places(desk.store, row.rows), row.sent)
        for row in rows(desk.store, "carried", (SLOT,)).values()
    ]


def snapshot(desk: BookDesk) -> Any:
    book = desk.book
    return msgspec.json.encode(
        [
            book.lease,
            list(book.inbox),
            book.inbox_bytes,
            {agent: list(wakes) for agent, wakes in book.wakes.items()},
            book.ranges,
            book._entry_next,
            book._seq_next,
            {agent: [head.counter, head.record] for agent, head in book.heads.items()},
            {agent: [turn.counter, turn.record] for agent, turn in book.turns.items()},
            [book._lease.counter, book.answered],
        ]
    )


# -- start -------------------------------------------------------------------------------------


def test_no_turn_starts_where_nothing_asks_for_one() -> None:
    desk = BookDesk()
    desk.accept("backfill", wake=False)
    assert desk.start() == NothingToDo()
    assert rows(desk.store, "leases") == {}


def test_a_start_consumes_the_wakes_it_answers_and_grants_the_lease() -> None:
    desk = BookDesk()
    desk.accept("a")
    desk.accept("b")
    granted = desk.start()
    assert granted == TurnStart("ana", 1, 1, 0, 1, 0, None, prompt=0)
    assert rows(desk.store, "wakes") == {}
    assert turn_of(desk).answers == (1, 2)
    assert carried(desk) == [(1, [1, 2], False)]


@pytest.mark.behaviour("D-017")
def test_a_fresh_turn_takes_everything_held_kinds_included() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("own", own=True)
    desk.accept("b")
    desk.hold(turn)
    assert shown(desk.store) == ["user: go", "assistant: own", "user: b"]
    desk.accept("c")
    again = desk.start()
    assert carried(desk)[-1] == (1, [1, 2, 3, 4], False)
    assert (again.turn, again.token, again.attempts) == (1, 2, 1)


@pytest.mark.behaviour("D-017")
def test_a_fresh_turn_takes_what_a_death_left_waiting_kinds_included() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("own", own=True)
    desk.accept("b")
    # The hold is in, and a death came before what lands the inbox.
    desk.book.drain_all = lambda chain: []  # type: ignore[method-assign]
    desk.book.prefix = lambda **how: []  # type: ignore[method-assign]
    desk.hold(turn)
    desk.reload()
    assert waiting(desk.store) == ["own", "b"]
    desk.start()
    assert waiting(desk.store) == []
    assert carried(desk)[-1] == (1, [1, 2, 3], False)


@pytest.mark.parametrize("wakes", [True, False], ids=["all wake", "one wakes"])
def test_a_start_with_a_long_inbox_is_cut_into_requests_each_prefix_of_which_is_valid(
    wakes: bool,
) -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    entries = desk.fill(MANY, wake=wakes)
    desk.end(turn, marker="")
    desk.accept("last")
    # Put them back: the slot was leased, and its turn died with nothing landed.
    asked = wakes_of(desk.store)
    assert len(asked) == (MANY + 1 if wakes else 1)
    plan = plan_start(desk.book, start(), desk.chain)
    for length in range(len(plan.requests) + 1):
        half = desk._copy()
        for request in plan.requests[:length]:
            half.commit(whole(request))
        check(half)
        decided = length >= plan.decides
        # A wake is answered whole or not at all, whatever of its rows is left.
        assert wakes_of(half) == (set() if decided else asked)
        assert (half.get("leases", (SLOT,)).record.turn is not None) == decided
        # The next life deletes what is left, and starts no turn for it.
        book = load(half)
        assert set(book.wakes["ana"]) == wakes_of(half)
        half.commit(*book.forget_answered(desk.chain))
        if decided:
            assert rows(half, "wakes") == {}
            assert load(half).wakes["ana"] == {}
    desk.run(plan, prefixes=False)
    assert len(plan.requests) > (2 if wakes else 0)
    assert shown(desk.store) == ["user: go", *(f"user: {n}" for n in range(MANY)), "user: last"]
    assert entries[0] in turn_of(desk).answers or not wakes


def test_a_start_drains_a_long_inbox_in_valid_prefixes() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.fill(MANY)
    # The turn is put down, and what lands its inbox is lost to a death.
    plan = plan_hold(desk.book, hold(turn), desk.chain)
    desk.store.commit(whole(plan.requests[0]))
    desk.reload()
    left = len(waiting(desk.store))
    assert left > 200
    again = desk.start()
    assert again.turn == turn.turn
    assert waiting(desk.store) == []
    assert shown(desk.store) == ["user: go", *(f"user: {n}" for n in range(MANY))]
    assert wakes_of(desk.store) == set()
    assert len(turn_of(desk).answers) == MANY + 1


@pytest.mark.behaviour("D-016")
def test_a_live_turn_taken_up_again_drains_nothing_and_gets_a_new_token() -> None:
    desk = BookDesk()
    desk.accept("go")
    first = desk.start()
    desk.accept("a")
    desk.reload()
    second = desk.start()
    assert (second.turn, second.token, second.attempts) == (first.turn, first.token + 1, 2)
    assert waiting(desk.store) == ["a"]
    assert len(wakes_of(desk.store)) == 1
    assert carried(desk) == [(1, [1], None), (1, [1], False)]


def test_a_turn_taken_up_inside_a_gap_is_told_so_and_promises_no_new_request() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.reload()
    again = desk.start()
    assert (again.round, again.gap, again.attempts) == (1, 1, 2)
    assert carried(desk) == [(1, [1], True)]


# -- rounds and boundaries ---------------------------------------------------------------------


@pytest.mark.behaviour("D-002", "D-008", "D-009")
def test_held_messages_land_after_the_last_reply() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("b")
    desk.accept("own", own=True)
    desk.accept("c")
    desk.boundary(turn, 1, "c1")
    assert shown(desk.store) == ["user: go", "assistant: Moving <c1>", "results: =c1", "user: b"]
    assert waiting(desk.store) == ["own", "c"]
    desk.record(turn, 2, "Done")
    assert shown(desk.store)[4:] == ["assistant: Done", "assistant: own", "user: c"]


@pytest.mark.behaviour("D-012")
def test_a_boundary_without_injections_places_results_only() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    assert desk.boundary(turn, 1, "c1", inject=False) == (3, 3)
    assert waiting(desk.store) == ["a"]
    assert len(wakes_of(desk.store)) == 1


@pytest.mark.behaviour("D-011", "D-073", "D-077")
def test_an_injecting_boundary_says_what_it_placed_and_that_it_is_carried() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    desk.accept("b")
    assert desk.boundary(turn, 1, "c1") == (3, 5)
    assert carried(desk) == [(1, [1], True), (2, [1, 2, 3, 4, 5], False)]
    assert turn_of(desk).answers == (1, 3, 4)
    assert wakes_of(desk.store) == set()
    desk.record(turn, 2, "Done")
    assert carried(desk)[1] == (2, [1, 2, 3, 4, 5], True)


@pytest.mark.behaviour("D-076")
def test_what_a_request_carried_stays_as_it_was_when_later_ones_carry_more() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.end(desk.start(), marker="stopped")
    desk.accept("again")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.boundary(turn, 1, "c1")
    desk.reload()
    desk.start()
    assert carried(desk) == [
        (1, [1], False),
        (1, [1, 3], True),
        (2, [1, 3, 4, 5], None),
        (2, [1, 3, 4, 5], False),
    ]


@pytest.mark.behaviour("D-011")
def test_a_boundary_injects_what_one_request_holds_and_the_rest_waits_in_order() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.fill(MANY)
    seen = 0
    for round_ in range(1, 4):
        plan = plan_boundary(desk.book, close(turn, round_, f"c{round_}"), desk.chain, inject=True)
        assert plan.decides == len(plan.requests) == 1
        first, last = desk.run(plan)
        seen += last - first
        assert len(waiting(desk.store)) == MANY - seen
        assert waiting(desk.store)[0] == str(seen)
        assert len(wakes_of(desk.store)) == MANY - seen
        desk.record(turn, round_ + 1, "Moving", f"c{round_ + 1}")
    assert seen > 60


@pytest.mark.parametrize("how", ["reply", "hold", "end", "end in a gap"])
def test_whatever_frees_the_lease_lands_a_long_inbox_behind_it_in_valid_prefixes(how: str) -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    if how == "end in a gap":
        desk.record(turn, 1, "Moving", "c1")
    desk.fill(MANY)
    match how:
        case "reply":
            plan = plan_round(desk.book, record(turn, 1, "Done"), desk.chain)
        case "hold":
            plan = plan_hold(desk.book, hold(turn), desk.chain)
        case _:
            plan = plan_end(desk.book, end(turn, "c1"), desk.chain)
    assert (plan.decides, len(plan.requests) > 9) == (1, True)
    desk.run(plan)
    assert waiting(desk.store) == []
    assert [row for row in shown(desk.store) if row.startswith("user")] == [
        "user: go",
        *(f"user: {number}" for number in range(MANY)),
    ]
    assert len(wakes_of(desk.store)) == MANY


@pytest.mark.behaviour("D-094")
def test_nothing_is_between_calls_and_their_results_however_the_turn_goes_on() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("a")
    before = snapshot(desk)
    for plan in (
        lambda: plan_round(desk.book, record(turn, 2, "early"), desk.chain),
        lambda: plan_hold(desk.book, hold(turn), desk.chain),
        lambda: plan_boundary(desk.book, close(turn, 2, "c1"), desk.chain, inject=True),
    ):
        with pytest.raises(LeaseLostError):
            plan()
        assert snapshot(desk) == before
    desk.end(turn, "c1")
    assert shown(desk.store) == [
        *("user: go", "assistant: Moving <c1>", "results: =c1", "marker: over", "user: a"),
    ]


def test_a_round_out_of_order_is_refused() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    for round_ in (0, 2):
        with pytest.raises(LeaseLostError, match="does not come next"):
            plan_round(desk.book, record(turn, round_, "x"), desk.chain)
    with pytest.raises(LeaseLostError, match="no open tool gap"):
        plan_boundary(desk.book, close(turn, 0, "c"), desk.chain, inject=True)
    desk.same()


def test_an_end_in_a_gap_says_of_calls_without_a_result_that_it_is_unknown() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1", "c2", "c3")
    desk.end(turn, "c2")
    assert shown(desk.store)[2] == "results: =c2 =c1 =c3"
    body = rows(desk.store, "bodies")[SLOT, 3].blocks
    assert [(block.is_error, block.content[0].text) for block in body[1:]] == [(True, UNKNOWN)] * 2


# -- hold and end ------------------------------------------------------------------------------


def test_a_held_turn_is_a_row_and_holds_no_lease() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("a", wake=False)
    desk.hold(turn)
    held = turn_of(desk)
    assert (held.state, held.held.model, held.failures) == ("held", "m", 1)  # type: ignore[union-attr]
    assert not desk.book.is_leased
    assert shown(desk.store) == ["user: go", "user: a"]
    assert carried(desk) == [(1, [1], True)]
    desk.accept("b")
    again = desk.start()
    assert (again.turn, again.token) == (turn.turn, turn.token + 1)
    assert turn_of(desk).answers == (1, 3)
    assert turn_of(desk).held is None


def test_a_hold_before_the_wire_leaves_its_request_unsent() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.run(plan_hold(desk.book, hold(turn, sent=False), desk.chain))
    assert carried(desk) == [(1, [1], False)]


@pytest.mark.behaviour("D-031")
def test_a_turn_ended_by_a_stop_gives_its_wakes_back_as_one() -> None:
    desk = BookDesk()
    desk.accept("a")
    desk.accept("b")
    turn = desk.start()
    desk.accept("c")
    desk.end(turn, give_back=True)
    wakes = rows(desk.store, "wakes", ("ana",))
    assert sorted(wake.reason for wake in wakes.values()) == ["message", "stopped"]
    assert turn_of(desk).state == "cancelled"
    again = desk.start()
    assert again.turn == 2
    assert wakes_of(desk.store) == set()
    assert places(desk.store, desk.book.ranges) == [1, 2, 4]


def test_a_marker_is_shown_to_readers_and_carried_by_no_request() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.end(desk.start(), marker="this turn failed")
    assert shown(desk.store) == ["user: go", "marker: this turn failed"]
    assert turn_of(desk).error == "this turn failed"
    desk.accept("again")
    desk.start()
    assert carried(desk)[-1] == (1, [1, 3], False)


@pytest.mark.behaviour("D-020")
@pytest.mark.parametrize("kind", ["reply", "boundary", "hold", "end"])
def test_what_an_old_holder_sends_is_refused_by_its_token(kind: str) -> None:
    desk = BookDesk()
    desk.accept("go")
    old = desk.start()
    desk.record(old, 1, "Moving", "c1")
    desk.start()
    before = snapshot(desk)
    late = {
        "reply": lambda: plan_round(desk.book, record(old, 2, "x"), desk.chain),
        "boundary": lambda: plan_boundary(desk.book, close(old, 1, "c1"), desk.chain, inject=True),
        "hold": lambda: plan_hold(desk.book, hold(old), desk.chain),
        "end": lambda: plan_end(desk.book, end(old), desk.chain),
    }
    with pytest.raises(LeaseLostError, match="no longer holds"):
        late[kind]()
    assert snapshot(desk) == before


def test_a_turn_that_is_over_writes_nothing_more() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Done")
    with pytest.raises(LeaseLostError):
        plan_end(desk.book, end(turn), desk.chain)


def test_a_live_turn_writes_on_after_its_slot_was_read_anew_without_being_attached() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.book = load(desk.store, "somebody else")
    desk.record(turn, 1, "Done")
    assert shown(desk.store)[-1] == "assistant: Done"


# -- content that is refused -------------------------------------------------------------------

BAD_CONTENT: dict[str, tuple[Any, type[Exception]]] = {
    "no blocks": ((), InvalidRecordError),
    "a tool's bad name": (
        (ToolUseBlock(id="c", name="no such name", input={}),), InvalidRecordError),
    "too many blocks": ((TextBlock(text=""),) * 1_001, InvalidRecordError),
    "a lone surrogate": (text("\ud800"), InvalidRecordError),
    "a huge number": ((ToolUseBlock(id="c", name="look", input={"n": 2**70}),), InvalidRecordError),
    "too large": (text("x" * 1_500_000), RequestTooLargeError),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "error"), BAD_CONTENT.values(), ids=BAD_CONTENT)
def test_content_that_cannot_be_stored_leaves_the_mirror_as_it_was(
    blocks: Any, error: type[Exception]
) -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("a")
    before = snapshot(desk)
    with pytest.raises(error):
        plan_round(desk.book, record(turn, 1, "x")._replace(blocks=blocks), desk.chain)
    assert snapshot(desk) == before
    desk.record(turn, 1, "Moving", "c1")
    before = snapshot(desk)
    with pytest.raises(error):
        plan_boundary(desk.book, close(turn, 1)._replace(results=blocks), desk.chain, inject=True)
    assert snapshot(desk) == before
    desk.boundary(turn, 1, "c1")
    desk.record(turn, 2, "Done")


def test_a_marker_that_cannot_be_stored_leaves_the_mirror_as_it_was() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    before = snapshot(desk)
    with pytest.raises(InvalidRecordError):
        plan_end(desk.book, end(turn, "c1", marker="\ud800"), desk.chain)
    assert snapshot(desk) == before
    desk.end(turn, "c1")


# -- two agents on one slot --------------------------------------------------------------------


def test_a_boundary_answers_the_wakes_of_its_own_agent_only() -> None:
    desk = BookDesk(None, "ana", "bo")
    desk.accept("go")
    turn = desk.start("ana")
    desk.record(turn, 1, "Moving", "c1")
    desk.accept("for bo", agent="bo")
    desk.accept("for ana", agent="ana")
    desk.boundary(turn, 1, "c1")
    assert shown(desk.store)[-2:] == ["user: for bo", "user: for ana"]
    assert (len(wakes_of(desk.store, "ana")), len(wakes_of(desk.store, "bo"))) == (0, 1)
    desk.record(turn, 2, "Done")
    other = desk.start("bo")
    assert (other.agent, other.turn, other.token) == ("bo", 1, 2)


def test_a_start_without_work_is_answered_though_another_agent_holds_the_lease() -> None:
    desk = BookDesk(None, "ana", "bo")
    desk.accept("go")
    desk.start("ana")
    assert desk.start("bo") == NothingToDo()


# -- what was done before ----------------------------------------------------------------------


def test_what_a_predecessor_committed_is_known_to_be_done() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    ask: Any
    for ask in (record(turn, 1, "x", "c1"), hold(turn), end(turn)):
        assert not has_done(desk.book, ask)
    desk.record(turn, 1, "x", "c1")
    assert has_done(desk.book, record(turn, 1, "x", "c1"))
    assert not has_done(desk.book, record(turn, 2, "x"))
    assert not has_done(desk.book, close(turn, 1, "c1"))
    desk.boundary(turn, 1, "c1")
    assert has_done(desk.book, close(turn, 1, "c1"))
    stale = turn._replace(token=turn.token - 1)
    assert not has_done(desk.book, close(stale, 1, "c1"))
    assert not has_done(desk.book, record(stale, 1, "x", "c1"))
    assert not has_done(desk.book, hold(turn))
    desk.hold(turn)
    assert has_done(desk.book, hold(turn))
    again = desk.start()
    assert not has_done(desk.book, end(again))
    desk.end(again)
    assert has_done(desk.book, end(again))
    assert not has_done(desk.book, end(turn._replace(turn=9)))


def test_results_are_what_they_were_built_as() -> None:
    assert [block.tool_use_id for block in results("a", "b")] == ["a", "b"]
    assert accept("x").wake
