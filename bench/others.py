"""Tells and asks beside other in-process actors and bare queues.

Thespian and xoscar come with the dependency group `bench`; a row whose peer is missing says so.
Each side drives an event loop of its own, piece by piece, in the same process.
"""

from __future__ import annotations

import asyncio
import collections
import importlib
import logging
import time
from typing import Any

import trio

from abeyance.actors.core import ActorSystem

from .counters import Counter
from .measure import Piece, Result, Scale, in_turns_sync, not_installed, ratio_of

_BURST = 1000
_ASK = "await an ask from a trio task, with a deadline and the cycle check"
_TELL = f"tell from the trio thread to handled, {_BURST} a wake"


async def _asks(count: int) -> float:
    async with ActorSystem() as system:
        ref = system.start(Counter)
        await ref.ask(0)
        start = time.perf_counter()
        for number in range(count):
            await ref.ask(number, block=False, timeout=30)
        return time.perf_counter() - start


async def _tells(count: int) -> float:
    made: list[Counter] = []
    async with ActorSystem() as system:
        ref = system.start(Counter, made)
        await ref.ask(0)
        (actor,) = made
        start = time.perf_counter()
        for first in range(0, count, _BURST):
            burst = min(_BURST, count - first)
            expected = actor.handled + burst
            for number in range(burst):
                ref.tell(number)
            while actor.handled < expected:
                await trio.lowlevel.checkpoint()
        return time.perf_counter() - start


def _ours(ask: bool) -> Piece:
    return lambda count: trio.run(_asks if ask else _tells, count)


def with_thespian(scale: Scale) -> list[Result]:
    """Its simple base: everything happens in the caller's thread, at once."""
    peers = (
        ("thespian-ask", _ASK, "thespian, simpleSystemBase: ask", True),
        ("thespian-tell", _TELL, "thespian, simpleSystemBase: tell", False),
    )
    try:
        actors: Any = importlib.import_module("thespian.actors")
    except ImportError:
        return [not_installed(row, subject, peer) for row, subject, peer, _ in peers]

    class Echo(actors.Actor):  # type: ignore[misc]
        def receiveMessage(self, message: Any, sender: Any) -> None:  # noqa: N802 - its name.
            if message[0]:
                self.send(sender, message)

    system = actors.ActorSystem("simpleSystemBase")
    address = system.createActor(Echo)

    def piece_of(ask: bool) -> Piece:
        def piece(count: int) -> float:
            send = system.ask if ask else system.tell
            start = time.perf_counter()
            for number in range(count):
                send(address, (ask, number))
            return time.perf_counter() - start

        return piece

    try:
        return [
            ratio_of(row, subject, peer, in_turns_sync(scale, _ours(ask), piece_of(ask)))
            for row, subject, peer, ask in peers
        ]
    finally:
        system.shutdown()


def with_xoscar(scale: Scale) -> list[Result]:
    """An actor of the same pool, by the local ref and by the one that goes through a channel."""
    peers = tuple(
        (f"xoscar-{place}-{'ask' if ask else 'tell'}", _ASK if ask else _TELL, kind, ask)
        for place, kind in (("local", "xoscar, LocalActorRef"), ("ref", "xoscar, ActorRef"))
        for ask in (True, False)
    )
    try:
        xoscar: Any = importlib.import_module("xoscar")
    except ImportError:
        return [not_installed(row, subject, peer) for row, subject, peer, _ in peers]
    # Ending a pool leaves a future unretrieved for each tell, and each is a line in the log.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)

    class Echo(xoscar.Actor):  # type: ignore[misc]
        async def echo(self, message: Any) -> Any:
            return message

    async def opened() -> tuple[Any, dict[str, Any]]:
        pool = await xoscar.create_actor_pool("test://127.0.0.1:12345", n_process=0)
        at = pool.external_address
        made = await xoscar.create_actor(Echo, address=at, uid="echo")
        found = await xoscar.actor_ref(at, "echo")
        refs = {f"xoscar, {type(ref).__name__}": ref for ref in (made, found)}
        return pool, refs

    loop = asyncio.new_event_loop()
    pool, refs = loop.run_until_complete(opened())

    def piece_of(ref: Any, ask: bool) -> Piece:
        async def sending(count: int) -> float:
            send = ref.echo if ask else ref.echo.tell
            start = time.perf_counter()
            for number in range(count):
                await send(number)
            return time.perf_counter() - start

        return lambda count: loop.run_until_complete(sending(count))

    try:
        return [
            ratio_of(
                row,
                subject,
                f"{peer}: await {'echo' if ask else 'echo.tell'}",
                in_turns_sync(scale, _ours(ask), piece_of(refs[peer], ask)),
            )
            for row, subject, peer, ask in peers
        ]
    finally:
        loop.run_until_complete(pool.stop())


async def _asyncio_queue(count: int) -> float:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def consume() -> None:
        for _ in range(count):
            await queue.get()

    start = time.perf_counter()
    consumer = asyncio.create_task(consume())
    for number in range(count):
        await queue.put(number)
    await consumer
    return time.perf_counter() - start


def _bare_deque(count: int) -> float:
    queue: collections.deque[int] = collections.deque()
    start = time.perf_counter()
    for first in range(0, count, _BURST):
        for number in range(min(_BURST, count - first)):
            queue.append(number)
        while queue:
            queue.popleft()
    return time.perf_counter() - start


def with_queues(scale: Scale) -> list[Result]:
    """What a message costs that nobody handles: a queue, and nothing around it."""
    with asyncio.Runner() as runner:
        by_queue = in_turns_sync(
            scale, _ours(ask=False), lambda count: runner.run(_asyncio_queue(count))
        )
    by_deque = in_turns_sync(scale, _ours(ask=False), _bare_deque)
    return [
        ratio_of("queue-asyncio", _TELL, "asyncio.Queue, await put / await get", by_queue),
        ratio_of("queue-deque", _TELL, "a bare deque, append / popleft", by_deque),
    ]
