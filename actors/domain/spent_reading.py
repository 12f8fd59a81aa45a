"""What agents used, read from the sums of the store. Nothing is asked of an actor.

Invariants:
    I1  Only what is committed is counted, once; a sum that cannot be read is told, and the rest
        counts.

Runs in: the loop thread, a slice of rows a step; or wherever a stopped store is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

import trio

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Key, Row, Store
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.spent import QUARTER_MS, SpentPart

from .errors import InvalidInputError, unknown_agent
from .ingress import check_name
from .periods import EPOCH, day_of, zone_problem
from .prices import money

By: TypeAlias = Literal["agent", "model", "day"]
ROWS_A_SLICE: Final = 64
RUN_SUFFIX_CHARS: Final = 13
"""What tells one ephemeral run from the next, behind the name of its specification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """What some of an account of usage come to. None: it is of several, or of any."""

    agent: str | None = None
    """Of ephemeral runs: the name of their specification."""
    purpose: str | None = None
    """`turn`, `auxiliary`, `ephemeral`, or `run`: what a run's items said in a provider's session,
    under the name `run:KEY@NUMBER`."""
    provider: str | None = None
    model: str | None = None
    day: str | None = None
    """In the zone that was asked for: `2026-12-01`."""
    currency: str | None = None
    calls: int = 0
    unknown_calls: int = 0
    """Calls, among them, of which nobody knows what they used."""
    unpriced_calls: int = 0
    """Calls, among them, whose tokens are known and for which the host gave no price."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: Decimal | None = None
    """In the currency's unit; None where nothing of it had a price."""

    @property
    def tokens(self) -> int:
        """All tokens together, cached ones included."""
        cached = self.cache_read_tokens + self.cache_write_tokens
        return self.input_tokens + self.output_tokens + cached


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """What was used since an instant."""

    since_ms: int
    """From the quarter of an hour that this is in."""
    lines: tuple[UsageLine, ...]
    unread: int = 0
    """Quarters whose sums cannot be read, and are in no line."""

    @property
    def calls(self) -> int:
        return sum(line.calls for line in self.lines)

    @property
    def tokens(self) -> int:
        return sum(line.tokens for line in self.lines)

    @property
    def cost(self) -> dict[str, Decimal]:
        """By currency."""
        found: dict[str, Decimal] = {}
        for line in self.lines:
            if line.cost is not None and line.currency is not None:
                found[line.currency] = found.get(line.currency, Decimal(0)) + line.cost
        return found


class Asked:
    """What a report is to hold; checked."""

    def __init__(self, agent: str | None, since: object, by: object, zone: object) -> None:
        self.agent = None if agent is None else check_name(agent, "agent")
        self.since_ms = _since_ms(since)
        if by not in get_args(By):
            raise InvalidInputError("by", f"must be one of {', '.join(get_args(By))}")
        self.by = by
        problem = zone_problem(zone)
        if problem is not None:
            raise InvalidInputError("zone", problem)
        self.zone = ZoneInfo(str(zone))

    def place(self, key: Key, part: SpentPart) -> dict[str, Any]:
        """Which line a sum is of."""
        agent, quarter_ms, purpose = str(key[0]), int(key[1]), str(key[2])
        if purpose == "ephemeral":
            agent = agent[:-RUN_SUFFIX_CHARS] or agent
        place: dict[str, Any] = {"currency": part.currency}
        if self.by == "agent" or self.agent is not None:
            place["agent"] = agent
        if self.by == "agent":
            place["purpose"] = purpose
        if self.by == "model":
            place |= {"provider": part.provider, "model": part.model}
        if self.by == "day":
            place["day"] = day_of(self.zone, quarter_ms)
        return place

    def wants(self, key: Key) -> bool:
        """Whether a row is to be counted."""
        return len(key) == 3 and int(key[1]) + QUARTER_MS > self.since_ms and self.is_of(key)

    def is_of(self, key: Key) -> bool:
        """Whether a row is of the agent that was asked for, whenever it was."""
        mine = self.agent in (None, key[0])
        return mine or (key[2] == "ephemeral" and str(key[0])[:-RUN_SUFFIX_CHARS] == self.agent)


