"""Rewinding a transcript: what leaves it, what stays, what comes back, and what a death leaves."""

from __future__ import annotations

from typing import Any

import pytest

from abeyance.actors.domain import slot_rewind
from abeyance.actors.domain.context_rows import coverable, first_place
from abeyance.actors.domain.errors import (
    InvalidInputError,
    RewindRefusedError,
    UnknownMessageError,
)
from abeyance.actors.domain.slot_messages import (
    CheckRewind,
    RewindReceipt,
    RewindSlot,
    UndoRewind,
)
from abeyance.actors.domain.slot_rewind import (
    CUTS_MAX,
    KEPT_MS,
    check_rewind,
    leaves_answerable,
    plan_prune,
    plan_rewind,
    plan_undo,
)
from abeyance.actors.domain.slot_turns import plan_end
from abeyance.storage.check import check as check_store
from abeyance.storage.store import Committed, Request
from abeyance.storage.tables.slots import Lease

from .desk import make_unreadable, rows
from .slots import AT, SLOT, BookDesk, accept, end, numbers, shown, waiting, wakes_of

LATER = AT + KEPT_MS


class RewindDesk(BookDesk):
    """A desk whose slot is rewound; each prefix of what that commits must be a valid slot."""

    acts = 0

    def rewind(self, to: int) -> RewindReceipt:
        requests, receipt = plan_rewind(self.book, self.act(to), self.chain)
        self.commit(requests)
        return receipt

    def act(self, to: int) -> RewindSlot:
        self.acts += 1
        return RewindSlot(to, f"act{self.acts}", "api:ops", AT)

    def undo(self) -> RewindReceipt:
        requests, receipt = plan_undo(self.book, UndoRewind("u", "api:ops", AT), self.chain, None)
        self.commit(requests)
        return receipt

    def unchecked(self, requests: list[Request]) -> None:
        """Commit on a store of which a row cannot be read."""
        for request in requests:
            (outcome,) = self.store.commit(request)
            assert isinstance(outcome, Committed), outcome

    def prune(self, now_ms: int = LATER) -> int:
        """Delete all that is due; the number of commits it took."""
        commits = 0
        while requests := plan_prune(self.book, self.chain, now_ms):
            self.commit(requests)
            commits += len(requests)
        return commits

    def exchange(self, words: str) -> None:
        """A message and the turn that answers it."""
        self.accept(words)
        self.record(self.start(), 1, f"re {words}")

    @property
    def lease(self) -> Lease:
        record: Lease = rows(self.store, "leases")[(SLOT,)]
        return record


def three() -> RewindDesk:
    desk = RewindDesk()
    for words in "abc":
        desk.exchange(words)
    return desk


A, RE_A, B, RE_B, C, RE_C = (
    *("user: a", "assistant: re a", "user: b", "assistant: re b", "user: c", "assistant: re c"),
)


@pytest.mark.parametrize("to", range(7))
def test_a_rewind_keeps_what_is_up_to_its_message_and_takes_out_the_rest_in_one_commit(
    to: int,
) -> None:
    desk = three()
    before = len(desk.store.batches)
    receipt = desk.rewind(to)
    assert shown(desk.store) == [A, RE_A, B, RE_B, C, RE_C][:to]
    assert receipt == (RewindReceipt(to + 1, 6) if to < 6 else RewindReceipt(None, None))
    assert numbers(desk.book.ranges) == list(range(1, to + 1))
    assert len(rows(desk.store, "slots")) == 6
    assert len(desk.store.batches) - before == (to < 6)


def test_a_number_is_never_given_again_after_a_rewind_and_its_pruning() -> None:
    desk = three()
    entries = {row.entry for row in rows(desk.store, "slots").values()}
    desk.rewind(2)
    desk.prune()
    assert sorted(rows(desk.store, "slots")) == [(SLOT, 1), (SLOT, 2)]
    desk.reload()
    entry, stored = desk.accept("d")
    assert stored
    assert entry > max(entries)
    assert sorted(rows(desk.store, "slots"))[-1] == (SLOT, 7)
    assert shown(desk.store) == [A, RE_A, "user: d"]


def test_the_next_request_carries_what_is_left_and_what_came_since_also_after_a_death() -> None:
    desk = three()
    desk.rewind(3)
    desk.reload()
    desk.accept("d")
    desk.start()
    assert numbers(list(rows(desk.store, "carried").values())[-1].rows) == [1, 2, 3, 7]
    desk.reload()
    assert numbers(desk.book.ranges) == [1, 2, 3, 7]


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_a_rewind_over_a_rewind_is_undone_last_first(dies: bool) -> None:
    desk = three()
    desk.rewind(4)
    desk.rewind(1)
    assert shown(desk.store) == [A]
    if dies:
        desk.reload()
    assert desk.undo() == RewindReceipt(2, 6)
    assert shown(desk.store) == [A, RE_A, B, RE_B]
    assert numbers(desk.book.ranges) == [1, 2, 3, 4]
    assert desk.undo() == RewindReceipt(5, 6)
    assert shown(desk.store) == [A, RE_A, B, RE_B, C, RE_C]
    assert desk.lease.cuts == ()
    desk.accept("d")
    desk.start()
    assert numbers(list(rows(desk.store, "carried").values())[-1].rows) == [1, 2, 3, 4, 5, 6, 7]


