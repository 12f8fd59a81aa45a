"""What binds which (agent, model), and until when: the durable rows with pending acts applied.

Invariants:
    I1  What binds is the key's row with its pending acts applied in order: a release ends what
        stood before it, a wait binds where it outlasts it. An act binds from the moment it is made.
    I2  A wait binds while its deadline is later than now; one without a deadline binds until it is
        released. Expiry writes nothing.
    I3  A row that cannot be read holds exactly its key until it reads again or is released.

Read by anyone on the loop thread; written by the ledger actor only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait, WaitReleased

from .limits import RECHECK_MS as RECHECK_MS

UNREADABLE_ACT: Final = "unreadable"


HoldCause: TypeAlias = Literal["wait", "unreadable", "quota", "cooldown", "host", "account"]


class ProviderWait(NamedTuple):
    """One wait in force."""

    agent: str
    model: str
    deadline_ms: int | None
    """Epoch milliseconds; None has no end of its own and is ended by a release."""
    reason: str
    set_ms: int


class Deferral(NamedTuple):
    """Why a call may not be made now. No call was made."""

    agent: str
    model: str
    deadline_ms: int | None
    reason: str
    cause: HoldCause


class WaitAct:
    """One statement or release on its way to storage."""

    # `durable`: storage holds it, or something that outlasts it.

    __slots__ = ("durable", "key", "record")

    def __init__(self, key: tuple[str, str], record: Wait | WaitReleased) -> None:
        self.key = key
        self.record = record
        self.durable = False


class WaitWatcher(Protocol):
    """Who is told of what an operator should know. Called on the loop thread; does not raise."""

    def bound(self, key: tuple[str, str], wait: Wait) -> None:
        """A wait began to bind a key, in this process at least."""

    def unreadable(self, agent: str, model: str, reason: str, episode: str) -> None:
        """Whether waits bind this agent and model, either of them `*`, cannot be known any more."""


class Episodes:
    """What cannot be read at present: each is told of once, however often it is read in vain.

    An episode ends when the same can be read again, or was released; and with the process.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._open: dict[tuple[str, str], str] = {}
        self._count = 0
        self.watcher: WaitWatcher | None = None

    def begin(self, agent: str, model: str, reason: str) -> str:
        """Note that something cannot be read; return the fingerprint of its episode."""
        episode = self._open.get((agent, model))
        if episode is None:
            self._count += 1
            episode = self._open[agent, model] = f"{self._process}:{self._count}"
            if self.watcher is not None:
                self.watcher.unreadable(agent, model, reason, episode)
        return episode

    def end(self, agent: str, model: str) -> None:
        """Note that it can be read, or does not matter any more."""
        if self._open:
            self._open.pop((agent, model), None)


class WaitBook:
    """Waits as they bind in this process."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.pending: list[WaitAct] = []
        """Acts made here and not known to be stored, in order."""
        self.episodes = Episodes(store.nonce)
        self._by_key: dict[tuple[str, str], list[WaitAct]] = {}
        """The same by key, so that an admission looks at no other key's."""

    def add(self, acts: Sequence[WaitAct]) -> None:
        """Have acts bind from now on, behind what is pending. The ledger's."""
        self.pending.extend(acts)
        for act in acts:
            self._by_key.setdefault(act.key, []).append(act)

    def pending_of(self, key: tuple[str, str]) -> Sequence[WaitAct]:
        """A key's pending acts, in order."""
        return self._by_key.get(key, ())

    def drop_durable(self) -> list[WaitAct]:
        """Take out the pending acts that are durable by now, and return them. The ledger's."""
        done = [act for act in self.pending if act.durable]
        if done:
            self.pending[:] = [act for act in self.pending if not act.durable]
            for key in {act.key for act in done}:
                left = [act for act in self._by_key[key] if not act.durable]
                if left:
                    self._by_key[key] = left
                else:
                    del self._by_key[key]
        return done

    def deferral(self, agent: str, model: str) -> Deferral | None:
        """Why a call to this key may not be made now, or None."""
        try:
            wait = self.binding((agent, model))
        except UnreadableRecordError as error:
            reason = _unreadable(error)
            self.episodes.begin(agent, model, reason)
            return Deferral(agent, model, None, reason, "unreadable")
        self.episodes.end(agent, model)
        if wait is None:
            return None
        return Deferral(agent, model, wait.deadline_ms, wait.reason, "wait")

    def binding(self, key: tuple[str, str]) -> Wait | None:
        """The wait that binds a key, or None.

        Raises:
            UnreadableRecordError: Whether one binds cannot be known.
        """
        return self._live(self._folded(key))

    def _folded(self, key: tuple[str, str]) -> Wait | WaitReleased | None:
        acts = [act.record for act in self._by_key.get(key, ())]
        record: Wait | WaitReleased | None
        if not any(isinstance(act, WaitReleased) for act in acts):
            row = self._store.get("waits", key)
            record = None if row is None else row.record
        else:
            # What a release ends need not be readable.
            record = None
            while not isinstance(record, WaitReleased):
                record = acts.pop(0)
        for act in acts:
            record = apply(record, act)
        return record

    def listing(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force, of one agent or of all, by agent and model."""
        found: dict[tuple[str, str], Wait | WaitReleased] = {}
        for key, row in self._store.scan("waits", () if agent is None else (agent,)):
            # A key that cannot be read is shown as far as it can be.
            name = (str(key[0]) if key else "*", str(key[1]) if len(key) > 1 else "*")
            if isinstance(row, UnreadableRecordError):
                found[name] = Wait(
                    deadline_ms=None,
                    reason=_unreadable(row),
                    set_ms=self._clock.now_ms(),
                    act=UNREADABLE_ACT,
                )
            elif isinstance(row, Exception):
                raise row
            elif row is not None:
                found[name] = row.record
        for act in self.pending:
            if agent is None or act.key[0] == agent:
                found[act.key] = apply(found.get(act.key), act.record)
        return tuple(
            ProviderWait(*key, wait.deadline_ms, wait.reason, wait.set_ms)
            for key, record in sorted(found.items())
            if (wait := self._live(record)) is not None
        )

    def _live(self, record: Wait | WaitReleased | None) -> Wait | None:
        if not isinstance(record, Wait):
            return None
        over = record.deadline_ms is not None and record.deadline_ms <= self._clock.now_ms()
        return None if over else record


def apply(record: Wait | WaitReleased | None, act: Wait | WaitReleased) -> Wait | WaitReleased:
    """What a key's record is after an act. Applying the same acts twice changes nothing."""
    if isinstance(act, Wait) and isinstance(record, Wait):
        return act if outlasts(act.deadline_ms, record.deadline_ms) else record
    return act


def outlasts(deadline_ms: int | None, other_ms: int | None) -> bool:
    """Whether a deadline is strictly later than another; None is later than every instant."""
    if other_ms is None:
        return False
    return deadline_ms is None or deadline_ms > other_ms


def _unreadable(error: Exception) -> str:
    return f"the recorded wait cannot be read: {error}"[:REASON_CHARS_MAX]
