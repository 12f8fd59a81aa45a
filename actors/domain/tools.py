"""Tool calls: started, then done, in commits; and what becomes of one that was cut off.

Invariants:
    I1  A body starts only after `started` is committed, and at most once a process for each
        (agent, turn, round, call); whoever asks again joins the body that runs.
    I2  `done` is handed over as soon as the body returned, and again until it is stored.
    I3  A call that a death left started and not done is in doubt; the tool's policy decides: run it
        again, ask a reconcile function, or tell the model that the outcome is unknown.

    I4  A call whose turn is cancelled is cut off: an async body is cancelled, one in a thread is
        left alone and not waited for; the tool's policy says what is told of it.

Bodies run in the runtime's nursery, not in the turn's: a turn that ends otherwise, or whose task
dies, does not cut them off. Sync bodies run in threads with a limiter of their own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import trio
from msgspec.structs import replace

from abeyance.actors.core.asks import in_chain, in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.spans import NO_SPANS
from abeyance.actors.core.system import ActorSystem
from abeyance.actors.providers.port import ToolSchema
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Committed, Guard, Put, Refused, Request, Row, Store
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.slots import ToolCall

from .agent_limits import THREADS_MAX, AgentRoom
from .approvals import NeedsApproval
from .attachment_rows import NO_USES, Uses, read_named, uses_of
from .errors import InvalidMessageError, InvalidToolError, OwnershipLostError
from .foreign import failure_of, told
from .persistence import Recording
from .schema_check import problem_of
from .tool_results import (
    CANCELLED_TEXT,
    CUT_OFF_AGAIN_TEXT,
    CUT_OFF_TEXT,
    TIMED_OUT_TEXT,
    UNKNOWN_TEXT,
    recorded_of,
    result_of,
    told_of,
)
from .turn_spans import COMMIT, tool_span

TIME_LIMIT_S: Final = 600.0
TOOL_CHARS_MAX: Final = 1_000_000
"""Of a description, and of a schema: each request carries both."""
CUT_OFF_S: Final = 5.0
"""How long whoever cancels a turn waits for a body that was cut off, or a reconcile function."""

declare("tool.after_started", "a tool call is recorded as started and its body has not run")
declare("tool.after_body", "a tool's body returned and its result is not recorded")
declare("tool.after_done", "a tool call is recorded as done and its boundary is not")

CallKey: TypeAlias = tuple[str, int, int, int]
"""(agent, turn, round, position of the call in its reply)."""
Reconcile: TypeAlias = "Callable[[ToolContext, dict[str, Any]], Any | Awaitable[Any]]"
"""Told which call is in doubt; returns its result, or None where the outcome stays unknown."""


class ToolContext(NamedTuple):
    """Which call a tool's body runs for. `call_id` is the same whenever the call is run again."""

    agent: str
    turn: int
    round: int
    call: int

    @property
    def call_id(self) -> str:
        return f"{self.agent}/{self.turn}/{self.round}/{self.call}"


_context: ContextVar[ToolContext | None] = ContextVar("abeyance_tool_call", default=None)


def tool_context() -> ToolContext:
    """The call this code runs for, in a tool's body or a thread it started with its context.

    Raises:
        LookupError: Not inside a tool's body.
    """
    found = _context.get()
    if found is None:
        raise LookupError("no tool call runs here; call this from a tool's body")
    return found


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an agent's model may call.

    Args:
        name: 1 to 64 of letters, digits, `_` and `-`.
        description: What the model is told of it.
        input_schema: A JSON schema (2020-12) of type object, of at most 1,000,000 characters.
        run: Sync (runs in a thread) or async; called with the input's fields as keyword arguments.
            What it returns is told to the model: text and text blocks as they are, what JSON can
            say as JSON, dates and data classes included; anything else is an error. What it raises
            is told as an error, `SystemExit` and its like included; `KeyboardInterrupt` ends the
            run.
        in_doubt: What becomes of a call that a death cut off: `report` tells the model that the
            outcome is unknown, `retry` runs it again (for idempotent tools), a function is asked.
        time_limit_s: How long a turn waits for it; a later result is recorded beside the call.
        approve: Whether a person decides on each call before it is begun, and how long that may
            take; `True` is `NeedsApproval()`. See docs/approvals.md.
    Raises:
        InvalidToolError: Names the field that is malformed, as in `input_schema.properties.path`.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    run: Callable[..., Any]
    in_doubt: Literal["report", "retry"] | Reconcile = "report"
    time_limit_s: float = TIME_LIMIT_S
    approve: bool | NeedsApproval = False

    def __post_init__(self) -> None:
        _check_tool(self)

    @property
    def approval(self) -> NeedsApproval | None:
        """How its calls wait for a person; None: they do not."""
        if isinstance(self.approve, NeedsApproval):
            return self.approve
        return NeedsApproval() if self.approve else None

    def schema(self) -> ToolSchema:
        return ToolSchema(self.name, self.description, dict(self.input_schema))


