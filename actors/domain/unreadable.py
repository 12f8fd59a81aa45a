"""What of the recorded waits cannot be read: whom that holds, and what an operator said of it.

What cannot be read is not taken for nothing. How much is held follows from how much is unknown:

    cannot be read                          held
    the value of a row, or a row by itself  its (agent, model)
    a key, from its second part on, or the
    keys of an agent                        its agent, every model
    a key from its first part on, or the
    table                                   everyone
    a key, of a row whose checksum tells
    what it was (`strays`)                  the (agent, model) that it was

Invariants:
    I1  A stand-in holds until the same was read in vain no longer, or a release names its scope.
    I2  What could not be read is read again once 30 s have passed, at the next question about it;
        never sooner.
    I3  A release lifts a stand-in for as long as the fingerprint of what cannot be read is the
        same: what fails otherwise, or fails more, holds again. It also ends every wait that was
        stated up to it, so that one that reads again later does not bind.
    I4  Overrides are rows of another table than what they override. What can be replaced, a row
        whose value cannot be trusted, is released by a row in its place instead.
    I5  A row that is known to be another key's holds that key, and nobody where it stands. Of a bit
        that flipped that is known as the row is met, of other damage as soon as a call asks about
        the key.
    I6  An episode is over once the same reads again, and what was released of it lapses, in this
        process at once and durably by the ledger: should it be unreadable again, it holds again. At
        a start whatever is not found unreadable has been read.

Runs in: the loop thread. Noted by whoever reads; overrides are made by the ledger only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

import trio

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import StorageError, StoreClosedError, UnreadableRecordError
from abeyance.storage.keys import decode_leading, encode_key
from abeyance.storage.seals import raw_key
from abeyance.storage.store import Key, Row, Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX

from .limits import RECHECK_MS
from .overrides import EVERY, UNTIL_READ, Episodes, Overrides, Scope
from .strays import Strays

ROWS_A_SLICE: Final = 64
_UNREADABLE: Final = f"the recorded wait cannot be read; {UNTIL_READ}"


class StandIn(NamedTuple):
    """What holds in place of waits that cannot be read."""

    scope: Scope
    reason: str
    fingerprint: str
    """The same for the same damage, also after a restart."""
    read_ms: int
    of_reading: bool = False
    """Whether the reading itself failed, so that nothing can be put in the place of what is there;
    else it was read, and cannot be trusted."""


class Unreadable:
    """The stand-ins in force."""

    def __init__(self, store: Store, clock: Clock, overrides: Overrides) -> None:
        self._store = store
        self._clock = clock
        self._overrides = overrides
        self.episodes = Episodes(store.nonce)
        self.on_healed: Callable[[str], None] | None = None
        """Told the fingerprint of what can be read again. It does not raise."""
        self._standing: dict[Scope, StandIn] = {}
        self._looked: set[str] = set()
        """Agents whose keys were all read once by this process."""
        self._strays = Strays(store, "waits")
        self._strayed: dict[Scope, StandIn] = {}
        """What holds a key whose row stands under another."""
        self._lost: dict[bytes, str] = {}
        """The keys that do not say whose they are, and why."""
        self._has_lost_keys = False
        """Whether everyone is held for such keys: `look_over` finds them, and finds them gone."""

    # -- what stands ---------------------------------------------------------------------------

    def wide(self, agent: str) -> StandIn | None:
        """What holds every model of an agent, or None."""
        if self._standing and (table := self._table()) is not None:
            return table
        if agent not in self._looked:
            self._look_at(agent)
        if not self._standing:
            return None
        mine = self._standing.get((agent, EVERY))
        if mine is not None and self._is_due(mine):
            self._look_at(agent)
            mine = self._standing.get((agent, EVERY))
        return mine or self._standing.get((EVERY, EVERY))

    def lifted(self, agent: str, model: str, stand_in: StandIn) -> bool:
        """Whether an operator released what this stand-in holds, for this model."""
        return self._overrides.lifts(agent, model, stand_in.fingerprint)

    def all_wide(self) -> list[StandIn]:
        """Every stand-in that holds more than one model."""
        self._table()
        return [each for (_, model), each in sorted(self._standing.items()) if model == EVERY]

    def read(self, key: Scope) -> Row | StandIn | None:
        """One row of `waits`; None also for one that may be taken for none; a stand-in where it
        cannot be read, or could not 30 s ago."""
        self.claim(key)
        stray = self._strayed.get(key) if self._strayed else None
        if stray is not None and not self.lifted(*key, stray):
            return stray
        standing = self._standing.get(key) if self._standing else None
        if standing is not None and not self._is_due(standing):
            return standing
        if self._standing and not self._has_lost_keys:
            table = self._table()
            if table is not None:
                return table
        try:
            row = self._store.get("waits", key)
        except UnreadableRecordError as error:
            if not error.ignorable and not self._is_strays(error):
                return self._note(key, error, f"{key} {error.cause}")
            row = None
        except StoreClosedError:
            raise
        except StorageError as error:
            # One bad page is no bad table; it may be all that an agent has.
            if (worse := self.table_error()) is not None:
                return self.note_table(worse)
            if key[0] not in self._looked:
                self._look_at(key[0])
            mine = self._standing.get((key[0], EVERY))
            if mine is not None and mine.of_reading:
                return mine
            return self._note(key, error, f"{key} {type(error).__name__} {error}")
        if standing is not None:
            self.mend(key)
        return row

    def unreplaceable(self, key: Scope) -> StandIn | None:
        """What holds this row alone, where no release can be put in the row's place."""
        standing = self._strayed.get(key) or self._standing.get(key)
        return standing if standing is not None and standing.of_reading else None

    def rows(self, agent: str | None) -> list[Scope]:
        """The keys that a stand-in of their own holds, of one agent or of all."""
        return [
            scope
            for scope in sorted({*self._standing, *self._strayed})
            if scope[1] != EVERY and agent in (None, scope[0])
        ]

    def mend(self, scope: Scope) -> None:
        """Note that this scope can be read, or was replaced."""
        stood = self._standing.pop(scope, None)
        if stood is not None:
            self._healed(stood)

    def _healed(self, stood: StandIn) -> None:
        self.episodes.end(*stood.scope)
        if self.on_healed is not None:
            self.on_healed(stood.fingerprint)

    def stands(self, fingerprint: str) -> bool:
        """Whether this cannot be read, as far as it was looked at."""
        standing = (*self._standing.values(), *self._strayed.values())
        return any(each.fingerprint == fingerprint for each in standing)

    @property
    def holds_everyone(self) -> bool:
        """Whether something holds everyone, so that nobody knows what is unreadable beside it."""
        return (EVERY, EVERY) in self._standing

    def claim(self, key: Scope) -> None:
        """Have the rows that are this key's, and stand under others, hold it and nobody else.
        Called whenever it is asked about."""
        if self._strays:
            for raw in self._strays.claim(key):
                self._place(raw, key)

    def read_again(self, key: Scope) -> None:
        """Note that this row was just read and written; read again now what it is part of, if that
        could not be read."""
        if not self._standing:
            return
        if (EVERY, EVERY) in self._standing and not self._has_lost_keys:
            self._read_table()
        mine = self._standing.get((key[0], EVERY))
        if mine is not None and mine.of_reading:
            self._look_at(key[0])
        self.mend(key)

    def forget(self, agent: str) -> None:
        """Read an agent's keys anew: another process may have owned it."""
        self._looked.discard(agent)
        self._overrides.forget(agent)

    # -- reading -------------------------------------------------------------------------------

    async def look_over(self) -> bool:
        """Look at every key once, for those that say of no agent that they are its; return whether
        to look again later.

        A checkpoint a slice of rows. Cancelled: what was found before stands.
        """
        slices = self._slices()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return bool(end.value)
            await trio.lowlevel.checkpoint()

    def look_over_at_once(self) -> None:
        """The same for who runs no loop. Blocks for as long as the table is long."""
        for _ in self._slices():
            pass

    def _slices(self) -> Generator[None, None, bool]:
        lost: dict[bytes, str] = {}
        met: set[bytes] = set()
        after: Key | None = None
        while True:
            try:
                page = list(self._store.scan("waits", after=after, limit=ROWS_A_SLICE))
            except StoreClosedError:
                raise
            except StorageError as error:
                worse = self.table_error()
                self.note_table(worse or error)
                if worse is None:
                    # What only this reading meets, only this reading can find mended.
                    self._has_lost_keys = True
                    self._lost = {}
                return True
            after = None
            for key, row in page:
                damage = damaged_key(key, row)
                if damage is None:
                    after = key
                if isinstance(row, UnreadableRecordError):
                    met.add(raw_key(row))
                    if self._is_strays(row):
                        continue
                    if damage is None and not row.ignorable:
                        # Also of an agent that nobody asks about: an operator is to know of it.
                        self._note((str(key[0]), str(key[1])), row, f"{key} {row.cause}")
                if damage is None:
                    continue
                leading = decode_leading(damage[0])
                if leading and isinstance(leading[0], str):
                    self._look_at(leading[0])
                else:
                    lost[damage[0]] = damage[1]
            # A whole slice of damaged keys cannot be gone on from; it holds everyone anyway.
            if after is None or len(page) < ROWS_A_SLICE:
                break
            yield
        self._lost = lost
        self._stand_lost()
        for home in self._strays.keep(met):
            self._stray(home)
        return self._has_lost_keys or bool(self._strayed)

    def _stand_lost(self) -> None:
        """Hold everyone for the keys that do not say whose they are, or no longer."""
        if self._lost:
            reason = f"{len(self._lost)} or more have a damaged key that names no agent"
            what = " ".join(f"{raw.hex()} {cause}" for raw, cause in sorted(self._lost.items()))
            self._stand((EVERY, EVERY), reason, what)
            self._has_lost_keys = True
        elif self._has_lost_keys:
            self._has_lost_keys = False
            self.mend((EVERY, EVERY))

    def _is_strays(self, error: UnreadableRecordError) -> bool:
        """Whether a row that cannot be read is known to be another key's, which it holds then."""
        home = self._strays.meet(error)
        if home is None:
            return False
        self._stray(home)
        return True

    def _place(self, raw: bytes, home: Scope) -> None:
        """Have a row hold the key that it is of, and let go whom it held before that was known."""
        self._stray(home)
        if self._lost.pop(raw, None) is not None:
            self._stand_lost()
        leading = decode_leading(raw)
        if leading and isinstance(leading[0], str):
            if (leading[0], EVERY) in self._standing:
                self._look_at(leading[0])
            if len(leading) == 2:
                self.mend((leading[0], str(leading[1])))

    def _stray(self, home: Scope) -> None:
        """Hold a key for its rows that stand under others; where none does any more, let it go."""
        raws, before = self._strays.of(home), self._strayed.pop(home, None)
        what = f"{home} " + " ".join(raw.hex() for raw in raws)
        fingerprint = _fingerprint(what)
        if before is not None and (not raws or before.fingerprint != fingerprint):
            self._healed(before)
        if raws:
            reason = f"{_UNREADABLE}: its row stands under a damaged key"
            now_ms = self._clock.now_ms()
            # Nothing that is put under the key takes that row's place.
            stand_in = StandIn(home, reason, fingerprint, now_ms, of_reading=True)
            self._strayed[home] = stand_in
            if not self.lifted(*home, stand_in):
                self.episodes.begin(*home, reason)

    def _table(self) -> StandIn | None:
        """What holds everyone; read again where that is due."""
        table = self._standing.get((EVERY, EVERY))
        if table is not None and self._is_due(table) and not self._has_lost_keys:
            return self._read_table()
        return table

    def _look_at(self, agent: str) -> None:
        """Read all keys of an agent."""
        damaged: list[str] = []
        try:
            for key, row in self._store.scan("waits", (agent,)):
                damage = damaged_key(key, row)
                known = isinstance(row, UnreadableRecordError) and self._is_strays(row)
                if damage is not None and not known:
                    damaged.append(f"{damage[0].hex()} {damage[1]}")
        except StoreClosedError:
            raise
        except StorageError as error:
            if (worse := self.table_error()) is not None:
                self.note_table(worse)
                return
            self._looked.add(agent)
            self._note((agent, EVERY), error, f"{agent} {type(error).__name__} {error}")
            return
        self._looked.add(agent)
        if damaged:
            reason = f"{len(damaged)} of this agent have a damaged key"
            self._stand((agent, EVERY), reason, " ".join(sorted(damaged)))
        else:
            self.mend((agent, EVERY))

    def _read_table(self) -> StandIn | None:
        """Read the table again, as far as it takes to see whether it can be read."""
        error = self.table_error()
        if error is not None:
            return self.note_table(error)
        self.mend((EVERY, EVERY))
        return None

    def table_error(self) -> StorageError | None:
        """Why nothing of the table can be read; None where something can."""
        try:
            for _ in self._store.scan("waits", limit=1):
                pass
        except StoreClosedError:
            raise
        except StorageError as error:
            return error
        return None

    def note_table(self, error: StorageError) -> StandIn:
        """Note that the table cannot be read."""
        return self._note((EVERY, EVERY), error, f"{type(error).__name__} {error}")

    def _note(self, scope: Scope, error: StorageError, what: str) -> StandIn:
        of_reading = not isinstance(error, UnreadableRecordError)
        return self._stand(scope, str(error), what, of_reading=of_reading)

    def _stand(self, scope: Scope, reason: str, what: str, *, of_reading: bool = False) -> StandIn:
        reason = f"{_UNREADABLE}: {reason}"[:REASON_CHARS_MAX]
        fingerprint = _fingerprint(what)
        before = self._standing.get(scope)
        if before is not None and before.fingerprint != fingerprint:
            self.mend(scope)  # Other damage is another episode.
        stand_in = StandIn(scope, reason, fingerprint, self._clock.now_ms(), of_reading)
        self._standing[scope] = stand_in
        if not self._overrides.lifts(*scope, fingerprint):
            self.episodes.begin(*scope, reason)
        return stand_in

    def _is_due(self, stand_in: StandIn) -> bool:
        # A clock that was turned back must not put the next try off.
        return not 0 <= self._clock.now_ms() - stand_in.read_ms < RECHECK_MS


def _fingerprint(what: str) -> str:
    return hashlib.sha256(what.encode(errors="replace")).hexdigest()[:32]


def damaged_key(key: Key, row: Row | Exception) -> tuple[bytes, str] | None:
    """The bytes of a key that is none of this table, and why; None for one that is."""
    if isinstance(row, UnreadableRecordError) and isinstance(row.key, bytes):
        return row.key, row.cause
    if [type(part) for part in key] == [str, str]:
        return None
    cause = "other parts than an agent and a model"
    return encode_key(tuple(map(type, key)), key), cause
