"""Conversation agents: forked from a resident's slot for one channel, closed when it is over.

A fork begins with the resident's rows up to a place; their bodies stay where they were written. It
has a name, a slot, a gate and waits of its own, and is held and released as residents are.

Invariants:
    I1  A channel has at most one open fork; its name is used for no other.
    I2  A fork is started once every row up to its base is there; a death in between is made good
        by the next opening, which goes on where the rows end.
    I3  The base holds no open tool gap: every call in it has its result.

Runs in: the task of whoever opens or closes one, on the loop thread.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Guard, NotStored, Put, Refused, Request
from abeyance.storage.tables.agents import Conversation as ConversationRecord
from abeyance.storage.tables.blocks import ToolUseBlock
from abeyance.storage.tables.slots import Cut, body_key

from .disposal import dispose, end_agent
from .domain.chosen_model import chosen_of, with_choice
from .domain.context_rows import read_summaries, record_of
from .domain.errors import InvalidInputError, not_stored
from .domain.ingress import check_name
from .domain.slot_edit_book import is_recast, read_recast
from .domain.slot_messages import BeginFork
from .domain.slot_rows import read_content, read_cuts, read_owner, read_rows, read_standing
from .handle import AgentHandle

if TYPE_CHECKING:
    from .runtime import Runtime

ROWS_A_COMMIT: Final = 100
NAME_BYTES_KEPT: Final = 100
"""Of the parent's name, which a fork's begins with; the rest makes it the only one."""

declare("conversation.named", "a fork has a name and takes no row over yet")
declare("conversation.forked", "some rows were taken over, and not all")
declare("conversation.open", "a fork is complete and not started")


class Conversation(AgentHandle):
    """What a host holds of a conversation agent: an agent's handle that can be closed."""

    def __init__(self, runtime: Runtime, name: str, agent: str, channel: str) -> None:
        super().__init__(runtime, name)
        self.agent = agent
        """The resident it was forked from."""
        self.channel = self._channel = channel

    async def close(self, *, requester: str = "host") -> None:
        """Let the turns that are asked for run, then end the agent; its slot stays.

        What was queued lands in its slot. A held turn, and every wake that no turn answered, is
        dropped: each becomes a dead letter of the resident's slot, which a replay sends there. Its
        waits stay listed and hold nobody else. Idempotent.

        A checkpoint. Cancelled: it starts no more turns; close it again.
        Durable: on return.

        Args:
            requester: Who asks, as for `Runtime.release_provider_wait`.
        Raises:
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: Its end could not be stored; it is open, and starts no more turns.
            AgentParkedError: Its slot crashed too often; resume it first.
            RuntimeClosedError: The runtime has ended.
        """
        self._runtime._check_open()
        by = self._runtime._permitted("close", self.name, requester)
        if self.name in self._runtime._members:
            with self._runtime._lifetime.answers():
                await end_agent(self._runtime, self.name, by, finish=True)


