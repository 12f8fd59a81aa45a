"""A turn: from its wakes to its last reply. A task of its agent, not an actor.

It asks downwards (slot, gate) and awaits the answers; everything it must remember is committed by
the slot before it goes on, so a turn taken up after a death continues at its last recorded round.

Invariants:
    I1  No provider call without a permit, and the permit is asked for last, after the compile.
    I2  Requests grow: request k+1 is request k, the reply, the results, what the boundary injected.
    I3  However a call ends, its permit is settled; the wait it stated is recorded before the hold.
    I4  An end that comes before the slot was compiled closes an open gap all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard

import stamina
import trio

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.providers.failures import understood
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    Provider,
    ProviderError,
    ProviderMessage,
    permitted,
)
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import InvalidRecordError, UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.slots import Body, Held

from .ingress import clean_text, new_message_id
from .persistence import until_stored
from .protocol import Admit, Settle
from .render import render_all
from .slot_messages import CloseGap, EndTurn, HoldTurn, RecordRound, TurnStart
from .slot_rows import read_body, read_placed, read_rows
from .tools import Tool, ToolRunner
from .wait_book import Deferral

ATTEMPTS_MAX: Final = 3
"""Lives of one turn's task; past it the turn fails with a marker instead of crashing for ever."""
RETRIES_MAX: Final = 4
RETRY_INITIAL_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""The pause after a fault without a stated wait: a guess, so it is capped and kept short."""
MARKER_CHARS_MAX: Final = 500
ROWS_A_SLICE: Final = 64
"""Rows read before the loop gets a turn."""

declare("turn.after_reply", "a reply arrived and is not recorded")
declare("turn.after_round", "a reply is recorded and nothing of it was acted on")
declare("turn.after_wait", "a stated wait is recorded and its turn is not held yet")
declare("turn.after_hold", "a turn is held")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """What the agent's specification says of its turns."""

    name: str
    provider: Provider
    model: str
    system: str | None
    tools: Mapping[str, Tool] = field(default_factory=dict)
    rounds_max: int = 100
    output_tokens_max: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeams:
    """Whom a turn asks."""

    slot_name: str
    slot: Any
    gate: Any
    store: Store
    runner: ToolRunner
    clock: Clock


class TurnEnded(NamedTuple):
    """The turn is over; its row says how."""

    state: str


class TurnHeld(NamedTuple):
    """The turn was put down; its row names what it is held by."""

    deferral: Deferral


TurnOutcome = TurnEnded | TurnHeld


class _Deferred(Exception):
    def __init__(self, deferral: Deferral) -> None:
        self.deferral = deferral


class _Failed(Exception):
    def __init__(self, text: str) -> None:
        self.text = text


class _Unstated(Exception):
    def __init__(self, text: str) -> None:
        self.text = text


