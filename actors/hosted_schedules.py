"""What a threaded host does with schedules: the verbs of `ScheduleVerbs`, blocking.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from .providers.windows import UsageReading
from .scheduling import ScheduleOccurrence, ScheduleReceipt, ScheduleStatus

if TYPE_CHECKING:
    from .runtime import Runtime


class HostedScheduleVerbs:
    """The part of a threaded host that is about schedules, and about the accounts they draw on."""

    def _call(self, afn: Callable[[Runtime], Awaitable[Any]], block: bool) -> Any:
        raise NotImplementedError

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

        async def add(runtime: Runtime) -> ScheduleReceipt:
            return await runtime.add_schedule(
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
            )

        return self._call(add, block)

    def pause_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """Start no more runs of a schedule until it is resumed. As `Runtime.pause_schedule`."""

        async def pause(runtime: Runtime) -> ScheduleReceipt:
            return await runtime.pause_schedule(name, requester=requester)

        return self._call(pause, block)

    def resume_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """Have a paused schedule due again. As `Runtime.resume_schedule`."""

        async def resume(runtime: Runtime) -> ScheduleReceipt:
            return await runtime.resume_schedule(name, requester=requester)

        return self._call(resume, block)

    def remove_schedule(self, name: str, *, requester: str, block: bool = True) -> Any:
        """End a schedule. As `Runtime.remove_schedule`."""

        async def remove(runtime: Runtime) -> ScheduleReceipt:
            return await runtime.remove_schedule(name, requester=requester)

        return self._call(remove, block)

    def schedule(self, name: str) -> ScheduleStatus:
        """How a schedule stands. As `Runtime.schedule`."""

        async def read(runtime: Runtime) -> ScheduleStatus:
            return runtime.schedule(name)

        found: ScheduleStatus = self._call(read, True)
        return found

    def schedules(self) -> tuple[ScheduleStatus, ...]:
        """The schedules of this store. As `Runtime.schedules`."""

        async def read(runtime: Runtime) -> tuple[ScheduleStatus, ...]:
            return runtime.schedules()

        found: tuple[ScheduleStatus, ...] = self._call(read, True)
        return found

    def occurrences(
        self, name: str, *, before: int | None = None, limit: int = 100
    ) -> tuple[ScheduleOccurrence, ...]:
        """What became of a schedule's occurrences. As `Runtime.occurrences`."""

        async def read(runtime: Runtime) -> tuple[ScheduleOccurrence, ...]:
            return runtime.occurrences(name, before=before, limit=limit)

        found: tuple[ScheduleOccurrence, ...] = self._call(read, True)
        return found

    def usage(self, provider: object) -> UsageReading | None:
        """The newest usage reading of an account. As `Runtime.usage`."""

        async def read(runtime: Runtime) -> UsageReading | None:
            return runtime.usage(provider)

        found: UsageReading | None = self._call(read, True)
        return found
