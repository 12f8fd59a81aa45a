"""What an operator does to a whole host: quiesces and resumes it, unparks a group of its own, takes
over an older queue. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from .core.logs import Log
from .domain.errors import InvalidInputError
from .domain.imports import ImportReport, Source
from .domain.mode import WITHIN_S, QuiesceReceipt, ResumeReceipt, read_reason, read_window
from .domain.requesters import read_requester
from .importing import import_file

if TYPE_CHECKING:
    from .runtime import Runtime

EVERY_AGENT: Final = "*"

_logger = Log(__name__)


class HostVerbs:
    """The part of a runtime that is about all of the host."""

    async def unpark(self, group: str, *, requester: str = "host") -> bool:
        """Start a parked group of the runtime's own again, with everything it accepted. An
        operator's act.

        `system.parked_groups()` has those that are parked. An agent's is `resume_agent`'s.

        A checkpoint. Durable: nothing is recorded; a group is parked in its process only. Who
        asked is logged.

        Args:
            group: `runs`, which executes runs, `schedules`, which starts them by schedules, or
                `alerts`, which raises and delivers alerts.
            requester: Who asks, as for `release_provider_wait`.
        Returns:
            Whether it was parked.
        Raises:
            InvalidInputError: The group or the requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        found = runtime._own_groups.get(group) if isinstance(group, str) else None
        if found is None:
            raise InvalidInputError("group", f"must be one of {', '.join(runtime._own_groups)}")
        by = runtime._permitted("unpark", group, requester)
        was_parked = found.unpark()
        if was_parked:
            _logger.info("group %r is unparked by %s", group, by, actor=group)
        await trio.lowlevel.checkpoint()
        return was_parked

    async def quiesce(
        self,
        reason: str,
        within_s: float = WITHIN_S,
        *,
        requester: str = "host",
    ) -> QuiesceReceipt:
        """Start no more turns until `resume`, and wait until none lives. An operator's act.

        Live turns, their tools and ephemeral runs may run to their end within the window. What
        lives then is ended as a stop ends it: its open tool gap is closed first, and its wakes are
        given back as one, for one fresh turn at the resume. A held turn is a row and stays one.
        Meanwhile messages are accepted as ever and wait in the inbox; agents can be added, rewound
        and removed; ephemeral runs are refused. It holds through restarts, and in every process
        that shares the directory: none of them starts a turn from the commit on, and each has
        drained within 30 s and the turns' own time.

        A checkpoint. Cancelled, or ended by a stop: the host is quiesced, and turns that live run
        to their end; quiesce again to wait for them. Called while it is quiesced, it replaces the
        reason, and may shorten the window.
        Durable: that it is quiesced, before anything is drained.

        Args:
            reason: Why, for whoever looks; one line, cut off at 300 characters.
            within_s: How long live turns may run on: from 0 to 86,400 s.
            requester: Who asks, as it is recorded behind the door's name.
        Returns:
            Whose turn was ended, and whose is held.
        Raises:
            InvalidInputError: Names the argument; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It could not be stored; the host serves.
            ResumedError: It was resumed while turns drained; it serves.
            RuntimeClosedError: The runtime has ended; a quiesce that was stored stands.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        why, window_s = read_reason(reason), read_window(within_s)
        by = runtime._permitted("quiesce", EVERY_AGENT, requester)
        with runtime._lifetime.answers():
            return await runtime._quiescence.quiesce(why, window_s, by)

    async def resume(self, *, requester: str = "host") -> ResumeReceipt:
        """Start turns again; what was accepted meanwhile lands first. An operator's act.

        A checkpoint. Cancelled: the host may serve already; call again to make sure.
        Durable: that it serves, and what landed, on return. Idempotent.

        Args:
            requester: Who asks, as it is recorded behind the door's name.
        Raises:
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It could not be stored; the host is quiesced.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        by = runtime._permitted("resume", EVERY_AGENT, requester)
        with runtime._lifetime.answers():
            receipt = await runtime._quiescence.resume(by)
        runtime._workflows.look()
        runtime._scheduling.look()
        return receipt

    # -- imports -----------------------------------------------------------------------------

    async def import_deferred(
        self,
        source: Source,
        *,
        agent: str | None = None,
        wake: bool = False,
        dry_run: bool = False,
        requester: str = "host",
    ) -> ImportReport:
        """Accept the deferred messages of an older queue, in its order; docs/import.md has the
        format.

        The whole file is read first. Entries of which it cannot be told what they were are
        dropped; ids, numbers and fields that are not sound are mended; what this runtime does not
        take is refused and is in the file still. Each of these is told of in the report. Imported
        again, a file accepts nothing twice: what was accepted is known by its id.

        A checkpoint. Cancelled, or cut off by a death: the commits so far stand, each agent's
        messages from the first on without a gap; import the file again.
        Durable: on return.

        Args:
            source: A path, or a file that is open for reading; at most 256 MiB.
            agent: For whom entries are that name no target.
            wake: Whether entries that do not say ask for a turn.
            dry_run: Only report what would be done; nobody is asked, and nothing is recorded.
            requester: Who asks, as for `release_provider_wait`. It is recorded ahead of the first
                message.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument, or the place in the file; or it
                cannot be read. Nothing was accepted.
            NotPermittedError: The host's admin gate did not let it pass; nothing was accepted.
            InboxFullError, NotStoredError, AgentParkedError, OwnershipLostError,
                RuntimeClosedError: The commits so far stand; mend the cause, and import again.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        by, _ = read_requester(requester)
        if not dry_run:
            whom = agent if isinstance(agent, str) else EVERY_AGENT
            by = runtime._permitted("import_deferred", whom, requester)
        return await import_file(runtime, source, agent, by=by, wake=wake, dry_run=dry_run)
