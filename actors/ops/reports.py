"""What the answers of a control socket carry, and what a stopped store is reported in: plain data.

A structure that mirrors one of the runtime has its fields by the same names. `run_reports` has
those of runs.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class HeldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What stops a held turn."""

    model: str
    cause: str
    deadline_ms: int | None
    reason: str
    window: str | None = None
    """The account's usage window that is used up, where its provider named one."""
    of_quota: bool = False


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """One binding wait. `deadline_ms` is None where only a release ends it."""

    agent: str
    model: str
    deadline_ms: int | None
    reason: str
    set_ms: int
    window: str | None = None
    """The account's usage window that is used up, where its provider named one."""
    of_quota: bool = False
    pending: bool = False
    """It binds in its host, and the store has not taken it yet."""


class AdmissionReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent stands with its providers: what binds it, and how much of that is not stored
    yet (of a stopped store: nothing) and how many calls are out."""

    waits: tuple[WaitReport, ...]
    pending: int
    calls: int


class LimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent takes of its host, and how much it may."""

    inbox_messages_max: int
    inbox_bytes: int
    inbox_bytes_max: int
    message_bytes_max: int
    turns: int
    turns_waiting: int
    turns_max: int | None
    tool_threads: int
    tool_threads_max: int


class UnrecordedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the store refuses of an agent or a run, why the last time, and since when."""

    what: str
    reason: str
    since_ms: int


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. `turn`, `round` and `attempts` describe its open turn, or are None."""

    name: str
    state: str
    model: str
    turn: int | None
    round: int | None
    attempts: int | None
    held: HeldReport | None
    inbox: int
    wakes: int
    admission: AdmissionReport | None = None
    """None: the host is of a version that does not say."""
    limits: LimitReport | None = None
    """None: a store says it, or a host of a version that does not say."""
    pid: int | None = None
    """The process that runs it; None for what a store says."""
    unrecorded: UnrecordedReport | None = None
    """What the store refuses of it for now. None: nothing, or a store says it."""
    parked: str | None = None
    """Where it is parked, what it crashed with. None: it is not, or a store says it."""


class ModeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether turns start: `serving`, `draining` or `quiesced`; why not, and since when."""

    state: str
    reason: str
    by: str
    since_ms: int | None


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process that hosts agents of the directory."""

    pid: int
    started_ms: int | None


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a directory, or a store whose host serves no socket (`pid` and `started_ms` are
    None). Of several hosts, both are the first's."""

    directory: str
    store_id: str
    pid: int | None
    started_ms: int | None
    agents: tuple[AgentReport, ...]
    waits: tuple[WaitReport, ...]
    dead_letters: int
    quarantine: int
    open_pids: tuple[int, ...] = ()
    """Of a store whose host serves no socket: the live processes that have it open all the same; 0
    for one whose pid cannot be read."""
    hosts: tuple[HostReport, ...] = ()
    """Those that answered; the agents are theirs."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer: what they run is not here."""
    mode: ModeReport | None = None
    """None: the host is of a version that does not say."""


