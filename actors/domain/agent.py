"""The agent actor: decides when its agent's next turn runs.

It holds no message and no wait; those are rows. It knows which of five activities its agent is in,
and each moves to the next by a message:

    activity   what is true                         left by
    resting    no open turn, no wake                Woken
    starting   the slot was asked for the lease     the slot's answer
    running    a turn's task lives                  its outcome
    held       the open turn is a row               Due, WaitLifted (both ask the gate first)
    quiesced   no turn starts; wakes wait           Resume
    stopping   no turn starts any more              –
    lost       another process owns the agent       –

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from abeyance.actors.core import LATER, AbeyanceError, Answer, Reply, TrioActor
from abeyance.storage.tables.slots import Turn

from .agent_acts import (
    Activity,
    AgentKept,
    AgentView,
    FinishTurns,
    StopTurns,
    WaitIdle,
)
from .alert_book import LookAtAgent
from .cancelling import Cancel, Cancelling
from .chosen_model import ChosenModel, LookAtModel
from .context import WaitRecorded, WaitReleased
from .errors import OwnershipLostError
from .holding import Holding, LookAgain
from .mode import EndTurns, HostMode, Quiesce, Resume
from .pairs import Pairs, RunTool, StopTool, why_none
from .protocol import (
    AttachToWaits,
    CloseAdmission,
    Due,
    HoldByQuota,
    LiftPauses,
    Shrunk,
    TurnOver,
    WaitBound,
    WaitLifted,
    WatchHolder,
)
from .rewinding import Rewinding
from .slot_approvals import ApprovalDecided
from .slot_messages import (
    AttachAgent,
    ReadOpenPair,
    ReadOpenTurn,
    RewindSlot,
    TurnWithdrawn,
    UndoRewind,
    Woken,
)
from .starting import StartAgain, Starting, StartingSeams
from .turn import TurnEnded, TurnHeld, TurnSeams, TurnSettings, TurnTask
from .turn_life import TurnLife
from .wait_book import Deferral


class Agent(TrioActor):
    """One agent. See the module's table."""

    role: ClassVar[str] = "agent"
    max_deliveries: ClassVar[int] = 3
    kept: AgentKept

    def __init__(
        self,
        settings: TurnSettings,
        seams: TurnSeams,
        alarm: Any,
        ledger: Any,
        view: AgentView,
        mode: HostMode,
        choice: ChosenModel | None = None,
    ) -> None:
        super().__init__()
        if choice is not None:
            settings, seams = choice.settings, replace(seams, usage=choice.usage)
        self._mode = mode
        self._view = view
        view.activity, view.turn, view.held = "starting", None, None
        self._name = settings.name
        self._limits = settings.limits
        self._seams = seams
        self._ledger = ledger
        self._lost: OwnershipLostError | None = None
        self._idlers: list[Reply] = []
        self._stoppers: list[Reply] = []
        self._holding = Holding(
            self,
            settings.name,
            seams,
            view,
            self.kept,
            alarm,
            choice,
            self._go_on_from_hold,
            self._tell_idlers,
        )
        self._rewinding = Rewinding(self._ask_slot, self._ends_turn)
        self._cancelling = Cancelling(
            settings.name, self.kept.cancels, self._ask_slot, self._cuts_turn
        )
        self._pairs = Pairs(
            settings,
            seams,
            self._ask_slot,
            self._spawn_pair,
            self._pairs_over,
            self._refusal,
            self._starts_none,
        )
        self._life = TurnLife(
            self, self.kept, seams.room, self._rewinding, self._cancelling, self._starts_none
        )
        self._starting = Starting(
            self,
            settings,
            seams,
            choice,
            view,
            self.kept,
            mode,
            self._pairs,
            StartingSeams(self._ask_slot, self._is_lost, self._begin, self._nothing_to_do),
        )

    @classmethod
    def make_kept(cls) -> AgentKept:
        return AgentKept()

    def on_start(self) -> None:
        name, seams = self._name, self._seams
        seams.gate.tell(WatchHolder(self.actor_ref))
        seams.slot.tell(AttachAgent(name, self.actor_ref, self._limits))
        self._ledger.tell(AttachToWaits(name, self.actor_ref))
        self._starting.use_new_choice()
        if seams.alerts is not None:
            # A process, or an actor, may have died between a hold and the alert of it.
            seams.alerts.tell(LookAtAgent(name))
        self._tell_context(TurnOver())
        if self.kept.stopping:
            self._view.activity = "stopping"
            self.ask(seams.slot, ReadOpenPair(name), tag=self._found_open_pair)
            return
        self.ask(seams.slot, ReadOpenPair(name), tag=self._found_open_pair)
        self.ask(seams.slot, ReadOpenTurn(name), tag=self._found_open_turn)

    # -- messages ----------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        match message:
            case Woken():
                if self._view.activity == "resting":
                    self._start()
            case Due() | LookAgain():
                self._holding.look_again()
            case Shrunk():
                self._holding.shrunk()
            case WaitLifted(model):
                self._lifted(model)
            case WaitBound(model, deadline_ms, reason):
                self._tell_context(WaitRecorded(self._name, model, deadline_ms, reason))
            case TurnWithdrawn():
                self._withdrawn()
            case LookAtModel():
                if not self._lives():
                    self._starting.use_choice()
                self._holding.look_again()
            case ApprovalDecided():
                if self._view.turn is not None:
                    self._view.turn.decided()
                self._holding.look_again()
            case StartAgain():
                if self._view.activity == "starting":
                    self._start()
            case WaitIdle():
                if self._lost is not None:
                    raise self._lost
                self._idlers.append(self.later())
                self._tell_idlers()
                return LATER
            case StopTurns():
                self._life.cut()
                # Behind the cancellation: a turn that waits to be admitted ends as stopped.
                self._seams.gate.tell(CloseAdmission())
                self._starting.withdraw()
                stopped = self._stop_turns()
                self._pairs.stop(running=True)
                return stopped
            case FinishTurns():
                return self._stop_turns()
            case Quiesce():
                return self._drain()
            case EndTurns():
                return self._end_turns()
            case Resume():
                self._resume()
            case RunTool():
                if self._lost is not None:
                    raise self._lost
                refusal = self._refusal()
                if refusal is not None:
                    raise refusal
                self._pairs.take(message, self.later())
                return LATER
            case StopTool(named):
                self._pairs.withdraw(named)
            case RewindSlot() | UndoRewind():
                if self._lost is not None:
                    raise self._lost
                self._rewinding.take(message, self.later())
                return LATER
            case Cancel():
                if self._lost is not None:
                    raise self._lost
                self._cancelling.take(message, self.later())
                return LATER
            case _:
                raise TypeError(f"an agent takes no {type(message).__name__}")
        return None

    def on_answer(self, answer: Answer) -> None:
        then: Callable[[Answer], None] = answer.tag
        then(answer)

    # -- activities --------------------------------------------------------------------------

    def _found_open_turn(self, answer: Answer) -> None:
        turn: Turn | None = answer.unwrap()
        held = None if turn is None or turn.state != "held" else turn.held
        if held is not None:
            cause, why = held.cause, "held before this start"
            of_quota = cause == "quota"
            self._holding.begin(
                Deferral(held.agent, held.model, None, why, cause, held.window, of_quota)
            )
            self._holding.look_again()
            if turn is not None and turn.cancelled_by is not None:
                # It was marked as it came to its hold, and whoever was to end it died.
                now_ms = self._seams.clock.now_ms()
                act = f"again-{self.incarnation}-{now_ms}"
                self._cancelling.take(Cancel(act, None, turn.cancelled_by, now_ms), None)
        else:
            self._seams.gate.tell(HoldByQuota(None))
            self._start()

    def _start(self, *, to_end: bool = False) -> None:
        if self.kept.stopping or (self._is_quiesced() and not to_end):
            # Whoever stops this agent may have asked while the slot was asked.
            self._starting.withhold()
        else:
            self._starting.ask()

    def _begin(self, turn: TurnTask) -> None:
        self._holding.released = False
        self.pipe(self._life.run, turn, tag=self._turn_over)

    def _nothing_to_do(self) -> None:
        """There is no turn to begin: whoever waited for that is told."""
        self._rest()
        self._rewinding.turn_over(None)
        self._cancelling.starts_over()

    def _turn_over(self, answer: Answer) -> None:
        if self._is_lost(answer.error):
            return
        outcome: TurnEnded | TurnHeld = answer.unwrap()
        turn, self._view.turn = self._view.turn, None
        self._life.over()
        assert turn is not None
        if self._seams.context is not None:
            self._tell_context(TurnOver(turn.size))
        if isinstance(outcome, TurnHeld):
            self._holding.begin(outcome.deferral, turn.start.turn)
        else:
            self.kept.streak.clear()
            if self._seams.over is not None:
                self._seams.over(self._name)
            if turn.calls.awaits_release:  # It was cut off on the way to its hold.
                self._seams.gate.tell(HoldByQuota(None))
        # Ahead of the next start: what a rewind takes out, no later turn is to see.
        self._rewinding.turn_over(outcome.rewound if isinstance(outcome, TurnEnded) else None)
        self._cancelling.turn_over(turn.start.turn)
        if self.kept.stopping or self._mode.is_quiesced:
            self.kept.draining = False
            self._view.activity = "resting" if self._view.held is None else "held"
            self._rest()
            self._holding.look_again()
        elif isinstance(outcome, TurnHeld):
            # What held it may have been released while the hold was being recorded.
            self._holding.look_again()
        else:
            self._start()

    def _is_lost(self, error: BaseException | None) -> bool:
        """Another process took this agent over: nothing is left to do here but to say so."""
        if not isinstance(error, OwnershipLostError):
            return False
        self._lost = error
        self._starting.settle()
        self._life.over()
        self._view.activity, self._view.turn = "lost", None
        for reply in self._idlers:
            reply.set_exception(error)
        self._idlers.clear()
        self._rewinding.fail(error)
        self._cancelling.fail(error)
        self._pairs.fail(error)
        self._tell_stoppers()
        return True

    def _lifted(self, model: str | None) -> None:
        """A release. It is kept for a hold without a record, which may still be on its way."""
        # Before the gate is asked whether anything holds: what a wait had lengthened is shorter.
        self._seams.gate.tell(LiftPauses(model))
        self._tell_context(WaitReleased(self._name, model))
        held = self._view.held
        mine = self._starting.settings.model if held is None else held.model
        if self._awaits_release() and model in (None, mine):
            self._holding.released = True
        self._holding.look_again()

    def _awaits_release(self) -> bool:
        """Whether a release now may be of a hold without a record; one before it was not."""
        turn = self._view.turn
        if turn is not None:
            return turn.calls.awaits_release
        return self._view.activity in ("starting", "held")

    def _go_on_from_hold(self, *, to_end: bool = False) -> None:
        self._holding.end()
        self._start(to_end=to_end)

    def _tell_context(self, message: Any) -> None:
        if self._seams.context is not None:
            self._seams.context.tell(message)

    def _withdrawn(self) -> None:
        """What the held turn was to answer was taken back, and the slot has ended it."""
        if self._view.activity == "held":
            # For what came since; else it rests.
            self._go_on_from_hold()

    def _rest(self) -> None:
        if self._view.activity != "held":
            waits: Activity = "quiesced" if self._is_quiesced() else "resting"
            self._view.activity = "stopping" if self.kept.stopping else waits
        self._tell_idlers()
        if not self._lives():
            self._tell_stoppers()

    # -- operators' tool pairs ---------------------------------------------------------------

    def _spawn_pair(
        self, run: Callable[[Any], Any], start: Any, then: Callable[[Answer], None]
    ) -> None:
        self.pipe(run, start, tag=then)

    def _found_open_pair(self, answer: Answer) -> None:
        found = answer.unwrap()
        if found is None:
            self._pairs.found(None)
            return
        message, call = found
        self._pairs.found(RunTool(call, message, "", self._seams.clock.now_ms()))

    def _refusal(self) -> AbeyanceError | None:
        return why_none(self._name, self._mode, stops=self.kept.stopping)

    def _pairs_over(self) -> None:
        if self._mode.is_quiesced and not self._lives():
            # It was all that a quiesce let run on.
            self.kept.draining = False
        if self._starts_none():
            self._rest()
        self._tell_idlers()

    # -- a host that is quiesced -------------------------------------------------------------

    def _is_quiesced(self) -> bool:
        return self._mode.is_quiesced and not self.kept.draining

    def _starts_none(self) -> bool:
        return self.kept.stopping or self._is_quiesced()

    def _lives(self) -> bool:
        starts = self._view.turn is not None or self._view.activity == "starting"
        return starts or self._pairs.lives

    def _drain(self) -> Any:
        """Start no more turns; one that lives may run to its end."""
        if not self._lives():
            self._rest()
            return None
        self.kept.draining = True
        self._pairs.stop(running=False)
        self._stoppers.append(self.later())
        return LATER

    def _end_turns(self) -> Any:
        self.kept.draining = False
        self._life.cut()
        self._starting.withdraw()
        self._pairs.stop(running=True)
        if not self._lives():
            self._rest()
            return None
        self._stoppers.append(self.later())
        return LATER

    def _resume(self) -> None:
        self.kept.draining = False
        self._tell_stoppers_unless_stopping()
        if self._view.activity == "quiesced" and not self._starts_none():
            self._start()

    # -- rewinds -----------------------------------------------------------------------------

    def _ask_slot(self, message: Any, then: Callable[[Answer], None]) -> None:
        self.ask(self._seams.slot, message, tag=then)

    def _ends_turn(self) -> bool:
        """End the live turn for a rewind; one that is asked for ends as it starts."""
        if self._life.cut():
            return True
        return self._view.turn is not None or self._view.activity == "starting"

    def _cuts_turn(self, number: int) -> bool:
        """Cut off the turn of a number, or have it cut off as it starts."""
        turn = self._view.turn
        if turn is None:
            held = self._view.held
            if self._view.activity == "held" and held is not None and held.cause == "approval":
                self._go_on_from_hold(to_end=True)
            return self._view.activity == "starting"
        if turn.start.turn != number:
            return False
        self._life.cut()
        return True

    # -- who waits for this agent ------------------------------------------------------------

    def _is_idle(self) -> bool:
        if self._pairs.lives:
            return False
        if self._view.activity == "held":
            held = self._view.held
            if held is not None and held.cause == "context":
                return False  # What it waits for is this runtime's own work.
            ends_ms = None if held is None else held.deadline_ms
            over = ends_ms is not None and ends_ms <= self._seams.clock.now_ms()
            return not over and not self._holding.is_looking
        resting = self._view.activity in ("resting", "quiesced", "stopping")
        return resting and self._view.turn is None

    def _tell_idlers(self) -> None:
        if self._is_idle():
            for reply in self._idlers:
                reply.set(None)
            self._idlers.clear()

    def _stop_turns(self) -> Any:
        self.kept.stopping = True
        if not self._lives():
            self._tell_idlers()
            return None
        self._stoppers.append(self.later())
        return LATER

    def _tell_stoppers_unless_stopping(self) -> None:
        # Who waits for a quiesce waits for nothing any more; who waits for a stop waits on.
        if not self.kept.stopping:
            self._tell_stoppers()

    def _tell_stoppers(self) -> None:
        for reply in self._stoppers:
            reply.set(None)
        self._stoppers.clear()
