"""The Anthropic adapter: what it sends, what it makes of odd replies, keys, proxies, leftovers."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import pytest
import trio

from abeyance.actors.providers import AnthropicProvider, OpenAIProvider, ProviderNotInstalledError
from abeyance.actors.providers.anthropic_wire import NOBODY, ReplyAssembly, request_body
from abeyance.actors.providers.failures import refusal
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    PermitError,
    ProviderError,
    ProviderMessage,
    StopReason,
    ToolSchema,
    permitted,
)
from abeyance.actors.providers.transport import PermitTransport
from abeyance.actors.providers.wire import UnreadableReplyError, read_json
from abeyance.actors.testing import Answer, ProviderSimulator, SimulatedTool, WireRequest
from abeyance.storage.tables.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)


def user(*blocks: Block) -> ProviderMessage:
    return ProviderMessage("user", blocks)


def assistant(*blocks: Block) -> ProviderMessage:
    return ProviderMessage("assistant", blocks)


def request(*messages: ProviderMessage, **parts: Any) -> ModelRequest:
    return ModelRequest("m", messages or (user(TextBlock(text="hi")),), **parts)


async def call(provider: AnthropicProvider, asked: ModelRequest | None = None) -> ModelReply:
    with permitted(Permit(1, "ana", "m", "turn")), trio.fail_after(60):
        return await provider.call(asked or request(), lambda _delta: None)


async def over(
    script: Callable[[WireRequest], Answer],
    use: Callable[[AnthropicProvider, ProviderSimulator], Awaitable[None]],
    **parts: Any,
) -> None:
    async with ProviderSimulator(script) as simulator:
        provider = AnthropicProvider(base_url=simulator.base_url, **{"api_key": "any", **parts})
        try:
            await use(provider, simulator)
        finally:
            await provider.aclose()


# What it sends.


def test_every_kind_of_block_has_its_place_on_the_wire():
    body = request_body(
        request(
            user(TextBlock(text="look")),
            assistant(
                ThinkingBlock(thinking="hm", signature="sig"),
                ThinkingBlock(thinking="opaque", redacted=True),
                TextBlock(text="looking"),
                ToolUseBlock(id="c1", name="look", input={"at": 1}),
            ),
            user(
                ToolResultBlock(tool_use_id="c1", content=(TextBlock(text="sky"),), is_error=True),
                TextBlock(text="and?"),
            ),
            system="You are Ana.",
            tools=(ToolSchema("look", "Look.", {"type": "object"}),),
            output_tokens_max=7,
        )
    )
    assert body == {
        "model": "m",
        "max_tokens": 7,
        "stream": True,
        "system": "You are Ana.",
        "tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "opaque"},
                    {"type": "text", "text": "looking"},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": "sky"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


def test_one_message_is_one_wire_message_even_beside_one_of_its_role():
    body = request_body(request(user(TextBlock(text="a")), user(TextBlock(text="b"))))
    assert [message["role"] for message in body["messages"]] == ["user", "user"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("a u", "- a u"),
        ("u a", "u a -"),
        ("u a a u", "u a - a u"),
        ("a a", "- a - a -"),
        ("u a u a u", "u a u a u"),
    ],
    ids=["begins", "ends", "behind one another", "nothing else", "in turns"],
)
def test_request_begins_and_ends_with_a_user_whoever_spoke(said: str, told: str):
    roles = {"u": user, "a": assistant}
    body = request_body(request(*(roles[each](TextBlock(text=each)) for each in said.split())))
    wire = [
        "-" if message["content"][0]["text"] == NOBODY else message["role"][0]
        for message in body["messages"]
    ]
    assert wire == told.split()
    assert {m["role"] for m in body["messages"] if m["content"][0]["text"] == NOBODY} <= {"user"}


def test_request_that_goes_on_begins_with_the_one_before_it():
    before = (user(TextBlock(text="u")), assistant(TextBlock(text="posted by a module")))
    after = (*before, assistant(TextBlock(text="reply")), user(TextBlock(text="next")))
    first, second = (request_body(request(*each))["messages"] for each in (before, after))
    assert second[: len(first)] == first


def test_what_the_service_refuses_in_a_message_is_left_out():
    body = request_body(
        request(
            user(TextBlock(text="a")),
            assistant(TextBlock(text=" \n"), ThinkingBlock(thinking="unsigned")),
            user(TextBlock(text=""), TextBlock(text="b")),
            system="  ",
        )
    )
    texts = [part["text"] for message in body["messages"] for part in message["content"]]
    assert texts == ["a", "b"]
    assert "system" not in body


async def test_a_transcript_goes_over_the_wire_as_it_is():
    asked = request(
        user(TextBlock(text="look")),
        assistant(ToolUseBlock(id="c1", name="look", input={"at": 1})),
        user(ToolResultBlock(tool_use_id="c1", content=(TextBlock(text="sky"),))),
    )

    async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
        await call(provider, asked)
        assert simulator.log[0].request == request_body(asked)
        assert simulator.log[0].headers["x-stainless-retry-count"] == "0"

    await over(lambda _: Answer(text="ok"), use)


# What it makes of replies.


def assembled(*events: dict[str, Any]) -> ModelReply:
    assembly = ReplyAssembly(lambda _delta: None)
    for event in events:
        assembly.take(event)
    return assembly.reply()


def block_events(block: dict[str, Any], *deltas: dict[str, Any], index: int = 0) -> list[Any]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def tool_events(*pieces: str) -> list[Any]:
    block = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block_events(block, *deltas)


def end(stop: str = "end_turn") -> list[Any]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("wire", "stop"),
    [
        ("end_turn", StopReason.END_TURN),
        ("stop_sequence", StopReason.END_TURN),
        ("tool_use", StopReason.TOOL_USE),
        ("max_tokens", StopReason.OUTPUT_LIMIT),
        ("model_context_window_exceeded", StopReason.OUTPUT_LIMIT),
        ("refusal", StopReason.REFUSAL),
        ("pause_turn", StopReason.OTHER),
        ("invented later", StopReason.OTHER),
    ],
)
def test_each_stop_reason_has_its_word(wire: str, stop: StopReason):
    assert assembled(*end(wire)).stop is stop


def test_an_empty_reply_can_be_kept():
    assert assembled(*end()).blocks == (TextBlock(text=""),)


def test_redacted_reasoning_is_kept_as_it_came():
    events = block_events({"type": "redacted_thinking", "data": "opaque"})
    assert assembled(*events, *end()).blocks == (ThinkingBlock(thinking="opaque", redacted=True),)


@pytest.mark.parametrize("pieces", [(), ("",), ("", "{}"), ("{", "}")])
def test_a_tool_call_without_arguments_has_none(pieces: tuple[str, ...]):
    reply = assembled(*tool_events(*pieces), *end("tool_use"))
    assert reply.blocks == (ToolUseBlock(id="c1", name="look", input={}),)


def test_a_tool_call_that_the_output_limit_cut_is_left_out():
    reply = assembled(*tool_events('{"at": "the s'), *end("max_tokens"))
    assert (reply.blocks, reply.stop) == ((TextBlock(text=""),), StopReason.OUTPUT_LIMIT)


def test_numbers_that_no_record_holds_are_kept_as_floats():
    reply = assembled(*tool_events('{"n": 123456789012345678901234567890}'), *end("tool_use"))
    block = reply.blocks[0]
    assert isinstance(block, ToolUseBlock)
    assert block.input == {"n": 123456789012345678901234567890.0}
    assert isinstance(block.input["n"], float)


def test_unknown_events_and_deltas_are_skipped():
    text = {"type": "text", "text": ""}
    events = block_events(
        text, {"type": "text_delta", "text": "a"}, {"type": "citations_delta", "citation": {}}
    )
    assert assembled({"type": "later"}, *events, *end()).blocks == (TextBlock(text="a"),)


@pytest.mark.parametrize(
    "events",
    [
        [],
        end()[:1],
        block_events({"type": "text", "text": ""})[:1] + end(),
        block_events({"type": "server_tool_use", "id": "x", "name": "y", "input": {}}) + end(),
        tool_events('{"at": ') + end("tool_use"),
        tool_events('["no object"]') + end("tool_use"),
        block_events({"type": "tool_use", "id": "", "name": "look", "input": {}}) + end(),
        block_events({"type": "tool_use", "id": "c", "name": "no blanks", "input": {}}) + end(),
        [{"type": "content_block_delta", "index": 9, "delta": {}}],
        [{"type": "content_block_start", "index": "0", "content_block": {}}],
        [{"type": "content_block_start", "index": True, "content_block": {}}],
        block_events({"type": "text", "text": ""}, {"type": "text_delta", "text": 5}),
        [{"type": "message_start", "message": None}],
    ],
    ids=range(13),
)
def test_a_reply_that_breaks_its_wire_is_refused(events: list[Any]):
    with pytest.raises(UnreadableReplyError):
        assembled(*events)


@pytest.mark.parametrize(
    "text",
    ["", "no", "[]", '{"a": NaN}', '{"a": ' * 100_000, "{'a': 1}"]
    + ['{"n": ' + "9" * digits + "}" for digits in (400, 5_000)],
)
def test_an_event_that_is_no_json_object_is_refused(text: str):
    with pytest.raises(UnreadableReplyError):
        read_json(text)


async def test_an_unreadable_reply_is_one_retryable_failure():
    bad = Answer(tools=(SimulatedTool("no blanks allowed", {}),))

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        with pytest.raises(ProviderError, match="cannot be kept") as caught:
            await call(provider)
        assert (caught.value.retryable, caught.value.sent) == (True, True)

    await over(lambda _: bad, use)


# Keys, errors, leftovers.


async def test_a_key_function_is_asked_before_each_call():
    keys = iter(["one", "two"])
    seen: list[str | None] = []

    async def key() -> str:
        await trio.lowlevel.checkpoint()
        return next(keys)

    def spy(asked: httpx2.Request) -> httpx2.Response:
        seen.append(asked.headers.get("x-api-key"))
        return httpx2.Response(500)

    provider = AnthropicProvider(api_key=key, base_url="http://127.0.0.1:1")
    provider._client._client._transport._direct = httpx2.MockTransport(spy)
    for _ in range(2):
        with pytest.raises(ProviderError):
            await call(provider)
    await provider.aclose()
    assert seen == ["one", "two"]


async def test_a_key_function_that_raises_is_an_unsent_failure():
    def key() -> str:
        raise OSError("no vault")

    async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
        with pytest.raises(ProviderError, match="OSError") as caught:
            await call(provider)
        assert (caught.value.sent, simulator.log) == (False, [])

    await over(lambda _: Answer(text="never"), use, api_key=key)


async def test_a_busy_service_says_by_header_that_a_retry_may_do():
    answer = Answer(status=400, headers={"x-should-retry": "true"})

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        with pytest.raises(ProviderError) as caught:
            await call(provider)
        assert caught.value.retryable

    await over(lambda _: answer, use)


async def test_a_refusal_that_is_no_json_is_read_by_its_head():
    answer = Answer(status=429, headers={"retry-after": "60"}, body="<html>1015\x1b[2J</html>")

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        with pytest.raises(ProviderError) as caught:
            await call(provider)
        assert caught.value.stated is not None
        assert "1015" in str(caught.value)
        assert str(caught.value).isprintable()

    await over(lambda _: answer, use)


@pytest.mark.parametrize("status", [200, 429], ids=["served", "refused"])
async def test_what_a_response_tells_of_usage_windows_is_noted_with_its_permit(status: int):
    unified = {
        "anthropic-ratelimit-unified-5h-utilization": "0.25",
        "anthropic-ratelimit-unified-5h-reset": "1791381600",
    }
    answer = (
        Answer(text="hi", headers=unified) if status == 200 else Answer(status=429, headers=unified)
    )
    permit = Permit(1, "ana", "m", "turn")

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        with permitted(permit), contextlib.suppress(ProviderError):
            await provider.call(request(), lambda _delta: None)
        assert permit.reading is not None
        (window,) = permit.reading.windows
        assert (window.used_percent, window.resets_ms) == (25.0, 1_791_381_600_000)

    await over(lambda _: answer, use)


async def test_repeated_header_lines_stay_apart():
    answer = Answer(status=429, headers={"retry-after": ["30", "60"]})

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        with pytest.raises(ProviderError) as caught:
            await call(provider)
        assert caught.value.stated is not None
        assert caught.value.stated.raw == "retry-after: 60"

    await over(lambda _: answer, use)


@pytest.mark.behaviour("R-19")
async def test_a_client_that_retries_by_itself_sends_one_request_a_permit():
    refused = Answer(status=503, headers={"retry-after-ms": "1"})

    async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
        provider._client = provider._client.with_options(max_retries=1)
        for number in (1, 2):
            with pytest.raises(PermitError):
                await call(provider)
            assert len(simulator.log) == number, "the retry was sent with a used permit"

    await over(lambda _: refused, use)


@pytest.mark.behaviour("R-19")
async def test_other_uses_of_the_sdk_need_a_permit_too():
    async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
        with pytest.raises(anthropic.APIConnectionError) as caught:
            await provider._client.messages.count_tokens(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
        assert isinstance(caught.value.__cause__, PermitError)
        assert simulator.log == []

    await over(lambda _: Answer(text="never"), use)


@pytest.mark.slow
async def test_no_generator_is_left_to_the_collector_however_a_call_ends():
    # Warnings are errors in this suite: trio warns of each generator that it has to finalize.
    endings = [
        Answer(text="a whole reply", chunk_chars=2),
        Answer(text="an open socket", linger=True),
        Answer(text="a cut stream", chunk_chars=2, cut_after=4),
        Answer(text="an error", chunk_chars=2, error_after=4),
        Answer(text="silence", chunk_chars=2, stall_after=4),
        Answer(status=429),
    ]
    left = list(endings)

    async def use(provider: AnthropicProvider, _simulator: ProviderSimulator) -> None:
        for _ in endings:
            with contextlib.suppress(ProviderError):
                await call(provider)
            gc.collect()

    await over(lambda _: left.pop(0), use, byte_idle_s=0.1)


async def test_a_connection_is_used_again():
    ports: set[int] = set()

    async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
        for _ in range(3):
            await call(provider)
            pool = provider._client._client._transport._direct._pool
            ports.update(id(connection) for connection in pool.connections)
        assert len(simulator.log) == 3

    await over(lambda _: Answer(text="ok"), use)
    assert len(ports) == 1


def test_a_provider_error_survives_pickling_with_its_statement():
    error = refusal(
        provider="anthropic",
        status=429,
        headers={"retry-after": "60"},
        body="",
        message="slow\ndown",
        received_at=1_791_374_400,
    )
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.stated, back.status) == (str(error), error.stated, 429)
    assert "slow down" in str(back)


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ProviderNotInstalledError, match=r"extra 'anthropic'") as caught:
        AnthropicProvider(api_key="any")
    assert caught.value.extra == "anthropic"


def test_a_provider_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ValueError, match="ANTHROPIC_API_KEY"):
        AnthropicProvider()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
@pytest.mark.parametrize("name", ["byte_idle_s", "first_event_s", "call_s"])
def test_a_deadline_that_is_not_positive_is_refused(name: str, seconds: float):
    with pytest.raises(ValueError, match="positive"):
        AnthropicProvider(api_key="any", **{name: seconds})


# Proxies.


async def test_a_proxy_of_the_environment_is_used_and_never_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "internal.example")
    transport = PermitTransport(byte_idle_s=1)
    proxied = set(transport._proxied.values())
    assert len(proxied) == 2
    for url, expected in {
        "https://api.anthropic.com/v1/messages": True,
        "http://gateway.example/": True,
        "https://internal.example/": False,
        "http://127.0.0.1:9/": False,
        "http://[::1]:9/": False,
        "http://localhost:9/": False,
    }.items():
        assert (transport._carrier(httpx2.URL(url)) in proxied) is expected, url
    await transport.aclose()


def test_the_wire_log_never_holds_a_key():
    async def main() -> None:
        async def use(provider: AnthropicProvider, simulator: ProviderSimulator) -> None:
            await call(provider)
            assert "sk-secret" not in json.dumps([entry.headers for entry in simulator.log])

        await over(lambda _: Answer(text="ok"), use, api_key="sk-secret")

    trio.run(main)


async def test_a_key_is_told_from_others_by_a_salted_fingerprint_and_a_function_by_none() -> None:
    marks = []
    for key in ("sk-one", "sk-one", "sk-two", lambda: "sk-one"):
        provider = AnthropicProvider(api_key=key, base_url="http://127.0.0.1:1")
        marks.append([provider.credential("store a"), provider.credential("store b")])
        await provider.aclose()
    assert marks[0] == marks[1] != marks[2]
    assert marks[0][0] != marks[0][1]
    assert marks[3] == [None, None]
    assert "sk-one" not in str(marks)


async def test_an_account_with_a_name_stays_the_same_when_its_key_is_rotated() -> None:
    marks = []
    for key, account in (
        ("sk-one", "team"),
        ("sk-two", "team"),
        (lambda: "sk-three", "team"),
        ("sk-one", "lab"),
        ("sk-one", None),
        ("account team", None),
    ):
        provider = AnthropicProvider(api_key=key, base_url="http://127.0.0.1:1", account=account)
        marks.append(provider.credential("store"))
        await provider.aclose()
    assert marks[0] == marks[1] == marks[2]
    assert len(set(marks)) == 4  # A name, another, a key alone, and one that reads like a name.
    assert "team" not in str(marks)


@pytest.mark.parametrize("account", ["", "  ", 7])
def test_an_account_without_a_name_is_refused(account: Any) -> None:
    with pytest.raises(ValueError, match="account is the name"):
        AnthropicProvider(api_key="none", account=account)


@pytest.mark.behaviour("S-014")
@pytest.mark.parametrize("answer", ["limited", "exhausted", "stalled"])
@pytest.mark.parametrize("wire", ["anthropic", "responses", "chat"])
async def test_adapter_that_met_a_wall_tells_the_time_and_leaves_no_timer_and_no_task(
    wire: str, answer: str
) -> None:
    """It reports the fact and the time; when to call again is for whoever asked."""
    answers = {
        "limited": Answer(status=429, headers={"retry-after": "7200"}),
        "exhausted": Answer(text="x", error_after=1, error={"type": "rate_limit_error"}),
        "stalled": Answer(text="a long text", chunk_chars=2, stall_after=4),
    }
    before = trio.lowlevel.current_statistics()
    began_ms = time.time() * 1_000
    async with ProviderSimulator(lambda _request: answers[answer]) as simulator:
        provider: Any
        if wire == "anthropic":
            url = simulator.base_url
            provider = AnthropicProvider(api_key="any", base_url=url, byte_idle_s=0.1)
        else:
            api: Any = wire
            url = f"{simulator.base_url}/v1"
            provider = OpenAIProvider(api=api, api_key="any", base_url=url, byte_idle_s=0.1)
        with pytest.raises(ProviderError) as refused:
            await call(provider)
        told_ms = time.time() * 1_000
        # On a busy machine a call may stall before the service has read it.
        assert len(simulator.log) == 1 or (answer == "stalled" and not simulator.log)
    stated: Any = refused.value.stated
    if answer == "limited":
        assert began_ms + 7_200_000 <= stated.deadline_ms <= told_ms + 7_200_001
    else:
        assert stated is None or stated.deadline_ms is None
    # The service has gone; whatever is left is the adapter's.
    await trio.testing.wait_all_tasks_blocked()
    left = trio.lowlevel.current_statistics()
    assert left.tasks_living == before.tasks_living
    assert left.seconds_to_next_deadline == float("inf")
    await provider.aclose()
