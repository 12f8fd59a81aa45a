"""Requests to, and replies from, OpenAI's Responses wire. Pure; no I/O, no SDK.

Nothing is stored at the service: each request carries the transcript whole, and reasoning comes
back encrypted, to be sent again behind what it was produced behind.

Invariants:
    I1  Blank texts are left out, and reasoning that another wire gave.
    I2  A reply is complete only behind `response.completed` or `response.incomplete`.
    I3  What a reply holds can be kept: its blocks pass the schema that records are checked by.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from .attachments import IMAGES, PDF, TEXTS, Places, in_words
from .openai_chat_wire import (
    TERMINAL_TYPES,
    arguments_of,
    file_name,
    named_text,
    result_text,
    stated_error,
)
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
from .reasoning import signature_for, signed
from .sse import ServerSentEvent
from .wire import (
    StatedError,
    UnreadableReplyError,
    count_of,
    integer_at,
    kept,
    object_at,
    read_json,
    text_at,
)

WIRE = "openai-responses"
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "tool_input",
}


TYPES: Final = IMAGES | TEXTS | {PDF}
"""What it shows of attachments: it has no place for sounds."""


def request_body(request: ModelRequest, places: Places | None = None) -> dict[str, Any]:
    """The parameters of a streamed call.

    Args:
        places: Takes the request's attachments, and stands for them. None: their marks stay.
    """
    places = Places() if places is None else places
    body: dict[str, Any] = {
        "model": request.model,
        "input": [item for message in request.messages for item in _items(message, places)],
        "max_output_tokens": request.output_tokens_max,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    }
    if request.system is not None and request.system.strip():
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in request.tools
        ]
    return body


def _items(message: ProviderMessage, places: Places) -> Iterator[dict[str, Any]]:
    """One message of ours, in the order of its blocks; texts and attachments side by side are one
    item."""
    parts: list[dict[str, Any]] = []
    kind = "output_text" if message.role == "assistant" else "input_text"
    for block in message.blocks:
        if isinstance(block, TextBlock):
            if block.text.strip():
                parts.append({"type": kind, "text": block.text})
            continue
        if isinstance(block, AttachmentBlock):
            parts.append(_attachment(block, places))
            continue
        item = _item(block, places)
        if item is not None:
            if parts:
                yield {"role": message.role, "content": parts}
                parts = []
            yield item
    if parts:
        yield {"role": message.role, "content": parts}


def _attachment(block: AttachmentBlock, places: Places) -> dict[str, Any]:
    if block.media_type not in TYPES:
        return {"type": "input_text", "text": in_words(block)}
    if block.media_type in TEXTS:
        return {"type": "input_text", "text": named_text(block, places)}
    data = places.data_url(block)
    if block.media_type in IMAGES:
        return {"type": "input_image", "detail": "auto", "image_url": data}
    return {"type": "input_file", "filename": file_name(block), "file_data": data}


def _output(block: ToolResultBlock, places: Places) -> str | list[dict[str, Any]]:
    """A tool's result: a text, or parts where something is attached to it."""
    attached = [part for part in block.content if isinstance(part, AttachmentBlock)]
    if not attached:
        return result_text(block)
    text = result_text(block)
    said = [{"type": "input_text", "text": text}] if text.strip() else []
    return [*said, *(_attachment(part, places) for part in attached)]


def _item(block: Block, places: Places) -> dict[str, Any] | None:
    match block:
        case ToolUseBlock():
            return {
                "type": "function_call",
                "call_id": block.id,
                "name": block.name,
                "arguments": arguments_of(block),
            }
        case ToolResultBlock():
            return {
                "type": "function_call_output",
                "call_id": block.tool_use_id,
                "output": _output(block, places),
            }
        case ThinkingBlock(thinking=thinking):
            given = signature_for(WIRE, block)
            if given is None:
                return None
            summary = [{"type": "summary_text", "text": thinking}] if thinking else []
            return {"type": "reasoning", "summary": summary, **json.loads(given)}
    return None


