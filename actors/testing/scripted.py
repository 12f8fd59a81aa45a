"""A provider that runs in process and answers by a script. No socket, no SDK.

Invariants:
    I1  It consumes a permit a call, as a transport does: a call without one fails and leaves no
        trace in `requests`.
    I2  A step answers one call. Calls past the script fail loudly; nothing is repeated.
    I3  A failure is made from a status, headers and a body through the same reader that an
        adapter uses, so a test states what a provider would send.

Runs in the calling trio task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, Self

import trio

from abeyance.storage.tables.blocks import Block, TextBlock, ThinkingBlock, ToolUseBlock

from ..core.clock import Clock, SystemClock
from ..core.errors import AbeyanceError
from ..domain.media import KINDS
from ..providers.context_limit import checked_tokens
from ..providers.credentials import fingerprint
from ..providers.failures import refusal
from ..providers.port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    Permit,
    ProviderStalledError,
    ReplyDelta,
    StopReason,
    Usage,
    note_usage,
    use_permit,
)
from ..providers.usage import read_usage
from ..providers.windows import UsageReading, UsageWindow
from .scripted_sessions import ScriptedSession, ScriptedSessions, scripted_session

MEDIA_TYPES: Final = frozenset().union(*KINDS.values())
"""Everything that can be attached."""


class ScriptEndedError(AbeyanceError):
    """A scripted provider was called more often than its script says."""

    code: ClassVar[str] = "script_ended"


class Step(Protocol):
    """What one call comes to."""

    async def play(self, call: ScriptedCall) -> ModelReply:
        """Answer the call or raise what it raises. May block; is cancelled with the call."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call as a step sees it."""

    request: ModelRequest
    permit: Permit
    on_delta: OnDelta
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Reply:
    blocks: tuple[Block, ...]
    stop: StopReason
    usage: Usage
    windows: tuple[UsageWindow, ...] = ()

    async def play(self, call: ScriptedCall) -> ModelReply:
        if self.windows:
            note_usage(UsageReading(windows=self.windows, read_ms=call.clock.now_ms()))
        for index, block in enumerate(self.blocks):
            match block:
                case TextBlock():
                    call.on_delta(ReplyDelta("text", index, block.text))
                case ThinkingBlock(redacted=False):
                    call.on_delta(ReplyDelta("thinking", index, block.thinking))
                case ToolUseBlock():
                    call.on_delta(ReplyDelta("tool_input", index, json.dumps(block.input)))
        await trio.lowlevel.checkpoint()
        return ModelReply(self.blocks, self.stop, self.usage)


def reply(
    *content: str | Block,
    stop: StopReason | None = None,
    usage: Usage | None = None,
    windows: Sequence[UsageWindow] = (),
) -> Step:
    """A step that replies with texts and blocks, in order.

    Args:
        stop: By default `tool_use` where a block calls a tool, else `end_turn`.
        usage: By default one token for each word sent and received, so that sums can be checked.
        windows: What the response tells of its account's usage windows.
    """
    blocks = tuple(TextBlock(text=part) if isinstance(part, str) else part for part in content)
    if stop is None:
        calls = any(isinstance(block, ToolUseBlock) for block in blocks)
        stop = StopReason.TOOL_USE if calls else StopReason.END_TURN
    words = sum(len(block.text.split()) for block in blocks if isinstance(block, TextBlock))
    return _Reply(blocks, stop, usage or Usage(input_tokens=1, output_tokens=words), tuple(windows))


@dataclass(frozen=True, slots=True)
class _CallTool:
    name: str
    input: Mapping[str, Any]
    id: str | None
    text: str | None

    async def play(self, call: ScriptedCall) -> ModelReply:
        # Counted in the transcript, not in this object: a provider made anew after a restart must
        # not use an id that the slot already holds.
        used = sum(
            isinstance(block, ToolUseBlock)
            for message in call.request.messages
            for block in message.blocks
        )
        block = ToolUseBlock(
            id=self.id or f"call_{used + 1}", name=self.name, input=dict(self.input)
        )
        said = () if self.text is None else (self.text,)
        return await reply(*said, block).play(call)


