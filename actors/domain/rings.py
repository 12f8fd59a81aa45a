"""Who waits for whom by way of tools, so that a ring is refused before anybody waits in it.

A tool of agent A that waits for agent B, whose turn runs a tool that waits for A, would wait for
ever. The kernel sees the waits inside one chain of asks; this sees those that turns stand between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from abeyance.actors.core import ActorSystem, chain
from abeyance.actors.core.errors import AskCycleError

_PREFIX = "agent:"


class WaitRings:
    """The waits that tools of a runtime's agents are in.

    Args:
        mates: Who shares an agent's slot: its turn may have to wait for theirs.
        system: The runtime's: another one of the process may have agents of the same names.
    """

    def __init__(
        self, mates: Callable[[str], Iterable[str]], system: ActorSystem | None = None
    ) -> None:
        self._mates = mates
        self._system = system
        self._waits_for: dict[str, list[str]] = {}

    @contextmanager
    def waiting(self, target: str) -> Iterator[None]:
        """Stand in the wait for an agent, on behalf of the agent whose tool this runs in, if any.

        Raises:
            AskCycleError: It waits, directly or through others, for the one that would wait.
        """
        source = next(
            (
                key.removeprefix(_PREFIX)
                for key in reversed(chain(self._system))
                if key.startswith(_PREFIX)
            ),
            None,
        )
        if source is None:
            yield
            return
        ring = self._ring(source, target)
        if ring is not None:
            raise AskCycleError(
                f"{' -> '.join(ring)}: this wait could never end; nothing was sent; "
                "send a message instead and let the turn end",
                ring=ring,
                message=None,
            )
        self._waits_for.setdefault(source, []).append(target)
        try:
            yield
        finally:
            self._waits_for[source].remove(target)

    def _ring(self, source: str, target: str) -> tuple[str, ...] | None:
        paths: list[tuple[str, ...]] = [(source, target)]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            if path[-1] == source:
                return path
            if path[-1] not in seen:
                seen.add(path[-1])
                further = (*self._waits_for.get(path[-1], ()), *self._mates(path[-1]))
                paths += [(*path, name) for name in further]
        return None
