"""Starting, moving and ending runs of workflows: the runtime's part of it.

Each verb is a decision on the run's row, by compare-and-set; the actor of runs is told afterwards.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace as replaced
from typing import Any

import trio
from msgspec.structs import replace

from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Guard, Put, Refused, Row, Store
from abeyance.storage.tables.runs import Choice, Run

from .core import Supervisor, TrioActorRef
from .core.clock import Clock
from .core.errors import ActorDeadError
from .domain.errors import QuiescedError
from .domain.fallback import ModelChoice
from .domain.ingress import check_name
from .domain.mode import HostMode
from .domain.run_acts import (
    RESUMABLE,
    Decision,
    cancelled,
    check_decided,
    check_reason,
    decided,
    read_decision,
    settle_doubt,
)
from .domain.run_claims import Claim, Claims
from .domain.run_errors import (
    InvalidRunError,
    RunOpenError,
    RunOwnedElsewhereError,
    RunStateError,
    UnknownWorkflowError,
)
from .domain.run_folders import RunFolders
from .domain.run_protocol import (
    Begin,
    CutOff,
    LookForRuns,
    News,
    StopRuns,
    WorkflowAdded,
)
from .domain.run_rows import (
    ENDED,
    LIVE,
    WAITING,
    RunId,
    check_key,
    first_request,
    is_owned,
    pack_plain,
    read_run_id,
)
from .domain.run_turns import Agents
from .domain.run_workflow import Finaliser, Workflow, check_workflow, other_version
from .domain.step_threads import StepThreads
from .members import Parking
from .run_looking import RunHandle, RunLooks
from .run_reading import (
    run_record,
)
from .run_status import RunReceipt


class Workflows(RunLooks):
    """The runs of one runtime."""

    def __init__(
        self,
        store: Store,
        folders: RunFolders,
        ownership: Ownership,
        journal: TrioActorRef[Any],
        group: Supervisor,
        parking: Parking,
        clock: Clock,
        news: News,
        mode: HostMode,
        changed: Callable[[str, str], None],
        threads: StepThreads,
        agents: Agents,
    ) -> None:
        super().__init__(store, folders, ownership, group, news)
        self._agents = agents
        self._journal = journal
        self._parking = parking
        self._threads = threads
        self._clock = clock
        self._mode = mode
        self.claims = Claims(store, journal, ownership, clock, mode, threads)
        self._changed = changed
        self._known: dict[str, Workflow] = {}

    async def stop(self) -> None:
        """Have every life end, with what it came to recorded; shorter where they are parked."""
        if self._group.state == "parked":
            # Nobody in it answers; nothing of it runs, and what its rows say goes on later.
            await self._group.stop()
            return
        with suppress(ActorDeadError), self._parking.cut_off():
            await self._runs.ask(StopRuns())

    def add(
        self,
        name: str,
        function: Callable[..., Awaitable[Any]],
        version: int,
        finalisers: Sequence[Finaliser],
        buffer_s: float,
        fallbacks: Sequence[ModelChoice],
    ) -> None:
        workflow = check_workflow(name, function, version, finalisers, buffer_s, fallbacks)
        if name in self._known:
            raise InvalidRunError("name", f"a workflow {name!r} was added before")
        self._known[name] = workflow
        self._runs.tell(WorkflowAdded(workflow))

    async def start(self, key: str, name: str, params: Any, by: str) -> RunHandle:
        check_key(key, "key")
        workflow = self._workflow(name)
        packed = pack_plain(params, "params")
        while True:
            self._check_executes()
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
            guards, puts = self.claims.owned(run)
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
        in_doubt: Decision | None = None,
        result: Any = None,
        choice: Choice | None = None,
    ) -> RunReceipt:
        run = read_run_id(self._store, text)
        record = run_record(self._store, run)
        workflow = self._workflow(record.workflow)
        self._check_executes()
        self._check_serving()
        packed = read_decision(in_doubt, result)
        if record.state in LIVE and run in self._kept.given_up:
            # Its row says that it is live, and nothing here executes it.
            self._runs.tell(Begin(run))
            return RunReceipt(id=str(run), state=record.state, changed=True)

        def decide(record: Run) -> Run | None:
            if record.state not in RESUMABLE:
                return None
            _check_version(run, record, workflow)
            check_decided(self._store, run, record, in_doubt)
            taken = self.claims.taken_up(decided(record, in_doubt))
            return taken if choice is None else replace(taken, choice=choice)

        def settle(_row: Row) -> tuple[tuple[Guard, ...], tuple[Put, ...]]:
            return settle_doubt(self._store, run, in_doubt, packed, self._clock.now_ms())

        self._kept.coming.add(run)
        try:
            claim = await self.claims.move(run, decide, by, puts=settle)
        except BaseException:
            self._kept.coming.discard(run)
            raise
        if not claim.won:
            self._kept.coming.discard(run)
        return self._receipt(run, claim, begin=True)

    async def use_fallback(self, text: str, by: str, choice: Choice) -> RunReceipt:
        """Have a waiting run go on with another model, or the agent that it waits for."""
        run = read_run_id(self._store, text)
        record = run_record(self._store, run)
        waits = record.suspension
        self._check_executes()
        self._check_serving()
        if record.state not in WAITING or waits is None or waits.agent is None:
            if record.state in RESUMABLE:
                self._check_choice(self._workflow(record.workflow), choice)
            return await self.resume(text, by, choice=choice)
        changed = await self._agents.choose(waits.agent, choice.provider, choice.model, by)
        if changed is None:
            raise RunStateError(
                f"run {str(run)!r} waits for a turn of agent {waits.agent!r}, which is not in this "
                "runtime; nothing was done; choose its model where it is",
                run=str(run),
                state=record.state,
            )
        return RunReceipt(id=str(run), state=record.state, changed=changed)

    def _check_choice(self, workflow: Workflow, choice: Choice) -> None:
        if workflow.fallbacks:
            if not workflow.may_use(choice.provider, choice.model):
                named = ", ".join(f"{each.provider}/{each.model}" for each in workflow.fallbacks)
                known = any(each.provider == choice.provider for each in workflow.fallbacks)
                field = "model" if known else "provider"
                raise InvalidRunError(field, f"must be of a fallback of its workflow: {named}")
        elif not self._agents.has_provider(choice.provider):
            raise InvalidRunError(
                "provider",
                f"must be one that was added (add_provider), or a fallback that {workflow.name!r} "
                f"was added with; {choice.provider!r} is neither",
            )

    async def take_over(self, text: str, by: str) -> RunReceipt:
        run = read_run_id(self._store, text)
        workflow = self._workflow(run_record(self._store, run).workflow)
        self._check_executes()
        self._check_serving()

        def decide(record: Run) -> Run | None:
            # What waits is nobody's to be taken from, but for one with a thread left.
            if not is_owned(record) or self.claims.owner_guard(run) is not None:
                return None
            _check_version(run, record, workflow)
            if record.state in LIVE:
                return self.claims.taken_up(record)
            return replace(record, changed_ms=self._clock.now_ms())

        self._kept.coming.add(run)
        try:
            claim = await self.claims.move(run, decide, by, force=True)
        finally:
            if self.claims.owner_guard(run) is None:
                self._kept.coming.discard(run)
        if claim.state not in LIVE:
            self._kept.coming.discard(run)
            self.look()
        return self._receipt(run, claim, begin=True)

    async def cancel(self, text: str, by: str, reason: str) -> RunReceipt:
        run = read_run_id(self._store, text)
        run_record(self._store, run)
        check_reason(reason)

        def decide(record: Run) -> Run | None:
            return cancelled(record, reason, by, self._clock.now_ms())

        claim = await self.claims.move(run, decide, by)
        receipt = self._receipt(run, claim, begin=False)
        # When this returns, nothing of it runs but a thread; where they are parked nothing did.
        if self._group.state != "parked":
            with self._parking.cut_off():
                await self._runs.ask(CutOff(run, receipt.state))
        threads = self._threads.running(run)
        self._threads.forget(run)
        return replaced(receipt, threads=threads)

    def _receipt(self, run: RunId, claim: Claim, *, begin: bool) -> RunReceipt:
        if claim.elsewhere and claim.state not in ENDED:
            raise RunOwnedElsewhereError(
                f"run {str(run)!r} is owned by process {claim.pid} on {claim.host}, which lives; "
                "nothing was done; do it there, or, where it hangs, have another that has its "
                "workflow take the run over (take_over_run, or abeyance take-over)",
                run=str(run),
                pid=claim.pid,
                host=claim.host,
            )
        if claim.won:
            if begin:
                self._runs.tell(Begin(run))
            self._tell_of(run, claim.state)
        return RunReceipt(id=str(run), state=claim.state, changed=claim.won)  # type: ignore[arg-type]

    def find(self, name: str) -> Workflow | None:
        """A workflow that was added here, by its name; none while nobody here executes runs."""
        return None if self._group.state == "parked" else self._known.get(name)

    def _workflow(self, name: object) -> Workflow:
        check_name(name, "workflow")
        workflow = self._known.get(str(name))
        if workflow is None:
            raise UnknownWorkflowError(
                f"no workflow {name!r} was added to this runtime; nothing was done; add it first",
                workflow=str(name),
            )
        return workflow

    def _tell_of(self, run: RunId, state: str) -> None:
        self._changed(str(run), state)
        self._news.stir()


def _check_version(run: RunId, record: Run, workflow: Workflow) -> None:
    if workflow.version != record.version:
        raise RunStateError(
            f"run {str(run)!r} cannot go on here: {other_version(record, workflow)}; "
            "nothing was done; register that version, or cancel the run",
            run=str(run),
            state=record.state,
        )
