"""What each verb of the control socket does with a runtime, and the shape in which it answers.

Runs in: the server's task of the connection, on the loop thread.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.edit_rows import EditRow
from abeyance.actors.domain.requesters import Door, Vouched
from abeyance.actors.domain.spent_reading import By

from .approval_reports import ApprovalsReport, DecisionReport, report_approvals
from .outbox_reports import OutboxesReport, report_outboxes
from .protocol import ERROR_CHARS_MAX, clean_requester
from .reports import (
    AdmissionReport,
    AgentReport,
    AlertReport,
    AlertsReport,
    CancelTurnReport,
    EditReport,
    EditRowReport,
    EditsReport,
    EntriesReport,
    EntryReport,
    FailureReport,
    HeldReport,
    HostReport,
    ImportedReport,
    ImportReport,
    InboxReport,
    InboxRowReport,
    LimitReport,
    ModelReport,
    ModeReport,
    NodeReport,
    QuiesceReport,
    ReleasedReport,
    ReleaseReport,
    RepairReport,
    ReplayReport,
    RewindReport,
    StatusReport,
    TreeReport,
    UnparkReport,
    UnrecordedReport,
    WaitReport,
    WaitsReport,
    nothing_lifted,
)
from .requests import (
    AlertsRequest,
    ApprovalsRequest,
    CancelRunRequest,
    CancelTurnRequest,
    DeadLettersRequest,
    DecideRequest,
    EditRequest,
    EditsRequest,
    ImportRequest,
    InboxRequest,
    OutboxRequest,
    QuarantineRequest,
    QuiesceRequest,
    ReleaseRequest,
    ReplayRequest,
    Request,
    ResumeRunRequest,
    RewindRequest,
    RunRequest,
    RunsRequest,
    ScheduleActRequest,
    SchedulesRequest,
    SetModelRequest,
    StatusRequest,
    TakeOverRunRequest,
    TreeRequest,
    UnparkRequest,
    UsageRequest,
    UseFallbackRequest,
    WaitsRequest,
)
from .run_reports import (
    RunActReport,
    RunDetailReport,
    RunsReport,
    report_act,
    report_detail,
    report_runs,
)
from .schedule_reports import (
    ScheduleActReport,
    SchedulesReport,
    report_schedule_act,
    report_schedules,
)
from .usage_reports import UsageReport, report_usage

WORDS_CHARS_MAX: Final = 2_000
"""Of what an edit replaced, in a report."""


class Controlled(Protocol):
    """What the verbs need of a runtime."""

    def status(self) -> Any:
        """The structure that `StatusReport` mirrors, attribute by attribute."""

    def provider_waits(self, agent: str | None = None) -> Sequence[Any]:
        """The binding waits of one agent, or of all."""

    def tree(self, *, depth_max: int, width_max: int) -> Any:
        """The structure that `NodeReport` mirrors, attribute by attribute."""

    async def release_provider_wait(self, agent: str, model: str = "*", *, requester: str) -> Any:
        """End waits; `.released` of what is returned says which, and how far the record reached."""

    async def quiesce(self, reason: str, within_s: float, *, requester: str) -> Any:
        """Start no more turns; the structure that `QuiesceReport` takes its fields from."""

    async def resume(self, *, requester: str) -> Any:
        """Start turns again; `was_quiesced`, `reason` and `landed` of what is returned."""

    def agent(self, name: str) -> Any:
        """The handle of an agent; its turn's end, rewinds and edits are used."""

    def approvals(self, agent: str | None = None) -> Sequence[Any]:
        """Calls that wait for a person, which `ApprovalReport` mirrors."""

    async def approve(self, id: str, *, requester: str, note: str) -> Any:  # noqa: A002
        """Let a call be made; what `DecisionReport` mirrors."""

    async def deny(self, id: str, *, requester: str, note: str) -> Any:  # noqa: A002
        """Have a call not made; what `DecisionReport` mirrors."""

    def dead_letters(self, *, before: int | None, limit: int) -> Sequence[Any]:
        """Rows that `EntryReport` mirrors, the newest first."""

    def quarantine(self, *, before: int | None, limit: int) -> Sequence[Any]:
        """Rows that `EntryReport` mirrors, the newest first."""

    def alerts(self, *, after: int | None, limit: int) -> Sequence[Any]:
        """Rows that `AlertReport` mirrors, oldest first."""

    async def import_deferred(
        self,
        source: str,
        *,
        agent: str | None,
        wake: bool,
        dry_run: bool,
        requester: str,
    ) -> Any:
        """Accept a file's deferred messages; what `ImportReport` mirrors."""

    async def inbox(self, agent: str | None, *, after: int | None, limit: int) -> Sequence[Any]:
        """Rows that `InboxRowReport` mirrors, in the order they land."""

    async def usage(self, agent: str | None, since: int | None, *, by: By, zone: str) -> Any:
        """What `UsageReport` mirrors."""

    async def outboxes(self) -> Sequence[Any]:
        """Outboxes that `OutboxReport` mirrors."""

    def runs(
        self, *, state: str | None, workflow: str | None, limit: int, after: str | None
    ) -> Sequence[Any]:
        """Runs that `RunReport` mirrors."""

    def schedules(self) -> Sequence[Any]:
        """Schedules that `ScheduleReport` mirrors."""

    def schedule(self, name: str) -> Any:
        """One schedule, which `ScheduleReport` mirrors."""

    def occurrences(self, name: str, *, before: int | None, limit: int) -> Sequence[Any]:
        """Its occurrences, which `OccurrenceReport` mirrors."""

    async def pause_schedule(self, name: str, *, requester: str) -> Any:
        """Start no more runs of a schedule; what `ScheduleActReport` mirrors."""

    async def resume_schedule(self, name: str, *, requester: str) -> Any:
        """Have a schedule due again; what `ScheduleActReport` mirrors."""

    async def remove_schedule(self, name: str, *, requester: str) -> Any:
        """End a schedule; what `ScheduleActReport` mirrors."""

    async def unpark(self, group: str, *, requester: str) -> bool:
        """Start a parked group of the runtime's own again; whether it was parked."""

    async def resume_agent(self, name: str, *, requester: str) -> bool:
        """Start a parked agent again; whether it was parked."""

    def run(self, run: str) -> Any:
        """One run, which `RunReport` mirrors."""

    def run_steps(self, run: str) -> Sequence[Any]:
        """Its items, which `RunStepReport` mirrors."""

    def run_history(self, run: str) -> Sequence[Any]:
        """Its states, which `RunSteppedReport` mirrors."""

    async def resume_run(self, run: str, *, requester: str, in_doubt: Any, result: Any) -> Any:
        """Take a run up; what `RunActReport` mirrors."""

    async def use_fallback(self, run: str, *, provider: str, model: str, requester: str) -> Any:
        """Go on with a run on another model; what `RunActReport` mirrors."""

    async def take_over_run(self, run: str, *, requester: str) -> Any:
        """Take a run from a live process; what `RunActReport` mirrors."""

    async def cancel_run(self, run: str, *, requester: str, reason: str) -> Any:
        """End a run; what `RunActReport` mirrors."""

    async def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
    ) -> Any:
        """Send a dead letter's message again; the row, counted."""

    async def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
    ) -> Any:
        """Send a quarantined message again; the row, counted."""


