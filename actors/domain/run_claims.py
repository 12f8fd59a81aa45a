"""Taking runs up, by compare-and-set; for the alarm, a boot and operators alike.

Invariants:
    I1  A claim is one commit that guards the run's row and takes its owner row, so of several who
        are at it, in whichever processes, one wins; the others find it taken.
    I2  Nothing is claimed as live on a host that is quiesced.
    I3  A run is owned while it is live, or a thread of it is. Any other is nobody's, whichever
        process executed it last and however that fares: whoever may claim it takes its owner row,
        with the next fence, and what is left of it there is refused from then on.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import OwnedElsewhereError
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Committed, Guard, NotStored, Put, Refused, Row, Store
from abeyance.storage.tables.runs import Run

from .errors import not_stored
from .mode import HostMode
from .run_rows import LIVE, NOBODY, RunId, bounded, change, is_owned, put_down
from .step_threads import StepThreads


class Claim(NamedTuple):
    """What became of an attempt to take a run up."""

    state: str
    """The state its row has now."""
    won: bool
    elsewhere: bool = False
    """Whether it was left to a live process that owns it."""
    pid: int | None = None
    """Of that process, where it is known."""
    host: str | None = None


class Claims:
    """Taking runs up, by compare-and-set. For the alarm, a boot and operators alike."""

    def __init__(
        self,
        store: Store,
        journal: Any,
        ownership: Ownership,
        clock: Clock,
        mode: HostMode,
        threads: StepThreads,
    ) -> None:
        self._store = store
        self._journal = journal
        self._ownership = ownership
        self._clock = clock
        self._mode = mode
        self._threads = threads

    def owned(
        self, run: RunId, *, force: bool = False
    ) -> tuple[tuple[Guard, ...], tuple[Put, ...]]:
        """What a request needs to hold the run's owner row with this process.

        Raises:
            OwnedElsewhereError: A live process owns it.
        """
        taking = self._ownership.plan(run.owned, force=force)
        if taking.requests:
            return taking.requests[0].guards, taking.requests[0].puts
        return (Guard("owners", run.owned, taking.counters[run.owned]),), ()

    def owner_guard(self, run: RunId) -> Guard | None:
        """What a life of this process writes under; None where the run is another's."""
        row = self._store.get("owners", run.owned)
        if row is None or row.record.nonce != self._ownership.nonce:
            return None
        return Guard("owners", run.owned, row.counter)

    async def move(
        self,
        run: RunId,
        decide: Callable[[Run], Run | None],
        by: str,
        *,
        puts: Callable[[Row], tuple[tuple[Guard, ...], tuple[Put, ...]]] = lambda _row: ((), ()),
        force: bool = False,
    ) -> Claim:
        """Change a run's row as one who owns it, again for as long as others change it too.

        A checkpoint. Durable: on return, where it won.

        Args:
            decide: What the row is to be, or None where nothing is to be done.
            puts: What else is guarded and put.
            force: Whether to take it from a live process, too: an operator's decision.
        Raises:
            LookupError: There is no such run.
            NotStoredError: It cannot be stored; nothing changed.
        """
        while True:
            row = self._store.get("runs", run.row)
            if row is None:
                raise LookupError(str(run))
            record: Run = row.record
            new = decide(record)
            if new is None:
                return Claim(record.state, won=False)
            try:
                guards, owner_puts = self.owned(run, force=force or not is_owned(record))
            except OwnedElsewhereError as error:
                return Claim(
                    record.state, won=False, elsewhere=True, pid=error.pid, host=error.host
                )
            new = put_down(new, self._threads.running(run))
            more_guards, more_puts = puts(row)
            if new.state in LIVE:
                # A quiesce that is committed first refuses it.
                self._mode.look()
                if self._mode.is_quiesced:
                    return Claim(record.state, won=False)
                more_guards = (*more_guards, self._mode.stored.guard)
            request = change(
                run,
                row,
                new,
                by,
                guards=(*guards, *more_guards),
                puts=(*owner_puts, *more_puts),
            )
            # Once it was asked, its answer decides what is true.
            with trio.CancelScope(shield=True):
                outcome = await self._journal.ask(request)
            if isinstance(outcome, NotStored):
                raise not_stored(outcome)
            if isinstance(outcome, Refused):
                continue
            assert isinstance(outcome, Committed)
            return Claim(new.state, won=True)

    def taken_up(self, record: Run) -> Run:
        """A run's record once somebody has claimed it."""
        return replace(
            record,
            state="resuming",
            doubt=None,
            lives=record.lives + 1,
            changed_ms=self._clock.now_ms(),
        )

    def is_handed_over(self, run: RunId) -> bool:
        """Whether the run's last owner gave it up for another process to take."""
        row = self._store.get("owners", run.owned)
        return row is not None and row.record.nonce == NOBODY

    def recovery(self, record: Run, why: str, doubt: int | None = None) -> Run:
        return replace(
            record,
            state="recovery_required",
            doubt=doubt,
            reason=bounded(why),
            changed_ms=self._clock.now_ms(),
        )
