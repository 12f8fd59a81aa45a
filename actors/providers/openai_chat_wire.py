"""Requests to, and replies from, the Chat Completions wire. Pure; no I/O, no SDK.

Many services speak it, each a little differently; what most of them do is read here.

Invariants:
    I1  Blank texts are left out, and a message left with nothing is, too. Reasoning is never sent:
        this wire has no place for it.
    I2  A reply is complete behind `[DONE]`, or where a stream ends behind its finish reason: not
        every service that speaks this wire sends the former.
    I3  What a reply holds can be kept: its blocks pass the schema that records are checked by.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    Block,
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
from .sse import ServerSentEvent
from .wire import (
    Pieces,
    StatedError,
    UnreadableReplyError,
    count_of,
    error_of,
    integer_at,
    kept,
    object_at,
    read_json,
)

DONE = "[DONE]"
TERMINAL_TYPES = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "permission_denied_error",
        "not_found_error",
        "invalid_prompt",
        "context_length_exceeded",
    }
)
_STOPS = {
    "stop": StopReason.END_TURN,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "length": StopReason.OUTPUT_LIMIT,
    "content_filter": StopReason.REFUSAL,
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where services put a model's reasoning; OpenAI itself sends none on this wire."""


_SOUNDS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
TYPES: Final = IMAGES | TEXTS | {PDF} | _SOUNDS.keys()
"""What it shows of attachments."""


def request_body(
    request: ModelRequest, places: Places | None = None, *, output_limit: str
) -> dict[str, Any]:
    """The parameters of a streamed call.

    Args:
        places: Takes the request's attachments, and stands for them. None: their marks stay.
        output_limit: The name of the field that bounds a reply's tokens.
    """
    places = Places() if places is None else places
    messages: list[dict[str, Any]] = []
    if request.system is not None and request.system.strip():
        messages.append({"role": "system", "content": request.system})
    for message in request.messages:
        messages += _messages(message, places)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        output_limit: request.output_tokens_max,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in request.tools
        ]
    return body


def result_text(block: ToolResultBlock) -> str:
    """A tool's result as the one text that these wires have. They have no sign of an error."""
    return f"error: {block.text}" if block.is_error else block.text


def arguments_of(block: ToolUseBlock) -> str:
    """A tool call's input as the text that these wires have; the same input, the same text."""
    return json.dumps(block.input, ensure_ascii=False)


def _messages(message: ProviderMessage, places: Places) -> Iterator[dict[str, Any]]:
    """One message of ours: its results, a message each, then its parts and calls in one. A result
    is a text here: what is attached to one follows as a user's part."""
    results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
    for result in results:
        yield {
            "role": "tool",
            "tool_call_id": result.tool_use_id,
            "content": result_text(result),
        }
    parts = [
        _attachment(block, places)
        for result in results
        for block in result.content
        if isinstance(block, AttachmentBlock)
    ]
    for block in message.blocks:
        if isinstance(block, TextBlock) and block.text.strip():
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, AttachmentBlock):
            parts.append(_attachment(block, places))
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": arguments_of(block)},
        }
        for block in message.blocks
        if isinstance(block, ToolUseBlock)
    ]
    if not parts and not calls:
        return
    wire: dict[str, Any] = {"role": message.role}
    # One text is sent as a text: smaller servers know no other form.
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    wire["content"] = parts[0]["text"] if alone else parts or None
    if calls:
        wire["tool_calls"] = calls
    yield wire


def _attachment(block: AttachmentBlock, places: Places) -> dict[str, Any]:
    media_type = block.media_type
    if media_type not in TYPES:
        return {"type": "text", "text": in_words(block)}
    if media_type in TEXTS:
        return {"type": "text", "text": named_text(block, places)}
    if media_type in IMAGES:
        return {"type": "image_url", "image_url": {"url": places.data_url(block)}}
    if media_type in _SOUNDS:
        sound = {"data": places.base64(block), "format": _SOUNDS[media_type]}
        return {"type": "input_audio", "input_audio": sound}
    data = places.data_url(block)
    return {"type": "file", "file": {"filename": file_name(block), "file_data": data}}


def named_text(block: AttachmentBlock, places: Places) -> str:
    """A document that is text, as text: these wires have no other place for one."""
    text = places.text(block)
    return text if block.name is None else f"{block.name}:\n\n{text}"


def file_name(block: AttachmentBlock) -> str:
    """A document's name, which these wires want."""
    return block.name or "document.pdf"