async def answer(runtime: Controlled, request: Request, door: Door) -> msgspec.Struct:
    """Do what a checked request that came by a door asks for, and return the report of it.

    A checkpoint where the verb is. Cancelled: what was handed to the runtime is the runtime's to
    finish.

    Raises:
        AbeyanceError: As the runtime's verb; its text says what is still true.
    """
    report = _REPORTS.get(type(request))
    if report is not None:
        return await report(runtime, request)
    return await _ACTS[type(request)](runtime, request, door)


def _by(request: Any, door: Door) -> Vouched:
    """Who asks, by this door: told by the surface that a request came in at, and by nobody else."""
    return Vouched(clean_requester(request.requester, door), door)


async def _status(runtime: Controlled, _request: StatusRequest) -> StatusReport:
    return report_status(runtime.status())


async def _waits(runtime: Controlled, request: WaitsRequest) -> WaitsReport:
    waits = runtime.provider_waits(_given(request.agent))
    return WaitsReport(waits=tuple(_mirror(wait, WaitReport) for wait in waits))


async def _release(runtime: Controlled, request: ReleaseRequest, door: Door) -> ReleaseReport:
    receipt = await runtime.release_provider_wait(
        request.agent,
        request.scope,
        requester=_by(request, door),
    )
    released = tuple(_mirror(item, ReleasedReport) for item in receipt.released)
    if released:
        return ReleaseReport(released=released)
    # The release was done, whatever comes of saying what it left.
    left: tuple[WaitReport, ...] = ()
    with suppress(AbeyanceError):
        waits = runtime.provider_waits(request.agent)
        left = tuple(_mirror(wait, WaitReport) for wait in waits)
    return ReleaseReport(released=(), nothing=nothing_lifted(request.agent, left))


