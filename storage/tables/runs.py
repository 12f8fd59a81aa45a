"""Runs of workflows: what each has done, and what it waits for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name, Seq

RUN_KEY_BYTES_MAX: Final = 100
PATH_CHARS_MAX: Final = 300
VALUE_BYTES_MAX: Final = 262_144
TEXT_CHARS_MAX: Final = 2_000

Generation = Annotated[int, Meta(ge=1)]
Path = Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)]
"""Which step, and which item in it: their ids, the outer first, with a slash between."""
Folder = Annotated[str, Meta(min_length=1, max_length=300)]
Packed = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)]
"""One packed value of plain data."""
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]

RunState = Literal[
    "running",
    "waiting_for_capacity",
    "waiting_for_capacity_unknown",
    "resuming",
    "recovery_required",
    "completed",
    "failed",
    "cancelled",
]
Bucket = Literal[
    "live", "waiting", "joined", "unknown", "recovery", "completed", "failed", "cancelled"
]
"""`joined`: it waits for the end of an agent's turn, whose hold has its own alarm."""


class RunKey(Record, frozen=True, kw_only=True):
    """The newest run of a key. The row stays, so that no number of a run comes twice."""

    KIND = "run_key"
    generation: Generation
    is_open: bool
    """Whether that run may still go on; while it may, no other starts."""


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to go on with, which an operator chose."""

    provider: Name
    model: Name


class Suspension(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run waits for, where it stands, and what it met. Part of the run's own row."""

    provider: Name | None = None
    model: Name | None = None
    window: Name | None = None
    retry_at_ms: Instant | None = None
    """When capacity is there again, as it was stated; None: nobody said."""
    resume_after_ms: Instant | None = None
    """That and a buffer; None: only an operator resumes it."""
    told_by: Literal["windows", "error", "words", "wait"] | None = None
    path: Path
    ordinal: Seq
    """Which of the run's recorded steps and items it is, from 0."""
    place: Seq | None = None
    total: Seq | None = None
    """The how manieth item of its step it is, from 1, of how many; where the workflow said that."""
    phase: Literal["item", "session", "between", "final"] = "item"
    """What was under way: an item, the opening of a session, the workflow between two items, or a
    finaliser."""
    folder: Folder | None = None
    """The run's directory for what it makes, where it has one; inside the state directory."""
    agent: Name | None = None
    turn: Seq | None = None
    """The turn of that agent whose end it waits for, where the item is one."""
    session: Name | None = None
    """The handle of the provider's session that it stands inside, where there is one."""
    exact: bool = True
    """False: it stands inside a session that nothing resumes; only an operator takes it up."""
    attempt: Annotated[int, Meta(ge=1)]
    """The how manieth wall of this run."""
    failure: Text
    """What the provider said."""
    code: Name | None = None
    """The stable code of the error that said it, where it was one of ours."""
    since_ms: Instant


class Run(Record, frozen=True, kw_only=True):
    """One run: its state and, in the same row, what it waits for."""

    KIND = "run"
    workflow: Name
    version: Annotated[int, Meta(ge=1)]
    state: RunState
    params: Packed
    result: Packed | None = None
    reason: Text = ""
    """Why it failed, was cancelled, or cannot go on by itself."""
    doubt: Seq | None = None
    """The item in doubt that its author's policy left to an operator, while one is to decide."""
    suspension: Suspension | None = None
    threads: Seq = 0
    """Where it waits or needs an operator: functions of it that its workflow gave up and that were
    still in threads of its process, which nobody can end: while that lives, the run is its own."""
    choice: Choice | None = None
    schedule: Name | None = None
    """The schedule that started it, where one did."""
    due_ms: Instant | None = None
    """When that was due."""
    walls: Seq = 0
    """How often it met exhausted capacity."""
    lives: Annotated[int, Meta(ge=1)] = 1
    """How often it was begun or taken up."""
    started_ms: Instant
    changed_ms: Instant


class RunItem(Record, frozen=True, kw_only=True):
    """The k-th step or item of a run, in the order it asked for them."""

    KIND = "run_item"
    path: Path
    state: Literal["started", "done", "failed", "blocked", "cut_off"]
    """`blocked`: it met exhausted capacity, or an operator said that it had no effect; it is run
    again. `cut_off`: its workflow gave it up and went on, so it may have had its effect, as one
    that is `started` where nobody executes the run."""
    attempts: Annotated[int, Meta(ge=1)] = 1
    place: Seq | None = None
    total: Seq | None = None
    """As in `Suspension`."""
    agent: Name | None = None
    """Whose turn it is, where it is one: it is joined, and never in doubt."""
    session: Literal["opening", "open", "lost", "closed"] | None = None
    """Of a provider's session: its handle is the result. `started` and `open` has no handle; `lost`
    waits for an operator."""
    result: Packed | None = None
    error: Text = ""
    started_ms: Instant
    ended_ms: Instant | None = None


class RunTransition(Record, frozen=True, kw_only=True):
    """A run went from one state to another. History: nothing is decided by it."""

    KIND = "run_transition"
    before: RunState | None
    after: RunState
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant


class RunIndexed(Record, frozen=True, kw_only=True):
    """Where a run is found: one that may go on by what it waits for and until when, one that has
    ended by how and when."""

    KIND = "run_indexed"
    workflow: Name
