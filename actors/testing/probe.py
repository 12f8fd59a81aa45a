"""A probe: an actor that records what it gets, for tests to look at in order.

Its methods are awaited in trio and block on a host thread, as a ref's do.

Invariants:
    I1. What came is looked at once, in the order it came.
    I2. What is kept is touched on the loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import trio
from trio.lowlevel import in_trio_run

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    Ended,
    HostedSystem,
    Reply,
    TrioActor,
    TrioActorRef,
    TrioFuture,
)

Wanted = type | Callable[[Any], bool]


class _Watch:
    def __init__(self, ref: TrioActorRef[Any]) -> None:
        self.ref = ref


class _Seen:
    """What a probe got and nobody has looked at."""

    def __init__(self) -> None:
        self.unseen: deque[tuple[Any, Reply | None]] = deque()
        self.changed = trio.Event()

    def add(self, message: Any, reply: Reply | None) -> None:
        self.unseen.append((message, reply))
        self.changed.set()
        self.changed = trio.Event()


class ProbeActor(TrioActor):
    """The actor behind a `Probe`. It owes a reply to whoever asks it, until the test replies."""

    mailbox_capacity = 1_000_000

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self._seen = seen

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, _Watch):
            self.watch(message.ref)
            return None
        envelope = self._cell.inflight
        if envelope is None or envelope[1] is None:
            self._seen.add(message, None)
            return None
        self._seen.add(message, self.later())
        return LATER

    def on_ended(self, ended: Ended) -> None:
        self._seen.add(ended, None)


class Probe:
    """An actor that a test looks through: give `probe.ref` to whoever is tested.

    Args:
        system: Where it runs.
        name: Its name in the system.
    """

    def __init__(self, system: ActorSystem | HostedSystem, *, name: str | None = None) -> None:
        self._system = system.system if isinstance(system, HostedSystem) else system
        self._seen = _Seen()
        self._last: Reply | None = None
        self.ref: TrioActorRef[ProbeActor] = self._system.start(ProbeActor, self._seen, name=name)

    def __str__(self) -> str:
        return f"probe {self.ref.name}"

    def expect(self, wanted: Wanted, *, within_s: float = 3.0, skipping: bool = False) -> Any:
        """Take the next message and return it; it must be the wanted one.

        A checkpoint, awaited in trio; blocks a host thread. Cancelled: nothing was taken.

        Args:
            wanted: Its type, or what is true of it.
            within_s: How long to wait for it, in trio's time.
            skipping: Pass over what comes before it, instead of failing on that.
        Returns:
            The message; an `Ended` of an actor that is watched.
        Raises:
            AssertionError: Something else came, or nothing in time; what came is taken.
        """
        return self._here(self._expect, wanted, within_s, skipping)

    def expect_nothing(self, *, within_s: float = 0.1) -> Any:
        """Wait so long, in trio's time; nothing may come, and nothing may be there.

        A checkpoint, awaited in trio; blocks a host thread.

        Raises:
            AssertionError: Something came; it is taken.
        """
        return self._here(self._expect_nothing, within_s)

    def watch(self, ref: TrioActorRef[Any]) -> Any:
        """Get `Ended` whenever an incarnation of that actor ends from now on.

        A checkpoint, awaited in trio; blocks a host thread.
        """
        return self.ref.ask(_Watch(ref))

    def reply(self, value: Any = None) -> None:
        """Answer the message that was expected last. Not a checkpoint; any thread.

        Raises:
            RuntimeError: It was told, not asked, or has a reply.
        """
        reply = self._take_reply()
        self._system.on_loop(reply.set, value)

    def reply_error(self, error: BaseException) -> None:
        """Answer the message that was expected last with an error. As `reply`."""
        reply = self._take_reply()
        self._system.on_loop(reply.set_exception, error)

    def _take_reply(self) -> Reply:
        reply, self._last = self._last, None
        if reply is None:
            raise RuntimeError(f"{self} owes no reply to what it was expected to get last")
        return reply

    async def _expect(self, wanted: Wanted, within_s: float, skipping: bool) -> Any:
        seen, skipped = self._seen, list[Any]()
        with trio.move_on_after(within_s):
            await trio.lowlevel.checkpoint()
            while True:
                while seen.unseen:
                    message, reply = seen.unseen.popleft()
                    if _is(wanted, message):
                        self._last = reply
                        return message
                    if not skipping:
                        raise AssertionError(f"{self} expected {_said(wanted)}, got {message!r}")
                    skipped.append(message)
                await seen.changed.wait()
        came = f"only {skipped!r} came" if skipped else "nothing came"
        raise AssertionError(f"{self} expected {_said(wanted)} within {within_s} s; {came}")

    async def _expect_nothing(self, within_s: float) -> None:
        with trio.move_on_after(within_s):
            await trio.lowlevel.checkpoint()
            while not self._seen.unseen:
                await self._seen.changed.wait()
        if self._seen.unseen:
            message, _ = self._seen.unseen.popleft()
            raise AssertionError(f"{self} expected nothing, got {message!r}")

    def _here(self, afn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        if in_trio_run():
            return afn(*args)
        result: TrioFuture[Any] = TrioFuture()

        async def run() -> None:
            try:
                result._answer(await afn(*args))
            except BaseException as error:
                result._fail(error)
                if not isinstance(error, Exception):
                    raise

        def start() -> None:
            if self._system.closing:
                result._fail(self._ended())
            else:
                self._system.nursery.start_soon(run, name=str(self))

        if not self._system.on_loop(start):
            raise self._ended()
        return result.get()

    def _ended(self) -> ActorDeadError:
        return ActorDeadError(
            f"the system of {self} has ended; nothing was looked at",
            actor=self.ref.name,
            message=None,
        )


def _is(wanted: Wanted, message: Any) -> bool:
    return isinstance(message, wanted) if isinstance(wanted, type) else bool(wanted(message))


def _said(wanted: Wanted) -> str:
    return getattr(wanted, "__name__", repr(wanted))
