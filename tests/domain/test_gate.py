"""The gate: one permit a call, deferrals with their cause, and what its own death leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    AskTable,
    AskTimeoutError,
    ChildSpec,
    Reply,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.domain.agent_acts import StopTurns
from abeyance.actors.domain.asks import ASKS
from abeyance.actors.domain.gate import Gate
from abeyance.actors.domain.protocol import (
    Admit,
    CheckWait,
    Peek,
    RecordWait,
    Settle,
    WaitReceipt,
    WatchHolder,
)
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.providers.port import Permit, PermitError, permitted, use_permit
from abeyance.actors.testing import WallClock, call_tool, reply

from .world import Stop, World, shown, until

WAIT = Deferral("ana", "m", 5_000, "slow down", "wait")


class Book:
    """What binds, what the fake ledger answers, and what it was told."""

    def __init__(self) -> None:
        self.binding: Deferral | None = None
        self.recording = True
        """Whether a statement is taken at once, or owed for as long as the test likes."""
        self.slow = False
        self.owed: list[Reply] = []
        self.checks = 0
        self.recorded: list[RecordWait] = []

    def deferral(self, agent: str, model: str | None, *, exempt: bool = False) -> Deferral | None:
        return None if exempt else self.binding

    def quota_hold(self, agent: str) -> str | None:
        return None


class FakeLedger(TrioActor):
    role = "ledger"
    max_deliveries = 5

    def __init__(self, book: Book) -> None:
        self._book = book

    def on_receive(self, message: Any) -> Any:
        book = self._book
        if isinstance(message, RecordWait):
            book.recorded.append(message)
            if book.recording:
                return WaitReceipt(True, None, "recorded")
            book.owed.append(self.later())
            return LATER
        assert isinstance(message, CheckWait)
        book.checks += 1
        if not book.slow:
            return book.binding
        book.owed.append(self.later())
        return LATER


class Holder(TrioActor):
    role = "agent"

    def __init__(self, gate: Any) -> None:
        self._gate = gate

    def on_start(self) -> None:
        self._gate.tell(WatchHolder(self.actor_ref))

    def on_receive(self, message: Any) -> None:
        return None


class Trial:
    def __init__(self, book: Book, refs: dict[str, Any]) -> None:
        self.book = book
        self.gate, self.holder = refs["gate"], refs["holder"]

    @property
    def kept(self) -> Any:
        return self.gate._cell.kept

    async def admit(self) -> Any:
        return await self.gate.ask(Admit("m", "turn"))

    async def state_slowly(self) -> None:
        """Leave a statement of the gate's own on its way to the ledger."""
        self.book.recording = False
        self.gate.tell(Settle(await self.admit(), "failed", (5_000, "slow down")))
        await wait_all_tasks_blocked()


@asynccontextmanager
async def trial(restart: Any = "permanent") -> AsyncIterator[Trial]:
    book = Book()
    async with ActorSystem(asks=AskTable(ASKS), ask_timeout_s=None) as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                id="group",
                children=(
                    ChildSpec("ledger", FakeLedger, (book,)),
                    ChildSpec(
                        "gate", Gate, lambda refs: ("ana", refs["ledger"], book, WallClock())
                    ),
                    ChildSpec("holder", Holder, lambda refs: (refs["gate"],), restart=restart),
                ),
            )
        )
        yield Trial(book, group.refs)


