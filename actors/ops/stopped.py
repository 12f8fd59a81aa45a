"""A state directory whose host does not run: read from its records, released through them.

Invariants:
    I1  Looking opens the store read-only: nothing is created, owned, booted or repaired.
    I2  A release writes the rows that a running host's ledger writes. It is refused where a live
        process owns the agent: that process would not learn of it. The commit guards the owner row
        it judged by, so that a host which claims the agent meanwhile makes it judge again.
    I3  A row that cannot be read hides nothing but what it says.

Blocking; the thread that made it.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from abeyance.actors.domain.alert_book import Alert, check_after, read_alerts
from abeyance.actors.domain.approvals import standing
from abeyance.actors.domain.archive_book import Kind, check_page, read_archive
from abeyance.actors.domain.edit_rows import read_edits
from abeyance.actors.domain.errors import (
    AgentOwnedElsewhereError,
    UnknownAgentError,
    unknown_agent,
)
from abeyance.actors.domain.imports import plan_import, report_dry
from abeyance.actors.domain.ingress import check_model, check_name
from abeyance.actors.domain.mode import plan_mode, read_mode, read_reason, read_window
from abeyance.actors.domain.quota_hold import QuotaHold, read_quota_hold
from abeyance.actors.domain.run_rows import read_run_id
from abeyance.actors.domain.slot_inbox import check_listing, listed
from abeyance.actors.domain.spent_reading import Asked, By, read_stopped
from abeyance.actors.domain.wait_book import ACCOUNT, ProviderWait, WaitAct, WaitBook
from abeyance.actors.domain.wait_offer import line_of
from abeyance.actors.domain.wait_releases import check_known, was_stated_of
from abeyance.actors.replays import actor_of
from abeyance.actors.run_reading import run_record
from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.exclusive import in_use
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import is_locked
from abeyance.storage.store import Append, Committed, Delete, Guard, NotStored, Put, Request
from abeyance.storage.tables.agents import Agent
from abeyance.storage.tables.slots import Head, Turn
from abeyance.storage.tables.waits import Override, WaitReleased

from .answers import report_edit, report_import
from .client import this_requester
from .errors import ControlError, NeedsHostError
from .reports import (
    AdmissionReport,
    AgentReport,
    AlertReport,
    CancelTurnReport,
    CheckReport,
    EditReport,
    EditRowReport,
    EntryReport,
    HeldReport,
    ImportReport,
    InboxRowReport,
    ModelReport,
    ModeReport,
    QuiesceReport,
    ReleasedReport,
    ReleaseReport,
    ReplayReport,
    RewindReport,
    StatusReport,
    UnparkReport,
    WaitReport,
    nothing_lifted,
)
from .requests import EVERY_MODEL
from .run_reports import RunActReport
from .stopped_approvals import StoppedApprovals
from .stopped_check import report_check
from .stopped_outboxes import StoppedOutboxes
from .stopped_runs import StoppedRuns
from .stopped_schedules import StoppedSchedules
from .usage_reports import UsageReport, report_usage

ATTEMPTS_MAX = 10


class ReleaseContestedError(ControlError):
    """The waits kept changing while they were released; some may still bind."""

    code = "release_contested"


class _WallClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class StoppedStore(StoppedRuns, StoppedSchedules, StoppedApprovals, StoppedOutboxes):
    """The store of a state directory, opened by this process.

    Args:
        directory: The state directory.
        writing: Whether `release` will be called. Otherwise the store is only looked at.
        silent_pids: The hosts that run beside it and did not answer.
    Raises:
        StorageError: There is no store there, or it cannot be opened; nothing was changed.
    """

    def __init__(
        self, directory: Path, *, writing: bool = False, silent_pids: tuple[int, ...] = ()
    ) -> None:
        self._directory = directory
        self._silent_pids = silent_pids
        self._clock = _WallClock()
        self._store = LmdbStore.open(
            directory,
            clock_ms=self._clock.now_ms,
            create=False,
            read_only=not writing,
            # An operator looks when something is wrong, and the engine dies of a garbled page.
            verify=True,
        )
        self._owners = self._store.directory / "owners"
        self._waits = WaitBook(self._store, self._clock)

    @property
    def silent_pids(self) -> tuple[int, ...]:
        return self._silent_pids

    @property
    def store(self) -> LmdbStore:
        """The store itself, to look at rows that no report is of."""
        return self._store

    def refuse_open(self, done: str) -> None:
        """Close the store, and refuse, where a process has it open for writing.

        Args:
            done: What would have been done with it, as a participle: `repaired`.
        Raises:
            StoreInUseError: A process has; it is named.
        """
        if self._open_pids():
            self.close()
            raise in_use(self._store.directory, "has it open", done)

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()

    def status(self) -> StatusReport:
        """What the records say. An agent is `held`, `idle`, `interrupted` (an open turn), or
        `unreadable` (a row of it cannot be trusted).

        Raises:
            StorageError: The store cannot be read.
        """
        meta = self._store.get("meta", ("store",))
        self._waits.unreadable.look_over_at_once()
        waits = self._waits.listing()
        return StatusReport(
            directory=os.fspath(self._directory.absolute()),
            store_id="" if meta is None else meta.record.store_id,
            pid=None,
            started_ms=None,
            agents=tuple(
                self._agent(str(key[0]), row, waits) for key, row in self._store.scan("agents")
            ),
            waits=tuple(WaitReport(**wait._asdict()) for wait in waits),
            dead_letters=self._store.count("dead_letters"),
            quarantine=self._store.count("quarantine"),
            open_pids=self._open_pids(),
            silent_pids=self._silent_pids,
            mode=self._mode(),
        )

    def _mode(self) -> ModeReport:
        stored = read_mode(self._store)
        if not stored.is_quiesced:
            return ModeReport(state="serving", reason="", by="", since_ms=None)
        row = stored.record
        return ModeReport(state=row.state, reason=row.reason, by=row.by, since_ms=row.at_ms or None)

    def check(self) -> CheckReport:
        """Read every row and say what is wrong. Blocks for as long as that takes."""
        return report_check(self._directory, self._store, self._open_pids())

    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]:
        """The binding waits of one agent, or of all; on `*` what holds as it cannot be read.

        Raises:
            UnknownAgentError: The filter is no agent's, and no wait's.
        """
        self._waits.unreadable.look_over_at_once()
        found = tuple(WaitReport(**wait._asdict()) for wait in self._waits.listing(agent))
        if agent is not None and not found:
            self._check_known(agent)
        return found

    def _check_known(self, agent: str) -> None:
        """Refuse a name that is no agent's.

        Raises:
            UnknownAgentError: The store has no such agent, and no wait of one.
        """
        check_known(self._store, self._waits, agent)

    def entries(
        self, kind: Kind, *, before: int | None = None, limit: int = 100
    ) -> tuple[EntryReport, ...]:
        """Rows of the dead letters or of the quarantine, the newest first.

        Raises:
            InvalidInputError: An argument is out of its bounds.
        """
        check_page(before, limit)
        found = read_archive(self._store, kind, before=before, limit=limit)
        return tuple(EntryReport(**asdict(entry)) for entry in found)

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[AlertReport, ...]:
        """What operators were told of, oldest first.

        Raises:
            InvalidInputError: An argument is out of its bounds.
        """
        check_after(after, limit)
        found = read_alerts(self._store, after=after, limit=limit)
        return tuple(_mirror_alert(alert) for alert in found)

    def usage(
        self, agent: str | None, since: int | None, *, by: By = "model", zone: str = "UTC"
    ) -> UsageReport:
        """What agents used. As `Runtime.usage`.

        Raises:
            InvalidInputError, InvalidNameError: Names the argument.
        """
        return report_usage(read_stopped(self._store, Asked(agent, since, by, zone)))

    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRowReport, ...]:
        """What waits in an agent's inbox, or slot by slot, in the order it lands.

        Raises:
            InvalidInputError, InvalidNameError: An argument is malformed.
            UnknownAgentError: No such agent in this store.
        """
        check_listing(agent, after, limit)
        rows = (row for row in listed(self._store, agent, after=after) if row is not None)
        return tuple(InboxRowReport(**asdict(row)) for row in islice(rows, limit))

    def import_deferred(
        self, path: str, *, agent: str | None = None, wake: bool = False, dry_run: bool = False
    ) -> ImportReport:
        """Say what an import would come to; a slot is written by its host only.

        Raises:
            InvalidInputError, InvalidNameError: Names the argument or the place in the file.
            NeedsHostError: Unless `dry_run`; nothing was accepted.
        """
        plan = plan_import(path, agent, self._clock.now_ms(), wake=wake, dry_run=dry_run)
        if dry_run:
            return report_import(report_dry(plan))
        raise NeedsHostError(
            f"the {len(plan.entries)} messages of {path} are accepted by the host of their agents, "
            "and none runs here; nothing was done; start the host, then import",
            field="source",
        )

    def replay(self, kind: Kind, number: int) -> ReplayReport:
        """Refuse: the actor that the message is for runs in a host.

        Raises:
            InvalidInputError: The number is none.
            UnknownEntryError, MessageNotKeptError: No such row, or it cannot be trusted.
            NeedsHostError: Always, otherwise; nothing was sent.
        """
        actor_of(self._store, kind, number)
        raise NeedsHostError(
            f"{kind} {number} is sent to an actor, and no host runs here that has one; nothing was "
            "sent; start the host, then replay",
            field="id",
        )

    def take_over_run(self, run: str) -> RunActReport:
        """Refuse: only a host can go on with it, and one whose owner is dead needs no taking over.

        Raises:
            InvalidRunError, UnknownRunError: There is none of that name.
            NeedsHostError: Always, otherwise; nothing was done.
        """
        run_record(self._store, read_run_id(self._store, run))
        raise NeedsHostError(
            f"run {run!r} is taken over by a host that goes on with it, and none answers here; "
            "nothing was done; start one that has its workflow, then take it over",
            field="run",
        )

    def unpark(self, group: str | None = None, *, agent: str | None = None) -> UnparkReport:
        """Refuse: nothing is parked but in a process that runs.

        Raises:
            UnknownAgentError: No such agent in this store.
            NeedsHostError: Always, otherwise; nothing was done.
        """
        if agent is not None:
            self._check_known(agent)
        what = f"group {group!r}" if agent is None else f"agent {agent!r}"
        raise NeedsHostError(
            f"{what} is parked in a process only, and no host answers here; nothing was done; a "
            "host that starts has nothing parked",
            field="group" if agent is None else "agent",
        )

    def rewind(self, agent: str, to: str | int | None) -> RewindReport:
        """Refuse: a transcript is written by its agent's host only.

        Raises:
            UnknownAgentError: No such agent in this store.
            NeedsHostError: Always, otherwise; nothing was rewound.
        """
        self._check_known(agent)
        what = "undo a rewind" if to is None else f"rewind to {to!r}"
        raise NeedsHostError(
            f"to {what} the transcript of {agent!r} takes its host, and none runs here; nothing "
            "was done; start the host, then rewind",
            field="agent",
        )

    def cancel_turn(self, agent: str, turn: int | None) -> CancelTurnReport:
        """Refuse: a turn is ended by its agent's host only.

        Raises:
            UnknownAgentError: No such agent in this store.
            NeedsHostError: Always, otherwise; nothing was done.
        """
        self._check_known(agent)
        what = "the open turn" if turn is None else f"turn {turn}"
        raise NeedsHostError(
            f"to cancel {what} of {agent!r} takes its host, and none runs here; nothing was done; "
            "start the host, then cancel it",
            field="agent",
        )

    def set_model(self, agent: str, model: str | None, provider: str | None) -> ModelReport:
        """Refuse: which providers there are only a host knows.

        Raises:
            UnknownAgentError: No such agent in this store.
            NeedsHostError: Always, otherwise; nothing was changed.
        """
        self._check_known(agent)
        raise NeedsHostError(
            f"to choose a model for {agent!r} takes its host, and none runs here; nothing was "
            "done; start the host, then choose",
            field="agent",
        )

    def edit(self, agent: str, message: str | int, blocks: str | list[Any] | None) -> EditReport:
        """Refuse: a transcript is written by its agent's host only.

        Raises:
            UnknownAgentError: No such agent in this store.
            NeedsHostError: Always, otherwise; nothing was changed.
        """
        what = "take out" if blocks is None else "edit"
        raise self._needs_host(agent, f"{what} message {message!r}")

    def undo_edit(self, agent: str, edit: int) -> EditReport:
        """Refuse. As `edit`."""
        raise self._needs_host(agent, f"undo edit {edit}")

    def _needs_host(self, agent: str, what: str) -> NeedsHostError:
        self._check_known(agent)
        return NeedsHostError(
            f"to {what} of the transcript of {agent!r} takes its host, and none runs here; nothing "
            "was done; start the host, then edit",
            field="agent",
        )

    def edits(self, agent: str) -> tuple[EditRowReport, ...]:
        """The edits of an agent's transcript that are kept, oldest first.

        Raises:
            UnknownAgentError: No such agent in this store.
            UnreadableRecordError: Which slot is its own cannot be read.
        """
        row = self._store.get("agents", (agent,))
        if row is None:
            raise unknown_agent(agent)
        return tuple(map(report_edit, read_edits(self._store, row.record.slot)))

    def quiesce(self, reason: str, within_s: float) -> QuiesceReport:
        """Have the next host start no turn; there is none here to drain.

        Durable: on return.

        Raises:
            InvalidInputError: An argument is malformed; nothing was done.
            ReleaseContestedError: Another process wrote the same row again and again.
            StorageError: The commit failed; nothing was done.
        """
        read_window(within_s)
        return self._write_mode("quiesced", read_reason(reason))

    def resume(self) -> QuiesceReport:
        """Have the next host start turns again. As `quiesce`."""
        return self._write_mode("serving", "")

    def _write_mode(self, state: Literal["serving", "quiesced"], reason: str) -> QuiesceReport:
        by = this_requester()
        for _ in range(ATTEMPTS_MAX):
            stored = read_mode(self._store)
            was, why = stored.record.state, reason or stored.record.reason
            if state == was == "serving":
                return QuiesceReport(state=state, was=was, reason="")
            requests = plan_mode(stored, state, why, by, self._clock.now_ms())
            outcomes = self._store.commit(*requests)
            if all(isinstance(outcome, Committed) for outcome in outcomes):
                return QuiesceReport(state=state, was=was, reason=why)
            for outcome in outcomes:
                if isinstance(outcome, NotStored):
                    raise outcome.error
        raise ReleaseContestedError(
            f"the host's mode changed {ATTEMPTS_MAX} times while it was written; see the status, "
            "then try again"
        )

    def release(self, agent: str, model: str = EVERY_MODEL) -> ReleaseReport:
        """End the waits of one agent: one model's, or with `*` every model's.

        Durable: on return.

        Raises:
            UnknownAgentError: No such agent and no wait on record of one; nothing was released.
            AgentOwnedElsewhereError: A live process owns it; nothing was released.
            ReleaseContestedError: Another process wrote the same rows again and again.
            NeedsHostError: It is a credential, or the agent is held by keys that cannot be read;
                nothing was released.
            StorageError: The commit failed; nothing was released.
        """
        check_name(agent, "agent")
        if model != EVERY_MODEL:
            check_model(model, "model")
        self._owner_guard(agent)
        self._waits.unreadable.look_over_at_once()
        known = self._store.get("agents", (agent,)) is not None
        known = known or was_stated_of(self._store, self._waits, agent)
        if not known and not self._waits.listing(agent):
            raise UnknownAgentError(
                f"no agent {agent!r} in this store and no wait of one; nothing was released; "
                "list the waits for the names there are",
                agent=agent,
            )
        for _ in range(ATTEMPTS_MAX):
            # Each time anew: a host may have claimed the agent since, and read its waits already.
            owner = self._owner_guard(agent)
            self._refuse_what_is_no_row(agent, model)
            lifted = [w for w in self._waits.listing(agent) if model in (EVERY_MODEL, w.model)]
            quota = self._quota(agent, model)
            if not lifted and quota is None:
                return ReleaseReport(released=(), nothing=nothing_lifted(agent, self.waits(agent)))
            outcomes = self._store.commit(*self._requests(agent, owner, lifted, quota))
            if all(isinstance(outcome, Committed) for outcome in outcomes):
                for wait in lifted:
                    self._waits.unreadable.mend((wait.agent, wait.model))
                self._waits.forget(agent)
                models = [wait.model for wait in lifted] + ([] if quota is None else [quota.model])
                return ReleaseReport(
                    released=tuple(
                        ReleasedReport(agent=agent, model=each, reach="recorded") for each in models
                    )
                )
            if isinstance(outcomes[0], NotStored):
                raise outcomes[0].error
        raise ReleaseContestedError(
            f"the waits of {agent} changed {ATTEMPTS_MAX} times while they were released; "
            "some may still bind; list them and release again"
        )

    # -- reading -----------------------------------------------------------------------------

    def _held(self, name: str, turn: Turn, waits: tuple[ProviderWait, ...]) -> HeldReport | None:
        held = _held(turn, waits, quota=self._waits.quota_hold(name))
        if held is None or held.cause != "approval":
            return held
        until = standing(self._store, name, self._clock.now_ms()).deadline_ms
        return msgspec.structs.replace(held, deadline_ms=until)

    def _agent(self, name: str, row: Any, waits: tuple[ProviderWait, ...]) -> AgentReport:
        model, inbox = "", 0
        binding = tuple(WaitReport(**wait._asdict()) for wait in waits if wait.agent == name)
        admission = AdmissionReport(waits=binding, pending=0, calls=0)
        try:
            if isinstance(row, Exception):
                raise row
            record: Agent = row.record
            model = record.model if record.chosen is None else record.chosen.model
            inbox = self._count("inbox", (record.slot,))
            number, turn = self._open_turn(name)
        except UnreadableRecordError:
            return AgentReport(
                name=name,
                state="unreadable",
                model=model,
                turn=None,
                round=None,
                attempts=None,
                held=None,
                inbox=inbox,
                wakes=self._count("wakes", (name,)),
                admission=admission,
            )
        state: Literal["idle", "held", "interrupted"] = "idle"
        if turn is not None:
            state = "held" if turn.held is not None else "interrupted"
        return AgentReport(
            name=name,
            state=state,
            model=model if turn is None else turn.model,
            turn=number,
            round=None if turn is None else turn.round,
            attempts=None if turn is None else turn.attempts,
            held=None if turn is None else self._held(name, turn, waits),
            inbox=inbox,
            wakes=self._count("wakes", (name,)),
            admission=admission,
        )

    def _open_turn(self, agent: str) -> tuple[int | None, Turn | None]:
        head: Head | None = _record(self._store.get("heads", (agent,)))
        if head is None or head.open_turn is None:
            return None, None
        return head.open_turn, _record(self._store.get("turns", (agent, head.open_turn)))

    def _count(self, table: str, prefix: tuple[str, ...] = ()) -> int:
        return sum(1 for _ in self._store.scan(table, prefix))

    def _open_pids(self) -> tuple[int, ...]:
        """The live processes that have the store open; 0 for one whose record cannot be read."""
        owners = self._store.directory / "owners"
        pids = []
        for proof in sorted(owners.iterdir()) if owners.is_dir() else ():
            if is_locked(proof):
                try:
                    process = _record(self._store.get("processes", (proof.name,)))
                except UnreadableRecordError:
                    process = None
                pids.append(0 if process is None else process.pid)
        return tuple(pids)

    # -- releasing ---------------------------------------------------------------------------

    def _requests(
        self, agent: str, owner: Guard, lifted: list[ProviderWait], quota: QuotaHold | None
    ) -> list[Request]:
        """The requests of one release. They are decided in one transaction, and hold together."""
        acts = []
        for wait in lifted:
            unread = self._waits.unreadable.unreplaceable((agent, wait.model))
            if unread is None:
                acts.append(WaitAct((agent, wait.model), self._released()))
            else:
                acts.append(self._overridden((agent, wait.model, "unreadable"), unread.fingerprint))
        if quota is not None:
            acts.append(self._overridden((agent, quota.model, "quota"), quota.fingerprint))
        guards: list[Guard] = [owner]
        unreadable: list[tuple[str, Any]] = []
        for act in acts:
            try:
                row = self._store.get(act.table, act.key)
            except UnreadableRecordError:
                unreadable.append((act.table, act.key))
            else:
                guards.append(Guard(act.table, act.key, 0 if row is None else row.counter))
        puts = [Put(act.table, act.key, encode(act.record)) for act in acts]
        appends = [Append("log", encode(line_of(act))) for act in acts]
        if not unreadable:
            return [Request(guards=tuple(guards), puts=tuple(puts), appends=tuple(appends))]
        # Nothing can be put over a row that cannot be read, and it has no counter to guard: it is
        # deleted first. Under the same guards, so that it stays where the rest is refused.
        deletes = tuple(Delete(table, key) for table, key in unreadable)
        gone = tuple(Guard(table, key, 0) for table, key in unreadable)
        return [
            Request(guards=tuple(guards), deletes=deletes),
            Request(guards=gone, puts=tuple(puts), appends=tuple(appends)),
        ]

    def _refuse_what_is_no_row(self, agent: str, model: str) -> None:
        if agent.startswith(ACCOUNT):
            raise NeedsHostError(
                f"{agent!r} is a credential, whose waits hold whichever agents call with it; "
                "nothing was released; start a host of them, then release",
                field="agent",
            )
        stand_in = self._waits.unreadable.wide(agent)
        if stand_in is not None and not self._waits.unreadable.lifted(agent, model, stand_in):
            raise NeedsHostError(
                f"agent {agent!r} is held by waits whose keys cannot be read, and no row here can "
                "be released instead; nothing was released; start its host, then release",
                field="agent",
            )

    def _released(self) -> WaitReleased:
        now_ms = self._clock.now_ms()
        return WaitReleased(by=this_requester(), at_ms=now_ms, act=_act_id(now_ms))

    def _overridden(self, key: tuple[str, str, str], fingerprint: str) -> WaitAct:
        by, now_ms = this_requester(), self._clock.now_ms()
        override = Override(fingerprint=fingerprint, by=by, at_ms=now_ms, act=_act_id(now_ms))
        return WaitAct(key, override, "overrides")

    def _quota(self, agent: str, model: str) -> QuotaHold | None:
        """The quota that holds the agent's turn, of this model, and was not released."""
        hold = read_quota_hold(self._store, agent)
        if hold is None or model not in (EVERY_MODEL, hold.model):
            return None
        is_over = self._waits.overrides.quota(agent, hold.model) == hold.fingerprint
        return None if is_over else hold

    def _owner_guard(self, agent: str) -> Guard:
        """See that no live process owns the agent; the guard under which that still holds."""
        key = ("agent", agent)
        owner = self._store.get("owners", key)
        guard = Guard("owners", key, 0 if owner is None else owner.counter)
        if owner is None or not is_locked(self._store.directory / "owners" / owner.record.nonce):
            return guard
        process = _record(self._store.get("processes", (owner.record.nonce,)))
        pid, host = (0, "?") if process is None else (process.pid, process.host)
        raise AgentOwnedElsewhereError(
            f"agent {agent!r} is run by process {pid} on {host}, which serves no control socket "
            "here; nothing was done; do it there, or stop that process first",
            agent=agent,
            pid=pid,
            host=host,
        )


