"""The tool calls of one reply: run at once, joined, or put off until a person has decided.

A part of a turn. Calls that need no approval run at once, also beside those that wait; one that is
approved meanwhile runs beside them. Once nothing runs and some wait still, the turn is put down.

Invariants:
    I1  The rows of calls that wait are stored before anything of their round is begun.
    I2  A call whose deadline has passed is decided by a row, like any other, before it is acted on.

Runs in: the turn's task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import trio

from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Store
from abeyance.storage.tables.approvals import Approval
from abeyance.storage.tables.blocks import ToolResultBlock, ToolUseBlock

from .alert_book import AlertDesk
from .approvals import DEADLINE, denial_of, is_due, row_of, standing
from .persistence import Recording
from .slot_approvals import AskApprovals, Decide
from .tools import CallKey, Tool, ToolRunner
from .wait_book import Deferral

declare("approval.after_asked", "calls of a round wait for a person, and the turn is not held yet")


class ToolRound:
    """One round's calls. Made anew by each life of the turn.

    Args:
        ask: Asks the slot for something of this turn, again while it is surely not stored.
        slot: The slot's ref.
    """

    def __init__(
        self,
        key: tuple[str, int, int],
        model: str,
        tools: Any,
        store: Store,
        runner: ToolRunner,
        ask: Callable[..., Awaitable[Any]],
        slot: Any,
        recording: Recording,
        now: Callable[[], int],
        alerts: AlertDesk | None,
    ) -> None:
        self._agent, self._turn, self._round = key
        self._model = model
        self._tools = tools
        self._store = store
        self._runner = runner
        self._ask = ask
        self._slot = slot
        self._recording = recording
        self._now = now
        self._alerts = alerts
        self._busy = 0
        self._moved = trio.lowlevel.ParkingLot()

    def stir(self) -> None:
        """One of the calls may have been decided. Not a checkpoint."""
        self._moved.unpark_all()

    async def settle(self, calls: list[ToolUseBlock]) -> list[ToolResultBlock] | Deferral:
        """Run what may be run; the results in the calls' order, or what the turn waits for.

        A checkpoint. Cancelled: bodies go on, and what waits stands in its rows.
        """
        asked = self._not_asked(calls)
        if asked:
            await self._ask(AskApprovals, round=self._round, asked=tuple(asked))
            crashpoint("approval.after_asked")
        waiting = {place for place in range(len(calls)) if self._waits(place)}
        if waiting and self._alerts is not None:
            found = standing(self._store, self._agent, self._now())
            names = ", ".join(sorted({calls[place].name for place in waiting}))
            key = (self._agent, self._turn, self._round)
            self._alerts.approval(key, names, found.deadline_ms)
        results: list[ToolResultBlock | None] = [None] * len(calls)
        self._busy = len(calls) - len(waiting)
        async with trio.open_nursery() as nursery:
            for place, call in enumerate(calls):
                one = self._once_decided if place in waiting else self._run
                nursery.start_soon(one, place, call, results)
        done = [result for result in results if result is not None]
        return done if len(done) == len(calls) else self._deferral()

    def _not_asked(self, calls: list[ToolUseBlock]) -> list[tuple[int, Approval]]:
        """The calls that need a person's word and have neither a row of it nor one of their own."""
        found = []
        for place, call in enumerate(calls):
            tool: Tool | None = self._tools.get(call.name)
            policy = None if tool is None else tool.approval
            if policy is None or self._row(place) is not None:
                continue
            if self._store.get("tool_calls", self._key(place)) is None and policy.asks(
                self._agent, call
            ):
                found.append((place, row_of(call, policy, self._now())))
        return found

    async def _run(
        self, place: int, call: ToolUseBlock, results: list[ToolResultBlock | None]
    ) -> None:
        key = self._key(place)
        result = denial_of(self._store, key, call)
        if result is None:
            result = await self._runner.result(key, call, self._tools.get(call.name))
        results[place] = result
        self._busy -= 1
        self.stir()

    async def _once_decided(
        self, place: int, call: ToolUseBlock, results: list[ToolResultBlock | None]
    ) -> None:
        """Run a call once it is decided, for as long as others run; then it is put off."""
        while self._waits(place):
            row = self._row(place)
            assert row is not None
            if is_due(row, self._now()):
                await self._expire(place, row)
            elif self._busy == 0:
                return
            else:
                await self._moved.park()
        self._busy += 1
        await self._run(place, call, results)

    async def _expire(self, place: int, row: Approval) -> None:
        verdict: Literal["approved", "denied"] = (
            "approved" if row.otherwise == "approve" else "denied"
        )
        decide = Decide(self._key(place), verdict, DEADLINE, "", self._now())
        await self._recording.until_stored(
            "a decision whose time is up", lambda: self._slot.ask(decide)
        )

    def _deferral(self) -> Deferral:
        found = standing(self._store, self._agent, self._now())
        names = ", ".join(sorted(set(found.tools)))
        reason = f"a person decides on {names or 'a call'}"
        return Deferral(self._agent, self._model, found.deadline_ms, reason, "approval")

    def _waits(self, place: int) -> bool:
        row = self._row(place)
        return row is not None and row.state == "waiting"

    def _row(self, place: int) -> Approval | None:
        row = self._store.get("approvals", self._key(place))
        return None if row is None else row.record

    def _key(self, place: int) -> CallKey:
        return self._agent, self._turn, self._round, place
