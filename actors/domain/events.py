"""Events of agents: what happened to their turns, holds and waits, and to the commits beneath.

Emitted by the actor that did it, through the system's hub (`core.events`); each class says whether
the store has it by then. For looking only: nothing of the runtime is decided by an event.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from abeyance.actors.core import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent(Event):
    """Something happened to an agent.

    Attributes:
        agent: Its name.
    """

    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(AgentEvent):
    """A turn's task starts; the turn's row says so. Again after a hold, or after a crash.

    Each is followed by one `TurnEnded` of the same turn before the agent's next one.

    Attributes:
        turn: The turn's number.
        round: The rounds it has recorded.
        attempts: Which life of its task, from 1, since it last recorded a round.
        model: The model it asks.
    """

    kind: ClassVar[str] = "turn_started"
    turn: int
    round: int
    attempts: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(AgentEvent):
    """A turn's task is over; the turn's row says so.

    What was begun at `TurnStarted`, such as showing that the agent writes, ends here.

    Attributes:
        turn: The turn's number.
        round: The rounds it recorded.
        state: `done`, `failed` or `cancelled`; `held` where it was put down and goes on later;
            `interrupted` where its task died, and the turn goes on in another one.
    """

    kind: ClassVar[str] = "turn_ended"
    turn: int
    round: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReplaced(AgentEvent):
    """A newer message of its subject has an unread one's place; the store says so.

    Attributes:
        id: The one that is replaced.
        by: The newer one.
    """

    kind: ClassVar[str] = "message_replaced"
    id: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetracted(AgentEvent):
    """A message was taken back before it was read; the store says so.

    Attributes:
        id: The message.
    """

    kind: ClassVar[str] = "message_retracted"
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBegan(AgentEvent):
    """A turn was put down; the turn's row says so.

    Attributes:
        turn: The turn's number. None for a hold that stood when the agent was added.
        model: The model it waits for.
        cause: `wait`, `unreadable`, `quota`, `cooldown`, `host`, `account` or
            `approval`.
        deadline_ms: When it ends. None where only a release ends it, or for one that stood already:
            the wait that it names has it.
        reason: What was stated.
        window: The account's usage window that is used up, where its provider named it.
        of_quota: Whether a quota is used up. Of a wait that stood already, the wait that it names
            says both.
    """

    kind: ClassVar[str] = "hold_began"
    turn: int | None
    model: str
    cause: str
    deadline_ms: int | None
    reason: str
    window: str | None = None
    of_quota: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEnded(AgentEvent):
    """Nothing holds the turn any more, and it is asked for again.

    Attributes:
        model: The model it waited for.
        cause: What held it.
    """

    kind: ClassVar[str] = "hold_ended"
    model: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRefused(AgentEvent):
    """The store refuses what an agent is to record; the store has none of it. It is asked again.

    Attributes:
        what: What cannot be recorded, in words.
        reason: Why, the first time.
        since_ms: Since when.
    """

    kind: ClassVar[str] = "recording_refused"
    what: str
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingResumed(AgentEvent):
    """The store has what it had refused of an agent, or nobody asks for it any more."""

    kind: ClassVar[str] = "recording_resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRecorded(AgentEvent):
    """A stated wait is in the store. It bound in this process before.

    Attributes:
        model: The model that is waited for.
        deadline_ms: When it ends; None where only a release ends it.
        reason: What was stated.
    """

    kind: ClassVar[str] = "wait_recorded"
    model: str
    deadline_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReleased(AgentEvent):
    """The release of a wait is in the store.

    Attributes:
        model: The model.
        by: Who released it.
    """

    kind: ClassVar[str] = "wait_released"
    model: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRaised(AgentEvent):
    """An operator should know of something; the store has it, unless it has no number yet.

    Attributes:
        alert: The alert's number. None where the store could not take it.
        about: The alert's kind: `provider_wait`, `agent_parked`, `transcript_unreadable`,
            `turn_died` or `system_prompt`.
        model: The model, or `*`.
        deadline_ms: When what it tells of ends; None: not by itself.
        text: What there is to know, and what can be done.
    """

    kind: ClassVar[str] = "alert_raised"
    alert: int | None
    about: str
    model: str
    deadline_ms: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRewound(AgentEvent):
    """Rows of an agent's transcript were taken out; the store has it.

    Attributes:
        first: The first place.
        last: The last place.
        by: Who did it.
    """

    kind: ClassVar[str] = "slot_rewound"
    first: int
    last: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindUndone(SlotRewound):
    """What a rewind had taken out is part of the transcript again; the store has it."""

    kind: ClassVar[str] = "rewind_undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEdited(AgentEvent):
    """A row of an agent's transcript has other words, or was taken out; the store has it.

    Attributes:
        id: The message's id.
        edit: The edit's number.
        seq: The message's place.
        by: Who did it.
    """

    kind: ClassVar[str] = "message_edited"
    id: str
    edit: int
    seq: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditUndone(MessageEdited):
    """A row of an agent's transcript is as it was before an edit; the store has it."""

    kind: ClassVar[str] = "edit_undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuiesced(Event):
    """Turns start no more, in any process of the directory; the store has it.

    Attributes:
        reason: Why.
        by: Who asked.
    """

    kind: ClassVar[str] = "host_quiesced"
    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDrained(Event):
    """No turn lives any more in this process; each one's row says how it ended, or that it is held.

    Attributes:
        abandoned: The agents whose turn was ended at the window's end.
    """

    kind: ClassVar[str] = "host_drained"
    abandoned: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResumed(Event):
    """Turns start again; the store has it.

    Attributes:
        by: Who asked.
    """

    kind: ClassVar[str] = "host_resumed"
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextKept(AgentEvent):
    """What stands for older rows in turns that start from now on was kept; the store has it.

    Attributes:
        first: The first place that it stands for.
        last: The last place.
        size: How many characters it has.
    """

    kind: ClassVar[str] = "context_kept"
    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecordingRefused(Event):
    """The store refuses what of a run is to be recorded; it has none of it. It is asked again.

    Attributes:
        run: Its id.
        what: What cannot be recorded, in words.
        reason: Why, the first time.
        since_ms: Since when.
    """

    kind: ClassVar[str] = "run_recording_refused"
    run: str
    what: str
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecordingResumed(Event):
    """The store has what it had refused of a run, or nobody asks for it any more."""

    kind: ClassVar[str] = "run_recording_resumed"
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged(Event):
    """A run of a workflow is in another state now; the store has it.

    Attributes:
        run: Its id.
        state: `running`, `waiting_for_capacity`, `waiting_for_capacity_unknown`, `resuming`,
            `recovery_required`, `completed`, `failed` or `cancelled`; `lost` where this process
            found that another one has it.
    """

    kind: ClassVar[str] = "run_changed"
    run: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOccurred(Event):
    """It was decided what becomes of an occurrence of a schedule; the store has it.

    Attributes:
        schedule: Its name.
        due_ms: When it was due; of several that were missed the first.
        outcome: `started`, `skipped` or `missed`.
        run: The run that was started, or that kept it from starting.
    """

    kind: ClassVar[str] = "schedule_occurred"
    schedule: str
    due_ms: int
    outcome: str
    run: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOverdue(Event):
    """A commit has been out for longer than `OVERDUE_S`. Once a commit.

    Attributes:
        requests: How many requests it holds.
        outstanding_ms: For how long, when it was noticed.
    """

    kind: ClassVar[str] = "commit_overdue"
    requests: int
    outstanding_ms: int