def call_tool(
    name: str,
    input: Mapping[str, Any] | None = None,  # noqa: A002 - the wire's own words
    id: str | None = None,  # noqa: A002
    *,
    text: str | None = None,
) -> Step:
    """A step that calls one tool. For several in one reply give `reply` the blocks.

    Args:
        id: By default `call_<n>`, n counting the tool calls that the request already holds.
        text: Said before the call, in the same reply.
    """
    return _CallTool(name, input or {}, id, text)


@dataclass(frozen=True, slots=True)
class _Fail:
    status: int | None
    headers: tuple[tuple[str, str], ...]
    body: str
    retryable: bool | None
    provider: str

    async def play(self, call: ScriptedCall) -> ModelReply:
        await trio.lowlevel.checkpoint()
        received_at = call.clock.now_ms() / 1_000
        note_usage(
            read_usage(
                status=self.status,
                headers=self.headers,
                body=self.body,
                received_at=received_at,
                provider=self.provider,
            )
        )
        error = refusal(
            provider=self.provider,
            status=self.status,
            headers=self.headers,
            body=self.body,
            message=self.body,
            received_at=received_at,
            retryable=self.retryable,
        )
        error.provider, error.model = self.provider, call.request.model
        raise error


def fail(
    status: int | None = 429,
    *,
    retry_after: float | str | None = None,
    headers: Mapping[str, str] | None = None,
    body: str = "",
    retryable: bool | None = None,
    provider: str = "generic",
) -> Step:
    """A step that refuses the call as an HTTP response would.

    Args:
        retry_after: The Retry-After header: seconds, or its text.
        retryable: By default as status and statement say.
        provider: Whose grammar the response is read by.
    """
    lines = list((headers or {}).items())
    if retry_after is not None:
        lines.append(("retry-after", str(retry_after)))
    return _Fail(status, tuple(lines), body, retryable, provider)


@dataclass(frozen=True, slots=True)
class _Raise:
    error: BaseException

    async def play(self, call: ScriptedCall) -> ModelReply:
        await trio.lowlevel.checkpoint()
        raise self.error


def raise_(error: BaseException) -> Step:
    """A step that raises exactly this error. For faults that no response describes."""
    return _Raise(error)


@dataclass(frozen=True, slots=True)
class _Stall:
    idle_s: float | None

    async def play(self, call: ScriptedCall) -> ModelReply:
        if self.idle_s is None:
            await trio.sleep_forever()
        await trio.sleep(self.idle_s)
        raise ProviderStalledError(
            f"the scripted provider sent nothing for {self.idle_s} s; the request may have been "
            "processed; the call may be made again once nothing holds it",
            retryable=True,
        )


def stall(idle_s: float | None = 120.0) -> Step:
    """A step that sends nothing: for `idle_s` seconds and then fails, or for ever (None)."""
    return _Stall(idle_s)


@dataclass(slots=True, eq=False)
class Gate:
    """A step that blocks its call until the test releases it, then plays `then`.

    `await gate.wait_entered()` returns when the call is blocked in it. A released gate lets every
    later call through. Releasing and entering need no order.
    """

    then: Step = field(default_factory=lambda: reply("released"))
    _entered: trio.Event = field(default_factory=trio.Event)
    _released: trio.Event = field(default_factory=trio.Event)

    def release(self) -> None:
        """Let the call go on. Not a checkpoint."""
        self._released.set()

    async def wait_entered(self) -> None:
        """Block until a call is in the gate. A checkpoint."""
        await self._entered.wait()

    async def play(self, call: ScriptedCall) -> ModelReply:
        self._entered.set()
        await self._released.wait()
        return await self.then.play(call)


@dataclass(slots=True, eq=False)
class ScriptedExchange:
    """One call that had a permit, and what it was answered with."""

    request: ModelRequest
    permit: Permit
    reply: ModelReply | None = None
    """None while it is out, and where it failed."""


Script = Iterable[Step] | Callable[[ModelRequest], Step]


