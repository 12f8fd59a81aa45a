"""What a model says while it says it, for whoever looks; nothing waits for a reader.

Invariants:
    I1  What is stored comes from the store, behind a cursor: a slow reader misses deltas, never a
        message.
    I2  What was shown and does not count is said to be so: a delta is never silently replaced.
    I3  A stored message comes behind all that was said of it, however late its reader is.
    I4  A reader's memory is bounded, and a call is never held up by one.

Runs in: the loop thread. Written by the tasks of turns; outlives them and their agent's crashes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import trio

from abeyance.actors.providers.port import ReplyDelta
from abeyance.storage.errors import StoreClosedError
from abeyance.storage.store import Store

from .transcript import After, TranscriptMessage, last_place, place_after, read_transcript

DELTAS_KEPT_MAX: Final = 1_000
"""Deltas that wait for one reader. Past it they are skipped, and it is told how many."""


class Attempt(NamedTuple):
    """Which call for a round this is. Grows from call to call, through crashes and restarts."""

    lease: int
    """The turn's hold of its slot: a new one after a crash, a hold or a restart."""
    call: int
    """The call within it, from 1."""


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """A piece of a reply that is not stored yet. `kind` is text, thinking or tool_input."""

    turn: int
    round: int
    attempt: Attempt
    kind: Literal["text", "thinking", "tool_input"]
    index: int
    """Pieces of one block have one index."""
    text: str


@dataclass(frozen=True, slots=True)
class StreamSuperseded:
    """What was shown of this round by this attempt and those before it does not count."""

    turn: int
    round: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class StreamStored:
    """A message is in the transcript. It stands for the deltas of its `turn` and `round`."""

    message: TranscriptMessage


@dataclass(frozen=True, slots=True)
class StreamSkipped:
    """This reader was too slow: so many deltas are missing here. No stored message is."""

    count: int


StreamItem: TypeAlias = StreamDelta | StreamSuperseded | StreamStored | StreamSkipped


class _Gap:
    """Deltas that were skipped in one place."""

    def __init__(self) -> None:
        self.count = 0


@dataclass(slots=True)
class _Mark:
    """Rows were stored up to a place, when what stands behind this had not been said yet."""

    place: int


class _Reader:
    """What waits for one reader, in its order.

    Args:
        reached: The place of the slot's last row now.
    """

    def __init__(self, reached: Callable[[], int]) -> None:
        self._reached = reached
        self._items: deque[StreamDelta | StreamSuperseded | _Gap | _Mark] = deque()
        self._deltas = 0
        self._gap: _Gap | None = None
        self._ended = False
        self._waiting = trio.lowlevel.ParkingLot()

    def mark(self) -> None:
        """Rows may have been stored."""
        try:
            place = self._reached()
        except StoreClosedError:
            return  # The runtime has ended; the next one reads on.
        last = self._items[-1] if self._items else None
        if isinstance(last, _Mark):
            last.place = place
        else:
            self._add(_Mark(place))

    def add(self, item: StreamDelta | StreamSuperseded) -> None:
        if isinstance(item, StreamSuperseded):
            self._add(item)
            return
        if self._gap is None and self._deltas >= DELTAS_KEPT_MAX:
            self._gap = _Gap()
            self._add(self._gap)
        if self._gap is not None:
            # Until it has come to the gap, who is behind gets no piece of what follows.
            self._gap.count += 1
            return
        self._deltas += 1
        self._add(item)

    def end(self) -> None:
        self._ended = True
        self._waiting.unpark_all()

    async def wait(self) -> bool:
        """Wait until something is there; False once nothing will be. A checkpoint if it waits."""
        while not self._items:
            if self._ended:
                return False
            await self._waiting.park()
        return True

    def pop(self) -> StreamDelta | StreamSuperseded | StreamSkipped | _Mark:
        """Take what is next. Call it where `wait` has returned True."""
        item = self._items.popleft()
        if isinstance(item, _Gap):
            self._gap = None
            return StreamSkipped(item.count)
        self._deltas -= isinstance(item, StreamDelta)
        return item

    def _add(self, item: StreamDelta | StreamSuperseded | _Gap | _Mark) -> None:
        self._items.append(item)
        self._waiting.unpark_all()


