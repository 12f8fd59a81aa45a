"""The invariant of a slot, checked on what was on the wire.

What a slot holds between two rounds is what the live request carried, byte for byte as later
compiles render it. The checker reads a record that neither the slot nor its compiles wrote: the
simulator's wire log, or a scripted provider's requests. It shares no code with them.

Invariants that it holds each request against the one before it, of the same agent:
    I1  Within one compile it is that request, the reply as it was sent, one message with the
        results of the reply's calls in their order, and what was injected: messages of users,
        without tool blocks. Or it is that request again, where its reply was lost with its host.
        Its system prompt is the same.
    I2  At a fresh compile it equals what a compile renders then, where that is known. Where it is
        not, it carries on from the request before it and its reply, and changes nothing of them.

Whether a request begins a compile stands on its exchange, where it is known. From a wire alone it
is not: there a compile begins behind a last reply and behind a call that failed, and
`fresh` names the others (behind a hold that no call led to, a stop, a rewind, an edit).

An attachment compares by the digest of its bytes, and its media type.

Pure but for reading files; no task, any thread.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from abeyance.storage.tables.blocks import Block

from ..domain.slot_messages import Receipt
from ..domain.transcript import TranscriptMessage
from ..providers.anthropic_wire import NOBODY
from ..providers.port import ModelRequest
from .scripted import ScriptedProvider
from .simulator import LogEntry, ProviderSimulator

SHOWN_CHARS = 160


class Said(NamedTuple):
    """One message in a form that compares: its blocks as the wire has them, each as one text."""

    role: str
    blocks: tuple[str, ...]

    @property
    def is_of_user(self) -> bool:
        """Whether it may be injected: a user's, with no tool block."""
        return self.role == "user" and not any(_kind(block) in _TOOL_KINDS for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call: what it carried, and what came back whole."""

    number: int
    """Its place in its record, from 1."""
    stream: str
    """Whose transcript it carries; requests are compared within one."""
    messages: tuple[Said, ...]
    reply: Said | None = None
    """None where no whole reply was sent."""
    begins: bool | None = None
    """Whether it is the first of a compile; None where the record does not say."""
    compiled: tuple[Said, ...] | None = None
    """What a compile rendered while the call was out; None where nobody looked."""
    recast: bool = False
    """It begins a compile behind another summary than the call before it, or behind none now."""
    system: str | None = None
    """The system prompt that it carried; None for none."""

    @property
    def calls(self) -> tuple[str, ...]:
        """The ids of the tool calls in its reply, in order."""
        blocks = [json.loads(block) for block in self.reply.blocks] if self.reply else []
        return tuple(block["id"] for block in blocks if block["type"] == "tool_use")


def violations(exchanges: Iterable[Exchange], *, fresh: Container[int] = ()) -> list[str]:
    """Hold every exchange against the invariant.

    Not a checkpoint. Any thread.

    Args:
        exchanges: In the order they were made; of any number of streams.
        fresh: Numbers of those that began a compile for a reason that the wire does not show.
    Returns:
        What does not hold, a line each; nothing where everything does.
    """
    found: list[str] = []
    last: dict[str, Exchange] = {}
    for exchange in exchanges:
        if exchange.number in fresh:
            exchange = replace(exchange, begins=True)
        if exchange.compiled is not None:
            found += _compared(
                exchange, "carries", exchange.messages, "a compile", exchange.compiled
            )
        earlier = last.get(exchange.stream)
        last[exchange.stream] = exchange
        if earlier is not None:
            found += _follows(earlier, exchange)
    return found


def check(exchanges: Iterable[Exchange], *, fresh: Container[int] = ()) -> None:
    """Fail where an exchange breaks the invariant. As `violations`.

    Raises:
        AssertionError: It is broken; the text has a line for each place.
    """
    found = violations(exchanges, fresh=fresh)
    if found:
        raise AssertionError("the wire breaks the invariant of a slot:\n" + "\n".join(found))


# -- records -------------------------------------------------------------------------------------

StreamOf: TypeAlias = Callable[[Mapping[str, Any]], str | None]


def of_model(request: Mapping[str, Any]) -> str | None:
    """The stream of a wire's request: its model's. Right where each agent has its own."""
    return str(request.get("model"))


def read_log(
    log: ProviderSimulator | Iterable[LogEntry] | str | Path, *, stream: StreamOf = of_model
) -> list[Exchange]:
    """Read the calls of a simulator's wire log, in order of arrival.

    Args:
        log: The simulator, its entries, or the file that it writes. A last line that is cut, and
            a response that is not over, are no replies.
        stream: Whose transcript a request carries, told from the request's JSON; None leaves it
            out, as for a call that carries none.
    """
    if isinstance(log, ProviderSimulator):
        log = log.log
    entries = _read_lines(Path(log)) if isinstance(log, str | Path) else log
    exchanges = []
    for entry in entries:
        request = entry.request
        if entry.path != "/v1/messages" or not isinstance(request, dict):
            continue
        name = stream(request)
        if name is None:
            continue
        said = (_of_wire(message) for message in request.get("messages", ()))
        whole = entry.finished and entry.status == 200 and isinstance(entry.reply, dict)
        reply = _of_wire({"role": "assistant", **entry.reply}) if whole else None
        exchanges.append(
            Exchange(
                entry.number,
                name,
                tuple(message for message in said if message),
                reply,
                system=request.get("system"),
            )
        )
    return exchanges


def read_scripted(*providers: ScriptedProvider) -> list[Exchange]:
    """Read the calls of scripted providers, each in order of arrival; a stream is an agent.

    Of one agent that had several providers, one after the other, give them in that order.
    Auxiliary calls carry no transcript and are left out.
    """
    calls = [call for provider in providers for call in provider.exchanges]
    return [
        Exchange(
            number,
            call.permit.agent,
            said_of(call.request),
            None if call.reply is None else Said("assistant", canonical_blocks(call.reply.blocks)),
            system=call.request.system,
        )
        for number, call in enumerate(calls, 1)
        if call.permit.purpose != "auxiliary"
    ]


def said_of(request: ModelRequest) -> tuple[Said, ...]:
    """A request's messages in the form that compares."""
    return tuple(
        Said(message.role, canonical_blocks(message.blocks)) for message in request.messages
    )


def canonical_blocks(blocks: Iterable[Block]) -> tuple[str, ...]:
    """Blocks of records, in the form that compares."""
    return tuple(_canonical(_as_wire(msgspec.to_builtins(block))) for block in blocks)


def sendable(messages: Iterable[Said]) -> tuple[Said, ...]:
    """Messages without what the service refuses in one: blank texts, reasoning without signature.

    An adapter leaves them out of the wire, and a message that has nothing else.
    """
    kept = (
        Said(role, tuple(block for block in blocks if _is_sendable(block)))
        for role, blocks in messages
    )
    return tuple(message for message in kept if message.blocks)


def _read_lines(path: Path) -> list[LogEntry]:
    entries: dict[int, LogEntry] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        data = json.loads(line)
        number = data["number"]
        if data.pop("event") == "received":
            entries[number] = LogEntry(**data)
        else:
            entry = entries[number]
            entry.status, entry.reply = data["status"], data["reply"]
            entry.finished, entry.replied_ms = data["finished"], data["at_ms"]
    return list(entries.values())


def _of_wire(message: Mapping[str, Any]) -> Said | None:
    """What a message of the wire says; None where that is nothing, or nobody's."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    (said,) = sendable([Said(message["role"], tuple(map(_canonical, blocks)))]) or (None,)
    return None if said == _NOBODY else said


def _as_wire(block: dict[str, Any]) -> dict[str, Any]:
    """A record's block as the wire writes it."""
    if block["type"] == "thinking":
        if block.get("redacted"):
            return {"type": "redacted_thinking", "data": block["thinking"]}
        block.pop("redacted", None)
    if block["type"] in _ATTACHED:
        kind = "text" if block["media_type"].startswith("text/") else "base64"
        media_type = "text/plain" if kind == "text" else block["media_type"]
        data = f"sha256:{block['digest']}"
        return {"type": block["type"], "source": {"media_type": media_type, "data": data}}
    if block["type"] == "tool_result":
        return {**block, "content": [_as_wire(part) for part in block["content"]]}
    return block


_KEPT: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
"""What makes up a block. Marks of caches move with the adapter, and citations are not kept."""
_ATTACHED = ("image", "audio", "document")
_TOOL_KINDS = ("tool_use", "tool_result")


def _canonical(block: Mapping[str, Any]) -> str:
    kind = str(block.get("type"))
    if kind in _ATTACHED:
        source = block.get("source") or {}
        kept_of = {"media_type": source.get("media_type"), "digest": _digest(source)}
        return json.dumps({"type": kind, **kept_of}, sort_keys=True)
    if kind not in _KEPT:
        return json.dumps(block, sort_keys=True, ensure_ascii=False)
    kept: dict[str, Any] = {name: block.get(name) for name in _KEPT[kind]}
    if kind == "tool_result":
        content = block.get("content") or ()
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept["content"] = [json.loads(_canonical(part)) for part in parts]
        kept["is_error"] = bool(block.get("is_error"))
    return json.dumps({"type": kind, **kept}, sort_keys=True, ensure_ascii=False)


def _digest(source: Mapping[str, Any]) -> str:
    """Which bytes a source is of: a log of the simulator's has their digest in their place."""
    data = str(source.get("data"))
    if not data.startswith("sha256:"):
        raw = data.encode() if source.get("type") == "text" else base64.b64decode(data)
        return hashlib.sha256(raw).hexdigest()
    return data[7:71]


_NOBODY = Said("user", (_canonical({"type": "text", "text": NOBODY}),))
"""What an adapter says for nobody. It is no message: no reply follows it but the one it is for."""


def _kind(block: str) -> Any:
    return json.loads(block)["type"]


def _is_sendable(block: str) -> bool:
    match json.loads(block):
        case {"type": "text", "text": str(text)}:
            return bool(text.strip())
        case {"type": "thinking", "signature": signature}:
            # Of another wire: see providers/reasoning.py, with which this shares no code.
            return bool(signature) and ":" not in signature
    return True


# -- rules ---------------------------------------------------------------------------------------


def _follows(earlier: Exchange, later: Exchange) -> list[str]:
    if later.begins or (later.begins is None and not earlier.calls):
        # What stands in the slot is known better where somebody compiled it.
        known = later.compiled is not None or later.recast
        return [] if known else _carries_on(earlier, later)
    found = []
    if later.system != earlier.system:
        found.append(f"{_named(later)} has another system prompt than call {earlier.number}")
    return found if later.messages == earlier.messages else found + _grows(earlier, later)


def _carries_on(earlier: Exchange, later: Exchange) -> list[str]:
    """A fresh compile in a slot that nobody rewound: nothing of what it held is changed."""
    if later.messages == earlier.messages:
        return []
    head = earlier.messages
    if earlier.reply is not None and not later.begins:
        head = (*head, earlier.reply)
    return _compared(
        later, "begins with", later.messages[: len(head)], f"call {earlier.number}", head
    )


def _grows(earlier: Exchange, later: Exchange) -> list[str]:
    """Within one compile: the request, its reply, the results, what was injected."""
    if earlier.reply is None or not earlier.calls:
        return _compared(
            later, "carries", later.messages, f"call {earlier.number} again", earlier.messages
        )
    head = (*earlier.messages, earlier.reply)
    found = _compared(
        later,
        "begins with",
        later.messages[: len(head)],
        f"call {earlier.number} and its reply",
        head,
    )
    if found:
        return found
    if len(later.messages) == len(head):
        return [f"{_named(later)}: no results behind the calls {', '.join(earlier.calls)}"]
    results, injected = later.messages[len(head)], later.messages[len(head) + 1 :]
    blocks = [json.loads(block) for block in results.blocks]
    answered = tuple(block.get("tool_use_id") for block in blocks)
    if results.role != "user" or answered != earlier.calls:
        found.append(
            f"{_named(later)}: behind the calls {', '.join(earlier.calls)} stands "
            f"{_shown(results)}, which is not their results in order"
        )
    found += [
        f"{_named(later)}: {_shown(message)} joined a live turn, which only a user's words may"
        for message in injected
        if not message.is_of_user
    ]
    return found


def _compared(
    exchange: Exchange,
    does: str,
    carried: tuple[Said, ...],
    what: str,
    expected: tuple[Said, ...],
) -> list[str]:
    if carried == expected:
        return []
    at = next(
        (at for at, pair in enumerate(zip(carried, expected, strict=False)) if pair[0] != pair[1]),
        min(len(carried), len(expected)),
    )
    here, there = (
        _shown(said[at]) if at < len(said) else "nothing" for said in (carried, expected)
    )
    return [
        f"{_named(exchange)} {does} something else than {what}: at message {at + 1} it has {here}, "
        f"expected is {there}"
    ]


def _named(exchange: Exchange) -> str:
    return f"call {exchange.number} of {exchange.stream}"


def _shown(said: Said) -> str:
    text = " ".join(said.blocks)
    return f"{said.role}: {text[:SHOWN_CHARS]}{'…' if len(text) > SHOWN_CHARS else ''}"


# -- transcripts ---------------------------------------------------------------------------------


def transcript_violations(
    transcript: Iterable[TranscriptMessage], receipts: Iterable[Receipt] = ()
) -> list[str]:
    """Hold a transcript, read whole, against what was promised of it.

    Each message with a receipt is there once, in the order of the receipts' numbers; behind a
    reply with tool calls its results stand at once, and nowhere else.

    Args:
        transcript: Oldest first, as `agent.transcript()` yields it.
        receipts: Of messages that nobody took back, and whose agent has no turn and no hold.
    """
    found: list[str] = []
    rows = list(transcript)
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.id, []).append(place)
    reached = -1
    for receipt in sorted(receipts, key=lambda receipt: receipt.seq):
        at = places.get(receipt.id, [])
        if len(at) != 1:
            found.append(f"message {receipt.id!r} has a receipt and is there {len(at)} times")
        elif at[0] < reached:
            found.append(f"message {receipt.id!r} stands before one that was accepted earlier")
        else:
            reached = at[0]
    owed: tuple[str, ...] = ()
    for row in rows:
        blocks = [json.loads(block) for block in canonical_blocks(row.blocks)]
        results = tuple(b["tool_use_id"] for b in blocks if b["type"] == "tool_result")
        if results != owed:
            found.append(f"row {row.seq} has the results of {results}, owed are those of {owed}")
        owed = tuple(block["id"] for block in blocks if block["type"] == "tool_use")
    if owed:
        found.append(f"the calls {owed} have no results")
    return found


__all__ = [
    "Exchange",
    "Said",
    "check",
    "of_model",
    "read_log",
    "read_scripted",
    "transcript_violations",
    "violations",
]