async def test_an_admission_gives_a_permit_of_its_own_for_one_request(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        first = await it.admit()
        assert isinstance(first, Permit)
        assert (first.agent, first.model, first.purpose) == ("ana", "m", "turn")
        assert set(it.kept.permits) == {first.id}
        with permitted(first):
            assert use_permit() is first
            with pytest.raises(PermitError, match="was used"):
                use_permit()
        with pytest.raises(PermitError, match="no permit"):
            use_permit()
        assert await it.gate.ask(Settle(first, "succeeded")) is None
        assert not it.kept.permits
        second = await it.admit()
        assert second.id != first.id


async def test_a_call_that_a_wait_binds_is_deferred_with_its_instant_and_cause(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.book.binding = WAIT
        assert await it.admit() == WAIT
        assert await it.gate.ask(Peek("m")) == WAIT
        assert not it.kept.permits
        it.book.binding = None
        assert await it.gate.ask(Peek("m")) is None
        assert not it.kept.permits, "a look takes no permit"
        assert (it.kept.admitted, it.kept.deferred) == (0, 1)


async def test_a_settlement_is_answered_when_the_ledger_took_what_it_states(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        permit = await it.admit()
        receipt = await it.gate.ask(Settle(permit, "failed", (5_000, "slow down")))
        assert receipt.reach == "recorded"
        assert it.book.recorded == [RecordWait("ana", "m", 5_000, "slow down")]
        assert not it.kept.permits


async def test_the_death_of_the_holder_returns_its_permits(autojump_clock: MockClock) -> None:
    async with trial() as it:
        await it.admit()
        it.holder.kill()
        await until(lambda: not it.kept.permits)
        assert it.kept.returned == 1
        await until(lambda: it.holder.statistics().incarnation == 2)
        await it.admit()
        await wait_all_tasks_blocked()
        assert len(it.kept.permits) == 1, "a permit of the new life is not the old one's"


async def test_the_end_of_a_holder_that_is_not_started_again_returns_its_permits(
    autojump_clock: MockClock,
) -> None:
    async with trial(restart="temporary") as it:
        await it.admit()
        it.holder.kill()
        await until(lambda: not it.kept.permits)
        assert it.kept.returned == 1


async def test_an_admission_whose_asker_gave_up_takes_no_permit(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        await it.state_slowly()
        it.book.slow = True
        with pytest.raises(AskTimeoutError):
            await it.gate.ask(Admit("m", "turn"), timeout=1)
        it.book.owed[1].set(None)
        await wait_all_tasks_blocked()
        assert not it.kept.permits
        assert it.kept.admitted == 1


@pytest.mark.behaviour("W-055")
async def test_a_call_for_an_ephemeral_run_is_exempt_and_states_nothing_under_its_name(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.book.binding = WAIT
        assert await it.admit() == WAIT
        permit = await it.gate.ask(Admit("m", "ephemeral"))
        assert isinstance(permit, Permit)
        assert await it.gate.ask(Settle(permit, "failed", (5_000, "slow down"))) is None
        assert it.book.recorded == []
        assert not it.kept.permits


async def test_an_admission_is_answered_behind_a_statement_that_is_on_its_way(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        assert await it.gate.ask(Peek("m")) is None
        assert it.book.checks == 0, "nothing is on its way, so the ledger is not asked"
        await it.state_slowly()
        # The ledger takes messages in order: what it answers then is behind the statement.
        assert await it.gate.ask(Peek("m")) is None
        assert it.book.checks == 1
        it.book.owed[0].set(WaitReceipt(True, None, "recorded"))
        await wait_all_tasks_blocked()
        await it.admit()
        assert it.book.checks == 1


async def test_the_death_of_holder_and_gate_together_returns_the_permits(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        await it.admit()
        it.gate.kill()
        it.holder.kill()
        await until(lambda: it.holder.statistics().incarnation == 2)
        await until(lambda: it.gate.statistics().incarnation == 2)
        await until(lambda: not it.kept.permits)


async def test_an_admission_owed_at_the_gates_death_is_answered_once_by_the_next_life(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        await it.state_slowly()
        it.book.slow = True
        asked = it.gate.ask(Admit("m", "turn"), block=False)
        await until(lambda: it.book.checks == 1)
        it.gate.kill()
        await until(lambda: it.book.checks == 2)
        for reply_ in it.book.owed[1:]:
            reply_.set(None)
        permit = await asked
        await wait_all_tasks_blocked()
        assert set(it.kept.permits) == {permit.id}, "one admission, one permit"
        assert it.kept.admitted == 2


async def test_a_settlement_after_the_gates_death_still_counts(autojump_clock: MockClock) -> None:
    async with trial() as it:
        permit = await it.admit()
        it.gate.kill()
        await until(lambda: it.gate.statistics().incarnation == 2)
        assert set(it.kept.permits) == {permit.id}, "the call goes on"
        await it.gate.ask(Settle(permit, "failed", (None, "quota")))
        assert it.book.recorded == [RecordWait("ana", "m", None, "quota")]
        assert not it.kept.permits


async def test_the_next_life_of_a_gate_watches_the_holder_again(autojump_clock: MockClock) -> None:
    async with trial(restart="temporary") as it:
        it.gate.kill()
        await until(lambda: it.gate.statistics().incarnation == 2)
        await it.admit()
        it.holder.kill()
        await until(lambda: not it.kept.permits)


@pytest.mark.parametrize("ended_by", ["stop", "kill"])
async def test_an_admission_that_nobody_waits_for_any_more_gives_its_permit_back(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    receive, go, asked = Gate.on_receive, trio.Event(), trio.Event()

    async def slow(gate: Gate, message: Any) -> Any:
        if isinstance(message, Admit) and not go.is_set():
            asked.set()
            await go.wait()
        return receive(gate, message)

    async with world.open():
        monkeypatch.setattr(Gate, "on_receive", slow)
        ana = await world.add([reply("after")])
        await ana.send("go")
        await asked.wait()
        agent, kept = world.ref("agent"), world.ref("gate")._cell.kept
        if ended_by == "kill":
            agent.kill()
            await until(lambda: agent.statistics().incarnation == 2)
            go.set()
            await ana.wait_idle()
            assert (await shown(ana))[-1] == "assistant: after"
        else:
            stopped = agent.ask(StopTurns(), block=False)
            await stopped
            go.set()
        await until(lambda: kept.admitted >= 1)
        await until(lambda: not kept.permits)
        assert len(world.providers[0].requests) == (1 if ended_by == "kill" else 0)


async def test_a_gate_killed_during_a_call_leaves_the_call_and_counts_its_settlement(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("end")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        world.ref("gate").kill()
        stop.go.set()
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: end"
        assert len(world.providers[0].requests) == 2
        await until(lambda: not world.permits_out())
