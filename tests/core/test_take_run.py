"""Messages that a handler takes behind the one it was given: each is still one of its own."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorCrashError,
    ActorDeadError,
    ActorSystem,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
    TrioActorRef,
)

from ..stopwatch import Stopwatch, still
from .test_tracing import TRACER


class Ask(tuple[Any, ...]):
    """What is taken together."""

    act_id = None


class Taker(TrioActor):
    """Owes a reply to whatever it is asked, and notes what it got in one go."""

    max_deliveries = 2

    @classmethod
    def make_kept(cls) -> dict[str, list[Any]]:
        return {"goes": [], "replies": []}

    def on_receive(self, message: Any) -> Any:
        if message.__class__ is not Ask:
            return message
        go: list[Any] = []
        self.kept["goes"].append(go)
        for taken, reply in self.take_run(4):
            go.append(taken[0])
            if taken[0] == "poison":
                raise ActorCrashError("poison")
            self.kept["replies"].append((taken[0], reply))
        return LATER


async def start(system: ActorSystem) -> TrioActorRef[Taker]:
    spec = SupervisorSpec("group", children=(ChildSpec("taker", Taker),), backoff=Backoff(0.05))
    supervisor = await system.start_supervisor(spec)
    ref: TrioActorRef[Taker] = supervisor.refs["taker"]
    return ref


def settle(ref: TrioActorRef[Taker]) -> None:
    replies, ref._cell.kept["replies"] = ref._cell.kept["replies"], []
    for said, reply in replies:
        reply.set(said)


def asked(ref: TrioActorRef[Taker], *said: Any) -> list[Any]:
    return [ref.ask(Ask((each,)) if each != "other" else each, block=False) for each in said]


def goes(ref: TrioActorRef[Taker]) -> list[list[Any]]:
    found: list[list[Any]] = ref._cell.kept["goes"]
    return found


async def test_messages_behind_one_are_taken_in_its_handler_and_each_has_its_own_reply(
    autojump_clock: MockClock,
) -> None:
    async with still(ActorSystem()) as system:
        ref = await start(system)
        futures = asked(ref, 1, 2, 3, 4, 5)
        await wait_all_tasks_blocked()
        assert goes(ref) == [[1, 2, 3, 4], [5]]
        assert ref.statistics().owed == 5
        settle(ref)
        assert [await future for future in futures] == [1, 2, 3, 4, 5]
        assert ref.statistics().handled == 5


async def test_another_kind_of_message_is_not_taken_and_keeps_its_place(
    autojump_clock: MockClock,
) -> None:
    async with still(ActorSystem()) as system:
        ref = await start(system)
        futures = asked(ref, 1, 2, "other", 3)
        ref.tell(Ask((4,)))
        assert await futures[2] == "other"
        await wait_all_tasks_blocked()
        # A tell has nobody to be answered: the mailbox hands it over by itself.
        assert goes(ref) == [[1, 2], [3], [4]]
        settle(ref)
        assert [await future for future in futures] == [1, 2, "other", 3]


async def test_one_that_has_expired_is_not_taken(autojump_clock: MockClock) -> None:
    async with still(ActorSystem()) as system:
        ref = await start(system)
        ref.suspend()
        kept = asked(ref, 0, 1)  # The first is handled alone: the resumption comes before it.
        late = ref.ask(Ask((2,)), block=False, timeout=1)
        with pytest.raises(AskTimeoutError):
            await late
        kept += asked(ref, 3)
        ref.resume()
        await wait_all_tasks_blocked()
        assert goes(ref) == [[0], [1], [3]]
        settle(ref)
        assert [await each for each in kept] == [0, 1, 3]


async def test_a_crash_counts_for_the_message_that_was_taken_last_and_for_no_other(
    autojump_clock: MockClock,
) -> None:
    async with still(ActorSystem()) as system:
        ref = await start(system)
        futures = asked(ref, 1, 2, "poison", 3)
        with pytest.raises(ActorCrashError):
            await futures[2]
        assert await ref.ask("other") == "other"
        assert [entry.message[0] for entry in system.quarantine.list()] == ["poison"]
        # What was owed comes back, uncounted, and what was behind stays.
        assert ref.statistics().owed == 3
        settle(ref)
        assert [await futures[place] for place in (0, 1, 3)] == [1, 2, 3]
        assert goes(ref)[-1][-1] == 3


async def test_nothing_is_taken_ahead_of_what_comes_before_the_user_lane(
    autojump_clock: MockClock,
) -> None:
    async with still(ActorSystem()) as system:
        ref = await start(system)
        futures = asked(ref, 1, 2)
        ref.kill()
        ref.tell_internal("urgent")
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert goes(ref)[-1] == [1, 2]
        settle(ref)
        assert [await future for future in futures] == [1, 2]


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        ("reject", [[1, 2, 3]]),
        ("block", [[1, 2, 3]]),
        ("drop_newest", [[1, 2, 3]]),
        ("drop_oldest", [[1], [2], [3]]),
        ("coalesce", [[1], [2], [3]]),
    ],
)
async def test_nothing_is_taken_ahead_where_a_senders_thread_takes_from_the_mailbox(
    policy: str, gone: list[list[int]], autojump_clock: MockClock
) -> None:
    class Policed(Taker):
        overflow = policy

        @classmethod
        def coalesce_key(cls, message: Any) -> Any:
            return message[0]

    async with still(ActorSystem()) as system:
        ref: TrioActorRef[Any] = system.start(Policed)
        futures = asked(ref, 1, 2, 3)
        await wait_all_tasks_blocked()
        assert goes(ref) == gone
        settle(ref)
        assert [await future for future in futures] == [1, 2, 3]


class Slow(Taker):
    """The second of what it handles takes longer than a batch may."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def on_receive(self, message: Any) -> Any:
        go: list[Any] = []
        self.kept["goes"].append(go)
        for taken, reply in self.take_run(40):
            go.append(taken[0])
            if taken[0] == 2:
                self._stopwatch.now += 60.0
            reply.set(taken[0])
        return LATER


