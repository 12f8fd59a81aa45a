"""The alerts actor: raises each alert once an episode, and sees that every sink is given it.

Invariants:
    I1  One commit appends the alert, notes its episode, and owes it to each sink. So an episode
        raises one alert, whatever dies, and what was raised is delivered after a restart.
    I2  A sink is given an alert at least once. A death between the delivery and the commit that
        says so gives it once more; the episode tells that it is the same.
    I3  Nobody waits for an alert: sinks have tasks of their own, each attempt has a deadline, each
        alert a bounded number of attempts, each sink a bounded number of alerts.
    I4  What the store cannot take now is shown and delivered from memory, and stored once it can.

Runs in: the loop thread. What is to be stored, and what sinks took, is in the cell.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from abeyance.actors.core import LATER, Answer, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.store import (
    Append,
    Committed,
    Delete,
    Guard,
    NotStored,
    Outcome,
    Put,
    Refused,
    Request,
    Row,
    Store,
)
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.waits import ALERT_CHARS_MAX, Alerted, AlertOwed, Wait
from abeyance.storage.tables.waits import Alert as AlertRow

from . import events
from .alert_book import (
    Alert,
    AlertSink,
    LookAtAgent,
    RaiseAlert,
    SinkFigures,
    alert_text,
    is_long,
    of_approval,
    of_quota,
    of_wait,
    quota_prefix,
    where_of,
)
from .alert_posts import OWED_MAX, Deliveries, Post
from .approvals import standing
from .errors import not_stored
from .ingress import clean_text
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Requests
from .redelivery import Redelivered
from .run_alerts import CAUSE as RUN
from .run_alerts import run_alert_text
from .wait_book import WaitBook

TOLD_MAX: Final = 10_000
LISTED_MAX: Final = 1_000
"""The newest alerts, among which one is looked for whose note cannot be read."""
PAGE: Final = 64

_logger = Log(__name__)


class _Item:
    """One alert on its way to its row."""

    __slots__ = ("alert", "message", "reply", "shown")

    def __init__(self, message: RaiseAlert, reply: Reply | None, alert: Alert) -> None:
        self.message = message
        self.reply = reply
        self.alert = alert
        self.shown = False
        """It was shown before the store had it."""


class AlertsKept:
    """Survives a crash: what is to be stored, what is out, and the sinks' figures."""

    def __init__(self) -> None:
        self.queue: deque[_Item] = deque()
        self.out: _Item | None = None
        self.told: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self.posts: dict[str, Post] = {}

    def figures(self) -> tuple[SinkFigures, ...]:
        """What each sink was given."""
        return tuple(post.figures() for post in self.posts.values())


class _Again:
    """To itself: what could not be stored may be now."""


