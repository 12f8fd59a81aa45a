"""What a turn asks of a provider, and what an adapter promises. No HTTP here.

Invariants:
    I1  One permit, one request on the wire. The transport consumes the permit that travels in the
        context; a second request, a redirect or a retry without one is refused before it is sent.
    I2  An adapter never waits out a limit by itself and never retries.
    I3  A failed call raises one `ProviderError` that carries what the provider stated, if it did.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.tables.blocks import Block

from .stated import StatedWait
from .windows import UsageReading

if TYPE_CHECKING:
    from .attachments import Attachments


@dataclass(frozen=True, slots=True)
class ProviderMessage:
    """One message of a request. One row of a slot is one message."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model is told of it. `input_schema` is a JSON schema of type object."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything one call sends."""

    model: str
    messages: tuple[ProviderMessage, ...]
    system: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    output_tokens_max: int = 4096
    attachments: Attachments | None = field(default=None, compare=False, repr=False)
    """Where those are read that its blocks name; the runtime says."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class StopReason(StrEnum):
    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    OUTPUT_LIMIT = "output_limit"
    REFUSAL = "refusal"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One complete reply: the wire's own end of message was seen."""

    blocks: tuple[Block, ...]
    stop: StopReason
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """A piece of a reply as it arrives. For looking; the reply is what counts."""

    kind: Literal["text", "thinking", "tool_input"]
    index: int
    text: str


OnDelta: TypeAlias = Callable[[ReplyDelta], None]