class ScriptedProvider:
    """A `Provider` whose calls come to what a script says.

    Args:
        script: Steps, one a call in the order calls arrive; or a function of the request.
        carries_injections: The mandatory declaration of every provider.
        clock: Where stated waits are counted from.
        key: The credential it pretends to call with; providers of one key share an account.
        sessions: The conversations that it keeps; None is none yet, in this process.
        context_tokens: How many tokens a request may have, by model.
    """

    def __init__(
        self,
        script: Script,
        *,
        carries_injections: bool = True,
        clock: Clock | None = None,
        key: str | None = None,
        sessions: ScriptedSessions | None = None,
        context_tokens: Mapping[str, int] | None = None,
        attachment_types: Set[str] = MEDIA_TYPES,
    ) -> None:
        self.attachment_types = frozenset(attachment_types)
        self._context_tokens = checked_tokens(context_tokens)
        self._key = key
        self.sessions = ScriptedSessions() if sessions is None else sessions
        self.carries_injections = carries_injections
        self.closed = False
        self.requests: list[ModelRequest] = []
        """Every request that had a permit, in order of arrival."""
        self.permits: list[Permit] = []
        """The permits those requests consumed, in the same order."""
        self.exchanges: list[ScriptedExchange] = []
        """The same calls with their replies: what `invariant.read_scripted` reads."""
        self._clock = clock or SystemClock()
        self._steps = None if callable(script) else list(script)
        self._choose = script if callable(script) else self._next

    def context_tokens(self, model: str) -> int | None:
        """How many tokens a request to a model may have; None: unknown."""
        return self._context_tokens.get(model)

    def credential(self, salt: str) -> str | None:
        """The fingerprint of the `key` it was made with; None without one."""
        return None if self._key is None else fingerprint(self._key, salt)

    @classmethod
    def echo(cls, tool: str | None = None, rounds: int = 1) -> Self:
        """A provider that answers with the text it was given, for any number of turns.

        Each turn takes `rounds` rounds; in every round but the last it calls `tool` with
        `{"text": <the text>}`. The round is read from the request, so it survives a restart.
        """
        if rounds > 1 and tool is None:
            raise ValueError("an echo of several rounds needs a tool to call")

        def choose(request: ModelRequest) -> Step:
            text = given_text(request)
            if tool is not None and rounds_made(request) < rounds - 1:
                return call_tool(tool, {"text": text})
            return reply(text)

        return cls(choose)

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Play the next step. See `Provider.call`.

        Raises:
            PermitError: No unused permit; the request is not recorded and no step is consumed.
            ScriptEndedError: The script has no step left; the permit is consumed.
        """
        permit = use_permit()
        self.requests.append(request)
        self.permits.append(permit)
        exchange = ScriptedExchange(request, permit)
        self.exchanges.append(exchange)
        step = self._choose(request)
        answer = await step.play(ScriptedCall(request, permit, on_delta, self._clock))
        # What no reply is, raw faults of a script among it, is judged by whoever gets it.
        exchange.reply = answer if isinstance(answer, ModelReply) else None
        return answer

    def session(self, handle: str | None = None) -> AbstractAsyncContextManager[ScriptedSession]:
        """Open a conversation, or resume one. See `SessionProvider.session`.

        What is said in it plays the same script; a step sees the whole conversation.

        Raises:
            SessionLostError: On entering: there is none of that handle.
        """
        return scripted_session(self.sessions, handle, self.call)

    async def aclose(self) -> None:
        """Mark it closed. Idempotent. A checkpoint."""
        self.closed = True
        await trio.lowlevel.checkpoint()

    @property
    def steps_left(self) -> int:
        """How many steps no call has consumed; 0 for a function."""
        return len(self._steps or ())

    def _next(self, request: ModelRequest) -> Step:
        if not self._steps:
            raise ScriptEndedError(
                f"call {len(self.requests)} has no step in the script; the call was not answered; "
                "add a step, or find out who called"
            )
        return self._steps.pop(0)


def given_text(request: ModelRequest) -> str:
    """The text of the last user message that has one, its blocks joined by newlines."""
    for message in reversed(request.messages):
        texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
        if message.role == "user" and texts:
            return "\n".join(texts)
    return ""


def rounds_made(request: ModelRequest) -> int:
    """How many replies of the turn in progress the request holds: all since the last final one."""
    made = 0
    for message in reversed(request.messages):
        if message.role != "assistant":
            continue
        if not any(isinstance(block, ToolUseBlock) for block in message.blocks):
            break
        made += 1
    return made
