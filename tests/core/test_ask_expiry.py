"""Handlers that end with the deadline of the ask they run for."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    AskTimeoutError,
    HostedSystem,
    OutcomeUnknownError,
    TrioActor,
)
from abeyance.actors.core.timeouts import LONGEST_S


class Runs(TrioActor):
    """Runs what it is sent, with itself as the argument; keeps what its hooks and tasks say."""

    def __init__(self, said=None):
        self.said = [] if said is None else said

    def on_receive(self, message):
        return message(self) if callable(message) else (message, self.incarnation)

    def on_failure(self, *_):
        self.said.append("failed")

    def on_answer(self, answer):
        self.said.append(answer)


async def forever(_):
    await trio.sleep_forever()


async def expired(ref, message=forever, timeout=1):
    with pytest.raises(AskTimeoutError):
        await ref.ask(message, timeout=timeout, cancel_on_timeout=True)


async def test_handler_is_cancelled_when_its_ask_expires_and_the_incarnation_goes_on(
    autojump_clock,
):
    said = []

    async def cleans_up(me):
        try:
            await trio.sleep_forever()
        finally:
            me.said.append("cancelled")

    async with ActorSystem() as system:
        ref = system.start(Runs, said)
        queued = ref.ask("next", timeout=10)
        await queued
        await expired(ref, cleans_up)
        assert await ref.ask("after") == ("after", 1)
        assert said == ["cancelled"]
        stats = ref.statistics()
        assert (stats.handled, stats.dead, stats.late, stats.quarantined) == (2, 1, 0, 0)
        assert system.dead_letters.counts == {"cancelled": 1}


async def test_handler_of_an_ask_without_the_option_runs_on(autojump_clock):
    async def slow(_):
        await trio.sleep(5)

    async with ActorSystem() as system:
        ref = system.start(Runs)
        with pytest.raises(AskTimeoutError):
            await ref.ask(slow, timeout=1)
        assert await ref.ask("after") == ("after", 1)
        assert trio.current_time() == 5
        assert ref.statistics().late == 1
        assert system.dead_letters.counts == {}


async def test_ask_that_expires_in_the_queue_ends_no_handler(autojump_clock):
    async def slow(_):
        await trio.sleep(5)
        return "slow"

    async with ActorSystem() as system:
        ref = system.start(Runs)
        running = ref.ask(slow)
        await expired(ref)
        assert await running == "slow"
        assert system.dead_letters.counts == {"expired": 1}


async def test_deadline_of_an_ask_that_was_answered_ends_no_later_handler(autojump_clock):
    async def brief(_):
        await trio.sleep(1)
        return "brief"

    async def slow(_):
        await trio.sleep(5)
        return "slow"

    async with ActorSystem() as system:
        ref = system.start(Runs)
        assert await ref.ask(brief, timeout=2, cancel_on_timeout=True) == "brief"
        assert await ref.ask(slow) == "slow"


async def test_handler_that_outlasts_its_cancellation_replies_late(autojump_clock):
    async def shielded(_):
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "late"

    async with ActorSystem() as system:
        ref = system.start(Runs)
        await expired(ref, shielded)
        assert await ref.ask("after") == ("after", 1)
        assert ref.statistics().late == 1
        assert system.dead_letters.counts == {}


async def test_error_of_a_handler_that_is_cancelled_is_as_any_error_of_an_ask(autojump_clock):
    async def breaks(_):
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    class Crashes(Runs):
        crash_on_ask_error = True

    async with ActorSystem() as system:
        ref, crashing = system.start(Runs), system.start(Crashes)
        await expired(ref, breaks)
        assert await ref.ask("after") == ("after", 1)
        assert (ref.statistics().handled, ref.statistics().late) == (2, 1)
        await expired(crashing, breaks)
        await crashing.stopped()
        assert system.quarantine.counts == {"ValueError": 1}


async def test_error_group_of_a_cancelled_handlers_nursery_keeps_the_actor(autojump_clock):
    async def breaks(_):
        async def child():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            nursery.start_soon(trio.sleep_forever)

    async with ActorSystem() as system:
        ref = system.start(Runs)
        await expired(ref, breaks)
        assert await ref.ask("after") == ("after", 1)


async def test_kill_of_a_handler_that_is_cancelled_is_a_kill(autojump_clock):
    said = []

    async def shielded(_):
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        await trio.sleep_forever()

    async with ActorSystem() as system:
        ref = system.start(Runs, said)
        await expired(ref, shielded)
        ref.kill()
        await ref.stopped()
        assert said == ["failed"]
        assert system.quarantine.counts == {"ActorKilledError": 1}
        assert system.dead_letters.counts == {}


async def test_reply_that_was_taken_by_a_handle_ends_with_the_cancelled_handler(autojump_clock):
    replies = []

    async def owes(me):
        replies.append(me.later())
        await trio.sleep_forever()
        return LATER

    async with ActorSystem() as system:
        ref = system.start(Runs)
        await expired(ref, owes)
        await wait_all_tasks_blocked()
        assert replies[0].set("late") is False
        stats = ref.statistics()
        assert (stats.owed, stats.handled, stats.dead) == (0, 0, 1)


async def test_message_that_was_stashed_by_the_cancelled_handler_does_not_come_again(
    autojump_clock,
):
    async def stashes(me):
        me.stash()
        await trio.sleep_forever()

    async with ActorSystem() as system:
        ref = system.start(Runs)
        await expired(ref, stashes)
        assert await ref.ask(lambda me: me.unstash_all()) == 0
        stats = ref.statistics()
        assert (stats.stashed, stats.handled, stats.dead) == (0, 1, 1)


async def test_reply_that_was_given_before_the_cancellation_stands(autojump_clock):
    async def replies(me):
        me.later().set("given")
        await trio.sleep(5)

    async with ActorSystem() as system:
        ref = system.start(Runs)
        assert await ref.ask(replies, timeout=1, cancel_on_timeout=True) == "given"
        assert await ref.ask("after") == ("after", 1)
        assert trio.current_time() == 5
        assert ref.statistics().handled == 2
        assert system.dead_letters.counts == {}


async def test_owed_reply_is_not_ended_by_its_deadline(autojump_clock):
    said = []

    async def works():
        await trio.sleep(5)
        return "done"

    def pipes(me):
        me.pipe(works, tag=me.later())
        return LATER

    async with ActorSystem() as system:
        ref = system.start(Runs, said)
        await expired(ref, pipes)
        await trio.sleep(10)
        assert [answer.value for answer in said] == ["done"]
        assert said[0].tag.set("late") is False
        assert ref.statistics().late == 1


async def test_handler_is_cancelled_for_an_actor_that_asked(autojump_clock):
    said = []

    async with ActorSystem() as system:
        asker, ref = system.start(Runs, said), system.start(Runs)
        await asker.ask(lambda me: me.ask(ref, forever, tag=1, timeout_s=1, cancel_on_timeout=True))
        assert await ref.ask("after") == ("after", 1)
        assert isinstance(said[0].error, AskTimeoutError)
        assert system.dead_letters.counts == {"cancelled": 1}


def test_handler_is_cancelled_for_a_host_thread_that_blocked():
    with HostedSystem() as hosted:
        ref = hosted.start(Runs)
        with pytest.raises(AskTimeoutError):
            ref.ask(forever, timeout=0.01, cancel_on_timeout=True)
        assert ref.ask("after", timeout=30) == ("after", 1)


async def test_kill_in_place_of_the_deadline_fails_the_ask_as_outcome_unknown(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Runs)
        future = ref.ask(forever, timeout=10, cancel_on_timeout=True)
        await wait_all_tasks_blocked()
        ref.kill()
        with pytest.raises(OutcomeUnknownError):
            await future
        assert system.dead_letters.counts == {}


NO_TIMES = [True, False, math.nan, -math.inf, -1, -1e308]
WITHOUT_END = [math.inf, 1e308, 10**400, LONGEST_S]


@pytest.mark.parametrize("block", [False, True], ids=["future", "blocking"])
@pytest.mark.parametrize("timeout", NO_TIMES)
def test_ask_whose_time_is_none_is_refused_before_it_is_sent(timeout, block):
    def asks(me):
        me.ask(other, "x", tag="t", timeout_s=timeout)

    with HostedSystem() as system:
        ref, other = system.start(Runs), system.start(Runs)
        with pytest.raises(ValueError, match="timeout must"):
            ref.ask("x", timeout=timeout, block=block)
        with pytest.raises(ValueError, match="timeout_s must"):
            ref.ask(asks)
        assert ref.ask("next", timeout=10) == ("next", 1)
        # Only what was sent after it came; the wheel goes on.
        assert (ref.statistics().handled, other.statistics().handled) == (2, 0)


@pytest.mark.parametrize("timeout", NO_TIMES)
@pytest.mark.parametrize("kind", [ActorSystem, HostedSystem])
def test_system_whose_asks_would_have_no_time_is_refused(kind, timeout):
    with pytest.raises(ValueError, match="ask_timeout_s must"):
        kind(ask_timeout_s=timeout)


@pytest.mark.parametrize("timeout", WITHOUT_END)
async def test_ask_with_more_time_than_can_be_kept_never_expires(timeout, autojump_clock):
    owed = []

    def owes(me):
        owed.append(me.later())
        return LATER

    async with ActorSystem() as system:
        asker = system.start(Runs)
        ref = system.start(Runs)
        future = ref.ask(owes, timeout=timeout)
        await asker.ask(lambda me: me.ask(ref, owes, tag="t", timeout_s=timeout))
        await trio.sleep(80_000)
        for reply in owed:
            assert reply.set("slow")
        assert await future == "slow"
        [answer] = await asker.ask(lambda me: me.said)
        assert answer.value == "slow"


@pytest.mark.parametrize("timeout", [*WITHOUT_END, math.nextafter(LONGEST_S, 0)])
def test_system_whose_asks_have_more_time_than_can_be_kept_serves_them(timeout):
    with HostedSystem(ask_timeout_s=timeout) as system:
        ref = system.start(Runs)
        assert ref.ask("x") == ("x", 1)
        assert ref.ask("x", timeout=timeout) == ("x", 1)
        assert ref.ask("x", block=False).get(timeout=10) == ("x", 1)
        # The wheel still ends what has a time.
        with pytest.raises(AskTimeoutError):
            ref.ask(forever, timeout=0.01, cancel_on_timeout=True)
