"""One line: who was turned away by a wall of a credential, and goes one by one when it is over.

Invariants:
    I1  Until one call has succeeded since the wall, one is out at a time. Then those who stand in
        line go in their order, each when the call before it has succeeded.
    I2  Whoever does not come when it is called loses its place after 30 s, and who has ended has
        none. A call that fails, whose gate has ended, or that has been out for 10 min keeps nobody.
    I3  Whose turn has come since the wall stands in no line any more, until the next wall.

In memory only: after a restart everyone asks anew. Runs in: the loop thread; used by gates, and by
the ledger for a release.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError

from .limits import RECHECK_MS
from .protocol import Due

PROBE_MS: Final = 600_000
"""How long others wait for one call after a wall. It may take longer, but not alone."""


class Place(NamedTuple):
    """Whom to call when its turn has come, and what it waits for."""

    ref: Any
    model: str
    since_ms: int

    @property
    def is_alive(self) -> bool:
        return self.ref is None or self.ref.is_alive()

    def call(self, agent: str) -> bool:
        """Tell the agent that it may come; whether there is one."""
        if self.ref is not None and self.ref.is_alive():
            with suppress(ActorDeadError):
                self.ref.tell_internal(Due(agent))
                return True
        return self.ref is None


class _Probe(NamedTuple):
    """The call that the next one waits for."""

    agent: str
    permit: int
    gate: Any
    since_ms: int


class Line:
    """Who was turned away by the walls of one credential and model, or of all its models."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, Place] = {}
        """Agents in the order of their coming."""
        self._passed: set[str] = set()
        """Agents whose turn has come since the wall; their further calls go on."""
        self._probe: _Probe | None = None
        self._proved = False
        """A call has succeeded since the wall."""
        self._called_ms: int | None = None
        """Since when the first in line could have come."""

    @property
    def places(self) -> list[tuple[str, Place]]:
        """Who stands in it and has not ended, in its order."""
        return [(agent, place) for agent, place in self._waiting.items() if place.is_alive]

    def close(self) -> None:
        """A wall is in force: nobody's turn has come any more."""
        self._proved, self._probe, self._called_ms = False, None, None
        self._passed.clear()

    def stand(self, agent: str, ref: Any, model: str) -> None:
        """Have an agent stand in line, where it is or behind all others."""
        stood = self._waiting.get(agent)
        since_ms = self._clock.now_ms() if stood is None else stood.since_ms
        if ref is None and stood is not None:
            ref = stood.ref
        self._waiting[agent] = Place(ref, model, since_ms)

    def leave(self, agent: str) -> None:
        """Give up an agent's place, and call the next one where that was the first."""
        if agent in self._waiting:
            was_first = next(iter(self._waiting)) == agent
            del self._waiting[agent]
            if was_first and self._probe is None:
                self.call_next()

    def let_go(self, agents: Iterable[str]) -> None:
        """Have agents wait for nobody, and tell them so."""
        for agent in agents:
            place = self._waiting.pop(agent, None)
            if place is not None:
                self._passed.add(agent)
                place.call(agent)

    def keeps(self, agent: str, *, has_wall: bool) -> bool:
        """Whether this agent is one that the line keeps, as far as walls go that are over.

        Args:
            has_wall: Whether there was a wall at all.
        """
        if agent in self._passed:
            return False
        return bool(self._waiting) or (has_wall and not self._proved)

    def is_next(self, agent: str) -> bool:
        """Whether the line lets this agent's call be made now."""
        self._drop_lost()
        self._drop_late(agent)
        return self._probe is None and next(iter(self._waiting), agent) == agent

    def taken(self, agent: str, permit: int, gate: Any) -> None:
        """A call was admitted by this gate."""
        stood = self._waiting.pop(agent, None) is not None
        is_first = self._probe is None and not self._proved and agent not in self._passed
        if stood or is_first:
            self._probe = _Probe(agent, permit, gate, self._clock.now_ms())
            self._called_ms = None
            self._passed.add(agent)

    def settled(self, agent: str, permit: int, *, succeeded: bool) -> None:
        """A call is over, and what it stated binds."""
        self._proved = self._proved or succeeded
        if self._probe is not None and self._probe[:2] == (agent, permit):
            self._probe = None
            if not succeeded:
                self._passed.discard(agent)
            self.call_next()
        if not self._waiting and self._proved and self._probe is None:
            self._passed.clear()

    def call_next(self) -> None:
        """Call who is first; whoever has ended has no place."""
        while self._waiting:
            agent, place = next(iter(self._waiting.items()))
            self._called_ms = self._clock.now_ms()
            if place.call(agent):
                return
            del self._waiting[agent]

    def _drop_lost(self) -> None:
        """A call whose gate has ended is settled by nobody; one that takes long keeps nobody."""
        probe = self._probe
        if probe is None:
            return
        has_ended = probe.gate is not None and not probe.gate.is_alive()
        if has_ended or not 0 <= self._clock.now_ms() - probe.since_ms < PROBE_MS:
            self._probe = None
            self._passed.discard(probe.agent)
            self.call_next()

    def _drop_late(self, asks: str) -> None:
        now_ms = self._clock.now_ms()
        if self._probe is not None or not self._waiting:
            return
        first, place = next(iter(self._waiting.items()))
        if not place.is_alive:
            self.call_next()
        elif self._called_ms is None or now_ms < self._called_ms:
            self._called_ms = now_ms
        elif now_ms - self._called_ms >= RECHECK_MS and first != asks:
            del self._waiting[first]
            self.call_next()
