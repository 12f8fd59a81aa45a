"""What bridges read: the outboxes of a runtime. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .domain.ingress import check_name
from .outbox_reading import Begin, Outbox, check_outbox
from .outbox_status import OutboxStatus

if TYPE_CHECKING:
    from .runtime import Runtime


class OutboxVerbs:
    """The part of a runtime that is about outboxes."""

    def outbox(self, name: str, agent: str | None = None, *, begin: Begin = "now") -> Outbox:
        """Read what agents said, to post it elsewhere: at least once, and in order.

        `async with runtime.outbox("chat") as outbox:`, then `async for reply in outbox:`; or the
        loop alone. A reply is given once it is stored, and given again, under the same id, by the
        next reader, until `await reply.done()` has returned. It ends with the runtime; of one agent
        also once that was removed and all it said was given.

        Not a checkpoint; opening it is, and iterating. Cancelled: what was given and not
        acknowledged is given again to the next reader. Durable: where it begins, once it is open;
        an acknowledgement, on its return.

        Args:
            name: The outbox's, at most 128 bytes. It is there from its first opening on until it is
                removed, and has one reader at a time.
            agent: Whose replies; None: those of all agents, conversations included, and of those
                that come later.
            begin: Where a new one begins: `now`, with what is said from its opening on; `first`,
                with the first that was ever said; of one agent also behind a message, as
                `transcript(after=...)` takes it. One that is there goes on where it is.
        Raises:
            InvalidNameError, InvalidInputError: Names the argument; nothing was done. The second
                also at its opening, where an outbox of that name is of another agent.
            RuntimeClosedError: The runtime has ended.

        At its opening:
            UnknownAgentError: No such agent was ever added; nothing was done.
            UnknownMessageError: There is no such message to begin behind; nothing was done.
            OutboxBusyError: Somebody reads it, here or in a process that lives; nothing was done.
            NotStoredError: Where it begins could not be stored; open it again.
            UnreadableRecordError: Its row cannot be read; remove it and begin anew.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        check_outbox(name, agent, begin)
        return Outbox(runtime, name, agent, begin)

    async def outboxes(self) -> tuple[OutboxStatus, ...]:
        """The outboxes that were begun, by name, and how far each is; those that other processes
        read included. One whose row cannot be read is left out.

        A checkpoint a page of rows. Reads rows; asks no actor.

        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        return await runtime._outboxes.listing()

    async def remove_outbox(self, name: str, *, requester: str = "host") -> None:
        """Forget an outbox and how far it is. An operator's act.

        A checkpoint. Cancelled: it may be removed. Durable: on return. One of that name that is
        opened later begins anew.

        Args:
            name: As `outboxes` lists it.
            requester: Who asks, as for `release_provider_wait`.
        Raises:
            InvalidNameError, InvalidInputError: Names the argument; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownOutboxError: There is none; nothing was done.
            OutboxBusyError: Somebody reads it, here or in a process that lives; nothing was done.
            NotStoredError: It could not be stored; the outbox stands.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        check_name(name, "name")
        runtime._permitted("remove_outbox", name, requester)
        with runtime._lifetime.answers():
            await runtime._outboxes.remove(name)
