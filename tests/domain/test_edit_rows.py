"""Edits of a slot's rows: what they change, what they refuse, what an undo finds, what is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from abeyance.actors.domain import slot_edits
from abeyance.actors.domain.edit_rows import read_edits
from abeyance.actors.domain.errors import (
    EditRefusedError,
    InvalidMessageError,
    UnknownMessageError,
)
from abeyance.actors.domain.slot_edit_book import RECAST_MAX, EditBook, is_recast, read_recast
from abeyance.actors.domain.slot_edits import (
    EDITS_MAX,
    KEPT_MS,
    next_forget_ms,
    plan_edit,
    plan_forget,
    plan_undo_edit,
)
from abeyance.actors.domain.slot_messages import EditReceipt, EditSlot, Retract, UndoEdit
from abeyance.actors.domain.slot_ranges import SlotRanges
from abeyance.actors.domain.slot_reading import read_reading
from abeyance.actors.domain.slot_subjects import plan_retract
from abeyance.storage.check import check as check_store
from abeyance.storage.store import Request
from abeyance.storage.tables.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from abeyance.storage.tables.slots import Entry

from .desk import make_unreadable, rows
from .slots import AT, SLOT, numbers, said, shown, text
from .test_rewind import RewindDesk

LATER = AT + KEPT_MS


class EditDesk(RewindDesk):
    """A desk whose rows are edited; each prefix of what that commits must be a valid slot."""

    def edit(self, seq: int, blocks: tuple[Block, ...] | None, **asked: Any) -> EditReceipt:
        plan = plan_edit(self.book, self.asked(seq, blocks, **asked), self.chain)
        return self.done(plan)

    def asked(self, seq: int, blocks: tuple[Block, ...] | None, **asked: Any) -> EditSlot:
        self.acts += 1
        named = {"message": None, "act": f"act{self.acts}", **asked}
        return EditSlot(seq, named["message"], blocks, named["act"], "api:ops", AT)

    def undo_edit(self, number: int, act: str | None = None) -> EditReceipt:
        self.acts += 1
        undo = UndoEdit(number, act or f"act{self.acts}", "api:ops", AT)
        return self.done(plan_undo_edit(self.book, undo, self.chain))

    def done(self, plan: Any) -> EditReceipt:
        self.commit(plan.requests)
        self.book.edits.under_way.clear()
        assert self.book.edits.kept == EditBook(self.store, SLOT).kept
        assert self.book.edits.recast == read_recast(self.store, SLOT)
        assert check_store(self.store).findings == ()
        receipt: EditReceipt = plan.answer
        return receipt

    def forget(self, now_ms: int = LATER) -> int:
        commits = 0
        while requests := plan_forget(self.book, self.chain, now_ms):
            self.commit(requests)
            commits += len(requests)
        return commits

    def words(self) -> list[str]:
        """What every body of the slot says, whoever names it."""
        return [said(body.blocks) for body in rows(self.store, "bodies", (SLOT,)).values()]

    def carried(self) -> list[int]:
        """The places that the last request carried."""
        last = list(rows(self.store, "carried", (SLOT,)).values())[-1]
        return numbers(last.rows)

    def with_tools(self) -> EditDesk:
        """A turn that calls a tool and answers: a message, a call, its result, a reply."""
        self.accept("go")
        turn = self.start()
        self.record(turn, 1, "look", "c1")
        self.boundary(turn, 1, "c1")
        self.record(turn, 2, "done")
        return self


def talked(*words: str) -> EditDesk:
    desk = EditDesk()
    for said_ in words or ("a", "b"):
        desk.exchange(said_)
    return desk


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
def test_an_edit_gives_one_message_other_words_in_its_place_and_an_undo_gives_them_back(
    seq: int,
) -> None:
    desk = talked()
    was = shown(desk.store)
    receipt = desk.edit(seq, text("other"))
    now = [*was]
    now[seq - 1] = was[seq - 1].split(":")[0] + ": other"
    assert shown(desk.store) == now
    (kept,) = read_edits(desk.store, SLOT)
    assert (kept.edit, kept.seq, kept.does) == (receipt.edit, seq, "changed")
    assert f"{was[seq - 1]}".endswith(kept.text)
    desk.reload()
    assert desk.undo_edit(receipt.edit) == receipt
    assert shown(desk.store) == was
    assert "other" not in desk.words()
    (kept,) = read_edits(desk.store, SLOT)
    assert (kept.undone_by, kept.undone_ms) == ("api:ops", AT)


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
def test_an_edit_takes_one_message_out_and_an_undo_puts_it_back_in_its_place(seq: int) -> None:
    desk = talked()
    was = shown(desk.store)
    receipt = desk.edit(seq, None)
    assert shown(desk.store) == was[: seq - 1] + was[seq:]
    desk.exchange("c")
    desk.reload()
    assert desk.undo_edit(receipt.edit) == receipt
    assert shown(desk.store) == [*was, "user: c", "assistant: re c"]


def test_a_message_that_was_taken_out_keeps_its_id_and_gives_its_number_to_nobody() -> None:
    desk = EditDesk()
    desk.accept("a", known="mine")
    desk.record(desk.start(), 1, "re a")
    desk.edit(1, None)
    assert rows(desk.store, "ids")[SLOT, "mine"].state == "removed"
    assert desk.book.seq_next == 3
    desk.reload()
    assert desk.book.seq_next == 3


REFUSED: dict[str, tuple[Callable[[EditDesk], Any], int, Any, str]] = {
    "while a turn lives": (lambda desk: desk.start(), 1, text("x"), "leased"),
    "while a tool gap is open": (
        lambda desk: desk.record(desk.start(), 1, "look", "c9"),
        1,
        text("x"),
        "leased",
    ),
    "a call without its results": (lambda desk: None, 2, None, "pair"),
    "results without their call": (lambda desk: None, 3, None, "pair"),
    "what a turn is asked for by": (lambda desk: None, 5, None, "asked"),
    "what a turn is asked for by, with more behind it": (
        lambda desk: desk.accept("more"),
        5,
        None,
        "asked",
    ),
    "all that a turn that was given back has to answer": (
        lambda desk: desk.end(desk.start(), give_back=True),
        5,
        None,
        "asked",
    ),
    "a note of the runtime": (lambda desk: desk.end(desk.start()), 6, text("x"), "marker"),
}


@pytest.mark.parametrize(("before", "seq", "blocks", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_an_edit_that_would_break_the_conversation_is_refused_before_any_effect(
    before: Callable[[EditDesk], Any], seq: int, blocks: Any, reason: str
) -> None:
    desk = EditDesk().with_tools()
    desk.accept("next")
    before(desk)
    was = (shown(desk.store), desk.book.seq_next, desk.book.edits.kept.copy())
    with pytest.raises(EditRefusedError) as refused:
        plan_edit(desk.book, desk.asked(seq, blocks), desk.chain)
    assert refused.value.reason == reason
    assert (shown(desk.store), desk.book.seq_next, desk.book.edits.kept) == was
    desk.same()


CALL = ToolUseBlock(id="c1", name="look", input={})
RESULT = ToolResultBlock(tool_use_id="c1", content=(TextBlock(text="x"),))
UNFIT: dict[str, tuple[int, tuple[Block, ...]]] = {
    "a tool call in a message": (1, (TextBlock(text="x"), CALL)),
    "a result in a message": (1, (RESULT,)),
    "reasoning in a message": (1, (ThinkingBlock(thinking="x"),)),
    "blanks alone": (1, text("  \n")),
    "a reply without its call": (2, text("x")),
    "a reply with another call": (2, (CALL, ToolUseBlock(id="c2", name="look", input={}))),
    "a call under another id": (2, (ToolUseBlock(id="c2", name="look", input={}),)),
    "a call of another tool": (2, (ToolUseBlock(id="c1", name="reap", input={}),)),
    "text in the place of results": (3, text("x")),
    "text beside results": (3, (RESULT, TextBlock(text="x"))),
    "results of another call": (3, (ToolResultBlock(tool_use_id="c2"),)),
    "a result twice": (3, (RESULT, RESULT)),
    "reasoning nobody signed": (4, (ThinkingBlock(thinking="x", signature="y"), *text("x"))),
    "a call in a last reply": (4, (CALL,)),
}


@pytest.mark.parametrize(("seq", "blocks"), UNFIT.values(), ids=list(UNFIT))
def test_words_that_do_not_fit_their_place_are_refused_by_name(
    seq: int, blocks: tuple[Block, ...]
) -> None:
    desk = EditDesk().with_tools()
    with pytest.raises(InvalidMessageError) as refused:
        plan_edit(desk.book, desk.asked(seq, blocks), desk.chain)
    assert refused.value.field.startswith("blocks")
    desk.same()


def test_what_a_call_was_given_and_what_came_back_may_say_something_else() -> None:
    desk = EditDesk().with_tools()
    desk.edit(2, (ToolUseBlock(id="c1", name="look", input={"at": "door"}),))
    desk.edit(3, (ToolResultBlock(tool_use_id="c1", content=(TextBlock(text="[withheld]"),)),))
    assert shown(desk.store) == ["user: go", "assistant: <c1>", "results: =c1", "assistant: done"]
    desk.exchange("and then?")


UNKNOWN: dict[str, Callable[[EditDesk], Any]] = {
    "there never was": lambda desk: desk.edit(9, text("x")),
    "before the first": lambda desk: desk.edit(0, text("x")),
    "another message is at": lambda desk: desk.edit(1, text("x"), message="other"),
    "a rewind took out": lambda desk: (desk.rewind(2), desk.edit(3, text("x"))),
    "an edit took out": lambda desk: (desk.edit(2, None), desk.edit(2, text("x"))),
}


@pytest.mark.parametrize("act", UNKNOWN.values(), ids=list(UNKNOWN))
def test_a_message_that_is_not_in_the_transcript_is_not_edited(
    act: Callable[[EditDesk], Any],
) -> None:
    desk = talked()
    with pytest.raises(UnknownMessageError):
        act(desk)
    desk.same()


SUPERSEDED: dict[str, tuple[Callable[[EditDesk, int], Any], str]] = {
    "that nobody made": (lambda desk, _: desk.undo_edit(99), "unknown"),
    "that was undone": (
        lambda desk, edit: (desk.undo_edit(edit), desk.undo_edit(edit)),
        "undone",
    ),
    "that another came over": (
        lambda desk, edit: (desk.edit(1, text("third")), desk.undo_edit(edit)),
        "superseded",
    ),
    "of what was taken out since": (
        lambda desk, edit: (desk.edit(1, None), desk.undo_edit(edit)),
        "superseded",
    ),
    "of what a rewind took out": (
        lambda desk, edit: (desk.rewind(0), desk.undo_edit(edit)),
        "superseded",
    ),
    "while a turn lives": (
        lambda desk, edit: (desk.accept("c"), desk.start(), desk.undo_edit(edit)),
        "leased",
    ),
}


@pytest.mark.parametrize(("act", "reason"), SUPERSEDED.values(), ids=list(SUPERSEDED))
def test_an_undo_of_an_edit_is_refused_where_it_is_of(
    act: Callable[[EditDesk, int], Any], reason: str
) -> None:
    desk = talked()
    edit = desk.edit(1, text("other")).edit
    with pytest.raises(EditRefusedError) as refused:
        act(desk, edit)
    assert refused.value.reason == reason
    desk.same()


def test_edits_of_one_message_are_undone_last_first() -> None:
    desk = talked("a")
    first, second = desk.edit(1, text("b")).edit, desk.edit(1, text("c")).edit
    third = desk.edit(1, None).edit
    for number, words in ((third, "c"), (second, "b"), (first, "a")):
        desk.undo_edit(number)
        assert shown(desk.store)[0] == f"user: {words}"


def test_an_edit_and_its_undo_are_done_once_however_often_they_are_asked_for() -> None:
    desk = talked("a")
    receipt = desk.edit(1, text("b"), act="e")
    desk.reload()
    assert desk.edit(1, text("b"), act="e") == receipt
    assert desk.undo_edit(receipt.edit, act="u") == receipt
    desk.reload()
    assert desk.undo_edit(receipt.edit, act="u") == receipt
    assert shown(desk.store)[0] == "user: a"


def test_as_many_edits_are_kept_as_may_be_and_one_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_edits, "EDITS_MAX", 2)
    desk = talked("a")
    desk.edit(1, text("b"))
    desk.edit(1, text("c"))
    with pytest.raises(EditRefusedError, match="2 edits"):
        desk.edit(1, text("d"))
    assert EDITS_MAX == 256


# -- reading ---------------------------------------------------------------------------------


def test_what_was_read_stays_read_whatever_it_says_now() -> None:
    desk = talked("a")
    desk.edit(1, text("b"))
    assert read_reading(desk.store, SLOT, 1) == "read"
    edit = desk.edit(1, None).edit
    desk.undo_edit(edit)
    assert read_reading(desk.store, SLOT, 1) == "read"


@pytest.mark.parametrize("dies", [False, True], ids=["lives on", "dies"])
def test_what_was_taken_out_unread_comes_back_unread_and_the_next_request_carries_it(
    dies: bool,
) -> None:
    desk = talked("a")
    desk.accept("aside", wake=False)
    edit = desk.edit(3, None).edit
    if dies:
        desk.reload()
    desk.exchange("b")
    assert 3 not in desk.carried()
    desk.undo_edit(edit)
    assert read_reading(desk.store, SLOT, 3) == "unread"
    assert 3 in [seq for seq, _ in desk.book.unread.values()]
    if dies:
        desk.reload()
    assert read_reading(desk.store, SLOT, 3) == "unread"
    desk.exchange("c")
    assert 3 in desk.carried()
    assert read_reading(desk.store, SLOT, 3) == "read"


def test_a_message_that_has_other_words_is_taken_back_with_all_of_them() -> None:
    desk = EditDesk()
    desk.accept("secret", known="m", wake=False)
    desk.edit(1, text("a secret"))
    desk.edit(1, text("no secret"))
    plan = plan_retract(desk.book, Retract("m", AT), rows(desk.store, "ids")[SLOT, "m"], desk.chain)
    desk.commit(plan.requests)
    assert desk.words() == []


def test_a_newer_message_of_its_subject_takes_the_place_of_one_that_has_other_words() -> None:
    desk = EditDesk()
    desk.send("1", subject="s")
    edit = desk.edit(1, text("one")).edit
    receipt = desk.send("2", subject="s")
    assert receipt.replaces is not None
    assert (shown(desk.store), desk.words()) == (["user: 2"], ["2"])
    with pytest.raises(EditRefusedError, match="something else since"):
        desk.undo_edit(edit)


def test_a_newer_message_goes_behind_where_the_older_one_was_taken_out_and_both_stand_again() -> (
    None
):
    desk = EditDesk()
    desk.send("1", subject="s", wake=False)
    edit = desk.edit(1, None).edit
    assert desk.send("2", subject="s").replaces is None
    desk.undo_edit(edit)
    assert shown(desk.store) == ["user: 1", "user: 2"]
    desk.send("3", subject="s")
    assert shown(desk.store) == ["user: 1", "user: 3"]


def test_what_is_on_its_way_to_the_same_message_is_waited_for() -> None:
    desk = EditDesk()
    desk.accept("a", known="m", wake=False)
    book, known = desk.book, rows(desk.store, "ids")[SLOT, "m"]
    first = plan_edit(book, desk.asked(1, text("b")), desk.chain)
    barrier = [Request(chain=desk.chain)]
    for plan in (
        plan_edit(book, desk.asked(1, None), desk.chain),
        plan_undo_edit(book, UndoEdit(first.answer.edit, "u", "ops", AT), desk.chain),
        plan_retract(book, Retract("m", AT), known, desk.chain),
    ):
        assert (plan.requests, plan.decides, plan.answer) == (barrier, 1, None)
    desk.commit(first.requests, prefixes=False)
    book.edits.under_way.clear()
    plan_retract(book, Retract("m", AT), known, desk.chain)
    plan = plan_edit(book, desk.asked(1, text("c")), desk.chain)
    assert (plan.requests, plan.answer) == (barrier, None)


# -- what was written behind other words -----------------------------------------------------


def test_what_was_written_behind_an_edited_place_is_known_however_many_edits_there_were() -> None:
    draw = random.Random(7)
    desk = talked("a")
    book, events = desk.book.edits, []
    for number in range(10, 10 + 3 * RECAST_MAX):
        # Of places that rise, each pair stands beside the others.
        seq = draw.randrange(1, 400) if number % 70 == 0 else 2 * number + draw.randrange(3)
        events.append((seq, number))
        book.revise(seq, number)
    assert len(book.recast) <= RECAST_MAX
    for _ in range(500):
        seq, entry = draw.randrange(1, 500), draw.randrange(1, 300)
        row = Entry(entry=entry, message="m", author="a", role="assistant", at_ms=0)
        behind = any(place < seq and entry < number for place, number in events)
        # It may cover more than it must, and never less.
        assert is_recast(book.recast, seq, row) or not behind
    few = EditBook(desk.store, SLOT)
    for seq, number in ((5, 10), (9, 12), (2, 11), (7, 20)):
        few.revise(seq, number)
    assert few.recast == ((2, 11), (7, 20))


def test_where_nobody_can_tell_everything_was_written_behind_other_words() -> None:
    desk = talked("a")
    desk.edit(1, text("b"))
    make_unreadable(desk.store, "revisions", (SLOT,))
    recast = read_recast(desk.store, SLOT)
    row = Entry(entry=10**9, message="m", author="a", role="assistant", at_ms=0)
    assert is_recast(recast, 1, row)


def test_an_edit_that_cannot_be_read_costs_its_undo_and_nothing_else() -> None:
    desk = talked("a")
    edit = desk.edit(1, text("b")).edit
    other = desk.edit(2, text("c")).edit
    make_unreadable(desk.store, "edits", (SLOT, edit))
    assert [row.edit for row in read_edits(desk.store, SLOT)] == [other]
    assert [finding.table for finding in check_store(desk.store).findings] == ["edits"]
    assert list(EditBook(desk.store, SLOT).kept) == [other]
    assert shown(desk.store) == ["user: b", "assistant: c"]


# -- forgetting ------------------------------------------------------------------------------


def test_the_words_that_an_edit_replaced_are_deleted_when_their_time_is_over() -> None:
    desk = talked("a", "b")
    desk.edit(1, text("other"))
    desk.edit(3, None)
    assert next_forget_ms(desk.book) == LATER
    assert plan_forget(desk.book, desk.chain, LATER - 1) == []
    assert desk.forget() == 2
    assert sorted(desk.words()) == ["other", "re a", "re b"]
    assert rows(desk.store, "edits") == {}
    assert next_forget_ms(desk.book) is None
    assert check_store(desk.store).findings == ()
    desk.reload()
    assert shown(desk.store) == ["user: other", "assistant: re a", "assistant: re b"]


def test_an_edit_that_is_being_undone_is_not_forgotten_meanwhile() -> None:
    desk = talked("a")
    edit = desk.edit(1, text("other")).edit
    undo = plan_undo_edit(desk.book, UndoEdit(edit, "u", "ops", LATER), desk.chain)
    assert plan_forget(desk.book, desk.chain, LATER) == []
    desk.commit(undo.requests)
    desk.book.edits.settle(edit)
    assert desk.forget() == 1
    assert shown(desk.store)[0] == "user: a"
    assert desk.words() == ["a", "re a"]


def test_an_edit_that_was_undone_is_forgotten_and_its_words_stay() -> None:
    desk = talked("a")
    desk.undo_edit(desk.edit(1, text("other")).edit)
    desk.accept("aside", wake=False)
    back = desk.edit(3, None).edit
    desk.undo_edit(back)
    assert desk.forget() == 1
    # What came back is told by its edit alone, until a request carried it.
    assert list(desk.book.edits.kept) == [back]
    desk.exchange("b")
    assert desk.forget() == 1
    assert shown(desk.store)[0] == "user: a"
    assert shown(desk.store)[2] == "user: aside"


def test_a_rewind_that_is_pruned_takes_the_words_of_edits_with_it() -> None:
    desk = talked("a", "b")
    desk.edit(3, text("other"))
    desk.rewind(2)
    desk.prune()
    desk.forget()
    assert desk.words() == ["a", "re a"]


@pytest.mark.parametrize("seed", range(40))
def test_ranges_carry_what_a_set_of_places_would(seed: int) -> None:
    draw = random.Random(seed)
    ranges, carried, gone, last = SlotRanges(), set(), set(), 0
    markers = set()
    for _ in range(60):
        match draw.randrange(5):
            case 0 | 1:
                last += 1
                ranges.carries(last, last)
                carried.add(last)
            case 2:
                last += 1
                ranges.skips(last)
                markers.add(last)
            case 3 if carried:
                seq = draw.choice(sorted(carried))
                ranges.drop(seq)
                carried.discard(seq)
                gone.add(seq)
            case 4 if gone:
                seq = draw.choice(sorted(gone))
                ranges.restore(seq)
                gone.discard(seq)
                carried.add(seq)
        spanned = [seq for seq in numbers(ranges.spans) if seq not in markers]
        assert spanned == sorted(carried)
