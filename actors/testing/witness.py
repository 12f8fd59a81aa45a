"""Watches every call of a turn, in process, and holds it against the slot as it is then.

What `invariant` says of a wire alone, this says with the store at hand: which request begins a
compile, what a compile renders while the call is out, and what waits in the inbox. It reads rows by
itself and renders them by itself; it shares no code with the compiles that it checks.

Invariants, while a call is out:
    I1  The slot's rows are what the request carries: nothing more, in the same order and shape.
    I2  The last `carried` row names exactly those rows.
    I3  Accepted messages stand in the order they were accepted in, and none that is in the slot was
        accepted behind one that waits: a boundary cuts, it never skips.

Runs in: the task of the turn that calls; `problems` is for the loop thread or after it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from abeyance.storage.errors import StorageError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.blocks import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from ..domain.call import Calls
from ..domain.turn import TurnSeams
from ..providers.port import ModelReply, ModelRequest, name_of
from . import invariant
from .invariant import Exchange, Said, canonical_blocks, said_of, sendable
from .simulator import ProviderSimulator


class _Slot(NamedTuple):
    """A slot as it is stored, read by nobody's help."""

    said: tuple[Said, ...]
    places: tuple[int, ...]
    """Where what is said stands, in the same order."""
    accepted: tuple[int, ...]
    """The entries of accepted messages, in the slot's order."""
    waiting: tuple[int, ...]
    """The entries in the inbox."""
    carried: tuple[int, ...]
    """The places that the last request was recorded to carry."""
    summarised: int | None
    """Up to which place a summary is said in place of the rows."""


class Witness:
    """What was seen of the calls of a block. Made by `witnessed`."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        """Every call of a turn, with what a compile rendered when it was made."""
        self.simulators: list[ProviderSimulator] = []
        """Those that were made meanwhile."""
        self.seen: list[str] = []
        """What did not hold while a call was out."""
        self._turns: dict[str, tuple[int, int]] = {}
        """Of each stream's last call: its turn, and the lease's token."""
        self._views: dict[str, int | None] = {}
        """Of each stream's last call: up to which place a summary stood in it."""

    def problems(self) -> list[str]:
        """What does not hold, a line each: of the calls as they were made, and on the wires."""
        found = [*self.seen, *invariant.violations(self.exchanges)]
        for simulator in self.simulators:
            found += self._on_the_wire(simulator)
        return found

    def check(self) -> None:
        """Fail where something does not hold.

        Raises:
            AssertionError: The text has a line for each place.
        """
        found = self.problems()
        if found:
            raise AssertionError("the invariant of a slot is broken:\n" + "\n".join(found))

    def _on_the_wire(self, simulator: ProviderSimulator) -> list[str]:
        """What a simulator got, call by call: its log says what was said, we whose it was."""
        ours = {exchange.number: exchange for exchange in self.exchanges}
        wire = []
        for entry in invariant.read_log(simulator, stream=lambda request: ""):
            known = next(
                (one for one in ours.values() if sendable(one.messages) == entry.messages), None
            )
            # What no turn sent is an auxiliary call, or a test's own.
            if known is not None:
                del ours[known.number]
                found = replace(entry, stream=known.stream, begins=known.begins)
                wire.append(replace(found, recast=known.recast))
        return invariant.violations(wire)

    # -- while calls are made ----------------------------------------------------------------

    async def watch(self, calls: Calls, provider: Any, *how: Any) -> ModelReply:
        """Make a call, and look at the slot when it goes out and when it is over."""
        request: ModelRequest = how[0]
        seams, agent = calls._seams, calls._settings.name
        at = len(self.exchanges)
        stream = f"{agent} of {getattr(seams.store, 'directory', id(seams.store))}"
        exchange = Exchange(at + 1, stream, said_of(request), system=request.system)
        self.exchanges.append(exchange)
        types: Container[str] = getattr(provider, "attachment_types", frozenset())
        slot = self._look(seams.store, seams.slot_name, agent, exchange, types, "went out")
        if slot is None:
            # Nothing can be said of it: it is compared with no other.
            exchange = replace(exchange, stream=f"{stream}, call {at + 1}")
        else:
            begins = self._begins(seams, agent, stream)
            recast = begins and self._views.get(stream) != slot.summarised
            self._views[stream] = slot.summarised
            exchange = replace(exchange, begins=begins, compiled=slot.said, recast=recast)
        self.exchanges[at] = exchange
        try:
            returned = await provider.call(*how)
        finally:
            self._look(seams.store, seams.slot_name, agent, exchange, types, "was over")
        blocks = getattr(returned, "blocks", None)
        with suppress(Exception):  # No reply: what becomes of it is not the slot's affair.
            said = Said("assistant", canonical_blocks(blocks or ()))
            self.exchanges[at] = replace(exchange, reply=said if said.blocks else None)
        return returned  # type: ignore[no-any-return]

    def _begins(self, seams: TurnSeams, agent: str, stream: str) -> bool:
        """Whether a call is the first of a compile, told from the turn's row and the lease.

        A turn whose task died is taken up by a new lease, counted as one more attempt; one that was
        held is compiled anew, and its attempts are counted from 1 again.
        """
        store = seams.store
        head, lease = store.get("heads", (agent,)), store.get("leases", (seams.slot_name,))
        if head is None or lease is None or head.record.open_turn is None:
            return True
        number: int = head.record.open_turn
        token: int = lease.record.token
        turn = store.get("turns", (agent, number))
        earlier, before = self._turns.get(stream, (0, 0))
        self._turns[stream] = number, token
        return turn is None or earlier != number or token - before >= int(turn.record.attempts)

    def _look(
        self,
        store: Store,
        slot: str,
        agent: str,
        exchange: Exchange,
        types: Container[str],
        when: str,
    ) -> _Slot | None:
        try:
            found = _read(store, slot, agent, types)
        except (StorageError, _UnreadableError):
            # Closed, or a row that a test spoiled: then nothing can be said.
            return None
        say = f"call {exchange.number} of {exchange.stream}, when it {when}:"
        if found.said != exchange.messages:
            compared = replace(exchange, compiled=found.said, begins=None)
            self.seen += [f"{say} {line}" for line in invariant.violations([compared])]
        if found.carried != found.places:
            self.seen.append(f"{say} carried are {found.carried}, the slot holds {found.places}")
        if list(found.accepted) != sorted(found.accepted):
            self.seen.append(f"{say} messages stand in the order {found.accepted}")
        if found.waiting and found.accepted and min(found.waiting) < max(found.accepted):
            self.seen.append(
                f"{say} message {min(found.waiting)} waits, and {max(found.accepted)}, which came "
                "later, is in the slot"
            )
        return found