class FindingReport(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a store. `key` is the row's, as text."""

    problem: str
    table: str
    key: str
    text: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What reading every row of a store came to."""

    directory: str
    rows: int
    findings: tuple[FindingReport, ...]
    open_pids: tuple[int, ...]
    """Processes that may have written meanwhile: then a dangling row may be none. Look again."""
    set_aside: tuple[SetAsideReport, ...] = ()
    """What repairs set aside and nobody put back; the newest, at most 1,000."""
    set_aside_rows: int = 0
    """How many there are."""


class SetAsideReport(msgspec.Struct, frozen=True, kw_only=True):
    """A row that a repair took out or replaced. `then` says what that means."""

    id: int
    repair: str
    table: str
    key: str
    replaced: bool
    reason: str
    then: str
    at_ms: int


class StayingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair left as it was, and why; `key` is the row's, as text."""

    table: str
    key: str
    text: str
    why: str


class StoreRepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair came to."""

    directory: str
    repair: str
    rows: int
    """How many were set aside."""
    stays: tuple[StayingReport, ...]
    findings: tuple[FindingReport, ...]
    """What a check still finds."""
    backup: str | None
    """Where the copy from before is; None: nothing was to be done, and none was made."""


class FormatReport(msgspec.Struct, frozen=True, kw_only=True):
    """The format of a store, and what a migration to the newest one would write."""

    directory: str
    store: int
    data: int
    """Less than `store`: a migration was begun and is not over."""
    newest: int
    rows: dict[str, int]
    unreadable: int


class MigratedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration came to."""

    directory: str
    before: int
    after: int
    rows: int
    backup: str | None
    """Where the copy from before is; None: nothing was to be done, and none was made."""


class UndoRepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What putting a repair's rows back came to."""

    directory: str
    repair: str
    rows: int
    stays: tuple[SetAsideReport, ...]
    """Rows in whose place something else was written since; they stay set aside."""


class ForgottenReport(msgspec.Struct, frozen=True, kw_only=True):
    """What deleting the rows that repairs set aside came to."""

    directory: str
    rows: int
    backup: str | None
    """Where the copy from before is; None: nothing was set aside, and none was made."""


class WaitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `waits`."""

    waits: tuple[WaitReport, ...]


class ReleasedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One lifted wait. `recorded` survives a restart; `pending` binds here and is not in yet."""

    agent: str
    model: str
    reach: str


class ReleaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a release lifted; empty where nothing of that scope was binding."""

    released: tuple[ReleasedReport, ...]
    nothing: str | None = None
    """In words, where nothing was lifted: a model's name may have been mistyped, which is no error.
    None: something was, or the host is of a version that does not say."""


def nothing_lifted(agent: str, left: Sequence[WaitReport]) -> str:
    """What is said of a release that lifted nothing, where these waits bind all the same."""
    binding = f" What binds it is on {', '.join(wait.model for wait in left)}." if left else ""
    return f"No wait of {agent} was binding in that scope; nothing to release.{binding}"


class RewindReport(msgspec.Struct, frozen=True, kw_only=True):
    """The places between which lay what a rewind took out, or an undo put back; None: nothing."""

    first: int | None
    last: int | None


class CancelTurnReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn stands that was to be cancelled. Mirrors `domain.slot_cancel.CancelReceipt`."""

    turn: int | None
    state: str


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent asks from its next turn on. Mirrors `domain.chosen_model.ModelReceipt`."""

    model: str
    provider: str | None
    was: str


class EditReport(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that was made, or undone. Mirrors `domain.slot_messages.EditReceipt`."""

    edit: int
    id: str
    seq: int


class EditRowReport(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that is kept. Mirrors `domain.edit_rows.EditRow`."""

    edit: int
    id: str
    seq: int
    does: str
    was: str | None
    """The words it replaced, as JSON text of blocks, cut off at 2,000 characters; None where they
    cannot be read."""
    by: str
    at_ms: int
    undone_by: str | None
    undone_ms: int | None


class EditsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `edits`."""

    edits: tuple[EditRowReport, ...]


class QuiesceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a quiesce, or its end, came to in every host that answered."""

    state: str
    """`quiesced` or `serving`, durably."""
    was: str
    """What it was before; of a quiesce `serving` unless it was quiesced already."""
    reason: str
    abandoned: tuple[str, ...] = ()
    """Agents whose live turn was ended at the window's end; one fresh turn each comes later."""
    held: tuple[str, ...] = ()
    runs_ended: tuple[str, ...] = ()
    bodies_running: int = 0
    """Tool bodies that run on though nobody waits for them."""
    landed: int = 0
    """Messages that had waited and are in their slots."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer: they start no turn either, and drain within 30 s."""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What something last failed with."""

    type: str
    text: str
    at_ms: int


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor, or an actor, and what is below it. Mirrors `core.tree.TreeNode`."""

    kind: str
    id: str
    name: str
    state: str
    strategy: str | None
    restart: str
    incarnation: int
    restarts: int
    recent_restarts: int
    queued: int
    oldest_s_max: float | None
    in_flight_s_max: float | None
    handled: int
    last_failure: FailureReport | None
    children: tuple[NodeReport, ...]
    left_out: int


class HostTreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of one of several hosts."""

    pid: int
    tree: NodeReport


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `tree`. A host fills in `tree`, its own."""

    tree: NodeReport
    pid: int | None = None
    """Whose `tree` is, where a client asked several."""
    others: tuple[HostTreeReport, ...] = ()
    """Of the directory's other hosts."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer."""


class UnparkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `unpark`."""

    pids: tuple[int, ...]
    """Of the hosts where it was parked, and goes on now."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer."""


class EntryReport(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the dead letters or of the quarantine; what only the other has is empty or None.

    `replayable` says whether the message itself is there: in the row, or in the host.
    """

    id: int
    kind: str
    actor: str
    reason: str
    message: str
    replayable: bool
    error: str
    incarnation: int | None
    deliveries: int | None
    origin_kind: str | None
    origin: int | None
    replays: int
    at_ms: int


class EntriesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `dead-letters` and `quarantine`."""

    entries: tuple[EntryReport, ...]


class AlertReport(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. `deadline_ms` is None where what it tells of does not end by itself, `at_ms` where
    its row cannot be read."""

    id: int
    kind: str
    agent: str
    model: str
    text: str
    deadline_ms: int | None
    episode: str
    at_ms: int | None


class AlertsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `alerts`."""

    alerts: tuple[AlertReport, ...]


class InboxRowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits. Mirrors `domain.slot_inbox.InboxRow`."""

    id: str
    seq: int
    author: str
    agent: str
    channel: str | None
    state: str
    cause: str
    behind: str | None
    wake: bool
    size: int
    at_ms: int


class InboxReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `inbox`."""

    inbox: tuple[InboxRowReport, ...]


class ImportedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a file that is accepted. Mirrors `importing.ImportedMessage`."""

    agent: str
    place: int
    number: int
    id: str
    seq: int | None


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about an entry that is not sound. Mirrors `domain.imports.ImportRepair`."""

    kind: str
    place: int | None
    id: str | None
    participant: str | None
    text: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a file's entries: of those that were accepted, dropped, refused, mended."""

    total: int
    dry_run: bool
    messages: tuple[ImportedReport, ...]
    repairs: tuple[RepairReport, ...]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay sent: the row, counted."""

    replayed: EntryReport
