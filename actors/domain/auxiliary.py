"""Auxiliary calls: what an agent asks of a provider beside its turns, through the same gate.

A host's own question, a summary it makes. Such a call is refused unmade while its model
is held, never runs beside a turn's call, and what it states binds the agent's turns on that model.

Invariants:
    I1  No auxiliary call without a permit of its agent's gate; a held one reaches no wire.
    I2  However it ends, its permit is settled, and the wait it stated is recorded before its caller
        learns of it; by the ledger itself where the gate has ended, as with its agent.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.core.spans import NO_SPANS, Spans
from abeyance.actors.providers.context_limit import check_length
from abeyance.actors.providers.port import ModelReply, ModelRequest, Permit, name_of, permitted
from abeyance.storage.store import Store

from .accounts import ASK_AGAIN_MS, Account
from .attachment_reading import with_attachments
from .bounded_call import bounded_call
from .call import give_back
from .errors import AdmissionClosedError, CallDeferredError, InvalidInputError
from .foreign import failure_beside, failure_of, reply_of
from .ingress import check_model
from .limits import EPHEMERAL_SLEEP_MAX_MS
from .preflight import in_item
from .protocol import Admit, Settle
from .spending import Spender
from .statements import statement_of
from .streaming import unshown
from .turn_spans import call_span, replied
from .usage_book import AccountUsage
from .verdict import Streak, Verdict, judge, used_nothing
from .wait_book import Deferral

if TYPE_CHECKING:
    from .chosen_model import ChosenModel
    from .turn import TurnSettings


IN_LINE_S_MAX: Final = EPHEMERAL_SLEEP_MAX_MS / 1_000


class Auxiliary:
    """The auxiliary calls of one agent."""

    def __init__(
        self,
        settings: TurnSettings,
        gate: Any,
        ledger: Any,
        clock: Clock,
        account: Account | None = None,
        usage: AccountUsage | None = None,
        spending: Spender | None = None,
        store: Store | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._store = store
        self._spans = spans
        self._settings = settings
        self._gate = gate
        self._ledger = ledger
        self._clock = clock
        self._account = account
        self._usage = usage
        self._spending = spending
        self._streak = Streak()
        self._failures = 0

    @property
    def model(self) -> str:
        """The model that the agent's turns ask."""
        return self._settings.model

    def use(self, choice: ChosenModel) -> None:
        """Call by other settings from the next call on."""
        self._settings, self._account = choice.settings, choice.account
        self._usage = choice.usage

    async def call(self, request: ModelRequest) -> ModelReply:
        """Make one call, or be refused unmade. Retries nothing and waits for no hold; an item of a
        run waits, for up to 10 min, for others of the account that go first after its wall.

        A checkpoint; waits while a turn's call or another auxiliary one is out. Cancelled: a call
        that is out is abandoned, its permit settled as unknown.
        Durable: what it used, on return; what it stated, when this raises.

        Raises:
            InvalidInputError: Names the field; no call was made.
            CallDeferredError: The model is held, or the agent paused; no call was made.
            AdmissionClosedError: The agent was stopped or ended; no call was made.
            ContextTooLongError: By an estimate the model takes no request of that length; no call
                was made. Or the provider said so.
            ProviderError: The call failed; what it stated is recorded.
        """
        given: object = request
        if not isinstance(given, ModelRequest):
            kind = type(given).__name__
            raise InvalidInputError("request", f"must be a ModelRequest, not {kind}")
        check_model(request.model, "request.model")
        check_length(self._settings.provider, request)
        permit = await self._admitted(request.model)
        # A choice meanwhile is of the next call.
        provider, usage = self._settings.provider, self._usage
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._store is not None:
                request = with_attachments(self._store, provider, request)
            if self._spending is not None:
                await self._spending.begin(permit, provider)
            span = call_span(self._spans, provider, request.model, "auxiliary")
            with span, permitted(permit):
                returned = await bounded_call(provider, request, unshown)
                reply = reply_of(returned, permit)
                replied(span, reply)
        except BaseException as error:
            _take_usage(usage, permit)
            try:
                failure = failure_of(error)
            except BaseException:
                self._spent(permit, provider, "cut_off")
                beside = failure_beside(error)
                unknown = Settle(permit, "unknown")
                # What it may have stated beside a cancellation is recorded all the same.
                self._settle(unknown if beside is None else self._settlement(permit, beside)[0])
                await self._store_spent()
                raise
            raise await self._failed(permit, failure, provider) from error
        _take_usage(usage, permit)
        self._spent(permit, provider, "replied", usage=reply.usage)
        states = None if self._spending is None else self._spending.states(permit.model)
        self._settle(Settle(permit, "succeeded", states))
        self._streak.clear()
        await self._store_spent()
        return reply

    def _spent(self, permit: Permit, provider: object, outcome: Any, **told: Any) -> None:
        if self._spending is not None:
            self._spending.note(permit, provider, permit.model, outcome, **told)

    async def _store_spent(self) -> None:
        """Have what it used stored before its caller goes on, also one that was cancelled."""
        if self._spending is not None:
            with trio.CancelScope(shield=True):
                await self._spending.store_owed()

    async def _admitted(self, model: str) -> Permit:
        admission = await self._asked(model)
        patience = trio.current_time() + IN_LINE_S_MAX
        while (pause_s := self._line_s(admission)) is not None and trio.current_time() < patience:
            await trio.sleep(pause_s)
            admission = await self._asked(model)
        if isinstance(admission, Deferral):
            raise CallDeferredError(
                agent=admission.agent,
                model=admission.model,
                cause=admission.cause,
                reason=admission.reason,
                deadline_ms=admission.deadline_ms,
                provider=name_of(self._settings.provider),
                window=admission.window,
                of_quota=admission.of_quota,
                now_ms=self._clock.now_ms(),
            )
        permit: Permit = admission
        return permit

    async def _asked(self, model: str) -> Any:
        try:
            if self._spending is not None:
                await self._spending.ahead(model)
            asked = self._gate.ask(Admit(model, "auxiliary", in_item()))
            try:
                return await asked
            except BaseException:
                asked.on_done(lambda: give_back(asked, self._gate))
                raise
        except ActorDeadError as error:
            agent = self._settings.name
            raise AdmissionClosedError(
                f"agent {agent!r} has ended; no call was made; call again after the next start",
                agent=agent,
            ) from error

    def _line_s(self, admission: object) -> float | None:
        """How long an item of a run waits for others of its account before it asks again; None
        where it goes on. Its run would wait as a row, which is no less work every few seconds."""
        if not (isinstance(admission, Deferral) and admission.cause == "account" and in_item()):
            return None
        if admission.deadline_ms is None:
            return None
        left_ms = admission.deadline_ms - self._clock.now_ms()
        return max(0, left_ms) / 1_000 if left_ms <= ASK_AGAIN_MS else None

    async def _failed(self, permit: Permit, error: BaseException, provider: object) -> Exception:
        """Settle the permit with what was stated; return what the caller is told."""
        self._failures += 1
        settlement, verdict = self._settlement(permit, error)
        self._spent(permit, provider, "failed", refused=used_nothing(verdict))
        self._streak.failed += 1
        # Shielded: what was stated is on its way, and the caller learns of it behind the record.
        with trio.CancelScope(shield=True):
            try:
                await self._gate.ask(settlement)
            except ActorDeadError:
                await self._record(settlement)
        await self._store_spent()
        failed = verdict.failure.error
        failed.reading = None if self._usage is None else self._usage.newest()
        return failed

    def _settlement(self, permit: Permit, error: BaseException) -> tuple[Settle, Verdict]:
        verdict = judge(
            error,
            permit,
            purpose="auxiliary",
            failures=self._failures,
            streak=self._streak,
            pacing=self._settings.pacing,
            provider_hold=self._settings.provider_hold,
            now_ms=self._clock.now_ms(),
        )
        settlement = Settle(
            permit,
            "failed",
            verdict.states,
            verdict.pauses,
            verdict.scope,
            verdict.account_ms,
            window=verdict.window,
            of_quota=verdict.quota,
        )
        return settlement, verdict

    async def _record(self, settlement: Settle) -> None:
        """Hand what was stated to the ledger: the agent has ended, and its waits stay in force.

        Where the gate had taken it before it died, the ledger is told twice, which changes nothing.
        """
        statement = statement_of(self._settings.name, settlement, self._account)
        if statement is not None:
            with suppress(ActorDeadError):  # The runtime has ended; nobody is left to record it.
                await self._ledger.ask(statement)

    def _settle(self, settlement: Settle) -> None:
        try:
            self._gate.tell(settlement)
        except ActorDeadError:
            # The gate has ended, and its permits with it; what was stated stays in force.
            statement = statement_of(self._settings.name, settlement, self._account)
            if statement is not None:
                with suppress(
                    ActorDeadError
                ):  # The runtime has ended; nobody is left to record it.
                    self._ledger.tell(statement)


def _take_usage(usage: AccountUsage | None, permit: Permit) -> None:
    if usage is not None:
        usage.take(permit)