class Provider(Protocol):
    """An adapter. One instance serves many agents of one credential.

    It may have a method `credential(salt: str) -> str | None`, which tells that credential from
    others by a fingerprint (`abeyance.actors.providers.credentials`), never by the key; a host that
    opens its runtime with `account_waits=True` then has one agent's limit hold the others. It may
    have an attribute `call_s`: how many seconds a whole call may take, by its own deadlines; a call
    that takes a minute longer, or an hour where there is none, has stalled. And a method
    `context_tokens(model: str) -> int | None`: how many tokens a request to the model may have; one
    that is longer, by an estimate, is not sent. And an attribute `attachment_types`: a set of the
    media types that it shows to models, reading them from the request's `attachments`; in the place
    of any other attachment it is given a text.
    """

    carries_injections: bool
    """Whether messages accepted mid-turn may join the next round's request. Mandatory."""

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Make one provider call under the permit in the context.

        A checkpoint. Cancelled: the request is abandoned; whether it reached the provider is
        unknown. Stores nothing.

        Raises:
            PermitError: No unused permit in the context; nothing was sent.
            ProviderError: The call was refused or failed; see its attributes.
        """

    async def aclose(self) -> None:
        """Close connections. Idempotent."""


class ProviderError(AbeyanceError):
    """A provider refused or failed a call.

    Attributes: `retryable`; `status` (HTTP status or None); `stated` (a `StatedWait` or None);
    `sent` (False where the request surely did not leave); `said` (the provider's own words,
    bounded and on one line, or nothing); `acceleration` (True where what is limited is how fast
    an organisation's usage grows: it concerns every model, and what was stated may be nothing);
    `provider` and `model`, whom the call was made of, where the adapter says so; `reading`, the
    account's usage windows as they were last known when it failed, where the runtime knows them.
    """

    code: ClassVar[str] = "provider_failed"

    retryable: bool
    status: int | None
    stated: StatedWait | None
    sent: bool
    said: str
    acceleration: bool
    provider: str | None = None
    model: str | None = None
    reading: UsageReading | None = None
    is_whole = False
    """Whether `stated` is all that the response said: read from its headers as well. What such an
    error was made from is not read again."""

    def __init__(
        self,
        text: str,
        /,
        *,
        retryable: bool,
        status: int | None = None,
        stated: StatedWait | None = None,
        sent: bool = True,
        said: str = "",
        acceleration: bool = False,
    ) -> None:
        super().__init__(
            text,
            retryable=retryable,
            status=status,
            stated=stated,
            sent=sent,
            said=said,
            acceleration=acceleration,
        )


class ContextTooLongError(ProviderError):
    """A request was too long for its model: the provider refused it, or it was not sent at all.

    It is never retryable: the same request is as long the next time.
    """

    code = "context_too_long"


class ProviderStalledError(ProviderError):
    """The provider stopped sending: a byte, event or call deadline passed."""

    code = "provider_stalled"


class HeldError(AbeyanceError):
    """What was asked for was not done, or ended, because a model is held; see its own classes.

    Attributes: `model`; `provider`, as its adapter is called, where that is known; `cause`, what
    holds it; `deadline_ms`, epoch milliseconds until it does, or None where nobody says; `window`,
    the account's that is used up, where that is known; `of_quota`, whether it is an exhausted quota
    that holds it; `reading`, as that of a `ProviderError`.
    """

    code: ClassVar[str] = "held"
    model: str
    provider: str | None = None
    cause: str
    deadline_ms: int | None
    window: str | None = None
    of_quota: bool = False
    reading: UsageReading | None = None


def name_of(provider: object) -> str:
    """What a provider is called: by its own `name`, or its class's."""
    name = getattr(provider, "name", None)
    return name if isinstance(name, str) and name else type(provider).__name__


class PermitError(AbeyanceError):
    """A request had no unused permit; nothing was sent."""

    code = "no_permit"


class Permit:
    """Admission for exactly one provider call, made by an agent's gate."""

    __slots__ = ("agent", "id", "model", "purpose", "reading", "tokens", "used")

    def __init__(self, id: int, agent: str, model: str, purpose: str) -> None:  # noqa: A002
        self.id = id
        self.agent = agent
        self.model = model
        self.purpose = purpose
        self.used = False
        self.reading: UsageReading | None = None
        """What the call's response told of the account's usage windows, if it did."""
        self.tokens: Usage | None = None
        """What the call's response told of the tokens it used, so far."""


_permit: ContextVar[Permit | None] = ContextVar("abeyance_permit", default=None)


class permitted:  # noqa: N801 - reads as a word: `with permitted(permit):`
    """Carry a permit to the transport, for the calls made in this block.

    Not a checkpoint. The permit stays with its gate: whoever took it settles it.
    """

    def __init__(self, permit: Permit) -> None:
        self._permit = permit

    def __enter__(self) -> Permit:
        self._token = _permit.set(self._permit)
        return self._permit

    def __exit__(self, *exc: object) -> None:
        _permit.reset(self._token)


def use_permit() -> Permit:
    """Consume the context's permit, immediately before a request is sent.

    Raises:
        PermitError: There is none, or it was consumed before. Send nothing.
    """
    permit = _permit.get()
    if permit is None:
        raise PermitError(
            "no permit for this provider request; nothing was sent; ask the gate first"
        )
    if permit.used:
        raise PermitError(
            "this permit was used by an earlier request; nothing was sent; one permit, one request"
        )
    permit.used = True
    return permit


def note_usage(reading: UsageReading | None) -> None:
    """Keep what a response told of its account's usage windows with the context's permit.

    For adapters: of each response, refused ones too (`read_usage`). Not a checkpoint; raises
    nothing; without a permit, or a reading, nothing happens. Whose account it is, the runtime adds.
    """
    permit = _permit.get()
    if permit is not None and reading is not None:
        permit.reading = reading


def note_tokens(usage: Usage) -> None:
    """Keep what a response has told so far of the tokens that its call used.

    For adapters, whenever a stream tells: where the call fails or is cut off behind that, this is
    all that is known of it. Of a whole reply its own `usage` counts. Not a checkpoint; raises
    nothing; without a permit nothing happens.
    """
    permit = _permit.get()
    if permit is not None:
        permit.tokens = usage
