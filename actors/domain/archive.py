"""The archive's actor: appends what the kernel could not deliver, and says where it is.

Invariants:
    I1  An entry is appended once: what an incarnation left behind is recognised, and an append of
        which it is unknown whether it landed is not sent again.
    I2  What it was told is owed until it is stored, so a stop waits for that.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, Final

from abeyance.actors.core import LATER, Answer, Reply, TrioActor
from abeyance.actors.core.logs import Log
from abeyance.storage.store import Committed, NotStored, Outcome, Request

from .archive_book import ArchiveBook, ForgetDelivery, Keep
from .errors import not_stored
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Requests
from .redelivery import Redelivered

HAND_OVER_MAX: Final = 64

_logger = Log(__name__)


class _Item:
    """One message on its way to a row."""

    __slots__ = ("message", "reply", "request")

    def __init__(self, message: Keep | ForgetDelivery, reply: Reply, request: Request) -> None:
        self.message = message
        self.reply = reply
        self.request = request


class ArchiveKept:
    """Survives a crash: what is to be handed over, and what is out."""

    def __init__(self) -> None:
        self.queue: deque[_Item] = deque()
        self.out: list[_Item] | None = None


class _Again:
    """To itself: what could not be stored may be now."""


class Archive(TrioActor):
    """Appends what it is told to keep. A stop waits until it is stored."""

    role: ClassVar[str] = "archive"
    mailbox_capacity: ClassVar[int] = 100_000
    max_deliveries: ClassVar[int] = 3
    kept: ArchiveKept

    def __init__(self, archive: ArchiveBook, journal: Any) -> None:
        super().__init__()
        self._archive = archive
        self._journal = journal

    @classmethod
    def make_kept(cls) -> ArchiveKept:
        return ArchiveKept()

    def on_start(self) -> None:
        kept = self.kept
        self._back = Redelivered(
            (item.message, item.reply) for item in (*(kept.out or ()), *kept.queue)
        )
        self._hand_over()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, _Again):
            self._hand_over()
            return None
        if not isinstance(message, Keep | ForgetDelivery):
            raise TypeError(f"the archive takes no {type(message).__name__}")
        request = self._archive.request_of(message)
        reply = self.later()
        if not self._back.claims(message):
            self.kept.queue.append(_Item(message, reply, request))
            self._hand_over()
        return LATER

    def _hand_over(self) -> None:
        kept = self.kept
        if kept.out is not None or not kept.queue:
            return
        size = min(HAND_OVER_MAX, len(kept.queue))
        kept.out = [kept.queue.popleft() for _ in range(size)]
        self._archive.handed_over.update(id(item.message) for item in kept.out)
        requests = self._archive.out = Requests(item.request for item in kept.out)
        self.ask(self._journal, requests, tag="kept", fact=True)

    def on_answer(self, answer: Answer) -> None:
        kept = self.kept
        items, kept.out = kept.out or [], None
        self._archive.handed_over.clear()
        requests, self._archive.out = self._archive.out, None
        outcomes: tuple[Outcome, ...] = answer.value or ()
        again: list[_Item] = []
        for place, item in enumerate(items):
            outcome = outcomes[place] if place < len(outcomes) else None
            if isinstance(outcome, Committed):
                self._stored(item, outcome)
            elif isinstance(outcome, NotStored) and may_land_later(not_stored(outcome)):
                again.append(item)
            elif outcome is None and requests is not None and not requests.taken:
                # The journal has ended, or takes no more: nothing of it is stored.
                self._archive.leave(item.request)
                self._over(item)
            else:
                self._archive.lost += 1
                _logger.error("an entry is in memory only: %s", answer.error or outcome)
                self._over(item)
        if again:
            kept.queue.extendleft(reversed(again))
            self.after(PAUSE_MAX_S, _Again())
        else:
            self._hand_over()

    def _stored(self, item: _Item, outcome: Committed) -> None:
        if isinstance(item.message, Keep):
            number = outcome.allotted[0][0]
            assert isinstance(number, int)
            self._archive.note_row(item.message.kind, item.message.entry.id, number)
        self._over(item)

    def _over(self, item: _Item) -> None:
        self._back.forget(item.message)
        item.reply.set(None)
