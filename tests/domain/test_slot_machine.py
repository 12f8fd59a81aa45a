"""Generated lives of a slot, held against a model of lists and sets after every step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abeyance.actors.domain.errors import (
    InvalidInputError,
    LeaseLostError,
    MessageReadError,
    RewindRefusedError,
)
from abeyance.actors.domain.slot_messages import (
    NothingToDo,
    Receipt,
    Retract,
    RewindSlot,
    TurnStart,
    UndoRewind,
)
from abeyance.actors.testing import WallClock

from .desk import DeskStore, outcomes_of, rows
from .slots import (
    SLOT,
    accept,
    check,
    close,
    end,
    hold,
    places,
    record,
    shown,
    start,
    waiting,
    wakes_of,
)
from .test_slot_actor import Room, open_room

OPERATIONS = (
    *("accept", "accept", "burst", "own", "again", "start", "start", "round", "round"),
    *("boundary", "boundary", "reply", "hold", "end", "stop", "late", "kill", "crash", "refuse"),
    *("about", "about", "retract", "unsent", "rewind", "undo"),
)
Step = tuple[str, int]
NOW_MS = WallClock().now_ms()


class Model:
    """What a slot holds, without rows, counters or requests."""

    def __init__(self) -> None:
        self.transcript: list[str] = []
        self.inbox: list[tuple[str, bool]] = []
        self.entries: dict[str, int] = {}
        self.wakes: set[str] = set()
        self.given_back = 0
        self.state = "none"
        """Of the open turn: none, running, held."""
        self.turns = 0
        self.round = 0
        self.gap: list[str] = []
        self.attempts = 0
        self.injects = True
        self.carried: list[tuple[int, int, list[int], bool | None]] = []
        self.places: list[int] = []
        self.seq_next = 1
        self.rewinds: list[tuple[int, list[str], list[int]]] = []
        self.read: set[int] = set()
        """Places that were read."""
        self.answers: set[str] = set()
        """What the open turn is to answer."""
        self.about: dict[str, str] = {}
        """The newest message of each subject."""
        self.gone: set[int] = set()
        """Places whose rows were taken back."""

    def put(self, row: str) -> None:
        self.transcript.append(row)
        self.places.append(self.seq_next)
        self.seq_next += 1

    def sendable(self) -> list[int]:
        rows = zip(self.places, self.transcript, strict=True)
        return [place for place, row in rows if not row.startswith("marker")]

    def rewind(self, to: int) -> None:
        at = len([place for place in self.places if place <= to])
        if self.places[at:]:
            self.rewinds.append((self.seq_next, self.transcript[at:], self.places[at:]))
            del self.transcript[at:], self.places[at:]

    def undo(self) -> bool:
        if self.state == "running" or not self.rewinds or self.rewinds[-1][0] != self.seq_next:
            return False
        _, transcript, places = self.rewinds.pop()
        self.transcript += transcript
        self.places += places
        return True

    def carry(self) -> None:
        self.carried.append((self.turns, self.round + 1, self.sendable(), False))

    def sent(self, sent: bool | None = True) -> None:
        self.carried[-1] = (*self.carried[-1][:3], sent)
        self.read |= set(self.carried[-1][2])

    def place_of(self, words: str) -> int | None:
        """Where a message is in the transcript, or was before a rewind."""
        cut = [
            (row, place)
            for _, rows_, places_ in self.rewinds
            for row, place in zip(rows_, places_, strict=True)
        ]
        for row, place in (*zip(self.transcript, self.places, strict=True), *cut):
            if row.partition(": ")[2] == words:
                return place
        return None

    def in_inbox(self, words: str) -> bool:
        return any(words == each for each, _ in self.inbox)

    def is_unread(self, words: str) -> bool:
        """Whether it may be taken out."""
        place = self.place_of(words)
        if place is None:
            return self.in_inbox(words)
        in_flight = self.state == "running" and place in self.carried[-1][2]
        return place not in self.read and not in_flight

    def replace(self, older: str, newer: str) -> None:
        if self.in_inbox(older):
            self.inbox = [(newer if older == each else each, own) for each, own in self.inbox]
        else:
            self.transcript[self.places.index(self.place_of(older) or 0)] = f"user: {newer}"
        self.entries[newer] = self.entries.pop(older)
        if older in self.answers:
            self.answers = self.answers - {older} | {newer}
        else:
            self.wakes = self.wakes - {older} | {newer}

    def retract(self, words: str) -> None:
        place = self.place_of(words)
        self.inbox = [(each, own) for each, own in self.inbox if each != words]
        if place is not None:
            self.gone.add(place)
            for transcript, places_ in (
                (self.transcript, self.places),
                *((r, p) for _, r, p in self.rewinds),
            ):
                if place in places_:
                    at = places_.index(place)
                    del transcript[at], places_[at]
        del self.entries[words]
        self.wakes.discard(words)
        if words in self.answers:
            self.answers.discard(words)
            # What a stop gave back stands for whatever its turn was to answer.
            if not self.answers and not self.wakes and not self.given_back and self.round == 0:
                self.state = "none"

    def accept(self, words: str, own: bool) -> str:
        if not own:
            self.wakes.add(words)
        if self.state == "running" or self.inbox:
            self.inbox.append((words, own))
            return "accepted"
        self.land(words, own)
        return "stored"

    def land(self, words: str, own: bool) -> None:
        self.put(f"{'assistant' if own else 'user'}: {words}")

    def drain(self) -> None:
        for words, own in self.inbox:
            self.land(words, own)
        self.inbox.clear()

    def start(self, injects: bool) -> bool:
        self.injects = injects
        if self.state == "running":
            self.attempts += 1
            if not self.gap:
                self.sent(None)
                self.carry()
            return True
        if self.state == "none":
            if not self.wakes and not self.given_back:
                return False
            self.turns += 1
            self.round = 0
        self.drain()
        self.answers |= self.wakes | ({"given back"} if self.given_back else set())
        self.wakes.clear()
        self.given_back = 0
        self.state, self.attempts = "running", 1
        self.carry()
        return True

    def record(self, words: str, calls: list[str]) -> None:
        self.sent()
        self.round += 1
        self.attempts = 1
        self.put(" ".join([f"assistant: {words}", *(f"<{call}>" for call in calls)]))
        self.gap = calls
        if not calls:
            self.over("none")

    def place_results(self) -> None:
        self.put("results: " + " ".join(f"={call}" for call in self.gap))
        self.gap = []

    def boundary(self) -> list[str]:
        before = len(self.transcript)
        self.place_results()
        while self.injects and self.inbox and not self.inbox[0][1]:
            words, own = self.inbox.pop(0)
            if words in self.wakes:
                self.wakes.discard(words)
                self.answers.add(words)
            self.land(words, own)
        self.carry()
        return self.transcript[before:]

    def over(self, state: str) -> None:
        self.state = state
        if state == "none":
            self.answers.clear()
        self.drain()

    def end(self, give_back: bool) -> None:
        if self.gap:
            self.place_results()
        self.put("marker: over")
        self.given_back += give_back
        self.over("none")


class Life:
    """One generated life: each step asks the slot and the model, then compares all they hold."""

    def __init__(self, room: Room, model: Model, turn: TurnStart | None, serial: int) -> None:
        self.room = room
        self.model = model
        self.turn = turn
        self.serial = serial
        self.reborn = False

    async def step(self, operation: str, number: int) -> None:
        await getattr(self, f"do_{operation}")(number)
        self.compare()

    async def _accept(self, *, own: bool, known: bool) -> None:
        self.serial += 1
        words = f"w{self.serial}"
        message = accept(words, own=own, known=words if known else None)
        receipt = await self.room.slot.ask(message)
        assert receipt.state == self.model.accept(words, own)
        assert receipt.seq > max([0, *self.model.entries.values()])
        self.model.entries[words] = receipt.seq

    async def do_accept(self, number: int) -> None:
        await self._accept(own=False, known=bool(number % 2))

    async def do_own(self, number: int) -> None:
        await self._accept(own=True, known=bool(number % 2))

    async def do_about(self, number: int) -> None:
        """A message of a subject that earlier ones may be of."""
        self.serial += 1
        words, subject, model = f"w{self.serial}", f"s{number % 2}", self.model
        older = model.about.get(subject)
        is_cut = older is not None and any(
            f"user: {older}" in transcript for _, transcript, _ in model.rewinds
        )
        receipt = await self.room.slot.ask(accept(words, subject=subject, known=words))
        if older is not None and model.is_unread(older) and not is_cut:
            model.replace(older, words)
            assert (receipt.replaces, receipt.seq) == (older, model.entries[words])
        else:
            assert receipt.state == model.accept(words, False)
            model.entries[words] = receipt.seq
        model.about[subject] = words

    async def do_retract(self, number: int) -> None:
        model = self.model
        if not model.entries:
            return
        words = sorted(model.entries)[-1 - number % len(model.entries)]
        ids = {
            row.entry: key[1]
            for key, row in rows(self.room.store, "ids", (SLOT,)).items()
            if row.state in ("inbox", "slot")
        }
        retract = Retract(ids[model.entries[words]], NOW_MS)
        if model.is_unread(words):
            receipt = await self.room.slot.ask(retract)
            assert (receipt.state, receipt.seq) == ("retracted", model.entries[words])
            model.retract(words)
            model.about = {about: each for about, each in model.about.items() if each != words}
        else:
            with pytest.raises(MessageReadError):
                await self.room.slot.ask(retract)

    async def do_unsent(self, number: int) -> None:
        """A hold before the request left."""
        if self.turn is None:
            return
        allowed = self._running and not self.model.gap
        await self._refused_or(allowed, hold(self.turn, sent=False))
        if allowed:
            self.model.over("held")

    async def do_burst(self, number: int) -> None:
        asked = {}
        for _ in range(number + 1):
            self.serial += 1
            asked[f"w{self.serial}"] = self.room.slot.ask(accept(f"w{self.serial}"))
        for words, receipt in zip(asked, await outcomes_of(asked.values()), strict=True):
            assert receipt.state == self.model.accept(words, False)
            self.model.entries[words] = receipt.seq

    async def do_again(self, number: int) -> None:
        """The id of a message that is there, with its content."""
        if not self.model.entries:
            return
        words = sorted(self.model.entries)[number % len(self.model.entries)]
        ids = {
            row.entry: key[1]
            for key, row in rows(self.room.store, "ids", (SLOT,)).items()
            if row.state in ("inbox", "slot")
        }
        known = ids[self.model.entries[words]]
        receipt = await self.room.slot.ask(accept(words, known=known))
        inboxed = any(words == each for each, _ in self.model.inbox)
        landed = any(row.endswith(f": {words}") for row in self.model.transcript)
        state: Any = "accepted" if inboxed else "stored" if landed else "rewound"
        assert receipt == Receipt(known, self.model.entries[words], state)

    async def do_start(self, number: int) -> None:
        injects = number % 4 != 3
        granted = await self.room.slot.ask(start(injects=injects))
        if not self.model.start(injects):
            assert granted == NothingToDo()
            return
        model = self.model
        assert (granted.turn, granted.round, granted.attempts) == (
            *(model.turns, model.round, model.attempts),
        )
        assert granted.gap == (model.round if model.gap else None)
        if self.turn is not None:
            assert granted.token > self.turn.token
        self.turn = granted

    async def _refused_or(self, allowed: bool, message: Any) -> Any:
        """Ask; what the turn's state does not allow must be refused, and change nothing."""
        if allowed:
            return await self.room.slot.ask(message)
        if self.reborn:
            # After a kill it may be taken for one that came back: answered as done, and not done.
            with suppress(LeaseLostError):
                await self.room.slot.ask(message)
            return None
        with pytest.raises(LeaseLostError):
            await self.room.slot.ask(message)
        return None

    @property
    def _running(self) -> bool:
        return self.model.state == "running"

    async def do_round(self, number: int) -> None:
        if self.turn is None:
            return
        self.serial += 1
        calls = [f"c{self.serial}.{each}" for each in range(number % 2 + 1)]
        allowed = self._running and not self.model.gap
        message = record(self.turn, self.model.round + 1, f"r{self.serial}", *calls)
        await self._refused_or(allowed, message)
        if allowed:
            self.model.record(f"r{self.serial}", calls)

    async def do_reply(self, number: int) -> None:
        if self.turn is None:
            return
        self.serial += 1
        allowed = self._running and not self.model.gap
        message = record(self.turn, self.model.round + 1, f"r{self.serial}")
        await self._refused_or(allowed, message)
        if allowed:
            self.model.record(f"r{self.serial}", [])

    async def do_boundary(self, number: int) -> None:
        if self.turn is None:
            return
        allowed = self._running and bool(self.model.gap)
        message = close(self.turn, self.model.round, *(self.model.gap or ["c"]))
        placed = await self._refused_or(allowed, message)
        if allowed:
            first, last = placed
            assert last - first + 1 == len(self.model.boundary())

    async def do_hold(self, number: int) -> None:
        if self.turn is None:
            return
        allowed = self._running and not self.model.gap
        await self._refused_or(allowed, hold(self.turn))
        if allowed:
            self.model.sent()
            self.model.over("held")

    async def do_end(self, number: int, *, give_back: bool = False) -> None:
        if self.turn is None:
            return
        message = end(self.turn, *self.model.gap, give_back=give_back)
        allowed = self._running
        await self._refused_or(allowed, message)
        if allowed:
            self.model.end(give_back)

    async def do_stop(self, number: int) -> None:
        await self.do_end(number, give_back=True)

    async def do_late(self, number: int) -> None:
        """An act of a holder that is no more."""
        if self.turn is None:
            return
        old = self.turn._replace(token=self.turn.token - 1)
        late = (record(old, 1, "x"), close(old, 1, "c"), hold(old), end(old))[number]
        await self._refused_or(False, late)

    async def do_rewind(self, number: int) -> None:
        self.serial += 1
        places = [0, *self.model.places]
        to = places[-1 - number % len(places)]
        act = RewindSlot(to, f"act{self.serial}", "api:ops", NOW_MS)
        row = dict(zip(self.model.places, self.model.transcript, strict=True)).get(to, "")
        if self._running or "<" in row:
            with pytest.raises((RewindRefusedError, InvalidInputError)):
                await self.room.slot.ask(act)
            return
        await self.room.slot.ask(act)
        self.model.rewind(to)

    async def do_undo(self, number: int) -> None:
        self.serial += 1
        undo = UndoRewind(f"undo{self.serial}", "api:ops", NOW_MS)
        if self.model.undo():
            await self.room.slot.ask(undo)
            return
        with pytest.raises(RewindRefusedError):
            await self.room.slot.ask(undo)

    async def do_kill(self, number: int) -> None:
        self.reborn = True
        self.room.slot.kill()
        await trio.lowlevel.checkpoint()

    async def do_refuse(self, number: int) -> None:
        """The next requests are refused once: their acts are planned anew."""
        self.room.store.refuse_next = number + 1  # type: ignore[attr-defined]
        await self._accept(own=False, known=False)
        self.room.store.refuse_next = 0  # type: ignore[attr-defined]

    def compare(self) -> None:
        model, store = self.model, self.room.store
        assert shown(store) == model.transcript
        assert waiting(store) == [words for words, _ in model.inbox]
        stand = wakes_of(store)
        assert {model.entries[words] for words in model.wakes} <= stand
        assert len(stand) == len(model.wakes) + model.given_back
        assert [
            (row.turn, row.round, places(store, row.rows), row.sent)
            for row in rows(store, "carried", (SLOT,)).values()
        ] == [
            (turn, round_, [place for place in carried if place not in model.gone], sent)
            for turn, round_, carried, sent in model.carried
        ]
        check(store)


async def live(steps: list[Step]) -> None:
    store = DeskStore()
    store.own(SLOT)
    model, turn, serial = Model(), None, 0
    left = list(steps)
    while True:
        async with open_room(store, "ana") as room:
            life = Life(room, model, turn, serial)
            while left:
                operation, number = left.pop(0)
                if operation == "crash":
                    break
                await life.step(operation, number)
            else:
                return
        turn, serial = life.turn, life.serial
        # What a provider carries is told again by the next start; until then nothing is injected.
        model.injects = False
        crashed = store.reopened(nonce=store.nonce)
        crashed.__class__ = DeskStore
        crashed.batches, crashed.fate, crashed._writes = [], lambda number: None, 0  # type: ignore[attr-defined]
        store = crashed  # type: ignore[assignment]


@pytest.mark.behaviour("D-001", "D-006", "D-007", "D-009", "D-016", "D-017", "D-094")
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3)), max_size=40))
def test_a_slot_is_what_its_model_is_after_every_step(steps: list[Step]) -> None:
    trio.run(live, [("accept", 0), ("start", 0), *steps])
