"""The spans of a turn, by the names that OpenTelemetry's conventions for generative AI have.

    invoke_agent NAME       one life of a turn; a trace of its own, linked to its life before
      abeyance.round        one request, its reply, and what that asked for
        chat MODEL          one provider call
        abeyance.commit     until the store has what is recorded, and has it synced
        execute_tool NAME   one body, with its commits

Nothing that a message, a reply or a tool's input says is in any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from abeyance.actors.core.spans import Attributes, Span, Spans
from abeyance.actors.providers.port import ModelReply, name_of

if TYPE_CHECKING:
    from abeyance.storage.tables.blocks import ToolUseBlock

    from .turn import TurnSettings

COMMIT: Final = "abeyance.commit"
ROUND: Final = "abeyance.round"


def turn_span(spans: Spans, settings: TurnSettings, *, once: str | None = None) -> Span:
    """Of one life of a turn. It begins as the turn is asked for, and waits for its slot too.

    Args:
        once: Of what is used once, what its specification is called: its own name is no other
            run's. It is within what is current where it was started.
    """
    operation, name = "invoke_agent", once or settings.name
    said: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": name,
        "gen_ai.agent.id": settings.name,
        "gen_ai.request.model": settings.model,
        "abeyance.slot": settings.slot,
    }
    return spans(f"{operation} {name}", said, root=once is None)


def ended(span: Span, state: str) -> None:
    """Say what a life of a turn came to: `held` and the like, or the turn's end."""
    span.say({"abeyance.state": state})
    if state == "failed":
        span.fail("turn_failed")


def call_span(spans: Spans, provider: object, model: str, purpose: str) -> Span:
    """Of one provider call, without the wait for its permit."""
    operation = "chat"
    said: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": name_of(provider),
        "gen_ai.request.model": model,
        "abeyance.purpose": purpose,
    }
    return spans(f"{operation} {model}", said, kind="client")


def replied(span: Span, reply: ModelReply) -> None:
    """Say what a call came to."""
    used = reply.usage
    span.say(
        {
            "gen_ai.usage.input_tokens": used.input_tokens,
            "gen_ai.usage.output_tokens": used.output_tokens,
        }
    )


def tool_span(spans: Spans, call: ToolUseBlock, *, in_doubt: bool) -> Span:
    """Of one tool's body, and of the commits that it is between; or of what its policy says of a
    call that a death cut off."""
    operation = "execute_tool"
    said: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "abeyance.in_doubt": in_doubt or None,
    }
    return spans(f"{operation} {call.name}", said)
