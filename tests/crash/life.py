"""One life of the matrix's host: a turn, and messages of all kinds that arrive meanwhile.

It is played in a fork, in virtual time, on a real store. What survives it is written as it happens,
each line in one `write`: the wire log (`wire.jsonl`, as the simulator's), receipts (`acks.jsonl`),
and before which request a compile may begin that the wire does not show (`fresh.jsonl`). What the
sender has no receipt for it sends again in the next life, in the same order, under the same id.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from abeyance.actors import AgentHandle, AgentSpec, Runtime, Tool, open_runtime
from abeyance.actors.core.errors import ChildStartError
from abeyance.actors.domain.drafts import Draft
from abeyance.actors.domain.errors import MessageReadError, NotStoredError, QuiescedError
from abeyance.actors.providers.port import ModelReply, ModelRequest, OnDelta
from abeyance.actors.testing import Faults, HostClock, ScriptedProvider, WallClock, fail, reply
from abeyance.actors.testing.scripted import Step
from abeyance.actors.testing.witness import witnessed
from abeyance.storage import crashpoints, lmdb_store
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Limits
from abeyance.storage.tables.blocks import ThinkingBlock, ToolUseBlock

ANA = "ana"
ACTORS = ("agent", "slot", "gate", "journal", "ledger", "group")
"""What is killed; a group is its agent, its gate and its slot at the same instant."""
BIG = 2_101
SMALL_OPS = 128
SINGLES = 150
CALLS_A_LIFE = 10_000
LIFE_MS = 86_400_000
"""Between the beginnings of two lives, so that what a life waited for is over in the next."""
SCHEMA = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Setting:
    """What a life is told."""

    directory: Path
    variant: str
    number: int
    """The life's, from 1."""
    fault: str = ""
    """`point NAME N`, `step N`, `kill ACTOR step|commit N`, `refuse N`; nothing: undisturbed."""


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


def play(setting: Setting) -> Report:
    """Live one life in this process."""
    report = Report()
    with witnessed() as witness:
        trio.run(_Life(setting, report).run, clock=HostClock())
        report.problems += witness.problems()
    return report


# -- what is sent --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retraction:
    """A message is taken back, if nobody read it yet."""

    id: str


Part = tuple[Draft, ...] | Retraction
"""What one commit does: takes a message or a batch, or gives a message back."""


def one(name: str, author: str = "user", **how: Any) -> tuple[Draft, ...]:
    return (Draft(f"says {name}", author, id=name, **how),)


def batch(name: str, size: int) -> tuple[Draft, ...]:
    return tuple(Draft(f"says {name}{n}", id=f"{name}{n}", wake=n % 100 == 0) for n in range(size))


def _stages(variant: str) -> tuple[tuple[Part, ...], ...]:
    """What arrives when: idle, in call 1, its tools, call 2, its tool, call 3, and at rest."""
    many: tuple[Part, ...] = (batch("b", 3),)
    if variant == "big":
        many = (batch("b", BIG),)
    elif variant == "small":
        many = tuple((draft,) for draft in batch("b", SINGLES))
    return (
        (one("go"),),
        (one("p1"), one("f1", "bot", wake=False)),
        many,
        (one("p2"), batch("c", 2)),
        (one("own1", "ANA"), one("p3"), one("own2", "ana"), *many_behind(variant), *_CHANGES),
        (one("p4"), one("f2", "bot", wake=False)),
        (one("last"),),
    )


_CHANGES: tuple[Part, ...] = (
    one("s1", subject="weather"),
    one("r1"),
    one("s2", subject="weather"),
    Retraction("r1"),
    one("j1", joins=False),
)
"""One that a newer message replaces, and one that is taken back, unless they were read by then."""
CHANGED = {"s1": "replaced", "r1": "retracted"}
"""What becomes of them where they were not read."""


def many_behind(variant: str) -> tuple[Part, ...]:
    if variant == "small":
        return tuple((draft,) for draft in batch("d", SINGLES))
    return (batch("d", 4), one("f3", "bot", wake=False))