def check_tools(tools: object) -> dict[str, Tool]:
    """Return the tools by name, or refuse the first that is malformed.

    Raises:
        InvalidToolError: Names the field, as in `tools[1].input_schema`.
    """
    if not isinstance(tools, (list, tuple)):
        raise InvalidToolError("tools", f"must be a list of Tool, not {type(tools).__name__}")
    found: dict[str, Tool] = {}
    for position, tool in enumerate(tools):
        field = f"tools[{position}]"
        if not isinstance(tool, Tool):
            raise InvalidToolError(field, f"must be a Tool, not {type(tool).__name__}")
        # Again: what a schema holds may have been changed since the tool was made.
        _check_schema(tool.input_schema, f"{field}.input_schema")
        if tool.name in found:
            raise InvalidToolError(f"{field}.name", f"{tool.name!r} is used by an earlier tool")
        found[tool.name] = tool
    return found


def _check_tool(tool: Tool) -> None:
    named = isinstance(tool.name, str) and 0 < len(tool.name) <= 64 and tool.name.isascii()
    if not named or not all(char.isalnum() or char in "_-" for char in tool.name):
        raise InvalidToolError("name", "must be 1 to 64 of letters, digits, '_' and '-'")
    _check_text(tool.description)
    _check_schema(tool.input_schema, "input_schema")
    if not callable(tool.run):
        raise InvalidToolError("run", "must be a function")
    if tool.in_doubt not in ("report", "retry") and not callable(tool.in_doubt):
        raise InvalidToolError("in_doubt", "must be 'report', 'retry' or a function")
    limit = tool.time_limit_s
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < 1e9:
        raise InvalidToolError("time_limit_s", "must be a positive number of seconds")
    if not isinstance(tool.approve, bool | NeedsApproval):
        raise InvalidToolError("approve", "must be True, False or a NeedsApproval")


def _check_text(description: object) -> None:
    if not isinstance(description, str):
        raise InvalidToolError("description", "must be text")
    if len(description) > TOOL_CHARS_MAX:
        raise InvalidToolError("description", f"must be at most {TOOL_CHARS_MAX:,} characters")
    try:
        description.encode()
    except UnicodeEncodeError:
        problem = "must be valid Unicode (it holds a lone surrogate)"
        raise InvalidToolError("description", problem) from None


