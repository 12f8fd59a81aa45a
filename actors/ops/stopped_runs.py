"""Runs in a store that no host serves: read from their rows, and decided on them by an operator.

What an operator decides here is what a host would have recorded, by the same rules; the next host
that has the workflow goes on from it. So a run that is resumed is `resuming` from now on and is
executed when such a host is there.

Invariants:
    I1  Nothing is changed of a run that a live process executes. The commit guards the owner row it
        was judged by, so a host that claims the run meanwhile makes it judge again.
    I2  Pressed twice, an act changes something once.

Blocking; the thread that made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from abeyance.actors.domain.errors import QuiescedError
from abeyance.actors.domain.ingress import check_model, check_name
from abeyance.actors.domain.mode import read_mode
from abeyance.actors.domain.run_acts import (
    RESUMABLE,
    Decision,
    cancelled,
    check_decided,
    check_reason,
    decided,
    read_decision,
    settle_doubt,
)
from abeyance.actors.domain.run_errors import RunOwnedElsewhereError
from abeyance.actors.domain.run_folders import RunFolders
from abeyance.actors.domain.run_rows import LIVE, RunId, change, given_up, is_owned, read_run_id
from abeyance.actors.run_reading import (
    check_run_listing,
    list_runs,
    read_history,
    read_steps,
    run_record,
    status_of,
    unknown_run,
)
from abeyance.actors.run_status import RunStatus
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import is_locked
from abeyance.storage.store import Committed, Guard, NotStored, Put
from abeyance.storage.tables.runs import Choice, Run

from .connection import this_requester
from .errors import ControlError, NeedsHostError
from .run_reports import (
    RunActReport,
    RunDetailReport,
    RunsReport,
    report_detail,
    report_runs,
)

ATTEMPTS_MAX = 10


class RunContestedError(ControlError):
    """A run kept changing while an act on it was recorded. Nothing was done."""

    code = "run_contested"


class StoppedRuns:
    """The part of a stopped store that is about runs."""

    _store: LmdbStore
    _clock: Any
    _owners: Path
    _directory: Path

    def runs(
        self,
        *,
        state: str | None = "open",
        workflow: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunsReport:
        """The runs of the store. As `Runtime.runs`.

        Raises:
            InvalidRunError, InvalidNameError: Names the field.
        """
        check_run_listing(state, workflow, limit, after)
        found = list_runs(self._store, self._folders, state, workflow, limit, after)
        return report_runs(map(self._seen, found), None)

    def _seen(self, status: RunStatus) -> RunStatus:
        """A run's status; that a live process has it is known here, too, where that one hangs."""
        if status.state not in LIVE:
            return dataclasses.replace(status, executed=False)
        owner = self._store.get("owners", read_run_id(self._store, status.id).owned)
        lives = owner is not None and is_locked(self._owners / owner.record.nonce)
        return dataclasses.replace(status, executed=lives)

    @property
    def _folders(self) -> RunFolders:
        return RunFolders(self._directory)

    def run(self, run: str) -> RunDetailReport:
        """One run, its items and its history.

        Raises:
            InvalidRunError, UnknownRunError: There is none of that name.
        """
        found = read_run_id(self._store, run)
        return report_detail(
            self._seen(
                status_of(self._store, self._folders, found, run_record(self._store, found))
            ),
            read_steps(self._store, found),
            read_history(self._store, found),
            None,
        )

    def resume_run(
        self, run: str, *, in_doubt: Decision | None = None, result: Any = None
    ) -> RunActReport:
        """Have the next host that has its workflow take a waiting run up at once.

        Durable: on return.

        Raises:
            InvalidRunError, UnknownRunError: Nothing was done.
            RunStateError: It needs a decision; nothing was done.
            RunOwnedElsewhereError: A live process owns it; nothing was done.
            QuiescedError: The host is quiesced; nothing was done.
            RunContestedError, StorageError: It was not recorded.
        """
        return self._resume(run, in_doubt, read_decision(in_doubt, result), None)

    def use_fallback(self, run: str, *, provider: str, model: str) -> RunActReport:
        """Have the next host go on with a waiting run on another model. As `resume_run`.

        Whether the run may use it is seen there: where its workflow was added with fallbacks, and
        this is none of them, it waits for an operator.

        Raises:
            NeedsHostError: It waits for an agent's held turn, whose model is chosen in its host.
        """
        check_name(provider, "provider")
        check_model(model, "model")
        waits = run_record(self._store, read_run_id(self._store, run)).suspension
        if waits is not None and waits.agent is not None:
            raise NeedsHostError(
                f"run {run!r} waits for a turn of agent {waits.agent!r}; nothing was done; start "
                "its host, and choose that agent's model there (set-model)"
            )
        return self._resume(run, None, None, Choice(provider=provider, model=model))

    def cancel_run(self, run: str, *, reason: str = "") -> RunActReport:
        """End a run for good.

        Durable: on return.

        Raises:
            InvalidRunError, UnknownRunError: Nothing was done.
            RunOwnedElsewhereError: A live process owns it; nothing was done.
            RunContestedError, StorageError: It was not recorded.
        """
        check_reason(reason)
        found, by = read_run_id(self._store, run), this_requester()
        return self._move(
            found, by, lambda record: cancelled(record, reason, by, self._clock.now_ms())
        )

    def _resume(
        self, text: str, in_doubt: Decision | None, packed: bytes | None, choice: Choice | None
    ) -> RunActReport:
        run = read_run_id(self._store, text)

        def decide(record: Run) -> Run | None:
            if record.state not in RESUMABLE:
                return None
            check_decided(self._store, run, record, in_doubt)
            # Its life is counted by whoever executes it.
            resuming = replace(
                decided(record, in_doubt), state="resuming", changed_ms=self._clock.now_ms()
            )
            return resuming if choice is None else replace(resuming, choice=choice)

        return self._move(run, this_requester(), decide, in_doubt, packed)

    def _move(
        self,
        run: RunId,
        by: str,
        decide: Callable[[Run], Run | None],
        in_doubt: Decision | None = None,
        packed: bytes | None = None,
    ) -> RunActReport:
        for _ in range(ATTEMPTS_MAX):
            row = self._store.get("runs", run.row)
            if row is None:
                raise unknown_run(run)
            new = decide(row.record)
            if new is None:
                return RunActReport(id=str(run), state=row.record.state, changed=False)
            guards: tuple[Guard, ...] = (self._run_guard(run, row.record),)
            puts: tuple[Put, ...] = ()
            if new.state in LIVE:
                # A process that executed it before may live: it is the next host's, not that one's.
                nobody = Put("owners", run.owned, given_up(self._store.get("owners", run.owned)))
                guards = (*guards, self._serving())
                doubt = settle_doubt(self._store, run, in_doubt, packed, self._clock.now_ms())
                guards, puts = (*guards, *doubt[0]), (nobody, *doubt[1])
            (outcome,) = self._store.commit(change(run, row, new, by, guards=guards, puts=puts))
            if isinstance(outcome, Committed):
                return RunActReport(id=str(run), state=new.state, changed=True)
            if isinstance(outcome, NotStored):
                raise outcome.error
        raise RunContestedError(
            f"run {str(run)!r} changed {ATTEMPTS_MAX} times while this was recorded; nothing was "
            "done; see how it stands, then try again"
        )

    def _serving(self) -> Guard:
        stored = read_mode(self._store)
        if stored.is_quiesced:
            raise QuiescedError(
                f"the host is quiesced ({stored.record.reason}); nothing was done; end that, then "
                "ask again",
                reason=stored.record.reason,
            )
        return stored.guard

    def _run_guard(self, run: RunId, record: Run) -> Guard:
        """See that no live process executes the run; the guard under which that still holds."""
        row = self._store.get("owners", run.owned)
        guard = Guard("owners", run.owned, 0 if row is None else row.counter)
        if row is None or not is_owned(record):
            return guard
        if not is_locked(self._owners / row.record.nonce):
            return guard
        process = self._store.get("processes", (row.record.nonce,))
        pid, host = (None, None) if process is None else (process.record.pid, process.record.host)
        raise RunOwnedElsewhereError(
            f"run {str(run)!r} is owned by process {pid} on {host}, which serves no control socket "
            "here; nothing was done; do it there, or stop that process first; where it hangs, a "
            "host that answers can take the run over (take-over)",
            run=str(run),
            pid=pid,
            host=host,
        )
