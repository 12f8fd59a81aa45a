"""Whom the command line asks: running hosts, or a store where none runs.

Invariants:
    I1  Running hosts are asked through their control sockets; only where none runs is the store
        opened, and then read-only unless the verb changes something.

Blocking.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from abeyance.actors.domain.archive_book import Kind
from abeyance.actors.domain.run_acts import Decision
from abeyance.actors.domain.schedule_acts import ScheduleVerb
from abeyance.actors.domain.spent_reading import By
from abeyance.storage.errors import StorageError

from .approval_reports import ApprovalReport, DecisionReport
from .client import ControlClient
from .connection import HostSilentError, NoHostError
from .outbox_reports import OutboxesReport
from .reports import (
    AlertReport,
    CancelTurnReport,
    EditReport,
    EditRowReport,
    EntryReport,
    ImportReport,
    InboxRowReport,
    ModelReport,
    QuiesceReport,
    ReleaseReport,
    ReplayReport,
    RewindReport,
    StatusReport,
    UnparkReport,
    WaitReport,
)
from .requests import EVERY_MODEL
from .run_reports import RunActReport, RunDetailReport, RunsReport
from .schedule_reports import ScheduleActReport, SchedulesReport
from .shell import say
from .stopped import StoppedStore
from .usage_reports import UsageReport


class Target(Protocol):
    """Running hosts or a stopped store."""

    @property
    def silent_pids(self) -> tuple[int, ...]:
        """The hosts beside which a store is read, since none of them answered."""

    def status(self) -> StatusReport: ...
    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]: ...
    def release(self, agent: str, model: str = EVERY_MODEL) -> ReleaseReport: ...
    def rewind(self, agent: str, to: str | int | None) -> RewindReport: ...
    def cancel_turn(self, agent: str, turn: int | None) -> CancelTurnReport: ...
    def set_model(self, agent: str, model: str | None, provider: str | None) -> ModelReport: ...
    def approvals(self, agent: str | None = None) -> tuple[ApprovalReport, ...]: ...
    def decide(
        self, approval: str, verdict: Literal["approve", "deny"], note: str = ""
    ) -> DecisionReport: ...
    def edit(
        self, agent: str, message: str | int, blocks: str | list[Any] | None
    ) -> EditReport: ...
    def undo_edit(self, agent: str, edit: int) -> EditReport: ...
    def edits(self, agent: str) -> tuple[EditRowReport, ...]: ...
    def quiesce(self, reason: str, within_s: float) -> QuiesceReport: ...
    def resume(self) -> QuiesceReport: ...
    def entries(
        self, kind: Kind, *, before: int | None = None, limit: int = 100
    ) -> tuple[EntryReport, ...]: ...
    def replay(self, kind: Kind, number: int, /) -> ReplayReport: ...
    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[AlertReport, ...]: ...
    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRowReport, ...]: ...
    def import_deferred(
        self, path: str, *, agent: str | None = None, wake: bool = False, dry_run: bool = False
    ) -> ImportReport: ...
    def usage(
        self, agent: str | None, since: int | None, *, by: By = "model", zone: str = "UTC"
    ) -> UsageReport: ...
    def outboxes(self) -> OutboxesReport: ...
    def runs(
        self, *, state: str | None, workflow: str | None, after: str | None, limit: int
    ) -> RunsReport: ...
    def run(self, run: str) -> RunDetailReport: ...
    def schedules(
        self, schedule: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> SchedulesReport: ...
    def act_on_schedule(self, schedule: str, act: ScheduleVerb) -> ScheduleActReport: ...
    def unpark(self, group: str | None = None, *, agent: str | None = None) -> UnparkReport: ...
    def resume_run(
        self, run: str, *, in_doubt: Decision | None = None, result: Any = None
    ) -> RunActReport: ...
    def use_fallback(self, run: str, *, provider: str, model: str) -> RunActReport: ...
    def take_over_run(self, run: str) -> RunActReport: ...
    def cancel_run(self, run: str, *, reason: str = "") -> RunActReport: ...
    def close(self) -> None: ...


def open_target(directory: Path, *, writing: bool = False) -> Target:
    """Reach the hosts of a state directory, or open its store where no host runs.

    Raises:
        StorageError: There is no store there, or it cannot be opened; each kind says why.
        HostSilentError: Hosts are there and none answers.
    """
    try:
        return ControlClient(directory)
    except NoHostError:
        return StoppedStore(directory, writing=writing)


def open_reading(directory: Path) -> Target:
    """As `open_target`, to look: where hosts are there and none answers, the store is read beside
    them, and a line to standard error says so; the command prints it and ends with 1
    (`end_beside`), whatever it reads. A host that is stopped keeps nobody from reading.

    Raises:
        StorageError: As `open_target`.
        HostSilentError: None answers, and the store cannot be read either.
    """
    try:
        return open_target(directory)
    except HostSilentError as error:
        try:
            store = StoppedStore(directory, silent_pids=error.pids)
        except StorageError:
            raise error from None
        say(f"{error}; meanwhile, what the store holds is shown")
        return store


def reach_hosts(directory: Path) -> ControlClient:
    """Reach the hosts of a state directory, for what only a running host can tell.

    Raises:
        NoHostError: None runs. What is no store at all is refused as such.
    """
    try:
        return ControlClient(directory)
    except NoHostError:
        StoppedStore(directory).close()
        raise
