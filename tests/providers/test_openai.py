"""The OpenAI adapter: what it sends on its two wires, and what it makes of odd replies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
import trio

from abeyance.actors import AgentSpec, Tool, open_runtime
from abeyance.actors.providers import OpenAIProvider, ProviderNotInstalledError
from abeyance.actors.providers.anthropic_wire import request_body as anthropic_body
from abeyance.actors.providers.openai_chat_wire import ChatAssembly
from abeyance.actors.providers.openai_chat_wire import request_body as chat_body
from abeyance.actors.providers.openai_responses_wire import ResponsesAssembly
from abeyance.actors.providers.openai_responses_wire import request_body as responses_body
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    ProviderError,
    ProviderMessage,
    StopReason,
    ToolSchema,
    Usage,
    permitted,
)
from abeyance.actors.providers.sse import ServerSentEvent
from abeyance.actors.providers.stated import WaitKind
from abeyance.actors.providers.wire import StatedError, UnreadableReplyError
from abeyance.actors.testing import Answer, ProviderSimulator, SimulatedTool, WireRequest
from abeyance.storage.tables.blocks import (
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

Api = Literal["responses", "chat"]
BOTH = pytest.mark.parametrize("api", ["responses", "chat"])
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}


def user(*blocks: Block) -> ProviderMessage:
    return ProviderMessage("user", blocks)


def assistant(*blocks: Block) -> ProviderMessage:
    return ProviderMessage("assistant", blocks)


def a_transcript() -> ModelRequest:
    looked = ToolUseBlock(id="c1", name="look", input={"at": "sky"})
    failed = ToolResultBlock(tool_use_id="c1", content=(TextBlock(text="fog"),), is_error=True)
    return ModelRequest(
        "m",
        (
            user(TextBlock(text="one"), TextBlock(text="two")),
            assistant(ThinkingBlock(thinking="hm"), TextBlock(text="looking"), looked),
            user(failed, TextBlock(text="and?"), TextBlock(text=" ")),
            assistant(TextBlock(text=" \n")),
        ),
        system="You are Ana.",
        tools=(ToolSchema("look", "Look.", PLACE),),
        output_tokens_max=64,
    )


async def call(provider: OpenAIProvider, asked: ModelRequest) -> ModelReply:
    with permitted(Permit(1, "ana", "m", "turn")), trio.fail_after(60):
        return await provider.call(asked, lambda _delta: None)


async def asked(
    api: Api, script: Callable[[WireRequest], Answer], request: ModelRequest, **parts: Any
) -> tuple[ModelReply, dict[str, Any]]:
    """Make one call over a socket; return the reply and what was on the wire."""
    async with ProviderSimulator(script) as simulator:
        url = f"{simulator.base_url}/v1"
        provider = OpenAIProvider(api=api, base_url=url, **{"api_key": "any", **parts})
        try:
            return await call(provider, request), simulator.log[0].request
        finally:
            await provider.aclose()


# What it sends.


def test_chat_gets_a_transcript_in_its_own_form():
    assert chat_body(a_transcript(), output_limit="max_tokens") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are Ana."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            },
            {
                "role": "assistant",
                "content": "looking",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "sky"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "error: fog"},
            {"role": "user", "content": "and?"},
        ],
        "max_tokens": 64,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {"name": "look", "description": "Look.", "parameters": PLACE},
            }
        ],
    }


def test_responses_get_a_transcript_in_their_own_form():
    assert responses_body(a_transcript()) == {
        "model": "m",
        "instructions": "You are Ana.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "one"},
                    {"type": "input_text", "text": "two"},
                ],
            },
            {"role": "assistant", "content": [{"type": "output_text", "text": "looking"}]},
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "look",
                "arguments": '{"at": "sky"}',
            },
            {"type": "function_call_output", "call_id": "c1", "output": "error: fog"},
            {"role": "user", "content": [{"type": "input_text", "text": "and?"}]},
        ],
        "max_output_tokens": 64,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Look.",
                "parameters": PLACE,
                "strict": False,
            }
        ],
    }


@BOTH
async def test_a_transcript_goes_over_the_wire_as_it_is(api: Api):
    request = a_transcript()
    body = (
        responses_body(request)
        if api == "responses"
        else chat_body(request, output_limit="max_completion_tokens")
    )
    _, sent = await asked(api, lambda _: Answer(text="ok"), request)
    assert sent == body


async def test_reasoning_is_sent_again_as_it_came_and_only_on_its_own_wire():
    reply, _ = await asked(
        "responses", lambda _: Answer(text="ok", thinking="let me think"), a_transcript()
    )
    again = ModelRequest(
        "m", (user(TextBlock(text="go")), ProviderMessage("assistant", reply.blocks))
    )
    assert responses_body(again)["input"][1] == {
        "type": "reasoning",
        "id": "rs_sim_1",
        "summary": [{"type": "summary_text", "text": "let me think"}],
        "encrypted_content": "sim-signature-1",
    }
    assert anthropic_body(again)["messages"][1]["content"] == [{"type": "text", "text": "ok"}]
    anthropics = ModelRequest(
        "m",
        (
            user(TextBlock(text="go")),
            assistant(ThinkingBlock(thinking="hm", signature="EqQB+/=="), TextBlock(text="a")),
        ),
    )
    assert [item.get("role") for item in responses_body(anthropics)["input"]] == [
        "user",
        "assistant",
    ]


# What it makes of replies.


def chat(*chunks: Any) -> ModelReply:
    assembly = ChatAssembly(lambda _delta: None)
    for chunk in chunks:
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        assembly.feed(ServerSentEvent("", data))
    return assembly.reply()


def choice(delta: Any, stop: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}


def called(*parts: dict[str, Any]) -> dict[str, Any]:
    return choice({"tool_calls": list(parts)})


def responses(*events: dict[str, Any]) -> ModelReply:
    assembly = ResponsesAssembly(lambda _delta: None)
    for event in events:
        assembly.feed(ServerSentEvent(event["type"], json.dumps(event)))
    return assembly.reply()


def item_done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def ended(status: str = "completed", **parts: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"status": status, "output": [], **parts}}


def a_call(arguments: str = "{}", **parts: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": "c1",
        "name": "look",
        "arguments": arguments,
        **parts,
    }


@pytest.mark.parametrize(
    ("wire", "stop"),
    [
        ("stop", StopReason.END_TURN),
        ("length", StopReason.OUTPUT_LIMIT),
        ("tool_calls", StopReason.TOOL_USE),
        ("content_filter", StopReason.REFUSAL),
        ("invented later", StopReason.OTHER),
    ],
)
def test_each_finish_reason_of_chat_has_its_word(wire: str, stop: StopReason):
    assert chat(choice({"content": "a"}, wire), "[DONE]").stop is stop


@pytest.mark.parametrize(
    ("event", "stop"),
    [
        (ended(), StopReason.END_TURN),
        (
            ended("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            StopReason.OUTPUT_LIMIT,
        ),
        (
            ended("incomplete", incomplete_details={"reason": "content_filter"}),
            StopReason.REFUSAL,
        ),
        (ended("incomplete"), StopReason.OTHER),
    ],
    ids=["completed", "output limit", "filter", "unsaid"],
)
def test_each_end_of_a_response_has_its_word(event: dict[str, Any], stop: StopReason):
    assert responses(event).stop is stop


def test_a_stream_that_ends_behind_its_finish_reason_is_whole_without_done():
    assert chat(choice({"content": "a"}), choice({}, "stop")).blocks == (TextBlock(text="a"),)


@pytest.mark.parametrize("reply", [chat(choice({}, "stop"), "[DONE]"), responses(ended())])
def test_an_empty_reply_can_be_kept(reply: ModelReply):
    assert reply.blocks == (TextBlock(text=""),)


def test_a_call_behind_a_plain_stop_is_a_call():
    part = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}
    reply = chat(called(part), choice({}, "stop"), "[DONE]")
    assert reply.stop is StopReason.TOOL_USE
    assert reply.blocks == (ToolUseBlock(id="c1", name="look", input={}),)


@pytest.mark.parametrize("identity", ["", None])
def test_a_call_that_has_no_id_is_given_one(identity: str | None):
    part = {"index": 0, "id": identity, "function": {"name": "look", "arguments": {"at": 1}}}
    blocks = [chat(called(part), choice({}, "tool_calls")).blocks[0] for _ in range(2)]
    assert all(isinstance(block, ToolUseBlock) and block.input == {"at": 1} for block in blocks)
    assert blocks[0].id != blocks[1].id  # type: ignore[union-attr]


def test_calls_in_pieces_are_put_together_by_their_index():
    reply = chat(
        called({"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}),
        called({"index": 1, "id": "c2", "function": {"name": "look", "arguments": '{"at"'}}),
        called({"index": 0, "function": {"arguments": '{"at": 1}'}}),
        called({"index": 1, "function": {"arguments": ": 2}"}}),
        choice({}, "tool_calls"),
        "[DONE]",
    )
    assert [
        (block.id, block.input) for block in reply.blocks if isinstance(block, ToolUseBlock)
    ] == [
        ("c1", {"at": 1}),
        ("c2", {"at": 2}),
    ]


def test_a_refusal_is_kept_as_what_was_said():
    said = chat(choice({"refusal": "I will not."}), choice({}, "stop"), "[DONE]")
    part = {"type": "refusal", "refusal": "I will not."}
    answered = responses(item_done(0, {"type": "message", "content": [part]}), ended())
    for reply in (said, answered):
        assert (reply.stop, reply.blocks) == (StopReason.REFUSAL, (TextBlock(text="I will not."),))


def test_reasoning_that_a_service_shows_on_chat_is_kept_and_never_sent():
    reply = chat(
        choice({"reasoning_content": "hm", "content": None}), choice({"content": "a"}, "stop")
    )
    assert reply.blocks == (ThinkingBlock(thinking="hm"), TextBlock(text="a"))
    body = chat_body(
        ModelRequest("m", (ProviderMessage("assistant", reply.blocks),)), output_limit="max_tokens"
    )
    assert body["messages"] == [{"role": "assistant", "content": "a"}]


def test_a_tool_call_that_the_output_limit_cut_is_left_out():
    part = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at": "s'}}
    cut = chat(called(part), choice({}, "length"))
    limit = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    for reply in (cut, responses(item_done(0, a_call('{"at": "s')), limit)):
        assert (reply.blocks, reply.stop) == ((TextBlock(text=""),), StopReason.OUTPUT_LIMIT)


def test_cached_tokens_are_not_counted_twice():
    details = {"cached_tokens": 30, "cache_write_tokens": 20}
    theirs = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": details}
    said = chat(choice({"content": "a"}, "stop"), {"choices": [], "usage": theirs}, "[DONE]")
    usage = {"input_tokens": 100, "output_tokens": 7, "input_tokens_details": details}
    for reply in (said, responses(ended(usage=usage))):
        assert reply.usage == Usage(50, 7, 30, 20)


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [choice({"content": "a"})],
        ["[DONE]"],
        ["no json"],
        ["[]"],
        [choice({"content": 5}, "stop")],
        [called({"index": "0"}), choice({}, "tool_calls")],
        [choice({"tool_calls": ["no"]}, "stop")],
        [called({"index": 0, "id": "c", "function": {"name": "no blanks", "arguments": "{}"}}),
         choice({}, "tool_calls")],
        [called({"index": 0, "id": "c", "function": {"name": "look", "arguments": "{"}}),
         choice({}, "tool_calls")],
        [called({"index": 0, "id": "c", "function": {"name": "look", "arguments": "[1]"}}),
         choice({}, "stop")],
    ],
    ids=range(11),
)  # fmt: skip
def test_a_chat_reply_that_breaks_its_wire_is_refused(chunks: list[Any]):
    with pytest.raises(UnreadableReplyError):
        chat(*chunks)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [item_done(0, {"type": "message", "content": []})],
        [item_done(0, {"type": "web_search_call"}), ended()],
        [item_done(0, a_call("{")), ended()],
        [item_done(0, a_call(name="no blanks")), ended()],
        [item_done(0, a_call(call_id="")), ended()],
        [item_done(0, a_call(arguments=5)), ended()],
        [{"type": "response.output_item.done", "output_index": True, "item": {}}, ended()],
        [{"type": "response.completed", "response": None}],
        [{"type": "response.output_text.delta", "output_index": 0, "delta": 5}, ended()],
    ],
    ids=range(10),
)
def test_a_response_that_breaks_its_wire_is_refused(events: list[Any]):
    with pytest.raises(UnreadableReplyError):
        responses(*events)


@pytest.mark.parametrize(
    ("event", "retryable"),
    [
        ({"type": "error", "code": "server_error", "message": "oh"}, True),
        ({"type": "error", "code": "invalid_prompt", "message": "oh"}, None),
        ({"type": "error", "error": {"type": "server_error", "message": "oh"}}, True),
        ({"type": "response.failed", "response": {"error": {"code": "x", "message": "oh"}}}, True),
        (
            {
                "type": "response.failed",
                "response": {"error": {"code": "invalid_prompt", "message": "oh"}},
            },
            None,
        ),
    ],
    ids=range(5),
)
def test_a_response_that_failed_says_whether_it_may_be_asked_again(
    event: dict[str, Any], retryable: bool | None
):
    with pytest.raises(StatedError) as caught:
        responses(event)
    assert (caught.value.message, caught.value.retryable) == ("oh", retryable)


@BOTH
async def test_a_quota_that_is_used_up_is_told_from_a_limit(api: Api):
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    with pytest.raises(ProviderError) as caught:
        await asked(api, lambda _: Answer(status=429, body=body), a_transcript())
    assert caught.value.stated is not None
    assert caught.value.stated.kind is WaitKind.QUOTA_EXHAUSTED
    assert "You exceeded your current quota" in str(caught.value)


# Keys and parameters.


@BOTH
async def test_a_key_function_is_asked_before_each_call(api: Api):
    keys = iter(["one", "two"])
    seen: list[str | None] = []

    def spy(sent: httpx2.Request) -> httpx2.Response:
        seen.append(sent.headers.get("authorization"))
        return httpx2.Response(500)

    provider = OpenAIProvider(api=api, api_key=lambda: next(keys), base_url="http://127.0.0.1:1/v1")
    provider._client._client._transport._direct = httpx2.MockTransport(spy)
    for _ in range(2):
        with pytest.raises(ProviderError):
            await call(provider, a_transcript())
    await provider.aclose()
    assert seen == ["Bearer one", "Bearer two"]
    assert provider.credential("salt") is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"api": "completions"}, "api is"),
        ({"output_limit": "tokens"}, "output_limit is"),
        ({"call_s": 0}, "positive"),
        ({"api_key": ""}, "OPENAI_API_KEY"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_refused(parts: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=named):
        OpenAIProvider(**{"api_key": "any", **parts})


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ProviderNotInstalledError, match=r"extra 'openai'") as caught:
        OpenAIProvider(api_key="any")
    assert caught.value.extra == "openai"


async def test_a_compatible_server_is_named_and_read_by_its_own_name():
    refused = Answer(status=429, headers={"retry-after": "60"})
    with pytest.raises(ProviderError, match=r"^groq refused the call"):
        await asked("chat", lambda _: refused, a_transcript(), service="groq")


# An agent on it.


@BOTH
async def test_an_agent_uses_a_tool_and_waits_on_either_wire(api: Api, tmp_path: Path):
    left = [
        Answer(tools=(SimulatedTool("look", {"at": "sky"}, id="c1"),), thinking="hm"),
        Answer(status=429, headers={"retry-after": "7200"}),
        Answer(text="It rains."),
    ]
    tool = Tool(name="look", description="Look.", input_schema=PLACE, run=lambda at: f"{at}: rain")
    async with ProviderSimulator(lambda _: left.pop(0)) as simulator:
        provider = OpenAIProvider(api=api, api_key="any", base_url=f"{simulator.base_url}/v1")
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
        with trio.fail_after(60):
            async with open_runtime(tmp_path / "state") as runtime:
                ana = await runtime.add_agent(spec)
                await ana.send("Does it rain?", author="user")
                await ana.wait_idle()
                assert [wait.model for wait in runtime.provider_waits("ana")] == ["m"]
                assert len(simulator.log) == 2
                await runtime.release_provider_wait("ana", "m", requester="test")
                await ana.wait_idle()
                said = [message.text async for message in ana.transcript()]
            await provider.aclose()
        requests = [entry.request for entry in simulator.log]
    assert said[-1] == "It rains."
    assert len(requests) == 3
    assert requests[2] == requests[1]
    results = [
        one.get("output", one.get("content"))
        for one in requests[2].get("input", requests[2].get("messages"))
        if one.get("type") == "function_call_output" or one.get("role") == "tool"
    ]
    assert results == ["sky: rain"]
    if api == "responses":
        assert [one.get("type") for one in requests[2]["input"]] == [
            None,
            "reasoning",
            "function_call",
            "function_call_output",
        ]