def drafts_of(variant: str) -> list[Draft]:
    """Everything that is sent, in order."""
    parts = [part for stage in _stages(variant) for part in stage]
    return [draft for part in parts if not isinstance(part, Retraction) for draft in part]


# -- the life ------------------------------------------------------------------------------------


class _Life:
    def __init__(self, setting: Setting, report: Report) -> None:
        self.setting = setting
        self.report = report
        self.stages = _stages(setting.variant)
        self.agent: AgentHandle
        self.runtime: Runtime | None = None
        self.faults = Faults(seed=1)
        self._acks = _Lines(setting.directory / "acks.jsonl")
        self.last_number = setting.number * CALLS_A_LIFE
        """Of the last call, in all lives."""
        self._acked = {ack["id"] for ack in self._acks.read()}
        self._asks: trio.MemorySendChannel[tuple[Callable[..., Any], trio.Event]]

    async def run(self) -> None:
        setting = self.setting
        if setting.variant == "small":
            payload = lmdb_store.LIMITS.payload_bytes_max
            lmdb_store.LIMITS = Limits(SMALL_OPS, payload)  # type: ignore[misc]
        hits = _Hits(self)
        clock = WallClock(1_700_000_000_000 + setting.number * LIFE_MS, follow_trio=True)
        state = setting.directory / "state"
        async with open_runtime(state, clock=clock, control=False, faults=self.faults) as runtime:
            self.runtime = runtime
            provider = _Provider(self, clock)
            async with trio.open_nursery() as nursery:
                self._asks, asked = trio.open_memory_channel(100)
                nursery.start_soon(self._serve, asked)
                spec = AgentSpec(name=ANA, provider=provider, model="m", tools=self._tools())
                self.agent = await _until_stored(partial(runtime.add_agent, spec))
                # A life that a quiesce outlived serves again first.
                await self._resume()
                await self.arrive(0)
                await self._rest()
                await self.arrive(len(self.stages) - 2)
                await self._rest()
                await self.arrive(len(self.stages) - 1)
                await self._rest()
                self._look(runtime)
                self.report.rows = [row async for row in self.agent.transcript()]
                for name in CHANGED:
                    self.report.states[name] = (await self.agent.receipt(name)).state
                self._asks.close()
        hits.done()

    async def _rest(self) -> None:
        """Until nothing is to do, holds included: virtual time jumps over them."""
        while True:
            await self.agent.wait_idle()
            assert self.runtime is not None
            (state,) = self.runtime.status().agents
            if state.state == "idle":
                return
            await trio.sleep(600)

    async def _serve(self, asked: trio.MemoryReceiveChannel[Any]) -> None:
        """Do what calls and tools ask for, outside of their turn, in order."""
        async for act, done in asked:
            await act()
            done.set()

    async def _outside(self, act: Callable[..., Any]) -> None:
        done = trio.Event()
        await self._asks.send((act, done))
        await done.wait()

    async def arrive(self, stage: int) -> None:
        """Send what arrives by then and has no receipt yet, in order, and wait for the receipts."""

        async def send() -> None:
            for parts in self.stages[: stage + 1]:
                if self.setting.variant == "small" and len(parts) > SINGLES:
                    async with trio.open_nursery() as nursery:
                        for part in parts:
                            nursery.start_soon(self._send, part)
                            await trio.lowlevel.checkpoint()
                    continue
                for part in parts:
                    await self._send(part)

        await self._outside(send)

    async def _send(self, part: Part) -> None:
        if isinstance(part, Retraction):
            with suppress(MessageReadError):
                await _until_stored(partial(self.agent.retract, part.id))
            return
        if {draft.id for draft in part} <= self._acked:
            return
        if len(part) > 1:
            receipts = await _until_stored(partial(self.agent.send_many, part))
        else:
            (draft,) = part
            send = partial(self.agent.send, draft.content, draft.author, id=draft.id)
            how = {"wake": draft.wake, "subject": draft.subject, "joins": draft.joins}
            receipts = [await _until_stored(partial(send, **how))]
        for receipt in receipts:
            self._acked.add(receipt.id)
        self._acks.write(*({"id": receipt.id, "seq": receipt.seq} for receipt in receipts))

    # -- a turn ------------------------------------------------------------------------------

    def step(self, request: ModelRequest) -> Step:
        """What a call comes to, told from what it carries: a turn goes on in the next life."""
        uses = sum(isinstance(b, ToolUseBlock) for m in request.messages for b in m.blocks)
        if uses == 0:
            return _Arrives(self, 1, reply(_THOUGHT, "Moving", _use("c1"), _use("c2", "slow")))
        if uses == 2:
            return _Arrives(self, 3, reply(_use("c3", "wait")))
        if self.setting.variant == "held" and self._first("limited"):
            return _Arrives(self, 5, fail(429, retry_after=3_600))
        return _Arrives(self, 5, reply("Done"))

    def _first(self, name: str) -> bool:
        """Whether this is so for the first time in all lives."""
        path = self.setting.directory / name
        if path.exists():
            return False
        path.touch()
        return True

    def _tools(self) -> list[Tool]:
        async def look() -> str:
            await self.arrive(2)
            return "seen"

        def slow() -> str:
            return "slow"

        async def wait() -> str:
            if self.setting.variant == "quiesced" and self._first("quiesced"):
                await self._outside(self._quiesce)
            await self.arrive(4)
            return "waited"

        bodies: dict[str, Callable[[], Any]] = {"look": look, "slow": slow, "wait": wait}
        return [
            Tool(name=name, description=name, input_schema=SCHEMA, run=run, in_doubt="retry")
            for name, run in bodies.items()
        ]

    async def _quiesce(self) -> None:
        _Lines(self.setting.directory / "fresh.jsonl").write({"behind": self.last_number})
        assert self.runtime is not None
        with suppress(QuiescedError):
            await _until_stored(partial(self.runtime.quiesce, "the matrix", within_s=0))
        for parts in self.stages[3:5]:
            for part in parts:
                await self._send(part)
        await self._resume()

    async def _resume(self) -> None:
        assert self.runtime is not None
        if self.runtime.status().mode != "serving":
            await _until_stored(self.runtime.resume)

    def _look(self, runtime: Runtime) -> None:
        """What a host at rest leaves nothing of, and what its turns answered."""

        def rows(table: str) -> list[Any]:
            found: list[Any] = [row for _, row in runtime._store.scan(table, ())]
            return [row.record for row in found]

        report, turns = self.report, rows("turns")
        for table in ("wakes", "inbox", "dead_letters", "quarantine"):
            report.left[table] = len(rows(table))
        report.left["open turns"] = sum(head.open_turn is not None for head in rows("heads"))
        report.left["leases"] = sum(lease.turn is not None for lease in rows("leases"))
        # A quiesce cancels the turn that it cuts off.
        bad = ("failed",) if self.setting.variant == "quiesced" else ("failed", "cancelled")
        report.left["turns that did not end well"] = sum(turn.state in bad for turn in turns)
        report.answered = [entry for turn in turns for entry in turn.answers]