class ChatAssembly:
    """Builds one reply out of the chunks of a stream, in order."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.complete = False
        self._on_delta = on_delta
        self._texts = Pieces()
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments = Pieces()
        self._usage = Usage()
        self._stop: str | None = None

    def feed(self, event: ServerSentEvent) -> None:
        """Take one event of the stream. See `Assembly.feed`."""
        if event.data.strip() == DONE:
            self.complete = True
            return
        data = read_json(event.data)
        if event.name == "error" or data.get("error"):
            raise stated_error(data)
        if data.get("usage"):
            self._usage = usage_of(data["usage"])
            note_tokens(self._usage)
        choices = data.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._take(choice)

    def reply(self) -> ModelReply:
        """The reply. An empty one holds one empty text, so that it can be kept as a message.

        Raises:
            UnreadableReplyError: It was not complete, or cannot be kept.
        """
        if self._stop is None:
            raise UnreadableReplyError("the stream ended before the message did")
        stop = _STOPS.get(self._stop, StopReason.OTHER)
        calls = [self._call(index) for index in sorted(self._calls)]
        if None in calls and stop is not StopReason.OUTPUT_LIMIT:
            raise UnreadableReplyError("a tool call's arguments are no JSON object")
        if calls and stop in (StopReason.END_TURN, StopReason.OTHER):
            stop = StopReason.TOOL_USE  # Some services say "stop" behind a call, too.
        refusal = self._texts.joined("refusal")
        blocks: list[Block] = []
        if reasoning := self._texts.joined("reasoning"):
            blocks.append(ThinkingBlock(thinking=reasoning))
        blocks += [
            TextBlock(text=text) for text in (self._texts.joined("content"), refusal) if text
        ]
        blocks += [call for call in calls if call is not None]
        return ModelReply(
            kept(blocks or [TextBlock(text="")]),
            StopReason.REFUSAL if refusal else stop,
            self._usage,
        )

    def _take(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        self._say(delta, "content", "content", "text")
        self._say(delta, "refusal", "refusal", "text")
        for field in _REASONING_FIELDS:
            if self._say(delta, field, "reasoning", "thinking"):
                break  # One service's name for it, not both.
        called = delta.get("tool_calls")
        for call in called if isinstance(called, list) else ():
            self._called(call)
        stop = choice.get("finish_reason")
        if isinstance(stop, str) and stop:
            self._stop = stop

    def _say(self, delta: dict[str, Any], field: str, name: str, kind: Any) -> bool:
        piece = delta.get(field)
        if piece is None or piece == "":
            return False
        if not isinstance(piece, str):
            raise UnreadableReplyError(f"{field} is no text")
        self._texts.add(name, piece)
        self._on_delta(ReplyDelta(kind, 0, piece))
        return True

    def _called(self, call: Any) -> None:
        if not isinstance(call, dict):
            raise UnreadableReplyError("a tool call is no object")
        index = integer_at(call, "index") if "index" in call else len(self._calls)
        known = self._calls.setdefault(index, {})
        function = object_at(call, "function") if call.get("function") is not None else {}
        for field, value in (("id", call.get("id")), ("name", function.get("name"))):
            if isinstance(value, str) and value:
                known[field] = value
        piece = function.get("arguments")
        if isinstance(piece, dict):  # Some servers send the object itself.
            piece = json.dumps(piece)
        if isinstance(piece, str) and piece:
            self._arguments.add(str(index), piece)
            self._on_delta(ReplyDelta("tool_input", index + 1, piece))

    def _call(self, index: int) -> ToolUseBlock | None:
        """A finished call; None for one whose arguments were cut off."""
        call, given = self._calls[index], self._arguments.joined(str(index))
        try:
            value = read_json(given) if given.strip() else {}
        except UnreadableReplyError:
            return None
        # Some servers give a call no id; its result needs one to name.
        identity = call.get("id") or f"call_{uuid4().hex}"
        return ToolUseBlock(id=identity, name=call.get("name", ""), input=value)


def stated_error(data: dict[str, Any]) -> StatedError:
    """What an error object within a stream says."""
    kind, message = error_of(data)
    code = data["error"].get("code") if isinstance(data.get("error"), dict) else data.get("code")
    known = {kind, code} & TERMINAL_TYPES if isinstance(code, str) else {kind} & TERMINAL_TYPES
    words = message or (data["error"] if isinstance(data.get("error"), str) else "")
    return StatedError(words, retryable=None if known else True)


def usage_of(usage: Any) -> Usage:
    """Tokens as this wire counts them: those of its input include the cached ones, ours do not."""
    read = count_of(usage, "prompt_tokens_details", "cached_tokens")
    written = count_of(usage, "prompt_tokens_details", "cache_write_tokens")
    return Usage(
        input_tokens=max(0, count_of(usage, "prompt_tokens") - read - written),
        output_tokens=count_of(usage, "completion_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
