"""What an operator does to one agent: its turn's end, a tool pair, rewinds, edits. A part of its
handle.

Each names who asks, and passes the host's admin gate where it comes through the API.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import trio

from abeyance.storage.tables.blocks import ToolUseBlock

from .choosing import choose_model
from .core.errors import AbeyanceError, ActorDeadError
from .domain.cancelling import Cancel
from .domain.chosen_model import ModelReceipt
from .domain.edit_rows import EditRow, read_edits
from .domain.errors import AdmissionClosedError, AgentEndedError, InvalidInputError
from .domain.ingress import (
    Content,
    check_model,
    check_name,
    encode_body,
    new_message_id,
    read_blocks,
)
from .domain.pairs import PairReceipt, RunTool, StopTool
from .domain.slot_cancel import CancelReceipt
from .domain.slot_messages import (
    EditReceipt,
    EditSlot,
    RewindReceipt,
    RewindSlot,
    UndoEdit,
    UndoRewind,
)
from .domain.transcript import TranscriptMessage, find_place, read_rewound
from .lifetime import closed

if TYPE_CHECKING:
    from .runtime import Runtime


class OperatorVerbs:
    """The acts of an operator on one agent."""

    name: str
    _runtime: Runtime

    async def cancel_turn(self, *, turn: int | None = None, requester: str) -> CancelReceipt:
        """End the agent's open turn for good: live, held, or waiting to be admitted. An operator's
        act.

        Nothing is given back: what the turn was to answer stays in the transcript and is read by
        the next turn, which wakes that wait start. Its tool calls are cut off: an async body is
        cancelled, one in a thread is not waited for; each tool's `in_doubt` says what is told of
        it, and results stand beside their calls. A run that waits for the turn fails with
        `TurnFailedError` of state `cancelled`.

        A checkpoint. Cancelled: it may be done yet; call again to make sure.
        Durable: that it is cancelled, before anything is cut off; its end, on return. A death in
        between ends it at the next start, before it makes a call.

        Args:
            turn: Its number, as the status has it: another one is not touched, however often this
                is called. None: whichever is open now.
            requester: Who asks, as it is recorded behind the door's name.
        Returns:
            Which turn, and how it stands: one that had ended by itself is told of as it ended.
        Raises:
            InvalidInputError: `turn` or `requester` is malformed, or the agent has had no such
                turn; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            AskCycleError: Called from a tool of that very turn; nothing was done.
            AdmissionClosedError: A death left the turn and no turn is taken up now, in a host that
                is quiesced: it is marked, and ends when turns start again.
            NotStoredError: It could not be stored; the turn goes on.
            AgentParkedError, AgentEndedError, OwnershipLostError, RuntimeClosedError: As for
                `wait_idle`.
        """
        runtime = self._runtime
        runtime._member(self.name)
        if turn is not None and (
            isinstance(turn, bool) or not isinstance(turn, int) or not 0 < turn < 2**63
        ):
            raise InvalidInputError("turn", f"must be a turn's number, not {turn!r:.40}")
        by = runtime._permitted("cancel_turn", self.name, requester)
        now_ms = runtime.clock.now_ms()
        receipt: CancelReceipt = await self._ask_agent(
            Cancel(new_message_id(now_ms), turn, by, now_ms)
        )
        return receipt

    async def set_model(
        self,
        model: str | None,
        provider: str | None = None,
        *,
        requester: str = "host",
    ) -> ModelReceipt:
        """Have the agent ask another model from its next turn on. An operator's act.

        It wins over the specification, after a restart too, until it is taken back. A turn that
        lives keeps the model it began with; one that is held by a wait, a quota or an account's
        wall of the model before goes on with this one at once. What was recorded of the model
        before stands, for whoever asks it again. Reasoning that another wire signed is left out of
        requests.

        A checkpoint. Cancelled: it may have been chosen; choose it again.
        Durable: on return. Safe to give twice.

        Args:
            model: The provider's name of it; not `*`. None: what the specification says again.
            provider: A name that was given to `add_provider`, to be added ahead of this agent at
                each start. None: the specification's provider.
            requester: Who asks, as it is recorded behind the door's name.
        Raises:
            InvalidNameError, InvalidInputError: Names the argument; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownProviderError: No provider of that name was added; nothing was done.
            NotStoredError: It could not be stored; nothing changed.
            AgentEndedError, OwnershipLostError, RuntimeClosedError: As for `send`.
        """
        runtime, member = self._runtime, self._runtime._member(self.name)
        if model is not None:
            check_model(model, "model")
        elif provider is not None:
            raise InvalidInputError("provider", "must be None where no model is chosen")
        if provider is not None:
            check_name(provider, "provider")
        by = runtime._permitted("set_model", self.name, requester)
        try:
            with runtime._lifetime.answers():
                return await choose_model(runtime, member, model, provider, by)
        except ActorDeadError as error:
            raise self._ended() from error

    async def run_tool(
        self,
        name: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the wire's own word.
        *,
        requester: str,
    ) -> PairReceipt:
        """Run one of the agent's tools as if its model had called it. An operator's act.

        It waits behind the turn that lives on the slot, and holds the slot from its call to its
        result: no turn starts in between, and what is sent meanwhile lands behind. Call and result
        stand side by side in the transcript, and wake nobody. A held turn stays held. Where the
        process dies meanwhile the call is in doubt, and the next start settles it by the tool's
        `in_doubt`.

        A checkpoint. Cancelled: not run where it had not begun; else it comes to its end, and the
        transcript tells. Durable: on return.

        Args:
            name: Of a tool that the agent was added with.
            input: What the tool is called with, by name.
            requester: Who asks, as it is recorded behind the door's name.
        Raises:
            InvalidInputError, InvalidMessageError: Names the argument; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            QuiescedError: The host is quiesced; nothing was done.
            AskCycleError: Called from a tool whose turn it would wait for.
            AdmissionClosedError: The agent was stopped or removed before it began.
            NotStoredError: The call could not be stored; nothing was run.
            AgentParkedError, AgentEndedError, OwnershipLostError, RuntimeClosedError: As for
                `wait_idle`.
        """
        runtime, member = self._runtime, self._runtime._member(self.name)
        by = runtime._permitted("run_tool", self.name, requester)
        if not isinstance(name, str) or name not in member.settings.tools:
            raise InvalidInputError("name", f"must be one of the agent's tools, not {name!r:.80}")
        now_ms = runtime.clock.now_ms()
        message = new_message_id(now_ms)
        fields = {"type": "tool_use", "id": f"op-{message}", "name": name, "input": input or {}}
        (call,) = read_blocks(fields, "tool")
        assert isinstance(call, ToolUseBlock)
        member.check_not_parked()
        runtime._quiescence.check_serving()
        receipt: PairReceipt | None = None
        with runtime._rings.waiting(self.name):
            try:
                with member.parking.cut_off():
                    receipt = await member.agent.ask(RunTool(call, message, by, now_ms))
            except trio.Cancelled:
                with suppress(ActorDeadError):
                    member.agent.tell(StopTool(message))
                raise
            except ActorDeadError as error:
                raise self._ended() from error
            except AdmissionClosedError:
                runtime._check_open()
                raise
        if receipt is None:
            raise member.parked_error()
        return receipt

    async def rewound(self) -> AsyncGenerator[TranscriptMessage, None]:
        """Yield the messages that rewinds took out of the transcript and that are still kept.

        A checkpoint a page. They are kept for 7 days.
        """
        member, lifetime = self._runtime._member(self.name), self._runtime._lifetime
        with lifetime.answers():
            rows = read_rewound(self._runtime._store, member.slot_name)
            async with aclosing(rows):
                async for message in rows:
                    yield message
                    lifetime.check_open()

    async def rewind(self, to: str | int, *, requester: str) -> RewindReceipt:
        """Take everything behind a message out of the transcript. An operator's act.

        A live turn is ended first, its open tool gap closed; its wakes are given back where
        something is left to answer. A held turn stays held. Messages in the inbox, wakes, waits and
        alerts stay as they are. What was taken out is kept for 7 days: `rewound()` reads it, and
        `undo_rewind` puts it back.

        A checkpoint. Cancelled: it may have been done, or be done yet; the transcript tells.
        Durable: on return.

        Args:
            to: The last message that stays: its id, or its place (`.seq`); 0 keeps none.
            requester: Who asks, as it is recorded behind the door's name; one line, cut off at
                200 characters.
        Returns:
            The places between which lay what was taken out, or None and None.
        Raises:
            InvalidInputError: `to` or `requester` is malformed, or `to` lies between a tool call
                and its result; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownMessageError: No such message in the transcript; nothing was done.
            RewindRefusedError: 64 rewinds are kept already, or another agent's turn lives on this
                slot; nothing was done.
            UnreadableRecordError: That message, or the slot's head, cannot be read.
            NotStoredError: The commit failed; nothing was rewound.
            AgentParkedError, OwnershipLostError, RuntimeClosedError: As for `send`.
        """
        runtime = self._runtime
        member = runtime._member(self.name)
        by = runtime._permitted("rewind", self.name, requester)
        with runtime._lifetime.answers():
            place = await find_place(runtime._store, member.slot_name, to)
        now_ms = runtime.clock.now_ms()
        receipt: RewindReceipt = await self._ask_agent(
            RewindSlot(place, new_message_id(now_ms), by, now_ms, self.name)
        )
        return receipt

    async def undo_rewind(self, *, requester: str) -> RewindReceipt:
        """Put back what the last rewind took out, as long as the transcript did not go on since.

        A checkpoint. Cancelled: it may have been done; the transcript tells.
        Durable: on return.

        Raises:
            InvalidInputError: `requester` is malformed; nothing was done.
            RewindRefusedError: Nothing was rewound, it is pruned, a message or a turn came since,
                or a turn lives on what is left; nothing was done.
            NotStoredError: The commit failed; nothing was done.
            AgentParkedError, OwnershipLostError, RuntimeClosedError: As for `send`.
        """
        runtime = self._runtime
        runtime._member(self.name)
        by = runtime._permitted("undo_rewind", self.name, requester)
        now_ms = runtime.clock.now_ms()
        receipt: RewindReceipt = await self._ask_agent(
            UndoRewind(new_message_id(now_ms), by, now_ms)
        )
        return receipt

    async def edit(
        self,
        message: str | int,
        blocks: Content | None,
        *,
        requester: str,
    ) -> EditReceipt:
        """Give a stored message other words, or take it out. An operator's act.

        While a turn is held, or the agent rests; a live turn is not ended for it. The next fresh
        compile is the first to carry it, a held turn's too. Places, wakes, waits and the inbox stay
        as they are, and what was read stays read. The words it had are kept for 7 days: `edits()`
        reads them, and `undo_edit` puts them back. Reasoning that the model gave behind other words
        is not sent again, and summaries of them end. A conversation that was forked before keeps
        what it began with.

        A checkpoint. Cancelled: it may have been done, or be done yet; the transcript tells.
        Durable: on return.

        Args:
            message: Which one: its id, or its place (`.seq`).
            blocks: What it says from now on, whole: text, or blocks of the kinds that it has. A
                reply keeps its tool calls, and results those they answer, in their order. None:
                it is taken out.
            requester: As of `rewind`.
        Returns:
            A receipt, whose `edit` is what `undo_edit` takes.
        Raises:
            InvalidInputError: `message` or `requester` is malformed; nothing was changed.
            InvalidMessageError: `blocks` is malformed, or does not fit that message; it names the
                block, and nothing was changed.
            NotPermittedError: The host's admin gate did not let it pass; nothing was changed.
            UnknownMessageError: No such message in the transcript; nothing was changed.
            EditRefusedError: `reason` says why: a turn or a tool pair lives on the slot, it is half
                of a tool pair, a turn is asked for by it, it is a note of the runtime, or 256 edits
                are kept already; nothing was changed.
            UnreadableRecordError: That message cannot be read.
            NotStoredError: The commit failed; nothing was changed.
            AgentParkedError, OwnershipLostError, RuntimeClosedError: As for `send`.
        """
        runtime, member = self._runtime, self._runtime._member(self.name)
        by = runtime._permitted("edit", self.name, requester)
        said = None if blocks is None else read_blocks(blocks, "blocks")
        if said is not None:
            encode_body(said, "blocks")
        with runtime._lifetime.answers():
            place = await find_place(runtime._store, member.slot_name, message, field="message")
        now_ms = runtime.clock.now_ms()
        named = message if isinstance(message, str) else None
        return await self._ask_slot(
            EditSlot(place, named, said, new_message_id(now_ms), by, now_ms)
        )

    async def undo_edit(self, edit: int, *, requester: str) -> EditReceipt:
        """Put a message back as it was before an edit, unless something came behind that.

        A checkpoint. Cancelled: it may have been done; the transcript tells.
        Durable: on return.

        Args:
            edit: The edit's number.
            requester: As of `rewind`.
        Raises:
            InvalidInputError: An argument is malformed; nothing was changed.
            NotPermittedError: The host's admin gate did not let it pass; nothing was changed.
            EditRefusedError: `reason` says why: a turn lives on the slot, nothing of the edit is
                kept, it is undone, or the message is something else since; nothing was changed.
            NotStoredError: The commit failed; nothing was changed.
            AgentParkedError, OwnershipLostError, RuntimeClosedError: As for `send`.
        """
        runtime = self._runtime
        runtime._member(self.name)
        by = runtime._permitted("undo_edit", self.name, requester)
        if isinstance(edit, bool) or not isinstance(edit, int) or not 0 < edit < 2**63:
            raise InvalidInputError("edit", f"must be an edit's number, not {edit!r:.40}")
        now_ms = runtime.clock.now_ms()
        return await self._ask_slot(UndoEdit(edit, new_message_id(now_ms), by, now_ms))

    def edits(self) -> tuple[EditRow, ...]:
        """The edits of this transcript that are kept, oldest first, each with what it replaced.

        Not a checkpoint. They are kept for 7 days, 256 at most. One that cannot be read is left
        out; `abeyance check` names it.
        """
        member, lifetime = self._runtime._member(self.name), self._runtime._lifetime
        lifetime.check_open()
        return tuple(read_edits(self._runtime._store, member.slot_name))

    async def _ask_slot(self, message: EditSlot | UndoEdit) -> EditReceipt:
        member = self._runtime._member(self.name)
        member.check_not_parked()
        receipt: EditReceipt | None = None
        try:
            with member.parking.cut_off():
                receipt = await member.slot.ask(message)
        except ActorDeadError as error:
            raise self._ended() from error
        if receipt is None:
            raise member.parked_error()
        return receipt

    async def _ask_agent(self, message: RewindSlot | UndoRewind | Cancel) -> Any:
        member = self._runtime._member(self.name)
        member.check_not_parked()
        receipt = None
        try:
            with member.parking.cut_off():
                receipt = await member.agent.ask(message)
        except ActorDeadError as error:
            raise self._ended() from error
        if receipt is None:
            raise member.parked_error()
        return receipt

    def _ended(self) -> AbeyanceError:
        """Why its actors have ended: the runtime has, or the agent alone."""
        if self._runtime._closed:
            return closed()
        return AgentEndedError(
            f"agent {self.name!r} has ended; nothing was done, what was accepted is in its slot or "
            "among the dead letters; add it again",
            agent=self.name,
        )
