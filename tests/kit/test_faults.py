"""Faults: each point with each action, what then holds, and schedules that repeat."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import trio

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    ChildStartError,
    HostedSystem,
    MailboxFullError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.testing import POINTS, Faults, InjectedCrashError, Probe, settled, wait_settled

AT_ONCE = Backoff(0.0, 0.0)


class Log(TrioActor):
    """Keeps what it handled, and which incarnation did."""

    @classmethod
    def make_kept(cls):
        return []

    def on_receive(self, message):
        self.kept.append(message)
        return message

    def method(self, value):
        self.kept.append(value)
        return value


class Twice(Log):
    max_deliveries = 2


class Awaits(Log):
    async def on_receive(self, message):
        await trio.lowlevel.checkpoint()
        return super().on_receive(message)


class Other(Log):
    pass


async def child(system: ActorSystem, kind: type[TrioActor] = Log, name: str = "log") -> Any:
    group = await system.start_supervisor(
        SupervisorSpec(
            f"{name}s", (ChildSpec(name, kind, name=name),), intensity=1_000, backoff=AT_ONCE
        )
    )
    return group.refs[name]


def kept(ref: Any) -> list[Any]:
    return list(ref._cell.kept)


async def test_message_dropped_at_the_put_is_a_dead_letter_with_reason_fault():
    faults = Faults(1)
    faults.at("mailbox_put", actor="log", nth=2).drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log, name="log")
            for n in range(3):
                ref.tell(n)
            await settled(system)
            assert kept(ref) == [0, 2]
            assert [(x.message, x.reason) for x in system.dead_letters.entries] == [(1, "fault")]


async def test_ask_dropped_at_the_put_fails_as_its_actor_were_dead():
    faults = Faults(1)
    faults.at("mailbox_put", message=int).drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log)
            with pytest.raises(ActorDeadError, match="a fault dropped"):
                await ref.ask(1)
            assert await ref.ask("text") == "text"


@pytest.mark.parametrize("how", ["tell", "tell_wait", "tell_internal", "ask"])
async def test_message_duplicated_at_the_put_is_handled_twice_and_accounted_for_twice(how):
    faults = Faults(1)
    faults.at("mailbox_put", nth=1).duplicate()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log, name="log")
            if how == "ask":
                assert await ref.ask("x") == "x"
            elif how == "tell_wait":
                await ref.tell_wait("x")
            else:
                getattr(ref, how)("x")
            await settled(system)
            assert kept(ref) == ["x", "x"]
            assert ref.statistics().handled == 2


async def test_receiver_killed_at_the_put_keeps_what_was_put_for_its_next_incarnation():
    faults = Faults(1)
    faults.at("mailbox_put", nth=1).kill()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system)
            ref.tell("x")
            await settled(system)
            assert kept(ref) == ["x"]
            assert ref.statistics().incarnation == 2


@pytest.mark.parametrize("kind", [Log, Awaits], ids=["plain", "async"])
@pytest.mark.parametrize("point", ["before_handle", "after_handle_before_ack"])
async def test_crash_around_a_handler_quarantines_its_message_at_most_once(point, kind):
    faults = Faults(1)
    faults.at(point, nth=2).crash()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system, kind)
            for n in range(3):
                ref.tell(n)
            await settled(system)
            assert kept(ref) == ([0, 2] if point == "before_handle" else [0, 1, 2])
            [entry] = system.quarantine.entries
            assert entry.message == 1
            assert isinstance(entry.error, InjectedCrashError)


async def test_crash_after_a_handler_delivers_its_message_again_at_least_once():
    faults = Faults(1)
    faults.at("after_handle_before_ack", nth=1).crash()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system, Twice)
            assert await ref.ask("x") == "x"
            assert kept(ref) == ["x", "x"]


async def test_plain_error_before_the_handler_of_an_ask_is_its_reply():
    faults = Faults(1)
    faults.at("before_handle").crash(ValueError("boom"))
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log)
            with pytest.raises(ValueError, match="boom"):
                await ref.ask("x")
            assert ref.statistics().incarnation == 1


@pytest.mark.parametrize("point", ["before_handle", "after_handle_before_ack"])
async def test_kill_around_a_handler_makes_its_asks_outcome_unknown(point):
    faults = Faults(1)
    faults.at(point, message=lambda said: said == "x", nth=1).kill()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system)
            with pytest.raises(OutcomeUnknownError):
                await ref.ask("x")
            assert await ref.ask("y") == "y"


@pytest.mark.parametrize("point", ["before_handle", "after_handle_before_ack"])
async def test_delay_around_a_handler_takes_trios_time(point, autojump_clock):
    faults = Faults(1)
    faults.at(point, nth=1).delay(5)
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log)
            began = trio.current_time()
            assert await ref.ask("x") == "x"
            assert trio.current_time() - began == 5


@pytest.mark.parametrize(
    "ask",
    [lambda ref: ref.proxy().method(3), lambda ref: ref.ask(3, block=False)],
    ids=["proxy call", "ask"],
)
async def test_proxy_calls_pass_the_points_as_messages_do(ask):
    faults = Faults(1)
    faults.at("before_handle", nth=2).crash()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log, name="log")
            assert await ask(ref) == 3
            with pytest.raises(InjectedCrashError):
                await ask(ref)
        assert faults.hits("before_handle", "log") == 2
        assert faults.hits("after_handle_before_ack", "log") == 1


async def test_answers_and_ends_pass_the_points_as_messages_do():
    class Asks(TrioActor):
        @classmethod
        def make_kept(cls):
            return []

        def __init__(self, ref):
            self.ref = ref

        def on_receive(self, message):
            self.watch(self.ref)
            self.ask(self.ref, message, tag="t", fact=True)

        def on_answer(self, answer):
            self.kept.append(answer.unwrap())

        def on_ended(self, ended):
            self.kept.append("ended")

    faults = Faults(1)
    with faults:
        async with ActorSystem(faults=faults) as system:
            log = system.start(Log)
            ref = system.start(Asks, log, name="asks")
            ref.tell("x")
            await settled(system)
            await log.stop()
            await settled(system)
            assert kept(ref) == ["x", "ended"]
            assert faults.hits("before_handle", "asks") == 3


async def test_quarantined_fact_is_no_message_of_the_accounts():
    class Asks(TrioActor):
        def on_receive(self, message):
            self.pipe(trio.lowlevel.checkpoint, tag="t", fact=True)

        def on_answer(self, answer):
            raise RuntimeError("poison")

    faults = Faults(1)
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system, Asks)
            ref.tell("x")
            await settled(system)
            assert system.quarantine.total == 1
            faults.check()


@pytest.mark.parametrize(
    ("point", "nth", "lives"), [("on_start", 1, 2), ("on_restart", 1, 3)], ids=str
)
@pytest.mark.parametrize("action", ["crash", "kill"])
async def test_start_that_fails_is_tried_again_and_loses_no_message(point, nth, lives, action):
    faults = Faults(1)
    getattr(faults.at(point, actor="log", nth=nth), action)()
    faults.at("before_handle", actor="log", message=lambda said: said == "bad").crash()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child_after_a_failed_start(system, point)
            ref.tell("bad")
            ref.tell("good")
            await settled(system)
            assert kept(ref) == ["good"]
            assert ref.statistics().incarnation == lives


async def child_after_a_failed_start(system: ActorSystem, point: str) -> Any:
    """The first start that fails is its group's; a later one is tried again by it."""
    if point == "on_start":
        with pytest.raises(ChildStartError):
            await child(system)
    return await child(system)


