"""The variants of a life that need one of their own, and how any of them is played, in a fork."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from abeyance.actors import Conversation, Tool
from abeyance.actors.domain.errors import (
    AgentEndedError,
    EditRefusedError,
    UnknownAgentError,
    UnknownMessageError,
)
from abeyance.actors.providers.port import ModelReply, ModelRequest
from abeyance.actors.testing import HostClock, WallClock, reply
from abeyance.actors.testing.scripted import Step
from abeyance.actors.testing.witness import witnessed

from .decided import Decided
from .life import SCHEMA, Arrives, Life, Lines, Report, Setting, calls_in, until_stored, use
from .sent import ACTS, ANA, BO, Act, Part, addressee

CHANNEL: Final = "c"


class _WithPairs(Life):
    """An operator runs a tool on the idle slot, and one behind a live turn.

    Messages arrive while their bodies run. An operator that has no receipt asks again in the next
    life: `asks.jsonl` has a line an ask, `ran.jsonl` one a run of a body, `pairs.jsonl` a receipt.
    """

    def tools(self) -> list[Tool]:
        async def lift(op: str) -> str:
            Lines(self.setting.directory / "ran.jsonl").write({"op": op})
            # It is the operator's own call that messages come in, not a turn's.
            await self.arrive(0 if op == "op1" else len(self.stages) - 2)
            return f"lifted {op}"

        schema = {"type": "object", "properties": {"op": {"type": "string"}}}
        lifts = Tool(name="lift", description="lift", input_schema=schema, run=lift)
        return [*super().tools(), lifts]

    def step(self, request: ModelRequest) -> Step:
        if calls_in(request) == 2:
            self._ask_soon()
        return super().step(request)

    def _ask_soon(self) -> None:
        if not self._asked:
            self._asked = True
            self.spawn(self._pair, "op2")

    _asked = False

    async def course(self) -> None:
        self._done = trio.Event()
        await self._pair("op1")
        await self.arrive(0)
        await self.rest()
        self._ask_soon()  # A life whose turn was over by then.
        await self._done.wait()
        await super().course()

    async def _pair(self, op: str) -> None:
        asks, receipts = (
            Lines(self.setting.directory / f"{name}.jsonl") for name in ("asks", "pairs")
        )
        if op not in {line["op"] for line in receipts.read()}:

            async def ask() -> Any:
                asks.write({"op": op})
                return await self.handles[ANA].run_tool("lift", {"op": op}, requester="ops")

            receipt = await until_stored(ask)
            receipts.write({"op": op, "call": receipt.call_id, "text": receipt.text})
        if op == "op2":
            self._done.set()


class _Shared(Life):
    """Two agents in one slot; messages to both arrive in the turns of either."""

    slot_name = "room"
    others = {"other": (f"agent:{BO}",)}

    async def begin(self, clock: WallClock) -> None:
        await self.add(ANA, clock, self.step, slot=self.slot_name)
        await self.add(BO, clock, self.step_of_bo, slot=self.slot_name)

    def step_of_bo(self, request: ModelRequest) -> Step:
        if calls_in(request, ("d1",)) == 0:
            return Arrives(self, 1, reply("Looking", use("d1", "peek")))
        return Arrives(self, 4, reply("I see"))

    def tools(self) -> list[Tool]:
        async def peek() -> str:
            await self.arrive(3)
            return "peeked"

        peeks = Tool(
            name="peek", description="peek", input_schema=SCHEMA, run=peek, in_doubt="retry"
        )
        return [*super().tools(), peeks]


class _Gone(Life):
    """Who leaves is sent nothing any more, and what was refused for that has no receipt."""

    async def send(self, part: Part) -> None:
        with suppress(UnknownAgentError, AgentEndedError):
            await super().send(part)

    async def look(self) -> None:
        self.handles = {
            name: handle for name, handle in self.handles.items() if handle.name in self._members
        }
        await super().look()
        self.report.left.pop("dead_letters")
        self.report.agents = {ANA: self.agent_name}
        self.report.letters = [letter.message for letter in self.rows("dead_letters")]

    @property
    def _members(self) -> Any:
        return self.serving._members


class _Leaving(_Gone, _Shared):
    """One of two agents of a slot is removed while the other's turn lives, and messages for both
    wait; then the other is, while its call is out."""

    async def begin(self, clock: WallClock) -> None:
        ended = {
            name
            for name in (ANA, BO)
            if (row := self.serving._store.get("agents", (name,))) is not None
            and row.record.ended_ms is not None
        }
        self._left = trio.Event()
        if ANA in ended:
            self._left.set()
            return
        await self.add(ANA, clock, self.step, slot=self.slot_name)
        if BO not in ended:
            await self.add(BO, clock, self.step_of_bo, slot=self.slot_name)

    async def send(self, part: Part) -> None:
        name = ANA if not isinstance(part, tuple) else addressee(part[0].id or "")
        if name in self.handles:
            await super().send(part)

    def step(self, request: ModelRequest) -> Step:
        if calls_in(request) == 3:
            return _Leaves(self)
        return super().step(request)

    def step_of_bo(self, request: ModelRequest) -> Step:
        return Arrives(self, 1, reply("I see"))

    def tools(self) -> list[Tool]:
        tools = {tool.name: tool for tool in super().tools()}

        async def slow() -> str:
            await self.outside(partial(self.remove, BO))
            return "slow"

        tools["slow"] = Tool(
            name="slow", description="slow", input_schema=SCHEMA, run=slow, in_doubt="retry"
        )
        return list(tools.values())

    async def remove(self, name: str) -> None:
        with suppress(UnknownAgentError):
            await until_stored(partial(self.serving.remove_agent, name))
        if name == ANA:
            self._left.set()

    async def course(self) -> None:
        if not self._left.is_set():
            await self.arrive(0)
            await self._left.wait()


class _Leaves:
    """A call in which everything arrives and its agent is removed; it ends by that alone."""

    def __init__(self, life: _Leaving) -> None:
        self._life = life

    async def play(self, call: Any) -> ModelReply:
        life = self._life
        await life.arrive(4)
        life.spawn(life.remove, ANA)
        life.spawn(life.arrive, len(life.stages) - 1)
        await trio.sleep_forever()
        raise AssertionError


class _Closing(_Gone):
    """A conversation is closed while its turn lives, and messages arrive until it is over."""

    async def begin(self, clock: WallClock) -> None:
        await self.add(ANA, clock, self.step)
        self.handles.clear()  # Nothing is sent to the resident.
        self._closed = trio.Event()
        self._begun = False
        row = self.serving._store.get("conversations", (ANA, CHANNEL))
        if row is not None and row.record.state == "closed":
            self.agent_name = self.slot_name = row.record.agent
            self._closed.set()
            return
        fork: Conversation = await until_stored(
            partial(self.serving.open_conversation, ANA, channel=CHANNEL)
        )
        self.agent_name = self.slot_name = fork.name
        self.handles[ANA] = self._fork = fork

    def step(self, request: ModelRequest) -> Step:
        if calls_in(request) == 3:
            self._close_soon()
        return super().step(request)

    def _close_soon(self) -> None:
        if not self._begun:
            self._begun = True
            self.spawn(self._close)

    async def _close(self) -> None:
        await until_stored(self._fork.close)
        self._closed.set()

    async def course(self) -> None:
        if not self._closed.is_set():
            await self.arrive(0)
            await self.rest()
            self._close_soon()
            await self.arrive(len(self.stages) - 1)
            await self._closed.wait()

    async def rest(self) -> None:
        with suppress(UnknownAgentError, AgentEndedError):
            await self._fork.wait_idle()


class _Edited(Life):
    """An operator edits messages that were read: while the turn is held, or at rest if it is not.

    Whoever has no receipt for an edit looks first whether it was done, as an operator would.
    """

    async def course(self) -> None:
        await self.arrive(0)
        self._done = trio.Event()
        self.spawn(self._edit_all)
        await self.rest()
        await self._done.wait()
        await super().course()

    async def _edit_all(self) -> None:
        for act in ACTS:
            await self._until_free(partial(self._edit, act))
        self._done.set()

    async def _until_free(self, act: Callable[[], Any]) -> None:
        """The same again where a turn lives: it is held, or over, in a while."""
        while True:
            try:
                await until_stored(act)
                return
            except EditRefusedError as refused:
                if refused.reason not in ("leased", "asked"):
                    raise
                await trio.sleep(60)

    async def _edit(self, act: Act) -> None:
        ana, done = self.handles[ANA], self._done_of(act)
        if done is None:
            with suppress(UnknownMessageError):  # It was done, and nobody lived to say so.
                await ana.edit(act.message, act.words, requester="ops")
            done = self._done_of(act)
        assert done is not None
        if act.undone and done.undone_ms is None:
            await ana.undo_edit(done.edit, requester="ops")

    def _done_of(self, act: Act) -> Any:
        return next((edit for edit in self.handles[ANA].edits() if edit.id == act.message), None)

    async def look(self) -> None:
        await super().look()
        self.report.edits = [
            (edit.id, edit.undone_ms is not None) for edit in self.handles[ANA].edits()
        ]


LIVES: Final[dict[str, type[Life]]] = {
    "decided": Decided,
    "pairs": _WithPairs,
    "shared": _Shared,
    "leaving": _Leaving,
    "closing": _Closing,
    "edited": _Edited,
}


def play(setting: Setting) -> Report:
    """Live one life in this process."""
    report = Report()
    with witnessed() as witness:
        life = LIVES.get(setting.variant, Life)(setting, report)
        trio.run(life.run, clock=HostClock())
        report.problems += witness.problems()
    return report


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
