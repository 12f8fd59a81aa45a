"""Budgets: how much an agent, or all agents of a host, may use in a period before calls are held.

A budget makes no refusal of its own. What is stated when it is used up is a wait until the period's
end, recorded as a provider's is: held by the same gate, told of by the same alert, listed and
released by the same verbs.

Invariants:
    I1  From the call that uses a budget up on, no call of whoever it binds is admitted before its
        period ends or a release; calls that are out then are not recalled.
    I2  A release is one more allowance: the same amount again, counted from the whole ones used up.
        It is of the agent that was released, also of a host's budget.
    I3  What was released stays so after a restart: the allowance is a row, written before the next
        call is made.
    I4  What cannot be read of a budget's row grants nothing.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, get_args
from zoneinfo import ZoneInfo

from abeyance.actors.core.asks import in_role
from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Guard, Put, Refused, Request, Row, Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.spent import Budgeted, Spent, SpentPart
from abeyance.storage.tables.waits import WaitReleased

from .errors import InvalidSpecError
from .ingress import check_name
from .periods import Per, Period, period_of, zone_problem
from .prices import NANO, Prices, money
from .wait_book import WaitBook

BUDGETS_MAX: Final = 16
TOKENS_MAX: Final = 10**15
COST_MAX: Final = Decimal(10**9)
_PERIODS: Final = {"hour": "an hour", "day": "a day", "month": "a month", "life": "in all"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much may be used in a period: `tokens`, or `cost` in the currency of the host's prices.

    Args:
        per: `hour`, `day` or `month` of the zone, or `life`: since the first call.
        cost: In units of the currency, up to 9 places behind the point.
        tokens: Of requests and replies together, cached ones included.
        zone: By its name in the time zone database.
        name: What it is called; None: as its period.
    Raises:
        InvalidSpecError, InvalidNameError: Names the field that is malformed.
    """

    per: Per
    cost: Decimal | None = None
    tokens: int | None = None
    zone: str = "UTC"
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.per, str) or self.per not in get_args(Per):
            raise InvalidSpecError("per", f"must be one of {', '.join(get_args(Per))}")
        _check_amount(self)
        problem = zone_problem(self.zone)
        if problem is not None:
            raise InvalidSpecError("zone", problem)
        if self.name is not None:
            check_name(self.name, "name")

    @property
    def called(self) -> str:
        return self.name or self.per

    @property
    def limit(self) -> int:
        """In tokens, or in 1e-9 of the currency's unit."""
        return self.tokens if self.tokens is not None else int((self.cost or Decimal(0)) * NANO)


def check_budgets(budgets: object, field: str = "budgets") -> tuple[Budget, ...]:
    """Return budgets, or refuse them. Each by itself is sound: it was refused as it was made.

    Raises:
        InvalidSpecError: Names the field.
    """
    if isinstance(budgets, str | bytes) or not isinstance(budgets, Sequence):
        raise InvalidSpecError(field, "must be a sequence of Budget")
    if len(budgets) > BUDGETS_MAX:
        raise InvalidSpecError(field, f"must be at most {BUDGETS_MAX}")
    names: set[str] = set()
    for place, budget in enumerate(budgets):
        here = f"{field}[{place}]"
        if not isinstance(budget, Budget):
            raise InvalidSpecError(here, f"must be a Budget, not {type(budget).__name__}")
        if budget.called in names:
            raise InvalidSpecError(f"{here}.name", "must be no other budget's here")
        names.add(budget.called)
    return tuple(budgets)


def _check_amount(budget: Budget) -> None:
    cost, tokens = budget.cost, budget.tokens
    if (cost is None) == (tokens is None):
        raise InvalidSpecError("tokens", "or `cost`, one of them, must be given")
    if tokens is not None:
        is_count = isinstance(tokens, int) and not isinstance(tokens, bool)
        if not is_count or not 1 <= tokens <= TOKENS_MAX:
            raise InvalidSpecError("tokens", f"must be a whole number from 1 to {TOKENS_MAX:,}")
        return
    if not isinstance(cost, Decimal):
        raise InvalidSpecError("cost", "must be a Decimal")
    if not cost.is_finite() or not 0 < cost <= COST_MAX or cost * NANO % 1:
        bound = f"must be above 0, at most {COST_MAX:,}, with at most 9 places behind the point"
        raise InvalidSpecError("cost", bound)


def check_priced(
    budgets: Iterable[Budget], prices: Prices | None, provider: str, model: str
) -> None:
    """Refuse a model whose calls a budget in cost could not count.

    Raises:
        InvalidSpecError: Names what has no price.
    """
    for budget in budgets:
        if budget.cost is not None and (prices is None or (provider, model) not in prices.table):
            raise InvalidSpecError(
                "model",
                f"{model!r} of provider {provider!r} has no price, and the budget "
                f"{budget.called!r} is in cost; give open_runtime(prices=...) one",
            )