class ResponsesAssembly:
    """Builds one reply out of the events of a stream, in order."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.complete = False
        self._on_delta = on_delta
        self._items: dict[int, dict[str, Any]] = {}
        self._response: dict[str, Any] = {}

    def feed(self, event: ServerSentEvent) -> None:
        """Take one event of the stream; types that are not known here are skipped.

        See `Assembly.feed`.
        """
        data = read_json(event.data)
        match data.get("type", event.name):
            case "error":
                raise _stated(data)
            case "response.failed":
                self._note(object_at(data, "response"))
                raise _failed(object_at(data, "response"))
            case "response.output_item.done":
                self._items[integer_at(data, "output_index")] = object_at(data, "item")
            case "response.completed" | "response.incomplete":
                self._response = object_at(data, "response")
                self._note(self._response)
                self.complete = True
            case str(kind) if kind in _DELTAS:
                piece = text_at(data, "delta")
                index = integer_at(data, "output_index")
                self._on_delta(ReplyDelta(_DELTAS[kind], index, piece))  # type: ignore[arg-type]

    def reply(self) -> ModelReply:
        """The reply. An empty one holds one empty text, so that it can be kept as a message.

        Raises:
            UnreadableReplyError: It was not complete, or cannot be kept.
        """
        if not self.complete:
            raise UnreadableReplyError("the stream ended before the response did")
        stop = _stop(self._response)
        blocks: list[Block] = []
        for _, item in sorted(self._items.items()):
            found = list(_blocks(item))
            if found and item.get("type") == "function_call" and stop is StopReason.END_TURN:
                stop = StopReason.TOOL_USE
            if not found and stop is not StopReason.OUTPUT_LIMIT:
                raise UnreadableReplyError("a tool call's arguments are no JSON object")
            refused = any(part.get("type") == "refusal" for part in _parts(item, "content"))
            stop = StopReason.REFUSAL if refused else stop
            blocks += found
        usage = _usage(self._response.get("usage"))
        return ModelReply(kept(blocks or [TextBlock(text="")]), stop, usage)

    def _note(self, response: dict[str, Any]) -> None:
        if response.get("usage"):
            note_tokens(_usage(response["usage"]))


def _blocks(item: dict[str, Any]) -> Iterator[Block]:
    """What of one output item is kept; nothing of a tool call whose arguments were cut off."""
    match item.get("type"):
        case "message":
            texts = [
                part.get("text") if part.get("type") == "output_text" else part.get("refusal")
                for part in _parts(item, "content")
            ]
            yield TextBlock(text="".join(text for text in texts if isinstance(text, str)))
        case "function_call":
            given = text_at(item, "arguments")
            try:
                value = read_json(given) if given.strip() else {}
            except UnreadableReplyError:
                return
            yield ToolUseBlock(id=text_at(item, "call_id"), name=text_at(item, "name"), input=value)
        case "reasoning":
            texts = [
                part.get("text") for part in (*_parts(item, "summary"), *_parts(item, "content"))
            ]
            encrypted = item.get("encrypted_content")
            handle = {"id": text_at(item, "id"), "encrypted_content": encrypted}
            yield ThinkingBlock(
                thinking="\n\n".join(text for text in texts if isinstance(text, str)),
                signature=signed(WIRE, json.dumps(handle)) if isinstance(encrypted, str) else "",
            )
        case kind:
            raise UnreadableReplyError(f"an item of type {kind!r} cannot be kept")


def _parts(item: dict[str, Any], field: str) -> list[dict[str, Any]]:
    parts = item.get(field)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _stop(response: dict[str, Any]) -> StopReason:
    if response.get("status") != "incomplete":
        return StopReason.END_TURN
    details = response.get("incomplete_details")
    match details.get("reason") if isinstance(details, dict) else None:
        case "max_output_tokens" | "max_tokens":
            return StopReason.OUTPUT_LIMIT
        case "content_filter":
            return StopReason.REFUSAL
    return StopReason.OTHER


def _stated(data: dict[str, Any]) -> StatedError:
    if isinstance(data.get("error"), dict):
        return stated_error(data)
    message, code = data.get("message"), data.get("code")
    return StatedError(
        message if isinstance(message, str) else "",
        retryable=None if code in TERMINAL_TYPES else True,
    )


def _failed(response: dict[str, Any]) -> StatedError:
    error = response.get("error")
    return _stated(error if isinstance(error, dict) else {})


def _usage(usage: Any) -> Usage:
    read = count_of(usage, "input_tokens_details", "cached_tokens")
    written = count_of(usage, "input_tokens_details", "cache_write_tokens")
    return Usage(
        input_tokens=max(0, count_of(usage, "input_tokens") - read - written),
        output_tokens=count_of(usage, "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
