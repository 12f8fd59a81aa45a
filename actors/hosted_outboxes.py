"""What bridges of a threaded host read: `OutboxVerbs`, blocking.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .domain.errors import RuntimeClosedError
from .hosted_calls import HostedCalls
from .outbox_reading import Begin, Outbox, OutboxReply
from .outbox_status import OutboxStatus

if TYPE_CHECKING:
    from .runtime import Runtime


class HostedOutbox:
    """One reader of an outbox, for one thread: `with host.outbox("chat") as outbox:`."""

    def __init__(self, call: Callable[..., Any], outbox: Outbox) -> None:
        self._call = call
        self._outbox = outbox
        self.name = outbox.name
        self.agent = outbox.agent

    def __enter__(self) -> Self:
        async def enter(runtime: Runtime) -> None:
            await self._outbox.__aenter__()

        self._call(enter, True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the outbox: another reader may open it. Idempotent."""

        async def leave(runtime: Runtime) -> None:
            await self._outbox.aclose()

        with suppress(RuntimeClosedError):  # Then it has ended there, too.
            self._call(leave, True)

    def __iter__(self) -> Iterator[OutboxReply]:
        """Yield replies; blocks until there is one. Left before its end, it waits for nothing."""

        async def read(runtime: Runtime) -> OutboxReply | None:
            return await anext(self._outbox, None)

        while (reply := self._call(read, True)) is not None:
            yield self._hosted(reply)

    def ack(self, reply: OutboxReply) -> None:
        """Acknowledge a reply. As `Outbox.ack`."""

        async def ack(runtime: Runtime) -> None:
            await self._outbox.ack(reply)

        self._call(ack, True)

    def _hosted(self, reply: OutboxReply) -> OutboxReply:
        return replace(reply, done=lambda: self.ack(reply))


class HostedOutboxVerbs(HostedCalls):
    """The part of a threaded host that is about outboxes."""

    def outbox(self, name: str, agent: str | None = None, *, begin: Begin = "now") -> HostedOutbox:
        """Read what agents said, to post it elsewhere. As `Runtime.outbox`."""

        async def make(runtime: Runtime) -> Outbox:
            return runtime.outbox(name, agent, begin=begin)

        return HostedOutbox(self._call, self._call(make, True))

    def outboxes(self) -> tuple[OutboxStatus, ...]:
        """The outboxes that were begun, and how far each is. As `Runtime.outboxes`."""

        async def read(runtime: Runtime) -> tuple[OutboxStatus, ...]:
            return await runtime.outboxes()

        found: tuple[OutboxStatus, ...] = self._call(read, True)
        return found

    def remove_outbox(self, name: str, *, requester: str = "host", block: bool = True) -> Any:
        """Forget an outbox. As `Runtime.remove_outbox`."""

        async def remove(runtime: Runtime) -> None:
            await runtime.remove_outbox(name, requester=requester)

        return self._call(remove, block)
