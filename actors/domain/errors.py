"""Errors of the agent domain, sorted by what is still true when one is raised."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from abeyance.actors.core.errors import AbeyanceError, OutcomeUnknownError
from abeyance.actors.providers.port import HeldError, ProviderError
from abeyance.storage.errors import StoreLostError
from abeyance.storage.store import NotStored


class InvalidInputError(AbeyanceError, ValueError):
    """A caller's value is malformed. Nothing happened.

    Attributes: `field`, the path of the value that was refused.
    """

    code: ClassVar[str] = "invalid_input"
    field: str

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}; nothing was done; correct {field} and call again")
        self.field = field
        self.problem = problem

    def within(self, place: str) -> Self:
        """The same refusal, of a value that stands inside another one."""
        return type(self)(f"{place}.{self.field}", self.problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return AbeyanceError.__reduce__(self)


class InvalidNameError(InvalidInputError):
    """A name is empty, too long, reserved, or carries control characters."""

    code = "invalid_name"


class InvalidMessageError(InvalidInputError):
    """A message or one of its blocks does not fit the schema."""

    code = "invalid_message"


class MessageTooLargeError(InvalidMessageError):
    """A message has more bytes than its agent takes. It was not accepted and is handed back.

    Attributes: `field`; `messages`, a `Draft` each, as they were to be sent; `size` and `limit`, in
    bytes of content as it is stored.
    """

    code = "message_too_large"
    messages: tuple[Any, ...] = ()
    size: int
    limit: int

    def __init__(self, field: str, size: int, limit: int) -> None:
        super().__init__(field, f"must be at most {limit} bytes, not {size}")
        self.size = size
        self.limit = limit

    def within(self, place: str) -> Self:
        return type(self)(f"{place}.{self.field}", self.size, self.limit)


class UnknownAttachmentError(InvalidMessageError):
    """A block names bytes that are not stored here, or not as it says. Nothing was stored.

    Attributes: `field`.
    """

    code = "unknown_attachment"


class AttachmentTooLargeError(InvalidInputError):
    """Bytes to attach are more than may be. Nothing was stored.

    Attributes: `field`; `size` and `limit`, in bytes.
    """

    code = "attachment_too_large"
    size: int
    limit: int

    def __init__(self, field: str, size: int, limit: int) -> None:
        super().__init__(field, f"must be at most {limit} bytes, not {size}")
        self.size = size
        self.limit = limit

    def within(self, place: str) -> Self:
        return type(self)(f"{place}.{self.field}", self.size, self.limit)


class InvalidToolError(InvalidInputError):
    """A tool's name, schema, function or policy is malformed."""

    code = "invalid_tool"


class InvalidSpecError(InvalidInputError):
    """An agent specification is malformed."""

    code = "invalid_spec"


class UnknownAgentError(AbeyanceError):
    """No agent of that name here, and no wait of one is on record. Nothing was done."""

    code = "unknown_agent"
    agent: str


def unknown_agent(agent: str) -> UnknownAgentError:
    """What is told of a name that no agent of a store has."""
    return UnknownAgentError(
        f"no agent {agent!r} is in this store; nothing was done; see the status for the names "
        "there are",
        agent=agent,
    )


class AgentEndedError(AbeyanceError):
    """The agent was removed, or its conversation closed. Nothing was done; what was stored stays.

    Attributes: `agent`.
    """

    code = "agent_ended"
    agent: str


class NotPermittedError(AbeyanceError):
    """The host's admin gate did not let this act pass. Nothing was done."""

    code = "not_permitted"
    verb: str
    agent: str


class AgentExistsError(AbeyanceError):
    """An agent of that name was added to this runtime before. Nothing was done."""

    code = "agent_exists"
    agent: str


class AgentOwnedElsewhereError(AbeyanceError):
    """A live process owns that agent or its slot. Nothing was done.

    Attributes: `agent`, `pid`, `host`.
    """

    code = "agent_owned_elsewhere"
    agent: str
    pid: int
    host: str


class OwnershipLostError(AbeyanceError):
    """Another process took this slot over. Nothing was stored; earlier commits stand."""

    code = "ownership_lost"
    slot: str


class MessageConflictError(AbeyanceError):
    """That message id is already used for other content. Nothing was stored."""

    code = "message_conflict"
    id: str