async def _until_stored(act: Callable[[], Any]) -> Any:
    """The same again, as a host does whose store refused a write, or whose agent did not start."""
    while True:
        try:
            return await act()
        except (NotStoredError, ChildStartError):
            await trio.lowlevel.checkpoint()


_THOUGHT = ThinkingBlock(thinking="hm", signature="signed")


def _use(call: str, name: str = "look") -> ToolUseBlock:
    return ToolUseBlock(id=call, name=name, input={})


@dataclass(frozen=True)
class _Arrives:
    """A step during which something arrives."""

    life: _Life
    stage: int
    then: Step

    async def play(self, call: Any) -> ModelReply:
        if self.stage < 5:
            await self.life.arrive(self.stage)
        else:
            # Whatever is sent at rest comes at rest; the tool's stage may not be over.
            await self.life.arrive(min(self.stage, len(self.life.stages) - 2))
        return await self.then.play(call)


class _Provider(ScriptedProvider):
    """Writes what it was asked and what it answered where its host's death does not reach."""

    def __init__(self, life: _Life, clock: WallClock) -> None:
        super().__init__(life.step, clock=clock)
        self._life = life
        self._log = _Lines(life.setting.directory / "wire.jsonl")

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
                "request": {"model": ANA, "messages": messages},
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


