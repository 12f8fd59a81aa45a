"""The variant whose turns people decide on: one waits for an approval, one is cancelled.

While the first waits, messages arrive, a rewind is refused, and another model is chosen. Whoever
has no receipt asks again in the next life: `decided.jsonl` has a line a receipt, `ran.jsonl` one a
run of the approved body.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from abeyance.actors import NeedsApproval, Tool
from abeyance.actors.domain.errors import RewindRefusedError
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.tables.blocks import TextBlock

from .life import SCHEMA, Arrives, Life, Lines, calls_in, until_stored, use
from .sent import ANA

CHOSEN: Final = "m2"
CUT: Final = "last"
"""The message whose turn is cancelled."""


class Decided(Life):
    """See the module."""

    @property
    def _receipts(self) -> Lines:
        return Lines(self.setting.directory / "decided.jsonl")

    def step(self, request: ModelRequest) -> Step:
        if calls_in(request) == 2:
            return Arrives(self, 3, reply(use("c3", "pay")))
        if f"says {CUT}" in texts_in(request) and calls_in(request, ("c4",)) == 0:
            return reply(use("c4", "stall"))
        return super().step(request)

    def tools(self) -> list[Tool]:
        async def pay() -> str:
            Lines(self.setting.directory / "ran.jsonl").write({"tool": "pay"})
            await self.arrive(4)
            return "paid"

        async def stall() -> str:
            self.spawn(self._cancel)
            await trio.sleep_forever()
            raise AssertionError

        pays = Tool(
            name="pay",
            description="pay",
            input_schema=SCHEMA,
            run=pay,
            # A life may be a day behind the last.
            approve=NeedsApproval(within_s=None),
            in_doubt="retry",
        )
        stalls = Tool(
            name="stall", description="stall", input_schema=SCHEMA, run=stall, in_doubt="retry"
        )
        return [*super().tools(), pays, stalls]

    async def _cancel(self) -> None:
        done = await until_stored(partial(self.handles[ANA].cancel_turn, requester="ops"))
        self._receipts.write({"act": "cancel", "turn": done.turn, "state": done.state})

    async def rest(self) -> None:
        while True:
            await self.handles[ANA].wait_idle()
            waiting = self.serving.approvals()
            if waiting:
                await self._decide(waiting[0].id)
            elif all(state.state == "idle" for state in self.serving.status().agents):
                return
            else:
                await trio.sleep(600)

    async def _decide(self, waits: str) -> None:
        ana = self.handles[ANA]
        await self.arrive(4)
        with suppress(RewindRefusedError):
            await until_stored(partial(ana.rewind, 0, requester="ops"))
            self._receipts.write({"act": "rewind"})
        chosen = await until_stored(partial(ana.set_model, CHOSEN, requester="ops"))
        self._receipts.write({"act": "model", "model": chosen.model})
        if waits in {row.id for row in self.serving.approvals()}:
            done = await until_stored(partial(self.serving.approve, waits, requester="ops"))
            self._receipts.write({"act": "approve", "id": done.id, "state": done.state})

    async def look(self) -> None:
        await super().look()
        self.report.left["calls that wait"] = len(self.serving.approvals())
        self.report.left["cuts"] = sum(len(lease.cuts) for lease in self.rows("leases"))
        (status,) = self.serving.status().agents
        self.report.model = status.model


def texts_in(request: ModelRequest) -> set[str]:
    blocks: list[Any] = [block for message in request.messages for block in message.blocks]
    return {block.text for block in blocks if isinstance(block, TextBlock)}
