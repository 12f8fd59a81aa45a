"""One life of the matrix's host: a turn, and messages of all kinds that arrive meanwhile.

It is played in virtual time, on a real store. What survives it is written as it happens, each line
in one `write`: the wire log (`wire.jsonl`, as the simulator's), receipts (`acks.jsonl`), and before
which request a compile may begin that the wire does not show (`fresh.jsonl`). What the sender has
no receipt for it sends again in the next life, in the same order, under the same id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from abeyance.actors import AgentHandle, AgentSpec, Runtime, Tool, open_runtime
from abeyance.actors.core.errors import ChildStartError
from abeyance.actors.domain.errors import MessageReadError, NotStoredError, QuiescedError
from abeyance.actors.domain.transcript import read_transcript
from abeyance.actors.providers.port import ModelReply, ModelRequest, OnDelta
from abeyance.actors.testing import Faults, ScriptedProvider, WallClock, fail, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage import lmdb_store
from abeyance.storage.store import Limits
from abeyance.storage.tables.blocks import ThinkingBlock, ToolUseBlock

from .deaths import Hits
from .sent import ANA, CHANGED, SINGLES, Part, Retraction, addressee, stages

SMALL_OPS = 128
CALLS_A_LIFE = 10_000
LIFE_MS = 86_400_000
"""Between the beginnings of two lives, so that what a life waited for is over in the next."""
SCHEMA = {"type": "object", "properties": {}}
CALLS = ("c1", "c2", "c3")
"""The calls of the turn that is told apart; each is in one reply of its script."""


@dataclass(frozen=True)
class Setting:
    """What a life is told."""

    directory: Path
    variant: str
    number: int
    """The life's, from 1."""
    fault: str = ""
    """`point NAME N`, `step|slice N`, `kill ACTOR step|commit|slice N`, `refuse N`; nothing:
    undisturbed."""


@dataclass
class Report:
    """What a life says when it ends by itself."""

    problems: list[str] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    """How often each point was passed; `step` and `commit` among them."""
    rows: list[Any] = field(default_factory=list)
    """The transcript, whole."""
    states: dict[str, str] = field(default_factory=dict)
    """What became of the messages of `CHANGED`."""
    answered: list[int] = field(default_factory=list)
    """The entries of the wakes that turns answered."""
    left: dict[str, int] = field(default_factory=dict)
    """How many rows there are of what a host at rest leaves nothing of."""
    letters: list[str] = field(default_factory=list)
    """What the dead letters say, of a host whose agents leave."""
    edits: list[tuple[str, bool]] = field(default_factory=list)
    """Of which message each edit is that is kept, and whether it was undone."""
    cancelled: list[int] = field(default_factory=list)
    """Those of `answered` whose turn was cancelled."""
    model: str = ""
    """Which model the agent asks, where it was chosen."""
    agents: dict[str, str] = field(default_factory=dict)
    """Under which name whom messages are sent to speaks, where it is another."""


# -- the life ------------------------------------------------------------------------------------


