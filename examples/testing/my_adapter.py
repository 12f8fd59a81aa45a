"""An adapter of a host's own, over a gateway that answers whole replies and has no SDK.

`test_my_adapter.py` holds it against what every adapter must do.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from abeyance.actors.providers import (
    ModelReply,
    ModelRequest,
    ProviderError,
    ReplyDelta,
    StopReason,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    read_stated_wait,
    use_permit,
)


class GatewayAnswer(NamedTuple):
    """What the gateway says: a status, headers, and JSON."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


Gateway = Callable[[dict[str, Any]], Awaitable[GatewayAnswer]]


class GatewayProvider:
    """One call is one question to the gateway."""

    name = "gateway"
    carries_injections = True
    call_s = 120.0
    """The gateway answers within two minutes or not at all."""

    def __init__(self, gateway: Gateway, *, now_s: Callable[[], float] = time.time) -> None:
        self._gateway = gateway
        self._now_s = now_s

    async def call(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        question = {
            "model": request.model,
            "system": request.system,
            "messages": [
                {"role": message.role, "parts": [_said(block) for block in message.blocks]}
                for message in request.messages
            ],
            "tools": [
                {"name": tool.name, "about": tool.description, "input": tool.input_schema}
                for tool in request.tools
            ],
        }
        use_permit()  # Immediately before it is sent: one permit, one request, no retry.
        answer = await self._gateway(question)
        if answer.status != 200:
            raise self._refused(answer)
        return _reply(answer.body, on_delta)

    async def aclose(self) -> None:
        """Nothing is open between two calls."""

    def _refused(self, answer: GatewayAnswer) -> ProviderError:
        """What a refusal says of when to ask again, whichever way it says it."""
        stated = read_stated_wait(
            status=answer.status,
            headers=answer.headers,
            body=str(answer.body),
            received_at=self._now_s(),
        )
        return ProviderError(
            f"the gateway refused the call with status {answer.status}; no reply was taken from it",
            # A limit, or a fault of theirs, may be over later; another refusal stays one.
            retryable=answer.status == 429 or answer.status >= 500,
            status=answer.status,
            stated=stated,
        )


def _said(block: Any) -> dict[str, Any]:
    """One block of a message in the gateway's words. What it has no word for is left out."""
    match block:
        case TextBlock(text=text):
            return {"text": text}
        case ToolUseBlock(id=id_, name=name, input=given):
            return {"call": id_, "tool": name, "input": given}
        case ToolResultBlock(tool_use_id=id_, is_error=is_error):
            return {"result_of": id_, "text": block.text, "failed": is_error}
    return {}


def _reply(body: dict[str, Any], on_delta: Callable[[ReplyDelta], None]) -> ModelReply:
    blocks: list[TextBlock | ToolUseBlock] = []
    if body.get("text"):
        on_delta(ReplyDelta("text", 0, body["text"]))
        blocks.append(TextBlock(text=body["text"]))
    blocks += (
        ToolUseBlock(id=call["id"], name=call["tool"], input=call["input"])
        for call in body.get("calls", ())
    )
    stop = StopReason.TOOL_USE if body.get("calls") else StopReason.END_TURN
    return ModelReply(tuple(blocks), stop, Usage(body["tokens_in"], body["tokens_out"]))
