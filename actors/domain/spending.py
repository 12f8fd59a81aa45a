"""What an agent's calls used, on its way into the rows.

A call is noted when it is over, however it ended, and owed until a commit that holds it is in: for
a turn's call that is the next commit of its turn (its round, its hold or its end), for an auxiliary
call one of its own, before its caller has the reply. Such a call leaves nothing else that a death
could be told by, so it is stored as unknown before it is made.

Invariants:
    I1  A noted call has its key from then on; it is put once, by whichever commit takes it.
    I2  What is owed outlives the task that made the call, and goes with the next one's commit.
    I3  Noting raises nothing and waits for nothing; a call that was not sent, or was refused by a
        status, used nothing and is not noted.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import trio

from abeyance.actors.core.asks import in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.providers.port import Permit, Usage, name_of
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Committed, Key, Refused, Request, Row, Store
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.spent import TOKENS_MAX, Spent, SpentPart

from .budgets import Budget, Meter, Standing, check_priced
from .ingress import clean_text
from .prices import Prices
from .protocol import RecordWait
from .run_steps import context as step
from .spent_reading import UsageLine, line_of
from .spent_rows import JOINED_MAX, SpentCall, next_call, plan_spent, summed
from .wait_book import Deferral, WaitBook, outlasts

if TYPE_CHECKING:
    from .turn import TurnSettings

Outcome = Literal["replied", "failed", "cut_off"]
_FIELDS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
LOOK_S: Final = 60.0
"""How often it is looked at what agents of other processes use of a host's budgets."""
ROWS_A_SLICE: Final = 64
OWED_MAX: Final = 1_000
"""Calls of one agent that are owed while nothing can be stored; past it the newest is lost."""

declare("usage.begun", "a call is stored as one that may have been made, and it was not yet")
declare("usage.made", "a call was made that is stored as begun, and what it used is not")


class SpendBook:
    """What the agents of one runtime spend."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        waits: WaitBook,
        prices: Prices | None = None,
        budgets: Sequence[Budget] = (),
    ) -> None:
        self.store = store
        self.clock = clock
        self.waits = waits
        self.prices = prices
        self.journal: Any = None
        self.ledger: Any = None
        self.host = [self.meter(budget) for budget in budgets]
        """Of the budgets that all agents share."""
        self._spenders: dict[str, Spender] = {}
        self._spent: tuple[SpentPart, ...] = ()

    def attach(self, journal: Any, ledger: Any) -> None:
        """Tell it whom to hand writes and statements to."""
        self.journal, self.ledger = journal, ledger

    def meter(self, budget: Budget) -> Meter:
        return Meter(budget, None if self.prices is None else self.prices.currency)

    def figures(self) -> tuple[UsageLine, ...]:
        """What calls of this process used, by provider and model; of all but the first 64 models
        together."""
        return tuple(
            line_of({"provider": part.provider, "model": part.model}, part) for part in self._spent
        )

    def count(self, record: Spent) -> None:
        """One more call of this process."""
        self._spent = summed(self._spent, [record]).parts

    def check_priced(self, settings: TurnSettings) -> None:
        """Refuse an agent whose calls a budget in cost could not count.

        Raises:
            InvalidSpecError: Its model has no price; nothing was done.
        """
        budgets = (*settings.budgets, *(meter.budget for meter in self.host))
        check_priced(budgets, self.prices, named(settings.provider), settings.model)

    async def watch(self) -> None:
        """Look at what agents of other processes use of the host's budgets, for as long as it is
        open."""
        while self.host:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read what agents that are not here used of the host's budgets. A checkpoint a slice."""
        now_ms = self.clock.now_ms()
        for meter in self.host:
            meter.roll(now_ms)
        sums: list[dict[str, int]] = [{} for _ in self.host]
        first_ms = min((meter.period.start_ms for meter in self.host), default=0)
        after: Key | None = None
        while self.host:
            rows = list(self.store.scan("spent_quarters", after=after, limit=ROWS_A_SLICE))
            for key, row in rows:
                after = key
                agent = str(key[0])
                if int(key[1]) < first_ms:
                    after = (agent, first_ms, "")
                    break
                for meter, used in zip(self.host, sums, strict=True):
                    used[agent] = used.get(agent, 0) + meter.summed([(key, row)])
            await trio.lowlevel.checkpoint()
            if not rows:
                break
        for meter, used in zip(self.host, sums, strict=True):
            for agent, amount in used.items():
                # Of one that is here more is known: what is not recorded yet.
                if agent not in self._spenders:
                    meter.put(agent, amount)

    def of(self, agent: str) -> Spender:
        """An agent's. What it owes outlives the agent's actors."""
        found = self._spenders.get(agent)
        if found is None:
            found = self._spenders[agent] = Spender(self, agent)
        return found

    async def of_run(self, run: str) -> Spender:
        """Of what the items of one life of a run say in sessions of providers, which are no
        agent's. It is held by the host's budgets, and has none of its own."""
        spender = Spender(self, f"run:{run}")
        await spender.prepare((), kept=False)
        return spender

    async def end(self, agent: str) -> None:
        """The agent has ended: store what it owes, and forget it."""
        spender = self._spenders.get(agent)
        if spender is not None:
            await spender.store_owed()
            self._spenders.pop(agent, None)


