"""A turn: from its wakes to its last reply. A task of its agent, not an actor.

It asks downwards (slot, gate) and awaits the answers; everything it must remember is committed by
the slot before it goes on, so a turn taken up after a death continues at its last recorded round.
Its provider calls are in `call`.

Invariants:
    I1  Requests grow: request k+1 is request k, the reply, the results, what the boundary injected.
    I2  An end that comes before the slot was compiled closes an open gap all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.spans import NO_SPAN, NO_SPANS, Span, Spans
from abeyance.actors.providers.port import (
    ContextTooLongError,
    ModelReply,
    ModelRequest,
    Provider,
    ProviderMessage,
)
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import InvalidRecordError, UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block, TextBlock, ToolUseBlock, attachments_in
from abeyance.storage.tables.slots import Body, Held

from .agent_limits import DEFAULT_LIMITS, AgentLimits, AgentRoom
from .alert_book import AlertDesk, FailingOf
from .approvals import denial_of
from .attachment_reading import with_attachments
from .budgets import Budget
from .call import Calls, Failed
from .context import ContextStrategy, Summary
from .context_post import ContextPost
from .episodes import failed_since
from .ingress import clean_text, kept_name, new_message_id
from .persistence import Recording
from .policy import ErrorPolicy, Pacing, ProviderHold
from .protocol import Purpose
from .render import Voices, render_all
from .slot_approvals import AskApprovals
from .slot_cancel import CANCELLED, marker_of
from .slot_messages import (
    CloseGap,
    EndTurn,
    HoldTurn,
    PlacedRow,
    Places,
    RecordRound,
    RewindReceipt,
    RewindSlot,
    SetPrompt,
    TurnStart,
)
from .slot_rows import read_content, read_placed, read_rows
from .spending import Spender
from .streaming import Showing, Stream
from .system_prompt import System, SystemPromptError, TurnInfo, decide, read_prompt
from .tool_round import ToolRound
from .tools import CallKey, Tool, ToolRunner
from .turn_spans import COMMIT, ROUND
from .usage_book import AccountUsage
from .verdict import Streak
from .views import View, read_view, size_of
from .wait_book import Deferral

ATTEMPTS_MAX: Final = 3
"""Lives of one turn's task; past it the turn fails with a marker instead of crashing for ever."""
DIED: Final = "turn_died"
"""The failure of a turn whose task died too often."""
MARKER_CHARS_MAX: Final = 500
NOTHING_MARKER: Final = "a rewind took out what this turn was to answer; it made no call"
_TAKE_SPENT: Final = (RecordRound, HoldTurn, EndTurn)
_RECORDS: Final = {
    SetPrompt: "the system prompt of its turn",
    RecordRound: "a reply",
    AskApprovals: "calls that a person is to decide on",
    CloseGap: "the results of tools",
    HoldTurn: "the hold of its turn",
    EndTurn: "the end of its turn",
}
"""What a commit records, in words for whoever looks while the store refuses it."""
ROWS_A_SLICE: Final = 64
"""Rows read before the loop gets a turn."""

declare("turn.after_reply", "a reply arrived and is not recorded")
declare("turn.after_round", "a reply is recorded and nothing of it was acted on")
declare("turn.after_hold", "a turn is held")
declare("turn.after_too_long", "a request was too long, and its turn is not held for that yet")
declare("turn.before_prompt", "a function said a turn's system prompt, and it is not stored")
declare("turn.after_prompt", "a turn's system prompt is stored, and no call carried it")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """What the agent's specification says of its turns."""

    name: str
    slot: str
    resident: str | None = None
    """Of a conversation agent: whose fork it is."""
    provider: Provider
    model: str
    system: System
    tools: Mapping[str, Tool] = field(default_factory=dict)
    rounds_max: int = 100
    output_tokens_max: int = 4096
    error_policy: ErrorPolicy | None = None
    """None is the default policy."""
    provider_hold: ProviderHold | None = None
    pacing: Pacing = field(default_factory=Pacing)
    context: ContextStrategy | None = None
    purpose: Purpose = "turn"
    budgets: tuple[Budget, ...] = ()
    limits: AgentLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeams:
    """Whom a turn asks."""

    slot_name: str
    slot: Any
    gate: Any
    store: Store
    runner: ToolRunner
    clock: Clock
    recording: Recording
    alerts: AlertDesk | None = None
    context: ContextPost | None = None
    stream: Stream | None = None
    over: Callable[[str], object] | None = None
    """Called with the agent's name when a turn of its has ended. Neither blocks nor raises."""
    usage: AccountUsage | None = None
    spending: Spender | None = None
    room: AgentRoom = field(default_factory=AgentRoom)
    """How many turns may go on at once, of the agent and what stands for it."""
    spans: Spans = NO_SPANS


