"""Operators' tool pairs of one agent: asked for one after the other, run, and recorded. No actor.

A part of the agent actor, as rewinds are. A pair waits for the slot's lease behind whatever turn
lives; then its body runs under the runtime, as a turn's tools do, and its result lands beside its
call. One that a death cut off is taken up by the next life of the agent, or of the process, and its
tool's policy says what becomes of a call in doubt.

Invariants:
    I1  At most one pair of an agent is under way; others wait in order.
    I2  A pair whose call is recorded comes to its end, whoever waits for it, and before any other
        is begun: none is, until the slot has said whether one is open.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio

from abeyance.actors.core import Answer, Reply
from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.errors import StorageError
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock

from .errors import AdmissionClosedError, QuiescedError
from .mode import HostMode
from .slot_messages import EndPair, PairStart, StartPair, WithdrawPair
from .turn import TurnSeams, TurnSettings

ATTEMPTS_MAX: Final = 3
"""Lives of one pair's task; past it its result is unknown, instead of a crash for ever."""


class RunTool(NamedTuple):
    """Ask an agent: run one of its tools for an operator. Answers a `PairReceipt`."""

    call: ToolUseBlock
    message: str
    by: str
    at_ms: int


class StopTool(NamedTuple):
    """Tell an agent: a pair that has not begun is not wanted any more."""

    message: str


class PairReceipt(NamedTuple):
    """A tool pair that an operator drove. Durable: call and result stand side by side."""

    id: str
    """The id of the call's message in the transcript."""
    call_id: str
    turn: int
    """Its number among the agent's turns; `tool_calls` are recorded under it."""
    text: str
    """What the tool returned, as the model will be told."""
    is_error: bool
    """Whether it failed, or its outcome is unknown."""