class MessageReadError(AbeyanceError):
    """A message cannot be taken back: it was read, or may be any instant. Nothing was done.

    Attributes: `id`; `reading`, how far: `read` (a request that carried it was sent, or may have
    been), `in_flight` (a live turn's request carries it), `forked` (a conversation began with it).
    """

    code = "message_read"
    id: str
    reading: str


class InboxFullError(AbeyanceError):
    """The inbox is at its bound, or at its agent's. What was to be sent was not accepted and is
    handed back.

    Attributes: `messages`, a `Draft` each, as they were to be sent; `rows`, `rows_max`, `bytes`,
    `bytes_max`, what is in the inbox and what it takes; `agent`, whose own bound it is, or None
    where it is the slot's.
    """

    code = "inbox_full"
    messages: tuple[Any, ...] = ()
    rows: int
    rows_max: int
    bytes: int
    bytes_max: int
    agent: str | None


class BatchTooLargeError(AbeyanceError):
    """A batch does not fit in one commit of the store. None of it was accepted; it is handed back.

    Attributes: `messages`, a `Draft` each; `what` it has too many of (`messages`, `operations` of
    the store, or `bytes`), `size`, and `limit`.
    """

    code = "batch_too_large"
    messages: tuple[Any, ...] = ()
    what: str
    size: int
    limit: int


class NotStoredError(AbeyanceError):
    """The commit failed and nothing of it is stored. `__cause__` says why."""

    code = "not_stored"


class LeaseLostError(AbeyanceError):
    """This turn no longer holds its slot's lease. Nothing was stored."""

    code = "lease_lost"
    turn: int


class UnknownMessageError(AbeyanceError):
    """No such message in the transcript; what was rewound is not in it. Nothing was done."""

    code = "unknown_message"
    slot: str


class RewindRefusedError(AbeyanceError):
    """The transcript cannot be rewound so, or the rewind not undone. Nothing was done."""

    code = "rewind_refused"
    slot: str


class EditRefusedError(AbeyanceError):
    """An operator's edit, or its undo, would not fit the transcript as it is. Nothing was changed.

    Attributes: `slot`; `reason`: `leased` (a turn or a tool pair lives on it), `pair` (half of a
    tool call and its results), `asked` (a turn is asked for by it), `marker` (the runtime's own
    note), `full` (as many edits are kept as may be), and of an undo `unknown` (nothing of it is
    kept), `undone` or `superseded` (the message is something else since).
    """

    code = "edit_refused"
    slot: str
    reason: str


class RunExhaustedError(HeldError):
    """An ephemeral run met a wait that it does not sleep. It is over and made no further call.

    Attributes: `agent`, the run's name; `model`; `provider`; `cause`; `deadline_ms`, the instant at
    which it may be run again, in epoch milliseconds, and `stated_ms`, how long that was when it
    ended, both None where the hold has no end of its own; `sleep_max_ms`, what a run would sleep.
    """

    code = "run_exhausted"
    agent: str
    model: str
    cause: str
    deadline_ms: int | None
    stated_ms: int | None
    sleep_max_ms: int


class RunFailedError(AbeyanceError):
    """An ephemeral run's turn failed. It is over; its slot has what it said.

    Attributes: `agent`, the run's name.
    """

    code = "run_failed"
    agent: str


class RunInterruptedError(AbeyanceError):
    """An ephemeral run was ended by a stop, or by the end of its actors; it is not taken up again.

    Attributes: `agent`, the run's name.
    """

    code = "run_interrupted"
    agent: str


class AdmissionClosedError(AbeyanceError):
    """The agent starts no more provider calls: it was stopped or ended. No call was made.

    Attributes: `agent`.
    """

    code = "admission_closed"
    agent: str


