from pathlib import Path

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, Runtime
from abeyance.actors.testing import Faults, HostClock, ScriptedProvider, fail, reply, settled


def ana(provider: ScriptedProvider) -> AgentSpec:
    return AgentSpec(name="ana", provider=provider, model="any")


@pytest.mark.trio
async def test_answer_comes_once_though_the_slot_crashes(
    abeyance_runtime: Runtime, faults: Faults, host_clock: HostClock
) -> None:
    agent = await abeyance_runtime.add_agent(ana(ScriptedProvider.echo()))
    faults.at("after_handle_before_ack", actor="slot:ana", nth=1).crash()
    await agent.send("hello", id="1")
    await agent.wait_idle()
    await settled(abeyance_runtime)
    assert [message.text async for message in agent.transcript()] == ["hello", "hello"]
    assert [str(fault.action.kind) for fault in faults.fired] == ["crash"]


@pytest.mark.trio
async def test_limit_of_an_hour_holds_the_turn_for_an_hour(
    abeyance_runtime: Runtime, host_clock: HostClock
) -> None:
    script = [fail(429, retry_after=3_600), reply("done")]
    provider = ScriptedProvider(script, clock=abeyance_runtime.clock)
    agent = await abeyance_runtime.add_agent(ana(provider))
    await agent.send("go")
    await agent.wait_idle()
    await trio.sleep(3_599)
    assert abeyance_runtime.status().agents[0].state == "held"
    await trio.sleep(2)
    await agent.wait_idle()
    assert [message.text async for message in agent.transcript()][-1] == "done"


def test_host_sends_again_what_was_not_stored(tmp_path: Path, faults: Faults) -> None:
    with HostedRuntime(tmp_path / "state", control=False, faults=faults) as host:
        agent = host.add_agent(ana(ScriptedProvider.echo()))
        faults.at("before_commit", nth=1).refuse()
        with pytest.raises(Exception, match="nothing of it is stored"):
            agent.send("hello", id="1")
        agent.send("hello", id="1")
        agent.wait_idle()
        assert [message.text for message in agent.transcript()] == ["hello", "hello"]