def _check_schema(schema: object, field: str) -> None:
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise InvalidToolError(field, "must be a JSON schema of type 'object'")
    try:
        text = json.dumps(dict(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidToolError(field, f"must be JSON ({problem})") from None
    if len(text) > TOOL_CHARS_MAX:
        raise InvalidToolError(field, f"must be at most {TOOL_CHARS_MAX:,} characters")
    wrong = problem_of(schema)
    if wrong is not None:
        raise InvalidToolError(f"{field}{wrong[0]}", wrong[1])


class _Running:
    """A body that runs, for everyone who waits for it."""

    __slots__ = ("done", "is_cut", "result", "scope")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: ToolResultBlock | None = None
        self.scope = trio.CancelScope()
        """Around an async body."""
        self.is_cut = False
        """Its turn was cancelled: what has not begun is not begun."""


class ToolRunner:
    """Runs tool bodies for every agent of a runtime, and records them."""

    def __init__(
        self,
        nursery: trio.Nursery,
        store: Store,
        journal: Any,
        clock: Clock,
        system: ActorSystem | None = None,
    ) -> None:
        self._nursery = nursery
        self._system = system
        self._spans = NO_SPANS if system is None else system.spans
        self._store = store
        self._journal = journal
        self._clock = clock
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        self._running: dict[CallKey, _Running] = {}
        self._guards: dict[str, Guard] = {}
        self._rooms: dict[str, AgentRoom] = {}
        self._recordings: dict[str, Recording] = {}

    @property
    def running(self) -> int:
        """How many bodies run."""
        return len(self._running)

    def own(self, agent: str, guard: Guard) -> None:
        """Name the owner row that every record of this agent's calls is guarded by."""
        self._guards[agent] = guard

    def limit(self, agent: str, room: AgentRoom) -> None:
        """Have this agent's functions find their threads in a room, besides everyone's."""
        self._rooms[agent] = room

    def show(self, agent: str, recording: Recording) -> None:
        """Have whoever looks at this agent see which records of its calls the store refuses."""
        self._recordings[agent] = recording

    def disown(self, agent: str) -> None:
        """The agent has ended; a body of its that still runs has nowhere to record to."""
        self._recordings.pop(agent, None)
        self._guards.pop(agent, None)
        self._rooms.pop(agent, None)

    async def ask_host(
        self, agent: str, function: Callable[..., Any], *arguments: Any, name: str
    ) -> Any:
        """Have a function of the host's say something of an agent's turn, as a tool's body runs.

        A checkpoint. Cancelled: an async function is, a plain one runs on in its thread, and nobody
        takes what it returns.

        Returns:
            What it returned; raises what it raised.
        """
        with in_role(None), in_chain(f"agent:{agent}", system=self._system):
            return await self._called(agent, function, arguments, {}, name)

    async def result(self, key: CallKey, call: ToolUseBlock, tool: Tool | None) -> ToolResultBlock:
        """What a call came to: recorded earlier, joined, taken up after a death, or run now.

        A checkpoint. Cancelled: the body goes on and its result is recorded.
        """
        running = self._running.get(key)
        if running is None:
            row = self._store.get("tool_calls", key)
            if row is not None and row.record.state != "started":
                return recorded_of(call, row.record)
            if tool is None:
                # In doubt, its tool may have gone with an earlier specification.
                text = f"There is no tool named {call.name!r}." if row is None else UNKNOWN_TEXT
                return result_of(call, text, is_error=True)
            running = self._running[key] = _Running()
            counter = 0 if row is None else row.counter
            self._nursery.start_soon(self._run, key, call, tool, counter, running)
        limit_s = TIME_LIMIT_S if tool is None else tool.time_limit_s
        with trio.move_on_after(limit_s):
            await running.done.wait()
        if running.result is not None:
            return running.result
        return await self._give_up(key, call, TIMED_OUT_TEXT.format(limit=f"{limit_s:g}"))

    def recorded(self, key: CallKey, call: ToolUseBlock) -> ToolResultBlock:
        """What is known of a call now, for a gap that is closed early. Awaits nothing."""
        row = self._store.get("tool_calls", key)
        if row is None:
            return result_of(call, CANCELLED_TEXT, is_error=True)
        if row.record.state == "started":
            return result_of(call, CUT_OFF_TEXT, is_error=True)
        return recorded_of(call, row.record)

    async def cut_off(self, key: CallKey, call: ToolUseBlock, tool: Tool | None) -> ToolResultBlock:
        """What a call came to whose turn is cancelled: recorded, or cut off by its tool's policy.

        A checkpoint, of at most `CUT_OFF_S`. Durable: on return, of a call that had begun.
        """
        running = self._running.get(key)
        if running is not None:
            running.is_cut = True
            running.scope.cancel()
            is_begun = self._store.get("tool_calls", key) is not None
            if not is_begun or tool is None or inspect.iscoroutinefunction(tool.run):
                with trio.move_on_after(CUT_OFF_S):
                    await running.done.wait()
            if running.result is not None:
                return running.result
            # It is in a thread, or does not end: what it comes to is recorded beside.
            return await self._give_up(key, call, CUT_OFF_TEXT)
        row = self._store.get("tool_calls", key)
        if row is None or row.record.state != "started":
            return self.recorded(key, call)
        # A death cut it off before its turn was cancelled.
        result, known = await self._policy(key, call, "report" if tool is None else tool.in_doubt)
        return await self._finish(key, row.counter, row.record, result, known=known)

    async def _policy(
        self, key: CallKey, call: ToolUseBlock, policy: Reconcile | str
    ) -> tuple[ToolResultBlock, bool]:
        """What is told of a call that was cut off, and whether it is known."""
        if callable(policy):
            with trio.move_on_after(CUT_OFF_S):
                return await self._reconcile(key, call, policy, CUT_OFF_TEXT)
        text = CUT_OFF_AGAIN_TEXT if policy == "retry" else CUT_OFF_TEXT
        return result_of(call, text, is_error=True), False

    async def _run(
        self, key: CallKey, call: ToolUseBlock, tool: Tool, counter: int, running: _Running
    ) -> None:
        """The life of one body. Nobody's cancellation but the runtime's ends it."""
        try:
            # A tool's body is the host's code: the table of asks is for the runtime's own actors.
            # Its agent's turn waits for it, so nothing in it may wait for that agent.
            system, span = self._system, tool_span(self._spans, call, in_doubt=counter > 0)
            with span, in_role(None), in_chain(f"agent:{key[0]}", system=system):
                result = await self._settle(key, call, tool, counter, running)
                if result.is_error:
                    span.fail("tool_error")
        except Exception as error:  # noqa: BLE001 - the model is told; the record says why.
            result = result_of(call, f"The call could not be recorded: {error}", is_error=True)
        running.result = result
        running.done.set()
        del self._running[key]

    async def _settle(
        self, key: CallKey, call: ToolUseBlock, tool: Tool, counter: int, running: _Running
    ) -> ToolResultBlock:
        started = ToolCall(
            id=call.id, name=call.name, state="started", started_ms=self._clock.now_ms()
        )
        in_doubt, known = counter > 0, True
        if not in_doubt or tool.in_doubt == "retry":
            counter = await self._start(key, counter, started)
            crashpoint("tool.after_started")
            if running.is_cut:
                result = result_of(call, CANCELLED_TEXT, is_error=True)
            else:
                result, known = await self._bounded(key, call, tool, running)
        else:
            result, known = await self._reconcile(key, call, tool.in_doubt)
        crashpoint("tool.after_body")
        result = await self._finish(key, counter, started, result, known=known)
        crashpoint("tool.after_done")
        return result

    async def _bounded(
        self, key: CallKey, call: ToolUseBlock, tool: Tool, running: _Running
    ) -> tuple[ToolResultBlock, bool]:
        """Run a body until it is done or cut off; what it came to, and whether that is known."""
        if not inspect.iscoroutinefunction(tool.run):
            return await self._body(key, call, tool.run, call.input), True
        with running.scope:
            return await self._body(key, call, tool.run, call.input), True
        return await self._policy(key, call, tool.in_doubt)

    async def _finish(
        self, key: CallKey, counter: int, started: ToolCall, result: ToolResultBlock, *, known: bool
    ) -> ToolResultBlock:
        """Record what a call came to; as what it is recorded."""
        now_ms, late = self._clock.now_ms(), None
        while True:
            result, uses = self._standing(key, result, now_ms)
            blocks = result.content or (TextBlock(text=""),)
            ended = replace(
                started,
                state="done" if known else "unknown",
                is_error=result.is_error,
                result=blocks,
                ended_ms=now_ms,
            )
            if late is not None:
                # The turn stopped waiting and told the model so; this is for whoever looks later.
                ended = replace(late.record, late=blocks)
            if await self._write(key, counter, ended, uses):
                return result
            row = self._row(key)
            if row.counter != counter:
                counter, late = row.counter, row

    def _standing(
        self, key: CallKey, result: ToolResultBlock, at_ms: int
    ) -> tuple[ToolResultBlock, Uses]:
        """A result, and what it stands on; an error in its place where that is not there."""
        try:
            named = read_named(result.content, "result")
            return result, uses_of(self._store, named, "call", key[0], key[1], at_ms)
        except (InvalidMessageError, UnreadableRecordError) as error:
            text = f"The tool returned an attachment that cannot be used: {error}"
            said = (TextBlock(text=text),)
            return replace(result, content=said, is_error=True), NO_USES

    async def _give_up(self, key: CallKey, call: ToolUseBlock, text: str) -> ToolResultBlock:
        if self._store.get("tool_calls", key) is None:
            return result_of(call, text, is_error=True)
        while True:
            row = self._row(key)
            if row.record.state != "started":
                return recorded_of(call, row.record)
            unknown = replace(
                row.record,
                state="unknown",
                is_error=True,
                result=(TextBlock(text=text),),
                ended_ms=self._clock.now_ms(),
            )
            await self._write(key, row.counter, unknown)

    def _row(self, key: CallKey) -> Row:
        row = self._store.get("tool_calls", key)
        assert row is not None, "a tool call's row is never deleted while its turn lives"
        return row

    async def _start(self, key: CallKey, counter: int, started: ToolCall) -> int:
        while not await self._write(key, counter, started):
            counter = self._row(key).counter
        return counter + 1

    async def _write(
        self, key: CallKey, counter: int, record: ToolCall, uses: Uses = NO_USES
    ) -> bool:
        """Commit one row of a call; False where it, or what it stands on, was written since it was
        read."""
        request = Request(
            guards=(self._guards[key[0]], Guard("tool_calls", key, counter), *uses.guards),
            puts=(Put("tool_calls", key, encode(record)), *uses.puts),
        )
        # While it cannot be stored the body's result stays here: it is never run again for that.
        recording = self._recordings.get(key[0]) or Recording(self._clock.now_ms)
        with self._spans(COMMIT, {"abeyance.records": "a tool call"}):
            outcome = await recording.until_stored(
                "a tool call", lambda: self._journal.ask(request)
            )
        if isinstance(outcome, Refused):
            if any(refusal.guard.table == "owners" for refusal in outcome.refusals):
                raise OwnershipLostError(
                    f"agent {key[0]!r} is owned by another process now; this tool call was not "
                    "recorded here; the new owner decides about it",
                    slot=key[0],
                )
            return False
        assert isinstance(outcome, Committed)
        return True

    async def _body(
        self, key: CallKey, call: ToolUseBlock, run: Callable[..., Any], arguments: dict[str, Any]
    ) -> ToolResultBlock:
        _context.set(ToolContext(*key))
        try:
            value = await self._called(key[0], run, (), arguments, f"tool {call.name}")
        except BaseException as error:  # noqa: BLE001 - a tool's failure is a result for the model.
            return result_of(call, told(failure_of(error)), is_error=True)
        return told_of(call, value)

    async def _called(
        self,
        agent: str,
        run: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        name: str,
    ) -> Any:
        if inspect.iscoroutinefunction(run):
            return await run(*arguments, **named)
        room = self._rooms.get(agent)
        # A thread cannot be ended. When the runtime ends it is left behind, its call in doubt, so
        # that no body can keep a runtime from closing.
        # In a tuple: trio takes a coroutine that comes out of a thread for a mistake.
        (value,) = await trio.to_thread.run_sync(
            lambda: (run(*arguments, **named),),
            limiter=self._limiter if room is None else room.threads_with(self._limiter),
            thread_name=name,
            abandon_on_cancel=True,
        )
        return await value if inspect.isawaitable(value) else value

    async def _reconcile(
        self, key: CallKey, call: ToolUseBlock, ask: Reconcile | str, unknown: str = UNKNOWN_TEXT
    ) -> tuple[ToolResultBlock, bool]:
        """The result of a call in doubt, and whether it is known."""
        if not callable(ask):
            return result_of(call, unknown, is_error=True), False
        try:
            value = ask(ToolContext(*key), call.input)
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:  # noqa: BLE001 - what could not be found out is unknown.
            text = f"{unknown} Asking failed: {told(failure_of(error))}"
            return result_of(call, text, is_error=True), False
        if value is None:
            return result_of(call, unknown, is_error=True), False
        return told_of(call, value), True