class CallDeferredError(ProviderError, HeldError):
    """A call was refused before it was made: the model is held, or the agent is paused.

    It is a retryable rate limit that says how long, and no failure of a call: a caller that counts
    failures or paces itself counts nothing and waits. Raised for auxiliary calls; a turn is held.

    Attributes: `agent`, `model`, `provider`; `cause`, what holds it; `deadline_ms`, the instant
    until which it does, and `retry_after_ms`, how long that is from now, both None where it has no
    end of its own; `deferred`, always True.
    """

    code = "call_deferred"
    deferred: ClassVar[bool] = True
    agent: str
    model: str
    cause: str
    deadline_ms: int | None
    retry_after_ms: int | None

    def __init__(
        self,
        *,
        agent: str,
        model: str,
        cause: str,
        reason: str,
        deadline_ms: int | None,
        now_ms: int,
        provider: str | None = None,
        window: str | None = None,
        of_quota: bool = False,
    ) -> None:
        left_ms = None if deadline_ms is None else max(0, deadline_ms - now_ms)
        ends = "until it is released" if left_ms is None else f"for another {left_ms} ms"
        super().__init__(
            f"model {model!r} is held for agent {agent!r} {ends} ({cause}: {reason}); no call was "
            "made; call again then",
            retryable=True,
            status=429,
            sent=False,
            said=reason,
        )
        self.agent, self.model, self.cause, self.provider = agent, model, cause, provider
        self.window, self.of_quota = window, of_quota
        self.deadline_ms, self.retry_after_ms = deadline_ms, left_ms


class CompactionAbandonedError(AbeyanceError):
    """A context strategy's call took longer than it may, or an edit was faster than its summary.

    Nothing was kept.

    Attributes: `agent`.
    """

    code = "compaction_abandoned"
    agent: str


class UnknownApprovalError(AbeyanceError):
    """No tool call of that id waits for a person, or ever did. Nothing was done.

    Attributes: `id`.
    """

    code = "unknown_approval"
    id: str


class ApprovalDecidedError(AbeyanceError):
    """A tool call was decided otherwise before, or its turn has ended. Nothing was changed.

    Attributes: `id`; `state`: `approved`, `denied`, or `over` where its turn has ended undecided;
    `by`, who decided, or None.
    """

    code = "approval_decided"
    id: str
    state: str
    by: str | None


class UnknownOutboxError(AbeyanceError):
    """No outbox of that name was ever begun, or it was removed. Nothing was done.

    Attributes: `name`.
    """

    code = "unknown_outbox"
    name: str


class OutboxBusyError(AbeyanceError):
    """Somebody else reads that outbox: in this process, or in one that lives. Nothing was done.

    Attributes: `name`; `pid` and `host` of the process.
    """

    code = "outbox_busy"
    name: str
    pid: int | None
    host: str | None


class OutboxLostError(AbeyanceError):
    """This reader of an outbox is none any more: it was closed, or another process has the outbox.

    Nothing was stored: what was acknowledged before stands, the rest is given again.

    Attributes: `name`.
    """

    code = "outbox_lost"
    name: str


class UnknownProviderError(AbeyanceError):
    """No provider of that name was added to this runtime. Nothing was done.

    Attributes: `provider`.
    """

    code = "unknown_provider"
    provider: str


class SummaryRefusedError(AbeyanceError):
    """What a model answered is no summary: it is blank, cut off, or a refusal. Nothing was kept.

    Attributes: `stop`, why the reply ended.
    """

    code = "summary_refused"
    stop: str


class AgentParkedError(AbeyanceError):
    """The agent crashed too often and is parked. Nothing was done; what was accepted stays."""

    code = "agent_parked"
    agent: str


class QuiescedError(AbeyanceError):
    """The host is quiesced and starts no turn. Nothing was done; resume it, then ask again."""

    code = "quiesced"
    reason: str


class ResumedError(AbeyanceError):
    """The host was resumed while it was being quiesced. It serves; turns that live live on."""

    code = "resumed"


class RuntimeClosedError(AbeyanceError):
    """The runtime has ended. Nothing was done; open the store again."""

    code = "runtime_closed"


def not_stored(outcome: NotStored) -> NotStoredError | OutcomeUnknownError:
    """The error that a sender raises for a request whose commit failed.

    A store that was lost with the batch out may hold it: that shows at its next opening.
    """
    error: NotStoredError | OutcomeUnknownError
    if isinstance(outcome.error, StoreLostError):
        error = OutcomeUnknownError(
            f"the store was lost while the commit was out ({outcome.error}); it is stored whole or "
            "not at all; open the store again, and send again under the same id"
        )
        error.__cause__ = outcome.error
        return error
    error = NotStoredError(
        f"the commit failed ({outcome.error}); nothing of it is stored, earlier commits stand; see "
        "the cause, mend it, and send again"
    )
    error.__cause__ = outcome.error
    return error
