"""Asks: from a trio task beside two channels; from a host thread, one by one and many in flight."""

from __future__ import annotations

import time
from typing import Any

import pykka
import trio

from abeyance.actors.core import ActorSystem, HostedSystem

from .counters import Counter, HostCounter
from .measure import Bound, Piece, Result, Scale, in_turns, in_turns_sync, ratio_of
from .peers import channels_ping_pong, pykka_counter

_IN_FLIGHT = 1000


async def _ask_from_trio(scale: Scale) -> list[Result]:
    async with ActorSystem():
        ref = Counter.start()

        async def asking(count: int) -> float:
            start = time.perf_counter()
            for number in range(count):
                await ref.ask(number, block=False, timeout=30)
            return time.perf_counter() - start

        rates = await in_turns(scale, asking, channels_ping_pong)
    return [
        ratio_of(
            "ask-trio",
            "ask from a trio task, with a deadline and the cycle check",
            "two channels of capacity 1, await send / await receive",
            rates,
            Bound(floor=0.5, goal=1.0),
        )
    ]


def ask_from_trio(scale: Scale) -> list[Result]:
    return trio.run(_ask_from_trio, scale)


def _pipelined(ref: Any) -> Piece:
    def piece(count: int) -> float:
        start = time.perf_counter()
        for first in range(0, count, _IN_FLIGHT):
            pykka.get_all([ref.ask(first + n, block=False) for n in range(_IN_FLIGHT)])
        return (time.perf_counter() - start) * count / (-(-count // _IN_FLIGHT) * _IN_FLIGHT)

    return piece


def _blocking(ref: Any) -> Piece:
    def piece(count: int) -> float:
        start = time.perf_counter()
        for number in range(count):
            ref.ask(number)
        return time.perf_counter() - start

    return piece


def ask_from_host(scale: Scale) -> list[Result]:
    with HostedSystem(), pykka_counter() as peer:
        ref = HostCounter.start()
        alone = in_turns_sync(scale, _blocking(ref), _blocking(peer))
        rates = in_turns_sync(scale, _pipelined(ref), _pipelined(peer))
    # Pykka's asks carry no deadline; ours do unless the system gives them none.
    with HostedSystem(ask_timeout_s=None), pykka_counter() as peer:
        ref = HostCounter.start()
        endless = in_turns_sync(scale, _pipelined(ref), _pipelined(peer))
    return [
        ratio_of(
            "ask-host-1",
            "a blocking ask from a host thread, with a deadline",
            "pykka.ThreadingActor, the same without a deadline",
            alone,
        ),
        ratio_of(
            "ask-host-1000",
            f"asks from a host thread, {_IN_FLIGHT} in flight, each with a deadline",
            "pykka.ThreadingActor, the same without deadlines",
            rates,
            Bound(floor=4.4, goal=5),
            beside={"x_without_deadline": ratio_of("", "", "", endless).figure.median},
        ),
    ]
