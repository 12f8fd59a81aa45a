"""The last usage reading of each account: taken from the calls that bring it, kept as a row.

A reading is telemetry: it holds nobody. What is asked of it is whether an account is known to be
out until an instant that is known; whatever else is unknown, and lets everything by.

Invariants:
    I1  A row only moves forward: a reading that is not newer than what stands there is dropped,
        whichever process wrote that. One from a future more than a day away came of a clock that
        has been set back since: it counts for nothing, and the next reading takes its place.
    I2  A reading that a round's reply brought is written in the commit that records the round, and
        guarded there: where another process wrote meanwhile, the round is planned again. Any other
        has a commit of its own, which nobody waits for: that of a refused or an auxiliary call, and
        one that came while another of its account was being written. What could not be stored is
        used here, and offered with the next.
    I3  What cannot be read or is not known keeps nobody from anything.

Runs in: the loop thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from abeyance.actors.core.asks import in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.providers.port import Permit
from abeyance.actors.providers.stated import WaitScope
from abeyance.actors.providers.windows import UsageReading, UsageWindow, last_of_full, readable
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Delete, Guard, Put, Refused, Request, Row, Store
from abeyance.storage.tables.usage import USAGE_ROWS_MAX, Usage, Window

AHEAD_MS: Final = 86_400_000
SAME_MS: Final = 60_000
"""A reading that tells the same as the row is not written for so long."""


class Spent(NamedTuple):
    """An account that is known to be out, until an instant that is known."""

    window: str
    until_ms: int


class UsageBook:
    """The readings of one runtime's accounts."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._journal: Any = None
        self._fresh: dict[str, UsageReading] = {}
        """Readings that are newer than their rows."""
        self._out: dict[str, object] = {}
        """Accounts with a write under way, and whose it is."""

    def attach(self, journal: Any) -> None:
        """Tell it whom to hand writes to."""
        self._journal = journal

    # -- asking ------------------------------------------------------------------------------

    def reading(self, credential: str) -> UsageReading | None:
        """The newest reading of an account; None where none is known. Not a checkpoint."""
        fresh, stored = self._fresh.get(credential), self._stored(credential)
        if fresh is None or (stored is not None and self._supersedes(stored[1], fresh)):
            return None if stored is None else stored[1]
        return fresh

    def spent(self, credential: str, model: str) -> Spent | None:
        """Until when an account is known to have nothing left for a model.

        None where a window has room, is full with no known end, has begun anew, or nothing is known
        of it. A full window stays full until it begins anew, however old the reading. Beside one
        that is full with no known end, this is the instant before which no call goes through.
        """
        reading, now_ms = self.reading(credential), self._clock.now_ms()
        if reading is None or reading.read_ms > now_ms + AHEAD_MS:
            return None
        last = last_of_full((each for each in reading.windows if each.concerns(model)), now_ms)
        if last is None or last.resets_ms is None:
            return None
        return Spent(last.name, last.resets_ms)

    # -- taking ------------------------------------------------------------------------------

    def take(self, credential: str | None, permit: Permit, *, joins: bool = False) -> None:
        """Keep what a call's responses told, if they did. Not a checkpoint; raises nothing.

        Args:
            joins: A round of its own is recorded next, and `join` puts the row there.
        """
        told = None if credential is None else readable(permit.reading)
        if credential is None or told is None:
            return
        reading = UsageReading(windows=told.windows, read_ms=told.read_ms, credential=credential)
        known = self.reading(credential)
        if known is not None and not self._supersedes(reading, known):
            return
        self._fresh[credential] = reading
        if not joins:
            self._write(credential)

    def join(self, credential: str, round_: object) -> tuple[Guard, Put] | None:
        """What writes a fresh reading in the commit of a round; None where there is none to write,
        or it goes by itself. Asked again by a round that is planned again."""
        reading = self._fresh.get(credential)
        if reading is None or self._out.get(credential, round_) != round_:
            return None
        try:
            row = self._store.get("usage", (credential,))
        except StorageError:
            return None  # It would keep the round from being recorded.
        if row is None and self._room():
            return None
        if row is not None and self._is_told(reading, reading_of(row.record, credential)):
            return None
        self._out[credential] = round_
        key = (credential,)
        guard = Guard("usage", key, 0 if row is None else row.counter)
        return guard, Put("usage", key, encode(row_of(reading)))

    def settle(self, credential: str, round_: object) -> None:
        """The round is recorded, or will not be: what it did not write goes by itself."""
        if self._out.get(credential) == round_:
            del self._out[credential]
        self._write(credential)

    def _is_told(self, reading: UsageReading, stored: UsageReading) -> bool:
        """Whether the row says as much already."""
        same = stored.windows == reading.windows
        return not self._supersedes(reading, stored) or (
            same and 0 <= reading.read_ms - stored.read_ms < SAME_MS
        )

    def _supersedes(self, new: UsageReading, old: UsageReading) -> bool:
        return new.read_ms > old.read_ms or old.read_ms > new.read_ms + AHEAD_MS

    def _stored(self, credential: str) -> tuple[int, UsageReading] | None:
        try:
            row = self._store.get("usage", (credential,))
        except StorageError:
            return None
        return None if row is None else (row.counter, reading_of(row.record, credential))

    def _write(self, credential: str) -> None:
        reading = self._fresh.get(credential)
        if reading is None or credential in self._out or self._journal is None:
            return
        stored = self._stored(credential)
        if stored is not None and self._is_told(reading, stored[1]):
            del self._fresh[credential]
            return
        request = Request(
            guards=(Guard("usage", (credential,), 0 if stored is None else stored[0]),),
            puts=(Put("usage", (credential,), encode(row_of(reading))),),
            deletes=() if stored is not None else self._room(),
        )
        try:
            with in_role("runtime"):
                asked = self._journal.ask(request, block=False)
        except AbeyanceError:
            return  # The journal has ended, or is about to begin anew: the next one is offered.
        self._out[credential] = asked
        asked.on_done(lambda: self._written(credential, reading, asked))

    def _written(self, credential: str, reading: UsageReading, asked: Any) -> None:
        del self._out[credential]
        refused = False
        with suppress(Exception):
            refused = isinstance(asked.get(), Refused)
            if not refused and self._fresh.get(credential) == reading:
                del self._fresh[credential]
                return
            # Another process wrote, or a newer reading came: whichever is newer is to stand.
            self._write(credential)

    def _room(self) -> tuple[Delete, ...]:
        """What makes room for one more account, where there is none."""
        rows = list(self._store.scan("usage", limit=USAGE_ROWS_MAX))
        if len(rows) < USAGE_ROWS_MAX:
            return ()
        # One that cannot be read is worth least.
        key, _row = min(rows, key=lambda each: _age(each[1]))
        return (Delete("usage", key),)