@contextmanager
def witnessed() -> Iterator[Witness]:
    """Watch the calls of every turn in this process for a block.

    Auxiliary calls are not watched: they carry no transcript. What is found is in the witness;
    nothing is raised here.
    """
    witness = Witness()
    make_calls, make_simulator = Calls.__init__, ProviderSimulator.__init__

    def made_calls(calls: Calls, *args: Any, **kwargs: Any) -> None:
        make_calls(calls, *args, **kwargs)
        provider = _Watched(witness, calls, calls._settings.provider)
        calls._settings = replace(calls._settings, provider=provider)

    def made_simulator(simulator: ProviderSimulator, *args: Any, **kwargs: Any) -> None:
        make_simulator(simulator, *args, **kwargs)
        witness.simulators.append(simulator)

    with (
        patch.object(Calls, "__init__", made_calls),
        patch.object(ProviderSimulator, "__init__", made_simulator),
    ):
        yield witness


class _Watched:
    """A provider as one life of a turn sees it."""

    def __init__(self, witness: Witness, calls: Calls, provider: Any) -> None:
        self._witness = witness
        self._calls = calls
        self._provider = provider

    @property
    def name(self) -> str:
        """As the provider is called."""
        return name_of(self._provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def call(self, *how: Any) -> ModelReply:
        return await self._witness.watch(self._calls, self._provider, *how)


class _UnreadableError(Exception):
    """A row that the checker needs is damaged."""


def _read(store: Store, slot: str, agent: str, types: Container[str]) -> _Slot:
    lease = store.get("leases", (slot,))
    cuts = () if lease is None else lease.record.cuts
    view = _View(store, slot, agent)
    known = store.get("agents", (agent,))
    resident = None if known is None else _record(known).parent
    voices = {_folded(name) for name in (agent, resident) if name is not None}
    said, places, accepted, silent, there = view.begins, [], [], set(), set()
    for key, found in store.scan("slots", (slot,)):
        place = int(key[-1])
        there.add(place)
        if any(cut.first <= place <= cut.last for cut in cuts):
            continue
        row = _record(found)
        if row.turn is None and row.origin is None and row.role != "marker":
            accepted.append(row.entry)
        if row.role == "marker":
            silent.add(place)
            continue
        places.append(place)
        if view.last is not None and place <= view.last:
            continue
        edited = (slot, row.edited)
        body = store.get("bodies", edited if row.edited else (row.origin or slot, row.entry))
        if body is None:
            raise _UnreadableError
        role = "assistant" if row.role == "assistant" else "user"
        blocks = [block for block in body.record.blocks if view.takes(place, row, block)]
        if row.role == "user" and _folded(row.author) == _folded(agent):
            role = "assistant"  # For another that shares the slot, in this one's words.
        elif row.role != "user" and _folded(row.author) not in voices:
            role, blocks = "user", _of_another(row.author, body.record.blocks)
        shows = types if role == "user" else ()
        blocks = [_as_shown(block, shows) for block in blocks]
        if blocks:
            said.append(Said(role, canonical_blocks(blocks)))
    waiting = tuple(int(key[-1]) for key, _ in _rows(store, "inbox", slot))
    carried: tuple[int, ...] = ()
    for _, record in _rows(store, "carried", slot):
        # A range may span markers, which no request carries, and places whose rows are gone.
        ranges = (range(first, last + 1) for first, last in record.rows)
        carried = tuple(n for part in ranges for n in part if n in there - silent)
    return _Slot(tuple(said), tuple(places), tuple(accepted), waiting, carried, view.last)


def _as_shown(block: Any, types: Container[str]) -> Any:
    """As a model is told of a block whose adapter shows it attachments of these media types."""
    if isinstance(block, ToolResultBlock):
        content = tuple(_as_shown(part, types) for part in block.content)
        return msgspec.structs.replace(block, content=content)
    if getattr(block, "media_type", None) is None or block.media_type in types:
        return block
    name = f" {block.name!r}," if block.name else ""
    what = f"{block.media_type}, {block.size_bytes:,} bytes"
    return TextBlock(text=f"[attached:{name} {what}; it is not shown here]")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).strip().casefold()