class Conversations:
    """Opens the conversation agents of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._locks: dict[tuple[str, str], trio.Lock] = {}

    async def open(self, agent: str, channel: str) -> Conversation:
        """See `Runtime.open_conversation`."""
        runtime = self._runtime
        check_name(agent, "agent")
        check_name(channel, "channel", reserved=False)
        parent = runtime._member(agent)
        if parent.kind != "resident":
            raise InvalidInputError("agent", f"{agent!r} is no resident; only those are forked")
        key = (agent, channel)
        async with self._locks.setdefault(key, trio.Lock()):
            name = await self._named(key)
            member = runtime._members.get(name)
            if member is not None and member.ending is not None:
                await member.ending.wait()
                name = await self._named(key)
            if name not in runtime._members:
                await self._start(key, name)
        return Conversation(runtime, name, agent, channel)

    async def _start(self, key: tuple[str, str], name: str) -> None:
        runtime, (agent, channel) = self._runtime, key
        said = replace(runtime._member(agent).settings, name=name, slot=name, resident=agent)
        settings = with_choice(said, chosen_of(runtime._store, name), runtime._providers)
        await runtime._groups.own(name)
        crashpoint("conversation.named")
        await self._take_over(key, name)
        await runtime._groups.record(said, "conversation", agent)
        crashpoint("conversation.open")
        async with runtime._lifetime.starting():
            member = await runtime._groups.start(settings, "conversation", agent, said)
            member.channel = channel
            runtime._members[name] = member
            await runtime._quiescence.tell_newcomer(member)

    async def _named(self, key: tuple[str, str]) -> str:
        """The name of the channel's fork: the open one's, or that of a fresh one."""
        runtime = self._runtime
        while True:
            row = runtime._store.get("conversations", key)
            if row is not None and row.record.state != "closed":
                found: str = row.record.agent
                return found
            if row is not None:
                await self._end_rest(key, row.record.agent)
            await self._begin(key[0])
            record = ConversationRecord(
                agent=_fresh_name(key[0]),
                base_seq=await self._base_of(runtime._member(key[0]).slot_name),
                state="forking",
                opened_ms=runtime.clock.now_ms(),
            )
            guard = Guard("conversations", key, 0 if row is None else row.counter)
            put = Put("conversations", key, encode(record))
            if await self._commit(Request((guard,), (put,))):
                return record.agent

    async def _begin(self, agent: str) -> None:
        """Have what is in the parent's slot stay there: the fork names its rows."""
        parent = self._runtime._member(agent)
        parent.check_not_parked()
        with parent.parking.cut_off() as parked:
            await parent.slot.ask(BeginFork())
        if parked.cancelled_caught:
            raise parent.parked_error()

    async def _end_rest(self, key: tuple[str, str], name: str) -> None:
        """Finish an end that took more than one commit and was cut off behind its first."""
        runtime, (agent, channel) = self._runtime, key
        if name in runtime._members or not any(read_rows(runtime._store, "wakes", (name,))):
            return
        await runtime._groups.own(name)
        async with runtime._lifetime.starting():
            home = await runtime._groups.start_slot(name)
            try:
                slot = home.group.refs["slot"]
                await dispose(slot, name, "conversation", agent, channel, "a restart", runtime)
            finally:
                await home.group.stop()

    async def _base_of(self, slot: str) -> int:
        """The last row that a fork may begin with (I3)."""
        store = self._runtime._store
        await trio.lowlevel.checkpoint()
        cuts = read_cuts(store, slot)
        for last, entry in read_standing(store, slot, cuts, reverse=True):
            if entry.role == "assistant" and any(
                isinstance(block, ToolUseBlock) for block in read_content(store, slot, entry)
            ):
                return last - 1
            return last
        return 0

    async def _take_over(self, key: tuple[str, str], name: str) -> None:
        """Take the parent's rows over, by reference, in commits that are each a valid prefix."""
        runtime = self._runtime
        store, agent = runtime._store, key[0]
        slot = runtime._member(agent).slot_name
        at = 0
        for last, _ in read_rows(store, "slots", (name,), reverse=True, limit=1):
            at = int(last[-1])
        while True:
            row = store.get("conversations", key)
            assert row is not None
            record = row.record
            if record.state != "forking":
                return
            _, fence = read_owner(store, name)
            owner = Guard("owners", ("slot", name), fence)
            puts, seen, cuts = [], 0, read_cuts(store, slot)
            recast = read_recast(store, slot)
            rows = store.scan("slots", (slot,), after=(slot, at), limit=ROWS_A_COMMIT)
            for place, found in rows:
                if int(place[-1]) > record.base_seq:
                    break
                seen, at = seen + 1, int(place[-1])
                if not _is_cut(cuts, at):
                    if isinstance(found, Exception):
                        raise found
                    entry = found.record
                    forked = _forked(entry, slot, recast=is_recast(recast, at, entry))
                    puts.append(Put("slots", (name, at), encode(forked)))
            guards: tuple[Guard, ...] = (owner,)
            if seen < ROWS_A_COMMIT:
                await self._take_over_context(slot, agent, name, record.base_seq, owner)
                guards = (owner, Guard("conversations", key, row.counter))
                opened = msgspec.structs.replace(record, state="open")
                puts.append(Put("conversations", key, encode(opened)))
            await self._commit(Request(guards, tuple(puts)))
            crashpoint("conversation.forked")

    async def _take_over_context(
        self, slot: str, agent: str, name: str, base: int, owner: Guard
    ) -> None:
        """Copy what stands for the oldest rows, so that the fork's first turn is no longer than
        its resident's. What cannot be read is left out; the rows are all there."""
        store = self._runtime._store
        found = read_summaries(store, slot, agent, lambda _last, _error: None)
        summary = next((each for each in found if each.last <= base), None)
        if summary is not None:
            record = record_of(summary, revision=0)
            put = Put("contexts", (name, name, summary.last), encode(record))
            await self._commit(Request((owner,), (put,)))

    async def _commit(self, request: Request) -> bool:
        """Commit; False where somebody else was faster."""
        outcome: Any = await self._runtime._journal.ask(request)
        if isinstance(outcome, NotStored):
            raise not_stored(outcome)
        return not isinstance(outcome, Refused)


def _is_cut(cuts: tuple[Cut, ...], seq: int) -> bool:
    """Whether a rewind took a row out of its slot."""
    return any(cut.first <= seq <= cut.last for cut in cuts)


def _fresh_name(parent: str) -> str:
    kept = parent.encode()[:NAME_BYTES_KEPT].decode(errors="ignore").rstrip()
    return f"{kept}.{secrets.token_hex(6)}"


def _forked(entry: Any, parent: str, *, recast: bool) -> Any:
    """A row of the parent's as the fork has it: what it says now, and no turn of its own."""
    origin, number = body_key(parent, entry)
    return msgspec.structs.replace(
        entry,
        origin=origin,
        entry=number,
        edited=None,
        recast=entry.recast or recast,
        turn=None,
        round=None,
    )
