"""Requests to, and replies from, the Anthropic Messages wire. Pure; no I/O, no SDK.

Invariants:
    I1  One `ProviderMessage` is one wire message. What the service refuses in one (blank text,
        reasoning without its signature) is left out; a message left with nothing is, too.
    I2  A reply is complete only behind `message_stop`.
    I3  What a reply holds can be kept: its blocks pass the schema that records are checked by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from abeyance.storage.tables.blocks import (
    Block,
    Blocks,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from .port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    ProviderMessage,
    ReplyDelta,
    StopReason,
    Usage,
)

_STOPS = {
    "end_turn": StopReason.END_TURN,
    "stop_sequence": StopReason.END_TURN,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.OUTPUT_LIMIT,
    "model_context_window_exceeded": StopReason.OUTPUT_LIMIT,
    "refusal": StopReason.REFUSAL,
}
_USAGE_FIELDS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}
_INTEGER_BITS = 64


class UnreadableReplyError(ValueError):
    """A reply breaks its own wire, or holds what cannot be kept."""


def request_body(request: ModelRequest) -> dict[str, Any]:
    """The parameters of a streamed Messages call."""
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.output_tokens_max,
        "messages": [wire for message in request.messages if (wire := _message(message))],
        "stream": True,
    }
    if request.system is not None and request.system.strip():
        body["system"] = request.system
    if request.tools:
        body["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.input_schema,
            }
            for tool in request.tools
        ]
    return body


def _message(message: ProviderMessage) -> dict[str, Any] | None:
    content = [wire for block in message.blocks if (wire := _block(block))]
    return {"role": message.role, "content": content} if content else None


def _block(block: Block) -> dict[str, Any] | None:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text} if block.text.strip() else None
        case ThinkingBlock(redacted=True):
            return {"type": "redacted_thinking", "data": block.thinking}
        case ThinkingBlock():
            if not block.signature:
                return None
            return {
                "type": "thinking",
                "thinking": block.thinking,
                "signature": block.signature,
            }
        case ToolUseBlock():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
        case ToolResultBlock():
            return {
                "type": "tool_result",
                "tool_use_id": block.tool_use_id,
                "content": [wire for part in block.content if (wire := _block(part))],
                "is_error": block.is_error,
            }


def read_json(text: str) -> dict[str, Any]:
    """Read one JSON object of the wire.

    Integers past 64 bits become floats, as in any reader of JavaScript's numbers: no record holds
    them otherwise. NaN and infinities are refused.

    Raises:
        UnreadableReplyError: It is no JSON object.
    """
    try:
        value = json.loads(text, parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableReplyError(f"an event holds no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableReplyError("an event's JSON is no object")
    return value


class ReplyAssembly:
    """Builds one reply out of its events, in order."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.complete = False
        self._on_delta = on_delta
        self._open: dict[int, dict[str, Any]] = {}
        self._blocks: dict[int, Block | None] = {}
        self._usage: dict[str, int] = {}
        self._stop: str | None = None

    def feed(self, event: dict[str, Any]) -> None:
        """Take one event. Types that this version does not know are skipped, as the wire asks.

        Raises:
            UnreadableReplyError: It does not fit what came before it.
        """
        match event.get("type"):
            case "message_start":
                self._count(_dict(event, "message").get("usage"))
            case "content_block_start":
                self._open[_int(event, "index")] = dict(_dict(event, "content_block"))
            case "content_block_delta":
                self._delta(_int(event, "index"), _dict(event, "delta"))
            case "content_block_stop":
                index = _int(event, "index")
                self._blocks[index] = _closed(self._opened(index))
                del self._open[index]
            case "message_delta":
                self._stop = _dict(event, "delta").get("stop_reason") or self._stop
                self._count(event.get("usage"))
            case "message_stop":
                self.complete = True

    def reply(self) -> ModelReply:
        """The reply. An empty one holds one empty text, so that it can be kept as a message.

        Raises:
            UnreadableReplyError: It was not complete, or cannot be kept.
        """
        if not self.complete or self._open:
            raise UnreadableReplyError("the stream ended before the message did")
        stop = _STOPS.get(self._stop or "", StopReason.OTHER)
        blocks = [block for _, block in sorted(self._blocks.items()) if block is not None]
        if len(blocks) < len(self._blocks) and stop is not StopReason.OUTPUT_LIMIT:
            raise UnreadableReplyError("a tool call's input is no JSON object")
        return ModelReply(_kept(blocks or [TextBlock(text="")]), stop, Usage(**self._usage))

    def _opened(self, index: int) -> dict[str, Any]:
        block = self._open.get(index)
        if block is None:
            raise UnreadableReplyError(f"block {index} was not opened")
        return block

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._opened(index)
        match delta.get("type"):
            case "text_delta":
                _append(block, "text", _str(delta, "text"))
                self._on_delta(ReplyDelta("text", index, _str(delta, "text")))
            case "thinking_delta":
                _append(block, "thinking", _str(delta, "thinking"))
                self._on_delta(ReplyDelta("thinking", index, _str(delta, "thinking")))
            case "signature_delta":
                _append(block, "signature", _str(delta, "signature"))
            case "input_json_delta":
                piece = _str(delta, "partial_json")
                _append(block, "partial_json", piece)
                self._on_delta(ReplyDelta("tool_input", index, piece))

    def _count(self, usage: Any) -> None:
        """Later figures replace earlier ones: those of the wire are running totals."""
        for name, field in _USAGE_FIELDS.items():
            value = usage.get(name) if isinstance(usage, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                self._usage[field] = value


def _closed(block: dict[str, Any]) -> Block | None:
    """A finished block; None for a tool call whose input was cut off."""
    match block.get("type"):
        case "text":
            return TextBlock(text=_joined(block, "text"))
        case "thinking":
            return ThinkingBlock(
                thinking=_joined(block, "thinking"), signature=_joined(block, "signature")
            )
        case "redacted_thinking":
            return ThinkingBlock(thinking=_str(block, "data"), redacted=True)
        case "tool_use":
            pieces = block.get("pieces.partial_json", [])
            try:
                value = read_json("".join(pieces)) if any(pieces) else _dict(block, "input")
            except UnreadableReplyError:
                return None
            return ToolUseBlock(id=_str(block, "id"), name=_str(block, "name"), input=value)
        case kind:
            raise UnreadableReplyError(f"a block of type {kind!r} cannot be kept")


def _append(block: dict[str, Any], field: str, piece: str) -> None:
    """Pieces are joined once, at the block's end: adding strings is quadratic in a long reply."""
    block.setdefault(f"pieces.{field}", []).append(piece)


def _joined(block: dict[str, Any], field: str) -> str:
    start = block.get(field)
    return (start if isinstance(start, str) else "") + "".join(block.get(f"pieces.{field}", []))


def _kept(blocks: Iterable[Block]) -> tuple[Block, ...]:
    try:
        return msgspec.convert(msgspec.to_builtins(tuple(blocks)), Blocks)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableReplyError(f"the reply cannot be kept: {error}") from error


def _dict(event: dict[str, Any], field: str) -> dict[str, Any]:
    value = event.get(field)
    if not isinstance(value, dict):
        raise UnreadableReplyError(f"{field} is no object")
    return value


def _int(event: dict[str, Any], field: str) -> int:
    value = event.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnreadableReplyError(f"{field} is no integer")
    return value


def _str(event: dict[str, Any], field: str) -> str:
    value = event.get(field)
    if not isinstance(value, str):
        raise UnreadableReplyError(f"{field} is no text")
    return value


def _integer(digits: str) -> int | float:
    value = int(digits)  # Past 4,300 digits a ValueError, as for any other text that is no JSON.
    if -(2 ** (_INTEGER_BITS - 1)) <= value < 2**_INTEGER_BITS:
        return value
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number past every float")
    return number


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
