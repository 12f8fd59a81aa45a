"""Requests to, and replies from, the Anthropic Messages wire. Pure; no I/O, no SDK.

Invariants:
    I1  One `ProviderMessage` is one wire message. What the service refuses in one (blank text,
        reasoning without its signature) is left out; a message left with nothing is, too.
    I2  A reply is complete only behind `message_stop`.
    I3  What a reply holds can be kept: its blocks pass the schema that records are checked by.
    I4  A request begins and ends with a user's message. Where the transcript has the agent's own
        words there (a channel's history begins with them, a module wrote as the agent), or behind
        one another, `NOBODY` stands in between: the service refuses the first, and takes the last
        for the beginning of its reply. Each place follows from what is before it, so that a later
        request begins with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from .attachments import IMAGES, PDF, TEXTS, Places, in_words
from .port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    ProviderMessage,
    ReplyDelta,
    StopReason,
    Usage,
    note_tokens,
)
from .reasoning import signature_for
from .sse import ServerSentEvent
from .wire import (
    Pieces,
    StatedError,
    UnreadableReplyError,
    error_of,
    integer_at,
    kept,
    object_at,
    read_json,
    text_at,
)

_STOPS = {
    "end_turn": StopReason.END_TURN,
    "stop_sequence": StopReason.END_TURN,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.OUTPUT_LIMIT,
    "model_context_window_exceeded": StopReason.OUTPUT_LIMIT,
    "refusal": StopReason.REFUSAL,
}
_TERMINAL_TYPES = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "billing_error",
    }
)
_USAGE_FIELDS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


NOBODY: Final = "(no message)"
"""What a user is told to have said where nobody said anything and the service wants somebody."""


TYPES: Final = IMAGES | TEXTS | {PDF}
"""What it shows of attachments: it has no place for sounds."""


def request_body(request: ModelRequest, places: Places | None = None) -> dict[str, Any]:
    """The parameters of a streamed Messages call.

    Args:
        places: Takes the request's attachments, and stands for them. None: their marks stay.
    """
    places = Places() if places is None else places
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.output_tokens_max,
        "messages": _in_turns(
            wire for each in request.messages if (wire := _message(each, places))
        ),
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


def _in_turns(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a user's message before, between and behind messages of the assistant (I4)."""
    told: list[dict[str, Any]] = []
    last = "assistant"
    for message in messages:
        if last == message["role"] == "assistant":
            told.append(_nobody())
        told.append(message)
        last = message["role"]
    if last == "assistant":
        told.append(_nobody())
    return told


def _nobody() -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": NOBODY}]}


def _message(message: ProviderMessage, places: Places) -> dict[str, Any] | None:
    content = [wire for block in message.blocks if (wire := _block(block, places))]
    return {"role": message.role, "content": content} if content else None


def _block(block: Block, places: Places) -> dict[str, Any] | None:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text} if block.text.strip() else None
        case ThinkingBlock(redacted=True):
            return {"type": "redacted_thinking", "data": block.thinking}
        case ThinkingBlock(thinking=thinking):
            signature = signature_for(None, block)
            if not signature:
                return None
            return {"type": "thinking", "thinking": thinking, "signature": signature}
        case ToolUseBlock():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
        case ToolResultBlock():
            return {
                "type": "tool_result",
                "tool_use_id": block.tool_use_id,
                "content": [wire for part in block.content if (wire := _block(part, places))],
                "is_error": block.is_error,
            }
        case ImageBlock() | DocumentBlock() | AudioBlock():
            return _attachment(block, places)


def _attachment(block: AttachmentBlock, places: Places) -> dict[str, Any]:
    if block.media_type not in TYPES:
        return {"type": "text", "text": in_words(block)}
    if block.media_type in TEXTS:
        source = {"type": "text", "media_type": "text/plain", "data": places.text(block)}
    else:
        data = places.base64(block)
        source = {"type": "base64", "media_type": block.media_type, "data": data}
    if isinstance(block, ImageBlock):
        return {"type": "image", "source": source}
    named = {} if block.name is None else {"title": block.name}
    return {"type": "document", "source": source, **named}


