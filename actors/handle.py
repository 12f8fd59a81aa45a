"""What a host holds of one agent: the door its messages come in by."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from abeyance.actors.providers.port import ModelReply, ModelRequest
from abeyance.storage.errors import StoreClosedError
from abeyance.storage.tables.blocks import AttachmentBlock

from .core import TrioFuture
from .core.errors import AbeyanceError, ActorDeadError, MailboxClosedError, OutcomeUnknownError
from .domain.agent_acts import WaitIdle
from .domain.attaching import AttachmentSource
from .domain.context import Summary
from .domain.context_rows import read_summaries
from .domain.drafts import Batch, Draft, read_history, read_message, read_said
from .domain.errors import (
    AgentEndedError,
    BatchTooLargeError,
    InboxFullError,
    InvalidInputError,
    MessageTooLargeError,
)
from .domain.ingress import Content, check_name
from .domain.slot_inbox import FINAL_STATES, read_receipt
from .domain.slot_messages import (
    Accept,
    AcceptMany,
    Receipt,
    Retract,
)
from .domain.streaming import StreamItem
from .domain.transcript import (
    After,
    TranscriptMessage,
    last_place,
    place_after,
    read_transcript,
)
from .lifetime import closed
from .operator_verbs import OperatorVerbs

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime


class AgentHandle(OperatorVerbs):
    """What a host holds of one agent. Cheap; outlives the agent's crashes."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self.name = name
        self._channel: str | None = None
        """Of messages that name none."""

    async def attach(
        self, source: AttachmentSource, *, media_type: str | None = None, name: str | None = None
    ) -> AttachmentBlock:
        """Store an image, a sound or a document that a message to this agent may name.

        As `Runtime.attach`, of at most the agent's `attachment_bytes_max`.
        """
        runtime = self._runtime
        bytes_max = runtime._member(self.name).settings.limits.attachment_bytes_max
        with runtime._lifetime.answers():
            return await runtime._attacher.attach(source, media_type, name, bytes_max)

    async def send(
        self,
        content: Content,
        author: str = "user",
        *,
        id: str | None = None,  # noqa: A002 - the word hosts use.
        wake: bool = True,
        channel: str | None = None,
        subject: str | None = None,
        joins: bool = True,
    ) -> Receipt:
        """Accept a message durably, with its wake.

        A checkpoint. Cancelled: the message may have been accepted; send it again under the same
        `id` to make sure.
        Durable: on return.

        Args:
            content: Text, a block, or up to 1,000 blocks; at most 4,000,000 characters a text, and
                16 MiB together. Something in it must be more than blanks and control characters, or
                an attachment. Tool blocks belong to turns.
            author: Who says it. Named as the agent itself, it is stored as the agent's words, is
                never injected into a live turn, and wakes nobody.
            id: At most 128 bytes. The same id with the same content is the same message.
            wake: Whether it asks for a turn.
            channel: Where an answer belongs.
            subject: At most 128 bytes. What it is about: it takes the number and the place of this
                author's message about the same on the same channel, if that was not read, and asks
                for a turn where either of them did; it goes behind one that was read. The receipt's
                `replaces` names the one whose place it took.
            joins: Whether a live turn may hear it. One that may not waits for the turn's end, and
                with it what is sent after it.
        Returns:
            A receipt. Its `id` is what `transcript(after=...)` and `rewind` take; its `seq` is the
            inbox's number, for ever, and not the place in the transcript.
        Raises:
            InvalidMessageError, InvalidNameError: Names the field; nothing was stored.
            UnknownAttachmentError: It names what is not stored here; nothing was stored.
            MessageConflictError: The id is used for other content; nothing was stored.
            MessageTooLargeError: It, or an attachment that it names, has more bytes than the agent
                takes; `messages` hands it back.
            InboxFullError: The inbox is at its bound, or at the agent's; `messages` hands the
                message back.
            NotStoredError: The commit failed; nothing of it is stored.
            OwnershipLostError: Another process took the slot over; nothing was stored.
            AgentParkedError: It crashed too often; nothing was stored.
            RuntimeClosedError: The runtime has ended; nothing was stored.
            OutcomeUnknownError: It ended, or the agent was parked, before it answered; send again
                under the same `id`.
        """
        member = self._runtime._member(self.name)
        if channel is None:
            channel = self._channel
        try:
            accept = read_said(
                self._runtime.clock,
                self.name,
                content,
                author,
                id,
                wake=wake,
                channel=channel,
                subject=subject,
                joins=joins,
                bytes_max=member.settings.limits.message_bytes_max,
            )
        except MessageTooLargeError as error:
            error.messages = (Draft(content, author, id, wake, channel, subject, joins),)
            raise
        member.check_accepts()
        sends, asked = member.parking.sends, member.slot.ask(accept)
        sends.add(asked)
        try:
            receipt: Receipt = await asked
        except ActorDeadError as error:
            raise self._ended_meanwhile(error, accept.message) from error
        except (InboxFullError, MessageTooLargeError) as error:
            error.messages = (Draft(content, author, id, wake, channel, subject, joins),)
            raise
        finally:
            sends.discard(asked)
        return receipt

    async def send_many(self, drafts: Sequence[Draft]) -> tuple[Receipt, ...]:
        """Accept messages durably, in their order: all in one commit, or none.

        Nothing is accepted between them, and no death leaves a part of them. A draft whose `id` was
        accepted before, with the same content, is that message, and is not accepted again; so a
        batch whose drafts have ids can be sent again as a whole. However many they are, they are
        checked, numbered and made ready in parts, between which the loop does other things, before
        anything is handed to the store.

        A checkpoint, many times where they are many. Cancelled: none was accepted while they were
        still checked; from then on all or none may have been, whatever becomes of the caller. Send
        them again under the same ids to make sure.
        Durable: on return.

        Args:
            drafts: What `send` takes, each as a `Draft`; none is no error. How many fit in one
                commit is the store's limit: of the embedded store about 4,000 messages, and 64 MiB
                together.
        Returns:
            A receipt each, in their order; two drafts of one id have equal ones.
        Raises:
            InvalidMessageError, InvalidNameError: Names the draft and its field, as in
                `drafts[3].message[0].text`; nothing was stored.
            MessageTooLargeError: One has more bytes than the agent takes; names the draft, and
                `messages` hands all of them back. Nothing was stored.
            BatchTooLargeError: One commit of this store does not hold them; it names the limit, and
                `messages` hands them back. Nothing was stored.
            InboxFullError: The inbox has no room for all of them; `messages` hands them back.
                Nothing was stored.
            MessageConflictError: An id is used for other content; nothing was stored.
            NotStoredError, OwnershipLostError, AgentParkedError, RuntimeClosedError,
                OutcomeUnknownError: As for `send`, of all of them.
        """
        member = self._runtime._member(self.name)
        batch = self._batch(member, drafts)
        for _ in batch.read():
            await trio.lowlevel.checkpoint()
        member.check_accepts()
        if not batch.drafts:
            await trio.lowlevel.checkpoint()
            return ()
        for _ in batch.look(self._runtime._store, member.slot_name):
            await trio.lowlevel.checkpoint()
        member.check_accepts()
        message = batch.message
        if not message.accepts:
            return batch.each(())
        sends, asked = member.parking.sends, member.slot.ask(message)
        sends.add(asked)
        try:
            return batch.each(await asked)
        except ActorDeadError as error:
            raise self._ended_meanwhile(error, message.accepts[0].message) from error
        except (InboxFullError, BatchTooLargeError, MessageTooLargeError) as error:
            error.messages = batch.drafts
            raise
        finally:
            sends.discard(asked)

    async def backfill(
        self, drafts: Sequence[Draft], *, channel: str | None = None
    ) -> tuple[Receipt, ...]:
        """Accept what was said on a channel before: in one commit or not at all, waking nobody.

        The messages are put in the order of their `at_ms`, which is kept as the instant they were
        said. Those named as the agent are its own words: while a turn lives none of them joins, and
        what comes behind the first of them waits with it for the turn's end, so that the past stays
        in its order. Draft ids (the channel's own) let the same past be filled in again; what is
        there already is not taken twice.

        A checkpoint. Cancelled, durable: as `send_many`.

        Args:
            drafts: Each says `at_ms`; its `wake` is not looked at.
            channel: Of those that name none.
        Returns:
            A receipt each, in the order of `at_ms`.
        Raises:
            InvalidMessageError: A draft does not say when; nothing was stored.
            Exception: Whatever `send_many` raises.
        """
        past = read_history(drafts)
        if channel is not None:
            past = tuple(
                draft if draft.channel is not None else replace(draft, channel=channel)
                for draft in past
            )
        return await self.send_many(past)

    def hand_over(
        self,
        content: Content,
        author: str = "user",
        *,
        id: str | None = None,  # noqa: A002 - the word hosts use.
        wake: bool = True,
        channel: str | None = None,
        subject: str | None = None,
        joins: bool = True,
    ) -> TrioFuture[Receipt]:
        """Hand a message over without waiting: a future of what `send` returns or raises.

        Not a checkpoint. Any thread; what one thread hands over is accepted in its order. A
        malformed message is refused here.
        """
        member = self._runtime._member(self.name)
        draft = self._draft(content, author, id, wake, channel, subject, joins)
        bytes_max = member.settings.limits.message_bytes_max
        try:
            accept = read_message(self._runtime.clock, self.name, draft, bytes_max)
        except MessageTooLargeError as error:
            error.messages = (draft,)
            raise
        member.check_accepts()
        return self._hand_over(member, accept, accept.message, (draft,), lambda receipt: receipt)

    def hand_over_many(self, drafts: Sequence[Draft]) -> TrioFuture[tuple[Receipt, ...]]:
        """Hand a batch over without waiting: a future of what `send_many` returns or raises.

        As `hand_over`. A batch that is malformed is refused here.
        """
        member = self._runtime._member(self.name)
        batch = self._batch(member, drafts)
        for _ in batch.read():
            pass
        member.check_accepts()
        if not batch.drafts:
            nothing: TrioFuture[tuple[Receipt, ...]] = TrioFuture()
            nothing.set(())
            return nothing
        message = batch.message
        first = message.accepts[0].message
        return self._hand_over(member, message, first, batch.drafts, batch.each)

    def _hand_over(
        self,
        member: Member,
        message: Accept | AcceptMany,
        named: str,
        drafts: tuple[Draft, ...],
        read: Callable[[Any], Any],
    ) -> TrioFuture[Any]:
        asked: TrioFuture[Any] = member.slot.ask(message, block=False)
        answered: TrioFuture[Any] = TrioFuture()

        sends = member.parking.sends
        sends.add(asked)

        def answer() -> None:
            sends.discard(asked)
            try:
                answered.set(read(asked.get()))
            except ActorDeadError as error:
                told = self._ended_meanwhile(error, named)
                answered.set_exception((type(told), told, None))
            except Exception as error:  # noqa: BLE001 - the caller's.
                if isinstance(error, InboxFullError | BatchTooLargeError | MessageTooLargeError):
                    error.messages = drafts
                answered.set_exception((type(error), error, error.__traceback__))

        asked.on_done(answer)
        return answered

    def _batch(self, member: Member, drafts: object) -> Batch:
        bytes_max = member.settings.limits.message_bytes_max
        return Batch(self._runtime.clock, self.name, drafts, self._channel, bytes_max)

    def _draft(
        self,
        content: Content,
        author: str,
        id_: str | None,
        wake: bool,
        channel: str | None,
        subject: str | None,
        joins: bool,
    ) -> Draft:
        if channel is None:
            channel = self._channel
        return Draft(content, author, id_, wake, channel, subject, joins)

    async def retract(self, message: str | Receipt) -> Receipt:
        """Take a message back that was not read: it is gone, with its content and its wake.

        Nothing of it is ever sent to a provider. A turn that was to answer nothing else is
        withdrawn. Idempotent.

        A checkpoint. Cancelled: it may have been taken back; retract it again to make sure.
        Durable: on return.

        Args:
            message: Its id, or its receipt.
        Returns:
            A receipt whose state is `retracted`; or what else became of a message that is not there
            any more: `replaced`, `rewound`, or `dead`, and nothing was done.
        Raises:
            MessageReadError: It was read, or may be any instant; nothing was done.
            UnknownMessageError: Nobody sent a message of that id; nothing was done.
            InvalidNameError: The id is malformed; nothing was done.
            NotStoredError: The commit failed; the message stands.
            OwnershipLostError, AgentParkedError, RuntimeClosedError, OutcomeUnknownError: As for
                `send`.
        """
        member = self._runtime._member(self.name)
        id_ = message.id if isinstance(message, Receipt) else message
        check_name(id_, "message", reserved=False)
        member.check_accepts()
        asked = member.slot.ask(Retract(id_, self._runtime.clock.now_ms()))
        member.parking.sends.add(asked)
        try:
            receipt: Receipt = await asked
        except ActorDeadError as error:
            raise self._ended_meanwhile(error, id_) from error
        finally:
            member.parking.sends.discard(asked)
        return receipt

    async def receipt(self, id: str) -> Receipt:  # noqa: A002 - the word hosts use.
        """What became of a message that was sent: where it is now, and why.

        A checkpoint. Reads rows; asks no actor, and what it tells is committed.

        Args:
            id: As `Receipt.id` has it.
        Raises:
            InvalidNameError: It is no id.
            UnknownMessageError: No message was accepted under it.
            RuntimeClosedError: The runtime has ended.
        """
        check_name(id, "id", reserved=False)
        member = self._runtime._member(self.name)
        return await read_receipt(self._runtime._store, member.slot_name, id)

    async def follow(self, id: str) -> AsyncGenerator[Receipt, None]:  # noqa: A002
        """Yield a message's receipt as it is now, and again whenever it changed, until its state is
        a last one: stored, dead, or rewound.

        Of changes that follow close on one another only the last is told. A checkpoint a receipt.
        Cancelled: nothing happens.

        Raises:
            InvalidNameError, UnknownMessageError: As for `receipt`.
            AgentEndedError: The agent was removed; what became of the message is in its store.
            RuntimeClosedError: The runtime ended first; the message is where it was told to be.
        """
        check_name(id, "id", reserved=False)
        runtime, member = self._runtime, self._runtime._member(self.name)
        view, last = member.slot_view, None
        while True:
            stirs, ended = view.stirs, view.ended
            try:
                receipt = await read_receipt(runtime._store, member.slot_name, id)
            except StoreClosedError as error:
                raise closed() from error
            if receipt != last:
                last = receipt
                yield receipt
            if receipt.state in FINAL_STATES:
                return
            if ended:
                runtime._check_open()
                raise AgentEndedError(
                    f"agent {self.name!r} has ended; message {id!r} is {receipt.state}; add the "
                    "agent again to go on",
                    agent=self.name,
                )
            await view.wait_stirred(stirs)

    async def auxiliary_call(self, request: ModelRequest) -> ModelReply:
        """Ask the agent's provider something beside its turns; nothing of it is in the slot.

        A checkpoint; waits while another call of this agent is out. Cancelled: a call that is out
        is abandoned. Durable: what it stated, when this raises. Retries nothing, waits for no hold.

        Args:
            request: Its model need not be the agent's.
        Raises:
            InvalidInputError, InvalidNameError: Names the field; no call was made.
            CallDeferredError: The model is held, or the agent paused; no call was made.
            AdmissionClosedError: The agent was stopped or ended; no call was made.
            ProviderError: The call failed; the wait it stated binds this agent and model.
            AgentParkedError: It crashed too often; no call was made.
            RuntimeClosedError: The runtime has ended.
        """
        member = self._runtime._member(self.name)
        member.check_not_parked()
        return await member.auxiliary.call(request)

    async def wait_idle(self) -> None:
        """Wait until no turn lives and nothing is to do but what is held.

        A checkpoint. Cancelled: nothing happens.

        Raises:
            AskCycleError: Called from a tool whose own agent that agent waits for.
            AgentParkedError: It crashed too often, before or during the wait.
            OwnershipLostError: Another process took the agent over.
            RuntimeClosedError: The runtime has ended.
        """
        member = self._runtime._member(self.name)
        member.check_not_parked()
        with self._runtime._rings.waiting(self.name):
            try:
                with member.parking.cut_off() as parked:
                    await member.agent.ask(WaitIdle())
            except ActorDeadError as error:
                raise self._ended() from error
        if parked.cancelled_caught:
            raise member.parked_error()
        if self._runtime._closed:
            # No turn lives, but what was asked for was not done: its wakes were given back.
            raise closed() from self._runtime._lost

    async def transcript(
        self, *, after: After | None = None, limit: int | None = None
    ) -> AsyncGenerator[TranscriptMessage, None]:
        """Yield the slot's messages, oldest first, behind one of them and up to a number of them.

        A checkpoint a page. Each page is what was committed when it was read.

        Args:
            after: Only what stands behind this message: a `TranscriptMessage`, its `.seq` (its
                place), a message's id, or the `Receipt` of its `send`. Never a receipt's `.seq`:
                that is the inbox's number, and as a place it is another message's. None, 0: all.
            limit: How many at most, from 0. None: all.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument that is malformed.
            UnknownMessageError: No message of that id is in the transcript: it waits in the inbox
                still, was rewound, or never was.
            RuntimeClosedError: The runtime has ended, also in the middle.
        """
        member = self._runtime._member(self.name)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInputError("limit", f"must be a number, not {type(limit).__name__}")
        store, lifetime = self._runtime._store, self._runtime._lifetime
        with lifetime.answers():
            place = await place_after(store, member.slot_name, after)
            rows = read_transcript(store, member.slot_name, after=place, limit=limit)
            async with aclosing(rows):
                async for message in rows:
                    yield message
                    lifetime.check_open()

    def stream(self, *, after: After | None = None) -> AsyncGenerator[StreamItem, None]:
        """Yield what the agent says as it says it, and each message once it is stored.

        A `StreamDelta` is a piece of a reply, named by its turn, round and attempt; it is for
        showing. What was shown of a call that failed, was cut off, or died with its process is
        taken back by a `StreamSuperseded` before another attempt shows anything. A `StreamStored`
        stands for the deltas of its turn and round, and is what counts: whatever a reader missed,
        it gets those, of rows that anybody else stored too. Ends with the agent or the runtime.

        A checkpoint where nothing is there, and a page of rows. Cancelled, or left: nothing
        happens. No turn waits for a reader: one that is more than 1,000 deltas behind is told by a
        `StreamSkipped` how many it missed. Durable: stored messages; a delta is in no store.

        Args:
            after: Stored messages behind this one first, as `transcript` takes it; 0: all there
                are. None: only what is stored from now on, whenever the first item is asked for.
        Raises:
            InvalidInputError, InvalidNameError, UnknownMessageError: As for `transcript`.
            UnreadableRecordError: A row that is next cannot be read.
            RuntimeClosedError: The runtime had ended when this was called.
        """
        member = self._runtime._member(self.name)
        store, slot = self._runtime._store, member.slot_name
        with self._runtime._lifetime.answers():
            behind = last_place(store, slot) if after is None else after
        return member.stream.items(store, slot, behind)

    def summaries(self) -> tuple[Summary, ...]:
        """What stands for the older part of the transcript, the newest first; see docs/context.md.

        The agent's strategy chooses among them when a turn starts. Not a checkpoint. One that
        cannot be read is left out; an alert and `abeyance check` name it.
        """
        member = self._runtime._member(self.name)
        found = read_summaries(
            self._runtime._store, member.slot_name, self.name, lambda _last, _error: None
        )
        return tuple(found)

    def _ended_meanwhile(self, error: ActorDeadError, message: str) -> AbeyanceError:
        if isinstance(error, MailboxClosedError):
            return self._ended()
        return OutcomeUnknownError(
            "the runtime ended before it answered; whether the message was accepted is unknown; "
            "open it again and send under the same id",
            actor=error.actor,
            message=message,
        )
