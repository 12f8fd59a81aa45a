"""OpenAI's Responses wire as the simulator speaks it. See `wires.Wire`. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .attached import unread
from .openai_chat_wire import error_body
from .pieces import cut, spoken_words
from .script import Answer, WireRequest

PING: tuple[str, Any] | None = None
_INCOMPLETE = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}


_PARTS = ("input_image", "input_file")


def parse(number: int, body: dict[str, Any]) -> WireRequest:
    items = body["input"]
    behind = 1 + max((at for at, item in enumerate(items) if _is_reply(item)), default=-1)
    asked = [_text(item) for item in items[behind:] if item.get("role") == "user"]
    earlier = [_text(item) for item in items if item.get("role") == "user"]
    return WireRequest(
        number=number,
        model=str(body.get("model", "")),
        system=str(body.get("instructions") or ""),
        last_text="\n".join(asked or earlier[-1:]),
        after_tool=any(item.get("type") == "function_call_output" for item in items[behind:]),
        json=body,
    )


def refusal(body: dict[str, Any]) -> str | None:
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "Missing required parameter: 'model'."
    items = body.get("input")
    if not isinstance(items, list) or not items:
        return "Missing required parameter: 'input'."
    called: set[str] = set()
    answered: set[str] = set()
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            return f"Invalid type for 'input[{index}]'"
        field = "output" if item.get("type") == "function_call_output" else "content"
        parts = [part for part in item.get(field) or () if isinstance(part, dict)]
        attached = [part for part in parts if part.get("type") in _PARTS]
        if any(unread(part) for part in attached):
            return f"Invalid 'input[{index}].{field}': not valid base64"
        if attached and item.get("role") == "assistant":
            return f"Invalid 'input[{index}].content': an assistant has no such parts"
        match item.get("type", "message"):
            case "message" if not attached and not _text(item).strip():
                return f"Invalid 'input[{index}].content': text is empty"
            case "function_call":
                called.add(str(item.get("call_id")))
            case "function_call_output":
                if item.get("call_id") not in called - answered:
                    return f"No tool call found for function call output {item.get('call_id')}."
                answered.add(str(item["call_id"]))
            case "reasoning" if not _is_reply(items[index + 1] if items[index + 1 :] else {}):
                return f"Item 'input[{index}]' of type 'reasoning' was provided without its " + (
                    "required following item."
                )
    if missing := called - answered:
        return f"No tool output found for function call {', '.join(sorted(missing))}."
    return None


def message(number: int, request: WireRequest, answer: Answer) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if answer.thinking is not None:
        output.append(
            {
                "type": "reasoning",
                "id": f"rs_sim_{number}",
                "summary": [{"type": "summary_text", "text": answer.thinking}],
                "encrypted_content": f"sim-signature-{number}",
            }
        )
    if answer.text is not None:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": f"msg_sim_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for place, tool in enumerate(answer.tools):
        output.append(
            {
                "type": "function_call",
                "id": f"fc_sim_{number}_{place}",
                "call_id": tool.id or f"call_{number}_{place}",
                "name": tool.name,
                "arguments": json.dumps(tool.input),
                "status": "completed",
            }
        )
    cut_off = _INCOMPLETE.get(answer.stop_reason or "")
    words = sum(len(str(part).split()) for part in request.json.get("input", []))
    return {
        "id": f"resp_sim_{number}",
        "object": "response",
        "created_at": 0,
        "model": request.model,
        "status": "incomplete" if cut_off else "completed",
        "incomplete_details": {"reason": cut_off} if cut_off else None,
        "error": None,
        "output": output,
        "usage": _usage(words, spoken_words(answer), answer.usage),
    }


def events(whole: dict[str, Any], answer: Answer) -> Iterator[tuple[str, Any]]:
    for number, (kind, data) in enumerate(_events(whole, answer)):
        yield kind, {"type": kind, "sequence_number": number, **data}


def is_content(event: tuple[str, Any]) -> bool:
    return event[0].endswith(".delta")


def error_event(error: dict[str, Any]) -> tuple[str, Any]:
    return (
        "error",
        {
            "type": "error",
            "code": error.get("type"),
            "message": error.get("message", ""),
            "param": None,
        },
    )


def folded(sent: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for kind, data in sent:
        match kind:
            case "response.created":
                whole = {**data["response"], "output": []}
            case "response.output_item.done":
                whole["output"].append(data["item"])
            case "response.completed" | "response.incomplete":
                whole = data["response"]
            case "error":
                whole["error"] = {"code": data["code"], "message": data["message"]}
    return whole


def _events(whole: dict[str, Any], answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": started}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        opened = {**item, "status": "in_progress"}
        match item["type"]:
            case "message":
                opened["content"] = []
                kind, text = "response.output_text.delta", item["content"][0]["text"]
                at["content_index"] = 0
            case "reasoning":
                opened["summary"] = []
                kind = "response.reasoning_summary_text.delta"
                text = item["summary"][0]["text"]
                at["summary_index"] = 0
            case _:
                opened["arguments"] = ""
                kind, text = "response.function_call_arguments.delta", item["arguments"]
        yield "response.output_item.added", {"output_index": index, "item": opened}
        for piece in cut(text, answer.chunk_chars):
            yield kind, {**at, "delta": piece}
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


def _is_reply(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call")


def _text(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _usage(words: int, spoken: int, given: dict[str, int]) -> dict[str, Any]:
    """Counts of an answer, whose script names them as the Anthropic wire does."""
    read = given.get("cache_read_input_tokens", 0)
    written = given.get("cache_creation_input_tokens", 0)
    of_input = given.get("input_tokens", words) + read + written
    of_output = given.get("output_tokens", spoken)
    return {
        "input_tokens": of_input,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens": of_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": of_input + of_output,
    }


__all__ = [
    "PING",
    "error_body",
    "error_event",
    "events",
    "folded",
    "is_content",
    "message",
    "parse",
    "refusal",
]
