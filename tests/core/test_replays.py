"""Dead letters and quarantine: listed, replayed, discarded."""

from __future__ import annotations

import pickle
import threading

import pytest

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxFullError,
    Origin,
    ReplaysExceededError,
    SupervisorSpec,
    TrioActor,
    UnknownEntryError,
)
from abeyance.actors.core.deadletters import DeadLetter, Ledger


class Mendable(TrioActor):
    """Crashes on `boom` until it is mended; keeps what every incarnation handled."""

    @classmethod
    def make_kept(cls):
        return {"seen": [], "mended": False}

    async def on_receive(self, message):
        if message == "boom" and not self.kept["mended"]:
            raise ValueError("boom")
        self.kept["seen"].append(message)
        return message

    def on_answer(self, answer):
        self.kept["seen"].append(("answer", answer.value))

    def shout(self, text):
        if not self.kept["mended"]:
            raise ValueError(text)
        self.kept["seen"].append(text)


async def started(system, name="a"):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            f"group {name}",
            children=(ChildSpec("a", Mendable, name=name),),
            backoff=Backoff(0.05),
            intensity=50,
        )
    )
    return supervisor.refs["a"]


async def quarantined(system, ref, message="boom"):
    ref.tell(message)
    await ref.ask("sync")
    return system.quarantine.list()[-1]


async def test_replay_hands_the_message_to_its_actor_again_and_counts_it(autojump_clock):
    async with ActorSystem() as system:
        ref = await started(system)
        entry = await quarantined(system, ref)
        assert (entry.id, entry.replays, entry.origin) == (1, 0, None)
        ref._cell.kept["mended"] = True
        assert system.quarantine.replay(entry.id).replays == 1
        await ref.ask("sync")
        assert ref._cell.kept["seen"] == ["sync", "boom", "sync"]
        assert system.quarantine.find(entry.id).replays == 1
        assert system.quarantine.total == 1