class Alerts(TrioActor):
    """Raises alerts. See the module's invariants."""

    role: ClassVar[str] = "alerts"
    mailbox_capacity: ClassVar[int] = 10_000
    max_deliveries: ClassVar[int] = 3
    kept: AlertsKept

    def __init__(
        self,
        store: Store,
        journal: Any,
        clock: Clock,
        book: WaitBook,
        sinks: Sequence[AlertSink],
        is_alive: Callable[[str], bool],
        directory: str,
    ) -> None:
        super().__init__()
        self._store = store
        self._journal = journal
        self._clock = clock
        self._book = book
        self._sinks = tuple(sinks)
        self._is_alive = is_alive
        self._directory = directory

    @classmethod
    def make_kept(cls) -> AlertsKept:
        return AlertsKept()

    def on_start(self) -> None:
        kept = self.kept
        pending = [item for item in (kept.out, *kept.queue) if item is not None]
        self._back = Redelivered((i.message, i.reply) for i in pending if i.reply is not None)
        deliveries = Deliveries(self._store, self._journal, self._is_alive)
        for sink in self._sinks:
            post = kept.posts.setdefault(sink.name, Post(sink.name))
            self.spawn(deliveries.pump, sink, post, name=f"alerts to {sink.name}")
        self._hand_over()

    async def on_stop(self) -> None:  # type: ignore[override]
        # What was delivered and is not noted yet would be delivered again by the next opening.
        taken = [key for post in self.kept.posts.values() for key in post.taken]
        for at in range(0, len(taken), PAGE):
            part = taken[at : at + PAGE]
            with suppress(AbeyanceError):
                await self._journal.ask(
                    Requests(Request(deletes=(Delete("alerts_owed", key),)) for key in part)
                )

    def on_receive(self, message: Any) -> Any:
        match message:
            case RaiseAlert():
                reply = self.later()
                if not self._back.claims(message):
                    self._take(message, reply)
                return LATER
            case LookAtAgent(agent):
                for raised in self._missed(agent):
                    self._take(raised, None)
            case _Again():
                self._hand_over()
            case _:
                raise TypeError(f"the alerts actor takes no {type(message).__name__}")
        return None

    # -- raising -----------------------------------------------------------------------------

    def _take(self, raised: RaiseAlert, reply: Reply | None) -> None:
        end_ms = raised.deadline_ms
        alert = Alert(
            id=None,
            kind=raised.kind,
            agent=clean_text(raised.agent, 128) or "*",
            model=clean_text(raised.model, 128) or "*",
            text=self._text(raised),
            deadline_ms=None if end_ms is None else min(max(0, end_ms), INSTANT_MS_MAX),
            episode=raised.episode,
            at_ms=max(0, self._clock.now_ms()),
        )
        self.kept.queue.append(_Item(raised, reply, alert))
        self._hand_over()

    def _text(self, raised: RaiseAlert) -> str:
        if raised.cause == RUN:
            return clean_text(run_alert_text(raised, where_of(self._directory)), ALERT_CHARS_MAX)
        return alert_text(raised, self._directory)

    def _hand_over(self) -> None:
        kept = self.kept
        while kept.out is None and kept.queue:
            item = kept.queue.popleft()
            try:
                requests = self._requests_of(item)
            except StorageError as error:
                # Nobody can tell whether it was raised before: rather twice than not at all.
                _logger.error(
                    "an alert is in memory only: %s", type(error).__name__, agent=item.alert.agent
                )
                self._show(item)
                self._over(item)
                continue
            if requests is None:
                self._over(item)
                continue
            kept.out = item
            self.ask(self._journal, requests, tag="raise", fact=True)

    def _requests_of(self, item: _Item) -> Requests | None:
        """What stores an alert; None where its episode has one."""
        alert = item.alert
        assert alert.at_ms is not None  # It is raised here, and not read from a row.
        key = _key(item)
        before: list[Request] = []
        counter = 0
        try:
            row = self._store.get("alerted", key)
        except UnreadableRecordError:
            if self._is_listed(alert):
                return None
            before.append(Request(deletes=(Delete("alerted", key),)))
        else:
            if row is not None:
                counter = row.counter
                if row.record.episode == alert.episode:
                    return None
        if not item.shown and self.kept.told.get(key) == alert.episode:
            return None
        row_of = AlertRow(
            kind=alert.kind,
            agent=alert.agent,
            model=alert.model,
            text=alert.text,
            deadline_ms=alert.deadline_ms,
            episode=alert.episode,
            at_ms=alert.at_ms,
        )
        noted = encode(Alerted(episode=alert.episode), allotted=0)
        owed = encode(AlertOwed(at_ms=alert.at_ms), allotted=0)
        request = Request(
            guards=(Guard("alerted", key, counter),),
            puts=(
                Put("alerted", key, noted),
                *(
                    Put("alerts_owed", (post.name, self._store.nonce, alert.episode), owed)
                    for post in self._posts_for(item)
                ),
            ),
            appends=(Append("alerts", encode(row_of)),),
        )
        return Requests([*before, request])

    def _is_listed(self, alert: Alert) -> bool:
        """Whether an alert of this episode has a row; looked for where the note of it is lost."""
        return any(
            isinstance(row, Row)
            and (row.record.agent, row.record.model, row.record.episode)
            == (alert.agent, alert.model, alert.episode)
            for _, row in self._store.scan("alerts", limit=LISTED_MAX, reverse=True)
        )

    def _posts_for(self, item: _Item) -> list[Post]:
        posts = []
        for post in self.kept.posts.values():
            if item.shown and item.alert not in post.unstored:
                continue  # It was given the alert from memory.
            if post.owed < OWED_MAX:
                posts.append(post)
            elif not item.shown:
                post.unread += 1
                _logger.error(
                    "sink %s is not offered an alert: too many wait for it",
                    post.name,
                    agent=item.alert.agent,
                )
        return posts

    def on_answer(self, answer: Answer) -> None:
        kept = self.kept
        item, kept.out = kept.out, None
        if item is None:
            return
        outcome: Outcome | None = answer.value[-1] if answer.value else None
        if isinstance(outcome, Committed):
            number = outcome.allotted[0][0]
            assert isinstance(number, int)
            self._stored(item, number)
        elif isinstance(outcome, Refused):
            kept.queue.appendleft(item)  # Another process raised one for this key.
        else:
            self._show(item)
            if isinstance(outcome, NotStored) and may_land_later(not_stored(outcome)):
                if item.reply is not None:
                    self._over(item)
                    item.reply = None
                kept.queue.appendleft(item)
                self.after(PAUSE_MAX_S, _Again())
                return
            _logger.error(
                "an alert is in memory only: %s", answer.error or outcome, agent=item.alert.agent
            )
            self._over(item)
        self._hand_over()

    def _stored(self, item: _Item, number: int) -> None:
        alert = item.alert
        self._note_told(item)
        for post in self.kept.posts.values():
            with suppress(ValueError):
                post.unstored.remove(alert)  # Its row is delivered instead.
            post.owed += 1
        if not item.shown:
            self._emit(alert, number)
        self._ring()
        self._over(item)

    def _show(self, item: _Item) -> None:
        """Tell of an alert that has no row."""
        if item.shown:
            return
        item.shown = True
        self._note_told(item)
        for post in self.kept.posts.values():
            post.unstored.append(item.alert)
        self._emit(item.alert, None)
        self._ring()

    def _note_told(self, item: _Item) -> None:
        told, key = self.kept.told, _key(item)
        told[key] = item.alert.episode
        told.move_to_end(key)
        if len(told) > TOLD_MAX:
            told.popitem(last=False)

    def _emit(self, alert: Alert, number: int | None) -> None:
        self.emit(
            events.AlertRaised,
            agent=alert.agent,
            alert=number,
            about=alert.kind,
            model=alert.model,
            deadline_ms=alert.deadline_ms,
            text=alert.text,
        )

    def _over(self, item: _Item) -> None:
        if item.reply is not None:
            self._back.forget(item.message)
            item.reply.set(None)

    def _missed(self, agent: str) -> list[RaiseAlert]:
        """What the records say holds an agent, and an operator should know of.

        A process may have died between a hold's commit and its alert's.
        """
        found = []
        now_ms = self._clock.now_ms()
        with suppress(StorageError):
            self._book.deferral(agent, None)  # What cannot be read begins its episode.
            for key, _ in self._store.scan("waits", (agent,)):
                wait = self._book.binding((agent, str(key[1]))) if len(key) == 2 else None
                if isinstance(wait, Wait) and is_long(wait):
                    found.append(of_wait((agent, str(key[1])), wait))
        with suppress(StorageError):
            head = self._store.get("heads", (agent,))
            number = None if head is None else head.record.open_turn
            turn = None if number is None else self._store.get("turns", (agent, number))
            held = None if turn is None else turn.record.held
            if number is not None and held is not None and held.cause == "quota":
                noted = self._store.get("alerted", ("quota", agent, held.model))
                known = "" if noted is None else noted.record.episode
                if not known.startswith(quota_prefix(agent, number)):
                    why = "it was held when the process before this one ended"
                    key = (agent, str(held.model), int(number))
                    found.append(of_quota(key, why, now_ms, held.window))
            if turn is not None and held is not None and held.cause == "approval":
                waits = standing(self._store, agent, now_ms)
                if waits.tools:
                    names = ", ".join(sorted(set(waits.tools)))
                    place = (agent, head.record.open_turn, turn.record.round)  # type: ignore[union-attr]
                    found.append(of_approval(place, names, waits.deadline_ms))
        return found

    def _ring(self) -> None:
        for post in self.kept.posts.values():
            post.news.value += 1


def _key(item: _Item) -> tuple[str, str, str]:
    """What has one episode at a time: a wait, a quota, being unreadable or parked, of a key."""
    return (item.message.cause, item.alert.agent, item.alert.model)
