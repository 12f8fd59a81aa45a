"""Quiescing a host and resuming it: the mode row first, then whoever acts on it.

    quiesce   the row; every slot defers; live turns run on within the window; what lives then is
              ended, its tool gap closed and its wakes given back
    resume    the row; every slot lands what waited; every agent asks for a turn

Invariants:
    I1  The row is committed before anybody is told; so a death in between leaves what the row says,
        and the next start goes on from there.
    I2  One change is under way at a time; the wait of a drain is outside it, so that a resume, or a
        quiesce with a shorter window, is not held up by it.
    I3  An agent that is added meanwhile is told before its handle is given out.

Runs in: the task of whoever asks, and one task of the runtime's, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Committed, NotStored
from abeyance.storage.tables.ownership import Mode

from .core.errors import ActorDeadError
from .core.logs import Log
from .core.waits import chain_here, check_asked
from .domain import events
from .domain.errors import NotStoredError, QuiescedError, ResumedError, not_stored
from .domain.limits import RECHECK_MS
from .domain.mode import (
    DeferWrites,
    EndTurns,
    HostMode,
    ModeStatus,
    Quiesce,
    QuiesceReceipt,
    Resume,
    ResumeReceipt,
    plan_mode,
    read_mode,
)
from .domain.protocol import Requests

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime

_logger = Log(__name__)

declare("mode.after_commit", "the host's mode is committed and nobody was told")
declare("mode.before_agents", "slots were told of the mode and agents were not")


class Quiescence:
    """A runtime's mode: changes it, and has everybody act on it."""

    def __init__(self, runtime: Runtime, mode: HostMode) -> None:
        self.mode = mode
        self._runtime = runtime
        self._lock = trio.Lock()
        self._applied = mode.record.act
        self._draining = 0
        self._drains: set[trio.CancelScope] = set()

    def status(self) -> ModeStatus:
        """Whether turns start here, why not, and since when. Not a checkpoint."""
        record = self.mode.record
        if not self.mode.is_quiesced:
            return ModeStatus("serving", "", "", None)
        state = "draining" if self._draining else "quiesced"
        return ModeStatus(state, record.reason, record.by, record.at_ms or None)

    def check_serving(self) -> None:
        """Refuse what would start a turn.

        Raises:
            QuiescedError: The host is quiesced; nothing was done.
        """
        if self.mode.is_quiesced:
            reason = self.mode.record.reason
            raise QuiescedError(
                f"the host is quiesced ({reason}) and starts no turn; nothing was done; resume it, "
                "then ask again",
                reason=reason,
            )

    async def quiesce(self, reason: str, within_s: float, by: str) -> QuiesceReceipt:
        """See `Runtime.quiesce`."""
        for _, member in self._members():
            # What is ended here is waited for: a tool's turn, say, which waits for the tool.
            check_asked(chain_here(), member.agent._cell, Quiesce())
        async with self._lock:
            record = await self._change("quiesced", reason, by)
            self._runtime.system.emit(events.HostQuiesced, reason=reason, by=by)
        self._draining += 1
        window = trio.move_on_after(within_s)
        self._drains.add(window)
        try:
            with window:
                await self._drained(Quiesce())
            self._check_stands()
            # From here on nobody waits for a provider or a tool: every end is a commit.
            late = tuple(name for name, m in self._members() if m.agent_view.turn is not None)
            runs = self._runtime._runs.end_for_quiesce()
            await self._drained(EndTurns())
            self._check_stands()
        finally:
            self._draining -= 1
            self._drains.discard(window)
        self._runtime.system.emit(events.HostDrained, abandoned=late)
        held = (name for name, m in self._members() if m.agent_view.activity == "held")
        return QuiesceReceipt(
            reason=record.reason,
            by=by,
            at_ms=record.at_ms,
            abandoned=late,
            held=tuple(held),
            runs_ended=runs,
            bodies_running=self._runtime._runner.running,
        )

    async def resume(self, by: str) -> ResumeReceipt:
        """See `Runtime.resume`."""
        async with self._lock:
            before = read_mode(self._runtime._store)
            if not before.is_quiesced and not self.mode.is_quiesced:
                await trio.lowlevel.checkpoint()
                return ResumeReceipt(False, "", 0)
            landed = 0
            if before.is_quiesced:
                await self._commit("serving", before.record.reason, by)
            landed = await self._apply()
            self._runtime.system.emit(events.HostResumed, by=by)
        return ResumeReceipt(True, before.record.reason, landed)

    async def watch(self) -> None:
        """Act on what another process of the directory did, at the latest after 30 s."""
        while True:
            with trio.move_on_after(RECHECK_MS / 1_000):
                await self.mode.noticed()
            if read_mode(self._runtime._store).record.act == self._applied:
                continue
            async with self._lock:
                with suppress(ActorDeadError):
                    await self._apply()

    async def tell_newcomer(self, member: Member) -> None:
        """Have an agent that was started in these moments act on the mode, too (I3)."""
        if self.mode.is_quiesced:
            with suppress(ActorDeadError):
                await member.slot.ask(DeferWrites(True))
                await member.agent.ask(EndTurns())

    # -- parts -------------------------------------------------------------------------------

    async def _change(self, state: Any, reason: str, by: str) -> Mode:
        record = await self._commit(state, reason, by)
        await self._apply()
        return record

    async def _commit(self, state: Any, reason: str, by: str) -> Mode:
        runtime = self._runtime
        while True:
            stored = read_mode(runtime._store)
            requests = plan_mode(stored, state, reason, by, runtime.clock.now_ms())
            outcomes = await runtime._journal.ask(Requests(requests))
            for outcome in outcomes:
                if isinstance(outcome, NotStored):
                    raise not_stored(outcome)
            if isinstance(outcomes[-1], Committed):
                crashpoint("mode.after_commit")
                record: Mode = read_mode(runtime._store).record
                return record
            # Another process changed it in these moments.

    async def _apply(self) -> int:
        """Have every slot, then every agent, act on the row. How many messages landed."""
        self.mode.look()
        self._applied, on = self.mode.record.act, self.mode.is_quiesced
        landed = 0

        async def tell(member: Member) -> None:
            nonlocal landed
            # What was not stored the slot lands by itself: it reads the mode's row anew.
            with member.parking.cut_off(), suppress(NotStoredError):
                landed += await member.slot.ask(DeferWrites(on))

        # Shielded: what is committed is acted on. It waits for commits and for nothing else.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for _, member in self._members():
                    # A slot that is parked reads the row when it starts again.
                    if member.slot_group.state != "parked":
                        nursery.start_soon(_unless_dead, tell, member)
        crashpoint("mode.before_agents")
        if not on:
            for scope in self._drains:
                scope.cancel()
            for _, member in self._members():
                with suppress(ActorDeadError):
                    member.agent.tell(Resume())
        return landed

    async def _drained(self, message: Quiesce | EndTurns) -> None:
        async def drain(member: Member) -> None:
            with member.parking.cut_off():
                await member.agent.ask(message)

        async with trio.open_nursery() as nursery:
            for _, member in self._members():
                if not member.is_parked:
                    nursery.start_soon(_unless_dead, drain, member)
            nursery.start_soon(self._runtime._runs.drained)

    def _members(self) -> Iterator[tuple[str, Member]]:
        return iter(sorted(self._runtime._members.items()))

    def _check_stands(self) -> None:
        self._runtime._check_open()
        if not self.mode.is_quiesced:
            raise ResumedError(
                "the host was resumed while it was being quiesced; it serves, and turns that live "
                "live on; quiesce it again if that was not meant"
            )


async def _unless_dead(tell: Any, member: Member) -> None:
    with suppress(ActorDeadError):  # It ended meanwhile, and its turn with it.
        await tell(member)