async def read_report(store: Store, asked: Asked) -> UsageReport:
    """Read a report, a slice of rows a step. A checkpoint.

    Raises:
        UnknownAgentError: The store has no such agent, and no call of one.
    """
    sums = Sums(asked)
    after: Key | None = None
    while True:
        rows = list(store.scan("spent_quarters", after=after, limit=ROWS_A_SLICE))
        for key, row in rows:
            sums.add(key, row)
        await trio.lowlevel.checkpoint()
        if len(rows) < ROWS_A_SLICE:
            sums.check_known(store)
            return sums.report()
        after = rows[-1][0]


def read_stopped(store: Store, asked: Asked) -> UsageReport:
    """Read a report of a store that no loop runs beside."""
    sums = Sums(asked)
    for key, row in store.scan("spent_quarters"):
        sums.add(key, row)
    sums.check_known(store)
    return sums.report()


class Sums:
    """Rows as they are added up."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._lines: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, int]]] = {}
        self._unread = 0
        self._any = False

    def check_known(self, store: Store) -> None:
        """Refuse a name that is no agent's, where one that called nothing has sums of nothing.

        Raises:
            UnknownAgentError: The store has no such agent, and no call of one.
        """
        agent = self._asked.agent
        if agent is None or self._any:
            return
        with suppress(UnreadableRecordError):
            if store.get("agents", (agent,)) is None:
                raise unknown_agent(agent)

    def add(self, key: Key, row: Row | Exception) -> None:
        self._any = self._any or self._asked.is_of(key)
        if not self._asked.wants(key):
            return
        if not isinstance(row, Row):
            self._unread += 1
            return
        for part in row.record.parts:
            place = self._asked.place(key, part)
            _, sums = self._lines.setdefault(tuple(place.values()), (place, {}))
            for name, value in _counts(part):
                sums[name] = sums.get(name, 0) + value

    def report(self) -> UsageReport:
        lines = [_line(place, sums) for place, sums in self._merged()]
        lines.sort(key=_order)
        since_ms = self._asked.since_ms - self._asked.since_ms % QUARTER_MS
        return UsageReport(since_ms=since_ms, lines=tuple(lines), unread=self._unread)

    def _merged(self) -> Iterable[tuple[dict[str, Any], dict[str, int]]]:
        """Have what has no currency be of the one that its line has, where that is only one."""
        by: dict[tuple[Any, ...], dict[str | None, tuple[dict[str, Any], dict[str, int]]]] = {}
        for place, sums in self._lines.values():
            rest = tuple(value for name, value in place.items() if name != "currency")
            by.setdefault(rest, {})[place["currency"]] = (place, sums)
        for found in by.values():
            if None in found and len(found) == 2:
                _, bare = found.pop(None)
                ((_, sums),) = found.values()
                for name, value in bare.items():
                    sums[name] += value
            yield from found.values()


def line_of(place: dict[str, Any], part: SpentPart) -> UsageLine:
    """A line of one sum."""
    return _line({**place, "currency": part.currency}, dict(_counts(part)))


def _counts(part: SpentPart) -> Iterator[tuple[str, int]]:
    yield "calls", part.calls
    yield "unknown_calls", part.unknown
    yield "unpriced_calls", part.unpriced
    for name in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
        yield name, getattr(part, name)
    yield "cost", part.cost


def _line(place: dict[str, Any], sums: dict[str, Any]) -> UsageLine:
    cost = sums.pop("cost")
    # Of a currency without a priced call nobody knows what it cost.
    is_priced = sums["calls"] > sums["unknown_calls"] + sums["unpriced_calls"]
    return UsageLine(**place, **sums, cost=money(cost) if is_priced else None)


def _order(line: UsageLine) -> tuple[str, ...]:
    parts = (line.day, line.agent, line.purpose, line.provider, line.model, line.currency)
    return tuple(part or "" for part in parts)


def _since_ms(since: object) -> int:
    if since is None:
        return 0
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidInputError("since", "must say its zone, where it is a datetime")
        return max(0, (since - EPOCH) // timedelta(milliseconds=1))
    if isinstance(since, bool) or not isinstance(since, int) or not 0 <= since <= INSTANT_MS_MAX:
        raise InvalidInputError("since", "must be an aware datetime or epoch milliseconds")
    return since


def as_plain(line: UsageLine, cost: Callable[[Decimal], Any] = str) -> dict[str, Any]:
    """A line as JSON has it; a cost is text, so that none of it is lost."""
    plain = {each.name: getattr(line, each.name) for each in fields(line)}
    return {**plain, "cost": None if line.cost is None else cost(line.cost)}