async def _rewind(runtime: Controlled, request: RewindRequest, door: Door) -> RewindReport:
    handle, by = runtime.agent(request.agent), _by(request, door)
    if request.to is msgspec.UNSET:
        return _mirror(await handle.undo_rewind(requester=by), RewindReport)
    rewound = await handle.rewind(request.to, requester=by)
    return _mirror(rewound, RewindReport)


async def _cancel_turn(
    runtime: Controlled, request: CancelTurnRequest, door: Door
) -> CancelTurnReport:
    handle, by = runtime.agent(request.agent), _by(request, door)
    receipt = await handle.cancel_turn(turn=_given(request.turn), requester=by)
    return _mirror(receipt, CancelTurnReport)


async def _set_model(runtime: Controlled, request: SetModelRequest, door: Door) -> ModelReport:
    handle, by = runtime.agent(request.agent), _by(request, door)
    model, provider = _given(request.model), _given(request.provider)
    receipt = await handle.set_model(model, provider, requester=by)
    return _mirror(receipt, ModelReport)


async def _approvals(runtime: Controlled, request: ApprovalsRequest) -> ApprovalsReport:
    return report_approvals(runtime.approvals(_given(request.agent)))


async def _decide(runtime: Controlled, request: DecideRequest, door: Door) -> DecisionReport:
    decide = runtime.approve if request.verdict == "approve" else runtime.deny
    by = _by(request, door)
    receipt = await decide(request.approval, requester=by, note=request.note)
    return _mirror(receipt, DecisionReport)


async def _edit(runtime: Controlled, request: EditRequest, door: Door) -> EditReport:
    handle, by = runtime.agent(request.agent), _by(request, door)
    if not isinstance(request.undo, msgspec.UnsetType):
        undone = await handle.undo_edit(request.undo, requester=by)
        return _mirror(undone, EditReport)
    blocks = _given(request.blocks)
    edited = await handle.edit(request.message, blocks, requester=by)
    return _mirror(edited, EditReport)


async def _edits(runtime: Controlled, request: EditsRequest) -> EditsReport:
    return EditsReport(edits=tuple(map(report_edit, runtime.agent(request.agent).edits())))


async def _import(runtime: Controlled, request: ImportRequest, door: Door) -> ImportReport:
    report = await runtime.import_deferred(
        request.path,
        agent=_given(request.agent),
        wake=request.wake,
        dry_run=request.dry_run,
        requester=_by(request, door),
    )
    return report_import(report)


async def _quiesce(runtime: Controlled, request: QuiesceRequest, door: Door) -> QuiesceReport:
    by, was = _by(request, door), runtime.status().mode
    if request.end:
        ended = await runtime.resume(requester=by)
        was_ = "quiesced" if ended.was_quiesced else "serving"
        return QuiesceReport(state="serving", was=was_, reason=ended.reason, landed=ended.landed)
    receipt = await runtime.quiesce(request.reason, request.within_s, requester=by)
    return QuiesceReport(
        state="quiesced",
        was=was.state,
        reason=receipt.reason,
        abandoned=receipt.abandoned,
        held=receipt.held,
        runs_ended=receipt.runs_ended,
        bodies_running=receipt.bodies_running,
    )


async def _tree(runtime: Controlled, request: TreeRequest) -> TreeReport:
    return TreeReport(
        tree=report_tree(runtime.tree(depth_max=request.depth, width_max=request.width))
    )


async def _dead_letters(runtime: Controlled, request: DeadLettersRequest) -> EntriesReport:
    return _entries(runtime.dead_letters(before=_given(request.before), limit=request.limit))


async def _quarantine(runtime: Controlled, request: QuarantineRequest) -> EntriesReport:
    return _entries(runtime.quarantine(before=_given(request.before), limit=request.limit))


