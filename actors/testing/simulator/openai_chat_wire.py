"""The Chat Completions wire as the simulator speaks it. See `wires.Wire`. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .attached import unread
from .pieces import cut, spoken_words
from .script import Answer, WireRequest

PING: tuple[str, Any] | None = None
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_exceeded",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


_PARTS = ("image_url", "input_audio", "file")


def parse(number: int, body: dict[str, Any]) -> WireRequest:
    messages = body["messages"]
    system = [_text(one) for one in messages if one["role"] in ("system", "developer")]
    # What stands behind the last reply is what the model is to answer.
    behind = 1 + max(
        (at for at, one in enumerate(messages) if one["role"] == "assistant"), default=-1
    )
    asked = [_text(one) for one in messages[behind:] if one["role"] == "user"]
    earlier = [_text(one) for one in messages if one["role"] == "user"]
    return WireRequest(
        number=number,
        model=str(body.get("model", "")),
        system="\n".join(system),
        last_text="\n".join(asked or earlier[-1:]),
        after_tool=any(one["role"] == "tool" for one in messages[behind:]),
        json=body,
    )


def refusal(body: dict[str, Any]) -> str | None:
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "you must provide a model parameter"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "[] is too short - 'messages'"
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"Invalid value: 'messages[{index}].role'"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return (
                    "messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls' (messages[{index}])"
                )
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return (
                "An assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id': {', '.join(sorted(open_calls))}"
            )
        calls = message.get("tool_calls") or []
        parts = [part for part in message.get("content") or () if isinstance(part, dict)]
        attached = [part for part in parts if part.get("type") != "text"]
        if any(part.get("type") not in _PARTS or unread(part) for part in attached):
            return f"Invalid content part: messages[{index}]"
        if attached and message["role"] != "user":
            return f"Only a user's message may have such parts: messages[{index}]"
        if not calls and not attached and not _text(message).strip():
            return f"Invalid value for 'content': messages[{index}]"
        open_calls = {str(call["id"]) for call in calls}
    return f"no tool messages for: {', '.join(sorted(open_calls))}" if open_calls else None


def message(number: int, request: WireRequest, answer: Answer) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.thinking is not None:
        said["reasoning_content"] = answer.thinking
    if answer.tools:
        said["tool_calls"] = [
            {
                "id": tool.id or f"call_{number}_{place}",
                "type": "function",
                "function": {"name": tool.name, "arguments": json.dumps(tool.input)},
            }
            for place, tool in enumerate(answer.tools)
        ]
    stop = answer.stop_reason or ("tool_use" if answer.tools else "end_turn")
    words = sum(len(str(part).split()) for part in request.json.get("messages", []))
    return {
        "id": f"chatcmpl_sim_{number}",
        "object": "chat.completion",
        "created": 0,
        "model": request.model,
        "choices": [{"index": 0, "message": said, "finish_reason": _STOPS.get(stop, stop)}],
        "usage": _usage(words, spoken_words(answer), answer.usage),
    }


def events(whole: dict[str, Any], answer: Answer) -> Iterator[tuple[str, Any]]:
    said = whole["choices"][0]["message"]
    yield _chunk(whole, {"role": "assistant", "content": ""})
    for field in ("reasoning_content", "content"):
        for piece in cut(said.get(field) or "", answer.chunk_chars):
            yield _chunk(whole, {field: piece})
    for index, call in enumerate(said.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        head = {"index": index, "id": call["id"], "type": "function", "function": function}
        yield _chunk(whole, {"tool_calls": [head]})
        for piece in cut(call["function"]["arguments"], answer.chunk_chars):
            part = {"index": index, "function": {"arguments": piece}}
            yield _chunk(whole, {"tool_calls": [part]})
    yield _chunk(whole, {}, whole["choices"][0]["finish_reason"])
    yield "", {**_head(whole), "choices": [], "usage": whole["usage"]}
    yield "", "[DONE]"


def is_content(event: tuple[str, Any]) -> bool:
    if not isinstance(event[1], dict) or not event[1].get("choices"):
        return False
    delta = event[1]["choices"][0]["delta"]
    return any(delta.get(field) for field in ("content", "reasoning_content", "tool_calls"))


def error_event(error: dict[str, Any]) -> tuple[str, Any]:
    return "", {"error": {"param": None, "code": None, **error}}


def folded(sent: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for _name, data in sent:
        if not isinstance(data, dict):
            continue
        if "error" in data:
            whole["error"] = data["error"]
            continue
        whole.update({"id": data["id"], "model": data["model"]})
        if data.get("usage"):
            whole["usage"] = data["usage"]
        for choice in data["choices"]:
            _fold(said, choice["delta"])
            whole["choices"] = [
                {"index": 0, "message": said, "finish_reason": choice["finish_reason"]}
            ]
    return whole


def error_body(status: int, text: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def _head(whole: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": whole["id"],
        "object": "chat.completion.chunk",
        "created": 0,
        "model": whole["model"],
    }


def _chunk(
    whole: dict[str, Any], delta: dict[str, Any], stop: str | None = None
) -> tuple[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": stop}
    return "", {**_head(whole), "choices": [choice], "usage": None}


def _fold(said: dict[str, Any], delta: dict[str, Any]) -> None:
    for field, value in delta.items():
        if field == "tool_calls":
            calls = said.setdefault("tool_calls", [])
            for part in value:
                if part["index"] == len(calls):
                    calls.append({**part, "function": dict(part["function"])})
                    continue
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        elif field == "role":
            said["role"] = value
        else:
            said[field] = (said.get(field) or "") + (value or "")


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _usage(words: int, spoken: int, given: dict[str, int]) -> dict[str, Any]:
    """Counts of an answer, whose script names them as the Anthropic wire does."""
    read = given.get("cache_read_input_tokens", 0)
    written = given.get("cache_creation_input_tokens", 0)
    prompt = given.get("input_tokens", words) + read + written
    completion = given.get("output_tokens", spoken)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