class Spender:
    """What one agent spends."""

    def __init__(self, book: SpendBook, agent: str) -> None:
        self._book = book
        self._agent = agent
        self._owed: list[SpentCall] = []
        self._begun: dict[Permit, SpentCall] = {}
        """Calls that are out, and what is stored of them."""
        self._meters: list[Meter] = []
        self._standings: list[Standing] = []
        self._kept = True
        self._numbers: dict[tuple[int, int], int] = {}
        """The last call's number, of the round in progress and of auxiliary calls."""
        self.turn: int | None = None
        """The turn that a task of this process is at work on, or was last."""

    async def prepare(self, budgets: Sequence[Budget], *, kept: bool = True) -> None:
        """Read how the agent stands with its budgets and the host's. A checkpoint a slice of rows.

        Args:
            kept: Whether it has waits and rows of its own; an ephemeral run has none.
        """
        book, agent, self._kept = self._book, self._agent, kept
        mine, host = [book.meter(budget) for budget in budgets], book.host
        now_ms = book.clock.now_ms()
        for meter in (*mine, *host):
            meter.roll(now_ms)
        self._meters = [*mine, *host]
        if kept and self._meters:
            await self._read()
        self._standings = [
            *(Standing(agent, "agent", meter, book, kept=kept) for meter in mine),
            *(Standing(agent, "host", meter, book, kept=kept) for meter in host),
        ]
        for standing in self._standings:
            standing.read()

    async def _read(self) -> None:
        first_ms = min(meter.period.start_ms for meter in self._meters)
        after: Key = (self._agent, first_ms, "")
        found = [self._owed_of(meter) for meter in self._meters]
        while rows := self._rows(after):
            for place, meter in enumerate(self._meters):
                found[place] += meter.summed(rows)
            after = rows[-1][0]
            await trio.lowlevel.checkpoint()
        for meter, used in zip(self._meters, found, strict=True):
            meter.put(self._agent, used)

    def _rows(self, after: Key) -> list[tuple[Key, Row | Exception]]:
        scan = self._book.store.scan
        return list(scan("spent_quarters", (self._agent,), after=after, limit=ROWS_A_SLICE))

    def _owed_of(self, meter: Meter) -> int:
        calls = (call.record for call in self._owed if call.record is not None)
        return sum(meter.amount(call) for call in calls if meter.period.has(call.at_ms))

    def _roll(self, now_ms: int) -> None:
        """Begin what period it is now. Nothing was used in it, unless a clock was set back."""
        for meter in self._meters:
            if meter.roll(now_ms):
                after: Key = (self._agent, meter.period.start_ms, "")
                used = self._owed_of(meter)
                while rows := self._rows(after):
                    used += meter.summed(rows)
                    after = rows[-1][0]
                meter.put(self._agent, used)

    def states(self, model: str) -> tuple[int | None, str] | None:
        """What a budget that is used up has to state of a model: until when, and why."""
        if not self._standings:
            return None
        now_ms = self._book.clock.now_ms()
        self._roll(now_ms)
        found: tuple[int | None, str] | None = None
        for standing in self._standings:
            stated = standing.states(model, now_ms)
            if stated is not None and (found is None or outlasts(stated[0], found[0])):
                found = stated
        return found

    async def ahead(self, model: str) -> Deferral | None:
        """Have the wait for a budget that is used up recorded ahead of a call, where nobody has
        stated it of this model: another agent's call used it up, or a death was faster.

        A checkpoint where it is. Cancelled: it is recorded all the same.

        Returns:
            What holds an ephemeral run, of which nothing is recorded; else None: the gate knows.
        """
        stated = self.states(model)
        if stated is None:
            return None
        deadline_ms, reason = stated
        if not self._kept:
            return Deferral(self._agent, model, deadline_ms, reason, "wait")
        with in_role("runtime"):
            asked = self._book.ledger.ask(RecordWait(self._agent, model, deadline_ms, reason))
        await asked
        for standing in self._standings:
            standing.stated(model)
        return None

    def began(self, turn: int) -> None:
        """A task takes up a turn: what its calls use is noted here from now on."""
        self.turn = turn

    async def begin(self, permit: Permit, provider: object) -> None:
        """Have a call stored as one of which nobody knows what it used, before it is made: what is
        noted of it takes that one's place.

        A checkpoint. Cancelled: as where it was not made. Where nothing can be stored now, it is
        not, and the call may be made all the same.
        """
        record = self._record(permit, provider, permit.model, "unknown", None)
        call = SpentCall((self._agent, 0, 0, self._number(0, 0)), record, record)
        self._begun[permit] = call
        with trio.CancelScope(shield=True):
            # What is noted is planned by what is stored: this is, or is not, by then.
            await self._commit([SpentCall(call.key, record)])
        crashpoint("usage.begun")
        # Whoever was cut off meanwhile makes no call any more.
        await trio.lowlevel.checkpoint_if_cancelled()

    def note(
        self,
        permit: Permit,
        provider: object,
        model: str,
        outcome: Outcome,
        *,
        turn: int = 0,
        round_: int = 0,
        usage: object = None,
        refused: bool = False,
    ) -> None:
        """Take what a call used, once it is over.

        Args:
            usage: Of a reply: what it says.
            refused: It failed, and its error says that it was refused or did not leave.
        """
        told = usage if usage is not None and outcome == "replied" else permit.tokens
        tokens = _tokens(told) or _tokens(permit.tokens)
        begun = self._begun.pop(permit, None)
        if tokens is None and (refused or not permit.used):
            if begun is not None:
                self._owe(begun._replace(record=None))
            return
        record = self._record(permit, provider, model, outcome, tokens)
        if begun is not None:
            crashpoint("usage.made")
            self._owe(begun._replace(record=record))
        else:
            key = (self._agent, turn, round_, self._number(turn, round_))
            self._owe(SpentCall(key, record))
        self._book.count(record)
        self._roll(record.at_ms)
        for meter in self._meters:
            meter.add(self._agent, record)

    def _owe(self, call: SpentCall) -> None:
        if len(self._owed) < OWED_MAX:
            self._owed.append(call)

    def _record(
        self, permit: Permit, provider: object, model: str, outcome: Any, tokens: Usage | None
    ) -> Spent:
        called = named(provider)
        prices = self._book.prices
        cost = None if tokens is None or prices is None else prices.cost(called, model, tokens)
        item = step.get()
        # An agent's own turn is no run's, wherever its agent was added.
        run = None if item is None or permit.purpose == "turn" else item.run
        return Spent(
            purpose=_purpose(permit.purpose),
            provider=called,
            model=model,
            outcome=outcome,
            cost=cost,
            currency=None if prices is None else prices.currency,
            run=None if run is None else _fit(run),
            at_ms=self._book.clock.now_ms(),
            **({} if tokens is None else {name: getattr(tokens, name) for name in _FIELDS}),
        )

    def owed(self) -> Sequence[SpentCall]:
        """What is to join the next commit of the agent's turn."""
        return tuple(self._owed[:JOINED_MAX])

    def stored(self, calls: Sequence[SpentCall]) -> None:
        """A commit that took these is in."""
        keys = {call.key for call in calls}
        self._owed[:] = [call for call in self._owed if call.key not in keys]

    async def store_owed(self) -> None:
        """Store what is owed in commits of their own. What cannot be stored now stays owed.

        A checkpoint. Cancelled: what was handed over is stored, or stays owed.
        """
        while calls := self.owed():
            if not await self._commit(calls):
                return
            self.stored(calls)

    async def _commit(self, calls: Sequence[SpentCall]) -> bool:
        """Store calls, planned anew where somebody was first; False where nothing can be stored."""
        while True:
            guards, puts, deletes = plan_spent(self._book.store, calls)
            try:
                with in_role("runtime"):
                    request = Request(tuple(guards), tuple(puts), tuple(deletes))
                    asked = self._book.journal.ask(request)
                outcome = await asked
            except (AbeyanceError, StorageError):
                return False
            if not isinstance(outcome, Refused):
                return isinstance(outcome, Committed)

    def _number(self, turn: int, round_: int) -> int:
        key = (turn, round_)
        if key not in self._numbers:
            if turn:
                # Only the round in progress makes calls.
                self._numbers = {each: n for each, n in self._numbers.items() if not each[0]}
            last = next_call(self._book.store, self._agent, turn, round_) - 1
            # What a dead task of this round noted is owed still.
            mine = [call.key[3] for call in self._owed if call.key[1:3] == key]
            self._numbers[key] = max(last, *mine) if mine else last
        self._numbers[key] += 1
        return self._numbers[key]


def _tokens(usage: object) -> Usage | None:
    """What a provider counted; None where it counted nothing: no call is made of nothing, so it did
    not say."""
    counts = {name: getattr(usage, name, 0) for name in _FIELDS}
    for name, count in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool)
        if not is_count or not 0 <= count <= TOKENS_MAX:
            counts[name] = 0
    return Usage(**counts) if any(counts.values()) else None


def _purpose(purpose: str) -> Any:
    known = ("auxiliary", "ephemeral", "run")
    return purpose if purpose in known else "turn"


def named(provider: object) -> str:
    """How a provider is called in rows and prices."""
    return _fit(clean_text(name_of(provider), NAME_BYTES_MAX)) or "?"


def _fit(text: str) -> str:
    """As much of a text as a name may have."""
    return text.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
