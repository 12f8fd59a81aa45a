"""What a runtime shows of itself: frozen snapshots, taken without asking any actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .domain.alert_book import SinkFigures
from .domain.mode import ModeStatus
from .domain.spent_reading import UsageLine
from .domain.wait_book import HoldCause, ProviderWait


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """What a held turn is held by."""

    model: str
    cause: HoldCause
    deadline_ms: int | None
    reason: str
    window: str | None = None
    """The account's usage window that is used up, where its provider named it."""
    of_quota: bool = False
    """Whether a quota is used up: no limit of so many calls a minute, and no pause."""


@dataclass(frozen=True, slots=True)
class UnrecordedStatus:
    """What the store refuses of an agent or a run for now. It is asked for again until it is
    stored, and nothing goes on behind it.

    Attributes:
        what: What cannot be recorded, in words: the hold of its turn, a reply.
        reason: Why the store refused it the last time.
        since_ms: When it did the first time.
    """

    what: str
    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Admission:
    """How an agent stands with its providers.

    Attributes:
        waits: The waits that bind it, by model; one whose record cannot be read is one of them.
        pending: How many statements and releases of it are not stored yet. They bind all the same.
        calls: How many provider calls are out.
    """

    waits: tuple[ProviderWait, ...]
    pending: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """What an agent takes of its host, and how much it may. Turns and threads are those of the
    agent, its conversations, and the ephemeral runs under its name.

    Attributes:
        inbox_bytes: Content that waits in its inbox; bytes as stored.
        turns: How many go on.
        turns_waiting: How many wait for one of those to end.
        turns_max: None: as many as there are.
        tool_threads: Sync functions that run, those included that nobody waits for any more.
    """

    inbox_messages_max: int
    inbox_bytes: int
    inbox_bytes_max: int
    message_bytes_max: int
    turns: int
    turns_waiting: int
    turns_max: int | None
    tool_threads: int
    tool_threads_max: int


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """One agent as it stands now. It is `unrecorded` where it waits for nothing but the store."""

    name: str
    state: Literal[
        "idle",
        "starting",
        "running",
        "unrecorded",
        "held",
        "quiesced",
        "stopping",
        "lost",
        "parked",
    ]
    model: str
    turn: int | None
    round: int
    attempts: int
    held: HeldStatus | None
    inbox: int
    wakes: int
    admission: Admission
    limits: LimitStatus
    unrecorded: UnrecordedStatus | None = None
    parked: str | None = None
    """Where it is parked, what its group crashed with, in one line."""


@dataclass(frozen=True, slots=True)
class AgentHealth:
    """One agent's health.

    Attributes:
        state: As in its status.
        model: The model it asks.
        can_call: Whether a call to that model would be admitted now, as far as waits go.
        held: What its turn is held by, or None.
        admission: How it stands with its providers.
        unrecorded: What the store refuses of it for now, or None.
    """

    state: str
    model: str
    can_call: bool
    held: HeldStatus | None
    admission: Admission
    unrecorded: UnrecordedStatus | None = None


@dataclass(frozen=True, slots=True)
class RuntimeStatistics:
    """Figures of a runtime.

    Attributes:
        agents: How many agents were added, by state.
        holds: How many turns are held, by cause.
        waits: How many waits are in force, of agents here or elsewhere.
        inbox: How many accepted messages are in no slot yet.
        wakes: How many wakes no turn answers yet; one that came twice counts once.
        requests: How many requests were handed to the store.
        commits: How many batches took at most so many seconds, from short to any, cumulated.
        commits_s: How long they took together, in seconds.
        alert_sinks: What each sink of alerts was given.
        spent: What calls of this process used since it was opened, by provider and model.
        dead_letters: How many are stored, as in `RuntimeStatus`; so is `quarantine`.
    """

    agents: dict[str, int]
    holds: dict[str, int]
    waits: int
    inbox: int
    wakes: int
    requests: int
    commits: tuple[tuple[float, int], ...]
    commits_s: float
    alert_sinks: tuple[SinkFigures, ...] = ()
    spent: tuple[UsageLine, ...] = ()
    dead_letters: int = 0
    quarantine: int = 0


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A snapshot of a runtime.

    `dead_letters` and `quarantine` count the rows that `Runtime.dead_letters()` and `quarantine()`
    list, whichever process made them. What this process recorded in the last moments may not be a
    row yet.
    """

    directory: str
    store_id: str
    pid: int
    host: str
    started_ms: int
    now_ms: int
    agents: tuple[AgentStatus, ...]
    waits: tuple[ProviderWait, ...]
    dead_letters: int
    quarantine: int
    mode: ModeStatus
