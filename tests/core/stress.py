"""`./dev stress`: host threads, kills, stops and crashes against one system, and every message
counted: accepted = handled + dead letters + quarantined, each exactly once.

    python -m tests.core.stress [--messages 1100000] [--threads 6] [--seed N] [--json FILE]

Each message is a (thread, number). Its handler, the dead letter sink and the quarantine sink mark
that number, each in an array of its own, so what is checked is every single message and not a sum
alone: one that ended twice, or never, is named. Exit code 1: an account did not add up.

The threads tell, ask, stop and kill; one thread does nothing but kill. Actors crash by some
messages, owe the replies of others and answer them later, are restarted alone, in order or with
their whole group, and some come and go. What is random is drawn from the printed seed; how threads
interleave is not.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

import trio

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxClosedError,
    MailboxFullError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)

SETTLED_S = 60.0
"""Past the last message, every ask must have its answer within this time."""
_WINDOW = 500  # Asks of one thread that may be out.
_MARKER = ("end", 0)


class Poison(Exception):
    """What a handler raises on purpose."""


class Account:
    """What became of each message; written by whoever ends it, each message by one."""

    def __init__(self, threads: int, messages: int) -> None:
        self.handled = [bytearray(messages) for _ in range(threads)]
        self.dead = [bytearray(messages) for _ in range(threads)]
        self.quarantined = [bytearray(messages) for _ in range(threads)]
        self.accepted = [bytearray(messages) for _ in range(threads)]
        self.markers = 0

    def mark(self, where: list[bytearray], message: Any) -> None:
        if message is _MARKER:
            self.markers += 1
        else:
            worker, number = message
            where[worker][number] += 1

    def problems(self) -> list[str]:
        """Every message that was accepted and did not end once, or ended and was not accepted."""
        found = []
        for worker, accepted in enumerate(self.accepted):
            for number, count in enumerate(accepted):
                ends = tuple(w[worker][number] for w in (self.handled, self.dead, self.quarantined))
                if sum(ends) != count:
                    found.append(
                        f"message {number} of thread {worker}: accepted {count}, "
                        f"handled {ends[0]}, dead {ends[1]}, quarantined {ends[2]}"
                    )
        return found


class Worker(TrioActor):
    """Handles, awaits, owes or fails, by the message's number."""

    account: Account
    crash_on_ask_error = False

    async def on_receive(self, message: Any) -> Any:
        number = message[1]
        if number % 997 == 1:
            raise Poison(str(number))
        if number % 101 == 2:
            self.pipe(trio.lowlevel.checkpoint, tag=(self.later(), message))
            return LATER
        if number % 23 == 3:
            await trio.lowlevel.checkpoint()
        self.account.mark(self.account.handled, message)
        return message

    def on_answer(self, answer: Any) -> None:
        reply, message = answer.tag
        if reply.set(message):
            self.account.mark(self.account.handled, message)