def _of_another(author: str, blocks: Any) -> list[Any]:
    """As an agent is told what another one that shares its slot said and did."""
    told: list[Any] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                told.append(TextBlock(text=f"[{author}] {text}"))
            case ToolUseBlock(name=name, input=given):
                words = json.dumps(given, ensure_ascii=False)
                told.append(TextBlock(text=f"[{author} called {name}] {words}"))
            case ToolResultBlock(content=parts, is_error=is_error):
                how = "was told of an error" if is_error else "was told"
                texts = [part.text for part in parts if isinstance(part, TextBlock)]
                told.append(TextBlock(text=f"[{author} {how}] {' '.join(texts)}"))
                told += [part for part in parts if not isinstance(part, TextBlock)]
            case ImageBlock() | AudioBlock() | DocumentBlock():
                told.append(block)
    return told or [TextBlock(text=f"[{author}] said nothing")]


class _View:
    """What a turn's row says of how its requests begin."""

    def __init__(self, store: Store, slot: str, agent: str) -> None:
        self._store = store
        self._of: dict[Any, Any] = {}
        head = store.get("heads", (agent,))
        number = None if head is None else head.record.open_turn
        turn = None if number is None else store.get("turns", (agent, number))
        self._slot = slot
        revision = store.get("revisions", (slot,))
        self._recast = () if revision is None else _record(revision).recast
        self.last: int | None = None if turn is None else turn.record.context
        self.begins: list[Said] = []
        if self.last is not None:
            summary = store.get("contexts", (slot, agent, self.last))
            if summary is None:
                raise _UnreadableError
            if summary.record.text:
                block = TextBlock(text=summary.record.text)
                self.begins.append(Said("user", canonical_blocks((block,))))

    def takes(self, place: int, row: Any, block: Any) -> bool:
        """Whether a block is said: a reply's reasoning only behind what it was produced behind."""
        if not isinstance(block, ThinkingBlock):
            return True
        if row.recast or any(
            edited < place and (row.origin is not None or row.entry < until)
            for edited, until in self._recast
        ):
            return False
        source = (row.origin or self._slot,)
        if self.last is None and not any(self._store.scan("contexts", source, limit=1)):
            return True
        if row.turn is None or row.round is None:
            return False
        key = (row.author, row.turn)
        if key not in self._of:
            self._of[key] = self._store.get("turns", key)
        turn = self._of[key]
        same = turn is not None and turn.record.context == self.last
        return bool(same and row.round > turn.record.compiled_round)


def _rows(store: Store, table: str, slot: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, found in store.scan(table, (slot,)):
        yield key, _record(found)


def _record(found: Row | Exception) -> Any:
    if isinstance(found, Row):
        return found.record
    raise _UnreadableError


__all__ = ["Witness", "witnessed"]