def _entries(entries: Sequence[Any]) -> EntriesReport:
    return EntriesReport(entries=tuple(_mirror(entry, EntryReport) for entry in entries))


async def _alerts(runtime: Controlled, request: AlertsRequest) -> AlertsReport:
    alerts = runtime.alerts(after=_given(request.after), limit=request.limit)
    return AlertsReport(alerts=tuple(_mirror(alert, AlertReport) for alert in alerts))


async def _inbox(runtime: Controlled, request: InboxRequest) -> InboxReport:
    rows = await runtime.inbox(
        _given(request.agent), after=_given(request.after), limit=request.limit
    )
    return InboxReport(inbox=tuple(_mirror(row, InboxRowReport) for row in rows))


async def _replay(runtime: Controlled, request: ReplayRequest, door: Door) -> ReplayReport:
    dead = request.kind == "dead_letter"
    replay = runtime.replay_dead_letter if dead else runtime.replay_quarantined
    by = _by(request, door)
    sent = await replay(request.id, requester=by)
    return ReplayReport(replayed=_mirror(sent, EntryReport))


async def _runs(runtime: Controlled, request: RunsRequest) -> RunsReport:
    found = runtime.runs(
        state=_given(request.state),
        workflow=_given(request.workflow),
        limit=request.limit,
        after=_given(request.after),
    )
    return report_runs(found, os.getpid())


async def _schedules(runtime: Controlled, request: SchedulesRequest) -> SchedulesReport:
    name = _given(request.schedule)
    if name is None:
        return report_schedules(runtime.schedules(), None, os.getpid())
    status = runtime.schedule(name)
    found = runtime.occurrences(name, before=_given(request.before), limit=request.limit)
    return report_schedules([status], found, os.getpid())


async def _schedule_act(
    runtime: Controlled, request: ScheduleActRequest, door: Door
) -> ScheduleActReport:
    by = _by(request, door)
    verb = {
        "pause": runtime.pause_schedule,
        "resume": runtime.resume_schedule,
        "remove": runtime.remove_schedule,
    }[request.act]
    return report_schedule_act(await verb(request.schedule, requester=by), os.getpid())


async def _unpark(runtime: Controlled, request: UnparkRequest, door: Door) -> UnparkReport:
    by = _by(request, door)
    if isinstance(request.agent, str):
        was_parked = await runtime.resume_agent(request.agent, requester=by)
    else:
        was_parked = await runtime.unpark(_given(request.group), requester=by)  # type: ignore[arg-type]
    return UnparkReport(pids=(os.getpid(),) if was_parked else ())


async def _run(runtime: Controlled, request: RunRequest) -> RunDetailReport:
    status = runtime.run(request.run)
    # By its id from here on: a key may have a newer run by now.
    steps, history = runtime.run_steps(status.id), runtime.run_history(status.id)
    return report_detail(status, steps, history, os.getpid())


async def _resume_run(runtime: Controlled, request: ResumeRunRequest, door: Door) -> RunActReport:
    receipt = await runtime.resume_run(
        request.run,
        requester=_by(request, door),
        in_doubt=_given(request.in_doubt),
        result=request.result,
    )
    return report_act(receipt, os.getpid())


async def _use_fallback(
    runtime: Controlled, request: UseFallbackRequest, door: Door
) -> RunActReport:
    receipt = await runtime.use_fallback(
        request.run,
        provider=request.provider,
        model=request.model,
        requester=_by(request, door),
    )
    return report_act(receipt, os.getpid())


async def _take_over_run(
    runtime: Controlled, request: TakeOverRunRequest, door: Door
) -> RunActReport:
    by = _by(request, door)
    return report_act(await runtime.take_over_run(request.run, requester=by), os.getpid())


async def _cancel_run(runtime: Controlled, request: CancelRunRequest, door: Door) -> RunActReport:
    receipt = await runtime.cancel_run(
        request.run,
        requester=_by(request, door),
        reason=request.reason,
    )
    return report_act(receipt, os.getpid())


async def _usage(runtime: Controlled, request: UsageRequest) -> UsageReport:
    agent, since = _given(request.agent), _given(request.since)
    by: Any = request.by
    return report_usage(await runtime.usage(agent, since, by=by, zone=request.zone))


async def _outboxes(runtime: Controlled, _request: OutboxRequest) -> OutboxesReport:
    return report_outboxes(await runtime.outboxes())