class AccountUsage(NamedTuple):
    """The usage book, and the account that an agent's provider calls with."""

    book: UsageBook
    credential: str | None

    def newest(self) -> UsageReading | None:
        """The account's newest reading. As `UsageBook.reading`."""
        return None if self.credential is None else self.book.reading(self.credential)

    def take(self, permit: Permit, *, joins: bool = False) -> None:
        """Keep what a call's responses told. As `UsageBook.take`."""
        self.book.take(self.credential, permit, joins=joins)

    def join(self, round_: object) -> tuple[Guard, Put] | None:
        """What writes it in a round's commit. As `UsageBook.join`."""
        return None if self.credential is None else self.book.join(self.credential, round_)

    def settle(self, round_: object) -> None:
        """As `UsageBook.settle`."""
        if self.credential is not None:
            self.book.settle(self.credential, round_)


def _age(row: Row | Exception) -> int:
    return row.record.read_ms if isinstance(row, Row) else -1


def row_of(reading: UsageReading) -> Usage:
    return Usage(
        windows=tuple(
            Window(
                name=each.name,
                used_percent=each.used_percent,
                resets_ms=each.resets_ms,
                scope=None if each.scope is None else each.scope.value,
            )
            for each in reading.windows
        ),
        read_ms=reading.read_ms,
    )


def reading_of(record: Usage, credential: str) -> UsageReading:
    return UsageReading(
        windows=tuple(
            UsageWindow(
                name=each.name,
                used_percent=each.used_percent,
                resets_ms=each.resets_ms,
                scope=None if each.scope is None else WaitScope(each.scope),
            )
            for each in record.windows
        ),
        read_ms=record.read_ms,
        credential=credential,
    )