@dataclass
class Result:
    """What is printed in the end, and with `--json` written."""

    seed: int
    threads: int
    messages: int
    accepted: int = 0
    refused: int = 0
    handled: int = 0
    dead_letters: int = 0
    quarantined: int = 0
    kills: int = 0
    stops: int = 0
    incarnations: int = 0
    asks: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class _Sender:
    """One host thread: its own random numbers, its own asks that are out."""

    def __init__(self, worker: int, run: _Run) -> None:
        self._worker = worker
        self._run = run
        self._random = random.Random(f"{run.result.seed}/{worker}")
        self._out: deque[tuple[Any, Any]] = deque()
        self._own: Any = None
        self.outcomes: Counter[str] = Counter()
        self.error: BaseException | None = None

    def work(self) -> None:
        try:
            for number in range(self._run.each):
                if time.monotonic() > self._run.until:
                    break  # What was asked is reaped all the same.
                self._act(number)
            while self._out:
                self._reap()
        except BaseException as error:
            self.error = error
            raise

    def _act(self, number: int) -> None:
        draw, run = self._random, self._run
        message = (self._worker, number)
        ref = draw.choice(run.refs)
        if number % 2_000 == 0:
            if self._own is not None:
                # With what is still queued; a kill in the middle of it as often as a stop.
                self._own.kill("stress") if draw.random() < 0.5 else self._own.stop(block=False)
            self._own = run.hosted.start(draw.choice(run.kinds))
            run.passing.append(self._own)
        elif number % 11 == 0:
            ref = self._own
        chance = draw.random()
        try:
            if chance < 0.15:
                self._ask(ref, message)
            else:
                ref.tell(message)
                run.account.accepted[self._worker][number] = 1
        except (MailboxFullError, MailboxClosedError, ActorDeadError):
            self.outcomes["refused"] += 1
        if chance > 0.9995:
            run.stops += 1
            ref.stop(block=False)
        elif chance > 0.998:
            run.kills += 1
            ref.kill("stress")

    def _ask(self, ref: Any, message: Any) -> None:
        owed = message[1] % 101 == 2
        timeout = 0.002 if not owed and self._random.random() < 0.02 else None
        self._out.append((message, ref.ask(message, block=False, timeout=timeout)))
        if len(self._out) >= _WINDOW:
            self._reap()

    def _reap(self) -> None:
        """Take the answer of the oldest ask that is out; it must come."""
        message, future = self._out.popleft()
        worker, number = message
        account = self._run.account
        try:
            if future.get(timeout=SETTLED_S) != message:
                raise AssertionError(f"{message} was answered with another's reply")
            outcome = "answered"
        except (OutcomeUnknownError, AskTimeoutError) as error:
            outcome = error.code
        except (ActorDeadError, MailboxFullError) as error:
            # Refused, or accepted and then a dead letter, which its sink may not have heard of yet.
            self._run.unsure.append(message)
            outcome = error.code
        except Poison:
            # Handled, by that answer, unless the class crashes by it: then it is quarantined too.
            self._run.poisoned.append(message)
            outcome = "poison"
        account.accepted[worker][number] = 1
        self.outcomes[f"ask: {outcome}"] += 1


