"""A slot's predicted state: what the store will hold once all that is planned is in. No actor.

It is read once, whole, and answers questions; `slot_book` plans on it and changes it. What can't be
trusted any more is thrown away. Invariants that are named here are the book's.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from abeyance.storage.store import Guard, Store
from abeyance.storage.tables.slots import Carried, Entry, Head, Inboxed, Lease, Turn, Wake

from .agent_limits import AgentLimits
from .ingress import identity
from .mode import read_mode
from .slot_draft import Counted
from .slot_edit_book import EditBook
from .slot_lost import Lost, find_lost, lost_at
from .slot_messages import Accept
from .slot_opening import STEP_ROWS, read_carried, read_numbers, read_ranges, read_unread
from .slot_ranges import SlotRanges
from .slot_reading import Reading, read_forked, reading
from .slot_rows import read_rows

Subject: TypeAlias = tuple[str | None, str, str | None, str | None]
"""Agent (None: the slot's own), author, channel, subject."""

_FREE: Final = Lease(token=0, entry_next=1, seq_next=1, request_next=1)


class SlotMirror:
    """The mirror of one slot. See the module's invariants.

    Args:
        read: Read the store at once; else `read` is to be stepped through before anything is asked.
    """

    def __init__(self, store: Store, slot: str, owner_counter: int, *, read: bool = True) -> None:
        self.store = store
        self.slot = slot
        self.owner = Guard("owners", ("slot", slot), owner_counter)
        self._lease = Counted.read(store, "leases", (slot,), _FREE)
        self.inbox: dict[int, Inboxed] = {}
        self.inbox_bytes = 0
        self.reworded: dict[int, int] = {}
        """By entry, of what waits: the counter of its content's row, where a newer message of its
        subject put it again. Its own row was put with it every time."""
        self.lost: dict[int, Lost] = {}
        """By entry: what waits and has no row that can be read, and whose end is not planned."""
        self.unwoken: frozenset[int] = frozenset()
        """Entries whose wakes are none any more, with what was lost or given up."""
        self.limits: Mapping[str, AgentLimits] = {}
        """Of the agents whose inbox takes less than the slot's."""
        self.wakes: dict[str, dict[int, Wake]] = {}
        self.answered: list[tuple[str, int]] = []
        self.heads: dict[str, Counted] = {}
        self.turns: dict[str, Counted] = {}
        self.pairs: dict[str, Counted] = {}
        self.next_rows = SlotRanges()
        self.edits = EditBook(store, slot)
        self.carried: Carried | None = None
        """The slot's last request."""
        self.forked = read_forked(store, slot)
        self.is_deferring = read_mode(store).is_quiesced
        """Nothing moves from the inbox into the slot, and messages go to the inbox (I7)."""
        self.unread: dict[int, tuple[int, Entry | Inboxed]] = {}
        """By entry: its place, and its row as it is there or as it was in the inbox."""
        self.subjects: dict[Subject, int] = {}
        self.gone: dict[str, tuple[int, Literal["replaced", "retracted"]]] = {}
        """Messages that what is on its way takes out."""
        if read:
            for _ in self.read():
                pass

    def read(self) -> Iterator[None]:
        """Read the slot, a part a step. Nobody writes it meanwhile: its actor does nothing else."""
        for place, (key, found) in enumerate(self.store.scan("inbox", (self.slot,)), 1):
            entry = int(key[-1])
            if isinstance(found, Exception):
                self.lost[entry] = lost_at(entry, found)
                continue
            row = found.record
            self.inbox[entry] = row
            self.inbox_bytes += row.body_bytes
            if found.counter > 1:
                self.reworded[entry] = found.counter
            if place % STEP_ROWS == 0:
                yield
        if self.lost:
            self.unwoken = frozenset(self.lost)
            yield from find_lost(self.store, self.slot, self.lost)
        self._entry_next, self._seq_next = read_numbers(self.store, self.slot, self.lease)
        self.carried = read_carried(self.store, self.slot)
        yield from read_ranges(self)
        yield from read_unread(self)

    def remember(self, entry: int, row: Entry | Inboxed) -> None:
        """Have a later message of this one's subject find it."""
        if row.subject is not None:
            self.subjects[self.subject_of(row)] = entry

    def forget_subject(self, entry: int, row: Entry | Inboxed) -> None:
        """Have no later message find it."""
        subject = self.subject_of(row)
        if self.subjects.get(subject) == entry:
            del self.subjects[subject]

    def subject_of(self, row: Accept | Entry | Inboxed) -> Subject:
        """What a newer message must have in common with an older one to take its place."""
        agent = None if row.agent == self.slot else row.agent
        return agent, identity(row.author), row.channel, row.subject

    # -- reading -----------------------------------------------------------------------------

    @property
    def lease(self) -> Lease:
        record: Lease = self._lease.record
        return record

    @property
    def ranges(self) -> list[list[int]]:
        """What the next request carries (I4)."""
        return self.next_rows.spans

    @property
    def entry_next(self) -> int:
        """The number that the next entry gets."""
        return self._entry_next

    @property
    def seq_next(self) -> int:
        """The place that the next row of the slot takes."""
        return self._seq_next

    @property
    def is_leased(self) -> bool:
        return self.lease.turn is not None

    @property
    def lands_at_once(self) -> bool:
        """Whether a message that is accepted now is in the slot with its acceptance (I2, I7)."""
        return self._lease.record.turn is None and not self.inbox and not self.is_deferring

    def is_cut(self, seq: int) -> bool:
        """Whether a rewind took this place out of the transcript."""
        return any(cut.first <= seq <= cut.last for cut in self.lease.cuts)

    def reading(self, seq: int) -> Reading:
        """How far the message at a place was read, once what is planned is in."""
        return reading(self.lease, self.carried, self.forked, seq)

    def attach(self, agent: str) -> None:
        """Mirror an agent's wakes and its open turn. Idempotent."""
        if agent in self.wakes:
            return
        rows = read_rows(self.store, "wakes", (agent,))
        wakes = {int(key[-1]): wake for key, wake in rows if int(key[-1]) not in self.unwoken}
        head = Counted.read(self.store, "heads", (agent,), Head(last_turn=0))
        if head.record.open_turn is not None:
            turn = Counted.read(self.store, "turns", (agent, head.record.open_turn))
            self.turns[agent] = turn
            # Deleting them was cut from the commit that answered them, and may not have followed.
            left = [entry for entry in turn.record.answers if wakes.pop(entry, None) is not None]
            self.answered += [(agent, entry) for entry in left]
        if head.record.open_pair is not None:
            self.pairs[agent] = Counted.read(self.store, "turns", (agent, head.record.open_pair))
        self.wakes[agent], self.heads[agent] = wakes, head

    def has_work(self, agent: str) -> bool:
        """Whether a turn of this agent is open or asked for."""
        self.attach(agent)
        return agent in self.turns or bool(self.wakes[agent])

    def wakes_retained(self, agent: str) -> int:
        """How many wakes of an agent wait; one that came twice counts once.

        What tells wakes apart is why, from whom, on which channel and when, not the message.
        """
        kept = self.wakes.get(agent, {}).values()
        return len({(wake.reason, wake.author, wake.channel, wake.at_ms) for wake in kept})

    def open_turn(self, agent: str) -> Turn | None:
        row = self.turns.get(agent)
        return None if row is None else row.record

    def open_number(self, agent: str) -> int | None:
        head = self.heads.get(agent)
        return None if head is None else head.record.open_turn
