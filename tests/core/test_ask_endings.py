"""Asks that race an ending, on real threads: each gets exactly one outcome, whatever ends first.

The asks have no deadline, so that nothing but the kernel can settle them.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress

import pytest
import trio

from abeyance.actors.core import (
    ActorCrashError,
    ActorDeadError,
    ActorKilledError,
    Backoff,
    ChildSpec,
    HostedSystem,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)

ROUNDS = 6
ASKS = 40
THREADS = 3
WITHIN_S = 20  # Only what was never settled takes as long.

KERNEL = (ActorDeadError, OutcomeUnknownError)


class BreaksError(ActorCrashError):
    """Crashes the actor that raises it for an ask."""


class Echoes(TrioActor):
    """Answers at once, after a checkpoint, or by a handle that a task settles."""

    async def on_receive(self, message):
        if message == "break":
            raise BreaksError("as it was told to")
        return await self.echo(message)

    async def echo(self, number):
        if number % 3 == 0:
            await trio.lowlevel.checkpoint()
        return number


class EchoesAgain(Echoes):
    max_deliveries = 3


KINDS = {
    "restarted": (Echoes, "permanent"),
    "redelivered": (EchoesAgain, "permanent"),
    "ended": (Echoes, "temporary"),
}


def spec(kind, *, intensity):
    actor_class, restart = KINDS[kind]
    return SupervisorSpec(
        "group",
        (ChildSpec("a", actor_class, restart=restart),),
        intensity=intensity,
        backoff=Backoff(0, 0),
    )


def ask_on_host_threads(hosted, start, ask):
    """Ask on host threads, from the barrier on; return what joins them and yields the futures."""
    futures = []

    def asks():
        start.wait()
        for number in range(ASKS):
            future = ask(number)
            futures.append((number, future))

    threads = [threading.Thread(target=asks) for _ in range(THREADS)]
    for thread in threads:
        thread.start()

    def joined():
        for thread in threads:
            thread.join()
        return futures

    return joined


def ask_in_trio(hosted, start, ask):
    """Ask in tasks of the loop, which begin at the barrier, and await each."""
    futures = []
    ran = []

    async def asks():
        for number in range(ASKS):
            future = ask(number)
            futures.append((number, future))
            if number % 4 == 0:
                with suppress(*KERNEL, BreaksError):
                    await future

    def begins():
        start.wait()
        for _ in range(THREADS):
            with suppress(ActorDeadError):
                ran.append(hosted.run_nowait(asks))

    thread = threading.Thread(target=begins)
    thread.start()

    def joined():
        thread.join()
        for call in ran:
            with suppress(ActorDeadError):
                call.get(timeout=WITHIN_S)
        return futures

    return joined


def plain(ref):
    return lambda number: ref.ask(number, block=False)


def proxied(ref):
    return ref.proxy().echo


ASKERS = {
    "host-thread": (ask_on_host_threads, plain),
    "trio": (ask_in_trio, plain),
    "proxy": (ask_on_host_threads, proxied),
}


def stop(ref, hosted):
    ref.stop(block=False)


def stop_now(ref, hosted):
    ref.stop(now=True, block=False)


def kill(ref, hosted):
    ref.kill()


def crash(ref, hosted):
    with suppress(ActorDeadError):
        ref.ask("break", block=False)


def nothing(ref, hosted):
    """The run ends, below."""


ENDINGS = {
    # How it ends, and how many restarts the group may see.
    "stop": (stop, 100),
    "stop-now": (stop_now, 100),
    "kill": (kill, 100),
    "crash": (crash, 100),
    "escalation": (crash, 0),
    "run-end": (nothing, 100),
}


@pytest.fixture(autouse=True)
def interleaved(caplog):
    """Switch threads every few lines, so that they do meet; and log no crash."""
    caplog.set_level(logging.CRITICAL, "abeyance.core")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.drawn(18)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("asker", ASKERS)
def test_ask_that_races_an_ending_has_one_outcome(asker, ending, kind):
    begin, asking = ASKERS[asker]
    end, intensity = ENDINGS[ending]
    for number in range(ROUNDS):
        hosted = HostedSystem(ask_timeout_s=None)
        hosted.open()
        ref = hosted.start_supervisor(spec(kind, intensity=intensity)).refs["a"]
        start = threading.Barrier(2 if asker == "trio" else THREADS + 1)
        joined = begin(hosted, start, asking(ref))
        start.wait()
        for _ in range(number):  # The ending comes a step later each round.
            ref.ask(1, block=False)
        end(ref, hosted)
        if ending != "run-end":
            futures = joined()
        try:
            hosted.close()
        except ExceptionGroup:
            assert ending == "escalation"
        if ending == "run-end":
            futures = joined()
        for sent, future in futures:
            try:
                assert future.get(timeout=WITHIN_S) == sent
            except KERNEL:
                pass
            except (BreaksError, ActorKilledError):
                assert ending in ("crash", "escalation", "kill")
        assert len(futures) == THREADS * ASKS or (asker, ending) == ("trio", "run-end")
        assert ref.statistics().owed == 0
        assert ref.statistics().queued == 0
        assert not ref.statistics().in_flight