class Life:
    """A turn of one agent; what is of a variant alone is in `lives`."""

    agent_name = slot_name = ANA
    others: dict[str, tuple[str, ...]] = {}

    def __init__(self, setting: Setting, report: Report) -> None:
        self.setting = setting
        self.fault = setting.fault
        self.report = report
        self.hits: dict[str, int] = {}
        self.stages = stages(setting.variant)
        self.handles: dict[str, AgentHandle] = {}
        """Whom messages are sent to, by `addressee`."""
        self.runtime: Runtime | None = None
        self.faults = Faults(seed=1)
        self.nursery: trio.Nursery
        self._acks = Lines(setting.directory / "acks.jsonl")
        self.last_number = setting.number * CALLS_A_LIFE
        """Of the last call, in all lives."""
        self._acked = {ack["id"] for ack in self._acks.read()}
        self._asks: trio.MemorySendChannel[tuple[Callable[..., Any], trio.Event]]

    @property
    def serving(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime

    async def run(self) -> None:
        setting = self.setting
        if setting.variant == "small":
            payload = lmdb_store.LIMITS.payload_bytes_max
            lmdb_store.LIMITS = Limits(SMALL_OPS, payload)  # type: ignore[misc]
        hits = Hits(self)
        clock = WallClock(1_700_000_000_000 + setting.number * LIFE_MS, follow_trio=True)
        state = setting.directory / "state"
        async with open_runtime(state, clock=clock, control=False, faults=self.faults) as runtime:
            self.runtime = runtime
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                self._asks, asked = trio.open_memory_channel(100)
                nursery.start_soon(self._serve, asked)
                await self.begin(clock)
                # A life that a quiesce outlived serves again first.
                await self._resume()
                await self.course()
                await self.look()
                self._asks.close()
        hits.done()
        self.report.hits = self.hits

    async def begin(self, clock: WallClock) -> None:
        """Add whoever messages are sent to."""
        await self.add(ANA, clock, self.step)

    async def add(
        self, name: str, clock: WallClock, step: Callable[[ModelRequest], Step], **how: Any
    ) -> None:
        provider = _Provider(self, name, clock, step)
        spec = AgentSpec(name=name, provider=provider, model="m", tools=self.tools(), **how)
        self.handles[name] = await until_stored(partial(self.serving.add_agent, spec))

    async def course(self) -> None:
        """Everything that is sent from outside of the turns."""
        await self.arrive(0)
        await self.rest()
        await self.arrive(len(self.stages) - 2)
        await self.rest()
        await self.arrive(len(self.stages) - 1)
        await self.rest()

    async def rest(self) -> None:
        """Until nothing is to do, holds included: virtual time jumps over them."""
        while True:
            for handle in self.handles.values():
                await handle.wait_idle()
            if all(state.state == "idle" for state in self.serving.status().agents):
                return
            await trio.sleep(600)

    async def _serve(self, asked: trio.MemoryReceiveChannel[Any]) -> None:
        """Do what calls and tools ask for, outside of their turn, in order."""
        async for act, done in asked:
            await act()
            done.set()

    async def outside(self, act: Callable[..., Any]) -> None:
        done = trio.Event()
        await self._asks.send((act, done))
        await done.wait()

    def spawn(self, act: Callable[..., Any], *args: Any) -> None:
        """Do something beside the turn that asks for it, and not as a part of it."""

        async def start() -> None:
            self.nursery.start_soon(act, *args)

        self._asks.send_nowait((start, trio.Event()))

    async def arrive(self, stage: int) -> None:
        """Send what arrives by then and has no receipt yet, in order, and wait for the receipts."""

        async def send() -> None:
            for parts in self.stages[: stage + 1]:
                if self.setting.variant == "small" and len(parts) > SINGLES:
                    async with trio.open_nursery() as nursery:
                        for part in parts:
                            nursery.start_soon(self.send, part)
                            await trio.lowlevel.checkpoint()
                    continue
                for part in parts:
                    await self.send(part)

        await self.outside(send)

    async def send(self, part: Part) -> None:
        if isinstance(part, Retraction):
            with suppress(MessageReadError):
                await until_stored(partial(self.handles[ANA].retract, part.id))
            return
        if {draft.id for draft in part} <= self._acked:
            return
        to = self.handles[addressee(part[0].id or "")]
        if len(part) > 1:
            receipts = await until_stored(partial(to.send_many, part))
        else:
            (draft,) = part
            send = partial(to.send, draft.content, draft.author, id=draft.id)
            how = {"wake": draft.wake, "subject": draft.subject, "joins": draft.joins}
            receipts = [await until_stored(partial(send, **how))]
        for receipt in receipts:
            self._acked.add(receipt.id)
        self._acks.write(*({"id": receipt.id, "seq": receipt.seq} for receipt in receipts))

    # -- a turn ------------------------------------------------------------------------------

    def step(self, request: ModelRequest) -> Step:
        """What a call comes to, told from what it carries: a turn goes on in the next life."""
        uses = calls_in(request)
        if uses == 0:
            return Arrives(self, 1, reply(THOUGHT, "Moving", use("c1"), use("c2", "slow")))
        if uses == 2:
            return Arrives(self, 3, reply(use("c3", "wait")))
        if self.setting.variant in ("held", "edited") and self.first("limited"):
            return Arrives(self, 5, fail(429, retry_after=3_600))
        return Arrives(self, 5, reply("Done"))

    def first(self, name: str) -> bool:
        """Whether this is so for the first time in all lives."""
        path = self.setting.directory / name
        if path.exists():
            return False
        path.touch()
        return True

    def tools(self) -> list[Tool]:
        async def look() -> str:
            await self.arrive(2)
            return "seen"

        def slow() -> str:
            return "slow"

        async def wait() -> str:
            if self.setting.variant == "quiesced" and self.first("quiesced"):
                await self.outside(self._quiesce)
            await self.arrive(4)
            return "waited"

        bodies: dict[str, Callable[[], Any]] = {"look": look, "slow": slow, "wait": wait}
        return [
            Tool(name=name, description=name, input_schema=SCHEMA, run=run, in_doubt="retry")
            for name, run in bodies.items()
        ]

    async def _quiesce(self) -> None:
        Lines(self.setting.directory / "fresh.jsonl").write({"behind": self.last_number})
        with suppress(QuiescedError):
            await until_stored(partial(self.serving.quiesce, "the matrix", within_s=0))
        for parts in self.stages[3:5]:
            for part in parts:
                await self.send(part)
        await self._resume()

    async def _resume(self) -> None:
        if self.serving.status().mode != "serving":
            await until_stored(self.serving.resume)

    async def look(self) -> None:
        """What a host at rest leaves nothing of, what its turns answered, and what it holds."""
        report, turns, store = self.report, self.rows("turns"), self.serving._store
        for table in ("wakes", "inbox", "dead_letters", "quarantine"):
            report.left[table] = len(self.rows(table))
        heads = self.rows("heads")
        report.left["open turns"] = sum(head.open_turn is not None for head in heads)
        report.left["open pairs"] = sum(head.open_pair is not None for head in heads)
        report.left["leases"] = sum(lease.turn is not None for lease in self.rows("leases"))
        bad: tuple[str, ...] = ("failed", "cancelled")
        if self.setting.variant in ("quiesced", "leaving", "decided"):
            # A quiesce cancels the turn that it cuts off; so do a removal and an operator.
            bad = ("failed",)
        report.left["turns that did not end well"] = sum(turn.state in bad for turn in turns)
        for turn in turns:
            if turn.slot == self.slot_name:
                report.answered += turn.answers
                report.cancelled += turn.answers if turn.state == "cancelled" else ()
        report.rows = [row async for row in read_transcript(store, self.slot_name)]
        for name in CHANGED:
            if ANA in self.handles:
                report.states[name] = (await self.handles[ANA].receipt(name)).state

    def rows(self, table: str) -> list[Any]:
        found: list[Any] = [row for _, row in self.serving._store.scan(table, ())]
        return [row.record for row in found]


async def until_stored(act: Callable[[], Any]) -> Any:
    """The same again, as a host does whose store refused a write, or whose agent did not start."""
    while True:
        try:
            return await act()
        except (NotStoredError, ChildStartError):
            await trio.lowlevel.checkpoint()


THOUGHT = ThinkingBlock(thinking="hm", signature="signed")


def calls_in(request: ModelRequest, calls: Sequence[str] = CALLS) -> int:
    """How many of some calls a request carries."""
    blocks = [block for message in request.messages for block in message.blocks]
    return sum(isinstance(block, ToolUseBlock) and block.id in calls for block in blocks)


def use(call: str, name: str = "look") -> ToolUseBlock:
    return ToolUseBlock(id=call, name=name, input={})


@dataclass(frozen=True)
class Arrives:
    """A step during which something arrives."""

    life: Life
    stage: int
    then: Step

    async def play(self, call: Any) -> ModelReply:
        # Whatever is sent at rest comes at rest.
        await self.life.arrive(min(self.stage, len(self.life.stages) - 2))
        return await self.then.play(call)


class _Provider(ScriptedProvider):
    """Writes what it was asked and what it answered where its host's death does not reach."""

    def __init__(
        self, life: Life, agent: str, clock: WallClock, step: Callable[[ModelRequest], Step]
    ) -> None:
        super().__init__(step, clock=clock)
        self._life = life
        self._agent = agent
        self._log = Lines(life.setting.directory / "wire.jsonl")

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        self._life.last_number += 1
        number = self._life.last_number
        messages = [
            {"role": message.role, "content": msgspec.to_builtins(message.blocks)}
            for message in request.messages
        ]
        self._log.write(
            {
                "event": "received",
                "number": number,
                "at_ms": 0,
                "path": "/v1/messages",
                "headers": {},
                "request": {"model": self._agent, "messages": messages},
            }
        )
        answer: ModelReply | None = None
        try:
            answer = await super().call(request, on_delta)
            return answer
        finally:
            content = None if answer is None else {"content": msgspec.to_builtins(answer.blocks)}
            self._log.write(
                {
                    "event": "replied",
                    "number": number,
                    "at_ms": 0,
                    "status": 200 if answer is not None else 429,
                    "reply": content,
                    "finished": answer is not None,
                }
            )


class Lines:
    """A file of JSON lines: what was written is there, whatever becomes of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, *lines: dict[str, Any]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self._path.open("ab", buffering=0) as stream:
            stream.write(text.encode())

    def read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]
