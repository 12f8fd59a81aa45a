"""What a person decides: tool calls that wait for it. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from abeyance.storage.errors import UnreadableRecordError

from .core.errors import ActorDeadError
from .domain.approvals import ApprovalReceipt, ApprovalRow, read_id, read_note, waiting_of
from .domain.errors import AgentEndedError
from .domain.ingress import check_name
from .domain.slot_approvals import Decide, unknown
from .domain.wait_releases import check_known
from .lifetime import closed

if TYPE_CHECKING:
    from .runtime import Runtime


class ApprovalVerbs:
    """The part of a runtime that is about tool calls that wait for a person."""

    def approvals(self, agent: str | None = None) -> tuple[ApprovalRow, ...]:
        """The tool calls that wait for a person, of one agent or of all, agent by agent; those of
        other processes, and of agents that are not added, included.

        Not a checkpoint. Reads rows; asks no actor.

        Raises:
            InvalidNameError: The filter is no name; it is not read as all.
            UnknownAgentError: It is no agent's, here or in the store.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        if agent is not None:
            check_name(agent, "agent")
            if agent not in runtime._members:
                check_known(runtime._store, runtime._waits, agent)
            return tuple(waiting_of(runtime._store, agent))
        names = [str(key[0]) for key, _ in runtime._store.scan("heads")]
        return tuple(row for name in names for row in waiting_of(runtime._store, name))

    async def approve(
        self,
        id: str,  # noqa: A002 - the word hosts use.
        *,
        requester: str,
        note: str = "",
    ) -> ApprovalReceipt:
        """Let a tool call that waits for a person be made. An operator's act.

        It is begun at once, beside what still runs of its round, or when its agent's turn goes on,
        after a restart too. Safe to give twice.

        A checkpoint. Cancelled: it may have been approved; the approvals tell.
        Durable: on return.

        Args:
            id: As `approvals` lists it.
            requester: Who decides, as it is recorded behind the door's name.
            note: For whoever looks later: one line, cut off at 500 characters.
        Returns:
            What was decided, by whom and when; also where somebody decided so before.
        Raises:
            InvalidInputError: Names the argument that is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownApprovalError: No such call waits; nothing was done.
            ApprovalDecidedError: It was denied before, or its turn has ended; nothing was changed.
            UnknownAgentError: Its agent is not here: add it first. Nothing was done.
            AgentOwnedElsewhereError: A live process owns its agent; decide it there.
            NotStoredError: It could not be stored; the call waits.
            AgentParkedError, AgentEndedError, OwnershipLostError, RuntimeClosedError: As for
                `AgentHandle.send`.
        """
        return await self._decide("approve", "approved", id, requester, note)

    async def deny(
        self,
        id: str,  # noqa: A002 - the word hosts use.
        *,
        requester: str,
        note: str = "",
    ) -> ApprovalReceipt:
        """Have a tool call that waits for a person not made: its model is told, with the note.

        As `approve`.
        """
        return await self._decide("deny", "denied", id, requester, note)

    async def _decide(
        self,
        verb: str,
        verdict: Literal["approved", "denied"],
        id_: str,
        requester: str,
        note: str,
    ) -> ApprovalReceipt:
        runtime = cast("Runtime", self)
        runtime._check_open()
        key, said = read_id(id_), read_note(note)
        by = runtime._permitted(verb, key[0], requester)
        if key[0] not in runtime._members:
            with suppress(UnreadableRecordError):
                if runtime._store.get("approvals", key) is None:
                    raise unknown(key)
            runtime._check_not_owned_elsewhere(key[0])
        member = runtime._member(key[0])
        member.check_accepts()
        decide = Decide(key, verdict, by, said, runtime.clock.now_ms())
        receipt: Any = None
        try:
            with member.parking.cut_off():
                receipt = await member.slot.ask(decide)
        except ActorDeadError as error:
            if runtime._closed:
                raise closed() from error
            raise AgentEndedError(
                f"agent {key[0]!r} has ended, and its calls that waited with it; nothing was done",
                agent=key[0],
            ) from error
        if receipt is None:
            raise member.parked_error()
        decided: ApprovalReceipt = receipt
        return decided
