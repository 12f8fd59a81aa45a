"""What a client asks about runs: of one host, and of whichever host of a directory can do it.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import structs

from abeyance.actors.domain.run_acts import Decision
from abeyance.actors.domain.schedule_acts import ScheduleVerb

from .connection import this_requester
from .hosts import Hosts
from .requests import (
    CancelRunRequest,
    ResumeRunRequest,
    RunRequest,
    RunsRequest,
    ScheduleActRequest,
    SchedulesRequest,
    TakeOverRunRequest,
    UseFallbackRequest,
)
from .run_reports import RunActReport, RunDetailReport, RunsReport
from .schedule_reports import ScheduleActReport, SchedulesReport

_T = TypeVar("_T")


class RunAsks(Hosts):
    """The part of the client of a directory's hosts that is about runs and schedules.

    An act on a run is done by the process that owns it or, where none does, by one that has its
    workflow; each decides by the rows. Who refuses it has done nothing.
    """

    def runs(
        self,
        *,
        state: str | None = "open",
        workflow: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunsReport:
        """The runs of the store, as the first host that answers reads them. As `Runtime.runs`.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = RunsRequest(
            state=_or_unset(state),
            workflow=_or_unset(workflow),
            after=_or_unset(after),
            limit=limit,
        )
        report = self._of_any(lambda host: host.ask(request, RunsReport))
        return structs.replace(report, silent_pids=tuple(sorted(self._failures)))

    def schedules(
        self, schedule: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> SchedulesReport:
        """The schedules of the store, or one with its occurrences, from any host.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = SchedulesRequest(
            schedule=_or_unset(schedule),
            before=msgspec.UNSET if before is None else before,
            limit=limit,
        )
        return self._of_any(lambda host: host.ask(request, SchedulesReport))

    def act_on_schedule(
        self, schedule: str, act: ScheduleVerb, *, requester: str | None = None
    ) -> ScheduleActReport:
        """Pause, resume or remove a schedule, through whichever host answers first: the row is the
        schedule, and every host goes by it. As `Runtime.pause_schedule`; safe to ask twice.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was done.
            HostSilentError: Whether it was done is unknown; asking again is harmless.
        """
        request = ScheduleActRequest(schedule=schedule, act=act, requester=_by(requester))
        return self._of_owner(lambda host: host.ask(request, ScheduleActReport))

    def run(self, run: str) -> RunDetailReport:
        """One run, its items and its history, from any host.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        report = self._of_any(lambda host: host.ask(RunRequest(run=run), RunDetailReport))
        return structs.replace(report, silent_pids=tuple(sorted(self._failures)))

    def resume_run(
        self,
        run: str,
        *,
        in_doubt: Decision | None = None,
        result: Any = None,
        requester: str | None = None,
    ) -> RunActReport:
        """Have a waiting run taken up now. As `Runtime.resume_run`; safe to ask twice.

        Durable: on return.

        Raises:
            RefusedByHostError: The hosts refused it; nothing was done.
            HostSilentError: Whether it was done is unknown; asking again is harmless.
        """
        request = ResumeRunRequest(
            run=run,
            in_doubt=msgspec.UNSET if in_doubt is None else in_doubt,
            result=result,
            requester=_by(requester),
        )
        return self._of_owner(lambda host: host.ask(request, RunActReport))

    def use_fallback(
        self, run: str, *, provider: str, model: str, requester: str | None = None
    ) -> RunActReport:
        """Have a waiting run go on with another model. As `Runtime.use_fallback`, and `resume_run`.

        Raises:
            RefusedByHostError, HostSilentError: As for `resume_run`.
        """
        request = UseFallbackRequest(
            run=run, provider=provider, model=model, requester=_by(requester)
        )
        return self._of_owner(lambda host: host.ask(request, RunActReport))

    def take_over_run(self, run: str, *, requester: str | None = None) -> RunActReport:
        """Have a run taken from the process that owns it, though that lives, by the first host that
        has its workflow. As `Runtime.take_over_run`.

        Raises:
            RefusedByHostError, HostSilentError: As for `resume_run`.
        """
        request = TakeOverRunRequest(run=run, requester=_by(requester))
        return self._of_owner(lambda host: host.ask(request, RunActReport))

    def cancel_run(
        self, run: str, *, reason: str = "", requester: str | None = None
    ) -> RunActReport:
        """Have a run ended for good. As `Runtime.cancel_run`; safe to ask twice.

        Raises:
            RefusedByHostError, HostSilentError: As for `resume_run`.
        """
        request = CancelRunRequest(run=run, reason=reason, requester=_by(requester))
        return self._of_owner(lambda host: host.ask(request, RunActReport))


def _by(requester: str | None) -> str:
    return this_requester() if requester is None else requester


def _or_unset(value: str | None) -> str | msgspec.UnsetType:
    return msgspec.UNSET if value is None else value
