"""Ephemeral runs: one turn of an agent whose name is used once, and its last words.

A run has a slot and a gate of its own and records no wait. It sleeps a stated wait of up to
`EPHEMERAL_SLEEP_MAX_MS`, with its turn put down meanwhile, and ends at a longer one.

Invariants:
    I1  No call of a run is made before an instant that a provider stated to it.
    I2  However a run ends, its turn has an end, what was queued for it is in its slot, and nobody
        waits for it any more.
    I3  A run that a death cut off is closed by the next opening of the store, never resumed.

Runs in: the task of whoever asked for the run, on the loop thread.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Put
from abeyance.storage.tables.agents import Ephemeral
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import body_key

from .core import ChildSpec, Supervisor, SupervisorSpec
from .core.errors import ActorDeadError
from .core.logs import Log
from .disposal import dispose
from .domain.attachment_rows import check_named, check_sizes
from .domain.drafts import Draft, read_message
from .domain.errors import (
    AgentOwnedElsewhereError,
    InvalidNameError,
    InvalidSpecError,
    MessageTooLargeError,
    NotStoredError,
    RunExhaustedError,
    RunFailedError,
    RunInterruptedError,
)
from .domain.gate import Gate
from .domain.ingress import Content
from .domain.limits import EPHEMERAL_SLEEP_MAX_MS, RECHECK_MS
from .domain.mode import Quiesced
from .domain.persistence import Recording
from .domain.protocol import Peek
from .domain.slot_messages import NothingToDo, StartTurn, TurnStart
from .domain.slot_rows import read_rows
from .domain.spec import AgentSpec, check_spec
from .domain.turn import TurnEnded, TurnHeld, TurnSeams, TurnSettings, TurnTask
from .domain.turn_spans import ended, turn_span
from .domain.verdict import Streak
from .domain.wait_book import Deferral
from .providers.port import name_of

if TYPE_CHECKING:
    from .runtime import Runtime

NAME_BYTES_MAX: Final = 114
"""Of a specification's name: the rest of a run's name makes it the only one."""
QUIESCED: Final = "the host is quiesced"
INTERRUPTED: Final = "this run was interrupted; it is not taken up again"
_logger = Log(__name__)

declare("ephemeral.started", "a run is recorded and has done nothing yet")
declare("ephemeral.answered", "a run's turn is over and the run is not")


class EphemeralRun:
    """One run."""

    def __init__(self, runtime: Runtime, settings: TurnSettings, spec_name: str) -> None:
        self.name = settings.name
        self._spec_name = spec_name
        self.slot: Any = None
        self.ended = trio.Event()
        self._runtime = runtime
        self._settings = settings
        self._scope = trio.CancelScope()
        self._why = "its actors ended"
        self._sleeps = False
        self._may_sleep = True
        self._task: TurnTask | None = None

    def stop(self, why: str = "the runtime stops") -> None:
        """End the run, and tell whoever waits for it so."""
        self._why = why
        self._scope.cancel()

    def drain(self) -> None:
        """The host is quiesced: the turn may run to its end; a sleep leads to none, and is cut."""
        self._may_sleep = False
        if self._sleeps:
            self.stop(QUIESCED)

    async def run(self, content: Content, author: str) -> str:
        """See `Runtime.run_ephemeral`."""
        runtime, name = self._runtime, self.name
        draft = Draft(content, author)
        limits = self._settings.limits
        try:
            accept = read_message(runtime.clock, name, draft, limits.message_bytes_max)
            check_sizes(accept.named, limits.attachment_bytes_max)
        except MessageTooLargeError as error:
            error.messages = (draft,)
            raise
        check_named(runtime._store, accept.named)
        await runtime._groups.own(name)
        begun = Ephemeral(started_ms=runtime.clock.now_ms())
        row = Put("ephemerals", (name,), encode(begun))
        await runtime._groups.record(self._settings, "ephemeral", None, row)
        crashpoint("ephemeral.started")
        said: str | None = None
        groups: list[Supervisor] = []
        try:
            with self._scope:
                spender = runtime._spending.of(name)
                await spender.prepare(self._settings.budgets, kept=False)
                home = await runtime._groups.start_slot(name)
                groups.append(home.group)
                self.slot = home.group.refs["slot"]
                gate_group = await self._start_gate()
                groups.append(gate_group)
                await self.slot.ask(accept)
                said = await self._turns(gate_group.refs["gate"])
        except ActorDeadError as error:
            raise self._interrupted() from error
        finally:
            with trio.CancelScope(shield=True):
                await self._leave(groups)
        if said is None:
            raise self._interrupted()
        return said

    async def _turns(self, gate: Any) -> str:
        """Run the turn, and sleep what is stated between its calls."""
        runtime, settings = self._runtime, self._settings
        seams = TurnSeams(
            slot_name=self.name,
            slot=self.slot,
            gate=gate,
            store=runtime._store,
            runner=runtime._runner,
            clock=runtime.clock,
            recording=Recording(runtime.clock.now_ms),
            usage=runtime._groups.usage_of(settings),
            spending=runtime._spending.of(self.name),
            alerts=runtime._groups._desk,
            room=runtime._groups.room_of(self._spec_name, settings),
            spans=runtime._system.spans,
        )
        streak = Streak()
        while True:
            span = turn_span(seams.spans, settings, once=self._spec_name)
            start: TurnStart | NothingToDo | Quiesced = await self.slot.ask(
                StartTurn(
                    agent=self.name,
                    provider=type(settings.provider).__name__,
                    model=settings.model,
                    carries_injections=settings.provider.carries_injections,
                    at_ms=runtime.clock.now_ms(),
                    system=settings.system if isinstance(settings.system, str) else None,
                    asks_system=callable(settings.system),
                    trace=span.place,
                )
            )
            if not isinstance(start, TurnStart):
                if isinstance(start, Quiesced):
                    self._why = QUIESCED
                raise self._interrupted()
            self._task = TurnTask(start, settings, seams, streak, span=span)
            with self._task.traced():
                async with seams.room.turn():
                    outcome = await self._task.run()
                ended(span, "held" if isinstance(outcome, TurnHeld) else outcome.state)
            task, self._task = self._task, None
            if isinstance(outcome, TurnEnded):
                crashpoint("ephemeral.answered")
                return self._answer(outcome, task)
            await self._sleep_all(gate, outcome.deferral)

    def _answer(self, outcome: TurnEnded, task: TurnTask) -> str:
        store, number = self._runtime._store, task.start.turn
        if outcome.state != "done":
            row = store.get("turns", (self.name, number))
            why = "it failed" if row is None or row.record.error is None else row.record.error
            raise RunFailedError(
                f"ephemeral run {self.name!r}: {why}; it is over, and what it said is in its slot; "
                "mend the cause and run it again",
                agent=self.name,
            )
        for _, entry in read_rows(store, "slots", (self.name,), reverse=True):
            if (entry.turn, entry.role) == (number, "assistant"):
                row = store.get("bodies", body_key(self.name, entry))
                blocks = () if row is None else row.record.blocks
                return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        return ""

    async def _sleep_all(self, gate: Any, held: Deferral | None) -> None:
        """Sleep until nothing holds the model any more, or end the run where that is too long.

        The gate is asked again before the turn goes on: who waits for others behind a wall of its
        account is told to ask again soon, however often, and a turn that is taken up writes.
        """
        self._sleeps = True
        while held is not None:
            await self._sleep(held)
            held = await gate.ask(Peek(self._settings.model, "ephemeral"))
        self._sleeps = False

    async def _sleep(self, deferral: Deferral) -> None:
        """Sleep a stated wait in full, or end the run where that is too long."""
        clock, deadline_ms = self._runtime.clock, deferral.deadline_ms
        if deadline_ms is None:
            raise RunExhaustedError(
                f"ephemeral run {self.name!r}: model {deferral.model!r} is held until released "
                f"({deferral.cause}: {deferral.reason}), and nothing says when that is, so the "
                "run slept not at all and is over; run it again when the model is free",
                agent=self.name,
                model=deferral.model,
                provider=name_of(self._settings.provider),
                cause=deferral.cause,
                window=deferral.window,
                of_quota=deferral.of_quota,
                reading=self._runtime._groups.usage_of(self._settings).newest(),
                deadline_ms=None,
                stated_ms=None,
                sleep_max_ms=EPHEMERAL_SLEEP_MAX_MS,
            )
        stated_ms = max(0, deadline_ms - clock.now_ms())
        if stated_ms > EPHEMERAL_SLEEP_MAX_MS:
            # In whole seconds, as it was stated: some milliseconds of it have passed.
            raise RunExhaustedError(
                f"ephemeral run {self.name!r}: model {deferral.model!r} is held for another "
                f"{-(-stated_ms // 1_000)} s ({deferral.reason}), past the "
                f"{EPHEMERAL_SLEEP_MAX_MS / 1_000:g} s that a run sleeps; it is over and made no "
                "further call; run it again at its `deadline_ms`",
                agent=self.name,
                model=deferral.model,
                provider=name_of(self._settings.provider),
                cause=deferral.cause,
                window=deferral.window,
                of_quota=deferral.of_quota,
                deadline_ms=deadline_ms,
                stated_ms=stated_ms,
                sleep_max_ms=EPHEMERAL_SLEEP_MAX_MS,
            )
        if not self._may_sleep:
            self.stop(QUIESCED)
        while (left_ms := deadline_ms - clock.now_ms()) > 0:  # noqa: ASYNC110 - no event there.
            # In steps: a wall clock that is turned on ends the sleep, one turned back prolongs it.
            await trio.sleep(min(left_ms, RECHECK_MS) / 1_000)

    async def _start_gate(self) -> Supervisor:
        runtime, name = self._runtime, self.name
        account = runtime._groups._account(self._settings)
        group: Supervisor = await runtime._system.start_supervisor(
            SupervisorSpec(
                id=f"run:{name}",
                children=(
                    ChildSpec(
                        "gate",
                        Gate,
                        (
                            name,
                            runtime._ledger,
                            runtime._waits,
                            runtime.clock,
                            account,
                            runtime._groups.usage_of(self._settings),
                        ),
                        name=f"gate:{name}",
                    ),
                ),
                on_exhausted="park",
            ),
            parent=runtime._root,
        )
        return group

    async def _leave(self, groups: list[Supervisor]) -> None:
        """End the turn where it has no end, land what was queued, and let go of everything."""
        runtime, name = self._runtime, self.name
        try:
            if self._task is not None:
                await self._task.end("cancelled", INTERRUPTED, give_back=False)
            if self.slot is not None:
                await dispose(self.slot, name, "ephemeral", None, None, "its end", runtime)
        except (ActorDeadError, NotStoredError) as error:
            _logger.error(
                "ephemeral run %r is closed by the next start: %s", name, error, agent=name
            )
        finally:
            for group in reversed(groups):
                await group.stop()
            await runtime._spending.end(name)
            runtime._runner.disown(name)
            self.ended.set()

    def _interrupted(self) -> RunInterruptedError:
        return RunInterruptedError(
            f"ephemeral run {self.name!r}: {self._why}; it is over and is not taken up again; run "
            "it again after the next start",
            agent=self.name,
        )


class EphemeralRuns:
    """The runs of a runtime that have not ended."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.runs: dict[str, EphemeralRun] = {}

    async def run(self, spec: AgentSpec, content: Content, author: str) -> str:
        """See `Runtime.run_ephemeral`."""
        settings = check_spec(spec)
        self._runtime._spending.check_priced(settings)
        if settings.slot != settings.name:
            raise InvalidSpecError("slot", "must be None: an ephemeral run has a slot of its own")
        for place, tool in enumerate(settings.tools.values()):
            if tool.approval is not None:
                raise InvalidSpecError(
                    f"tools[{place}].approve", "must be False: an ephemeral run waits for nobody"
                )
        if len(settings.name.encode()) > NAME_BYTES_MAX:
            raise InvalidNameError(
                "name", f"must be at most {NAME_BYTES_MAX} bytes of UTF-8 for an ephemeral run"
            )
        name = f"{settings.name}.{secrets.token_hex(6)}"
        once = replace(settings, name=name, slot=name, purpose="ephemeral")
        run = EphemeralRun(self._runtime, once, settings.name)
        self.runs[name] = run
        try:
            return await run.run(content, author)
        finally:
            # Also of a run that did not get as far as to have anything to end.
            run.ended.set()
            del self.runs[name]

    async def stop(self) -> None:
        """End every run, and wait until each is stored."""
        for run in list(self.runs.values()):
            run.stop()
        for run in list(self.runs.values()):
            await run.ended.wait()

    async def drained(self) -> None:
        """Wait until every run is over; one that sleeps a stated wait is ended now."""
        for run in list(self.runs.values()):
            run.drain()
        for run in list(self.runs.values()):
            await run.ended.wait()

    def end_for_quiesce(self) -> tuple[str, ...]:
        """End what is left of them, and say which."""
        for run in self.runs.values():
            run.stop(QUIESCED)
        return tuple(sorted(self.runs))

    async def close_interrupted(self) -> None:
        """Close the runs whose process died: their turns end, what was queued lands (I3)."""
        # A row says no more than its key, so one that cannot be read is closed all the same.
        for key, _ in list(self._runtime._store.scan("ephemerals", ())):
            name = str(key[0]) if key else ""
            if not name or name in self.runs:
                continue
            try:
                await self._close(name)
            except AgentOwnedElsewhereError:
                continue  # It runs there.
            except Exception as error:
                # A full disk, a row of it that cannot be read, a stop: the rest is no worse for it.
                _logger.exception(
                    "ephemeral run %r is closed by a later start: %s", name, error, agent=name
                )

    async def _close(self, name: str) -> None:
        runtime = self._runtime
        await runtime._groups.own(name)
        group = (await runtime._groups.start_slot(name)).group
        try:
            slot = group.refs["slot"]
            await dispose(slot, name, "ephemeral", None, None, "a restart", runtime)
        finally:
            with trio.CancelScope(shield=True):
                await group.stop()
            runtime._runner.disown(name)