class Meter:
    """What was used of one budget in its period: by one agent, or (of a host's) by all."""

    def __init__(self, budget: Budget, currency: str | None) -> None:
        self.budget = budget
        self._currency = currency
        self._zone = ZoneInfo(budget.zone)
        self._by: dict[str, int] = {}
        self.used = 0
        self.period = Period(0, 0)

    def roll(self, now_ms: int) -> bool:
        """Begin the period that it is now; whether that is another one."""
        if self.period.has(now_ms):
            return False
        self.period = period_of(self.budget.per, self._zone, now_ms)
        self._by.clear()
        self.used = 0
        return True

    def put(self, agent: str, used: int) -> None:
        """What an agent used in this period, by its rows."""
        self.used += used - self._by.get(agent, 0)
        self._by[agent] = used

    def add(self, agent: str, spent: Spent) -> None:
        """One more call."""
        self.roll(spent.at_ms)
        self.put(agent, self._by.get(agent, 0) + self.amount(spent))

    def amount(self, of: Spent | SpentPart) -> int:
        if self.budget.tokens is None:
            return (of.cost or 0) if of.currency == self._currency else 0
        cached = (of.cache_read_tokens or 0) + (of.cache_write_tokens or 0)
        return (of.input_tokens or 0) + (of.output_tokens or 0) + cached

    def summed(self, rows: Iterable[tuple[Any, Row | Exception]]) -> int:
        """What rows of one agent come to that are of this period."""
        return sum(
            self.amount(part)
            for key, row in rows
            if isinstance(row, Row) and self.period.has(int(key[1]))
            for part in row.record.parts
        )

    @property
    def text(self) -> str:
        """What it is and how it stands, for people."""
        budget = self.budget
        if budget.tokens is not None:
            limit, used = f"{budget.tokens:,} tokens", f"{self.used:,}"
        else:
            limit, used = f"{budget.cost:f} {self._currency}", f"{money(self.used):.2f}"
        return f"{budget.called!r} of {limit} {_PERIODS[budget.per]} is used up ({used})"


class BudgetDesk(Protocol):
    """Where the rows of budgets and waits are."""

    store: Store
    waits: WaitBook
    journal: Any


class Standing:
    """How one agent stands with one budget."""

    def __init__(
        self,
        agent: str,
        scope: Literal["agent", "host"],
        meter: Meter,
        desk: BudgetDesk,
        *,
        kept: bool,
    ) -> None:
        self.meter = meter
        self._agent = agent
        self._scope = scope
        self._desk = desk
        self._kept = kept
        """Whether it has a row: an ephemeral run is released by nobody."""
        self._period_ms: int | None = None
        self._allowances = 1
        self._used_up_ms: int | None = None
        """Since when the allowance is used up, and waits are stated."""
        self._stated: set[str] = set()
        self._is_out = self._is_new = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self._agent, self._scope, self.meter.budget.called

    def read(self) -> None:
        """Go on from its row, where that is of this period."""
        try:
            row = self._desk.store.get("budgets", self.key)
        except StorageError:
            return
        self._period_ms = self.meter.period.start_ms
        if row is not None and row.record.period_ms == self._period_ms:
            self._allowances = row.record.allowances
            self._used_up_ms = row.record.used_up_ms

    def states(self, model: str, now_ms: int) -> tuple[int | None, str] | None:
        """What is to be stated of this model now: until when it is held, and why."""
        meter = self.meter
        meter.roll(now_ms)
        if meter.period.start_ms != self._period_ms:
            self._period_ms = meter.period.start_ms
            self._allowances, self._used_up_ms = 1, None
            self._stated.clear()
        if meter.used < meter.budget.limit * self._allowances:
            return None
        if self._used_up_ms is None:
            self._used_up_ms = now_ms
            self._write()
        elif self._is_released(model):
            self._allowances = meter.used // meter.budget.limit + 1
            self._used_up_ms = None
            self._stated.clear()
            self._write()
            return None
        whose = "the host's budget" if self._scope == "host" else "the budget"
        return meter.period.end_ms, f"{whose} {meter.text}"[:REASON_CHARS_MAX]

    def stated(self, model: str) -> None:
        """It is recorded, so that a release from now on is one of it."""
        if self._used_up_ms is not None:
            self._stated.add(model)

    def _is_released(self, model: str) -> bool:
        last = self._desk.waits.last_act((self._agent, model))
        if not isinstance(last, WaitReleased):
            return False
        if model in self._stated:
            return True
        # Another life stated it. What was released before the budget was used up was another wait.
        at_ms, since_ms = last.at_ms, self._used_up_ms
        return isinstance(at_ms, int) and since_ms is not None and at_ms >= since_ms

    def _write(self) -> None:
        """Write its row, ahead of whatever is handed to the journal next. Nobody waits for it."""
        if not self._kept:
            return
        if self._is_out:
            self._is_new = True
            return
        try:
            row = self._desk.store.get("budgets", self.key)
        except StorageError:
            return
        record = Budgeted(
            period_ms=self._period_ms or 0,
            allowances=self._allowances,
            used_up_ms=self._used_up_ms,
        )
        request = Request(
            (Guard("budgets", self.key, 0 if row is None else row.counter),),
            (Put("budgets", self.key, encode(record)),),
        )
        try:
            with in_role("runtime"):
                asked = self._desk.journal.ask(request, block=False)
        except AbeyanceError:
            return  # The runtime ends; the next one finds by the rows what is used up.
        self._is_out, self._is_new = True, False
        asked.on_done(lambda: self._written(asked))

    def _written(self, asked: Any) -> None:
        self._is_out = False
        try:
            refused = isinstance(asked.get(), Refused)
        except Exception:  # noqa: BLE001 - the runtime ends.
            return
        if refused or self._is_new:
            self._write()