async def test_a_run_ends_when_the_time_of_its_batch_is_over(autojump_clock: MockClock) -> None:
    async with ActorSystem() as system:
        system.stopwatch = stopwatch = Stopwatch()
        ref: TrioActorRef[Any] = system.start(Slow, stopwatch)
        futures = asked(ref, *range(1, 31))
        assert [await future for future in futures] == list(range(1, 31))
        # The time is looked at with every eighth behind the first, and ahead of them.
        assert [len(go) for go in goes(ref)] == [9, *[1] * 7, 14]


class Stashes(TrioActor):
    """Takes messages behind one that it has put aside."""

    def on_receive(self, message: Any) -> Any:
        if message.__class__ is Ask:
            return message[0]
        self.stash()
        return list(self.take_run(2))


async def test_nothing_is_taken_where_no_message_is_handled_or_it_was_stashed(
    autojump_clock: MockClock,
) -> None:
    async with still(ActorSystem()) as system:
        ref = system.start(Stashes)
        stashed, behind = ref.ask("stash", block=False), ref.ask(Ask((1,)), block=False)
        with pytest.raises(RuntimeError, match="stashed"):
            await stashed
        assert await behind == 1
        with pytest.raises(RuntimeError, match="later"):
            next(ref._cell.actor.take_run(2))
        assert ref.statistics().handled == 2


async def test_more_is_taken_behind_a_reply_that_was_given_by_its_handle(
    autojump_clock: MockClock,
) -> None:
    class Prompt(TrioActor):
        def on_receive(self, message: Any) -> Any:
            for taken, reply in self.take_run(9):
                reply.set(taken[0])
            return LATER

    async with still(ActorSystem()) as system:
        ref = system.start(Prompt)
        futures = [ref.ask(Ask((each,)), block=False) for each in range(3)]
        assert [await future for future in futures] == [0, 1, 2]
        assert ref.statistics().handled == 3


