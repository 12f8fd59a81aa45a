"""Stashing: what a handler puts aside is handled again, or ends as everything else does."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    MailboxFullError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)


class Opens(TrioActor):
    """Stashes what comes before `open`, and tells what it did to its cell."""

    @classmethod
    def make_kept(cls):
        return {"seen": [], "open": False, "replies": []}

    async def on_receive(self, message):
        kept = self.kept
        match message:
            case "open":
                kept["open"] = True
                return self.unstash_all()
            case "boom":
                raise ValueError("boom")
            case "hold":
                await trio.sleep_forever()
            case "internal unstash":
                return self.unstash_all()
            case _ if not kept["open"]:
                return self.stash()
        kept["seen"].append(message)
        return message


class OpensAgain(Opens):
    max_deliveries = 3


async def supervised(system, actor_class, **options):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            "g", (ChildSpec("a", actor_class),), backoff=Backoff(0, 0), intensity=100, **options
        )
    )
    return supervisor.refs["a"]


def kept(ref):
    return ref._cell.kept


def accounted(ref):
    return ref._cell.accounted()


async def test_stashed_messages_are_handled_first_and_in_order_once_unstashed():
    async with ActorSystem() as system:
        ref = system.start(Opens)
        for message in [1, 2, 3]:
            ref.tell(message)
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 3
        assert ref.statistics().handled == 0
        future = ref.ask("open")
        for message in [4, 5]:
            ref.tell(message)
        assert await future == 3
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1, 2, 3, 4, 5]
        assert (ref.statistics().stashed, accounted(ref)) == (0, 6)


async def test_unstashing_in_the_internal_lane_comes_before_the_user_lane_too():
    async with ActorSystem() as system:
        ref = system.start(Opens)
        ref.tell(1)
        await wait_all_tasks_blocked()
        kept(ref)["open"] = True
        ref.tell(2)
        ref.tell_internal("internal unstash")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1, 2]


async def test_unstashing_wakes_an_actor_that_sleeps():
    async with ActorSystem() as system:
        ref = system.start(Opens)
        ref.tell(1)
        await wait_all_tasks_blocked()
        kept(ref)["open"] = True
        assert ref._cell.actor.unstash_all() == 1
        assert ref._cell.actor.unstash_all() == 0
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1]


async def test_handler_need_not_return_what_stash_returns():
    class Silent(Opens):
        async def on_receive(self, message):
            if not self.kept["open"] and message != "open":
                self.stash()
                return None
            return await super().on_receive(message)

    async with ActorSystem() as system:
        ref = system.start(Silent)
        ref.tell(1)
        asked = ref.ask(2)
        await wait_all_tasks_blocked()
        assert (ref.statistics().handled, ref.statistics().stashed) == (0, 2)
        assert not asked.settled
        await ref.ask("open")
        assert await asked == 2
        assert kept(ref)["seen"] == [1, 2]
        assert ref.statistics().handled == accounted(ref) == 3


@pytest.mark.parametrize("high", [None, 1], ids=["plain", "marks"])
async def test_stash_counts_against_the_capacity_until_its_messages_were_handled(high):
    class Small(Opens):
        mailbox_capacity = 3
        mailbox_high = high

    async with ActorSystem() as system:
        ref = system.start(Small)
        for message in [1, 2]:
            ref.tell(message)
        await wait_all_tasks_blocked()
        ref.tell(3)
        with pytest.raises(MailboxFullError):
            ref.tell("over")
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 3
        with pytest.raises(MailboxFullError):
            ref.tell("over")
        kept(ref)["open"] = True
        ref.suspend()
        ref._cell.actor.unstash_all()
        await wait_all_tasks_blocked()
        with pytest.raises(MailboxFullError):
            ref.tell("over")
        assert ref.statistics().mailbox.returned == 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell_wait, 4)
            await wait_all_tasks_blocked()
            ref.resume()
        for message in [5, 6]:
            ref.tell(message)
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1, 2, 3, 4, 5, 6]
        assert (ref._box.load, ref._box.unstashed, ref._box.watched) == (0, 0, False)


async def test_stashed_ask_is_answered_when_it_is_handled_and_still_expires(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Opens)
        answered, expires = ref.ask(1), ref.ask(2, timeout=5)
        with pytest.raises(AskTimeoutError):
            await expires
        await ref.ask("open")
        assert await answered == 1
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1]
        assert system.dead_letters.counts == {"expired": 1}


@pytest.mark.parametrize("how", ["boom", "kill"])
@pytest.mark.parametrize("actor_class", [Opens, OpensAgain])
async def test_stashed_messages_come_back_in_order_and_uncounted_at_a_crash(actor_class, how):
    async with ActorSystem() as system:
        ref = await supervised(system, actor_class)
        asked = [ref.ask(n) for n in range(3)]
        for _ in range(5):  # More often than they may be delivered.
            await wait_all_tasks_blocked()
            assert ref.statistics().stashed == 3
            if how == "kill":
                ref.kill()
            else:
                ref.tell("boom")
        await wait_all_tasks_blocked()
        assert ref.statistics().incarnation > 5
        assert not any(future.settled for future in asked)
        ref.tell("after")
        await ref.ask("open")
        assert [await future for future in asked] == [0, 1, 2]
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [0, 1, 2, "after"]


async def test_what_is_owed_comes_before_what_was_stashed_and_that_before_what_was_in_flight():
    class Owes(OpensAgain):
        max_deliveries = 2

        async def on_receive(self, message):
            self.kept["seen"].append(message)
            if self.incarnation == 1:
                match message:
                    case "owed":
                        self.kept["replies"].append(self.later())
                        return LATER
                    case "stashed":
                        return self.stash()
                    case "in flight":
                        raise ValueError("boom")
            return message

    async with ActorSystem() as system:
        ref = await supervised(system, Owes)
        for message in ["stashed", "owed", "in flight", "queued"]:
            ref.ask(message) if message == "owed" else ref.tell(message)
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"][3:] == ["owed", "stashed", "in flight", "queued"]


async def test_stashed_messages_are_dead_letters_when_the_actor_stops():
    async with ActorSystem() as system:
        ref = system.start(Opens)
        asked = ref.ask(1)
        ref.tell(2)
        await ref.stop()
        with pytest.raises(ActorDeadError):
            await asked
        assert [letter.message for letter in system.dead_letters.entries] == [1, 2]
        assert system.dead_letters.counts == {"stopped": 2}
        assert accounted(ref) == 2


async def test_stashed_messages_go_to_the_next_incarnation_of_a_permanent_child_that_stops():
    async with ActorSystem() as system:
        ref = await supervised(system, Opens)
        ref.tell(1)
        await ref.stop()
        await ref.ask("open")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1]
        assert ref.statistics().incarnation == 2


async def test_stashed_messages_of_a_sibling_that_is_restarted_come_back():
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "g",
                (ChildSpec("a", Opens), ChildSpec("b", Opens)),
                strategy="one_for_all",
                backoff=Backoff(0, 0),
            )
        )
        ref = supervisor.refs["a"]
        ref.tell(1)
        await wait_all_tasks_blocked()
        supervisor.refs["b"].tell("boom")
        await wait_all_tasks_blocked()
        assert ref.statistics().incarnation == 2
        await ref.ask("open")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1]


@pytest.mark.parametrize(
    ("deliveries", "times"), [(1, 1), (3, 3)], ids=["at most once", "at least once"]
)
async def test_handler_that_stashes_and_then_crashes_has_its_message_counted(deliveries, times):
    class Falls(Opens):
        max_deliveries = deliveries

        async def on_receive(self, message):
            self.kept["seen"].append(message)
            self.stash()
            await trio.lowlevel.checkpoint()
            raise ValueError("after stashing")

    async with ActorSystem() as system:
        ref = await supervised(system, Falls)
        ref.tell("x")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["x"] * times
        (entry,) = system.quarantine.entries
        assert entry.deliveries == times
        assert (ref.statistics().stashed, accounted(ref)) == (0, 1)


async def test_handler_that_stashes_and_fails_is_quarantined_once_where_its_actor_resumes():
    class Goes(Opens):
        async def on_receive(self, message):
            if message == "fails":
                self.stash()
                raise ValueError("after stashing")
            return await super().on_receive(message)

    async with ActorSystem() as system:
        ref = await supervised(system, Goes, directives=((ValueError, "resume"),))
        for message in [1, "fails", 2]:
            ref.tell(message)
        await ref.ask("open")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1, 2]
        assert [entry.message for entry in system.quarantine.entries] == ["fails"]
        assert (ref.statistics().incarnation, accounted(ref)) == (1, 4)


async def test_error_of_an_ask_that_its_handler_stashed_is_its_reply():
    class Fails(Opens):
        async def on_receive(self, message):
            self.stash()
            raise ValueError("after stashing")

    async with ActorSystem() as system:
        ref = system.start(Fails)
        with pytest.raises(ValueError, match="after stashing"):
            await ref.ask("x")
        assert (ref.statistics().stashed, ref.statistics().handled) == (0, 1)


async def test_unstashing_leaves_what_the_running_handler_stashed_for_the_next_time():
    class Both(Opens):
        async def on_receive(self, message):
            self.kept["seen"].append(message)
            self.stash()
            return self.unstash_all() if message == 2 else None

    async with ActorSystem() as system:
        ref = system.start(Both)
        ref.tell(1)
        ref.tell(2)
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == [1, 2, 1]
        assert [envelope[0] for envelope in ref._box.stashed] == [2, 1]


async def test_stash_outside_a_handler_twice_or_beside_a_reply_handle_is_an_error():
    class Wrong(TrioActor):
        def on_receive(self, message):
            if message == "twice":
                self.stash()
                self.stash()
            if message == "later, stash":
                self.later()
                self.stash()
            if message == "stash, later":
                self.stash()
                self.later()

    async with ActorSystem() as system:
        ref = system.start(Wrong)
        for message in ["twice", "later, stash", "stash, later"]:
            with pytest.raises(RuntimeError, match=r"stashed|handle"):
                await ref.ask(message)
            assert ref.statistics().stashed == ref.statistics().owed == 0
        with pytest.raises(RuntimeError, match="belongs in a handler"):
            ref._cell.actor.stash()
        assert ref.statistics().handled == accounted(ref) == 3


async def test_handle_of_an_earlier_incarnation_settles_a_stashed_message_which_leaves_the_stash():
    class Owes(Opens):
        max_deliveries = 2

        async def on_receive(self, message):
            if message == "boom":
                raise ValueError("boom")
            if self.incarnation == 1:
                self.kept["replies"].append(self.later())
                return LATER
            return self.stash()

    async with ActorSystem() as system:
        ref = await supervised(system, Owes)
        asked = ref.ask("x")
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 1
        assert kept(ref)["replies"][0].set("from before")
        assert await asked == "from before"
        assert (ref.statistics().stashed, accounted(ref)) == (0, 1)


async def test_sender_that_waits_gets_the_room_of_a_stashed_message_whose_handle_is_settled():
    class Owes(Opens):
        max_deliveries = 2
        mailbox_capacity = 1

        async def on_receive(self, message):
            if message != "owe":
                return message
            if self.incarnation == 1:
                self.kept["replies"].append(self.later())
                return LATER
            return self.stash()

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        ref = await supervised(system, Owes)
        ref.tell("owe")
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        nursery.start_soon(ref.tell_wait, "waits")
        await wait_all_tasks_blocked()
        assert ref.statistics().mailbox.waiting == 1
        assert kept(ref)["replies"][0].set()
        await wait_all_tasks_blocked()
        assert ref.statistics().mailbox.waiting == 0
        assert accounted(ref) == 2


async def test_message_that_a_shielded_handler_stashed_is_a_dead_letter_when_its_actor_ends():
    class Shielded(Opens):
        async def on_receive(self, message):
            self.stash()
            with trio.CancelScope(shield=True):
                await self.kept["release"].wait()
            if message == "fails":
                raise ValueError("after its end")

    for message in ["returns", "fails"]:
        async with ActorSystem() as system:
            ref = system.start(Shielded)
            release = kept(ref)["release"] = trio.Event()
            asked = ref.ask(message)
            await wait_all_tasks_blocked()
            ref.kill()
            ref._cell._end(None)
            assert asked.settled
            release.set()
            with pytest.raises(ActorDeadError):
                await asked
            await wait_all_tasks_blocked()
            assert (ref._box.held, accounted(ref)) == (0, 1)
            assert system.dead_letters.counts == {"stopped": 1}


async def test_message_that_a_shielded_handler_was_to_get_again_is_quarantined_at_its_end():
    class Shielded(OpensAgain):
        async def on_receive(self, message):
            with trio.CancelScope(shield=True):
                await self.kept["release"].wait()
            await trio.sleep_forever()

    async with ActorSystem() as system:
        ref = system.start(Shielded)
        release = kept(ref)["release"] = trio.Event()
        asked = ref.ask("x")
        await wait_all_tasks_blocked()
        ref.kill()
        ref._cell._end(None)
        release.set()
        with pytest.raises(OutcomeUnknownError):
            await asked
        assert (ref._box.held, accounted(ref), system.quarantine.total) == (0, 1, 1)


@pytest.mark.parametrize("verb", ["stash", "unstash_all", "later", "take_run"])
async def test_what_moves_a_message_is_refused_in_another_thread_and_moves_none(verb):
    class Strays(TrioActor):
        @classmethod
        def make_kept(cls):
            return []

        async def on_receive(self, message):
            acts = {"take_run": lambda: next(self.take_run(2))}
            with pytest.raises(RuntimeError, match="loop thread"):
                await trio.to_thread.run_sync(acts.get(verb, getattr(self, verb)))
            self.kept.append(message)
            return message

    async with ActorSystem() as system:
        ref = system.start(Strays)
        assert [await ref.ask(word) for word in ("a", "b")] == ["a", "b"]
        assert ref.statistics().mailbox.stashed == 0