class _Lines:
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


# -- deaths --------------------------------------------------------------------------------------


class _Hits(trio.abc.Instrument):
    """Counts every place where something may die, and has it die at the one that was named."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self._counted: Counter[str] = Counter()
        self._due: tuple[str, int] | None = None
        self._victim = ""
        self._token = trio.lowlevel.current_trio_token()
        match life.setting.fault.split():
            case ["point", name, nth]:
                crashpoints.arm(f"{name}:{nth}")
            case ["step", nth]:
                self._due = "step", int(nth)
            case ["kill", victim, where, nth]:
                self._due, self._victim = (where, int(nth)), victim
            case ["refuse", nth]:
                life.faults.at("before_commit", nth=int(nth)).refuse()
            case []:
                # So that every point is passed, and counted.
                crashpoints.arm("open.before_rename:1000000")
            case other:
                raise ValueError(f"no fault: {other}")
        self._watch()

    def _watch(self) -> None:
        trio.lowlevel.add_instrument(self)
        hit, submit = crashpoints._hit, LmdbStore.submit

        def counted_hit(name: str) -> None:
            self._counted[name] += 1
            hit(name)

        def counted_submit(store: LmdbStore, batch: Any, done: Any) -> None:
            submit(store, batch, done)
            self.passed("commit")

        crashpoints._hit = counted_hit
        LmdbStore.submit = counted_submit  # type: ignore[method-assign]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if _is_of_a_turn(task):
            self.passed("step")

    def passed(self, what: str) -> None:
        self._counted[what] += 1
        if self._due == (what, self._counted[what]):
            self._die()

    def _die(self) -> None:
        if not self._victim:
            os.kill(os.getpid(), signal.SIGKILL)
        # Not in the middle of the scheduler's own work.
        self._token.run_sync_soon(self._kill)

    def _kill(self) -> None:
        runtime = self._life.runtime
        if runtime is None:
            return  # It is being opened: what has a name by now is not given out yet.
        system = runtime._system
        names = {"group": ("agent", "gate", "slot")}.get(self._victim, (self._victim,))
        for name in names:
            ref = system.find(name) or system.find(f"{name}:{ANA}")
            if ref is not None:
                ref.kill("the matrix")

    def done(self) -> None:
        self._life.report.hits = dict(self._counted)


def _is_of_a_turn(task: trio.lowlevel.Task) -> bool:
    """The turn's own task, or one of those that run its tools."""
    while True:
        if task.name.startswith(f"agent:{ANA}: "):
            return True
        nursery = task.parent_nursery
        if nursery is None or nursery.parent_task is None:
            return False
        task = nursery.parent_task


def live(setting: Setting, timeout_s: float = 60.0) -> tuple[int, Report, str]:
    """Live one life in a fork.

    Returns:
        Its exit status (negative: the signal it died of), its report, and the error it ended with.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(setting, write)
    os.close(write)
    ends_at, data = time.monotonic() + timeout_s, b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while True:
            left_s = ends_at - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return 1, Report(), f"it did not come to rest within {timeout_s:.0f} s"
            part = pipe.read(65_536)
            if not part:
                break
            data += part
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    report, error = pickle.loads(data) if data else (Report(), "")
    return status, report, error


def _child(setting: Setting, write: int) -> None:
    status, report, error = 1, Report(), ""
    try:
        report = play(setting)
        status = 0
    except BaseException as problem:
        error = "".join(traceback.format_exception(problem))[-6_000:]
    finally:
        data = pickle.dumps((report, error))
        while data:
            data = data[os.write(write, data) :]
        os._exit(status)