class ReplyAssembly:
    """Builds one reply out of its events, in order."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.complete = False
        self._on_delta = on_delta
        self._open: dict[int, tuple[dict[str, Any], Pieces]] = {}
        self._blocks: dict[int, Block | None] = {}
        self._usage: dict[str, int] = {}
        self._stop: str | None = None

    def feed(self, event: ServerSentEvent) -> None:
        """Take one event of the stream. See `Assembly.feed`."""
        data = read_json(event.data)
        if event.name == "error" or data.get("type") == "error":
            kind, message = error_of(data)
            raise StatedError(message, retryable=None if kind in _TERMINAL_TYPES else True)
        self.take(data)

    def take(self, event: dict[str, Any]) -> None:
        """Take one event's data. Types that this version does not know are skipped, as the wire
        asks.

        Raises:
            UnreadableReplyError: It does not fit what came before it.
        """
        match event.get("type"):
            case "message_start":
                self._count(object_at(event, "message").get("usage"))
            case "content_block_start":
                block = object_at(event, "content_block")
                self._open[integer_at(event, "index")] = block, Pieces()
            case "content_block_delta":
                self._delta(integer_at(event, "index"), object_at(event, "delta"))
            case "content_block_stop":
                index = integer_at(event, "index")
                self._blocks[index] = _closed(*self._opened(index))
                del self._open[index]
            case "message_delta":
                self._stop = object_at(event, "delta").get("stop_reason") or self._stop
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
        return ModelReply(kept(blocks or [TextBlock(text="")]), stop, Usage(**self._usage))

    def _opened(self, index: int) -> tuple[dict[str, Any], Pieces]:
        opened = self._open.get(index)
        if opened is None:
            raise UnreadableReplyError(f"block {index} was not opened")
        return opened

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        _, pieces = self._opened(index)
        match delta.get("type"):
            case "text_delta":
                pieces.add("text", text_at(delta, "text"))
                self._on_delta(ReplyDelta("text", index, text_at(delta, "text")))
            case "thinking_delta":
                pieces.add("thinking", text_at(delta, "thinking"))
                self._on_delta(ReplyDelta("thinking", index, text_at(delta, "thinking")))
            case "signature_delta":
                pieces.add("signature", text_at(delta, "signature"))
            case "input_json_delta":
                piece = text_at(delta, "partial_json")
                pieces.add("partial_json", piece)
                self._on_delta(ReplyDelta("tool_input", index, piece))

    def _count(self, usage: Any) -> None:
        """Later figures replace earlier ones: those of the wire are running totals."""
        for name, field in _USAGE_FIELDS.items():
            value = usage.get(name) if isinstance(usage, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                self._usage[field] = value
        note_tokens(Usage(**self._usage))


def _closed(block: dict[str, Any], pieces: Pieces) -> Block | None:
    """A finished block; None for a tool call whose input was cut off."""

    def whole(field: str) -> str:
        start = block.get(field)
        return (start if isinstance(start, str) else "") + pieces.joined(field)

    match block.get("type"):
        case "text":
            return TextBlock(text=whole("text"))
        case "thinking":
            return ThinkingBlock(thinking=whole("thinking"), signature=whole("signature"))
        case "redacted_thinking":
            return ThinkingBlock(thinking=text_at(block, "data"), redacted=True)
        case "tool_use":
            given = pieces.joined("partial_json")
            try:
                value = read_json(given) if given else object_at(block, "input")
            except UnreadableReplyError:
                return None
            return ToolUseBlock(id=text_at(block, "id"), name=text_at(block, "name"), input=value)
        case kind:
            raise UnreadableReplyError(f"a block of type {kind!r} cannot be kept")
