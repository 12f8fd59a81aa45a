"""How far bridges are, in a store that no host serves.

Blocking; the thread that made it.
"""

from __future__ import annotations

from pathlib import Path

from abeyance.actors.domain.outbox_rows import read_behind
from abeyance.actors.outbox_status import begun, owner_pid, status_of
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import is_locked

from .outbox_reports import OutboxesReport, report_outboxes


class StoppedOutboxes:
    """The part of a stopped store that is about outboxes."""

    _store: LmdbStore
    _owners: Path

    def outboxes(self) -> OutboxesReport:
        """The outboxes that were begun, and how far each is. As `Runtime.outboxes`."""
        found = []
        for name, record in begun(self._store):
            behind = [
                each for each in read_behind(self._store, name, record.agent) if each is not None
            ]
            pid = owner_pid(self._store, name, lambda nonce: is_locked(self._owners / nonce))
            found.append(status_of(name, record, behind, pid, False))
        return report_outboxes(found)
