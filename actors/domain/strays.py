"""Rows of waits that stand under another key than they were written under: whose they are.

A row's checksum covers its key. Where it fails, the key that makes it right is the row's own: it is
looked for among those that differ from the damaged one in a bit, and every key that a call asks
about is tried, too. So what the damage of a key lets be known is known, whatever the key looks like
now; where the value is damaged as well, or the key is never asked about, nothing is.

Invariants:
    I1  A row is placed once, and by its checksum alone: by chance one key in 2**32 would fit.
    I2  A key is tried once for each row that was not placed.
    I3  A copy of a row that its key still has, or had before, is placed nowhere: it took the place
        of another one, whose key does not know what it lost.

Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Final

from abeyance.storage.codec import has_come_later
from abeyance.storage.errors import StorageError, StoreClosedError, UnreadableRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.seals import Seal, raw_key
from abeyance.storage.store import Store

from .overrides import Scope

UNPLACED_MAX: Final = 256
"""How many rows keys are tried on: more are no slip of a bit."""
_SHAPE: Final = (str, str)


class Strays:
    """The rows of one table that are another key's."""

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table
        self._homes: dict[bytes, Scope] = {}
        self._unplaced: dict[bytes, Seal] = {}
        self._tried: set[Scope] = set()

    def __bool__(self) -> bool:
        return bool(self._homes or self._unplaced)

    def meet(self, error: UnreadableRecordError) -> Scope | None:
        """Whose a row is that cannot be read; None where it is not known to be another key's."""
        raw = raw_key(error)
        if (known := self._homes.get(raw)) is not None:
            return known
        if error.seal is None or raw in self._unplaced:
            return None
        home = error.seal.home(raw)
        if home is not None and [type(part) for part in home] == [str, str]:
            scope = (str(home[0]), str(home[1]))
            if self._is_copy(scope, error.seal):
                return None
            self._homes[raw] = scope
            return scope
        if len(self._unplaced) < UNPLACED_MAX:
            self._unplaced[raw] = error.seal
            self._tried.clear()
        return None

    def claim(self, key: Scope) -> list[bytes]:
        """The rows that are found to be of this key only now that it is asked about."""
        if not self._unplaced or key in self._tried:
            return []
        self._tried.add(key)
        own = encode_key(_SHAPE, key)
        found = [raw for raw, seal in self._unplaced.items() if raw != own and seal.fits(own)]
        found = [raw for raw in found if not self._is_copy(key, self._unplaced[raw])]
        for raw in found:
            self._homes[raw] = key
            del self._unplaced[raw]
        return found

    def _is_copy(self, key: Scope, seal: Seal) -> bool:
        """Whether a key has the row that was written under it, or one that came later."""
        try:
            return has_come_later(self._store.get(self._table, key), seal)
        except StoreClosedError:
            raise
        except StorageError:
            return False

    def of(self, key: Scope) -> list[bytes]:
        """The rows that are this key's, and stand under another."""
        return sorted(raw for raw, home in self._homes.items() if home == key)

    def homes(self) -> set[Scope]:
        """The keys that have such rows."""
        return set(self._homes.values())

    def keep(self, met: set[bytes]) -> set[Scope]:
        """Forget the rows that are no more; return whose they were."""
        gone = {home for raw, home in self._homes.items() if raw not in met}
        self._homes = {raw: home for raw, home in self._homes.items() if raw in met}
        self._unplaced = {raw: seal for raw, seal in self._unplaced.items() if raw in met}
        return gone
