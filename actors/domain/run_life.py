"""One life of a run: what its items are guarded by, and whether it goes on.

Invariants:
    I1  Once a life has an outcome, whatever of it still runs starts and records nothing.
    I2  Every commit of a life guards the run's row and its owner row: a life that was taken over,
        or whose run an operator ended, is refused.

Runs in: the task of the life.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NoReturn

import trio
from msgspec.structs import replace

from abeyance.actors.core.clock import Clock
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Committed, Guard, Put, Refused, Request, Row, Store
from abeyance.storage.tables.runs import Run, RunItem

from .mode import HostMode
from .persistence import Recording
from .run_errors import run_ended
from .run_folders import RunFolders
from .run_places import Place
from .run_rows import RunId, bounded, change, given_up, item_guard, item_put, put_down
from .run_turns import Agents
from .spending import Spender
from .step_threads import StepThreads

declare("run.after_handed_over", "a run is given up for the process that has its agent")


_ITEMS: Final = {
    "started": "the start of",
    "done": "what came of",
    "failed": "the failure of",
    "blocked": "the wait of",
    "cut_off": "the end of",
}
_STATES: Final = {
    "running": "its resumption",
    "resuming": "its hand-over",
    "recovery_required": "that it waits for somebody",
    "completed": "its end",
    "failed": "its end",
}
"""What cannot be recorded while the store refuses it, in words."""


class Outcome(NamedTuple):
    """What a life came to: the state its run is in now."""

    state: str


class LifeSeams(NamedTuple):
    """What every life of a runtime's runs stands on."""

    store: Store
    journal: Any
    clock: Clock
    mode: HostMode
    threads: StepThreads
    agents: Agents
    folders: RunFolders


class Life:
    """One life of a run: what its items are guarded by, and whether it goes on."""

    def __init__(
        self,
        run: RunId,
        row: Row,
        owner: Guard,
        buffer_ms: int,
        seams: LifeSeams,
        place: Place,
        recording: Recording,
    ) -> None:
        self.run = run
        self.row = row
        self.owner = owner
        self.buffer_ms = buffer_ms
        self.store = seams.store
        self.journal = seams.journal
        self.clock = seams.clock
        self.threads = seams.threads
        self.agents = seams.agents
        self.folders = seams.folders
        self.is_final = False
        """The workflow has returned, and its finalisers are what runs."""
        self._mode = seams.mode
        self.scope = trio.CancelScope()
        self.quiet = trio.Event()
        """Set while no item is between its start and what it came to, both recorded."""
        self.quiet.set()
        self._stopping = False
        self.outcome: Outcome | None = None
        """Set once this life is over; whatever of it still runs starts nothing more."""
        self.failure: str | None = None
        self.place = place
        self.recording = recording
        """What of the run the store refuses for now."""
        self.left_to: str | None = None
        """The agent whose process is to execute the run, where this one gave it up for that."""
        self.asked = 0
        """How many items the workflow asked for."""
        self.cut_off: list[tuple[int, Row]] = []
        """The items that the workflow gave up, a time limit of its own among the reasons, by number
        and as they are recorded: as started."""
        self.sessions: list[str | None] = []
        """The handles of the providers' sessions that the workflow is inside of, outer first."""
        self.spender: Spender | None = None
        """Where what is said in them is counted, once something was."""

    @property
    def record(self) -> Run:
        record: Run = self.row.record
        return record

    @property
    def stopping(self) -> bool:
        """Whether no item is to be begun: the runtime stops, or the host is quiesced."""
        return self._stopping or self._mode.is_quiesced

    def make_busy(self) -> None:
        """An item is between its start and what it came to."""
        self.quiet = trio.Event()

    def put_down(self) -> None:
        """Begin nothing more. The row says that the run is live, and somebody takes it up later."""
        self._stopping = True
        if self.quiet.is_set():
            self.scope.cancel()

    @property
    def is_put_down(self) -> bool:
        """Whether this life was cut off and its run goes on in another."""
        return self.outcome is None and self.scope.cancel_called

    def is_over(self) -> bool:
        """Whether what the workflow comes to is no outcome of its run any more."""
        return self.outcome is not None or self.is_put_down

    def check_goes_on(self) -> None:
        if self.outcome is not None:
            raise run_ended(str(self.run))

    def note_cut_off(self, ordinal: int, row: Row) -> None:
        """An item was cancelled. Where the workflow goes on from that, it is recorded."""
        if not self.is_over():
            self.cut_off.append((ordinal, row))

    def end(self, state: str) -> None:
        """This life is over: cut its workflow off, wherever it is."""
        if self.outcome is None:
            self.outcome = Outcome(state)
        self.scope.cancel()

    def fail(self, reason: str) -> None:
        """This life is over and its run has failed, which is still to be recorded."""
        self.failure = reason
        self.end("failed")

    async def hand_over(self, agent: str, why: str) -> NoReturn:
        """Give the run up for the process that has an agent, whichever claims it then.

        A checkpoint. Durable before the life ends: nobody owns the run, and it is `resuming`.
        Waits for the threads that are left of it here: elsewhere nobody could join them.
        """
        self.quiet.set()
        await self.threads.wait_idle(self.run)
        self.make_busy()
        record = replace(
            self.record, state="resuming", reason=bounded(why), changed_ms=self.clock.now_ms()
        )
        owner = self.store.get("owners", self.run.owned)
        puts = (Put("owners", self.run.owned, given_up(owner)),)
        self.left_to = agent
        moved = await self.move(record, "runtime", puts=puts)
        if moved:
            crashpoint("run.after_handed_over")
        self.end("resuming" if moved else "lost")
        await self.park()

    async def lay_down(self) -> NoReturn:
        """End this life with its row as it is: it says that the run is live, and the next look of
        any process that may takes it up again."""
        self.scope.cancel()
        await self.park()

    async def park(self) -> NoReturn:
        """Wait for the cancellation that ends this life."""
        self.quiet.set()
        await trio.sleep_forever()

    async def commit(self, what: str, request: Request) -> bool:
        """Ask for a commit until it has an outcome; False where a guard refused it.

        Args:
            what: What it records, in words, for whoever looks while the store refuses it.
        """
        outcome = await self.recording.until_stored(what, lambda: self.journal.ask(request))
        if isinstance(outcome, Refused):
            return False
        assert isinstance(outcome, Committed)
        return True

    async def commit_item(self, ordinal: int, row: Row | None, item: RunItem) -> bool:
        """Record an item under this life's guards, its own row's among them; False where another
        has the run, or an operator ended it."""
        return await self.commit(
            f"{_ITEMS[item.state]} {item.path!r}",
            Request(
                guards=(
                    self.owner,
                    Guard("runs", self.run.row, self.row.counter),
                    item_guard(self.run, ordinal, row),
                ),
                puts=(item_put(self.run, ordinal, item),),
            ),
        )

    async def move(
        self, record: Run, by: str, *, guards: tuple[Guard, ...] = (), puts: tuple[Put, ...] = ()
    ) -> bool:
        """Change the run's row; False where this life is not the one that may."""
        record = put_down(record, self.threads.running(self.run))
        request = change(self.run, self.row, record, by, owner=self.owner, guards=guards, puts=puts)
        if not await self.commit(_STATES.get(record.state, "its wait"), request):
            return False
        self.row = Row(self.row.counter + 1, record)
        return True
