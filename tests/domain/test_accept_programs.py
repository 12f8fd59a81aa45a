"""Generated senders against one slot: singles, batches and the same ids again, in any company.

While they send, the slot or the journal is killed, commits fail, and single rows are refused. A
receipt is a promise about one message: its id, its number, its content, its place in the order.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.domain.errors import (
    LeaseLostError,
    MessageReadError,
    NotStoredError,
    UnknownMessageError,
)
from abeyance.actors.domain.ingress import encode_body
from abeyance.actors.domain.slot_messages import Accept, AcceptMany, Receipt, Retract, TurnStart

from .desk import disk_full, outcomes_of, rows
from .slots import SLOT, accept, check, close, record, start
from .test_poison import PickyStore
from .test_slot_actor import Room, open_room

SEEDS = (*range(24), 68, 117, 259)
"""The last three once told a sender of a batch that it was not stored, which was."""
STEPS = 40


class Program:
    """One generated life of a slot, and what its senders were told."""

    def __init__(self, room: Room, store: PickyStore, seed: int) -> None:
        self.room, self.store = room, store
        self.chance = random.Random(seed)
        self.asked: list[tuple[tuple[Accept, ...], Any]] = []
        """Each ask in the order in which it was sent, and what answers it."""
        self.names = 0
        self.used: list[str] = []
        self.turn: TurnStart | None = None
        self.round = 0
        self.gap: tuple[str, ...] = ()
        self.retracted: set[str] = set()

    def accept(self) -> Accept:
        chance = self.chance
        if self.used and chance.random() < 0.3:
            name = chance.choice(self.used[-6:])
        else:
            self.names += 1
            name = f"n{self.names}"
        if chance.random() < 0.4:
            return accept(f"says x{self.names}", wake=chance.random() < 0.5)
        self.used.append(name)
        how: dict[str, Any] = {"known": name, "wake": name[-1] in "02468"}
        if name[-1] == "7":
            how["subject"] = "weather"
        return accept(f"says {name}", own=name[-1] == "5", **how)

    def send(self) -> None:
        said = self.accept()
        self.asked.append(((said,), self.room.slot.ask(said)))

    def send_many(self) -> None:
        found: dict[str, Accept] = {}
        for _ in range(self.chance.randrange(1, 6)):
            said = self.accept()
            found.setdefault(said.message, said)
        many = tuple(found.values())
        looked = self.chance.random() < 0.5 and not any(
            self.store.get("ids", (SLOT, said.message)) for said in many
        )
        self.asked.append((many, self.room.slot.ask(AcceptMany(many, looked=looked))))

    async def step(self) -> None:
        match self.chance.choice(STEPS_OF):
            case "send":
                for _ in range(self.chance.randrange(1, 8)):
                    self.send()
            case "many":
                self.send_many()
            case "turn":
                await self._turn()
            case "retract" if self.used:
                name = self.chance.choice(self.used[-3:])
                self.retracted.add(name)
                future = self.room.slot.ask(Retract(name, 1))
                self.asked.append(((), future))
            case "kill slot":
                self.room.slot.kill()
            case "kill journal":
                self.room.supervisor.refs["journal"].kill()
            case "fail":
                fails = self.chance.randrange(3)
                at = self.store._writes + fails
                self.store.fate = lambda number: disk_full() if number == at else None
            case "refuse":
                table = self.chance.choice(["bodies", "inbox", "slots"])
                number = max((key[1] for key in rows(self.store, "bodies", (SLOT,))), default=0)
                key = (SLOT, number + self.chance.randrange(1, 8))
                self.store.refuse(table, key, times=self.chance.randrange(1, 3))
            case "hold":
                self.store.hold = True
            case "release":
                self._release()
        for _ in range(self.chance.randrange(4)):
            await trio.lowlevel.checkpoint()

    def _release(self) -> None:
        if self.store.hold:
            self.store.hold = False
            self.store.release()

    async def _turn(self) -> None:
        """A step of a turn: it takes what came, joins it, or ends behind it."""
        self._release()
        slot = self.room.slot
        with suppress(NotStoredError, LeaseLostError):
            if self.turn is None:
                found = await slot.ask(start())
                if isinstance(found, TurnStart):
                    self.turn, self.round, self.gap = found, found.round, ()
            elif self.gap:
                gap, self.gap = self.gap, ()
                try:
                    await slot.ask(close(self.turn, self.round, *gap))
                except NotStoredError:
                    self.gap = gap
            else:
                calls = ("c1",) if self.chance.random() < 0.6 else ()
                await slot.ask(record(self.turn, self.round + 1, "r", *calls))
                self.round, self.gap = self.round + 1, calls
                if not calls:
                    self.turn = None

    async def finish(self) -> list[Any]:
        """What each ask came to, an error in its place."""
        self._release()
        self.store.fate = lambda number: None
        found = await outcomes_of(future for _, future in self.asked)
        await wait_all_tasks_blocked()
        return found


STEPS_OF = (
    *("send", "send", "send", "many", "many", "turn", "turn", "retract", "kill slot"),
    *("kill journal", "fail", "refuse", "hold", "release"),
)


def judge(program: Program, answers: list[Any]) -> None:
    """Hold what is stored against what the senders were told."""
    store = program.store
    ids = {key[1]: row for key, row in rows(store, "ids", (SLOT,)).items()}
    bodies = {key[1]: row for key, row in rows(store, "bodies", (SLOT,)).items()}
    numbers: dict[str, int] = {}
    order: list[int] = []
    for (many, _), answer in zip(program.asked, answers, strict=True):
        if isinstance(answer, NotStoredError) or not many:
            assert not isinstance(answer, Exception) or isinstance(answer, MAY_BE), answer
            continue
        receipts = (answer,) if isinstance(answer, Receipt) else answer
        assert [receipt.id for receipt in receipts] == [said.message for said in many]
        for said, receipt in zip(many, receipts, strict=True):
            known = ids[said.message]
            assert (known.entry, known.body_crc) == (receipt.seq, said.body_crc), receipt
            if known.state in ("inbox", "slot"):
                assert encode_body(bodies[known.entry].blocks) == said.body
            elif known.state == "retracted":
                assert said.message in program.retracted
            else:
                assert (known.state, said.subject) == ("replaced", "weather")
            if said.message not in numbers and receipt.replaces is None and not said.subject:
                order.append(receipt.seq)
            assert numbers.setdefault(said.message, receipt.seq) == receipt.seq
    assert order == sorted(order), "numbers are in the order in which messages were sent"
    check(store)


MAY_BE = (NotStoredError, MessageReadError, UnknownMessageError)


@pytest.mark.behaviour("R-4", "R-29")
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_acknowledged_is_there_once_as_it_was_said(
    autojump_clock: MockClock, seed: int
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        program = Program(room, store, seed)
        for _ in range(STEPS):
            await program.step()
        judge(program, await program.finish())