async def test_replayed_message_that_dies_again_is_a_new_entry_that_names_its_origin(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await started(system)
        entry = await quarantined(system, ref)
        system.quarantine.replay(entry.id)
        await ref.ask("sync")
        first, second = system.quarantine.list()
        assert (first.message, second.message) == ("boom", "boom")
        assert (first.replays, second.replays) == (1, 0)
        assert second.origin == Origin("quarantine", entry.id)
        ref.stop()
        system.quarantine.replay(second.id, ref)  # Behind the stop: it becomes a dead letter,
        await ref.ask("sync")  # unless the next incarnation handles it, and it crashes again.
        assert system.quarantine.list()[-1].origin == Origin("quarantine", second.id)


async def test_replayed_message_whose_actor_ends_is_a_dead_letter_that_names_its_origin(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await started(system)
        entry = await quarantined(system, ref)
        other = system.start(Mendable, name="b")
        other.stop()
        system.quarantine.replay(entry.id, other)
        await other.stopped()
        (letter,) = system.dead_letters.list()
        assert (letter.message, letter.origin) == ("boom", Origin("quarantine", 1))


async def test_replay_past_its_bound_is_refused_and_sends_nothing(autojump_clock):
    async with ActorSystem() as system:
        ref = await started(system)
        entry = await quarantined(system, ref)
        system.quarantine.replay(entry.id)
        await ref.ask("sync")
        with pytest.raises(ReplaysExceededError) as caught:
            system.quarantine.replay(entry.id)
        assert (caught.value.entry, caught.value.replays) == (1, 1)
        assert pickle.loads(pickle.dumps(caught.value)).replays == 1
        await ref.ask("sync")
        assert system.quarantine.total == 2
        assert system.quarantine.replay(entry.id, max_replays=2).replays == 2


@pytest.mark.parametrize("call", ["replay", "discard"])
async def test_unknown_entry_is_refused_by_number(call, autojump_clock):
    async with ActorSystem() as system:
        with pytest.raises(UnknownEntryError) as caught:
            getattr(system.dead_letters, call)(7)
        assert caught.value.entry == 7


async def test_replay_to_nobody_is_refused_and_not_counted(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Mendable, name="gone")
        ref.tell("x")
        ref.stop(now=True)
        await ref.stopped()
        (letter,) = system.dead_letters.list()
        with pytest.raises(ActorDeadError):
            system.dead_letters.replay(letter.id)
        assert system.dead_letters.find(letter.id).replays == 0
        heir = system.start(Mendable, name="gone")
        system.dead_letters.replay(letter.id)
        await heir.ask("sync")
        assert heir._cell.kept["seen"] == ["x", "sync"]


async def test_replay_into_a_full_mailbox_is_refused_and_not_counted(autojump_clock):
    class Small(Mendable):
        mailbox_capacity = 1

    async with ActorSystem() as system:
        entry = await quarantined(system, await started(system))
        small = system.start(Small)
        small.tell("first")
        with pytest.raises(MailboxFullError):
            system.quarantine.replay(entry.id, small)
        assert system.quarantine.find(entry.id).replays == 0


async def test_replayed_call_of_a_proxy_is_a_call_again(autojump_clock):
    async with ActorSystem() as system:
        ref = await started(system)
        ref.proxy().shout.defer("hey")
        await ref.ask("sync")
        (entry,) = system.quarantine.list()
        ref._cell.kept["mended"] = True
        system.quarantine.replay(entry.id)
        await ref.ask("sync")
        assert ref._cell.kept["seen"] == ["sync", "hey", "sync"]


async def test_replayed_fact_comes_as_an_answer_again(autojump_clock):
    class Asks(Mendable):
        def on_receive(self, message):
            if message == "ask":
                self.ask(self.kept["whom"], "x", tag="t", fact=True)

    async with ActorSystem() as system:
        slow = system.start(Mendable)
        asks = system.start(Asks)
        asks._cell.kept["whom"] = slow
        asks.tell("ask")
        asks.stop()
        await asks.stopped()
        await slow.ask("sync")
        (letter,) = system.dead_letters.list()
        assert letter.reason == "fact_undelivered"
        ref = await started(system)
        system.dead_letters.replay(letter.id, ref)
        await ref.ask("sync")
        assert ref._cell.kept["seen"] == [("answer", "x"), "sync"]


async def test_discarded_entry_is_gone_and_stays_counted(autojump_clock):
    async with ActorSystem() as system:
        entry = await quarantined(system, await started(system))
        assert system.quarantine.discard(entry.id).message == "boom"
        assert (system.quarantine.list(), system.quarantine.total) == ((), 1)


def test_numbers_of_entries_rise_past_those_that_are_no_longer_kept():
    ledger = Ledger("dead_letter", lambda _name: None, None, kept_max=2)
    for n in range(5):
        ledger.record(DeadLetter("a", n, "stopped", 0))
    assert [(entry.id, entry.message) for entry in ledger.list()] == [(4, 3), (5, 4)]
    assert [entry.id for entry in ledger.list(after=4)] == [5]
    assert [entry.id for entry in ledger.list(limit=1)] == [4]
    with pytest.raises(UnknownEntryError):
        ledger.replay(1)


def test_threads_that_replay_one_entry_send_it_once():
    with HostedSystem() as host:
        ref = host.start(Mendable, name="a")
        gone = host.start(Mendable, name="gone")

        async def leave() -> None:
            # In one step of the loop: from here the actor might handle it in between.
            gone.tell("x")
            gone.stop(now=True, block=False)
            await gone.stopped()

        host.run(leave)
        (letter,) = host.system.dead_letters.list()
        refused = []
        ready = threading.Barrier(8)

        def replay():
            ready.wait()
            try:
                host.system.dead_letters.replay(letter.id, ref)
            except ReplaysExceededError as error:
                refused.append(error)

        threads = [threading.Thread(target=replay) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ref.ask("sync")
        assert ref._cell.kept["seen"] == ["x", "sync"]
        assert len(refused) == 7
