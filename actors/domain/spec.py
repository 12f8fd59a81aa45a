"""What a host says of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from abeyance.actors.providers.declaration import no_method
from abeyance.actors.providers.port import Provider

from .agent_limits import BOUNDS, DEFAULT_LIMITS, AgentLimits
from .budgets import Budget, check_budgets
from .context import ContextStrategy, check_strategy
from .errors import InvalidSpecError
from .ingress import check_agent_name, check_model
from .policy import ErrorPolicy, Pacing, ProviderHold
from .system_prompt import System, unfit
from .tools import Tool, check_tools
from .turn import TurnSettings

COUNT_MAX: Final = 1_000_000_000
"""Of rounds, and of a reply's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent: who answers for it, and with what.

    Args:
        name: Up to 128 bytes of UTF-8, without control characters; not `*` or `framework`.
        slot: The transcript it speaks in, by name; several agents of one process may share one, and
            their turns come one after the other. None is one of its own, under its own name. It
            stays the agent's until the agent is removed.
        provider: An adapter; it declares `carries_injections`.
        model: The provider's name of the model; not `*`.
        system: The system prompt: a text of at most 1,000,000 bytes of UTF-8, a function of the
            turn (`TurnInfo`), plain or async, that returns one, or None. It is decided once a
            compile and stored with the turn.
        tools: The functions its model may call.
        rounds_max: Requests one turn may make before it fails: 1 to 1,000,000,000.
        output_tokens_max: The bound of one reply, in tokens: 1 to 1,000,000,000.
        error_policy: What becomes of a failure that is worth retrying and states no wait. None
            tries four times with growing pauses of up to a minute.
        provider_hold: The host's own word on a failed call: how long the agent makes none. Or None.
        pacing: How long the agent pauses where an organisation's usage grew too fast.
        budgets: How much it may use in an hour, a day, a month or in all (docs/usage.md).
        inbox_messages_max: Messages that may wait in its inbox: 1 to 10,000.
        inbox_bytes_max: Their content together, in bytes as stored: up to 256 MiB.
        message_bytes_max: The content of one, in bytes as stored: up to 16 MiB.
        attachment_bytes_max: An attachment that one names: up to 32 MiB.
        turns_max: Turns that go on at once, of it, its conversations, and the ephemeral runs under
            its name; others wait. None: as many as there are.
        tool_threads_max: Sync functions of its that run in threads at once: 1 to 16, which is what
            all agents have together (docs/limits.md).
        context: What of a long transcript its requests carry (`CompactingContext`, or a
            strategy of the host's). None: the whole. An ephemeral run always carries the whole.
    Raises:
        InvalidSpecError, InvalidNameError, InvalidToolError: Names the field that is malformed.
    """

    name: str
    provider: Provider
    model: str
    slot: str | None = None
    system: System = None
    tools: Sequence[Tool] = field(default_factory=tuple)
    rounds_max: int = 100
    output_tokens_max: int = 4096
    error_policy: ErrorPolicy | None = None
    provider_hold: ProviderHold | None = None
    pacing: Pacing = field(default_factory=Pacing)
    context: ContextStrategy | None = None
    budgets: Sequence[Budget] = ()
    inbox_messages_max: int = DEFAULT_LIMITS.inbox_messages_max
    inbox_bytes_max: int = DEFAULT_LIMITS.inbox_bytes_max
    message_bytes_max: int = DEFAULT_LIMITS.message_bytes_max
    attachment_bytes_max: int = DEFAULT_LIMITS.attachment_bytes_max
    turns_max: int | None = None
    tool_threads_max: int = DEFAULT_LIMITS.tool_threads_max

    def __post_init__(self) -> None:
        settings_of(self)


def check_spec(spec: object) -> TurnSettings:
    """Return the settings of a specification's turns, or refuse it.

    Raises:
        InvalidSpecError, InvalidNameError, InvalidToolError: Names the field; nothing was done.
    """
    if not isinstance(spec, AgentSpec):
        raise InvalidSpecError("spec", f"must be an AgentSpec, not {type(spec).__name__}")
    # Again: what a sequence or an adapter holds may have been changed since it was made.
    return settings_of(spec)


def settings_of(spec: AgentSpec) -> TurnSettings:
    """As `check_spec`, of what is a specification."""
    check_agent_name(spec.name, "name")
    check_model(spec.model, "model")
    if spec.slot is not None:
        check_agent_name(spec.slot, "slot")
    if not isinstance(getattr(spec.provider, "carries_injections", None), bool):
        raise InvalidSpecError("provider.carries_injections", "must be declared as True or False")
    if not callable(getattr(spec.provider, "call", None)):
        raise InvalidSpecError("provider.call", "must be an async function")
    wrong = no_method(spec.provider)
    if wrong is not None:
        raise InvalidSpecError(f"provider.{wrong}", "must be a method, or not there")
    if spec.system is not None and not callable(spec.system):
        problem = unfit(spec.system)
        if problem is not None:
            raise InvalidSpecError("system", f"{problem}, or a function of a TurnInfo, or None")
    for name in ("rounds_max", "output_tokens_max"):
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
            raise InvalidSpecError(name, f"must be a whole number from 1 to {COUNT_MAX:,}")
    decide = getattr(spec.error_policy, "decide", None)
    if spec.error_policy is not None and not callable(decide):
        raise InvalidSpecError("error_policy.decide", "must be a function of a CallFailure")
    if spec.provider_hold is not None and not callable(spec.provider_hold):
        raise InvalidSpecError("provider_hold", "must be a function of a CallFailure, or None")
    if not isinstance(spec.pacing, Pacing):
        raise InvalidSpecError("pacing", f"must be a Pacing, not {type(spec.pacing).__name__}")
    return TurnSettings(
        name=spec.name,
        slot=spec.name if spec.slot is None else spec.slot,
        provider=spec.provider,
        model=spec.model,
        system=spec.system,
        tools=check_tools(spec.tools),
        rounds_max=spec.rounds_max,
        output_tokens_max=spec.output_tokens_max,
        error_policy=spec.error_policy,
        provider_hold=spec.provider_hold,
        pacing=spec.pacing,
        context=check_strategy(spec.context),
        budgets=check_budgets(spec.budgets),
        limits=_limits(spec),
    )


def _limits(spec: AgentSpec) -> AgentLimits:
    stated = {name: getattr(spec, name) for name in BOUNDS}
    for name, value in stated.items():
        if name == "turns_max" and value is None:
            continue
        if type(value) is not int or not 1 <= value <= BOUNDS[name]:
            raise InvalidSpecError(name, f"must be a whole number from 1 to {BOUNDS[name]:,}")
    return AgentLimits(**stated)