async def test_delayed_wake_lets_messages_gather_and_loses_none(autojump_clock):
    faults = Faults(1)
    faults.at("wake", actor="log", nth=1).delay(7)
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log, name="log")
            await settled(system)
            began = trio.current_time()
            ref.tell(1)
            ref.tell(2)
            await settled(system)
            assert trio.current_time() - began == 7
            assert kept(ref) == [1, 2]


@pytest.mark.parametrize("end", ["kill", "stop now"])
async def test_delayed_wake_does_not_keep_an_actor_from_a_kill(autojump_clock, end):
    faults = Faults(1)
    faults.at("wake", actor="log", nth=1).delay(7)
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system)
            await settled(system)
            ref.tell(1)
            if end == "kill":
                ref.kill()
            else:
                assert await ref.stop(now=True)
            await settled(system)
            assert trio.current_time() < 1
            assert kept(ref) == [1]


def test_crash_of_a_bridge_call_is_the_hosts_and_hands_nothing_over():
    faults = Faults(1)
    faults.at("bridge_call", actor="log", nth=1).crash(ConnectionError("cut"))
    with faults, HostedSystem(faults=faults) as hosted:
        ref = hosted.start(Log, name="log")
        with pytest.raises(ConnectionError, match="cut"):
            ref.ask("x")
        assert ref.ask("y") == "y"
        assert kept(ref) == ["y"]


