"""What was accepted and not handled: listed, and sent again. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .domain.archive_book import ArchivedMessage, Kind
from .domain.requesters import read_requester
from .replays import actor_of, read_page, replay

if TYPE_CHECKING:
    from .runtime import Runtime


class ArchiveVerbs:
    """The part of a runtime that is about dead letters and quarantined messages."""

    def dead_letters(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that were accepted and not handled, the newest first; earlier runs' included.

        Not a checkpoint. What this process recorded in the last moments may not be a row yet.

        Args:
            before: Only those with a smaller number: the last one's of the page before.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError: Names the argument that is out of its bounds.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        return read_page(runtime._archive, "dead_letter", before, limit)

    def quarantine(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages whose handlers crashed past their last delivery. As `dead_letters`."""
        runtime = cast("Runtime", self)
        runtime._check_open()
        return read_page(runtime._archive, "quarantine", before, limit)

    async def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
    ) -> ArchivedMessage:
        """Send a dead letter's message to its actor again, as a tell; count it in its row.

        A checkpoint. Cancelled: it may have been counted and sent; the row tells.
        Durable: the count, before the message is sent, so that a death in between sends nothing.

        Args:
            id: The row's number.
            requester: Who asks, as for `release_provider_wait`. The admin gate is asked about the
                row's actor.
        Returns:
            The row as it stands. What becomes of the message shows as a row of its own, if it ends
            so again.
        Raises:
            InvalidInputError: The number is none, or the requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownEntryError: No such row; nothing was done.
            ReplaysExceededError: It was replayed once already; nothing was done.
            MessageNotKeptError: The message could not be stored; nothing was done.
            ActorDeadError, MailboxFullError: Nobody took it; nothing was sent, nor counted.
            NotStoredError: The count could not be stored; nothing was sent.
        """
        return await self._replay("dead_letter", id, requester)

    async def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
    ) -> ArchivedMessage:
        """Send a quarantined message to its actor again. As `replay_dead_letter`."""
        return await self._replay("quarantine", id, requester)

    async def _replay(self, kind: Kind, number: int, requester: str) -> ArchivedMessage:
        runtime = cast("Runtime", self)
        runtime._check_open()
        read_requester(requester)  # What is malformed is told before what is not there.
        verb = "replay_dead_letter" if kind == "dead_letter" else "replay_quarantined"
        by = runtime._permitted(verb, actor_of(runtime._store, kind, number), requester)
        with runtime._lifetime.answers():
            return await replay(
                runtime._archive,
                runtime._store,
                runtime._journal,
                kind,
                number,
                by,
                runtime.clock.now_ms(),
            )

    async def prune(self) -> dict[str, int]:
        """Delete what is older than the host's `Retention` says, now and not within the hour.

        A checkpoint a slice of rows and a commit. Cancelled, or where nothing can be stored: what
        was deleted is, the rest goes at a later pass.

        Returns:
            How many rows were deleted, by table.
        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        return await runtime._pruner.run()
