"""What a host does with schedules: the verbs that `Runtime` has of them.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from abeyance.storage.tables.schedules import ACCOUNTS_MAX, DrawsOn

from .domain.ingress import check_model
from .domain.run_errors import UnknownWorkflowError
from .domain.run_rows import check_key
from .domain.schedule_errors import InvalidScheduleError
from .domain.timetable import check_seconds, check_timetable
from .providers.credentials import credential_of
from .run_verbs import RunVerbs
from .scheduling import Plan, ScheduleOccurrence, ScheduleReceipt, ScheduleStatus, Scheduling

LATE_MS_MIN: Final = 60_000


class ScheduleVerbs(RunVerbs):
    """The part of a runtime that is about schedules."""

    _scheduling: Scheduling
    _store_id: str
    clock: Any

    def _stir_schedules(self) -> None:
        self._scheduling.look()

    async def add_schedule(
        self,
        name: str,
        workflow: str,
        params: Any = None,
        *,
        every: float | None = None,
        cron: str | None = None,
        zone: str | None = None,
        key: str | None = None,
        late_s: float | None = None,
        draws_on: Sequence[tuple[object, str]] = (),
        requester: str = "host",
    ) -> ScheduleReceipt:
        """Start a run of a workflow every so often, or by a cron expression, from now on.

        Safe to call at each start: a schedule that is there already goes on, is due when it was
        due, and stays paused. What differs replaces what it was; where that is the interval, the
        expression or the zone, it is due anew by them. One that was removed is added again.

        An occurrence starts no run while a run of its key may still go on; it is recorded as
        skipped. Of those that passed while no process could start them, the last starts a run when
        one can, and the others are recorded as missed. Where a clock was set back, nothing that was
        due is due again; but a schedule that was last due more than a day ahead of it is due anew.

        A checkpoint. Cancelled: it may have been added; adding it again then changes nothing.
        Durable: on return.

        Args:
            name: 1 to 100 bytes, without an `@`.
            workflow: One that was added to this runtime. Any process that has it starts the runs.
            params: As for `start_run`; the same for each run. `RunContext.due_ms` tells them apart.
            every: Seconds between occurrences, 1 to 31,622,400, counted from now.
            cron: Or five fields: minute, hour, day of the month, month, day of the week. Where a
                clock is changed, an hour that is left out delays what is due in it to its end, and
                what is due at a stated hour is due once in an hour that comes twice.
            zone: Of `cron`: a name of the time zone database. None is UTC.
            key: Of the runs. None is the name.
            late_s: How late an occurrence may start, 60 to 31,622,400; later it is recorded as
                missed. None: however late.
            draws_on: Up to 16 pairs of a provider and a model that its runs may call. While the
                last usage readings of all their accounts say that a window is used up until an
                instant, an occurrence is skipped. An account without a reading, or a window that
                ends nobody knows when, keeps no run from starting. Of a provider its account's
                fingerprint is stored.
            requester: As for `release_provider_wait`.
        Raises:
            InvalidScheduleError, InvalidRunError, InvalidNameError: Names the field; nothing was
                done.
            UnknownWorkflowError: Add the workflow first; nothing was done.
            UnreadableRecordError: There is a schedule of that name that cannot be read.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It was not added.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        check_key(name, "name")
        plan = Plan(
            name,
            workflow,
            name if key is None else check_key(key, "key"),
            params,
            check_timetable(every, cron, zone, self.clock.now_ms()),
            None if late_s is None else check_seconds(late_s, "late_s", LATE_MS_MIN),
            self._draws_on(draws_on),
        )
        if not isinstance(workflow, str) or self._workflows.find(workflow) is None:
            raise UnknownWorkflowError(
                f"no workflow {workflow!r} was added to this runtime; nothing was done; add it "
                "first",
                workflow=str(workflow),
            )
        by = self._permitted("add_schedule", name, requester)
        with self._lifetime.answers():
            return await self._scheduling.add(plan, by)

    async def pause_schedule(self, name: str, *, requester: str) -> ScheduleReceipt:
        """Start no more runs of a schedule until it is resumed. Runs that were started go on.

        Safe to call twice. What would have been due meanwhile is neither started nor recorded. A
        host that adds it again does not resume it.

        A checkpoint. Cancelled: it may have been paused; its status tells.
        Durable: on return.

        Raises:
            InvalidRunError, InvalidNameError, InvalidInputError: Names the field; nothing was done.
            UnknownScheduleError: There is none of that name; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: Nothing changed.
            RuntimeClosedError: The runtime has ended.
        """
        by = self._admit_verb("pause_schedule", name, requester)
        with self._lifetime.answers():
            return await self._scheduling.act("pause", name, by)

    async def resume_schedule(self, name: str, *, requester: str) -> ScheduleReceipt:
        """Have a paused schedule due again: the first time that its timetable names from now on.

        In everything else as `pause_schedule`.
        """
        by = self._admit_verb("resume_schedule", name, requester)
        with self._lifetime.answers():
            return await self._scheduling.act("resume", name, by)

    async def remove_schedule(self, name: str, *, requester: str) -> ScheduleReceipt:
        """End a schedule. Runs that were started go on; its occurrences can still be read.

        A host that adds it again at its next start has it again: pause it to keep it from that.
        In everything else as `pause_schedule`.
        """
        by = self._admit_verb("remove_schedule", name, requester)
        with self._lifetime.answers():
            return await self._scheduling.act("remove", name, by)

    def schedule(self, name: str) -> ScheduleStatus:
        """How a schedule stands. Not a checkpoint.

        Raises:
            InvalidRunError, InvalidNameError: The name is malformed.
            UnknownScheduleError: There is none of that name.
            UnreadableRecordError: It cannot be read.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        return self._scheduling.status(check_key(name, "name"))

    def schedules(self) -> tuple[ScheduleStatus, ...]:
        """The schedules of this store by name, but for what cannot be read. Not a checkpoint."""
        self._check_open()
        return self._scheduling.listing()

    def occurrences(
        self, name: str, *, before: int | None = None, limit: int = 100
    ) -> tuple[ScheduleOccurrence, ...]:
        """What became of a schedule's occurrences, the newest first. Not a checkpoint.

        The newest 1,000 are kept, a removed schedule's too.

        Args:
            before: Only those with a smaller number: the last one's of the page before.
            limit: 1 to 1,000.
        Raises:
            InvalidScheduleError, InvalidRunError, InvalidNameError: Names the argument.
            UnknownScheduleError: There was never one of that name.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        return self._scheduling.occurrences(check_key(name, "name"), before, limit)

    def _draws_on(self, pairs: object) -> tuple[DrawsOn, ...]:
        if not isinstance(pairs, Sequence) or isinstance(pairs, str) or len(pairs) > ACCOUNTS_MAX:
            raise InvalidScheduleError("draws_on", f"must be up to {ACCOUNTS_MAX} pairs")
        found: list[DrawsOn] = []
        for place, pair in enumerate(pairs):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidScheduleError(
                    f"draws_on[{place}]", "must be a pair of a provider and a model"
                )
            provider, model = pair
            check_model(model, f"draws_on[{place}]")
            credential = credential_of(provider, self._store_id)
            found.append(DrawsOn(credential=credential, model=model))
        return tuple(found)

    def _admit_verb(self, verb: str, name: str, requester: str) -> str:
        self._check_open()
        check_key(name, "name")
        return self._permitted(verb, name, requester)
