"""What operators said of waits that cannot be read, and what is told of them, once an episode.

Invariants:
    I1  An override is a row of another table than what it overrides, with the fingerprint of the
        damage: while that is the same, it lifts what it names, also after a restart.
    I2  An episode is told of once, however often the same is read in vain.

Runs in: the loop thread. Overrides are made by the ledger only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from abeyance.storage.errors import StorageError, StoreClosedError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.waits import Override, Wait

EVERY: Final = "*"
UNTIL_READ: Final = "it holds until it can be, or 'abeyance release' ends it"
"""What is told beside that something cannot be read."""
"""Stands for every agent, or every model of one. No agent and no model is named so."""
LAPSED: Final = "over"
"""The fingerprint of an override whose episode is over. No damage has it: it is no hash."""
Scope = tuple[str, str]
"""(agent, model), either of them `*`."""
OverrideKey = tuple[str, str, str]
"""(agent, model or `*`, what is overridden: `unreadable` or `quota`)."""


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
        self._open: dict[Scope, str] = {}
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


class Overrides:
    """What operators said of what has no readable record, by agent; read once an agent."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_agent: dict[str, dict[OverrideKey, Override]] = {}

    def lifts(self, agent: str, model: str, fingerprint: str) -> bool:
        """Whether a release of this damage names the agent's model, or all its models."""
        found = self._of(agent)
        return any(
            override is not None and override.fingerprint == fingerprint
            for override in (
                found.get((agent, EVERY, "unreadable")),
                found.get((agent, model, "unreadable")),
            )
        )

    def released_ms(self, agent: str, model: str) -> int:
        """Up to which instant waits that could not be read were released; -1 for none."""
        found = self._of(agent)
        if not found:
            return -1
        return max(
            -1 if override is None else override.at_ms
            for override in (
                found.get((agent, EVERY, "unreadable")),
                found.get((agent, model, "unreadable")),
            )
        )

    def quota(self, agent: str, model: str) -> str | None:
        """The fingerprint of the quota's hold that was released last."""
        override = self._of(agent).get((agent, model, "quota"))
        return None if override is None else override.fingerprint

    def standing(self) -> Iterator[tuple[OverrideKey, Override]]:
        """Every override of what cannot be read whose episode is not over, known or stored."""
        try:
            agents = {str(key[0]) for key, _ in self._store.scan("overrides") if key}
        except StoreClosedError:
            raise
        except StorageError:
            agents = set()
        for agent in sorted(agents | set(self._by_agent)):
            for key, override in list(self._of(agent).items()):
                if key[2] == "unreadable" and override.fingerprint != LAPSED:
                    yield key, override

    def note(self, key: OverrideKey, override: Override) -> None:
        """Have an override count from now on."""
        self._of(key[0])[key] = override

    def forget(self, agent: str) -> None:
        """Read an agent's overrides anew: another process may have owned it."""
        self._by_agent.pop(agent, None)

    def _of(self, agent: str) -> dict[OverrideKey, Override]:
        found = self._by_agent.get(agent)
        if found is None:
            found = {}
            try:
                for key, row in self._store.scan("overrides", (agent,)):
                    # One that cannot be read lifts nothing.
                    if isinstance(row, Row):
                        found[key] = row.record  # type: ignore[index]
            except StoreClosedError:
                raise
            except StorageError:
                return {}
            self._by_agent[agent] = found
        return found