def test_a_rewind_to_a_place_of_which_all_behind_is_gone_changes_nothing() -> None:
    desk = three()
    desk.rewind(2)
    before = desk.lease
    assert desk.rewind(2) == RewindReceipt(None, None)
    assert desk.lease == before


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda desk: None, "nothing of it is kept"),
        (lambda desk: (desk.rewind(2), desk.accept("d", wake=False)), "went on since, at place 7"),
        (lambda desk: (desk.rewind(2), desk.prune()), "nothing of it is kept"),
        (lambda desk: (desk.rewind(3), desk.accept("d"), desk.start()), "lives on what is left"),
    ],
    ids=["nothing rewound", "went on", "pruned", "live turn"],
)
def test_an_undo_that_would_not_put_back_what_was_is_refused(spoil: Any, why: str) -> None:
    desk = three()
    spoil(desk)
    before = shown(desk.store)
    with pytest.raises(RewindRefusedError, match=why):
        desk.undo()
    desk.same()
    assert shown(desk.store) == before


def test_a_rewind_to_what_is_not_in_the_transcript_is_refused() -> None:
    desk = three()
    for to in (7, 99):
        with pytest.raises(UnknownMessageError):
            desk.rewind(to)
    desk.rewind(2)
    with pytest.raises(UnknownMessageError):
        desk.rewind(4)
    assert len(desk.lease.cuts) == 1


def test_a_rewind_to_between_a_call_and_its_results_is_refused() -> None:
    desk = RewindDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "moving", "c1")
    desk.boundary(turn, 1, "c1")
    desk.record(turn, 2, "done")
    with pytest.raises(InvalidInputError, match="calls tools"):
        desk.rewind(2)
    desk.rewind(3)
    assert shown(desk.store) == ["user: go", "assistant: moving <c1>", "results: =c1"]


def test_a_rewind_while_a_turn_lives_is_refused() -> None:
    desk = three()
    desk.accept("d")
    desk.start()
    with pytest.raises(RewindRefusedError, match="lives"):
        desk.rewind(2)
    desk.same()


@pytest.mark.parametrize(("to", "is_left"), [(0, False), (1, True), (2, False), (3, True)], ids=str)
def test_a_rewind_says_whether_something_is_left_to_answer(to: int, is_left: bool) -> None:
    assert check_rewind(three().book, CheckRewind(to)) is is_left


def test_a_marker_at_the_end_of_what_is_left_is_nothing_to_answer_by_itself() -> None:
    desk = RewindDesk()
    desk.exchange("a")
    desk.accept("b")
    desk.end(desk.start())
    assert shown(desk.store)[-1] == "marker: over"
    assert check_rewind(desk.book, CheckRewind(4)) is True
    desk.accept("mine", own=True)
    assert check_rewind(desk.book, CheckRewind(5)) is False


@pytest.mark.parametrize("to", [0, 2, 3])
def test_a_turns_end_that_rewinds_leaves_what_came_meanwhile_behind_it(to: int) -> None:
    desk = RewindDesk()
    desk.exchange("a")
    desk.accept("b")
    turn = desk.start()
    desk.record(turn, 1, "moving", "c1")
    entry, _ = desk.accept("came meanwhile")
    receipt = desk.run(
        plan_end(desk.book, end(turn, "c1")._replace(rewind=desk.act(to)), desk.chain)
    )
    # The gap was closed before: reply, results and the turn's marker are all behind the mark.
    assert receipt == RewindReceipt(to + 1, 6)
    assert shown(desk.store) == [*[A, RE_A, B][:to], "user: came meanwhile"]
    assert waiting(desk.store) == []
    assert wakes_of(desk.store) == {entry}


def test_a_turns_end_that_may_not_rewind_so_plans_nothing() -> None:
    desk = RewindDesk()
    desk.accept("a")
    turn = desk.start()
    before = desk.lease
    with pytest.raises(UnknownMessageError):
        desk.run(plan_end(desk.book, end(turn)._replace(rewind=desk.act(9)), desk.chain))
    assert desk.lease == before
    desk.same()


def test_a_turn_whose_question_was_taken_out_is_told_so_until_something_comes() -> None:
    desk = RewindDesk()
    desk.exchange("a")
    desk.accept("b")
    turn = desk.start()
    desk.hold(turn)
    desk.rewind(2)
    assert desk.lease.turn is None
    desk.reload()
    assert desk.start().rewound
    assert not turn.rewound
    desk = RewindDesk()
    desk.exchange("a")
    desk.accept("b")
    desk.hold(desk.start())
    desk.rewind(2)
    desk.accept("c")
    assert not desk.start().rewound