class Pairs:
    """What of an agent's pairs is asked for and not done.

    Args:
        ask: Asks the slot, and hands the answer to a function.
        spawn: Runs a function with an argument in a task of the agent's, and hands the answer on.
        over: Called when none is under way any more.
        refusal: Why none is begun now; None: they are.
        is_stopped: Whether one that runs is to be cut off.
    """

    def __init__(
        self,
        settings: TurnSettings,
        seams: TurnSeams,
        ask: Callable[[Any, Callable[[Answer], None]], None],
        spawn: Callable[[Callable[[Any], Any], Any, Callable[[Answer], None]], None],
        over: Callable[[], None],
        refusal: Callable[[], AbeyanceError | None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._is_stopped = is_stopped
        self._settings = settings
        self._seams = seams
        self._ask = ask
        self._spawn = spawn
        self._over = over
        self._refusal = refusal
        self._waiting: deque[tuple[RunTool, Reply | None]] = deque()
        self._now: tuple[RunTool, Reply | None] | None = None
        self._scope: trio.CancelScope | None = None
        self._started: PairStart | None = None
        self._is_known = False
        """Whether the slot has said what a death cut off."""

    @property
    def lives(self) -> bool:
        """Whether one is under way, or waits."""
        return self._now is not None or bool(self._waiting)

    @property
    def runs(self) -> bool:
        """Whether the call of one is recorded."""
        return self._started is not None

    def use(self, settings: TurnSettings) -> None:
        """Go by other settings from the next pair on."""
        self._settings = settings

    def found(self, open_pair: RunTool | None) -> None:
        """The slot has said which pair a death cut off, if any: that one is first."""
        self._is_known = True
        if open_pair is not None:
            replies = [reply for asked, reply in self._waiting if _is_same(asked, open_pair)]
            others = [each for each in self._waiting if not _is_same(each[0], open_pair)]
            self._waiting = deque([(open_pair, replies[0] if replies else None), *others])
        self._next()

    def take(self, asked: RunTool, reply: Reply) -> None:
        """A pair was asked for."""
        if self._now is not None and _is_same(self._now[0], asked):
            self._now = (self._now[0], reply)
            return
        self._waiting.append((asked, reply))
        self._next()

    def withdraw(self, message: str) -> None:
        """Its asker is gone: one that has not begun is not begun."""
        for each in [each for each in self._waiting if each[0].message == message]:
            self._waiting.remove(each)
        if self._now is not None and self._now[0].message == message and self._started is None:
            self._withdraw_now()

    def stop(self, *, running: bool) -> None:
        """Begin none any more; those that wait are refused, and the one that runs is cut off."""
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            _fail(reply, self._refused())
        if self._now is not None and self._started is None:
            self._withdraw_now()
        if running and self._scope is not None:
            self._scope.cancel()

    def fail(self, error: BaseException) -> None:
        """The agent goes on nowhere: whoever waits is told."""
        waiting = [*([] if self._now is None else [self._now]), *self._waiting]
        self._now, self._started = None, None
        self._waiting.clear()
        for _, reply in waiting:
            _fail(reply, error)

    def _withdraw_now(self) -> None:
        assert self._now is not None
        message = WithdrawPair(self._settings.name, self._now[0].message)
        self._seams.slot.tell(message)

    def _next(self) -> None:
        if self._is_known and self._now is None and self._waiting:
            self._now = self._waiting.popleft()
            asked = self._now[0]
            start = StartPair(
                agent=self._settings.name,
                call=asked.call,
                message=asked.message,
                by=asked.by,
                model=self._settings.model,
                at_ms=asked.at_ms,
            )
            self._ask(start, self._granted)

    def _granted(self, answer: Answer) -> None:
        if self._now is None:
            return
        start = answer.value if answer.error is None else None
        if isinstance(start, PairStart):
            self._started = start
            self._spawn(self._run, start, self._done)
            return
        error = answer.error
        if error is None:
            error = self._refused()
        elif not isinstance(error, AbeyanceError | StorageError):
            answer.unwrap()
        self._end(None, error)

    async def _run(self, start: PairStart) -> PairReceipt:
        runner, call = self._seams.runner, start.call
        key = (start.agent, start.turn, 1, 0)
        state: Any = "done"
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._is_stopped() or start.attempts > ATTEMPTS_MAX:
                scope.cancel()
            if not start.is_over:
                result = await runner.result(key, call, self._settings.tools.get(call.name))
        if start.is_over or scope.cancelled_caught:
            result = runner.recorded(key, call)
            state = "cancelled"
        if not start.is_over:
            end = EndPair(
                start.agent, start.turn, start.token, state, (result,), self._seams.clock.now_ms()
            )
            await self._seams.recording.until_stored(
                "the result of an operator's tool call", lambda: self._seams.slot.ask(end)
            )
        assert self._now is not None
        return _receipt(self._now[0].message, start, result)

    def _done(self, answer: Answer) -> None:
        self._scope = None
        self._end(answer.value, answer.error)

    def _end(self, receipt: PairReceipt | None, error: BaseException | None) -> None:
        now, self._now, self._started = self._now, None, None
        if now is not None and now[1] is not None:
            if error is not None:
                now[1].set_exception(error)
            else:
                now[1].set(receipt)
        self._next()
        if self._now is None:
            self._over()

    def _refused(self) -> AbeyanceError:
        name = self._settings.name
        return self._refusal() or AdmissionClosedError(
            f"agent {name!r} runs no tool now; nothing was done; ask again", agent=name
        )


def _is_same(one: RunTool, other: RunTool) -> bool:
    return one.message == other.message


def _fail(reply: Reply | None, error: BaseException) -> None:
    if reply is not None:
        reply.set_exception(error)


def _receipt(message: str, start: PairStart, result: ToolResultBlock) -> PairReceipt:
    said = "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
    return PairReceipt(message, start.call.id, start.turn, said, result.is_error)


def why_none(agent: str, mode: HostMode, *, stops: bool) -> AbeyanceError | None:
    """Why no tool is run for an operator now; None: it is."""
    if stops:
        return AdmissionClosedError(
            f"agent {agent!r} starts nothing any more; the tool was not run; run it after the "
            "next start",
            agent=agent,
        )
    if mode.is_quiesced:
        reason = mode.record.reason
        return QuiescedError(
            f"the host is quiesced ({reason}) and runs no tool; nothing was done; resume it, "
            "then ask again",
            reason=reason,
        )
    return None
