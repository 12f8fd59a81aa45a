"""Tell to handled: in the trio thread beside a channel, from a host thread beside pykka."""

from __future__ import annotations

import threading
import time
from typing import Any

import trio

from abeyance.actors.core import ActorSystem, HostedSystem

from .counters import Counter, HostCounter
from .measure import AsyncPiece, Bound, Piece, Result, Scale, in_turns, in_turns_sync, ratio_of
from .peers import channel_await, pykka_counter

_BURSTS = {1: Bound(), 16: Bound(), 1000: Bound(floor=12, goal=18)}


def _telling(ref: Any, actor: Counter, burst: int) -> AsyncPiece:
    """Tell in bursts; after each, let the actor run until it has handled them."""

    async def piece(count: int) -> float:
        expected = actor.handled
        start = time.perf_counter()
        for _ in range(max(1, count // burst)):
            for number in range(burst):
                ref.tell(number)
            expected += burst
            while actor.handled < expected:
                await trio.lowlevel.checkpoint()
        seconds = time.perf_counter() - start
        return seconds * count / (max(1, count // burst) * burst)

    return piece


async def _tell_from_trio(scale: Scale) -> list[Result]:
    results = []
    async with ActorSystem():
        made: list[Counter] = []
        ref = Counter.start(made)
        (actor,) = made
        for burst, bound in _BURSTS.items():
            rates = await in_turns(scale, _telling(ref, actor, burst), channel_await)
            results.append(
                ratio_of(
                    f"tell-trio-{burst}",
                    f"tell from the trio thread to handled, {burst} a wake",
                    "a trio memory channel, await send / await receive",
                    rates,
                    bound,
                )
            )
    return results


def tell_from_trio(scale: Scale) -> list[Result]:
    return trio.run(_tell_from_trio, scale)


def telling_from_here(ref: Any) -> Piece:
    """Tell so many from this thread; the time ends when the last was handled."""

    def piece(count: int) -> float:
        reached = threading.Event()
        ref.ask((count, reached))
        tell = ref.tell
        start = time.perf_counter()
        for number in range(count):
            tell(number)
        reached.wait()
        return time.perf_counter() - start

    return piece


def tell_from_host(scale: Scale) -> list[Result]:
    pinned = scale.pinned
    bound = Bound(floor=2.1, goal=2.5) if pinned else Bound(floor=5.4, goal=6)
    with HostedSystem(), pykka_counter() as peer:
        ref = HostCounter.start()
        rates = in_turns_sync(scale, telling_from_here(ref), telling_from_here(peer))
    return [
        ratio_of(
            "tell-host",
            "tell from a host thread to handled",
            "pykka.ThreadingActor, the same",
            rates,
            bound,
        )
    ]
