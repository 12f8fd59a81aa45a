"""What an agent's calls used, on its way into the rows.

A call is noted when it is over, however it ended, and owed until a commit that holds it is in: for
a turn's call that is the next commit of its turn (its round, its hold or its end), for an auxiliary
call one of its own, before its caller has the reply.

Invariants:
    I1  A noted call has its key from then on; it is put once, by whichever commit takes it.
    I2  What is owed outlives the task that made the call, and goes with the next one's commit.
    I3  Noting raises nothing and waits for nothing; a call that was not sent, or was refused by a
        status, used nothing and is not noted.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from abeyance.actors.core.asks import in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.providers.port import Permit, Usage, name_of
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Committed, Refused, Request, Store
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.spent import TOKENS_MAX, Spent

from .ingress import clean_text
from .prices import Prices
from .protocol import Purpose
from .run_steps import context as step
from .spent_rows import JOINED_MAX, SpentCall, next_call, plan_spent

Outcome = Literal["replied", "failed", "cut_off"]
_FIELDS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
OWED_MAX: Final = 1_000
"""Calls of one agent that are owed while nothing can be stored; past it the newest is lost."""


class SpendBook:
    """What the agents of one runtime spend."""

    def __init__(self, store: Store, clock: Clock, prices: Prices | None = None) -> None:
        self.store = store
        self.clock = clock
        self.prices = prices
        self.journal: Any = None
        self._spenders: dict[str, Spender] = {}

    def attach(self, journal: Any) -> None:
        """Tell it whom to hand writes to."""
        self.journal = journal

    def of(self, agent: str) -> Spender:
        """An agent's. What it owes outlives the agent's actors."""
        found = self._spenders.get(agent)
        if found is None:
            found = self._spenders[agent] = Spender(self, agent)
        return found

    async def end(self, agent: str) -> None:
        """The agent has ended: store what it owes, and forget it."""
        spender = self._spenders.pop(agent, None)
        if spender is not None:
            await spender.store_owed()


class Spender:
    """What one agent spends."""

    def __init__(self, book: SpendBook, agent: str) -> None:
        self._book = book
        self._agent = agent
        self._owed: list[SpentCall] = []
        self._numbers: dict[tuple[int, int], int] = {}
        """The last call's number, of the round in progress and of auxiliary calls."""
        self.turn: int | None = None
        """The turn that a task of this process is at work on, or was last."""

    def began(self, turn: int) -> None:
        """A task takes up a turn: what its calls use is noted here from now on."""
        self.turn = turn

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
        if tokens is None and (refused or not permit.used):
            return
        named = clean_text(name_of(provider), NAME_BYTES_MAX)
        prices = self._book.prices
        cost = None if tokens is None or prices is None else prices.cost(named, model, tokens)
        item = step.get()
        # An agent's own turn is no run's, wherever its agent was added.
        run = None if item is None or permit.purpose == "turn" else item.run
        record = Spent(
            purpose=_purpose(permit.purpose),
            provider=_fit(named) or "?",
            model=model,
            outcome=outcome,
            cost=cost,
            currency=None if prices is None else prices.currency,
            run=None if run is None else _fit(run),
            at_ms=self._book.clock.now_ms(),
            **({} if tokens is None else {name: getattr(tokens, name) for name in _FIELDS}),
        )
        if len(self._owed) < OWED_MAX:
            key = (self._agent, turn, round_, self._number(turn, round_))
            self._owed.append(SpentCall(key, record))

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
            guards, puts = plan_spent(self._book.store, calls)
            try:
                with in_role("runtime"):
                    asked = self._book.journal.ask(Request(tuple(guards), tuple(puts)))
                outcome = await asked
            except (AbeyanceError, StorageError):
                return
            if isinstance(outcome, Committed):
                self.stored(calls)
            elif not isinstance(outcome, Refused):
                return

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
    known: tuple[Purpose, ...] = ("auxiliary", "ephemeral")
    return purpose if purpose in known else "turn"


def _fit(text: str) -> str:
    """As much of a text as a name may have."""
    return text.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
