"""A transcript that begins or ends with the agent's own words, over a wire that wants a user there.

The simulator refuses a request that begins with the assistant, as the service does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentHandle, AgentSpec, Draft, Runtime, open_runtime
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.providers.anthropic_wire import NOBODY
from abeyance.actors.testing import Answer, ProviderSimulator, invariant


@pytest.fixture
async def simulator() -> AsyncIterator[ProviderSimulator]:
    async with ProviderSimulator(lambda request: Answer(text=f"reply {request.number}")) as running:
        yield running


def told(simulator: ProviderSimulator, call: int) -> list[str]:
    request: Any = simulator.log[call].request
    return [f"{each['role'][0]}: {each['content'][0]['text']}" for each in request["messages"]]


async def begins_with_a_history(runtime: Runtime, ana: AgentHandle) -> None:
    drafts = [Draft("I am the bot", author="ana", at_ms=1), Draft("hi bot", author="bo", at_ms=2)]
    await ana.backfill(drafts, channel="c")
    await ana.send("well?", author="bo")


async def ends_with_a_module(runtime: Runtime, ana: AgentHandle) -> None:
    await runtime.quiesce("upgrade", requester="test")
    await ana.send("well?", author="bo")
    await ana.send("posted for ana", author="ana", wake=False)
    await runtime.resume(requester="test")


BEGUN = {
    "begins": (
        begins_with_a_history,
        [f"u: {NOBODY}", "a: I am the bot", "u: hi bot", "u: well?"],
    ),
    "ends": (ends_with_a_module, ["u: well?", "a: posted for ana", f"u: {NOBODY}"]),
}


@pytest.mark.parametrize("how", BEGUN)
async def test_agent_whose_own_words_stand_first_or_last_is_answered_and_goes_on(
    tmp_path: Path, simulator: ProviderSimulator, how: str
) -> None:
    begin, expected = BEGUN[how]
    provider = AnthropicProvider(api_key="key", base_url=simulator.base_url)
    with trio.fail_after(30):
        async with open_runtime(tmp_path / "state") as runtime:
            spec = AgentSpec(name="ana", provider=provider, model="m")
            ana = await runtime.add_agent(spec)
            await begin(runtime, ana)
            await ana.wait_idle()
            await ana.send("and?", author="bo")
            await ana.wait_idle()
            texts = [message.text async for message in ana.transcript()]
    await provider.aclose()
    assert [text for text in texts if text.startswith("reply")] == ["reply 1", "reply 2"]
    assert told(simulator, 0) == expected
    assert told(simulator, 1) == [*expected, "a: reply 1", "u: and?"]
    invariant.check(invariant.read_log(simulator))
