"""Settled: nothing waits, runs, is owed, is open or is out; and only then."""

from __future__ import annotations

import threading

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, Tool, open_runtime
from abeyance.actors.core import LATER, ActorSystem, Backoff, ChildSpec, HostedSystem, TrioActor
from abeyance.actors.core.specs import SupervisorSpec
from abeyance.actors.testing import (
    Gate,
    HostClock,
    ScriptedProvider,
    call_tool,
    reply,
    settled,
    wait_settled,
)

SCHEMA = {"type": "object", "properties": {}}


class Slow(TrioActor):
    """Takes a second a message and hands it on."""

    def __init__(self, to=None):
        self.to = to
        self.done = 0

    async def on_receive(self, message):
        await trio.sleep(1)
        self.done += 1
        if self.to is not None:
            self.to.tell(message)


async def test_settled_waits_for_what_handlers_send_on(autojump_clock):
    async with ActorSystem() as system:
        last = system.start(Slow)
        first = system.start(Slow, last)
        for n in range(3):
            first.tell(n)
        await settled(system)
        assert last._cell.actor.done == 3
        assert trio.current_time() == 4


async def test_settled_waits_for_replies_that_are_owed(autojump_clock):
    class Owes(TrioActor):
        def on_receive(self, message):
            self.reply = self.later()
            self.after(5, "now")
            return LATER

        def on_start(self):
            self.receive = self.on_receive

    class Answers(Owes):
        def on_receive(self, message):
            if message == "now":
                self.reply.set("done")
                return None
            return super().on_receive(message)

    async with ActorSystem() as system:
        asked = system.start(Answers).ask("x")
        await settled(system)
        assert asked.get() == "done"
        assert trio.current_time() == 5


async def test_settled_waits_for_an_actor_that_will_start_again(autojump_clock):
    class Crashes(Slow):
        max_deliveries = 2

        async def on_receive(self, message):
            if self._cell.incarnation == 1:
                raise RuntimeError("first")
            await super().on_receive(message)

    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec("g", (ChildSpec("c", Crashes),), backoff=Backoff(3, 3))
        )
        group.refs["c"].tell(1)
        group.refs["c"].kill()
        await settled(system)
        assert group.refs["c"]._cell.actor.done == 1


async def test_settled_does_not_wait_for_timers_nor_for_what_a_parked_group_keeps(autojump_clock):
    class Alarmed(Slow):
        def on_start(self):
            self.after(100, "late")

    async with ActorSystem() as system:
        system.start(Alarmed)
        group = await system.start_supervisor(
            SupervisorSpec("g", (ChildSpec("c", Slow),), intensity=0, on_exhausted="park")
        )
        ref = group.refs["c"]
        ref.tell(1)
        ref.kill()
        await trio.testing.wait_all_tasks_blocked()
        assert group.state == "parked"
        ref.tell(2)
        await settled(system)
        assert trio.current_time() < 1


async def test_settled_does_not_wait_for_what_a_suspended_actor_keeps():
    async with ActorSystem() as system:
        ref = system.start(Slow)
        ref.suspend()
        ref.tell(1)
        await settled(system, within_s=1)
        assert ref.statistics().queued == 1
        ref.stop(now=True)


async def test_settled_names_what_is_not_when_its_time_is_over(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Slow, name="slow")
        for n in range(3):
            ref.tell(n)
        with pytest.raises(AssertionError, match=r"slow \(running: 2 queued, 0 owed, a handler"):
            await settled(system, within_s=0.5)


def test_host_thread_waits_until_a_hosted_system_is_settled():
    with HostedSystem(trio_clock=HostClock()) as hosted:
        ref = hosted.start(Slow)
        ref.tell(1)
        wait_settled(hosted)
        assert ref._cell.actor.done == 1


def test_settled_waits_for_the_open_calls_of_other_threads():
    with HostedSystem(trio_clock=HostClock()) as hosted:
        entered, ends, done = threading.Event(), trio.Event(), []

        async def call():
            entered.set()
            await ends.wait()  # No time: it would be over before this thread looks.
            done.append(1)

        async def end():
            ends.set()

        thread = threading.Thread(target=hosted.run, args=(call,))
        thread.start()
        entered.wait()
        with pytest.raises(AssertionError, match="1 calls of host threads are open"):
            wait_settled(hosted, within_s=1)
        hosted.run(end)
        wait_settled(hosted)
        assert done == [1]
        thread.join()


@pytest.fixture
def host_clock():
    return HostClock()


async def test_runtime_is_settled_when_its_commits_and_tool_bodies_have_ended(tmp_path, host_clock):
    let_go, ran = threading.Event(), []

    def look() -> str:
        let_go.wait()
        ran.append(1)
        return "seen"

    tool = Tool(name="look", description="Looks.", input_schema=SCHEMA, run=look)
    gate = Gate()
    provider = ScriptedProvider([call_tool("look", {}), gate, reply("done")])
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
        )
        await ana.send("go")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settled, runtime)
            await trio.testing.wait_all_tasks_blocked()
            assert ran == []
            let_go.set()
        assert ran == [1]
        await settled(runtime)
        journal = runtime._system.names.find("journal")
        assert journal is not None
        assert (journal.kept.out, journal.owed) == (None, {})
        gate.release()
        await ana.wait_idle()


def test_host_thread_waits_until_a_hosted_runtime_is_settled(tmp_path):
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider.echo()
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        ana.send("hello", block=False)
        wait_settled(host)
        assert [message.text for message in ana.transcript()][:1] == ["hello"]
