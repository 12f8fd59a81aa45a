"""The checker of the invariant, on records made by hand: what it finds, what it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import AgentSpec, Tool, TranscriptMessage, open_runtime
from abeyance.actors.domain.slot_messages import Receipt
from abeyance.actors.testing import LogEntry, ProviderSimulator, ScriptedProvider, invariant
from abeyance.actors.testing.witness import Witness
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock

Message = dict[str, Any]
Break = Callable[[list[LogEntry]], None]


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def user(*words: str) -> Message:
    return {"role": "user", "content": [text(word) for word in words]}


def agent(*blocks: Message) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def call(name: str) -> Message:
    return {"type": "tool_use", "id": name, "name": "look", "input": {"at": name}}


def result(name: str) -> Message:
    return {"type": "tool_result", "tool_use_id": name, "content": [text(f"saw {name}")]}


def results(*names: str) -> Message:
    return {"role": "user", "content": [result(name) for name in names]}


LOOK = agent({"type": "thinking", "thinking": "hm", "signature": "s"}, call("c1"), call("c2"))
DONE = agent(text("Done"))
FIRST = [user("go")]
SECOND = [*FIRST, LOOK, results("c1", "c2"), user("a"), user("b", "c")]
THIRD = [*SECOND, DONE, agent(text("own")), user("d")]


def entry(number: int, messages: list[Message], reply: Message | None, **fields: Any) -> LogEntry:
    sent = None if reply is None else {"content": reply["content"]}
    given: dict[str, Any] = {"status": 200, "reply": sent, "finished": True, **fields}
    # As bytes on a wire: nothing is shared between requests.
    request = json.loads(json.dumps({"model": "m", "messages": messages}))
    return LogEntry(number, 0, "/v1/messages", {}, request, **given)


def two_turns() -> list[LogEntry]:
    return [entry(1, FIRST, LOOK), entry(2, SECOND, DONE), entry(3, THIRD, agent(text("d heard")))]


def found(log: list[LogEntry], **how: Any) -> list[str]:
    return invariant.violations(invariant.read_log(log), **how)


def messages(log: list[LogEntry], number: int) -> list[Message]:
    carried: list[Message] = log[number - 1].request["messages"]
    return carried


def test_checker_finds_nothing_in_two_turns_as_they_should_be() -> None:
    assert found(two_turns()) == []
    invariant.check(invariant.read_log(two_turns()))


def store_a_row_mid_turn(log: list[LogEntry]) -> None:
    # Stored while call 1 was out, so in front of its reply in every later compile.
    messages(log, 3).insert(1, user("stray"))


def skip_a_held_row(log: list[LogEntry]) -> None:
    messages(log, 2).insert(3, agent(text("own")))


def reorder_a_body(log: list[LogEntry]) -> None:
    messages(log, 3)[4]["content"].reverse()


def compact_mid_turn(log: list[LogEntry]) -> None:
    messages(log, 2)[:1] = [user("the story so far")]


def drop_the_reply(log: list[LogEntry]) -> None:
    del messages(log, 2)[1]


def change_the_reply(log: list[LogEntry]) -> None:
    messages(log, 2)[1]["content"].pop(0)


def drop_the_results(log: list[LogEntry]) -> None:
    del messages(log, 2)[2:]


def drop_a_result(log: list[LogEntry]) -> None:
    messages(log, 2)[2]["content"].pop()


def swap_results(log: list[LogEntry]) -> None:
    messages(log, 2)[2]["content"].reverse()


def part_call_and_results(log: list[LogEntry]) -> None:
    messages(log, 2).insert(2, user("between"))


def inject_results(log: list[LogEntry]) -> None:
    messages(log, 2).append(results("c9"))


def drop_what_was_injected(log: list[LogEntry]) -> None:
    del messages(log, 3)[3]


def drop_the_last_reply(log: list[LogEntry]) -> None:
    del messages(log, 3)[5]


def change_a_character(log: list[LogEntry]) -> None:
    messages(log, 3)[0]["content"][0]["text"] = "g0"


def join_messages(log: list[LogEntry]) -> None:
    first, second = messages(log, 3)[3:5]
    messages(log, 3)[3:5] = [{"role": "user", "content": first["content"] + second["content"]}]


BREAKS: dict[Break, str] = {
    store_a_row_mid_turn: "call 3 of m begins with something else than call 2: at message 2",
    skip_a_held_row: "joined a live turn, which only a user's words may",
    reorder_a_body: "call 3 of m begins with something else than call 2: at message 5",
    compact_mid_turn: "call 2 of m begins with something else than call 1 and its reply",
    drop_the_reply: "than call 1 and its reply: at message 2",
    change_the_reply: "than call 1 and its reply: at message 2",
    drop_the_results: "no results behind the calls c1, c2",
    drop_a_result: "which is not their results in order",
    swap_results: "which is not their results in order",
    part_call_and_results: "which is not their results in order",
    inject_results: "joined a live turn, which only a user's words may",
    drop_what_was_injected: "call 3 of m begins with something else than call 2: at message 4",
    drop_the_last_reply: "call 3 of m begins with something else than call 2: at message 6",
    change_a_character: "call 3 of m begins with something else than call 2: at message 1",
    join_messages: "call 3 of m begins with something else than call 2: at message 4",
}


@pytest.mark.parametrize("breaks", BREAKS, ids=lambda breaks: breaks.__name__)
def test_checker_finds_each_break_of_a_wire(breaks: Break) -> None:
    log = two_turns()
    breaks(log)
    assert any(BREAKS[breaks] in line for line in found(log)), found(log)
    with pytest.raises(AssertionError, match="breaks the invariant of a slot"):
        invariant.check(invariant.read_log(log))


def test_request_is_made_again_where_its_host_died_with_the_reply() -> None:
    log = [entry(1, FIRST, LOOK), entry(2, FIRST, LOOK), entry(3, SECOND, DONE)]
    log += [entry(4, SECOND, DONE), entry(5, THIRD, DONE)]
    assert found(log) == []


def test_turn_goes_on_behind_a_call_that_was_refused_or_cut_off() -> None:
    limited = entry(2, SECOND, None, status=429)
    cut = entry(3, SECOND, DONE, finished=False)
    log = [entry(1, FIRST, LOOK), limited, cut, entry(4, [*SECOND, agent(text("own"))], DONE)]
    assert found(log) == []
    messages(log, 4)[1:3] = []
    assert len(found(log)) == 1


def test_compile_that_no_call_led_to_is_named_by_whoever_knows_of_it() -> None:
    held = [*SECOND, agent(text("own"))]
    log = [entry(1, FIRST, LOOK), entry(2, held, DONE)]
    assert found(log) != []
    assert found(log, fresh={2}) == []
    rewound = [entry(1, FIRST, LOOK), entry(2, [user("other")], DONE)]
    assert found(rewound, fresh={2}) != []


def test_fresh_compile_is_held_against_what_was_compiled_where_that_is_known() -> None:
    first, later = invariant.read_log([entry(1, FIRST, DONE), entry(2, [user("new")], DONE)])
    compiled = replace(later, begins=True, compiled=later.messages)
    assert invariant.violations([first, compiled]) == []
    stale = replace(compiled, compiled=first.messages)
    (line,) = invariant.violations([first, stale])
    assert "carries something else than a compile: at message 1" in line


def test_requests_are_compared_within_a_stream() -> None:
    log = [entry(1, FIRST, LOOK), entry(2, [user("hi")], DONE), entry(3, SECOND, DONE)]
    log[1].request["model"] = "other"
    assert found(log) == []
    log[1].request["model"] = "m"
    assert found(log) != []
    streams = invariant.read_log(log, stream=lambda request: None)
    assert streams == []


def test_what_a_service_refuses_in_a_reply_is_not_asked_for_again() -> None:
    odd = agent(text("  "), {"type": "thinking", "thinking": "x", "signature": ""}, call("c1"))
    log = [entry(1, FIRST, odd), entry(2, [*FIRST, agent(call("c1")), results("c1")], DONE)]
    messages(log, 2)[0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    assert found(log) == []


async def test_log_is_read_alike_from_its_file_and_from_the_simulator(tmp_path: Path) -> None:
    path = tmp_path / "wire.jsonl"
    lines = []
    for one in two_turns():
        data = asdict(one)
        replied = {name: data.pop(name) for name in ("status", "reply", "finished")}
        at = data.pop("replied_ms")
        lines.append(json.dumps({"event": "received", **data}))
        lines.append(json.dumps({"event": "replied", "number": one.number, **replied, "at_ms": at}))
    path.write_text("\n".join(lines) + '\n{"event": "rece')
    assert invariant.read_log(path) == invariant.read_log(two_turns())
    async with ProviderSimulator() as simulator:
        simulator.log.extend(two_turns())
        assert invariant.read_log(simulator) == invariant.read_log(two_turns())


def row(seq: int, name: str, role: Any, *blocks: Any) -> TranscriptMessage:
    return TranscriptMessage(name, seq, seq, "x", role, blocks or (TextBlock(text=name),), 0)


USE = ToolUseBlock(id="c1", name="look", input={})
SAW = ToolResultBlock(tool_use_id="c1")
ROWS = [
    row(1, "a", "user"),
    row(2, "r1", "assistant", USE),
    row(3, "s1", "results", SAW),
    row(4, "b", "user"),
    row(5, "r2", "assistant"),
]
RECEIPTS = [Receipt("a", 1, "stored"), Receipt("b", 3, "accepted")]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        pytest.param(ROWS, None, id="as it should be"),
        pytest.param(ROWS[1:], "there 0 times", id="lost"),
        pytest.param([*ROWS, ROWS[3]], "there 2 times", id="twice"),
        pytest.param(
            [ROWS[3], *ROWS[:3], ROWS[4]], "before one that was accepted earlier", id="order"
        ),
        pytest.param(
            [*ROWS[:2], ROWS[3], ROWS[2], ROWS[4]], "owed are those of ('c1',)", id="pair"
        ),
        pytest.param(ROWS[:2], "have no results", id="open"),
    ],
)
def test_transcript_is_held_against_its_receipts(
    rows: list[TranscriptMessage], says: str | None
) -> None:
    receipts = [r for r in RECEIPTS if says != "have no results"][: 2 if says else None]
    lines = invariant.transcript_violations(rows, receipts)
    assert lines == [] if says is None else any(says in line for line in lines), lines


# -- in process ----------------------------------------------------------------------------------


async def test_scripted_provider_keeps_what_the_checker_reads(
    tmp_path: Path, wire_invariant: Witness
) -> None:
    look = Tool(
        name="look",
        description="looks",
        input_schema={"type": "object", "properties": {}},
        run=lambda **_: "x",
    )
    provider = ScriptedProvider.echo("look", rounds=2)
    spec = AgentSpec(name="ana", provider=provider, model="m", tools=[look])
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        ana = await runtime.add_agent(spec)
        await ana.send("hi")
        await ana.wait_idle()
    first, second = invariant.read_scripted(provider)
    assert (first.stream, first.calls, second.calls) == ("ana", ("call_1",), ())
    assert invariant.violations([first, second]) == []
    seen = wire_invariant.exchanges
    assert [one.messages for one in seen] == [first.messages, second.messages]
    assert [one.begins for one in seen] == [True, False]
    assert invariant.violations([second, first]) != []
