"""The Anthropic Messages wire as the simulator speaks it: requests in, messages and events out.

Requests are checked as the real service checks them, as far as an agent's transcript can break its
rules: an answer to a malformed transcript would hide the fault that a test is there to find.
Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .attached import unread
from .pieces import cut, spoken_words
from .script import Answer, WireRequest

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
Event = tuple[str, Any]
PING: Event | None = ("ping", {"type": "ping"})


def parse(number: int, body: dict[str, Any]) -> WireRequest:
    """What a script matches on, out of a request that was checked."""
    texts, after_tool = _last_user(body.get("messages", []))
    return WireRequest(
        number=number,
        model=str(body.get("model", "")),
        system="\n".join(_texts(body.get("system", ""))),
        last_text="\n".join(texts),
        after_tool=after_tool,
        json=body,
    )


def refusal(body: dict[str, Any]) -> str | None:
    """Return what the service would refuse a request for, or None."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model: Field required"
    tokens = body.get("max_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        return "max_tokens: Input should be greater than or equal to 1"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            return f"messages.{index}.role: Input should be 'user' or 'assistant'"
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            return f"messages.{index}: all messages must have non-empty content"
        if any(not text.strip() for text in _texts(content)):
            return "messages: text content blocks must contain non-whitespace text"
        unfit = None if isinstance(content, str) else _unfit(content, message["role"])
        if unfit is not None:
            return f"messages.{index}.content.{unfit}"
    if messages[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    return _unpaired(list(_merged(messages)))


def message(number: int, request: WireRequest, answer: Answer) -> dict[str, Any]:
    """The complete message that an answer comes to."""
    content: list[dict[str, Any]] = []
    if answer.thinking is not None:
        signature = f"sim-signature-{number}"
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
    if answer.text is not None:
        content.append({"type": "text", "text": answer.text})
    for place, tool in enumerate(answer.tools):
        identity = tool.id or f"toolu_{number}_{place}"
        content.append({"type": "tool_use", "id": identity, "name": tool.name, "input": tool.input})
    words = sum(len(str(part).split()) for part in request.json.get("messages", []))
    return {
        "id": f"msg_sim_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": answer.stop_reason or ("tool_use" if answer.tools else "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": words,
            "output_tokens": spoken_words(answer),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            **answer.usage,
        },
    }


def events(whole: dict[str, Any], answer: Answer) -> Iterator[Event]:
    """The events of a message, its texts cut into pieces of `chunk_chars`."""
    start = {**whole, "content": [], "stop_reason": None}
    start["usage"] = {**whole["usage"], "output_tokens": 1}
    yield "message_start", {"type": "message_start", "message": start}
    for _ in range(answer.pings):
        yield "ping", {"type": "ping"}
    for index, block in enumerate(whole["content"]):
        head, deltas = _opened(block, answer.chunk_chars)
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": index, "content_block": head},
        )
        for delta in deltas:
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": index, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    yield (
        "message_delta",
        {
            "type": "message_delta",
            "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": whole["usage"]["output_tokens"]},
        },
    )
    yield "message_stop", {"type": "message_stop"}


def is_content(event: Event) -> bool:
    """Whether an event carries a piece of content."""
    return event[0] == "content_block_delta"


def error_event(error: dict[str, Any]) -> Event:
    """An error within a stream."""
    return "error", {"type": "error", "error": error}


def folded(sent: Sequence[Event]) -> dict[str, Any]:
    """The message that a client can know after these events: what a wire log records as sent."""
    whole: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for name, data in sent:
        if name == "message_start":
            whole = {**data["message"], "content": []}
        elif name == "content_block_start":
            whole["content"].append(dict(data["content_block"]))
        elif name == "content_block_delta":
            _fold(whole["content"][data["index"]], data["delta"], inputs, data["index"])
        elif name == "content_block_stop" and data["index"] in inputs:
            whole["content"][data["index"]]["input"] = json.loads(inputs[data["index"]])
        elif name == "message_delta":
            whole.update(data["delta"])
            whole["usage"] = {**whole["usage"], **data["usage"]}
        elif name == "error":
            whole["error"] = data["error"]
    return whole


def error_body(status: int, text: str, kind: str | None = None) -> dict[str, Any]:
    """An error as this wire has it."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": kind or ERROR_TYPES.get(status, fallback), "message": text},
    }


def _opened(block: dict[str, Any], chars: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"], chars)]
            return {"type": "text", "text": ""}, deltas
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": piece}
                for piece in cut(block["thinking"], chars)
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case _:
            pieces = cut(json.dumps(block["input"]), chars)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            return {**block, "input": {}}, deltas


def _fold(block: dict[str, Any], delta: dict[str, Any], inputs: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] += delta["signature"]
        case "input_json_delta":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]


_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def _unfit(content: list[Any], role: str) -> str | None:
    """What is wrong with the attachments of a message, also of its results."""
    for place, block in enumerate(content):
        kind = _kind(block)
        if kind == "tool_result" and isinstance(block.get("content"), list):
            found = _unfit(block["content"], role)
            if found is not None:
                return f"{place}.tool_result.content.{found}"
        if kind == "audio":
            return f"{place}: Input tag 'audio' found using 'type' does not match any of the tags"
        if kind not in ("image", "document"):
            continue
        if role != "user":
            return f"{place}: {kind} blocks are only permitted in user messages"
        source = block.get("source")
        if unread(block):
            return f"{place}.{kind}.source.base64: invalid base64 data"
        types: tuple[str, ...] = _IMAGES if kind == "image" else ("application/pdf",)
        if source.get("type") == "text":
            types = ("text/plain",) if kind == "document" else ()
        if source.get("media_type") not in types:
            return f"{place}.{kind}.source.media_type: Input should be {', '.join(types)}"
    return None


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [
        str(block.get("text", ""))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text"
    ]


def _last_user(messages: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Texts of the last user message that has some, and whether the last one holds results.

    The service joins consecutive user messages into one, so they count as one here.
    """
    merged = [blocks for role, blocks in _merged(messages) if role == "user"]
    after_tool = bool(merged) and any(_kind(block) == "tool_result" for block in merged[-1])
    texts = next((found for blocks in reversed(merged) if (found := _texts(blocks))), [])
    return texts, after_tool


def _merged(messages: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    role, blocks = "", list[Any]()
    for entry in messages:
        content = entry.get("content")
        found = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if entry.get("role") == role:
            blocks = blocks + found
            continue
        if role:
            yield role, blocks
        role, blocks = str(entry.get("role")), list(found)
    if role:
        yield role, blocks


def _unpaired(merged: list[tuple[str, list[Any]]]) -> str | None:
    """Every tool call has its result at the head of the next message, and no result is alone."""
    called: set[str] = set()
    for index, (role, blocks) in enumerate(merged):
        results = [block for block in blocks if _kind(block) == "tool_result"]
        answered = [str(block.get("tool_use_id")) for block in results]
        if role == "user" and blocks[: len(results)] != results:
            return f"messages.{index}: tool_result blocks must come first in the message"
        if len(answered) != len(set(answered)):
            return f"messages.{index}: each tool_use must have a single result"
        if missing := called - set(answered):
            return (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(sorted(missing))}"
            )
        if alone := set(answered) - called:
            return (
                f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{', '.join(sorted(alone))}"
            )
        called = {str(block.get("id")) for block in blocks if _kind(block) == "tool_use"}
    return f"`tool_use` ids without results: {', '.join(sorted(called))}" if called else None


def _kind(block: Any) -> str:
    return str(block.get("type")) if isinstance(block, dict) else ""
