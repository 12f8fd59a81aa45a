"""Requests that a provider calls too long, known by what its refusal is made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.providers.context_limit import is_too_long
from abeyance.actors.providers.failures import understood
from abeyance.actors.providers.port import (
    ContextTooLongError,
    ModelRequest,
    Permit,
    ProviderError,
    ProviderMessage,
    permitted,
)
from abeyance.actors.testing import Answer, ProviderSimulator
from abeyance.storage.tables.blocks import TextBlock

WORDS = "prompt is too long: 210000 tokens > 200000 maximum"
INVALID = "invalid_request_error"


def error(**fields: Any) -> dict[str, Any]:
    return {"type": "error", "error": fields}


SAID: dict[str, tuple[Any, bool]] = {
    "anthropic, by its words": (error(type=INVALID, message=WORDS), True),
    "anthropic, with its reply": (
        error(type=INVALID, message="input length and `max_tokens` exceed context limit: 1 + 2"),
        True,
    ),
    "anthropic, by its type": (error(type="request_too_large", message="no"), True),
    "openai, by its code": ({"error": {"code": "context_length_exceeded", "message": ""}}, True),
    "openai, an event": ({"type": "error", "code": "context_length_exceeded"}, True),
    "openai, a failed response": (
        {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}},
        True,
    ),
    "words of another type": (error(type="api_error", message=WORDS), False),
    "words somewhere in others": (error(type=INVALID, message=f"not: {WORDS}"), False),
    "another invalid request": (error(type=INVALID, message="tools: not a list"), False),
    "tokens a minute": ({"error": {"type": "tokens", "code": "rate_limit_exceeded"}}, False),
    "a list": ([1], False),
    "an error that is text": ({"error": "context_length_exceeded"}, False),
    "a code that is a number": ({"error": {"code": 413, "type": None}}, False),
}


@pytest.mark.parametrize("name", SAID)
def test_a_refusal_is_known_by_its_structure(name: str) -> None:
    said, is_it = SAID[name]
    assert is_too_long(json.dumps(said)) is is_it
    assert is_too_long(json.dumps(said).encode()) is is_it


@pytest.mark.parametrize("body", [None, "", "{", b"\xff", "[" * 100_000, "x" * 70_000], ids=str)
def test_what_is_no_refusal_is_none(body: Any) -> None:
    assert is_too_long(body) is False


REQUEST = ModelRequest("m", (ProviderMessage("user", (TextBlock(text="hi"),)),))
OPENAI = {"code": "context_length_exceeded", "type": INVALID, "message": "maximum context length"}
RESPONSES = {"type": "context_length_exceeded", "message": "maximum context length"}
"""The simulator makes the event's code of the type: that wire has no other."""
ANSWERS = {
    "refused": lambda wire: (
        Answer(status=400, body=error(type=INVALID, message=WORDS))
        if wire == "anthropic"
        else Answer(status=400, body={"error": {**OPENAI, "param": "messages"}})
    ),
    "refused as a whole": lambda wire: (
        Answer(status=413)
        if wire == "anthropic"
        else Answer(status=400, body={"error": {"code": "context_length_exceeded"}})
    ),
    "told in the stream": lambda wire: (
        Answer(text="x", error_after=1, error={"type": INVALID, "message": WORDS})
        if wire == "anthropic"
        else Answer(text="x", error_after=1, error=OPENAI if wire == "chat" else RESPONSES)
    ),
}


def adapter(wire: str, url: str, **options: Any) -> Any:
    if wire == "anthropic":
        return AnthropicProvider(base_url=url, **{"api_key": "any", **options})
    return OpenAIProvider(api=wire, base_url=f"{url}/v1", **{"api_key": "any", **options})  # type: ignore[arg-type]


async def call(provider: Any) -> None:
    with permitted(Permit(1, "ana", "m", "turn")), trio.fail_after(60):
        await provider.call(REQUEST, lambda _delta: None)


@pytest.mark.parametrize("how", ANSWERS)
@pytest.mark.parametrize("wire", ["anthropic", "responses", "chat"])
async def test_adapter_raises_it_by_its_own_class_over_a_socket(wire: str, how: str) -> None:
    async with ProviderSimulator(lambda _request: ANSWERS[how](wire)) as simulator:
        provider = adapter(wire, simulator.base_url)
        with pytest.raises(ContextTooLongError) as refused:
            await call(provider)
        await provider.aclose()
    assert (refused.value.retryable, refused.value.sent) == (False, True)
    assert refused.value.code == "context_too_long"


def test_an_error_of_another_library_is_known_by_its_response() -> None:
    class ForeignError(Exception):
        status_code = 400
        body = error(type=INVALID, message=WORDS)

    assert isinstance(understood(ForeignError(), received_at=0.0), ContextTooLongError)


@pytest.mark.parametrize("tokens", [{"m": 0}, {"m": True}, {"m": "1"}, {1: 1}], ids=str)
def test_limits_that_are_none_are_refused(tokens: Any) -> None:
    with pytest.raises(ValueError, match="context_tokens"):
        AnthropicProvider(api_key="any", context_tokens=tokens)


@pytest.mark.parametrize("wire", ["anthropic", "responses", "chat"])
@pytest.mark.parametrize("how", ["a status", "an event"])
async def test_a_key_that_a_service_quotes_is_in_no_error(wire: str, how: str) -> None:
    key = "sk-secret-1234567890"
    said = {"type": "authentication_error", "message": f"bad key {key}", "code": key}
    answer = (
        Answer(status=401, body={"error": said})
        if how == "a status"
        else Answer(text="x", error_after=1, error=said)
    )
    async with ProviderSimulator(lambda _request: answer) as simulator:
        for given in (key, lambda: key):
            provider = adapter(wire, simulator.base_url, api_key=given)
            with pytest.raises(ProviderError) as refused:
                await call(provider)
            await provider.aclose()
            error = refused.value
            assert key not in f"{error} {error.said} {error.stated} {error.args}"
            assert "bad key [key]" in error.said
