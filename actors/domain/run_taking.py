"""Taking runs up: what is due, and what dead processes left, a bounded number at once.

Invariants:
    I1  A run whose workflow is not registered here, or is of another version, is not executed.
    I2  Only an operator takes up a run whose end of waiting nobody knows, or that needs recovery.
    I3  A run that was given up here is left to the process that has its agent, for a bounded time.

Runs in: the loop thread; one look at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.runs import Bucket, Choice, Run

from .persistence import Recording, may_land_later
from .run_acts import doubtful
from .run_claims import Claims
from .run_places import Place, Places
from .run_protocol import Handed, RunsKept
from .run_rows import LIVE, WAITING, RunId, bounded, due
from .run_turns import Agents
from .run_workflow import Workflow, other_version

declare("run.after_claimed", "a run is claimed and nothing of it is executed")

STARTED_S: Final = 30.0
"""A start adds workflows and providers one after the other: one that is not there may be coming."""
HANDED_S: Final = 120.0
"""How long a run that was given up for another process waits for it to take it."""
INEXACT: Final = (
    "it stands inside a provider's session that has no handle, so nothing shows where exactly"
)
LOOK_ROWS_MAX: Final = 1_000
_CLAIM: Final = "that it is taken up"

_logger = Log(__name__)


class TakingSeams(NamedTuple):
    """What taking up tells the actor of runs."""

    begin: Callable[[RunId, Place], object]
    """A run is claimed, and to be executed."""
    told: Callable[[RunId, str], object]
    """A run came to a state."""
    look_later: Callable[[], object]
    """Something could not be recorded now."""
    recording: Callable[[RunId], Recording]
    """What of a run the store refuses for now."""


class Taking:
    """What one incarnation takes up."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        agents: Agents,
        clock: Clock,
        kept: RunsKept,
        places: Places,
        seams: TakingSeams,
    ) -> None:
        self._store = store
        self._claims = claims
        self._agents = agents
        self._clock = clock
        self._kept = kept
        self._places = places
        self._seams = seams
        self._complete_s = trio.current_time() + STARTED_S
        self._buckets: deque[Bucket] = deque(("waiting", "live", "joined"))

    def hand_over(self, run: RunId, agent: str) -> None:
        """A run was given up here for whoever has an agent."""
        self._kept.handed[run] = Handed(agent, trio.current_time() + HANDED_S)

    async def look(self) -> None:
        """Claim what is due, and what was live in processes that have died."""
        now_ms = self._clock.now_ms()
        # Each is the first in its turn, so that none waits for the others to be empty.
        self._buckets.rotate(-1)
        for bucket in self._buckets:
            # However many wait for later, they are not read for that.
            if bucket == "waiting" and not due(self._store, now_ms, 1):
                continue
            after: Any = None
            while True:
                page = list(
                    self._store.scan("run_index", (bucket,), after=after, limit=LOOK_ROWS_MAX)
                )
                for key, row in page:
                    if self._kept.stopping or not self._places.is_free():
                        return
                    run = RunId(str(key[2]), int(key[3]))
                    if bucket == "waiting" and int(key[1]) > now_ms:
                        page = []
                        break
                    kept = self._kept
                    # A bad row of the index hides nobody: the run's own row says whose it is.
                    known = not isinstance(row, Row) or row.record.workflow in kept.workflows
                    left = run in kept.lives or run in kept.coming or run in kept.given_up
                    left = left or self._is_left_to_another(run)
                    if known and not left:
                        await self._claim(run)
                if len(page) < LOOK_ROWS_MAX:
                    break
                after = page[-1][0]
                await trio.lowlevel.checkpoint()

    async def _claim(self, run: RunId) -> None:
        try:
            # Kept until something is recorded: a refused commit must not have it waited for anew.
            handed = self._kept.handed.get(run)
            decide = (
                partial(self._automatic, run)
                if handed is None
                else partial(self._handed_back, run, handed)
            )
            claim = await self._claims.move(run, decide, "runtime")
        except UnreadableRecordError as error:
            # Exactly this run is held; check and the log name it.
            self._kept.given_up[run] = bounded(str(error))
            _logger.error("run %s cannot be read: %s", run, error, run=str(run))
            return
        except Exception as error:
            if not may_land_later(error):
                raise
            self._refuse(run, error)
            return
        self._seams.recording(run).settle(_CLAIM)
        if claim.won:
            self._kept.handed.pop(run, None)
            crashpoint("run.after_claimed")
            self._seams.told(run, claim.state)
        if claim.won and claim.state == "resuming":
            self._seams.begin(run, self._places.take())

    def _refuse(self, run: RunId, error: BaseException) -> None:
        """The store refused a claim. It is looked at again, and whoever looks at it sees why."""
        if self._kept.unrecorded(run) is None:
            _logger.warning(
                "run %s cannot be taken up until the store records that: %s",
                run,
                bounded(str(error.__cause__ or error)),
                run=str(run),
            )
        self._seams.recording(run).refuse(_CLAIM, _CLAIM, error)
        self._seams.look_later()

    def _is_left_to_another(self, run: RunId) -> bool:
        """Whether the process that has a run's agent is still expected to take it."""
        handed = self._kept.handed.get(run)
        if handed is None:
            return False
        if not self._claims.is_handed_over(run):
            # Somebody took it.
            del self._kept.handed[run]
            return False
        return (
            trio.current_time() < handed.ends_s and self._agents.elsewhere(handed.agent) is not None
        )

    def _handed_back(self, run: RunId, handed: Handed, record: Run) -> Run | None:
        """What becomes of a run that was given up, and that nobody took."""
        where = self._agents.elsewhere(handed.agent)
        if where is None or not self._claims.is_handed_over(run):
            return self._automatic(run, record)
        if record.state not in LIVE:
            return None
        return self._claims.recovery(
            record,
            f"{where}, and no process that has both it and workflow {record.workflow!r} took the "
            f"run up within {HANDED_S:.0f} s: have one process add both",
        )

    def _automatic(self, run: RunId, record: Run) -> Run | None:
        """What becomes of a run that is due, or whose process died."""
        workflow = self._kept.workflows.get(record.workflow)
        if workflow is None or not (record.state in LIVE or self._is_due(record)):
            return None
        if workflow.version != record.version:
            return self._claims.recovery(record, other_version(record, workflow))
        if record.suspension is not None and not record.suspension.exact:
            stands = doubtful(self._store, run)
            return self._claims.recovery(record, INEXACT, None if stands is None else stands[0])
        choice = record.choice
        known = choice is None or workflow.may_use(choice.provider, choice.model)
        if choice is not None and not workflow.fallbacks and self._claims.is_handed_over(run):
            # Chosen in a stopped store; what was chosen in a host was checked there.
            known = self._agents.has_provider(choice.provider)
            if not known and trio.current_time() < self._complete_s:
                return None
        if choice is not None and not known:
            return self._unusable(record, choice, workflow)
        return self._claims.taken_up(record)

    def _unusable(self, record: Run, choice: Choice, workflow: Workflow) -> Run:
        """A run for an operator, without the model that was chosen where nobody could check it."""
        named = ", ".join(f"{each.provider}/{each.model}" for each in workflow.fallbacks)
        why = (
            f"is none of the fallbacks of {workflow.name!r} ({named})"
            if named
            else f"is of no provider that this host added, and {workflow.name!r} has no fallbacks"
        )
        recovery = self._claims.recovery(
            record,
            f"{choice.provider}/{choice.model}, which was chosen for it, {why}: resume it to go on "
            "without, or choose another (fallback)",
        )
        return replace(recovery, choice=None)

    def _is_due(self, record: Run) -> bool:
        waits = record.suspension
        if record.state not in WAITING or waits is None:
            return False
        if waits.agent is not None and waits.turn is not None:
            # Whatever held the turn: it is over by its agent's own doing, or an operator's.
            if self._agents.is_over(waits.agent, waits.turn):
                return True
            self._agents.await_end(waits.agent)
            return False
        at_ms = waits.resume_after_ms
        return at_ms is not None and at_ms <= self._clock.now_ms()