class TurnEnded(NamedTuple):
    """The turn is over; its row says how."""

    state: str
    rewound: RewindReceipt | None = None
    """What the rewind that ended it came to."""


class TurnHeld(NamedTuple):
    """The turn was put down; its row names what it is held by."""

    deferral: Deferral


TurnOutcome = TurnEnded | TurnHeld
Render: TypeAlias = Callable[[Sequence[PlacedRow]], Iterable[ProviderMessage]]


class _Unfit(Exception):
    """The turn cannot go on with what it has; the text is its marker."""


class TurnTask:
    """One life of one turn."""

    def __init__(
        self,
        start: TurnStart,
        settings: TurnSettings,
        seams: TurnSeams,
        streak: Streak,
        chosen: Summary | None = None,
        span: Span = NO_SPAN,
    ) -> None:
        self.start = start
        self._span = span
        self.round = start.round
        self.model = settings.model
        self._showing = Showing(seams.stream, start.turn, start.token, again=start.attempts > 1)
        self.calls = Calls(settings, seams, streak, start.failures, self._showing, start.turn)
        self._settings = settings
        self._seams = seams
        self._chosen = chosen
        """The summary that was asked for; read already."""
        self._messages: list[ProviderMessage] = []
        self._system: str | None = None
        self._tool_round: ToolRound | None = None
        self._voices = Voices.of(settings.name, settings.resident)

    def traced(self) -> Span:
        """The span of this life, to be entered; it goes on with the life before."""
        start, span = self.start, self._span
        self._seams.spans.link(span, start.trace)
        span.say({"abeyance.turn": start.turn, "abeyance.attempts": start.attempts})
        return span

    async def run(self) -> TurnOutcome:
        """Run to the turn's end, or to a hold. Cancelled: the turn's row stands as it is."""
        if self._seams.spending is not None:
            self._seams.spending.began(self.start.turn)
        if self.start.cancelled_by is not None:
            # Whoever cut this task off ends the turn, in its own way.
            await trio.lowlevel.checkpoint()
            await self.cancel(self.start.cancelled_by)
            return TurnEnded("cancelled")
        if self.start.attempts > ATTEMPTS_MAX:
            why = f"its task died {ATTEMPTS_MAX} times"
            self._tell_failing("task", DIED, f"{why} without a reply that was recorded")
            return await self._fail(f"this turn failed: {why}", DIED)
        if self.start.rewound:
            await self.end("cancelled", NOTHING_MARKER, give_back=False)
            return TurnEnded("cancelled")
        try:
            await self._prompt()
            await self._compile()
            if self.start.gap is not None:
                held = await self._close_gap(self._open_calls())
                if held is not None:
                    return held
            return await self._rounds()
        except UnreadableRecordError as error:
            # Running it again would read the same: what cannot be read is named, and nothing sent.
            return await self._unsent(error, str(error), "transcript")
        except SystemPromptError as error:
            return await self._unsent(error, error.problem, "prompt")
        except _Unfit as unfit:
            return await self._fail(str(unfit))

    async def _rounds(self) -> TurnOutcome:
        while self.round < self._settings.rounds_max:
            with self._seams.spans(ROUND, {"abeyance.round": self.round + 1}):
                outcome = await self._next_round()
            if outcome is not None:
                return outcome
        raise _Unfit(f"this turn failed: it had {self.round} rounds, its bound")

    async def _next_round(self) -> TurnOutcome | None:
        """One request, its reply and what that asks for. What the turn came to, where it did."""
        reply = await self.calls.reply(self._request(), self.round + 1)
        if isinstance(reply, Deferral):
            return await self._hold(reply)
        if isinstance(reply, Failed) and self._may_shrink(reply):
            crashpoint("turn.after_too_long")
            agent, model = self.start.agent, self._settings.model
            return await self._hold(Deferral(agent, model, None, reply.text, "context"))
        if isinstance(reply, Failed):
            return await self._fail(reply.text, reply.failure)
        crashpoint("turn.after_reply")
        calls = [block for block in reply.blocks if isinstance(block, ToolUseBlock)]
        await self._record(reply, final=not calls)
        crashpoint("turn.after_round")
        return TurnEnded("done") if not calls else await self._close_gap(calls)

    def _may_shrink(self, failed: Failed) -> bool:
        """Whether the turn is put down until its agent's strategy has had its say, then compiled
        anew: once, and where there is one."""
        too_long = failed.failure == ContextTooLongError.code
        return too_long and self._seams.context is not None and not self.start.outgrown

    # -- compiling ---------------------------------------------------------------------------

    async def _prompt(self) -> None:
        """Read the system prompt that this compile's requests carry, or have it decided and
        stored, so that whoever takes the turn up carries the same."""
        start, settings, seams = self.start, self._settings, self._seams
        number = start.prompt
        if number is None:
            info = TurnInfo(
                agent=start.agent,
                resident=settings.resident,
                slot=settings.slot,
                turn=start.turn,
                round=start.round,
                model=settings.model,
                channel=start.channel,
                at_ms=self._now(),
            )
            text = await decide(settings.system, info, seams.runner)
            crashpoint("turn.before_prompt")
            number = await self._ask(SetPrompt, text=text, at_ms=self._now())
            crashpoint("turn.after_prompt")
        self._system = read_prompt(seams.store, start.agent, number)

    async def _unsent(
        self, error: UnreadableRecordError | SystemPromptError, problem: str, of: FailingOf
    ) -> TurnEnded:
        """Fail the turn by what none of its requests can be made from."""
        self._tell_failing(of, error.code, problem)
        text = f"this turn failed: {error}"
        return await self._fail(clean_text(text, MARKER_CHARS_MAX), error.code)

    def _tell_failing(self, of: FailingOf, failure: str, problem: str) -> None:
        """Tell operators, once for all turns that fail in a row by this."""
        if self._seams.alerts is not None:
            agent, turn = self.start.agent, self.start.turn
            since = failed_since(self._seams.store, agent, turn, failure)
            if since is not None:
                self._seams.alerts.failing(agent, of, since, problem)

    async def _compile(self) -> None:
        """Read the slot, but for what a summary stands for. Nothing else writes it while this turn
        holds the lease."""
        view = self._view()
        self._messages += view.opening()
        await self._read(view.first, None, view.render)

    async def _read(self, first: int, last: int | None, render: Render) -> None:
        """Have the request go on with the slot's rows from a place on, a slice a step."""
        store, slot = self._seams.store, self._seams.slot_name
        while True:
            rows = read_placed(store, slot, first, last, limit=ROWS_A_SLICE)
            self._messages += render(rows)
            if len(rows) < ROWS_A_SLICE:
                return
            first = rows[-1].seq + 1
            await trio.lowlevel.checkpoint()

    def _view(self) -> View:
        start, seams = self.start, self._seams
        return read_view(
            seams.store,
            seams.slot_name,
            start.agent,
            start.turn,
            start.context,
            start.compiled_round,
            self._chosen,
            self._voices,
        )

    def decided(self) -> None:
        """A person has decided on one of its calls, or on one of an earlier round."""
        if self._tool_round is not None:
            self._tool_round.stir()

    @property
    def size(self) -> int:
        """About how many characters its last request came to, with the reply."""
        return size_of(self._messages)

    def _request(self) -> ModelRequest:
        settings = self._settings
        request = ModelRequest(
            model=settings.model,
            messages=tuple(self._messages),
            system=self._system,
            tools=tuple(tool.schema() for tool in settings.tools.values()),
            output_tokens_max=settings.output_tokens_max,
        )
        return with_attachments(self._seams.store, settings.provider, request)

    # -- what is recorded --------------------------------------------------------------------

    async def _record(self, reply: ModelReply, *, final: bool) -> None:
        blocks = reply.blocks or (TextBlock(text=""),)
        usage, message = self._seams.usage, new_message_id(self._now())
        try:
            _check_storable(blocks)
            await self._ask(
                RecordRound,
                round=self.round + 1,
                message=message,
                blocks=blocks,
                at_ms=self._now(),
                final=final,
                failures=self.calls.failures,
                usage=usage,
            )
        finally:
            if usage is not None:
                usage.settle(message)
        self.round += 1
        self._showing.stored()
        self.calls.sent = False
        self._messages.append(ProviderMessage("assistant", blocks))

    async def _close_gap(self, calls: list[ToolUseBlock]) -> TurnHeld | None:
        """Run what the reply asked for, all at once, then close the gap in one commit; or be held,
        where a person decides on some of it."""
        seams, start = self._seams, self.start
        self._tool_round = ToolRound(
            (start.agent, start.turn, self.round),
            self._settings.model,
            self._settings.tools,
            seams.store,
            seams.runner,
            self._ask,
            seams.slot,
            seams.recording,
            self._now,
            seams.alerts,
        )
        results = await self._tool_round.settle(calls)
        if isinstance(results, Deferral):
            return await self._hold(results)
        places: Places = await self._ask(
            CloseGap,
            round=self.round,
            message=new_message_id(self._now()),
            results=tuple(results),
            at_ms=self._now(),
            last=self.round >= self._settings.rounds_max,
        )
        await self._read(places.first, places.last, lambda rows: render_all(rows, self._voices))
        return None

    def _key(self, position: int) -> CallKey:
        return self.start.agent, self.start.turn, self.round, position

    def _open_calls(self) -> list[ToolUseBlock]:
        """The calls that owe results while the gap is open: those of the slot's last row.

        Read from the store: a turn may have to end before, or in the middle of, its compile.
        """
        store, slot = self._seams.store, self._seams.slot_name
        for _, entry in read_rows(store, "slots", (slot,), reverse=True, limit=1):
            if entry.role == "assistant" and entry.turn == self.start.turn:
                blocks = read_content(store, slot, entry)
                return [block for block in blocks if isinstance(block, ToolUseBlock)]
        return []

    async def _hold(self, deferral: Deferral) -> TurnHeld:
        # A pause or an exhausted quota has no record of its own; everything else is asked of one.
        unrecorded = deferral.cause in ("quota", "cooldown", "host", "approval", "context")
        cause: Any = deferral.cause if unrecorded else "wait"
        # Of anything else the wait that it names has it.
        window = kept_name(deferral.window) if cause == "quota" else None
        held = Held(agent=deferral.agent, model=deferral.model, cause=cause, window=window)
        await self._ask(HoldTurn, held=held, failures=self.calls.failures, sent=self.calls.sent)
        crashpoint("turn.after_hold")
        return TurnHeld(deferral)

    async def _fail(self, text: str, failure: str | None = None) -> TurnEnded:
        await self.end("failed", text, give_back=False, failure=failure)
        return TurnEnded("failed")

    async def cancel(self, by: str, rewind: RewindSlot | None = None) -> RewindReceipt | None:
        """End the turn because somebody cancelled it: calls that run are cut off by their tools'
        policies, and nothing is given back."""
        self._showing.void()
        runner, calls = self._seams.runner, self._open_calls()
        async with trio.open_nursery() as nursery:
            for position, call in enumerate(calls):
                tool = self._settings.tools.get(call.name)
                nursery.start_soon(runner.cut_off, self._key(position), call, tool)
        return await self.end(
            "cancelled", marker_of(by), give_back=False, rewind=rewind, failure=CANCELLED
        )

    async def end(
        self,
        state: Any,
        marker: str,
        *,
        give_back: bool,
        rewind: RewindSlot | None = None,
        failure: str | None = None,
    ) -> RewindReceipt | None:
        """End the turn without a last reply. An open gap is closed with what is known now."""
        self._showing.void()
        runner, results = self._seams.runner, []
        for position, call in enumerate(self._open_calls()):
            key = self._key(position)
            denied = denial_of(self._seams.store, key, call)
            results.append(denied or runner.recorded(key, call))
        receipt: RewindReceipt | None = await self._ask(
            EndTurn,
            state=state,
            marker=marker,
            results=tuple(results),
            failures=self.calls.failures,
            sent=self.calls.sent,
            at_ms=self._now(),
            give_back=give_back,
            rewind=rewind,
            failure=failure,
        )
        return receipt

    async def _ask(self, kind: type, **fields: Any) -> Any:
        """Ask the slot for a commit, again while it is surely not stored."""
        start, slot, spending = self.start, self._seams.slot, self._seams.spending
        spent = spending.owed() if spending is not None and kind in _TAKE_SPENT else ()
        if spent:
            fields["spent"] = spent
        message = kind(agent=start.agent, turn=start.turn, token=start.token, **fields)
        what, recording = _RECORDS[kind], self._seams.recording
        with self._seams.spans(COMMIT, {"abeyance.records": what}):
            answer = await recording.until_stored(what, lambda: slot.ask(message))
        if spending is not None and spent:
            spending.stored(spent)
            if spending.owed():
                await spending.store_owed()
        return answer

    def _now(self) -> int:
        return self._seams.clock.now_ms()


def _check_storable(blocks: tuple[Block, ...]) -> None:
    """Refuse a reply that has no row, before the slot plans on it: asking again would not help."""
    if next(attachments_in(blocks), None) is not None:
        raise _Unfit("this turn failed: the reply names attachments, which only others may")
    try:
        encode(Body(blocks=blocks))
    except InvalidRecordError as error:
        text = f"this turn failed: the reply cannot be stored ({error})"
        raise _Unfit(clean_text(text, MARKER_CHARS_MAX)) from error
