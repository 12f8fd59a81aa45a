"""Stop, stop now, kill, cancellation, the phases of a shutdown, and what comes after the end."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorKilledError,
    ActorSystem,
    ChildSpec,
    HostedSystem,
    MailboxClosedError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.shutdown import PHASES


class Life(TrioActor):
    @classmethod
    def make_kept(cls):
        return []

    def on_stop(self):
        self.kept.append("on_stop")

    def on_failure(self, exception_type, exception_value, traceback):
        self.kept.append(("on_failure", exception_type))

    async def on_receive(self, message):
        self.kept.append(message)
        if isinstance(message, float):
            await trio.sleep(message)
        if message == "sleep":
            await trio.sleep_forever()
        return message


def seen(ref):
    return ref._cell.kept


async def test_stop_handles_what_was_sent_before_and_refuses_what_comes_after(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        ref.tell(1)
        stopped = ref.stop()
        behind_told, behind = ref.tell(2), ref.ask(3)
        assert behind_told is None
        assert await stopped is True
        with pytest.raises(ActorDeadError):
            await behind
        assert seen(ref) == [1, "on_stop"]
        assert system.dead_letters.counts == {"stopped": 2}
        with pytest.raises(ActorDeadError):
            ref.tell(4)


async def test_stop_now_finishes_the_current_message_and_buries_the_rest(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        current = ref.ask(2.0)
        ref.tell(1)
        rest = ref.ask(2)
        await wait_all_tasks_blocked()
        assert await ref.stop(now=True) is True
        assert await current == 2.0
        with pytest.raises(ActorDeadError):
            await rest
        assert seen(ref) == [2.0, "on_stop"]
        assert await ref.stop(now=True) is False


async def test_kill_ends_the_current_message_and_calls_on_failure(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        current = ref.ask("sleep")
        rest = ref.ask(2)
        await wait_all_tasks_blocked()
        ref.kill()
        await ref.stopped()
        with pytest.raises(OutcomeUnknownError):
            await current
        with pytest.raises(ActorDeadError):
            await rest
        assert seen(ref) == ["sleep", ("on_failure", ActorKilledError)]


async def test_two_stops_are_both_answered(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        first, second, third = ref.stop(), ref.stop(), ref.stop(now=True)
        assert [await first, await second, await third] == [True, True, True]


async def test_send_while_the_actor_stops_is_refused_as_closed(autojump_clock):
    class Slow(Life):
        async def on_stop(self):
            await trio.sleep(2)

    async with ActorSystem() as system:
        ref = system.start(Slow)
        ref.stop()
        await wait_all_tasks_blocked()
        with pytest.raises(MailboxClosedError) as caught:
            ref.tell("late")
        assert caught.value.message == "late"
        with pytest.raises(MailboxClosedError):
            await ref.ask("late")


async def test_kill_of_an_actor_that_was_just_started_ends_it(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        ref.kill()
        await ref.stopped()
        assert not ref.is_alive()


async def test_kill_during_on_start_and_on_stop_ends_the_actor(autojump_clock):
    class Slow(TrioActor):
        async def on_start(self):
            await trio.sleep(10)

        async def on_stop(self):
            await trio.sleep_forever()

    async with ActorSystem() as system:
        starting, stopping = system.start(Slow), system.start(Slow)
        await trio.sleep(1)
        starting.kill()
        await starting.stopped()
        stopped = stopping.stop()
        await trio.sleep(20)
        stopping.kill()
        assert await stopped is True


async def test_exception_group_of_a_killed_handlers_nursery_does_not_take_the_system_down(
    autojump_clock,
):
    class Nursery(TrioActor):
        async def on_receive(self, message):
            async def stubborn():
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("while cancelled")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stubborn)
                nursery.start_soon(trio.sleep_forever)

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(SupervisorSpec("g", (ChildSpec("a", Nursery),)))
        ref = supervisor.refs["a"]
        future = ref.ask(1)
        await wait_all_tasks_blocked()
        ref.kill()
        with pytest.raises((ExceptionGroup, OutcomeUnknownError)):
            await future
        await wait_all_tasks_blocked()
        assert ref.statistics().incarnation == 2
        assert isinstance(ref.statistics().last_error, ExceptionGroup)


async def test_handler_and_task_that_both_fail_are_joined_in_a_group(autojump_clock):
    class Both(TrioActor):
        async def on_receive(self, message):
            self.spawn(self.fail)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("handler")

        async def fail(self):
            raise KeyError("task")

    async with ActorSystem() as system:
        ref = system.start(Both)
        ref.tell(1)
        await ref.stopped()
        error = ref.statistics().last_error
        assert isinstance(error, ExceptionGroup)
        assert {type(exc) for exc in error.exceptions} == {ValueError, KeyError}


async def test_on_failure_that_hangs_or_raises_does_not_keep_the_actor(autojump_clock):
    class Hangs(TrioActor):
        def on_receive(self, message):
            raise ValueError(message)

        async def on_failure(self, exception_type, exception_value, traceback):
            if str(exception_value) == "raise":
                raise KeyError
            await trio.sleep_forever()

    async with ActorSystem() as system:
        for message in ("raise", "hang"):
            ref = system.start(Hangs)
            ref.tell(message)
            await ref.stopped()


@pytest.mark.parametrize("max_deliveries", [1, 2])
async def test_kill_at_every_checkpoint_leaves_every_message_accounted_for(
    max_deliveries, autojump_clock
):
    steps = 6

    class Steps(TrioActor):
        @classmethod
        def make_kept(cls):
            return {"handled": [], "at": None}

        async def on_start(self):
            await self.step()

        async def on_receive(self, message):
            await self.step()
            await self.step()
            self.kept["handled"].append(message)
            return message

        async def on_failure(self, *_info):
            await trio.lowlevel.checkpoint()

        async def step(self):
            self.kept["count"] = self.kept.get("count", 0) + 1
            if self.kept["count"] == self.kept["at"]:
                self.actor_ref.kill()
            await trio.lowlevel.checkpoint()

    Steps.max_deliveries = max_deliveries
    for at in range(1, 2 * steps + 2):
        async with ActorSystem() as system:
            supervisor = await system.start_supervisor(
                SupervisorSpec("g", (ChildSpec("a", Steps),), intensity=10)
            )
            ref = supervisor.refs["a"]
            ref._cell.kept["at"] = at
            futures = [ref.ask(n) for n in range(steps)]
            answers = []
            for n, future in enumerate(futures):
                try:
                    answers.append(await future)
                except OutcomeUnknownError:
                    answers.append(("unknown", n))
            handled = ref._cell.kept["handled"]
            assert len(handled) == len(set(handled))
            if max_deliveries == 2:
                assert answers == list(range(steps))
                assert system.quarantine.total == 0
            else:
                assert system.quarantine.total == sum(1 for a in answers if isinstance(a, tuple))
            stats = ref.statistics()
            assert stats.handled + stats.quarantined == steps
            assert (stats.queued, stats.owed, stats.in_flight) == (0, 0, False)


# -- shutdown


async def test_shutdown_runs_its_phases_in_order_and_reports(autojump_clock):
    order = []

    def hook(phase):
        async def run():
            await trio.lowlevel.checkpoint()
            order.append(phase)

        return run

    async with ActorSystem() as system:
        refs = [system.start(Life) for _ in range(3)]
        for ref in refs:
            for n in range(5):
                ref.tell(n)
        for phase in PHASES:
            system.add_phase_hook(phase, hook(phase))
        report = await system.shutdown(deadline_s=10)
        assert report.clean
        assert report.handled == 15
        assert [phase.name for phase in report.phases] == list(PHASES) == order
        assert await system.shutdown() is report
    assert all(seen(ref) == [*range(5), "on_stop"] for ref in refs)


async def test_shutdown_stops_in_reverse_start_order(autojump_clock):
    order = []

    class Ordered(TrioActor):
        def __init__(self, name):
            self.name = name

        def on_stop(self):
            order.append(self.name)

    async with ActorSystem() as system:
        for n in range(4):
            system.start(Ordered, n)
    assert order == [3, 2, 1, 0]


async def test_shutdown_drains_what_actors_tell_one_another(autojump_clock):
    class Forwards(Life):
        def __init__(self, other=None):
            self.other = other

        async def on_receive(self, message):
            await super().on_receive(message)
            if self.other is not None:
                self.other.tell(message)

    async with ActorSystem() as system:
        last = system.start(Forwards)
        first = system.start(Forwards, last)
        for _ in range(5):
            first.tell(0.1)
        report = await system.shutdown()
        assert report.clean
    assert seen(last) == [0.1] * 5 + ["on_stop"]


async def test_shutdown_waits_for_what_is_owed(autojump_clock):
    class Owes(TrioActor):
        async def on_receive(self, message):
            from abeyance.actors.core import LATER

            self.pipe(trio.sleep, 2, tag=self.later())
            return LATER

        def on_answer(self, answer):
            answer.tag.set("settled")

    async with ActorSystem() as system:
        ref = system.start(Owes)
        future = ref.ask("x")
        report = await system.shutdown()
        assert report.clean
        assert await future == "settled"


async def test_shutdown_past_a_phases_deadline_goes_on_and_says_what_was_left(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Life)
        current = ref.ask("sleep")
        for n in range(3):
            ref.tell(n)
        began = trio.current_time()
        report = await system.shutdown(phase_s={"drain": 1.0, "settle": 1.0, "stop": 2.0})
        assert trio.current_time() - began < 5
        assert not report.clean
        outcome = {phase.name: phase.completed for phase in report.phases}
        assert outcome == {
            "refuse": True,
            "drain": False,
            "settle": False,
            "stop": False,
            "flush": True,
            "close": True,
        }
        assert report.left == {ref.name: 3}
        assert report.killed == (ref.name,)
        with pytest.raises((OutcomeUnknownError, ActorDeadError)):
            await current


async def test_shutdown_holds_its_overall_deadline(autojump_clock):
    async with ActorSystem() as system:
        for _ in range(3):
            system.start(Life).tell("sleep")
        for phase in PHASES:
            system.add_phase_hook(phase, trio.sleep_forever)
        began = trio.current_time()
        report = await system.shutdown(deadline_s=3)
        assert trio.current_time() - began < 4
        assert len(report.killed) == 3


async def test_hook_that_raises_is_in_the_report_and_the_phases_go_on(autojump_clock):
    async def fail():
        raise ValueError("hook")

    async with ActorSystem() as system:
        system.add_phase_hook("flush", fail)
        with pytest.raises(ValueError, match="phase"):
            system.add_phase_hook("lunch", fail)
        report = await system.shutdown()
        (flush,) = (phase for phase in report.phases if phase.name == "flush")
        assert [str(error) for error in flush.errors] == ["hook"]
        assert report.phases[-1].name == "close"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["raises", "is cancelled", "kills"])
async def test_shutdown_ends_whatever_happens_in_a_phase(how, phase, autojump_clock):
    """A hook raises, who waits for the shutdown is cancelled, or an actor is killed."""
    ran, cancelled = [], []

    def hook(name):
        async def run():
            ran.append(name)
            if name != phase:
                return
            match how:
                case "raises":
                    raise ValueError("hook")
                case "is cancelled" if not cancelled:
                    cancelled.append(name)
                    scope.cancel()
                    await trio.sleep_forever()
                case "kills":
                    refs[1].kill()

        return run

    async with ActorSystem() as system:
        refs = [system.start(Life) for _ in range(3)]
        asks = [ref.ask(1.0) for ref in refs]
        await wait_all_tasks_blocked()
        for name in PHASES:
            system.add_phase_hook(name, hook(name))
        with trio.CancelScope() as scope:
            await system.shutdown()
        assert scope.cancelled_caught is (how == "is cancelled")
        report = await system.shutdown()
        # A shutdown that was cancelled is begun anew: what its first phases did, holds.
        first = list(PHASES[: PHASES.index(phase) + 1]) if cancelled else []
        assert ran == [*first, *PHASES]
        assert [entry.name for entry in report.phases if entry.errors] == (
            [phase] if how == "raises" else []
        )
        assert all(entry.completed for entry in report.phases)
        # In the first phase the message is still in flight; later there is nothing left to kill.
        lost = how == "kills" and phase == "refuse"
        outcomes = []
        for ask in asks:
            with trio.move_on_after(1):
                try:
                    outcomes.append(await ask)
                except OutcomeUnknownError:
                    outcomes.append(None)
        assert outcomes == [1.0, None if lost else 1.0, 1.0]
        assert not any(ref.is_alive() for ref in refs)
    accounted = sum(ref.statistics().handled + ref.statistics().quarantined for ref in refs)
    assert accounted == 3


async def test_hosts_are_refused_while_actors_still_talk_in_a_shutdown():
    refused = []

    async with ActorSystem() as system:
        ref = system.start(Life)

        def host():
            try:
                ref.tell("from a host")
            except MailboxClosedError as exc:
                refused.append(exc.message)

        async def drain():
            await trio.to_thread.run_sync(host)
            ref.tell("from the loop")
            await ref.ask("asked")

        system.add_phase_hook("drain", drain)
        assert (await system.shutdown()).clean
    assert refused == ["from a host"]
    assert seen(ref) == ["from the loop", "asked", "on_stop"]


async def test_nothing_starts_once_the_system_stops(autojump_clock):
    async with ActorSystem() as system:
        await system.shutdown()
        with pytest.raises(ActorDeadError):
            system.start(Life)
        with pytest.raises(ActorDeadError):
            await system.start_supervisor(SupervisorSpec("g"))


async def test_error_of_the_block_leaves_it_as_it_is_and_actors_are_stopped(autojump_clock):
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012
        async with ActorSystem() as system:
            ref = system.start(Life)
            raise ValueError("mine")
    assert not ref.is_alive()
    assert "on_stop" in seen(ref)


async def test_cancelled_block_stops_actors_and_settles_their_asks(autojump_clock):
    with trio.CancelScope() as scope:
        async with ActorSystem() as system:
            ref = system.start(Life)
            future = ref.ask("sleep")
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert future.settled
    with pytest.raises(ActorDeadError):
        ref.tell(1)
    with pytest.raises(ActorDeadError):
        await ref.ask(1)


async def test_statistics_are_a_snapshot(autojump_clock):
    async with ActorSystem(name="mine") as system:
        ref = system.start(Life, name="a")
        await ref.ask(1)
        stats = system.statistics()
        assert (stats.name, stats.actors, stats.handled, stats.queued) == ("mine", 1, 1, 0)
        (actor,) = system.actors()
        assert (actor.name, actor.state, actor.handled) == ("a", "running", 1)
        await ref.stop()
        assert system.statistics().handled == 1
        assert stats.actors == 1


def test_error_that_ends_a_hosted_run_is_raised_by_close():
    class Breaks(TrioActor):
        def on_receive(self, message):
            raise ValueError("always")

    hosted = HostedSystem()
    hosted.open()
    hosted.system.root.spec = SupervisorSpec("root", intensity=0)
    supervisor = hosted.start_supervisor(
        SupervisorSpec("g", (ChildSpec("a", Breaks),), intensity=0)
    )
    ref = supervisor.refs["a"]
    ref.tell(1)
    assert ref.actor_stopped.wait(timeout=60)
    with pytest.raises(BaseExceptionGroup):
        hosted.close()
    with pytest.raises(ActorDeadError):
        ref.tell(1)


@pytest.mark.parametrize("how", ["stop", "stop now", "without waiting", "as a permanent child"])
@pytest.mark.parametrize("shutdown_s", [0, 2, 30])
async def test_on_stop_that_hangs_is_killed_after_the_shutdown_time_whoever_stops_it(
    how, shutdown_s, autojump_clock
):
    journal = []

    class Hangs(TrioActor):
        def on_start(self):
            journal.append(("start", self.incarnation))

        async def on_stop(self):
            if self.incarnation == 1:
                await trio.sleep_forever()

        def on_failure(self, *_):
            journal.append("failure")

        def on_receive(self, message):
            return message

    async with ActorSystem() as system:
        restart = "permanent" if how == "as a permanent child" else "transient"
        spec = ChildSpec("a", Hangs, restart=restart, shutdown_s=shutdown_s)
        ref = (await system.start_supervisor(SupervisorSpec("g", (spec,)))).refs["a"]
        began = trio.current_time()
        queued = ref.ask("x")
        with trio.fail_after(100):
            match how:
                case "stop now":
                    assert await ref.stop(now=True) is True
                case "without waiting":
                    ref.stop(block=False)
                    await ref.stopped()
                case _:
                    assert await ref.stop() is True
        assert trio.current_time() - began == shutdown_s
        if how == "stop now":
            with pytest.raises(ActorDeadError):
                await queued
        else:
            assert await queued == "x"
        # It was to end: a stop that a kill cuts short is a stop, to its supervisor too.
        assert "failure" not in journal
        if how == "as a permanent child":
            assert await ref.ask("y") == "y"
        else:
            assert journal == [("start", 1)]
            assert type(ref.statistics().last_error) is ActorKilledError


async def test_on_stop_has_its_time_behind_that_of_the_replies_owed(autojump_clock):
    class Owes(TrioActor):
        async def on_stop(self):
            await trio.sleep(1.5)
            self.kept.append("stopped")

        def on_receive(self, message):
            self.later()
            return LATER

        @classmethod
        def make_kept(cls):
            return []

    async with ActorSystem() as system:
        spec = ChildSpec("a", Owes, restart="transient", shutdown_s=2)
        ref = (await system.start_supervisor(SupervisorSpec("g", (spec,)))).refs["a"]
        owed = ref.ask("x", timeout=math.inf)
        began = trio.current_time()
        assert await ref.stop() is True
        assert trio.current_time() - began == 3.5
        assert ref._cell.kept == ["stopped"]
        with pytest.raises(ActorDeadError):
            await owed


async def test_stop_waits_for_what_is_handled_however_long_that_takes(autojump_clock):
    class Slow(TrioActor):
        async def on_receive(self, message):
            await trio.sleep(message)
            return message

    async with ActorSystem() as system:
        for now in (False, True):
            ref = system.start(Slow)
            asks = [ref.ask(100, timeout=math.inf) for _ in range(2)]
            await wait_all_tasks_blocked()
            began = trio.current_time()
            assert await ref.stop(now=now) is True
            assert trio.current_time() - began == (100 if now else 200)
            assert await asks[0] == 100