def test_a_held_turn_its_wakes_and_the_inbox_are_as_they_were_after_a_rewind() -> None:
    desk = RewindDesk()
    desk.exchange("a")
    desk.accept("b")
    desk.hold(desk.start())
    desk.accept("c")
    before = {
        table: rows(desk.store, table)
        for table in ("turns", "heads", "wakes", "inbox", "ids", "bodies", "slots", "carried")
    }
    desk.rewind(0)
    assert {table: rows(desk.store, table) for table in before} == before


@pytest.mark.behaviour("W-023")
def test_a_rewind_and_its_pruning_write_the_slots_own_tables_and_no_other() -> None:
    desk = three()
    before = len(desk.store.requests)
    desk.rewind(4)
    desk.undo()
    desk.rewind(2)
    desk.prune()
    touched = {
        item.table
        for request in desk.store.requests[before:]
        for item in (*request.puts, *request.deletes, *request.appends)
    }
    assert touched == {"leases", "log", "slots", "bodies", "ids"}


# -- pruning -----------------------------------------------------------------------------------


def test_a_long_rewind_is_deleted_in_commits_that_each_leave_a_valid_slot() -> None:
    desk = RewindDesk()
    desk.fill(200, wake=False)
    desk.exchange("last")
    assert desk.store.limits.ops_max == 128
    desk.rewind(10)
    assert desk.prune(LATER - 1) == 0
    assert len(rows(desk.store, "slots")) == 202
    # `commit` looks at every prefix, and at what a new book reads of it.
    assert desk.prune() > 4
    assert sorted(rows(desk.store, "slots")) == [(SLOT, seq) for seq in range(1, 11)]
    assert len(rows(desk.store, "bodies")) == 10
    states = [row.state for row in rows(desk.store, "ids").values()]
    assert (states.count("slot"), states.count("rewound")) == (10, 191)
    assert check_store(desk.store).is_sound


def test_a_pruning_that_was_cut_off_by_a_death_goes_on_where_it_was() -> None:
    desk = RewindDesk()
    desk.fill(200, wake=False)
    desk.rewind(0)
    for _ in range(3):
        desk.commit(plan_prune(desk.book, desk.chain, LATER))
        desk.reload()
    left = len(rows(desk.store, "slots"))
    assert 0 < left < 200
    assert desk.lease.cuts[0].pruned == 200 - left
    desk.prune()
    assert rows(desk.store, "slots") == rows(desk.store, "bodies") == {}


def test_a_row_that_cannot_be_read_is_deleted_with_the_rest() -> None:
    desk = three()
    desk.rewind(2)
    make_unreadable(desk.store, "slots", (SLOT, 4))
    desk.unchecked(plan_prune(desk.book, desk.chain, LATER))
    assert sorted(rows(desk.store, "slots")) == [(SLOT, 1), (SLOT, 2)]


def test_a_rewind_gets_past_a_row_that_cannot_be_read() -> None:
    desk = three()
    make_unreadable(desk.store, "slots", (SLOT, 4))
    desk.unchecked(plan_rewind(desk.book, desk.act(3), desk.chain)[0])
    # Whoever reads what is left, from either end, comes by it no more.
    desk.reload()
    assert leaves_answerable(desk.book, 4, "ana")
    assert coverable(desk.store, SLOT) == 2
    assert first_place(desk.store, SLOT) == 1
    into = desk.book.accepts("ana")
    desk.book.accept(accept("d"), into)
    desk.unchecked([into.request(desk.book.owner, desk.chain)])
    assert desk.book.unread
    assert shown(desk.store) == [A, RE_A, B, "user: d"]


def test_a_cut_is_forgotten_once_it_is_deleted_and_a_later_request_does_without_it() -> None:
    desk = three()
    desk.rewind(3)
    desk.prune()
    assert len(desk.lease.cuts) == 1
    desk.accept("d")
    desk.start()
    assert desk.lease.cuts == ()
    desk.reload()
    assert numbers(desk.book.ranges) == [1, 2, 3, 7]


def test_a_cut_whose_mark_is_not_stored_yet_is_not_deleted() -> None:
    desk = three()
    plan_rewind(desk.book, desk.act(2), desk.chain)
    assert plan_prune(desk.book, desk.chain, LATER) == []


def test_one_rewind_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_rewind, "CUTS_MAX", 2)
    desk = three()
    desk.rewind(5)
    desk.rewind(4)
    with pytest.raises(RewindRefusedError, match="are kept already"):
        desk.rewind(2)
    assert CUTS_MAX == 64
    assert len(desk.lease.cuts) == 2
