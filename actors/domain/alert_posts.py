"""Delivering alerts to sinks: what each is owed, how it fares, and the task that gives it that.

Invariants:
    I1  A sink is given an alert at least once, in the order they were raised where none failed. A
        death between the delivery and the commit that says so gives it once more.
    I2  Each attempt has a deadline, each alert a bounded number of attempts.
    I3  Behind an alert that is not taken the others are offered before it is offered again: one
        that a sink hangs on delays each other one by an attempt, and not by all of its own.

Runs in: a task of its own a sink, of the alerts actor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import trio
from trio_util import AsyncValue

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Delete, Key, Request, Row, Store

from .alert_book import Alert, AlertNotDeliveredError, AlertSink, SinkFigures, alert_of
from .ingress import clean_text

ATTEMPT_S_MAX: Final = 30.0
"""How long a sink may take for one alert."""
PAUSES_S: Final = (1.0, 5.0, 25.0, 60.0, 120.0, 300.0, 300.0)
"""Between the attempts to deliver one alert; after the last it is given up."""
OWED_MAX: Final = 1_000
"""Alerts that wait for one sink; it is not offered more."""
UNSTORED_MAX: Final = 100

_logger = Log(__name__)


class Post:
    """One sink: what it is owed and how it fares."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.news: AsyncValue[int] = AsyncValue(0)
        self.owed = 0
        """About how many rows wait for it."""
        self.unstored: deque[Alert] = deque(maxlen=UNSTORED_MAX)
        self.taken: set[Key] = set()
        """Rows that are done with and not deleted yet."""
        self.delivered = self.failures = self.given_up = self.unread = 0

    def figures(self) -> SinkFigures:
        """What it was given."""
        return SinkFigures(self.name, self.delivered, self.failures, self.given_up, self.unread)


class _Try:
    """An alert that a sink is offered: how often it was, and when it is again."""

    __slots__ = ("alert", "attempts", "due_s", "key")

    def __init__(self, alert: Alert, key: Key | None) -> None:
        self.alert = alert
        self.key = key
        """The row that it is owed by; None of one that could not be stored."""
        self.attempts = 0
        self.due_s = 0.0


class Deliveries:
    """Gives sinks what they are owed."""

    def __init__(self, store: Store, journal: Any, is_alive: Callable[[str], bool]) -> None:
        self._store = store
        self._journal = journal
        self._is_alive = is_alive

    async def pump(self, sink: AlertSink, post: Post) -> None:
        """Give a sink what it is owed, this opening's and what dead ones left, for ever."""
        failed: list[_Try] = []
        while True:
            known = post.news.value
            for each in self._fresh(post, failed):
                await self._offer(sink, post, each, failed)
            for key in tuple(post.taken):
                await self._forget(post, key)
            due_s = min((each.due_s for each in failed), default=math.inf)
            if due_s > trio.current_time():
                with trio.move_on_at(due_s):
                    await post.news.wait_value(lambda value, known=known: value != known)
                continue
            each = min(failed, key=lambda each: each.due_s)
            failed.remove(each)
            await self._offer(sink, post, each, failed)

    def _fresh(self, post: Post, failed: list[_Try]) -> Iterator[_Try]:
        """What the sink was not offered yet, in the order it was raised."""
        for alert in tuple(post.unstored):
            if all(each.alert is not alert for each in failed):
                yield _Try(alert, None)
        for key, number in self._owed_to(post):
            if key in post.taken or any(each.key == key for each in failed):
                continue
            found = self._find(key) if number is None else self._read(number)
            if found is None:
                post.taken.add(key)
            else:
                yield _Try(found, key)

    def _owed_to(self, post: Post) -> list[tuple[Key, Key | None]]:
        """The rows that a sink is owed by, in the order their alerts were raised."""
        found: list[tuple[Key, Key | None]] = []
        mine: dict[str, bool] = {self._store.nonce: True}
        try:
            for key, row in self._store.scan("alerts_owed", (post.name,)):
                nonce = str(key[1]) if len(key) > 1 else ""
                if nonce not in mine:
                    mine[nonce] = not self._is_alive(nonce)
                if mine[nonce] and row is not None:
                    found.append((key, None if isinstance(row, Exception) else row.allotted))
        except StorageError as error:
            _logger.error("what %s is owed cannot be read: %s", post.name, type(error).__name__)
        post.owed = len(found)
        return sorted(found, key=lambda each: each[1] or (0,))

    def _read(self, key: Key) -> Alert | None:
        try:
            row = self._store.get("alerts", key)
        except StorageError as error:
            _logger.error("an alert that is owed cannot be read: %s", type(error).__name__)
            return None
        return None if row is None else alert_of(key, row)

    def _find(self, owed: Key) -> Alert | None:
        """The alert of a row that cannot be read: its key has the episode, and one raised it."""
        try:
            for key, row in self._store.scan("alerts", limit=OWED_MAX, reverse=True):
                if isinstance(row, Row) and row.record.episode == owed[-1]:
                    return alert_of(key, row)
        except StorageError:
            pass
        _logger.error("which alert is owed to %s cannot be read; it is in the store", owed[0])
        return None

    async def _offer(self, sink: AlertSink, post: Post, each: _Try, failed: list[_Try]) -> None:
        """Offer an alert once; where it is not taken, again behind its pause, and behind others."""
        alert = each.alert
        if not await self._is_taken(sink, post, each):
            if each.attempts <= len(PAUSES_S):
                each.due_s = trio.current_time() + PAUSES_S[each.attempts - 1]
                failed.append(each)
                return
            post.given_up += 1
            _logger.error(
                "sink %s is not offered the alert %s of %s again",
                post.name,
                alert.id,
                alert.agent,
                agent=alert.agent,
            )
        if each.key is None:
            with suppress(ValueError):
                post.unstored.remove(alert)
        else:
            post.taken.add(each.key)
            await self._forget(post, each.key)

    async def _is_taken(self, sink: AlertSink, post: Post, each: _Try) -> bool:
        each.attempts += 1
        try:
            with trio.fail_after(ATTEMPT_S_MAX):
                await sink.deliver(each.alert)
        except Exception as error:  # noqa: BLE001 - anybody may have written the sink.
            post.failures += 1
            # Of a host's error only the class: its text may hold what the host keeps secret.
            known = isinstance(error, AlertNotDeliveredError)
            if known and error.final:  # type: ignore[attr-defined]
                each.attempts = len(PAUSES_S) + 1
            said = clean_text(str(error), 300) if known else type(error).__name__
            _logger.warning(
                "sink %s did not take an alert of %s: %s",
                post.name,
                each.alert.agent,
                said,
                agent=each.alert.agent,
            )
            return False
        post.delivered += 1
        return True

    async def _forget(self, post: Post, key: Key) -> None:
        request = Request(deletes=(Delete("alerts_owed", key),))
        try:
            await self._journal.ask(request)
        except AbeyanceError:
            # It is taken all the same; the row is tried again with the next alert, and by the next
            # opening, which delivers it once more.
            _logger.warning("that %s took an alert is not stored yet", post.name)
        else:
            post.taken.discard(key)
            post.owed = max(0, post.owed - 1)
