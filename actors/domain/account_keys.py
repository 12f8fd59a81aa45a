"""Keys of recorded walls that cannot be read: a wall of nobody knows which model, or of whom.

A key that still names its credential holds every model of that; one that names nobody holds every
credential. A row that its checksum tells to be another credential's holds every model of that one,
and nobody where it stands (`strays`). The values of rows, and readings that fail, are their
readers' business.

Invariants:
    I1  Damaged keys hold until they are gone, or a release named the credential: an override with
        the fingerprint of the damage, under the name that its waits are listed by. Those that name
        nobody are listed, and released for every credential, under `*`.
    I2  The table is read once; while it has damaged keys, again once 30 s have passed, at the next
        question.

Runs in: the loop thread.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import StorageError, StoreClosedError, UnreadableRecordError
from abeyance.storage.keys import decode_leading
from abeyance.storage.seals import raw_key
from abeyance.storage.store import Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX

from .ingress import ACCOUNT_PREFIX
from .limits import RECHECK_MS
from .overrides import EVERY, UNTIL_READ, Overrides, Scope
from .strays import Strays
from .unreadable import damaged_key

TABLE = "account_waits"


class KeyDamage(NamedTuple):
    """Why no call of a credential is made."""

    reason: str
    fingerprint: str
    of: str
    """The credential it is told under; `*` where the keys name nobody."""


class AccountKeys:
    """The damaged keys of recorded walls, by credential."""

    def __init__(self, store: Store, clock: Clock, overrides: Overrides) -> None:
        self._store = store
        self._clock = clock
        self._overrides = overrides
        self._strays = Strays(store, TABLE)
        self._damaged: dict[str, list[str]] | None = None
        self._read_ms = 0

    def damage(self, account: str) -> KeyDamage | None:
        """What holds every model of a credential and was not released; None where nothing does."""
        lost = self._found().get(EVERY, [])
        mine = self._of(account)
        if not mine or self._is_lifted(account, mine):
            return None
        if account != EVERY and lost and self._is_lifted(EVERY, sorted(lost)):
            mine = sorted(self._found().get(account, ()))
            if not mine or self._is_lifted(account, mine):
                return None
        fingerprint = _fingerprint(mine)
        reason = f"the account's wait cannot be read; {UNTIL_READ}: {len(mine)} have a damaged key"
        of = account if self._found().get(account) else EVERY
        return KeyDamage(reason[:REASON_CHARS_MAX], fingerprint, of)

    @property
    def names_nobody(self) -> bool:
        """Whether a damaged key says nothing of whose it is."""
        return EVERY in self._found()

    def is_strays(self, error: UnreadableRecordError) -> bool:
        """Whether a row that cannot be read is known to be another key's than it stands under."""
        self._found()
        return not error.ignorable and self._strays.meet(error) is not None

    def claim(self, key: Scope) -> None:
        """Have the rows that are this key's, and stand under others, hold its credential and nobody
        else's. Called whenever it is asked about."""
        self._found()
        if self._strays and self._strays.claim(key):
            self._damaged = None

    def stands(self, name: str, fingerprint: str) -> bool:
        """Whether an override that is listed under this name is still of something."""
        account = name.removeprefix(ACCOUNT_PREFIX)
        mine = [self._of(account), sorted(self._found().get(account, ()))]
        return any(damaged and _fingerprint(damaged) == fingerprint for damaged in mine)

    def accounts(self) -> list[str]:
        """The credentials that a damaged key names; `*` where one names nobody."""
        return sorted(self._found())

    def _is_lifted(self, account: str, damaged: list[str]) -> bool:
        name = f"{ACCOUNT_PREFIX}{account}"
        return self._overrides.lifts(name, EVERY, _fingerprint(damaged))

    def _of(self, account: str) -> list[str]:
        found = self._found()
        return sorted({*found.get(account, ()), *found.get(EVERY, ())})

    def _found(self) -> dict[str, list[str]]:
        now_ms = self._clock.now_ms()
        known = self._damaged
        if known is not None and (not known or 0 <= now_ms - self._read_ms < RECHECK_MS):
            return known
        found: dict[str, list[str]] = {}
        met: set[bytes] = set()
        try:
            for key, row in self._store.scan(TABLE):
                damage = damaged_key(key, row)
                if isinstance(row, UnreadableRecordError):
                    met.add(raw_key(row))
                    home = None if row.ignorable else self._strays.meet(row)
                    if home is not None:
                        what = f"{raw_key(row).hex()} is of {home}"
                        found.setdefault(home[0], []).append(what)
                        continue
                if damage is not None:
                    leading = decode_leading(damage[0])
                    named = leading[0] if leading and isinstance(leading[0], str) else EVERY
                    found.setdefault(named, []).append(f"{damage[0].hex()} {damage[1]}")
        except StoreClosedError:
            raise
        except StorageError:
            return known or {}  # Whoever reads a row of it learns so.
        self._strays.keep(met)
        self._damaged, self._read_ms = found, now_ms
        return found


def _fingerprint(damaged: list[str]) -> str:
    return hashlib.sha256(" ".join(damaged).encode()).hexdigest()[:32]
