"""What a client asks about usage, of whichever host of a directory can answer.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

import msgspec

from abeyance.actors.domain.spent_reading import By

from .hosts import Hosts
from .requests import UsageRequest
from .usage_reports import UsageReport


class UsageAsks(Hosts):
    """The part of the client of a directory's hosts that is about what agents used."""

    def usage(
        self, agent: str | None, since: int | None, *, by: By = "model", zone: str = "UTC"
    ) -> UsageReport:
        """What agents used, as the first host that answers reads it: of every process.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = UsageRequest(
            agent=msgspec.UNSET if agent is None else agent,
            since=msgspec.UNSET if since is None else since,
            by=by,
            zone=zone,
        )
        return self._of_any(lambda host: host.ask(request, UsageReport))
