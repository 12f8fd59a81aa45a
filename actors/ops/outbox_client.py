"""What a client asks about outboxes, of whichever host of a directory can answer.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

from .hosts import Hosts
from .outbox_reports import OutboxesReport
from .requests import OutboxRequest


class OutboxAsks(Hosts):
    """The part of the client of a directory's hosts that is about what bridges read."""

    def outboxes(self) -> OutboxesReport:
        """How far each bridge is, as the first host that answers reads it.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_any(lambda host: host.ask(OutboxRequest(), OutboxesReport))