_Report: TypeAlias = Callable[[Controlled, Any], Awaitable[msgspec.Struct]]
_REPORTS: Final[dict[type[msgspec.Struct], _Report]] = {
    StatusRequest: _status,
    WaitsRequest: _waits,
    ApprovalsRequest: _approvals,
    EditsRequest: _edits,
    TreeRequest: _tree,
    DeadLettersRequest: _dead_letters,
    QuarantineRequest: _quarantine,
    AlertsRequest: _alerts,
    InboxRequest: _inbox,
    UsageRequest: _usage,
    OutboxRequest: _outboxes,
    RunsRequest: _runs,
    SchedulesRequest: _schedules,
    RunRequest: _run,
}
_Act: TypeAlias = Callable[[Controlled, Any, Door], Awaitable[msgspec.Struct]]
_ACTS: Final[dict[type[msgspec.Struct], _Act]] = {
    ReleaseRequest: _release,
    RewindRequest: _rewind,
    CancelTurnRequest: _cancel_turn,
    SetModelRequest: _set_model,
    DecideRequest: _decide,
    EditRequest: _edit,
    ImportRequest: _import,
    QuiesceRequest: _quiesce,
    ReplayRequest: _replay,
    ScheduleActRequest: _schedule_act,
    UnparkRequest: _unpark,
    ResumeRunRequest: _resume_run,
    UseFallbackRequest: _use_fallback,
    CancelRunRequest: _cancel_run,
    TakeOverRunRequest: _take_over_run,
}
READING: Final = frozenset(_REPORTS)
"""The requests that change nothing."""


_V = TypeVar("_V")


def _given(value: _V | msgspec.UnsetType) -> _V | None:
    return None if value is msgspec.UNSET else value


def report_status(status: Any) -> StatusReport:
    """Copy a runtime's status into the shape that travels."""
    agents = tuple(
        _mirror(
            agent,
            AgentReport,
            held=agent.held and _mirror(agent.held, HeldReport),
            admission=_mirror(
                agent.admission,
                AdmissionReport,
                waits=tuple(_mirror(wait, WaitReport) for wait in agent.admission.waits),
            ),
            limits=_mirror(agent.limits, LimitReport),
            unrecorded=agent.unrecorded and _mirror(agent.unrecorded, UnrecordedReport),
            pid=status.pid,
        )
        for agent in status.agents
    )
    waits = tuple(_mirror(wait, WaitReport) for wait in status.waits)
    return _mirror(
        status,
        StatusReport,
        agents=agents,
        waits=waits,
        open_pids=(),
        hosts=(_mirror(status, HostReport),),
        silent_pids=(),
        mode=_mirror(status.mode, ModeReport),
    )


def report_import(report: Any) -> ImportReport:
    """Copy an import's report into the shape that travels."""
    return _mirror(
        report,
        ImportReport,
        messages=tuple(_mirror(message, ImportedReport) for message in report.messages),
        repairs=tuple(_mirror(repair, RepairReport) for repair in report.repairs),
    )


def report_edit(row: EditRow) -> EditRowReport:
    """An edit as a reply carries it."""
    was = None if row.was is None else msgspec.json.encode(row.was).decode()
    if was is not None and len(was) > WORDS_CHARS_MAX:
        was = was[: WORDS_CHARS_MAX - 1] + "…"
    return EditRowReport(
        edit=row.edit,
        id=row.id,
        seq=row.seq,
        does=row.does,
        was=was,
        by=row.by,
        at_ms=row.at_ms,
        undone_by=row.undone_by,
        undone_ms=row.undone_ms,
    )


def report_tree(node: Any) -> NodeReport:
    """Copy a tree into the shape that travels. Its texts are bounded as those of errors are."""
    failure = node.last_failure
    return _mirror(
        node,
        NodeReport,
        children=tuple(map(report_tree, node.children)),
        last_failure=failure
        and FailureReport(
            type=failure.type, text=failure.text[:ERROR_CHARS_MAX], at_ms=failure.at_ms
        ),
    )


_T = TypeVar("_T", bound=msgspec.Struct)


def _mirror(source: Any, kind: type[_T], **given: Any) -> _T:
    """Make a `kind` of the attributes of the same names."""
    names = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**given, **{name: getattr(source, name) for name in names})