class Forgets(TrioActor):
    """Takes a second message and ends its handler before it has kept that one's handle."""

    max_deliveries = 1

    def __init__(self, ends: str, kept: list[Any]) -> None:
        self.ends = ends
        self.kept_replies = kept

    async def on_receive(self, message: Any) -> Any:
        run = self.take_run(2)
        self.kept_replies.append(next(run)[1])
        assert next(run)[0] == ("taken",)
        if self.ends == "fails":
            raise ValueError("taken")
        if self.ends == "crashes":
            raise ActorCrashError("taken")
        if self.ends == "waits":
            await trio.sleep_forever()
        return "value"


def outcome_of(future: Any) -> Any:
    assert future.settled
    return type(future.error) if future.error is not None else future.get()


@pytest.mark.parametrize(
    ("ends", "outcome", "counts"),
    [
        ("fails", ValueError, "handled"),
        ("returns", "value", "handled"),
    ],
)
async def test_outcome_of_a_handler_is_that_of_the_message_it_took_last(
    ends: str, outcome: Any, counts: str, autojump_clock: MockClock
) -> None:
    replies: list[Any] = []
    async with still(ActorSystem()) as system:
        ref = system.start(Forgets, ends, replies)
        first, taken = ref.ask(Ask(("first",)), block=False), ref.ask(Ask(("taken",)), block=False)
        await wait_all_tasks_blocked()
        assert outcome_of(taken) == outcome
        # What came first has its handle, and nobody has used that.
        assert not first.settled
        assert (ref.statistics().owed, ref.statistics().handled) == (1, 1)
        assert replies[0].set("paid")
        assert await first == "paid"
        assert ref.statistics().handled == ref._cell.accounted() == 2


@pytest.mark.parametrize("ends", ["crashes", "killed", "stopped_now", "run_is_cancelled"])
async def test_message_that_was_taken_ends_once_when_its_handler_is_ended(
    ends: str, autojump_clock: MockClock
) -> None:
    replies: list[Any] = []
    with trio.CancelScope() as scope:
        async with still(ActorSystem()) as system:
            ref = system.start(Forgets, "crashes" if ends == "crashes" else "waits", replies)
            first = ref.ask(Ask(("first",)), block=False)
            taken = ref.ask(Ask(("taken",)), block=False)
            await wait_all_tasks_blocked()
            if ends == "killed":
                ref.kill()
            elif ends == "stopped_now":
                ref.stop(now=True)
                await system.shutdown(deadline_s=1)
            elif ends == "run_is_cancelled":
                scope.cancel()
            await wait_all_tasks_blocked()
    assert first.settled
    assert taken.settled
    expected = ActorCrashError if ends == "crashes" else OutcomeUnknownError
    assert outcome_of(taken) is expected
    assert outcome_of(first) in (OutcomeUnknownError, ActorDeadError)
    assert ref._cell.accounted() == 2
    assert ref._cell.dead + ref._cell.quarantined == 2


async def test_nothing_is_taken_behind_what_ends_its_handler_in_another_way(
    autojump_clock: MockClock,
) -> None:
    """Behind a tell, whose error is a crash, and an ask whose deadline cancels its handler."""
    took = []

    class Takes(TrioActor):
        def on_receive(self, message: Any) -> Any:
            run = []
            for taken, reply in self.take_run(9):
                run.append(taken[0])
                reply.set(None)
            took.append(run)
            return LATER

    async with still(ActorSystem()) as system:
        ref = system.start(Takes)
        ref.tell(Ask(("tell",)))
        ref.ask(Ask(("cancels",)), cancel_on_timeout=True)
        ref.ask(Ask(("ask",)), block=False)
        await ref.ask(Ask(("cancels too",)), cancel_on_timeout=True)
    assert took == [["tell"], ["cancels"], ["ask"], ["cancels too"]]


async def test_message_that_brings_a_trace_is_handed_over_as_it_was_sent_and_taken_alone() -> None:
    async with still(ActorSystem(trace=True)) as system:
        ref = await start(system)
        with TRACER.start_as_current_span("sender"):
            futures = asked(ref, "a", "b")
        futures += asked(ref, "c", "d")
        await wait_all_tasks_blocked()
        assert ref._cell.kept["goes"] == [["a"], ["b"], ["c", "d"]]
        settle(ref)
        assert [await future for future in futures] == ["a", "b", "c", "d"]