def _mirror_alert(alert: Alert) -> AlertReport:
    assert alert.id is not None
    return AlertReport(**alert.as_json())


def _record(row: Any) -> Any:
    return None if row is None else row.record


def _act_id(now_ms: int) -> str:
    return f"{now_ms:x}-{secrets.token_hex(6)}"


def _held(
    turn: Turn, waits: tuple[ProviderWait, ...], *, quota: QuotaHold | None
) -> HeldReport | None:
    """What the turn names, with the end and the reason of the wait that it names; `quota` is what
    holds it still where that is a quota."""
    held = turn.held
    if held is None:
        return None
    for wait in waits:
        if held.cause not in ("approval", "context") and (wait.agent, wait.model) == (
            held.agent,
            held.model,
        ):
            return HeldReport(
                model=held.model,
                cause=held.cause,
                deadline_ms=wait.deadline_ms,
                reason=wait.reason,
                window=wait.window,
                of_quota=wait.of_quota,
            )
    if held.cause == "approval":
        reason = "a person decides on its calls; list the approvals for which"
    elif held.cause == "context":
        reason = "its request was too long; it is compiled anew at the next start"
    elif quota is not None:
        reason = "quota exhausted; an operator ends this hold"
    elif held.cause in ("cooldown", "host"):
        reason = "its pause was over with its process; it goes on at the next start"
    else:
        reason = "its wait is over or released; it goes on at the next start"
    return HeldReport(
        model=held.model,
        cause=held.cause,
        deadline_ms=None,
        reason=reason,
        window=held.window,
        of_quota=held.cause == "quota",
    )
