"""Reading an outbox: what agents said, for whoever posts it elsewhere; at least once, in order.

A bridge reads replies and acknowledges each once it is posted. What was not acknowledged is given
again, after a death too, under the same id.

Invariants:
    I1  A reply is given only once it is stored, and again until its acknowledgement is.
    I2  One agent's replies are given in the order of its slot; acknowledging one acknowledges those
        of that agent ahead of it.
    I3  An outbox has one reader at a time, in whichever process: its owner row guards each write.
    I4  Nothing is queued for a reader and nobody waits for one: it reads the store at its own pace.
    I5  What cannot be read stops the agent it is of, and no other.

Runs in: the task of whoever reads, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import trio

from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import (
    RevisionPrunedError,
    UnreadableRecordError,
)
from abeyance.storage.store import Guard, Put, Request
from abeyance.storage.tables.blocks import Block, ToolUseBlock
from abeyance.storage.tables.outboxes import Outbox as OutboxRecord

from .core.logs import Log
from .domain.errors import (
    InvalidInputError,
    OutboxLostError,
    UnknownAgentError,
)
from .domain.ingress import check_name
from .domain.outbox_rows import (
    Line,
    Said,
    cursor_at,
    cursors_at_end,
    line_of,
    read_lines,
    read_page,
    read_place,
    requests_of,
)
from .domain.transcript import After, place_after
from .outboxes import busy

if TYPE_CHECKING:
    from .runtime import Runtime

LOOK_S: Final = 1.0
"""How often what other processes stored is looked for; what this one stores is told at once."""

declare("outbox.given", "a reply is given to a bridge, and it has done nothing with it")
declare("outbox.acknowledged", "an acknowledgement is committed and its bridge is not told")

Begin: TypeAlias = Literal["now", "first"] | After
"""Where an outbox begins that is new."""

_logger = Log(__name__)


@dataclass(frozen=True, slots=True)
class OutboxReply:
    """A reply that is to be posted.

    `id` is the same however often it is given: the key by which the far side can tell a repeat.
    """

    id: str
    agent: str
    text: str
    """Its text blocks, joined by line ends. Never blank."""
    blocks: tuple[Block, ...]
    channel: str | None
    """Where it belongs: as `TranscriptMessage.channel`."""
    turn: int
    round: int
    final: bool
    """Whether it ends its turn. False: it also called tools, and their turn went on."""
    slot: str
    seq: int
    """Its place in the transcript of its slot."""
    at_ms: int
    done: Callable[[], Any] = field(compare=False, repr=False)
    """Acknowledge it, once it is posted: `await reply.done()`, in a threaded host `reply.done()`.
    As `Outbox.ack`."""


class _Reading:
    """How far one agent's replies were given and acknowledged."""

    def __init__(self, place: int) -> None:
        self.acknowledged = place
        self.place = place