class Stream:
    """One agent's readers, and what its turns tell them."""

    def __init__(self) -> None:
        self._readers: list[_Reader] = []
        self._ended = False

    def mark(self) -> None:
        """Rows of the slot may have been stored."""
        for reader in self._readers:
            reader.mark()

    def end(self) -> None:
        """Nothing comes any more. Idempotent."""
        self._ended = True
        for reader in self._readers:
            reader.end()

    def superseded(self, turn: int, round: int, attempt: Attempt) -> None:  # noqa: A002
        for reader in self._readers:
            reader.add(StreamSuperseded(turn, round, attempt))

    def told(
        self,
        turn: int,
        round: int,  # noqa: A002
        attempt: Attempt,
        delta: ReplyDelta,
    ) -> bool:
        """Pass a delta on; whether anybody was there."""
        if not self._readers:
            return False
        item = StreamDelta(turn, round, attempt, delta.kind, delta.index, delta.text)
        for reader in self._readers:
            reader.add(item)
        return True

    async def items(
        self, store: Store, slot: str, after: After
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield what comes, and what is stored behind a message.

        A checkpoint a page, and where nothing is there. Raises as `place_after`.
        """
        place = await place_after(store, slot, after)
        with self._reader(lambda: last_place(store, slot)) as reader:
            while await reader.wait():
                item = reader.pop()
                if not isinstance(item, _Mark):
                    yield item
                    continue
                # Not a row further: what was said of those behind it is still queued.
                behind = max(0, item.place - place)
                rows = read_transcript(store, slot, after=place, limit=behind)
                async with aclosing(rows):
                    try:
                        async for message in rows:
                            if message.seq > item.place:
                                break  # A rewind took rows out in between.
                            place = message.seq
                            yield StreamStored(message)
                    except StoreClosedError:
                        return  # The runtime has ended; the next one reads on behind `place`.

    @contextmanager
    def _reader(self, reached: Callable[[], int]) -> Iterator[_Reader]:
        reader = _Reader(reached)
        reader.mark()
        if self._ended:
            reader.end()
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)


class Showing:
    """The calls of one life of a turn, as a stream is told of them.

    Args:
        stream: None where nobody can look.
        lease: The token of the turn's lease.
        again: Whether an earlier life may have shown something of the round that comes.
    """

    def __init__(self, stream: Stream | None, turn: int, lease: int, *, again: bool) -> None:
        self._stream = stream
        self._turn = turn
        self._lease = lease
        self._again = again
        self._call = 0
        self._round = 0
        self._shown = False

    def begin(self, round: int) -> Callable[[ReplyDelta], None]:  # noqa: A002
        """A call for a round goes out; return what takes its deltas."""
        self._round, self._call = round, self._call + 1
        stream = self._stream
        if stream is None:
            return unshown
        attempt = Attempt(self._lease, self._call)
        if self._again:
            stream.superseded(self._turn, round, Attempt(self._lease, 0))
            self._again = False

        def on_delta(delta: ReplyDelta) -> None:
            self._shown = stream.told(self._turn, round, attempt, delta) or self._shown

        return on_delta

    def void(self) -> None:
        """What the last call showed does not count. Idempotent."""
        if self._shown and self._stream is not None:
            self._shown = False
            attempt = Attempt(self._lease, self._call)
            self._stream.superseded(self._turn, self._round, attempt)

    def stored(self) -> None:
        """What the last call said is stored."""
        self._shown = self._again = False


def unshown(delta: ReplyDelta) -> None:
    """What an adapter says as it comes, where nobody can look."""