class TurnTask:
    """One life of one turn."""

    def __init__(self, start: TurnStart, settings: TurnSettings, seams: TurnSeams) -> None:
        self.start = start
        self.round = start.round
        self.awaits_release = False
        """A hold without a record is on its way: the next release that names its model ends it."""
        self.sent = False
        """Whether the request of the round in progress may have reached the wire."""
        self._settings = settings
        self._seams = seams
        self._failures = start.failures
        self._messages: list[ProviderMessage] = []
        self._seq = 0

    async def run(self) -> TurnOutcome:
        """Run to the turn's end, or to a hold. Cancelled: the turn's row stands as it is."""
        if self.start.attempts > ATTEMPTS_MAX:
            return await self._fail(f"this turn failed: its task died {ATTEMPTS_MAX} times")
        try:
            await self._compile()
            if self.start.gap is not None:
                await self._close_gap(self._open_calls())
            return await self._rounds()
        except UnreadableRecordError as error:
            # Running it again would read the same: what cannot be read is named, and nothing sent.
            return await self._fail(clean_text(f"this turn failed: {error}", MARKER_CHARS_MAX))
        except _Deferred as deferred:
            return await self._hold(deferred)
        except _Failed as failed:
            return await self._fail(failed.text)

    async def _rounds(self) -> TurnOutcome:
        while self.round < self._settings.rounds_max:
            reply = await self._call()
            crashpoint("turn.after_reply")
            calls = [block for block in reply.blocks if isinstance(block, ToolUseBlock)]
            await self._record(reply, final=not calls)
            crashpoint("turn.after_round")
            if not calls:
                return TurnEnded("done")
            await self._close_gap(calls)
        raise _Failed(f"this turn failed: it had {self.round} rounds, its bound")

    # -- compiling ---------------------------------------------------------------------------

    async def _compile(self) -> None:
        """Read the slot. Nothing else writes it while this turn holds the lease."""
        seams = self._seams
        while True:
            first = self._seq + 1
            rows = read_placed(seams.store, seams.slot_name, first, limit=ROWS_A_SLICE)
            self._messages += render_all(rows)
            if len(rows) < ROWS_A_SLICE:
                return
            self._seq = rows[-1].seq
            await trio.lowlevel.checkpoint()

    def _request(self) -> ModelRequest:
        settings = self._settings
        return ModelRequest(
            model=settings.model,
            messages=tuple(self._messages),
            system=settings.system,
            tools=tuple(tool.schema() for tool in settings.tools.values()),
            output_tokens_max=settings.output_tokens_max,
        )

    # -- the call ----------------------------------------------------------------------------

    async def _call(self) -> ModelReply:
        """One reply, with the guessed pauses between faults that stated nothing."""
        try:
            async for attempt in stamina.retry_context(
                on=_Unstated,
                attempts=RETRIES_MAX,
                wait_initial=RETRY_INITIAL_S,
                wait_max=RETRY_MAX_S,
                # A stall alone takes longer than the library's bound of 45 s for all attempts.
                timeout=None,
            ):
                with attempt:
                    return await self._call_once()
        except _Unstated as fault:
            raise _Failed(f"this turn failed: {fault.text}") from None
        raise AssertionError("the retry loop ended without an outcome")

    async def _call_once(self) -> ModelReply:
        gate, request = self._seams.gate, self._request()
        asked = gate.ask(Admit(self._settings.model, "turn"))
        try:
            admission = await asked
        except BaseException:
            # The gate may have admitted it, or still will: nobody is left to settle that permit.
            asked.on_done(lambda: _give_back(asked, gate))
            raise
        if isinstance(admission, Deferral):
            raise _Deferred(admission)
        permit: Permit = admission
        try:
            # A turn that was told to end while it asked makes no call.
            await trio.lowlevel.checkpoint_if_cancelled()
            with permitted(permit):
                reply = await self._settings.provider.call(request, _look_away)
        except Exception as error:
            await self._refused(permit, error)
            raise AssertionError("a refused call has a way out") from error
        except BaseException:
            self.sent = permit.used
            gate.tell(Settle(permit, "unknown"))
            raise
        gate.tell(Settle(permit, "succeeded"))
        return reply

    async def _refused(self, permit: Permit, error: Exception) -> None:
        """Settle the permit with what was stated, then say which way the turn goes."""
        self._failures += 1
        failed = understood(error, received_at=self._now() / 1_000) or _unexpected(error, permit)
        self.sent = failed.sent
        # What a person reads beside a wait are the provider's words, where it gave any.
        text = clean_text(failed.said or str(failed), 300)
        # An adapter that a host wrote may hand over anything here.
        stated = failed.stated if isinstance(failed.stated, StatedWait) else None
        states = None if stated is None else _states(stated, text)
        # Cancelled here, the settlement is in the gate's mailbox all the same.
        receipt = await self._seams.gate.ask(Settle(permit, "failed", states))
        name, model = self._settings.name, self._settings.model
        binding = None if receipt is None else receipt.binding
        quota = stated is not None and stated.kind is WaitKind.QUOTA_EXHAUSTED
        if binding is not None and (failed.retryable or quota):
            crashpoint("turn.after_wait")
            held = Deferral(name, model, binding.deadline_ms, binding.reason, "wait")
            raise _Deferred(held)
        if quota and stated is not None and stated.ends is WaitEnds.UNKNOWN:
            self.awaits_release = True
            raise _Deferred(Deferral(name, model, None, text, "quota"))
        if not failed.retryable:
            raise _Failed(f"this turn failed: {text}")
        raise _Unstated(text)

    # -- what is recorded --------------------------------------------------------------------

    async def _record(self, reply: ModelReply, *, final: bool) -> None:
        blocks = reply.blocks or (TextBlock(text=""),)
        _check_storable(blocks)
        await self._ask(
            RecordRound,
            round=self.round + 1,
            message=new_message_id(self._now()),
            blocks=blocks,
            at_ms=self._now(),
            final=final,
        )
        self.round += 1
        self.sent = False
        self._messages.append(ProviderMessage("assistant", blocks))

    async def _close_gap(self, calls: list[ToolUseBlock]) -> None:
        """Run what the reply asked for, all at once, then close the gap in one commit."""
        results: list[ToolResultBlock | None] = [None] * len(calls)

        async def one(position: int, call: ToolUseBlock) -> None:
            key = (self.start.agent, self.start.turn, self.round, position)
            tool = self._settings.tools.get(call.name)
            results[position] = await self._seams.runner.result(key, call, tool)

        async with trio.open_nursery() as nursery:
            for position, call in enumerate(calls):
                nursery.start_soon(one, position, call)
        placed = await self._ask(
            CloseGap,
            round=self.round,
            message=new_message_id(self._now()),
            results=tuple(result for result in results if result is not None),
            at_ms=self._now(),
        )
        self._messages += render_all(placed)

    def _open_calls(self) -> list[ToolUseBlock]:
        """The calls that owe results while the gap is open: those of the slot's last row.

        Read from the store: a turn may have to end before, or in the middle of, its compile.
        """
        store, slot = self._seams.store, self._seams.slot_name
        for _, entry in read_rows(store, "slots", (slot,), reverse=True, limit=1):
            if entry.role == "assistant" and entry.turn == self.start.turn:
                blocks = read_body(store, slot, entry.entry)
                return [block for block in blocks if isinstance(block, ToolUseBlock)]
        return []

    async def _hold(self, deferred: _Deferred) -> TurnHeld:
        deferral = deferred.deferral
        held = Held(
            agent=deferral.agent,
            model=deferral.model,
            cause="quota" if deferral.cause == "quota" else "wait",
        )
        await self._ask(HoldTurn, held=held, failures=self._failures, sent=self.sent)
        crashpoint("turn.after_hold")
        return TurnHeld(deferral)

    async def _fail(self, text: str) -> TurnEnded:
        await self.end("failed", text, give_back=False)
        return TurnEnded("failed")

    async def end(self, state: Any, marker: str, *, give_back: bool) -> None:
        """End the turn without a last reply. An open gap is closed with what is known now."""
        runner, results = self._seams.runner, []
        for position, call in enumerate(self._open_calls()):
            key = (self.start.agent, self.start.turn, self.round, position)
            results.append(runner.recorded(key, call))
        await self._ask(
            EndTurn,
            state=state,
            marker=marker,
            results=tuple(results),
            failures=self._failures,
            sent=self.sent,
            at_ms=self._now(),
            give_back=give_back,
        )

    async def _ask(self, kind: Callable[..., Any], **fields: Any) -> Any:
        """Ask the slot for a commit, again while it is surely not stored."""
        start, slot = self.start, self._seams.slot
        message = kind(agent=start.agent, turn=start.turn, token=start.token, **fields)
        return await until_stored(lambda: slot.ask(message))

    def _now(self) -> int:
        return self._seams.clock.now_ms()