class Outbox:
    """One reader of an outbox. Made by `Runtime.outbox`."""

    def __init__(self, runtime: Runtime, name: str, agent: str | None, begin: Begin) -> None:
        self._runtime = runtime
        self._begin = begin
        self._guard: Guard | None = None
        """What this reader writes under; None while it reads nothing."""
        self._writing = trio.Lock()
        self._lines: dict[str, list[Line]] = {}
        """By slot."""
        self._reads: dict[Line, _Reading] = {}
        self._dirty: dict[Line, None] = {}
        """Where something may be to read, in the order it came to be."""
        self._stuck: set[Line] = set()
        self._revision = 0
        self._was_entered = False
        self._token = object()
        """By which the runtime knows this reader: it keeps nobody alive who was left."""
        self.name = name
        self.agent = agent

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutboxReply:
        """The next reply; opens the outbox where nobody did. A checkpoint.

        Cancelled: nothing was given.
        """
        if not self._was_entered:
            await self._enter()
        reply = await self._next()
        if reply is None:
            self._leave()
            raise StopAsyncIteration
        crashpoint("outbox.given")
        return reply

    async def aclose(self) -> None:
        """Let go of the outbox: another reader may open it. Idempotent; a checkpoint."""
        self._leave()
        await trio.lowlevel.checkpoint()

    def __del__(self) -> None:
        # Of a loop that was left, nobody has it any more.
        self._runtime._outboxes.closed(self.name, self._token)

    async def ack(self, reply: OutboxReply) -> None:
        """Acknowledge a reply, and with it those of its agent ahead of it. Safe to give twice.

        A checkpoint. Cancelled: it may be acknowledged; else it is given again.
        Durable: on return, it is never given again.

        Raises:
            OutboxLostError: This reader was closed, or another process has the outbox; nothing was
                stored, and the reply is given again.
            NotStoredError: The commit failed; acknowledge it again.
            RuntimeClosedError: The runtime has ended; the reply is given again.
        """
        await self._ack(Line(reply.slot, reply.agent), reply.seq, reply.id)

    async def _ack(self, line: Line, seq: int, message: str) -> None:
        runtime = self._runtime
        with runtime._lifetime.answers():
            async with self._writing:
                reading = self._reads.get(line)
                if self._guard is None or reading is None:
                    raise self._lost("this reader was closed")
                if seq <= reading.acknowledged:
                    return
                put = cursor_at(self.name, line, seq, message, runtime.clock.now_ms())
                # Once it was asked, its answer decides what is true.
                with trio.CancelScope(shield=True):
                    await self._commit(Request(guards=(self._guard,), puts=(put,)))
                reading.acknowledged = seq
                crashpoint("outbox.acknowledged")

    # -- reading -----------------------------------------------------------------------------

    async def _next(self) -> OutboxReply | None:
        """The next reply; None once there will be none. A checkpoint."""
        runtime = self._runtime
        await trio.lowlevel.checkpoint()
        while self._guard is not None and runtime._lifetime.is_open:
            since = runtime._outboxes.stirs
            self._look()
            while self._dirty:
                line = next(iter(self._dirty))
                said = self._read(line)
                if said is not None:
                    return self._reply(line, said)
                await trio.lowlevel.checkpoint()
            if self._is_over():
                return None
            with trio.move_on_after(LOOK_S):
                await runtime._outboxes.wait_stirred(since)
        return None

    def _read(self, line: Line) -> Said | None:
        """One reply, if a page has one; a line that has no more is dirty no more."""
        store = self._runtime._store
        try:
            reading = self._reads.get(line)
            if reading is None:
                reading = self._reads[line] = _Reading(read_place(store, self.name, line))
            # One a look: what is rewound or edited meanwhile is not given as it was.
            page = read_page(store, line, reading.place, replies=1)
            reading.place = page.place
            if page.is_last:
                del self._dirty[line]
        except UnreadableRecordError as error:
            del self._dirty[line]
            if line not in self._stuck:
                self._stuck.add(line)
                _logger.error(
                    "outbox %r stands at %r, whose next reply cannot be read: %s",
                    self.name,
                    line.agent,
                    error,
                    agent=line.agent,
                )
            return None
        self._stuck.discard(line)
        if not page.said:
            return None
        # Behind the others, so that an agent that says much keeps nobody waiting.
        self._dirty[line] = self._dirty.pop(line, None)
        return page.said[0]

    def _reply(self, line: Line, said: Said) -> OutboxReply:
        entry = said.entry

        return OutboxReply(
            id=entry.message,
            agent=line.agent,
            text=said.text,
            blocks=said.blocks,
            channel=entry.channel,
            turn=entry.turn or 0,
            round=entry.round or 0,
            final=not any(isinstance(block, ToolUseBlock) for block in said.blocks),
            slot=line.slot,
            seq=said.seq,
            at_ms=entry.at_ms,
            # Not by way of the reply: the two would keep each other, and their reader, alive.
            done=partial(self._ack, line, said.seq, entry.message),
        )

    def _look(self) -> None:
        """Find out where rows changed, in whichever process."""
        store = self._runtime._store
        try:
            while changes := store.changes(self._revision):
                self._revision = changes[-1][0]
                for _, table, key in changes:
                    self._changed(table, key)
        except (RevisionPrunedError, UnreadableRecordError):
            # What changed is not known any more: everything may have.
            self._revision = store.revision()
            self._follow_all()
            for lines in self._lines.values():
                self._dirty.update(dict.fromkeys(lines))

    def _changed(self, table: str, key: Any) -> None:
        if table in ("slots", "leases"):
            for line in self._lines.get(key[0], ()):
                self._dirty.setdefault(line)
        elif table == "cursors" and key[0] == self.name:
            line = Line(key[1], key[2])
            if line in self._stuck:
                self._dirty.setdefault(line)
        elif table in ("agents", "sharers"):
            changed = line_of(self._runtime._store, table, key)
            if changed is not None and self.agent in (None, changed.agent):
                self._follow(changed)

    def _follow_all(self) -> None:
        for line in read_lines(self._runtime._store, self.agent):
            self._follow(line)

    def _follow(self, line: Line) -> None:
        lines = self._lines.setdefault(line.slot, [])
        if line not in lines:
            lines.append(line)
            self._dirty.setdefault(line)

    def _is_over(self) -> bool:
        """Whether the one agent it is of has ended, so that nothing comes any more."""
        if self.agent is None or self.agent in self._runtime._members:
            return False
        row = self._runtime._store.get("agents", (self.agent,))
        return row is not None and row.record.ended_ms is not None

    # -- beginning and end -------------------------------------------------------------------

    async def _enter(self) -> None:
        runtime, store, name = self._runtime, self._runtime._store, self.name
        if self._guard is not None:
            raise busy(name)
        runtime._check_open()
        if self.agent is not None and store.get("agents", (self.agent,)) is None:
            raise UnknownAgentError(
                f"no agent {self.agent!r} was ever added; nothing was done; add it first",
                agent=self.agent,
            )
        with runtime._lifetime.answers(), runtime._outboxes.opening(name, self._token):
            guard = await runtime._outboxes.own(name)
            row = store.get("outboxes", (name,))
            if row is not None and row.record.agent != self.agent:
                said = "all agents" if row.record.agent is None else f"agent {row.record.agent!r}"
                raise InvalidInputError(
                    "agent", f"the outbox {name!r} is of {said}; read it as that, or remove it"
                )
            if row is None:
                await self._begin_anew(guard)
            self._revision = store.revision()
            self._reads.clear()
            self._dirty.clear()
            self._lines.clear()
            self._guard, self._was_entered = guard, True
            self._follow_all()

    async def _begin_anew(self, guard: Guard) -> None:
        """Record where it begins. Until the last commit of it there is no outbox."""
        runtime, store, name = self._runtime, self._runtime._store, self.name
        await runtime._outboxes.clear(name, guard)
        now_ms, puts = runtime.clock.now_ms(), list[Put]()
        if self._begin == "now":
            puts = cursors_at_end(store, name, read_lines(store, self.agent), now_ms)
        elif self._begin != "first":
            assert self.agent is not None
            agent = store.get("agents", (self.agent,))
            assert agent is not None
            line = Line(agent.record.slot, self.agent)
            place = await place_after(store, line.slot, self._begin)
            puts = [cursor_at(name, line, place, None, now_ms)]
        record = OutboxRecord(agent=self.agent, begun_ms=now_ms)
        puts.append(Put("outboxes", (name,), encode(record)))
        with trio.CancelScope(shield=True):
            for request in requests_of(guard, store, puts):
                await self._commit(request)

    def _leave(self) -> None:
        self._guard = None
        self._runtime._outboxes.closed(self.name, self._token)

    async def _commit(self, request: Request) -> None:
        if await self._runtime._outboxes.commit(request):
            return
        self._leave()
        raise self._lost("another process has taken it over")

    def _lost(self, why: str) -> OutboxLostError:
        return OutboxLostError(
            f"outbox {self.name!r} is not read here any more: {why}; nothing was stored, and what "
            "was not acknowledged is given again; open it anew",
            name=self.name,
        )


def check_outbox(name: object, agent: object, begin: object) -> None:
    """Check what names an outbox and where it begins.

    Raises:
        InvalidNameError, InvalidInputError: Names the argument.
    """
    check_name(name, "name")
    if agent is not None:
        check_name(agent, "agent")
    elif begin not in ("now", "first"):
        raise InvalidInputError(
            "begin", "must be 'now' or 'first' where the outbox is of all agents"
        )
