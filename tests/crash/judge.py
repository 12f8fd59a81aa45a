"""Whether what is left of a trial of the matrix is what was promised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from abeyance.actors.domain.drafts import Draft
from abeyance.actors.domain.slot_messages import Receipt
from abeyance.actors.testing import invariant
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock

from .life import Report
from .sent import ACTS, CHANGED, addressee, drafts_of

OWN: Final = ("ANA", "ana", "BO")
"""Authors whose messages wake nobody here: each is in the words of whom it is for, or of who
speaks."""
LEAVERS: Final = ("closing", "leaving")
"""Variants whose agents end: what is left of them is in the slot or a dead letter."""
ALONE: Final = ("decided", "plain", "held", "quiesced", "big", "small", "pairs", "edited")
"""Variants whose slot is in one agent's words, to its last reply."""


def judge(directory: Path, variant: str, report: Report) -> list[str]:
    """Hold what is left of a trial against every promise."""
    return list(_Judge(directory, variant, report).found())


@dataclass
class _Judge:
    directory: Path
    variant: str
    report: Report

    def found(self) -> Iterator[str]:
        acks, calls = self._lines("acks"), invariant.read_log(self.directory / "wire.jsonl")
        self.receipts = {ack["id"]: Receipt(ack["id"], ack["seq"], "stored") for ack in acks}
        self.drafts = drafts_of(self.variant)
        if self.variant == "edited":
            calls = [self._as_edited(call) for call in calls]
        yield from invariant.violations(calls, fresh=self._fresh(calls))
        yield from self._accepted(acks)
        if self.variant == "edited":
            yield from self._edited()
        yield from self._transcript()
        yield from (f"{count} {what} at rest" for what, count in self.report.left.items() if count)
        yield from self._carried(calls)
        for draft in self.drafts:
            if draft.wake and draft.author not in OWN and draft.id in self.receipts:
                yield from self._answered(draft)
        if self.variant == "pairs":
            yield from self._pairs()
        if self.variant == "decided":
            yield from self._decided()

    # -- messages ----------------------------------------------------------------------------

    def _accepted(self, acks: list[dict[str, Any]]) -> Iterator[str]:
        if self.variant not in LEAVERS:
            for draft in self.drafts:
                if draft.id not in self.receipts:
                    yield f"{draft.id} has no receipt"
        for ack in acks:
            if self.receipts[ack["id"]].seq != ack["seq"]:
                seq = self.receipts[ack["id"]].seq
                yield f"{ack['id']} has two receipts: {ack['seq']}, {seq}"
        for name, state in CHANGED.items():
            if not self._is_there(name):
                # It was replaced, or taken back, before anybody read it.
                self.receipts.pop(name, None)
                said = self.report.states.get(name, state)
                if said != state:
                    yield f"{name} is not there, and is {said}, not {state}"

    def _transcript(self) -> Iterator[str]:
        landed = []
        for name, receipt in self.receipts.items():
            if not self._has_letter(f"message {name!r} by "):
                landed.append(receipt)
            elif self._is_there(name):
                yield f"{name} is in the slot and a dead letter"
        yield from invariant.transcript_violations(self.report.rows, landed)

    def _carried(self, calls: list[invariant.Exchange]) -> Iterator[str]:
        """What a request carried is what a compile renders ever after."""
        said = [
            invariant.Said("assistant" if row.role == "assistant" else "user", blocks)
            for row in self.report.rows
            if row.role != "marker"
            and not (self.variant == "edited" and row.id == "x2")  # As in the calls.
            and (blocks := invariant.canonical_blocks(row.blocks))
        ]
        if self.variant == "edited":
            said = list(map(_without_reasoning, said))
        last = calls[-1]
        whole = [*last.messages, last.reply]
        if self.variant in ALONE and whole != said:
            yield "the last request and its reply are not what the transcript holds"
        if self.variant == "closing" and whole != said[: len(whole)]:
            yield "the last request and its reply are not what the transcript begins with"

    def _is_there(self, name: str) -> bool:
        return any(row.id == name for row in self.report.rows)

    def _has_letter(self, text: str) -> bool:
        return any(text in letter for letter in self.report.letters)

    # -- wakes -------------------------------------------------------------------------------

    def _answered(self, draft: Draft) -> Iterator[str]:
        name = draft.id or ""
        seq = self.receipts[name].seq
        times = Counter(self.report.answered)[seq]
        if self._has_letter(f"message {name!r}"):
            if seq in self.report.answered and seq not in self.report.cancelled:
                yield f"the wake of {name} was answered, and is a dead letter"
            return
        # A quiesce gives the wakes of the turn that it cuts off back as one.
        if times > 1 or (times == 0 and self.variant != "quiesced"):
            yield f"the wake of {name} was answered by {times} turns"
        if not self._has_reply(name):
            yield f"no reply stands behind {name}"

    def _has_reply(self, name: str) -> bool:
        ids = [row.id for row in self.report.rows]
        behind = self.report.rows[ids.index(name) + 1 :] if name in ids else []
        agent = self.report.agents.get(addressee(name), addressee(name))
        return any(
            row.role == "assistant"
            and row.author == agent
            and not any(isinstance(block, ToolUseBlock) for block in row.blocks)
            for row in behind
        )

    # -- operators' edits --------------------------------------------------------------------

    def _edited(self) -> Iterator[str]:
        """Each act was done once, and what it did is to be seen."""
        if sorted(self.report.edits) != sorted((act.message, act.undone) for act in ACTS):
            yield f"the edits are {self.report.edits}"
        texts = {row.id: row.text for row in self.report.rows}
        for act in ACTS:
            words = f"says {act.message}" if act.undone else act.words
            if texts.get(act.message) != words:
                yield f"{act.message} says {texts.get(act.message)!r}, not {words!r}"
            if words is None:
                del self.receipts[act.message]
        self.drafts = [draft for draft in self.drafts if draft.id in self.receipts]

    def _as_edited(self, call: invariant.Exchange) -> invariant.Exchange:
        """A call as it would have been made of what is there now: edits change what was read, and
        reasoning that was signed behind other words is carried no more."""
        messages = []
        for said in map(_without_reasoning, call.messages):
            for act in ACTS:
                block = invariant.canonical_blocks([TextBlock(text=f"says {act.message}")])
                if said.blocks != block:
                    continue
                if act.undone or act.words is None:
                    break
                words = invariant.canonical_blocks([TextBlock(text=act.words)])
                messages.append(said._replace(blocks=words))
                break
            else:
                messages.append(said)
        reply = None if call.reply is None else _without_reasoning(call.reply)
        return replace(call, messages=tuple(messages), reply=reply)

    # -- operators' pairs --------------------------------------------------------------------

    def _pairs(self) -> Iterator[str]:
        """Each ask comes to one pair at most, whose body runs once at most; a receipt is true."""
        asks, ran = (Counter(line["op"] for line in self._lines(name)) for name in ("asks", "ran"))
        calls: dict[str, Any] = {}
        results: dict[str, str] = {}
        for row in self.report.rows:
            for block in row.blocks:
                if isinstance(block, ToolUseBlock) and block.name == "lift":
                    calls[block.id] = block.input["op"]
                elif row.role == "results" and block.tool_use_id in calls:
                    results[block.tool_use_id] = " ".join(part.text for part in block.content)
        pairs = Counter(calls.values())
        for op in ("op1", "op2"):
            if not ran[op] <= pairs[op] <= asks[op]:
                yield f"{op} was asked for {asks[op]} times, is there {pairs[op]}, ran {ran[op]}"
        receipts = self._lines("pairs")
        if [receipt["op"] for receipt in receipts] != ["op1", "op2"]:
            yield f"the receipts of pairs are {receipts}"
        for receipt in receipts:
            if results.get(receipt["call"]) != receipt["text"]:
                yield f"a pair's receipt says {receipt['text']!r}, the slot {results}"

    # -- what people decided -----------------------------------------------------------------

    def _decided(self) -> Iterator[str]:
        """Each receipt is true, and what was decided was done once."""
        receipts = self._lines("decided")
        said = {receipt["act"] for receipt in receipts}
        if "rewind" in said:
            yield "a rewind was done while a call waited"
        for receipt in receipts:
            if receipt["act"] == "approve" and receipt["state"] != "approved":
                yield f"an approval is told of as {receipt['state']}"
            if receipt["act"] == "cancel" and receipt["state"] != "cancelled":
                yield f"a turn that was cancelled is told of as {receipt['state']}"
        if self.report.model != "m2":
            yield f"the agent asks {self.report.model}, another was chosen"
        results = [
            block.content
            for row in self.report.rows
            if row.role == "results"
            for block in row.blocks
        ]
        paid = sum(part.text == "paid" for content in results for part in content)
        if paid != 1 or not self._lines("ran"):
            yield f"the call that was approved has {paid} results"
        stopped = [row.text for row in self.report.rows if row.role == "marker"]
        if stopped != ["this turn was cancelled by api:ops"]:
            yield f"the markers are {stopped}"
        if len(set(self.report.cancelled)) != len(self.report.cancelled):
            yield "a wake was cancelled twice"

    # -- what was written --------------------------------------------------------------------

    def _fresh(self, calls: list[invariant.Exchange]) -> set[int]:
        """The requests right behind what cut a turn off without a call."""
        behind = [line["behind"] for line in self._lines("fresh")]
        later = [[call.number for call in calls if call.number > number] for number in behind]
        return {numbers[0] for numbers in later if numbers}

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.directory / f"{name}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]


def _without_reasoning(said: invariant.Said) -> invariant.Said:
    kept = (block for block in said.blocks if json.loads(block)["type"] != "thinking")
    return said._replace(blocks=tuple(kept))
