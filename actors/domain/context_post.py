"""An agent's side of its context strategy: which view a turn starts with, and what is told on.

Invariants:
    I1  Choosing a view raises nothing and waits for nothing: what a strategy raises, or chooses
        that it was not offered, is logged, and the turn is compiled from the whole slot.
    I2  What is told is told in order. It reaches a keeper that is started later, too.

Runs in: the agent's handlers, on the loop thread.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Store

from .alert_book import AlertDesk
from .context import ContextStrategy, Summary
from .context_rows import read_summaries
from .foreign import failure_of, told

EARLY_MAX: Final = 1_000
_logger = Log(__name__)


class ContextPost:
    """Where an agent's strategy is asked for views, and told of what it must accept."""

    def __init__(
        self,
        strategy: ContextStrategy,
        store: Store,
        slot: str,
        agent: str,
        alerts: AlertDesk | None = None,
    ) -> None:
        self._strategy = strategy
        self._store = store
        self._slot = slot
        self._agent = agent
        self._alerts = alerts
        self._ref: Any = None
        self._early: deque[Any] = deque(maxlen=EARLY_MAX)

    def attach(self, ref: Any) -> None:
        """The keeper is there; it is told first what was told before."""
        self._ref = ref
        while self._early:
            self.tell(self._early.popleft())

    def tell(self, message: Any) -> bool:
        """Tell the keeper; whether it can be. Neither waits nor raises."""
        if self._ref is None:
            self._early.append(message)
            return True
        try:
            self._ref.tell(message)
            return True
        except AbeyanceError as error:
            _logger.error(
                "the context strategy of agent %r is not told of a %s: %s",
                self._agent,
                type(message).__name__,
                type(error).__name__,
                agent=self._agent,
            )
        return False

    def choose(self) -> Summary | None:
        """The summary that the next turn's requests carry; None: they carry the whole slot."""
        offered: list[Summary] = []

        def offer() -> Iterator[Summary]:
            for summary in read_summaries(self._store, self._slot, self._agent, self.unreadable):
                offered.append(summary)
                yield summary

        try:
            chosen: Any = self._strategy.view(offer())
        except BaseException as error:  # noqa: BLE001 - anybody may have written the strategy.
            self._whole(f"view raised {told(failure_of(error))}")
            return None
        if chosen is None or chosen in offered:
            found: Summary | None = chosen
            return found
        if inspect.iscoroutine(chosen):
            chosen.close()
        self._whole(f"view returned a {type(chosen).__name__} that is none of what it was offered")
        return None

    def unreadable(self, last: int, error: UnreadableRecordError) -> None:
        """A summary cannot be read: an operator learns of it, once."""
        if self._alerts is not None:
            self._alerts.context(self._agent, self._slot, last, error.cause)

    def _whole(self, why: str) -> None:
        _logger.error(
            "the context strategy of agent %r gives no view (%s); this turn is sent the whole slot",
            self._agent,
            why,
            agent=self._agent,
        )
