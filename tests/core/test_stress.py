"""Threads that race kills, stops and the end of the run: every message ends exactly once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress

import pytest
import trio

from abeyance.actors.core import (
    ActorDeadError,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxFullError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)

from . import stress

THREADS = 6


class Counts(TrioActor):
    @classmethod
    def make_kept(cls):
        return Counter()

    async def on_receive(self, message):
        if message[1] % 50 == 0:
            await trio.lowlevel.checkpoint()
        self.kept[message] += 1
        return message


def test_every_message_ends_once_while_threads_tell_ask_stop_kill_and_crash(seed):
    """The bounded form of `./dev stress`."""
    result = stress.run(120_000, threads=THREADS, seed=seed, within_s=5.0)
    print(result)
    assert result.problems == []
    assert result.accepted == result.handled + result.dead_letters + result.quarantined
    assert min(result.kills, result.stops, result.quarantined, result.dead_letters) > 0
    assert result.asks["answered"] > 0


@pytest.mark.parametrize("max_deliveries", [1, 3])
def test_messages_of_six_threads_are_accounted_for_while_actors_are_killed(max_deliveries):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    kind = type("CountsOnce", (Counts,), {"max_deliveries": max_deliveries})
    accepted: list[int] = [0] * THREADS
    asked: list = [[] for _ in range(THREADS)]
    with HostedSystem(seed=seed) as hosted:
        supervisor = hosted.start_supervisor(
            SupervisorSpec(
                "g",
                tuple(ChildSpec(str(n), kind) for n in range(3)),
                intensity=1_000_000,
                backoff=Backoff(0.0, 0.0),
            )
        )
        refs = list(supervisor.refs.values())
        done = threading.Event()

        def send(worker, messages=2_500):
            random_ = random.Random(seed + worker)
            for n in range(messages):
                ref = random_.choice(refs)
                message = (worker, n)
                try:
                    if n % 5 == 0:
                        asked[worker].append((message, ref.ask(message, block=False)))
                        accepted[worker] += 1
                    else:
                        ref.tell(message)
                        accepted[worker] += 1
                except MailboxFullError:
                    pass

        def kill():
            while not done.wait(0.001):
                rng.choice(refs).kill("stress")

        senders = [threading.Thread(target=send, args=(n,)) for n in range(THREADS)]
        killer = threading.Thread(target=kill)
        for thread in (killer, *senders):
            thread.start()
        for thread in senders:
            thread.join()
        done.set()
        killer.join()
        outcomes: Counter[str] = Counter()
        for answers in asked:
            for message, future in answers:
                try:
                    assert future.get(timeout=60) == message
                    outcomes["answered"] += 1
                except (OutcomeUnknownError, MailboxFullError) as exc:
                    outcomes[exc.code] += 1
        for n, ref in enumerate(refs):
            ref.ask(("end", n * 50 + 1))
        stats = [ref.statistics() for ref in refs]
        ended = sum(s.handled + s.dead + s.quarantined + s.queued + s.owed for s in stats)
        kills = sum(s.incarnation for s in stats) - len(refs)
        assert ended == sum(accepted) + len(refs) - outcomes["mailbox_full"]
        print(f"{kills} kills, {outcomes}")
        assert kills > 0
        handled = sum((ref._cell.kept for ref in refs), Counter())
        assert max(handled.values()) <= max_deliveries
        if max_deliveries == 1:
            assert max(handled.values()) == 1
            assert outcomes["outcome_unknown"] <= sum(s.quarantined for s in stats)


def test_ask_that_races_stop_is_always_settled():
    with HostedSystem() as hosted:
        for _ in range(60):
            ref = hosted.start(Counts)
            futures: list = []
            accepted = [0] * THREADS
            barrier = threading.Barrier(THREADS + 1)

            def race(worker, ref=ref, futures=futures, accepted=accepted, barrier=barrier):
                barrier.wait()
                for n in range(20):
                    futures.append(ref.ask((worker, n), block=False))
                    try:
                        ref.tell((worker, -n))
                        accepted[worker] += 1
                    except ActorDeadError:
                        pass

            threads = [threading.Thread(target=race, args=(n,)) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            barrier.wait()
            ref.stop(block=False)
            for thread in threads:
                thread.join()
            refused = 0
            for future in futures:
                try:
                    future.get(timeout=60)
                except ActorDeadError as exc:
                    refused += "was not accepted" in str(exc)
            ref.actor_stopped.wait(timeout=20)
            # What was put behind the end is buried by the wake that another thread has asked for.
            hosted.run(trio.lowlevel.checkpoint)
            stats = ref.statistics()
            assert stats.handled + stats.dead == sum(accepted) + len(futures) - refused
            assert stats.queued == 0


def test_calls_that_race_the_end_of_the_run_are_always_settled():
    for _ in range(4):
        with HostedSystem(shutdown_s=5.0) as hosted:
            ref = hosted.start(Counts)
            futures: list = []
            stop = threading.Event()

            def race(worker, ref=ref, futures=futures, stop=stop):
                n = 0
                while not stop.is_set() and n < 3_000:
                    n += 1
                    futures.append(ref.ask((worker, n), block=False))

            threads = [threading.Thread(target=race, args=(n,)) for n in range(3)]
            for thread in threads:
                thread.start()
            while len(futures) < 50:
                pass
        stop.set()
        for thread in threads:
            thread.join()
        for future in futures:
            with suppress(ActorDeadError, MailboxFullError):
                future.get(timeout=60)


def test_full_mailbox_blocks_host_threads_where_asked_for_and_loses_nothing():
    kind = type("Blocks", (Counts,), {"overflow": "block", "mailbox_capacity": 8})
    with HostedSystem() as hosted:
        ref = hosted.start(kind)
        threads = [
            threading.Thread(target=lambda w=w: [ref.tell((w, n)) for n in range(500)])
            for w in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ref.ask(("end", 1))
        assert ref.statistics().handled == 2001
        assert ref.statistics().dead == 0
        # It held who came too fast: the bound, and each thread that raced for the last place.
        assert ref.statistics().mailbox.peak <= 8 + len(threads)


def test_blocked_host_thread_is_released_when_the_actor_ends():
    class Stuck(TrioActor):
        overflow = "block"
        mailbox_capacity = 1

        async def on_receive(self, message):
            await trio.sleep_forever()

    errors = []

    with HostedSystem() as hosted:
        ref = hosted.start(Stuck)

        def fill():
            try:
                for n in range(10):
                    ref.tell(n)
            except ActorDeadError as exc:
                errors.append(exc.message)

        thread = threading.Thread(target=fill)
        thread.start()
        while ref.statistics().queued < 1 or not ref.statistics().in_flight:
            pass
        ref.kill()
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert len(errors) == 1
