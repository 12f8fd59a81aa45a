"""What a threaded host does with schedules: the verbs of `ScheduleVerbs`, blocking.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .hosted_calls import HostedCalls
from .providers.windows import UsageReading
from .scheduling import ScheduleOccurrence, ScheduleStatus

if TYPE_CHECKING:
    pass


class HostedScheduleVerbs(HostedCalls):
    """The part of a threaded host that is about schedules, and about the accounts they draw on."""

    def add_schedule(
        self,
        name: str,
        workflow: str,
        params: Any = None,
        *,
        every: float | None = None,
        cron: str | None = None,
        zone: str | None = None,
        key: str | None = None,
        late_s: float | None = None,
        draws_on: Sequence[tuple[object, str]] = (),
        requester: str = "host",
        block: bool = True,
    ) -> Any:
        """Start a run every so often from now on. As `Runtime.add_schedule`."""
        return self._call(
            lambda runtime: runtime.add_schedule(
                name,
                workflow,
                params,
                every=every,
                cron=cron,
                zone=zone,
                key=key,
                late_s=late_s,
                draws_on=draws_on,
                requester=requester,
            ),
            block,
        )

    def pause_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """Start no more runs of a schedule until it is resumed. As `Runtime.pause_schedule`."""
        return self._call(lambda runtime: runtime.pause_schedule(name, requester=requester), block)

    def resume_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """Have a paused schedule due again. As `Runtime.resume_schedule`."""
        return self._call(lambda runtime: runtime.resume_schedule(name, requester=requester), block)

    def remove_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """End a schedule. As `Runtime.remove_schedule`."""
        return self._call(lambda runtime: runtime.remove_schedule(name, requester=requester), block)

    def schedule(self, name: str) -> ScheduleStatus:
        """How a schedule stands. As `Runtime.schedule`."""
        return self._read(lambda runtime: runtime.schedule(name))

    def schedules(self) -> tuple[ScheduleStatus, ...]:
        """The schedules of this store. As `Runtime.schedules`."""
        return self._read(lambda runtime: runtime.schedules())

    def occurrences(
        self, name: str, *, before: int | None = None, limit: int = 100
    ) -> tuple[ScheduleOccurrence, ...]:
        """What became of a schedule's occurrences. As `Runtime.occurrences`."""
        return self._read(lambda runtime: runtime.occurrences(name, before=before, limit=limit))

    def account_usage(self, provider: object) -> UsageReading | None:
        """The newest usage reading of an account. As `Runtime.account_usage`."""
        return self._read(lambda runtime: runtime.account_usage(provider))
