"""The strategy that is built in: what it sums up, in which parts, and what it takes for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors import CompactingContext, TranscriptMessage
from abeyance.actors.context import Summary
from abeyance.actors.domain.compacting import PREFACE, ROW_CHARS_MAX
from abeyance.actors.domain.errors import InvalidInputError, SummaryRefusedError
from abeyance.actors.providers.port import ModelReply, ModelRequest, StopReason
from abeyance.storage.tables.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)


class Desk:
    """A slot in memory, and a model that answers with what it is told to."""

    agent = slot = "ana"
    model = "m"

    too_long = False

    def __init__(self, *rows: tuple[str, tuple[Block, ...]]) -> None:
        self._rows = [
            TranscriptMessage(f"m{seq}", seq, seq, _author(role), role, blocks, 0)  # type: ignore[arg-type]
            for seq, (role, blocks) in enumerate(rows, 1)
        ]
        self.size: int | None = 10_000_000
        self.kept: list[Summary] = []
        self.asked: list[ModelRequest] = []
        self.answer = ModelReply((TextBlock(text="in short"),), StopReason.END_TURN)

    def summaries(self) -> Any:
        return iter(self.kept[::-1])

    async def rows(self, *, after: int = 0) -> AsyncIterator[TranscriptMessage]:
        for row in self._rows[after:]:
            yield row

    def coverable(self) -> int:
        return max((row.seq for row in self._rows if row.role == "assistant"), default=0)

    async def call(self, request: ModelRequest) -> ModelReply:
        self.asked.append(request)
        return self.answer

    async def keep(self, text: str, *, last: int) -> Summary:
        self.kept.append(Summary(last, 1, text, "CompactingContext", 0))
        return self.kept[-1]

    def said(self, number: int = -1) -> str:
        (message,) = self.asked[number].messages
        (block,) = message.blocks
        assert isinstance(block, TextBlock)
        return block.text


def _author(role: str) -> str:
    return "user" if role == "user" else "ana"


def talk(turns: int, size: int = 500) -> list[tuple[str, tuple[Block, ...]]]:
    """So many turns of a question and an answer, each of so many characters."""
    rows: list[tuple[str, tuple[Block, ...]]] = []
    for number in range(turns):
        rows.append(("user", (TextBlock(text=f"q{number} ".ljust(size, "x")),)))
        rows.append(("assistant", (TextBlock(text=f"a{number} ".ljust(size, "y")),)))
    return rows


def calls(number: int, size: int = 500) -> list[tuple[str, tuple[Block, ...]]]:
    """A call, and its result."""
    use = ToolUseBlock(id=f"c{number}", name="look", input={"at": "x" * size})
    found = ToolResultBlock(tool_use_id=f"c{number}", content=(TextBlock(text="z" * size),))
    return [("assistant", (use,)), ("results", (found,))]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("past_chars", [1_999, 10_000_001, True, "x", 2e3]),
        ("keep_chars", [-1, 100_001, None]),
        ("at_once_chars", [999, 10_000_001]),
        ("summary_tokens_max", [63, 32_001]),
        ("model", ["", "*", 7]),
        ("instructions", ["", " \u200b", 7]),
    ],
)
def test_a_parameter_that_is_out_of_its_bounds_is_refused_by_its_name(
    field: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidInputError) as caught:
            CompactingContext(**{field: value})
        assert caught.value.field == field


def test_parameters_at_their_bounds_are_taken() -> None:
    CompactingContext(past_chars=2_000, keep_chars=1_000, at_once_chars=1_000)
    CompactingContext(past_chars=10_000_000, keep_chars=0, summary_tokens_max=32_000, model="m2")


async def test_the_newest_part_stays_and_begins_with_what_somebody_said() -> None:
    desk = Desk(*talk(10))
    await CompactingContext(past_chars=4_000, keep_chars=1_200).compact(desk)
    (summary,) = desk.kept
    assert summary.last == 16, "four rows of 500 stay: two would be less than 1,200 characters"
    assert summary.text == f"{PREFACE}in short"


@pytest.mark.parametrize("size", [None, 4_000])
async def test_what_is_not_too_long_is_left_alone(size: int | None) -> None:
    desk = Desk(*talk(100))
    desk.size = size
    await CompactingContext(past_chars=4_000, keep_chars=0).compact(desk)
    assert desk.kept == desk.asked == []


async def test_a_slot_that_was_compacted_since_its_last_turn_is_left_alone() -> None:
    desk = Desk(*talk(10))
    strategy = CompactingContext(past_chars=4_000, keep_chars=1_200)
    await strategy.compact(desk)
    await strategy.compact(desk)
    assert len(desk.asked) == 1


async def test_the_next_summary_takes_the_last_one_in() -> None:
    desk = Desk(*talk(10))
    desk.kept.append(Summary(4, 1, f"{PREFACE}the first", "CompactingContext", 0))
    strategy = CompactingContext(past_chars=4_000, keep_chars=1_200, model="m2")
    await strategy.compact(desk)
    assert desk.asked[0].model == "m2"
    assert desk.asked[0].tools == ()
    said = desk.said()
    assert said.startswith("<summary>\nthe first\n</summary>\n\n<conversation>\nuser: q2 ")
    assert "q1 " not in said
    assert "ana: a7 " in said
    assert "q8 " not in said


async def test_a_slot_of_any_length_is_compacted_in_parts_each_kept_before_the_next() -> None:
    desk = Desk(*talk(40))
    strategy = CompactingContext(past_chars=4_000, keep_chars=1_000, at_once_chars=5_000)
    await strategy.compact(desk)
    assert [each.last for each in desk.kept] == [10, 20, 30, 40, 50, 60, 70, 78]
    assert len(desk.asked) == 8
    assert all(len(desk.said(number)) < 6_000 for number in range(8))


async def test_no_part_parts_a_call_from_its_results() -> None:
    rows = talk(1)
    for number in range(30):
        rows += calls(number)
    rows += talk(1)
    desk = Desk(*rows)
    strategy = CompactingContext(past_chars=4_000, keep_chars=1_000, at_once_chars=1_000)
    await strategy.compact(desk)
    ends = [each.last for each in desk.kept]
    assert len(ends) > 20
    assert all(rows[end - 1][0] != "assistant" or end == 2 for end in ends)


async def test_one_long_turn_is_compacted_within_its_rounds() -> None:
    rows = [("user", (TextBlock(text="go"),))]
    for number in range(30):
        rows += calls(number)  # type: ignore[arg-type]
    rows.append(("assistant", (TextBlock(text="done"),)))
    desk = Desk(*rows)  # type: ignore[arg-type]
    await CompactingContext(past_chars=4_000, keep_chars=1_500).compact(desk)
    (summary,) = desk.kept
    assert rows[summary.last - 1][0] == "results"


async def test_a_record_tells_who_said_what_and_is_bounded() -> None:
    rows: list[Any] = [
        ("user", (TextBlock(text="x" * (ROW_CHARS_MAX + 100)),)),
        ("assistant", (ThinkingBlock(thinking="secret thought"), TextBlock(text="so"))),
        ("marker", (TextBlock(text="a note of the runtime"),)),
        *calls(1, 10),
        ("assistant", (TextBlock(text="done"),)),
        *talk(2),
    ]
    desk = Desk(*rows)
    await CompactingContext(past_chars=4_000, keep_chars=1_000).compact(desk)
    said = desk.said()
    assert "[100 more characters left out]" in said
    assert "secret thought" not in said
    assert "a note of the runtime" not in said
    assert "ana: [calls the tool look] {'at': 'xxxxxxxxxx'}" in said
    assert "ana: [result of a tool] zzzzzzzzzz" in said


@pytest.mark.parametrize(
    "answer",
    [
        ModelReply((), StopReason.END_TURN),
        ModelReply((TextBlock(text=" \u200b "),), StopReason.END_TURN),
        ModelReply((TextBlock(text="cut o"),), StopReason.OUTPUT_LIMIT),
        ModelReply((TextBlock(text="I'd rather not"),), StopReason.REFUSAL),
        ModelReply((TextBlock(text="x" * 2_001),), StopReason.END_TURN),
        ModelReply((ThinkingBlock(thinking="hm"),), StopReason.END_TURN),
    ],
    ids=["nothing", "blank", "cut off", "a refusal", "too long", "only thought"],
)
async def test_a_reply_that_is_no_summary_is_not_kept(answer: ModelReply) -> None:
    desk = Desk(*talk(10))
    desk.answer = answer
    with pytest.raises(SummaryRefusedError) as caught:
        await CompactingContext(past_chars=4_000, keep_chars=1_000).compact(desk)
    assert caught.value.stop == answer.stop.value
    assert desk.kept == []


def test_its_view_is_the_newest_that_stands_and_it_reads_no_other() -> None:
    def offer() -> Any:
        yield Summary(4, 1, "new", "x", 0)
        raise AssertionError("another one was read")

    chosen = CompactingContext().view(offer())
    assert chosen is not None
    assert chosen.text == "new"
    assert CompactingContext().view(iter(())) is None


@given(
    shape=st.lists(st.sampled_from(["turn", "call"]), max_size=40),
    keep=st.integers(0, 2_000),
    at_once=st.integers(1_000, 6_000),
    size=st.integers(1, 900),
)
def test_parts_cover_a_prefix_in_order_and_never_split_a_pair(
    shape: list[str], keep: int, at_once: int, size: int
) -> None:
    rows: list[Any] = []
    for number, kind in enumerate(shape):
        rows += talk(1, max(size, 8)) if kind == "turn" else calls(number, size)
    desk = Desk(*rows)
    strategy = CompactingContext(past_chars=4_000, keep_chars=keep, at_once_chars=at_once)
    parts = strategy._parts(desk._rows, desk.coverable(), keep)
    covered = [row.seq for part in parts for row in part]
    assert covered == list(range(1, len(covered) + 1))
    left = sum(len(str(row.blocks)) for row in desk._rows[len(covered) :])
    assert not covered or left >= keep
    for part in parts:
        assert part
        last = part[-1]
        assert not any(isinstance(block, ToolUseBlock) for block in last.blocks)
        assert last.seq <= desk.coverable()