class _Run:
    def __init__(self, result: Result, within_s: float | None) -> None:
        self.result = result
        self.each = result.messages // result.threads
        self.until = time.monotonic() + (within_s or float("inf"))
        self.account = account = Account(result.threads, self.each)
        shared = {"account": account}
        self.kinds = [
            type("Once", (Worker,), shared),
            type("Thrice", (Worker,), shared | {"max_deliveries": 3}),
            type("Crashes", (Worker,), shared | {"crash_on_ask_error": True}),
            type("Blocks", (Worker,), shared | {"overflow": "block", "mailbox_capacity": 200}),
            type("Drops", (Worker,), shared | {"overflow": "drop_oldest", "mailbox_capacity": 200}),
            type("Rejects", (Worker,), shared | {"mailbox_capacity": 200}),
        ]
        self.refs: list[Any] = []
        self.passing: list[Any] = []
        self.unsure: list[Any] = []
        self.poisoned: list[Any] = []
        self.kills = self.stops = 0
        self.hosted: HostedSystem

    def _start_groups(self) -> None:
        for strategy in ("one_for_one", "rest_for_one", "one_for_all"):
            children = tuple(
                ChildSpec(kind.__name__, kind, name=f"{strategy}.{kind.__name__}")
                for kind in self.kinds
            )
            group = self.hosted.start_supervisor(
                SupervisorSpec(
                    strategy,
                    children,
                    strategy=strategy,
                    intensity=10**9,
                    backoff=Backoff(0.0, 0.0),
                )
            )
            self.refs += group.refs.values()

    def _kill(self, done: threading.Event) -> None:
        draw = random.Random(f"{self.result.seed}/killer")
        while not done.wait(0.001):
            self.kills += 1
            draw.choice(self.refs).kill("stress")

    def run(self) -> None:
        account = self.account
        with HostedSystem(
            seed=self.result.seed,
            ask_timeout_s=None,
            on_dead_letter=lambda letter: account.mark(account.dead, letter.message),
            on_quarantine=lambda entry: account.mark(account.quarantined, entry.message),
        ) as self.hosted:
            self._start_groups()
            senders = [_Sender(worker, self) for worker in range(self.result.threads)]
            done = threading.Event()
            killer = threading.Thread(target=self._kill, args=(done,), daemon=True)
            threads = [threading.Thread(target=s.work, daemon=True) for s in senders]
            for thread in (*threads, killer):
                thread.start()
            for thread in threads:
                thread.join()
            done.set()
            killer.join()
            for sender in senders:
                if sender.error is not None:
                    self.result.problems.append(f"a thread failed: {sender.error!r}")
            self._settle()
        self._sum_up(senders)

    def _settle(self) -> None:
        """Let every actor handle what is left, and compare its own counters with each other."""
        self.hosted.system.ask_timeout_s = SETTLED_S
        for ref in self.refs:
            for _ in range(100):
                try:
                    ref.ask(_MARKER)
                    if not ref.statistics().owed and not ref.statistics().queued:
                        break
                except (MailboxFullError, OutcomeUnknownError, ActorDeadError):
                    continue
            statistics = ref.statistics()
            if statistics.queued or statistics.owed:
                self.result.problems.append(f"{ref} does not come to rest: {statistics}")
        for ref in self.passing:
            ref.stop(block=False)
        for ref in self.passing:
            if not ref.actor_stopped.wait(timeout=SETTLED_S):
                self.result.problems.append(f"{ref} does not end: {ref.statistics()}")

    def _sum_up(self, senders: list[_Sender]) -> None:
        result, account = self.result, self.account
        outcomes = sum((sender.outcomes for sender in senders), Counter[str]())
        for worker, number in self.poisoned:
            if not account.quarantined[worker][number]:
                account.handled[worker][number] += 1
        refused = [m for m in self.unsure if not account.dead[m[0]][m[1]]]
        for worker, number in refused:
            account.accepted[worker][number] = 0
        result.refused = outcomes.pop("refused", 0) + len(refused)
        result.asks = Counter({k.removeprefix("ask: "): n for k, n in outcomes.items()})
        result.accepted = sum(map(sum, account.accepted))
        result.handled = sum(map(sum, account.handled))
        result.dead_letters = sum(map(sum, account.dead))
        result.quarantined = sum(map(sum, account.quarantined))
        result.kills, result.stops = self.kills, self.stops
        every = [*self.refs, *self.passing]
        result.incarnations = sum(ref.statistics().incarnation for ref in every)
        result.problems += account.problems()
        counted = sum(
            s.handled + s.dead + s.quarantined for s in (ref.statistics() for ref in every)
        )
        if counted != result.accepted + account.markers:
            result.problems.append(
                f"the actors' own counters say that {counted} ended, and "
                f"{result.accepted + account.markers} did"
            )


def run(
    messages: int, *, threads: int = 6, seed: int | None = None, within_s: float | None = None
) -> Result:
    """Send so many messages, or as many as fit the time, and account for each.

    Args:
        messages: Of all threads together.
        within_s: Seconds of sending; what is accepted by then is still brought to its end.
    """
    if seed is None:
        seed = random.SystemRandom().getrandbits(32)
    result = Result(seed, threads, messages)
    began = time.monotonic()
    _Run(result, within_s).run()
    result.seconds = round(time.monotonic() - began, 1)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev stress", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=1_100_000)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--seed", type=int, help="printed; random by default")
    parser.add_argument("--json", metavar="FILE", help="write the counts there")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    result = run(options.messages, threads=options.threads, seed=seed)
    counts = asdict(result) | {"asks": dict(result.asks)}
    for name, value in counts.items():
        if name != "problems":
            print(f"{name:14} {value}")
    print(f"{len(result.problems)} problems" + (":" if result.problems else "."))
    for problem in result.problems[:50]:
        print(f"  {problem}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump(counts, stream, indent=2)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