def test_delay_of_a_bridge_call_blocks_the_host_in_trios_time():
    faults = Faults(1)
    faults.at("bridge_call", actor="host", nth=1).delay(60)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with faults, HostedSystem(faults=faults, trio_clock=clock, ask_timeout_s=None) as hosted:

        async def now():
            return trio.current_time()

        assert hosted.run(now) >= 60


@pytest.mark.drawn(1)
@pytest.mark.parametrize("point", ["mailbox_put", "before_handle", "on_start"])
def test_exit_ends_the_process_at_its_point(point):
    code = f"""
import trio
from abeyance.actors.core import ActorSystem, TrioActor
from abeyance.actors.testing import Faults

class Log(TrioActor):
    def on_receive(self, message):
        print("handled", flush=True)

async def main():
    faults = Faults(1)
    faults.at("{point}").exit(9)
    async with ActorSystem(faults=faults) as system:
        system.start(Log).tell(1)
    print("ended", flush=True)

trio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "")


# -- selectors and chance


async def test_selectors_are_name_class_type_and_predicate():
    faults = Faults(1)
    faults.at("mailbox_put", actor="one", message=int).drop()
    faults.at("mailbox_put", actor=Other, message=lambda text: text == "b").drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            one, two = system.start(Log, name="one"), system.start(Other, name="two")
            for ref in (one, two):
                for message in (1, "a", "b"):
                    ref.tell(message)
            await settled(system)
            assert kept(one) == ["a", "b"]
            assert kept(two) == [1, "a"]


async def test_actor_without_a_name_is_called_by_its_class_or_child_id_in_order_of_birth():
    faults = Faults(1)
    faults.at("mailbox_put", actor="Log#2").drop()
    faults.at("mailbox_put", actor="worker").drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            first, second = system.start(Log), system.start(Log)
            group = await system.start_supervisor(
                SupervisorSpec("g", (ChildSpec("worker", Other),))
            )
            refs = (first, second, group.refs["worker"])
            for ref in refs:
                ref.tell(1)
            await settled(system)
            assert [kept(ref) for ref in refs] == [[1], [], []]


async def test_fault_acts_at_most_as_often_as_said():
    faults = Faults(1)
    faults.at("mailbox_put", times=2).drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log)
            for n in range(4):
                ref.tell(n)
            await settled(system)
            assert kept(ref) == [2, 3]


async def _lossy(faults: Faults, order: tuple[int, ...] = (0, 1)) -> list[list[int]]:
    with faults:
        async with ActorSystem(faults=faults) as system:
            refs = [system.start(Log, name=f"log {n}") for n in range(2)]
            for which in order:
                for n in range(50):
                    refs[which].tell(n)
            await settled(system)
            return [kept(ref) for ref in refs]


def _chancy(seed: int) -> Faults:
    faults = Faults(seed)
    faults.at("mailbox_put", probability=0.3).drop()
    return faults


async def test_chance_repeats_by_its_seed_whatever_the_order_of_other_actors():
    first = await _lossy(_chancy(5))
    assert 10 < sum(map(len, first)) < 90
    assert await _lossy(_chancy(5), order=(1, 0)) == first
    assert await _lossy(_chancy(6)) != first


async def test_schedule_of_a_run_replays_exactly_from_its_text():
    faults = _chancy(5)
    first = await _lossy(faults)
    again = Faults.replay(faults.schedule)
    assert await _lossy(again) == first
    assert again.fired == faults.fired


async def test_schedule_makes_errors_again_by_class_and_text():
    faults = Faults(1)
    faults.at("before_handle", nth=1).crash(ValueError("it's", 1))
    faults.at("before_handle", nth=2).crash(ConnectionError("gone away"))
    faults.at("before_handle", nth=3).delay(0.5)

    async def play(faults: Faults) -> list[str]:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Log)
            said = []
            for _ in range(3):
                try:
                    said.append(repr(await ref.ask("x")))
                except Exception as error:
                    said.append(f"{type(error).__name__}: {error}")
            return said

    first = await play(faults)
    assert first == ['ValueError: ("it\'s", 1)', "ConnectionError: gone away", "'x'"]
    again = Faults.replay("\n" + str(faults) + "\n")
    assert await play(again) == first
    assert again.schedule.splitlines()[1:] == faults.schedule.splitlines()[1:]


async def test_error_that_leaves_the_block_carries_the_schedule():
    faults = Faults(77)
    faults.at("mailbox_put").drop()
    error = RuntimeError("the test's own")
    with pytest.raises(RuntimeError, match="own"), faults:  # noqa: PT012 - the block is the test.
        async with ActorSystem(faults=faults) as system:
            system.start(Log, name="my log").tell(1)
        raise error
    [note] = error.__notes__
    assert "seed 77" in note
    assert "mailbox_put 'my log' 1 drop" in note


# -- accounts


async def test_accounts_name_an_actor_whose_messages_do_not_add_up():
    faults = Faults(1)
    async with ActorSystem(faults=faults) as system:
        ref = system.start(Log, name="log")
        await ref.ask("x")
        ref._cell.handled = 0
    with pytest.raises(AssertionError, match=r"log: 1 accepted, but 0 handled") as caught:
        faults.check()
    assert "seed 1" in caught.value.__notes__[0]


async def test_accounts_name_a_reply_that_will_never_come():
    class Forgets(TrioActor):
        def on_receive(self, message):
            self.later()
            return LATER

    faults = Faults(1)
    async with ActorSystem(faults=faults) as system:
        ref = system.start(Forgets, name="forgets")
        asked = ref.ask("x", timeout=float("inf"))
        await trio.testing.wait_all_tasks_blocked()
        faults.check()
        ref._cell.owed.clear()
        ref._cell.handled += 1
        with pytest.raises(AssertionError, match="forgets: 1 asked that will never be answered"):
            faults.check()
        asked.set()


async def test_accounts_add_up_while_messages_are_queued_owed_and_in_flight():
    class Owes(TrioActor):
        async def on_receive(self, message):
            if message == "later":
                self.later()
                return LATER
            return await trio.sleep_forever()

    faults = Faults(1)
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Owes)
            asks = [ref.ask(message) for message in ("later", "fly", "queue")]
            await trio.testing.wait_all_tasks_blocked()
            ref.stop()
            ref.tell_internal("internal")
            seen = ref.statistics()
            assert (seen.owed, seen.in_flight, seen.internal, seen.queued) == (1, True, 1, 1)
            faults.check()
            ref.kill()
        assert all(ask.settled for ask in asks)


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest", "drop_newest"])
async def test_accounts_add_up_for_each_overflow(overflow):
    kind = type("Small", (Log,), {"mailbox_capacity": 2, "overflow": overflow})
    faults = Faults(1)
    faults.at("mailbox_put", probability=0.2).duplicate()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(kind)
            refused = 0
            for n in range(20):
                try:
                    ref.tell(n)
                except MailboxFullError:
                    refused += 1
            assert bool(refused) == (overflow == "reject")
            await settled(system)


async def test_system_without_rules_behaves_as_one_without_faults():
    with Faults(1) as faults:
        async with ActorSystem(faults=faults) as system:
            ref = await child(system)
            ref.tell(1)
            assert await ref.ask(2) == 2
            assert await ref.proxy().method(3) == 3
            ref.proxy().extra = 4
            assert await ref.proxy().kept == [1, 2, 3]
            assert await ref.proxy().extra == 4
        assert faults.fired == ()


# -- what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"point": "nowhere"}, "no point 'nowhere'"),
        ({"point": "wake", "message": int}, "no message"),
        ({"point": "wake", "nth": 0}, "from 1"),
        ({"point": "wake", "times": 0}, "at least 1"),
        ({"point": "wake", "probability": 1.5}, "0 to 1"),
        ({"point": "wake", "nth": 1, "probability": 0.5}, "exclude"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_place_that_is_none_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Faults(1).at(**options)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "action", ["crash", "kill", "delay", "drop", "duplicate", "exit", "refuse"]
)
def test_action_is_taken_exactly_where_it_is_possible(point, action):
    where = Faults(1).at(point)
    args = (1,) if action == "delay" else ()
    if action in POINTS[point]:
        getattr(where, action)(*args)
    else:
        with pytest.raises(ValueError, match=f"{action} is not possible at {point}"):
            getattr(where, action)(*args)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_delay_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="finite"):
        Faults(1).at("wake").delay(seconds)


@pytest.mark.parametrize(
    "line",
    [
        "mailbox_put log 1",
        "mailbox_put log x drop",
        "wake log 1 drop",
        "nowhere log 1 drop",
        "wake log 1 delay",
        "wake log 1 sing",
        "wake log 1 delay inf",
    ],
)
def test_line_that_is_no_fault_is_refused(line):
    with pytest.raises(ValueError, match=r"\w"):
        Faults.replay(line)


# -- from threads


def test_faults_of_host_threads_are_accounted_for():
    faults = Faults(3)
    faults.at("mailbox_put", probability=0.1).drop()
    faults.at("mailbox_put", probability=0.1).duplicate()
    faults.at("before_handle", probability=0.02).crash()
    faults.at("mailbox_put", probability=0.01).kill()
    with faults, HostedSystem(faults=faults) as hosted:
        group = hosted.start_supervisor(
            SupervisorSpec(
                "g",
                tuple(ChildSpec(str(n), Twice) for n in range(3)),
                intensity=10_000,
                backoff=AT_ONCE,
            )
        )
        refs = list(group.refs.values())

        def send(worker):
            for n in range(300):
                ref = refs[(worker + n) % 3]
                if n % 7:
                    ref.tell((worker, n))
                else:
                    ref.ask((worker, n), block=False)

        threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        faults.check()
        wait_settled(hosted)
        assert {fired.action.kind for fired in faults.fired} == {
            "drop",
            "duplicate",
            "crash",
            "kill",
        }


async def test_probe_gets_what_a_duplicate_sends_and_nothing_of_a_drop(autojump_clock):
    faults = Faults(1)
    faults.at("mailbox_put", actor="probe", message=lambda said: said == 1).duplicate()
    faults.at("mailbox_put", actor="probe", message=lambda said: said == 2).drop()
    with faults:
        async with ActorSystem(faults=faults) as system:
            probe = Probe(system, name="probe")
            probe.ref.tell(1)
            probe.ref.tell(2)
            await probe.expect(int)
            await probe.expect(int)
            await probe.expect_nothing()
            with pytest.raises(AskTimeoutError):
                await probe.ref.ask("never answered", timeout=1)
            await probe.expect(str)
            probe.reply()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("two\nlines\x1d and a \\n of two letters"),
        KeyError("key"),
        KeyError("it's"),
        ValueError("\u2028"),
    ],
    ids=["lines", "key", "quoted", "separator"],
)
async def test_schedule_with_any_text_replays_it_as_it_was(error):
    found = Faults(seed=1)
    found.at("before_handle", nth=1).crash(error)
    texts = []
    for faults in (found, None):
        again = faults or Faults.replay(found.schedule)
        with again:
            async with ActorSystem(faults=again) as system:
                with pytest.raises(type(error)) as caught:
                    await system.start(type("Two\nLines", (Echoes,), {})).ask(1)
        texts.append((caught.value.args, list(map(str, again.fired))))
    assert texts[0] == texts[1]
    assert texts[0][0] == error.args
    assert len(texts[0][1]) == 1


class Echoes(TrioActor):
    def on_receive(self, message):
        return message


class Coalesces(Echoes):
    overflow = "coalesce"

    @staticmethod
    def coalesce_key(message):
        return message


async def test_fault_at_a_coalescing_mailbox_is_done_as_at_any():
    faults = Faults(seed=1)
    faults.at("mailbox_put", nth=2).drop()
    faults.at("mailbox_put", nth=3).duplicate()
    with faults:
        async with ActorSystem(faults=faults) as system:
            ref = system.start(Coalesces, name="c")
            kept, dropped, doubled = (ref.ask(place) for place in range(3))
            assert (await kept, await doubled) == (0, 2)
            with pytest.raises(ActorDeadError, match="a fault dropped"):
                await dropped
            assert system.dead_letters.counts == {"fault": 1, "coalesced": 1}


async def test_actor_whose_name_is_the_class_of_an_unnamed_one_is_hit_by_itself():
    faults = Faults(seed=1)
    faults.at("before_handle", message=lambda message: message == 2).crash(ValueError("two"))
    with faults:
        async with ActorSystem(faults=faults) as system:
            unnamed, named = system.start(Echoes), system.start(Echoes, name="Echoes")
            assert await unnamed.ask(1) == 1
            with pytest.raises(ValueError, match="two"):
                await named.ask(2)
    assert list(map(str, faults.fired)) == [
        "before_handle 'Echoes#named' 1 crash builtins:ValueError two"
    ]
