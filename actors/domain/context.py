"""Context strategies: what of a long slot requests carry. What a host implements, and sees.

A strategy keeps summaries beside the slot, each standing for all rows up to a place, and says of
each turn that starts which of them stands in its requests. The rows stay where they are.

Invariants:
    I1  A turn's view is chosen once, when it starts, and is the same in all its requests, through
        restarts; what is kept meanwhile is for turns that start later.
    I2  A summary stands only for rows that the agent's model has answered behind, and its last row
        is never a call whose results follow.
    I3  Whatever a strategy raises, or however long it takes, no turn waits for it, but for a call
        of its own that is out: for `COMPACTION_YIELD_MS` at most.

Called on the loop thread. One strategy may serve several agents at once: a fork has its resident's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from abeyance.actors.providers.port import ModelReply, ModelRequest

from .errors import InvalidSpecError
from .transcript import TranscriptMessage


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for the older rows of a slot. Durable, and never changed.

    Attributes:
        last: The place of the last row that it stands for: `TranscriptMessage.seq`.
        first: The place of the first one.
        text: What requests carry instead, as one message of a user; empty: nothing.
        strategy: The class that kept it.
        made_ms: When, in epoch milliseconds.
    """

    last: int
    first: int
    text: str
    strategy: str
    made_ms: int


@dataclass(frozen=True, slots=True)
class WaitRecorded:
    """A provider's stated wait binds a model of the agent. It is recorded, or offered to be.

    Attributes:
        agent: Whose.
        model: Which model.
        deadline_ms: Until when, in epoch milliseconds; None: until it is released.
        reason: What was stated.
    """

    agent: str
    model: str
    deadline_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class WaitReleased:
    """An operator released the agent's waits. Told of every valid release, also where none bound.

    Attributes:
        agent: Whose.
        model: Of which model; None: of every model.
    """

    agent: str
    model: str | None


@dataclass(frozen=True, slots=True)
class CallDeferred:
    """A call of the strategy's own was refused before it was made. It is no failed call.

    When what holds the model is over, `compact` is called again.

    Attributes:
        agent: Whose.
        model: Which model was asked for.
        cause: What holds it: `wait`, `unreadable`, `quota`, `cooldown`, `host` or `account`.
        deadline_ms: Until when, in epoch milliseconds; None: it has no end of its own.
        reason: Why.
    """

    agent: str
    model: str
    cause: str
    deadline_ms: int | None
    reason: str


ContextEvent: TypeAlias = WaitRecorded | WaitReleased | CallDeferred


class ContextDesk(Protocol):
    """What the runtime gives a strategy to compact with, for one call of `compact`."""

    agent: str
    slot: str
    model: str
    """The model of the agent's turns."""
    size: int | None
    """How many characters the last turn's requests came to; None before the first turn here."""
    too_long: bool
    """A turn waits whose request was too long for the model: it is compiled anew, once, when this
    call is over. What `size` says of it is no bound any more."""

    def summaries(self) -> Iterator[Summary]:
        """The summaries that stand, the newest first; each is read when it is asked for.

        One that cannot be read is passed over, and an alert is raised of it. Not a checkpoint.
        """

    def rows(self, *, after: int = 0) -> AsyncIterator[TranscriptMessage]:
        """The slot's messages behind a place, oldest first. A checkpoint a page."""

    def coverable(self) -> int:
        """The last place that a summary may stand for at most; 0: none yet. Not a checkpoint."""

    async def call(self, request: ModelRequest) -> ModelReply:
        """Ask the agent's provider, as an auxiliary call through the agent's gate.

        A checkpoint; waits while a turn is at work. Cancelled: a call that is out is abandoned.
        Retries nothing and waits for no hold.

        Raises:
            CallDeferredError: The model is held, or the agent paused; no call was made.
            CompactionAbandonedError: It took longer than it may; the call was abandoned.
            AdmissionClosedError: The agent was stopped or ended; no call was made.
            ProviderError: The call failed; the wait it stated binds this agent and model.
            InvalidInputError, InvalidNameError: Names the field; no call was made.
        """

    async def keep(self, text: str, *, last: int) -> Summary:
        """Have a text stand for all rows up to a place, in turns that start from now on.

        A checkpoint. Cancelled: it may have been kept, or be kept yet.
        Durable: on return. Where one stands for exactly these rows already, that one is returned.

        Args:
            text: Up to 1,000,000 characters; empty to leave the rows out.
            last: The place of the last row; at most `coverable()`, and no call whose results
                follow.
        Raises:
            InvalidInputError: Names the argument that is out of its bounds; nothing was kept.
            AgentEndedError, OwnershipLostError: Nothing was kept.
            NotStoredError: The commit failed; nothing was kept.
        """


@runtime_checkable
class ContextStrategy(Protocol):
    """Decides what of a long slot an agent's turns carry (`AgentSpec.context`).

    What its methods raise is logged, and the agent goes on: without a view it is sent the whole
    slot. The async ones run in tasks of their own, with a time limit; `view` must not block.
    """

    def view(self, summaries: Iterable[Summary]) -> Summary | None:
        """Choose what stands in the requests of a turn that starts now.

        Args:
            summaries: Those that stand, the newest first; each is read when it is asked for.
        Returns:
            One of them, or None for the whole slot.
        """

    async def compact(self, desk: ContextDesk) -> None:
        """Look whether the slot is to be compacted, and do it. Called when a turn is over or was
        put down, and when what deferred its last call has ended; one at a time for an agent.

        What a call of the desk raises may be raised on: a deferred one is tried again when the wait
        ends, a failed one after a pause.
        """

    async def on_wait_recorded(self, event: WaitRecorded) -> None:
        """A stated wait binds a model of the agent."""

    async def on_wait_released(self, event: WaitReleased) -> None:
        """An operator released waits of the agent, of one model or of all."""

    async def on_call_deferred(self, event: CallDeferred) -> None:
        """A call of this strategy was refused unmade."""


METHODS: Final = {
    "view": "the summaries that stand",
    "compact": "a ContextDesk",
    "on_wait_recorded": "a WaitRecorded",
    "on_wait_released": "a WaitReleased",
    "on_call_deferred": "a CallDeferred",
}


def check_strategy(strategy: Any) -> ContextStrategy | None:
    """Return what `AgentSpec.context` holds, or refuse it.

    Raises:
        InvalidSpecError: Names the method that is missing.
    """
    if strategy is None:
        return None
    if isinstance(strategy, type):
        raise InvalidSpecError("context", f"must be a strategy, not the class {strategy.__name__}")
    for method, argument in METHODS.items():
        if not callable(getattr(strategy, method, None)):
            raise InvalidSpecError(f"context.{method}", f"must be a function of {argument}")
    found: ContextStrategy = strategy
    return found
