"""Looking at runs of workflows, and waiting for them: the runtime's part of it.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from dataclasses import replace as replaced
from typing import Final

import trio

from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Store

from .core import Supervisor, TrioActorRef
from .domain.run_errors import RunsParkedError
from .domain.run_folders import RunFolders
from .domain.run_places import wait_without_place
from .domain.run_protocol import News, RunsKept
from .domain.run_rows import LIVE, RunId, bounded, read_run_id
from .domain.runs import NAME, Runs
from .lifetime import closed
from .run_reading import (
    check_run_listing,
    list_runs,
    read_history,
    read_steps,
    run_record,
    status_of,
)
from .run_status import RunStatus, RunStep, RunStepped
from .status import UnrecordedStatus

WAIT_LOOK_S: Final = 5.0


class RunHandle:
    """A run that was started here."""

    def __init__(self, looks: RunLooks, run: RunId) -> None:
        self._looks = looks
        self._run = run

    @property
    def id(self) -> str:
        return str(self._run)

    def status(self) -> RunStatus:
        """As `Runtime.run`."""
        return self._looks.status(str(self._run))

    async def wait(self) -> RunStatus:
        """Wait until the run has ended, however long it waits for capacity.

        A checkpoint. Cancelled: the run goes on.
        """
        return await self._looks.wait(self._run)


class RunLooks:
    """The runs of one runtime, as whoever looks sees them."""

    def __init__(
        self,
        store: Store,
        folders: RunFolders,
        ownership: Ownership,
        group: Supervisor,
        news: News,
    ) -> None:
        self._store = store
        self._folders = folders
        self._ownership = ownership
        self._group = group
        self._runs: TrioActorRef[Runs] = group.refs[NAME]
        self._news = news
        self._closed = False

    def close(self) -> None:
        """The runtime ends: whoever waits for a run is told so."""
        self._closed = True
        self._news.stir()

    def _check_executes(self) -> None:
        if self._group.state == "parked":
            raise RunsParkedError(
                "what executes runs crashed too often and is parked; nothing was done, and every "
                "run is as its row says; see the log, mend the cause, and unpark('runs')"
            )

    @property
    def _kept(self) -> RunsKept:
        kept: RunsKept = self._runs._cell.kept
        return kept

    def handle(self, text: str) -> RunHandle:
        run = read_run_id(self._store, text)
        run_record(self._store, run)
        return RunHandle(self, run)

    def status(self, text: str) -> RunStatus:
        run = read_run_id(self._store, text)
        return self._seen(run, self._status(run))

    def listing(
        self, state: str | None, workflow: str | None, limit: int, after: str | None
    ) -> tuple[RunStatus, ...]:
        check_run_listing(state, workflow, limit, after)
        found = list_runs(self._store, self._folders, state, workflow, limit, after)
        return tuple(self._seen(read_run_id(self._store, each.id), each) for each in found)

    def _status(self, run: RunId) -> RunStatus:
        return status_of(self._store, self._folders, run, run_record(self._store, run))

    def _seen(self, run: RunId, status: RunStatus) -> RunStatus:
        """A run's status with what its rows cannot say: whether anything of it is executed, what
        of it the store refuses, and that it has failed where that takes neither its wait nor its
        failure."""
        life = self._kept.lives.get(run)
        if life is not None and life.failure is not None and status.state in LIVE:
            reason = bounded(f"{life.failure}; the store does not take that it failed, either")
            return replaced(status, state="failed", reason=reason, executed=False)
        refused = None if status.ended else self._kept.unrecorded(run)
        executed = status.state in LIVE and self._is_executed(run)
        return replaced(
            status,
            state="unrecorded" if executed and refused is not None else status.state,
            executed=executed,
            given_up=None if executed else self._kept.given_up.get(run),
            unrecorded=None if refused is None else UnrecordedStatus(*refused),
        )

    def _is_executed(self, run: RunId) -> bool:
        owner = self._store.get("owners", run.owned)
        if owner is None:
            return False
        if owner.record.nonce != self._ownership.nonce:
            return self._ownership.is_alive(owner.record.nonce)
        kept = self._kept
        return run in kept.coming or run in kept.lives

    def steps(self, text: str) -> tuple[RunStep, ...]:
        return read_steps(self._store, read_run_id(self._store, text))

    def transitions(self, text: str) -> tuple[RunStepped, ...]:
        return read_history(self._store, read_run_id(self._store, text))

    async def wait(self, run: RunId) -> RunStatus:
        # A run that waits for another gets nothing done: what it waits for may need its place.
        wait_without_place()
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise closed()
            stirred = self._news.changed
            status = self._status(run)
            if status.ended:
                return self._seen(run, status)
            owner = self._store.get("owners", run.owned)
            if owner is None or owner.record.nonce == self._ownership.nonce:
                self._check_executes()
            # Another process may have it: nobody here hears of that.
            with trio.move_on_after(WAIT_LOOK_S):
                await stirred.wait()
