"""Starting, ending and looking at runs of workflows: the runtime's part of them.

Each verb is a decision on the run's row, by compare-and-set; the actor of runs is told afterwards.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import trio
from msgspec.structs import replace

from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Guard, Put, Refused, Row, Store
from abeyance.storage.tables.runs import Choice, Run, RunItem, RunTransition

from .core import TrioActorRef
from .core.clock import Clock
from .domain.errors import QuiescedError
from .domain.ingress import check_name
from .domain.mode import HostMode
from .domain.run_claims import Claim, Claims
from .domain.run_errors import (
    InvalidRunError,
    RunOpenError,
    RunOwnedElsewhereError,
    RunStateError,
    UnknownRunError,
    UnknownWorkflowError,
)
from .domain.run_rows import (
    ENDED,
    LIVE,
    WAITING,
    RunId,
    check_key,
    first_request,
    item_guard,
    item_put,
    pack_plain,
    read_run_id,
    unpacked,
)
from .domain.run_workflow import Workflow, check_workflow, other_version
from .domain.runs import (
    Begin,
    CutOff,
    LookForRuns,
    News,
    Runs,
    RunsKept,
    WorkflowAdded,
)
from .lifetime import closed
from .run_status import RunReceipt, RunStatus, RunStep, RunStepped

PAGE_MAX: Final = 1_000


class RunHandle:
    """A run that was started here."""

    def __init__(self, workflows: Workflows, run: RunId) -> None:
        self._workflows = workflows
        self._run = run

    @property
    def id(self) -> str:
        return str(self._run)

    def status(self) -> RunStatus:
        """As `Runtime.run`."""
        return self._workflows.status(str(self._run))

    async def wait(self) -> RunStatus:
        """Wait until the run has ended, however long it waits for capacity.

        A checkpoint. Cancelled: the run goes on.
        """
        return await self._workflows.wait(self._run)


class Workflows:
    """The runs of one runtime."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        journal: TrioActorRef[Any],
        runs: TrioActorRef[Runs],
        clock: Clock,
        news: News,
        mode: HostMode,
        changed: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._journal = journal
        self._runs = runs
        self._clock = clock
        self._mode = mode
        self._claims = Claims(store, journal, ownership, clock, mode)
        self._changed = changed
        self._known: dict[str, Workflow] = {}
        self._news = news
        self._closed = False

    def close(self) -> None:
        """The runtime ends: whoever waits for a run is told so."""
        self._closed = True
        self._news.stir()

    def add(
        self,
        name: str,
        function: Callable[..., Awaitable[Any]],
        version: int,
        finalisers: Sequence[tuple[str, Callable[..., Any]]],
        buffer_s: float,
    ) -> None:
        workflow = check_workflow(name, function, version, finalisers, buffer_s)
        if name in self._known:
            raise InvalidRunError("name", f"a workflow {name!r} was added before")
        self._known[name] = workflow
        self._runs.tell(WorkflowAdded(workflow))

    async def start(self, key: str, name: str, params: Any, by: str) -> RunHandle:
        check_key(key, "key")
        workflow = self._workflow(name)
        packed = pack_plain(params, "params")
        while True:
            self._check_serving()
            row = self._store.get("run_keys", (key,))
            if row is not None and row.record.is_open:
                self._refuse_open(RunId(key, row.record.generation))
            run = RunId(key, 1 if row is None else row.record.generation + 1)
            now_ms = self._clock.now_ms()
            record = Run(
                workflow=name,
                version=workflow.version,
                state="running",
                params=packed,
                started_ms=now_ms,
                changed_ms=now_ms,
            )
            guards, puts = self._claims.owned(run)
            request = first_request(
                run,
                record,
                0 if row is None else row.counter,
                (guards[0], puts[0]),
                by,
                self._mode.stored.guard,
            )
            self._kept.coming.add(run)
            try:
                with trio.CancelScope(shield=True):
                    outcome = await self._journal.ask(request)
            except BaseException:
                self._kept.coming.discard(run)
                raise
            if isinstance(outcome, Refused):
                self._kept.coming.discard(run)
                continue  # Somebody else started one of this key.
            self._runs.tell(Begin(run))
            self._tell_of(run, "running")
            return RunHandle(self, run)

    def _check_serving(self) -> None:
        self._mode.look()
        if self._mode.is_quiesced:
            raise QuiescedError(
                f"the host is quiesced ({self._mode.record.reason}); nothing was done; resume it, "
                "then ask again",
                reason=self._mode.record.reason,
            )

    def look(self) -> None:
        """Have runs that are live in their rows and nowhere else taken up."""
        self._runs.tell(LookForRuns())

    def _refuse_open(self, run: RunId) -> None:
        row = self._store.get("runs", run.row)
        state = "unknown" if row is None else row.record.state
        raise RunOpenError(
            f"run {str(run)!r} of that key is {state}; no other was started; wait for it, or "
            "cancel it",
            key=run.key,
            run=str(run),
            state=state,
        )

    async def resume(
        self,
        text: str,
        by: str,
        *,
        in_doubt: Literal["retry", "done"] | None = None,
        result: Any = None,
        choice: Choice | None = None,
    ) -> RunReceipt:
        run = read_run_id(self._store, text)
        record = self._record(run)
        workflow = self._workflow(record.workflow)
        self._check_serving()
        if in_doubt not in (None, "retry", "done"):
            raise InvalidRunError("in_doubt", "must be 'retry' or 'done'")
        packed = pack_plain(result, "result") if in_doubt == "done" else None
        if record.state in LIVE and run in self._kept.given_up:
            # Its row says that it is live, and nothing here executes it.
            self._runs.tell(Begin(run))
            return RunReceipt(id=str(run), state=record.state, changed=True)

        def decide(record: Run) -> Run | None:
            if record.state not in (*WAITING, "recovery_required"):
                return None
            if workflow.version != record.version:
                raise RunStateError(
                    f"run {str(run)!r} cannot go on here: {other_version(record, workflow)}; "
                    "nothing was done; register that version, or cancel the run",
                    run=str(run),
                    state=record.state,
                )
            if record.state == "recovery_required" and self._doubtful(run) and in_doubt is None:
                raise RunStateError(
                    f"run {str(run)!r} needs a decision: {record.reason}; nothing was done; say "
                    "whether that is to be run again ('retry') or has happened ('done')",
                    run=str(run),
                    state=record.state,
                )
            taken = self._claims.taken_up(record)
            return taken if choice is None else replace(taken, choice=choice)

        def settle(_row: Row) -> tuple[tuple[Guard, ...], tuple[Put, ...]]:
            doubtful = self._doubtful(run)
            if doubtful is None or in_doubt is None:
                return (), ()
            ordinal, row = doubtful
            item: RunItem = row.record
            item = (
                replace(item, state="blocked")
                if in_doubt == "retry"
                else replace(item, state="done", result=packed, ended_ms=self._clock.now_ms())
            )
            return (item_guard(run, ordinal, row),), (item_put(run, ordinal, item),)

        self._kept.coming.add(run)
        try:
            claim = await self._claims.move(run, decide, by, puts=settle)
        except BaseException:
            self._kept.coming.discard(run)
            raise
        if not claim.won:
            self._kept.coming.discard(run)
        return self._receipt(run, claim, begin=True)

    def _doubtful(self, run: RunId) -> tuple[int, Row] | None:
        """The first item that is `started` and no more; a life cannot go past it.

        It is the last one where a process died; one that the workflow itself cut off, by a time
        limit of its own, has others behind it.
        """
        for key, row in self._store.scan("run_items", run.row):
            if isinstance(row, Row) and row.record.state == "started":
                return int(key[2]), row
        return None

    async def cancel(self, text: str, by: str, reason: str) -> RunReceipt:
        run = read_run_id(self._store, text)
        self._record(run)
        if not isinstance(reason, str) or len(reason) > 1_000:
            raise InvalidRunError("reason", "must be text of at most 1,000 characters")

        def decide(record: Run) -> Run | None:
            if record.state in ENDED:
                return None
            return replace(
                record,
                state="cancelled",
                suspension=None,
                reason=reason or f"cancelled by {by}",
                changed_ms=self._clock.now_ms(),
            )

        claim = await self._claims.move(run, decide, by)
        receipt = self._receipt(run, claim, begin=False)
        # When this returns, nothing of it runs.
        await self._runs.ask(CutOff(run, receipt.state))
        return receipt

    def _receipt(self, run: RunId, claim: Claim, *, begin: bool) -> RunReceipt:
        if not claim.won and claim.pid is not None and claim.state not in ENDED:
            raise RunOwnedElsewhereError(
                f"run {str(run)!r} is owned by process {claim.pid} on {claim.host}, which lives; "
                "nothing was done; do it there",
                run=str(run),
                pid=claim.pid,
                host=claim.host,
            )
        if claim.won:
            if begin:
                self._runs.tell(Begin(run))
            self._tell_of(run, claim.state)
        return RunReceipt(id=str(run), state=claim.state, changed=claim.won)  # type: ignore[arg-type]

    # -- looking -----------------------------------------------------------------------------

    def handle(self, text: str) -> RunHandle:
        run = read_run_id(self._store, text)
        self._record(run)
        return RunHandle(self, run)

    def status(self, text: str) -> RunStatus:
        run = read_run_id(self._store, text)
        return self._status(run, self._record(run))

    def listing(self, state: str | None, workflow: str | None, limit: int) -> tuple[RunStatus, ...]:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
            raise InvalidRunError("limit", f"must be a whole number from 1 to {PAGE_MAX:,}")
        if state is not None and state not in (*LIVE, *WAITING, *ENDED, "recovery_required"):
            raise InvalidRunError("state", "is no state of a run")
        if workflow is not None:
            check_name(workflow, "workflow")
        found: list[RunStatus] = []
        for key, row in self._store.scan("runs"):
            if len(found) == limit:
                break
            if not isinstance(row, Row):
                continue
            record: Run = row.record
            if state not in (None, record.state) or workflow not in (None, record.workflow):
                continue
            found.append(self._status(RunId(str(key[0]), int(key[1])), record))
        return tuple(found)

    def steps(self, text: str) -> tuple[RunStep, ...]:
        run = read_run_id(self._store, text)
        self._record(run)
        return tuple(
            RunStep(
                path=item.path,
                state=item.state,
                attempts=item.attempts,
                result=unpacked(item.result),
                error=item.error,
                started_ms=item.started_ms,
                ended_ms=item.ended_ms,
            )
            for _key, row in self._store.scan("run_items", run.row)
            if isinstance(row, Row)
            for item in (row.record,)
        )

    def transitions(self, text: str) -> tuple[RunStepped, ...]:
        run = read_run_id(self._store, text)
        self._record(run)
        found: list[RunTransition] = [
            row.record
            for _key, row in self._store.scan("run_transitions", run.row)
            if isinstance(row, Row)
        ]
        return tuple(
            RunStepped(before=each.before, after=each.after, by=each.by, at_ms=each.at_ms)
            for each in found
        )

    async def wait(self, run: RunId) -> RunStatus:
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise closed()
            stirred = self._news.changed
            status = self._status(run, self._record(run))
            if status.ended:
                return status
            # Another process may have it: nobody here hears of that.
            with trio.move_on_after(WAIT_LOOK_S):
                await stirred.wait()

    def _record(self, run: RunId) -> Run:
        row = self._store.get("runs", run.row)
        if row is None:
            raise UnknownRunError(
                f"there is no run {str(run)!r}; nothing was done; list those there are",
                run=str(run),
            )
        record: Run = row.record
        return record

    def _status(self, run: RunId, record: Run) -> RunStatus:
        waits = record.suspension
        last = next(iter(self._store.scan("run_items", run.row, reverse=True, limit=1)), None)
        step = last[1].record.path if last is not None and isinstance(last[1], Row) else None
        done = 0
        if last is not None:
            closed = isinstance(last[1], Row) and last[1].record.state in ("done", "failed")
            done = int(last[0][2]) + closed
        return RunStatus(
            id=str(run),
            key=run.key,
            workflow=record.workflow,
            version=record.version,
            state=record.state,
            reason=record.reason,
            step=waits.path if waits is not None else step,
            steps_done=done,
            total=None if waits is None else waits.total,
            provider=None if waits is None else waits.provider,
            model=None if waits is None else waits.model,
            window=None if waits is None else waits.window,
            retry_at_ms=None if waits is None else waits.retry_at_ms,
            resume_after_ms=None if waits is None else waits.resume_after_ms,
            walls=record.walls,
            lives=record.lives,
            fallback=None
            if record.choice is None
            else (record.choice.provider, record.choice.model),
            started_ms=record.started_ms,
            changed_ms=record.changed_ms,
            result=unpacked(record.result),
        )

    def _workflow(self, name: object) -> Workflow:
        check_name(name, "workflow")
        workflow = self._known.get(str(name))
        if workflow is None:
            raise UnknownWorkflowError(
                f"no workflow {name!r} was added to this runtime; nothing was done; add it first",
                workflow=str(name),
            )
        return workflow

    @property
    def _kept(self) -> RunsKept:
        kept: RunsKept = self._runs._cell.kept
        return kept

    def _tell_of(self, run: RunId, state: str) -> None:
        self._changed(str(run), state)
        self._news.stir()


WAIT_LOOK_S: Final = 5.0
