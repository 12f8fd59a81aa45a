"""One turn's provider calls: admission, the call, its settlement, and what a failure leads to.

Invariants:
    I1  No provider call without a permit, and the permit is asked for last, after the compile.
    I2  However a call ends, its permit is settled; the wait it stated is recorded, and what pauses
        the agent binds, before anything else comes of it.
    I3  A pause of at most `RETRY_IN_TURN_S_MAX` is waited out with the slot; a longer
        one is a hold.

Runs in: the turn's task.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.providers.context_limit import check_length
from abeyance.actors.providers.port import (
    ContextTooLongError,
    ModelReply,
    ModelRequest,
    Permit,
    permitted,
)
from abeyance.storage.crashpoints import crashpoint, declare

from .bounded_call import bounded_call
from .foreign import failure_beside, failure_of, reply_of
from .pauses import longest
from .policy import GiveUp
from .preflight import in_item
from .protocol import Admit, BeginPause, Settle
from .streaming import Showing
from .turn_spans import call_span, replied
from .verdict import Streak, Verdict, decide, judge, policy_pause, used_nothing
from .wait_book import Deferral

if TYPE_CHECKING:
    from .turn import TurnSeams, TurnSettings

RETRY_IN_TURN_S_MAX: Final = 60.0
"""The longest pause that a turn spends with its slot, and with everybody who waits for it."""

declare("turn.after_wait", "a stated wait is recorded and its turn is not held yet")


class Failed(NamedTuple):
    """The turn cannot go on; the marker that its transcript gets."""

    text: str
    failure: str | None = None
    """The code of what failed."""


def _failed(verdict: Verdict) -> Failed:
    code = verdict.failure.error.code
    return Failed(f"this turn failed: {verdict.text}", code if isinstance(code, str) else None)


class Calls:
    """The calls of one life of a turn."""

    def __init__(
        self,
        settings: TurnSettings,
        seams: TurnSeams,
        streak: Streak,
        failures: int,
        showing: Showing,
        turn: int,
    ) -> None:
        self.failures = failures
        self._turn = turn
        self.sent = False
        """Whether the request of the round in progress may have reached the wire."""
        self.awaits_release = False
        """A hold without a record is on its way: the next release that names its model ends it."""
        self._settings = settings
        self._seams = seams
        self._streak = streak
        self._showing = showing

    async def reply(self, request: ModelRequest, number: int) -> ModelReply | Deferral | Failed:
        """Make calls for a round, by its number, until one is answered.

        A checkpoint. Cancelled: a call that is out is abandoned, its permit settled as unknown; a
        pause ends, and no further call is made.

        Returns:
            The reply; or what holds the call, which is recorded or binds the gate; or why it is
            final.
        """
        while True:
            outcome = await self._call_once(request, number)
            if not isinstance(outcome, Verdict):
                return outcome
            pause_s = self._pause_s(outcome)
            if not isinstance(pause_s, float):
                return pause_s
            await trio.sleep(pause_s)

    async def _call_once(
        self, request: ModelRequest, number: int
    ) -> ModelReply | Deferral | Failed | Verdict:
        settings, gate = self._settings, self._seams.gate
        try:
            check_length(settings.provider, request)
        except ContextTooLongError as error:
            return Failed(f"this turn failed: {error}", error.code)
        if self._seams.spending is not None:
            held = await self._seams.spending.ahead(request.model)
            if held is not None:
                return held
        # An agent's own turn is no run's, wherever its agent was added.
        careful = settings.purpose == "ephemeral" and in_item()
        asked = gate.ask(Admit(request.model, settings.purpose, careful))
        try:
            admission = await asked
        except BaseException:
            # The gate may have admitted it, or still will: nobody is left to settle that permit.
            asked.on_done(lambda: give_back(asked, gate))
            raise
        if isinstance(admission, Deferral):
            return admission
        permit: Permit = admission
        try:
            # A turn that was told to end while it asked makes no call.
            await trio.lowlevel.checkpoint_if_cancelled()
            span = call_span(self._seams.spans, settings.provider, request.model, settings.purpose)
            with span, permitted(permit):
                returned = await bounded_call(
                    settings.provider, request, self._showing.begin(number)
                )
                reply = reply_of(returned, permit)
                replied(span, reply)
        except BaseException as error:  # noqa: BLE001 - judged, settled, and told on from there.
            self._showing.void()
            self._take_usage(permit)
            try:
                failure = failure_of(error)
            except BaseException:
                self.sent = self.sent or permit.used
                self._spent(permit, number, "cut_off")
                gate.tell(self._cut_off(permit, error))
                raise
        else:
            self._take_usage(permit, joins=True)
            self._spent(permit, number, "replied", usage=reply.usage)
            # What used a budget up is held as a provider's word would: by a wait that is recorded.
            gate.tell(Settle(permit, "succeeded", self._used_up(permit)))
            self._streak.clear()
            return reply
        return await self._failed(permit, failure, number)

    def _used_up(self, permit: Permit) -> tuple[int | None, str] | None:
        spending = self._seams.spending
        return None if spending is None else spending.states(permit.model)

    def _spent(self, permit: Permit, number: int, outcome: Any, **told: Any) -> None:
        """Note what a call used: its rows join the next commit of the turn."""
        settings, spending = self._settings, self._seams.spending
        if spending is not None:
            spending.note(
                permit,
                settings.provider,
                permit.model,
                outcome,
                turn=self._turn,
                round_=number,
                **told,
            )

    def _take_usage(self, permit: Permit, *, joins: bool = False) -> None:
        """Ahead of the settlement, and of the round: whatever is admitted next may ask for it."""
        if self._seams.usage is not None:
            self._seams.usage.take(permit, joins=joins)

    async def _failed(
        self, permit: Permit, error: BaseException, number: int
    ) -> Deferral | Failed | Verdict:
        """Settle the permit with what was stated; return where a policy is to decide."""
        self.failures += 1
        settings = self._settings
        verdict = self._judge(permit, error)
        self._spent(permit, number, "failed", refused=used_nothing(verdict))
        # One of the calls before this one may have been: it carried the same.
        self.sent = self.sent or verdict.failure.error.sent
        # Cancelled here, the settlement is in the gate's mailbox all the same.
        settlement = Settle(
            permit,
            "failed",
            verdict.states,
            verdict.pauses,
            verdict.scope,
            verdict.account_ms,
            # A pause has an end, and holds the turn instead.
            verdict.text if verdict.quota_is_unknown and not verdict.pauses else None,
            verdict.window,
            verdict.quota,
        )
        receipt = await self._seams.gate.ask(settlement)
        binding = None if receipt is None else receipt.binding
        agent, model = permit.agent, permit.model
        held = None
        if binding is not None:
            deadline_ms, reason = binding.deadline_ms, binding.reason
            window, of_quota = binding.window, binding.of_quota
            held = Deferral(agent, model, deadline_ms, reason, "wait", window, of_quota)
        elif settings.purpose == "ephemeral" and verdict.states is not None:
            # Recorded nowhere: the name is used once. The run itself keeps to it.
            deadline_ms, reason = verdict.states
            if deadline_ms is None or deadline_ms > self._seams.clock.now_ms():
                window, of_quota = verdict.window, verdict.quota
                held = Deferral(agent, model, deadline_ms, reason, "wait", window, of_quota)
        for pause in verdict.pauses:
            held = longest(agent, model, held, pause)
        if held is not None and verdict.can_wait:
            crashpoint("turn.after_wait")
            return held
        if verdict.quota_is_unknown:
            self.awaits_release = True
            return Deferral(agent, model, None, verdict.text, "quota", verdict.window, True)
        if not verdict.failure.error.retryable:
            return _failed(verdict)
        return verdict

    def _cut_off(self, permit: Permit, error: BaseException) -> Settle:
        """The settlement of a call that a cancellation ended: what it may have stated beside that
        is recorded all the same."""
        failure = failure_beside(error)
        if failure is None:
            return Settle(permit, "unknown")
        verdict = self._judge(permit, failure)
        return Settle(
            permit,
            "failed",
            verdict.states,
            verdict.pauses,
            verdict.scope,
            verdict.account_ms,
            window=verdict.window,
            of_quota=verdict.quota,
        )

    def _judge(self, permit: Permit, error: BaseException) -> Verdict:
        return judge(
            error,
            permit,
            purpose="turn",
            failures=self.failures,
            streak=self._streak,
            pacing=self._settings.pacing,
            provider_hold=self._settings.provider_hold,
            now_ms=self._seams.clock.now_ms(),
        )

    def _pause_s(self, verdict: Verdict) -> float | Deferral | Failed:
        """Ask the policy. What a turn should not wait out with its slot is a hold instead."""
        failure, text = verdict.failure, verdict.text
        self._streak.failed += 1
        decision = decide(self._settings.error_policy, failure, self._streak)
        if isinstance(decision, GiveUp):
            return _failed(verdict)
        if decision.after_s <= RETRY_IN_TURN_S_MAX:
            return float(decision.after_s)
        pause = policy_pause(failure, decision.after_s, text)
        self._seams.gate.tell(BeginPause(pause))
        held = longest(failure.agent, failure.model, None, pause)
        assert held is not None
        return held


def give_back(asked: Any, gate: Any) -> None:
    """Return the permit of an admission that nobody waits for any more."""
    try:
        admission = asked.get()
    except Exception:  # noqa: BLE001 - not admitted, so there is nothing to return.
        return
    if isinstance(admission, Permit):
        with suppress(ActorDeadError):  # The gate has ended, and its permits with it.
            gate.tell(Settle(admission, "unknown"))
