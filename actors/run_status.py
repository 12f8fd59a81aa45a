"""A run as whoever looks sees it: frozen snapshots of its rows, and its line for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from .domain.run_rows import ENDED, LIVE, WAITING
from .status import UnrecordedStatus

RunStateName = Literal[
    "running",
    "waiting_for_capacity",
    "waiting_for_capacity_unknown",
    "resuming",
    "unrecorded",
    "recovery_required",
    "completed",
    "failed",
    "cancelled",
    "unreadable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run as its row says. Instants are epoch milliseconds.

    `provider`, `model`, `window`, `retry_at_ms` and `resume_after_ms` say what a waiting run waits
    for, `code` the error that told it, and `agent` whose held turn, where it is one. `step` and
    `steps_done` say where it stands, `place` the how manieth of the `total` items of its step,
    where that was said; `phase` of a waiting run whether that is an `item`, the opening of a
    `session`, `between` two items, or a finaliser (`final`); `folder` its directory inside the
    state directory, as long as there is one, also once it has ended. `needs_decision`: only a
    decision on its item in doubt takes it up. It is `unrecorded` where it is live and waits for
    nothing but the store. `walls` is how often it met exhausted capacity;
    `reason` why it waits, failed, or cannot go on by itself.
    """

    id: str
    key: str
    workflow: str
    version: int
    state: RunStateName
    reason: str
    step: str | None
    steps_done: int
    place: int | None
    total: int | None
    provider: str | None
    model: str | None
    window: str | None
    retry_at_ms: int | None
    resume_after_ms: int | None
    agent: str | None
    walls: int
    lives: int
    fallback: tuple[str, str] | None
    started_ms: int
    changed_ms: int
    result: Any
    schedule: str | None = None
    """The schedule that started it, and when that was due."""
    due_ms: int | None = None
    unreadable: str | None = None
    """Why its row cannot be read, which is its state then, or its result."""
    phase: str | None = None
    folder: str | None = None
    needs_decision: bool = False
    quiesced: bool = False
    """Whether it has not ended and its host is quiesced: nothing takes it up until that ends."""
    code: str | None = None
    session: str | None = None
    """The handle of the provider's session that a waiting run stands inside."""
    executed: bool | None = None
    """Whether a process executes it now; None until whoever looks has found out."""

    given_up: str | None = None
    """Why the host that was asked takes it up no more, though it is live in its row: what that row
    says, or what it came to, could not be read or recorded. `resume_run` has it try again, and so
    does a host that starts."""

    unrecorded: UnrecordedStatus | None = None
    """What of it the store refuses for now: what it came to, or that this host takes it up. It goes
    on by itself once the store records that."""
    owner_pid: int | None = None
    """The process that executes it, or died over it (see `executed`); None where no life of it is
    under way."""
    owner_host: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def text(self, zone: Any = None) -> str:
        """One line for people; instants in a zone (a `tzinfo`), or in this machine's own."""
        if self.unrecorded is not None:
            title = "Interrupted" if self.state == "running" else self.title
            what = f"the store records {self.unrecorded.what}"
            since = f"refused since {local_minute(self.unrecorded.since_ms, zone)}"
            return f"{title} \u00b7 goes on once {what}, {since}: {self.unrecorded.reason}"
        if self.given_up is not None and self.executed is False and self.state in LIVE:
            what = "Interrupted" if self.state == "running" else self.title
            when = "when somebody resumes it (abeyance resume) or a host starts"
            return f"{what} \u00b7 given up here, goes on {when}: {self.given_up}"
        serves = "the quiesced host serves again (abeyance quiesce DIR --end)"
        if self.executed is False and self.state in LIVE:
            when = serves if self.quiesced else "a process that has its workflow finds it"
            what = "Interrupted" if self.state == "running" else self.title
            return f"{what} \u00b7 goes on when {when}"
        if self.state not in WAITING:
            # What it waited for before it was taken up is over.
            why = f": {self.reason}" if self.reason and self.state not in LIVE else ""
            return f"{self.title}{why}"
        once = f", once {serves}" if self.quiesced else ""
        if self.resume_after_ms is None:
            return f"{self.title} \u00b7 until somebody resumes it{once}"
        return f"{self.title} \u00b7 resumes after {local_minute(self.resume_after_ms, zone)}{once}"

    @property
    def title(self) -> str:
        """Its state for people; of a run that waits, for whose capacity and of which window."""
        if self.state not in WAITING:
            return self.state.replace("_", " ").capitalize()
        what = self.provider or self.model or "provider"
        window = f" ({self.window})" if self.window else ""
        return f"Waiting for {what} capacity{window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One recorded item of a run, in the order they were asked for."""

    path: str
    state: Literal["started", "done", "failed", "blocked", "cut_off"]
    """`cut_off`: its workflow gave it up and went on; it may have had its effect."""
    attempts: int
    result: Any
    error: str
    agent: str | None
    """Whose turn it is, where it is one."""
    started_ms: int
    ended_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStepped:
    """One change of a run's state. `before` is None for its start."""

    before: RunStateName | None
    after: RunStateName
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReceipt:
    """What an operator's verb came to: the run's id and state, and whether this call changed it.

    `threads`: how many sync functions of a run that was cancelled are still in their threads here,
    which nobody can end. What they come to is not recorded.
    """

    id: str
    state: RunStateName
    changed: bool
    threads: int = 0


def local_minute(at_ms: int, zone: Any) -> str:
    """An instant to the minute in a zone, or in this machine's own. Rounded up: a time that is read
    must not be before the one that binds."""
    at_ms = -(-at_ms // 60_000) * 60_000
    try:
        at = datetime.fromtimestamp(at_ms / 1_000, tz=zone).astimezone(zone)
    except (OverflowError, OSError, ValueError):
        from .providers.instants import render_instant

        return render_instant(at_ms)
    return f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".rstrip()
