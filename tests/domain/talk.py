"""A long conversation, and what stands for its older part: what tests of contexts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from abeyance.actors import AgentHandle, CompactingContext
from abeyance.actors.domain.compacting import INSTRUCTIONS, PREFACE
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.actors.testing.scripted import Step

from .world import World, texts

LONG = "x" * 500
SUMMED = f"user: {PREFACE}in short"


def small(**options: Any) -> CompactingContext:
    """A strategy that compacts a slot of a few messages."""
    given = {"past_chars": 2_000, "keep_chars": 600, "at_once_chars": 100_000, **options}
    return CompactingContext(**given)


def is_summing_up(request: ModelRequest) -> bool:
    return request.system == INSTRUCTIONS


class Talk:
    """A provider's script: long answers, and what it is told to say when it is to sum up.

    Args:
        sums: What each request to sum up comes to, the last one for ever; by default "in short".
        turns: What each request of a turn comes to; by default a long answer.
    """

    def __init__(
        self,
        *sums: Step | Callable[[ModelRequest], Step],
        turns: Callable[[ModelRequest], Step] | None = None,
    ) -> None:
        self._sums = list(sums)
        self._turns = turns
        self.answered = 0

    def __call__(self, request: ModelRequest) -> Step:
        if is_summing_up(request):
            step = reply("in short")
            if self._sums:
                step = self._sums[0] if len(self._sums) == 1 else self._sums.pop(0)  # type: ignore[assignment]
            return step(request) if callable(step) else step
        if self._turns is not None:
            return self._turns(request)
        self.answered += 1
        return reply(f"answer {self.answered} {LONG}")


async def add(
    world: World, talk: Any, name: str = "ana", *, model: str = "m", **spec: Any
) -> tuple[AgentHandle, ScriptedProvider]:
    """Add an agent that compacts, and its provider."""
    spec = {"context": small(), **spec}
    provider = world.provider(talk)
    return await world.add(provider, name, model=model, **spec), provider


async def say(world: World, ana: AgentHandle, *words: str) -> None:
    """Send messages, one turn each, and wait until everything about them is over."""
    for word in words:
        await ana.send(word)
        await ana.wait_idle()
    await compacted(world, ana.name)


async def compacted(world: World, name: str = "ana") -> None:
    """Wait until nothing is being compacted."""
    from .world import until

    keeper = world.ref("context", name)._cell
    await until(lambda: keeper.actor._desk is None and not keeper.box.user)


def summing(provider: ScriptedProvider) -> list[ModelRequest]:
    return [request for request in provider.requests if is_summing_up(request)]


def turns(provider: ScriptedProvider) -> list[list[str]]:
    """The requests of turns as words, without the padding."""
    return [
        [line.replace(f" {LONG}", "") for line in texts(request)]
        for request in provider.requests
        if not is_summing_up(request)
    ]


def kept(world: World, name: str = "ana") -> list[int]:
    """The places up to which something is kept, oldest first."""
    return [int(key[-1]) for key, _ in world.runtime._store.scan("contexts", (name, name))]


class ByHand:
    """A strategy that a test compacts with by hand, at its desk, and that notes what it is told."""

    def __init__(self) -> None:
        self.desk: Any = None
        self.asked = 0
        self.told: list[Any] = []

    def view(self, summaries: Any) -> Any:
        return next(iter(summaries), None)

    async def compact(self, desk: Any) -> None:
        self.desk = desk
        self.asked += 1

    async def on_wait_recorded(self, event: Any) -> None:
        self.told.append(event)

    async def on_wait_released(self, event: Any) -> None:
        self.told.append(event)

    async def on_call_deferred(self, event: Any) -> None:
        self.told.append(event)