def _look_away(delta: object) -> None:
    """Deltas are for looking; nobody looks yet."""


def _give_back(asked: Any, gate: Any) -> None:
    """Return the permit of an admission that nobody waits for any more."""
    try:
        admission = asked.get()
    except Exception:  # noqa: BLE001 - not admitted, so there is nothing to return.
        return
    if isinstance(admission, Permit):
        with suppress(ActorDeadError):  # The gate has ended, and its permits with it.
            gate.tell(Settle(admission, "unknown"))


def _check_storable(blocks: tuple[Block, ...]) -> None:
    """Refuse a reply that has no row, before the slot plans on it: asking again would not help."""
    try:
        encode(Body(blocks=blocks))
    except InvalidRecordError as error:
        text = f"this turn failed: the reply cannot be stored ({error})"
        raise _Failed(clean_text(text, MARKER_CHARS_MAX)) from error


def _unexpected(error: Exception, permit: Permit) -> ProviderError:
    """An adapter raised what the port does not name: terminal, and nothing is assumed of it."""
    return ProviderError(f"{type(error).__name__}: {error}", retryable=False, sent=permit.used)


def _is_instant(value: object) -> TypeGuard[float]:
    """Only a number is an instant; text, None and a truth value state nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= INSTANT_MS_MAX  # type: ignore[operator]


def _states(stated: StatedWait, text: str) -> tuple[int | None, str] | None:
    """What of a statement is for the ledger: an instant, or a wait without end; else nothing."""
    match stated.ends:
        case WaitEnds.UNTIL if _is_instant(stated.deadline_ms):
            return math.ceil(stated.deadline_ms), text
        case WaitEnds.UNTIL_RELEASED:
            return None, text
        case _:
            return None
