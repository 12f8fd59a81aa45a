"""What a threaded host holds of its agents: the verbs of their handles as blocking calls.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trio.lowlevel import in_trio_run

from abeyance.storage.tables.blocks import AttachmentBlock

from .conversations import Conversation
from .core.errors import WouldDeadlockError
from .domain.attaching import AttachmentSource
from .domain.context import Summary
from .domain.drafts import Draft
from .domain.edit_rows import EditRow
from .domain.ingress import Content
from .domain.slot_messages import Receipt
from .domain.streaming import StreamItem
from .domain.transcript import After, TranscriptMessage
from .handle import AgentHandle
from .hosted_items import HostedItems
from .providers.port import ModelRequest
from .runtime import Runtime

if TYPE_CHECKING:
    from .hosted import HostedRuntime


def refuse_on_loop(verb: str) -> None:
    """Refuse a call that blocks on a thread that runs trio."""
    if in_trio_run():
        raise WouldDeadlockError(
            f"{verb}() blocks, and this thread runs trio; nothing was done; use open_runtime here, "
            "or call it from another thread"
        )


class HostedAgent:
    """What a threaded host holds of one agent. Usable from any thread but the loop's."""

    def __init__(self, host: HostedRuntime, handle: AgentHandle) -> None:
        self._host = host
        self._handle = handle
        self.name = handle.name

    def send(
        self,
        content: Content,
        author: str = "user",
        *,
        id: str | None = None,  # noqa: A002 - the word hosts use.
        wake: bool = True,
        channel: str | None = None,
        subject: str | None = None,
        joins: bool = True,
        block: bool = True,
    ) -> Any:
        """Accept a message durably. As `AgentHandle.send`; `block=False` gives a future.

        What one thread sends is accepted in its order, also with `block=False`: it is handed over
        before this returns, and a malformed message is refused here.
        """
        self._host._check_open()
        if block:
            refuse_on_loop("send")
        handed = self._handle.hand_over(
            content, author, id=id, wake=wake, channel=channel, subject=subject, joins=joins
        )
        if block:
            return handed.get()
        return handed

    def attach(
        self,
        source: AttachmentSource,
        *,
        media_type: str | None = None,
        name: str | None = None,
        block: bool = True,
    ) -> Any:
        """Store what a message to this agent may name. As `AgentHandle.attach`."""

        async def attach(runtime: Runtime) -> AttachmentBlock:
            return await self._handle.attach(source, media_type=media_type, name=name)

        return self._host._call(attach, block)

    def send_many(self, drafts: Sequence[Draft], *, block: bool = True) -> Any:
        """Accept messages durably, all or none. As `AgentHandle.send_many`, and as `send`."""
        self._host._check_open()
        if block:
            refuse_on_loop("send_many")
        handed = self._handle.hand_over_many(drafts)
        return handed.get() if block else handed

    def receipt(self, id: str) -> Receipt:  # noqa: A002 - the word hosts use.
        """What became of a message that was sent. As `AgentHandle.receipt`."""

        async def read(runtime: Runtime) -> Receipt:
            return await self._handle.receipt(id)

        found: Receipt = self._host._call(read, True)
        return found

    def follow(self, id: str) -> HostedItems[Receipt]:  # noqa: A002
        """Yield a message's receipt as it changes. As `AgentHandle.follow`.

        `for` blocks until it changes; `async for`, in asyncio, blocks nothing. See `HostedItems`.
        """
        return HostedItems(self._host._call, lambda runtime: self._handle.follow(id))

    def stream(self, *, after: After | None = None) -> HostedItems[StreamItem]:
        """Yield what the agent says, from now on. As `AgentHandle.stream`.

        `for` blocks until there is something; `async for`, in asyncio, blocks nothing. See
        `HostedItems`.
        """
        return HostedItems(self._host._call, lambda runtime: self._handle.stream(after=after))

    def backfill(
        self, drafts: Sequence[Draft], *, channel: str | None = None, block: bool = True
    ) -> Any:
        """Accept what was said on a channel before. As `AgentHandle.backfill`."""
        return self._host._call(
            lambda _runtime: self._handle.backfill(drafts, channel=channel), block
        )

    def retract(self, message: str | Receipt, *, block: bool = True) -> Any:
        """Take a message back that was not read. As `AgentHandle.retract`."""
        return self._host._call(lambda _runtime: self._handle.retract(message), block)

    def auxiliary_call(self, request: ModelRequest, *, block: bool = True) -> Any:
        """Ask the agent's provider something beside its turns. As `AgentHandle.auxiliary_call`."""
        return self._host._call(lambda _runtime: self._handle.auxiliary_call(request), block)

    def wait_idle(self, *, block: bool = True) -> Any:
        """Wait until nothing is to do but what is held. As `AgentHandle.wait_idle`."""

        async def wait(runtime: Runtime) -> None:
            await self._handle.wait_idle()

        return self._host._call(wait, block)

    def transcript(
        self, *, after: After | None = None, limit: int | None = None
    ) -> list[TranscriptMessage]:
        """The slot's messages, oldest first. As `AgentHandle.transcript`."""

        async def read(runtime: Runtime) -> list[TranscriptMessage]:
            return [message async for message in self._handle.transcript(after=after, limit=limit)]

        found: list[TranscriptMessage] = self._host._call(read, True)
        return found

    def cancel_turn(self, *, turn: int | None = None, requester: str, block: bool = True) -> Any:
        """End the agent's open turn for good. As `AgentHandle.cancel_turn`."""
        return self._host._call(
            lambda _runtime: self._handle.cancel_turn(turn=turn, requester=requester), block
        )

    def set_model(
        self,
        model: str | None,
        provider: str | None = None,
        *,
        requester: str = "host",
        block: bool = True,
    ) -> Any:
        """Have the agent ask another model from its next turn on. As `AgentHandle.set_model`."""
        return self._host._call(
            lambda _runtime: self._handle.set_model(model, provider, requester=requester), block
        )

    def run_tool(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002
        *,
        requester: str,
        block: bool = True,
    ) -> Any:
        """Run one of the agent's tools for an operator. As `AgentHandle.run_tool`."""
        return self._host._call(
            lambda _runtime: self._handle.run_tool(name, input, requester=requester), block
        )

    def rewound(self) -> list[TranscriptMessage]:
        """What rewinds took out of the transcript and is still kept. As `AgentHandle.rewound`."""

        async def read(runtime: Runtime) -> list[TranscriptMessage]:
            return [message async for message in self._handle.rewound()]

        found: list[TranscriptMessage] = self._host._call(read, True)
        return found

    def summaries(self) -> tuple[Summary, ...]:
        """What stands for the older part of the transcript. As `AgentHandle.summaries`."""
        return self._host._read(lambda _runtime: self._handle.summaries())

    def rewind(self, to: str | int, *, requester: str, block: bool = True) -> Any:
        """Take everything behind a message out of the transcript. As `AgentHandle.rewind`."""
        return self._host._call(
            lambda _runtime: self._handle.rewind(to, requester=requester), block
        )

    def undo_rewind(self, *, requester: str, block: bool = True) -> Any:
        """Put back what the last rewind took out. As `AgentHandle.undo_rewind`."""
        return self._host._call(
            lambda _runtime: self._handle.undo_rewind(requester=requester), block
        )

    def edit(
        self, message: str | int, blocks: Content | None, *, requester: str, block: bool = True
    ) -> Any:
        """Give a stored message other words, or take it out. As `AgentHandle.edit`."""
        return self._host._call(
            lambda _runtime: self._handle.edit(message, blocks, requester=requester), block
        )

    def undo_edit(self, edit: int, *, requester: str, block: bool = True) -> Any:
        """Put a message back as it was before an edit. As `AgentHandle.undo_edit`."""
        return self._host._call(
            lambda _runtime: self._handle.undo_edit(edit, requester=requester), block
        )

    def edits(self) -> tuple[EditRow, ...]:
        """The edits of the transcript that are kept. As `AgentHandle.edits`."""
        return self._host._read(lambda _runtime: self._handle.edits())


class HostedConversation(HostedAgent):
    """What a threaded host holds of a conversation agent. As `Conversation`."""

    def __init__(self, host: HostedRuntime, handle: Conversation) -> None:
        super().__init__(host, handle)
        self._conversation = handle
        self.agent = handle.agent
        self.channel = handle.channel

    def close(self, *, requester: str = "host", block: bool = True) -> Any:
        """Let the turns that are asked for run, then end the agent. As `Conversation.close`."""

        async def close(runtime: Runtime) -> None:
            await self._conversation.close(requester=requester)

        return self._host._call(close, block)
