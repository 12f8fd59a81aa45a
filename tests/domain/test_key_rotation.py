"""A key that is rotated while its agents run: used from the next call on, its account stands, and
neither key is anywhere but on the wire."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.providers.port import ModelRequest, ProviderError, ProviderMessage
from abeyance.actors.testing.simulator import Answer, ProviderSimulator, WireRequest
from abeyance.actors.testing.simulator.script import SimulatedTool
from abeyance.actors.testing.simulator.wire_log import WireLog
from abeyance.storage.tables.blocks import TextBlock

from .world import World, shown, tool

JUMPS_AFTER_S = 0.02
OLD, NEW = "sk-old-0123456789abcdef", "sk-new-fedcba9876543210"


class Vault:
    """Where a host has its key; async, as most are."""

    def __init__(self) -> None:
        self.key = OLD

    async def read(self) -> str:
        await trio.lowlevel.checkpoint()
        return self.key

    def rotate(self) -> str:
        self.key = NEW
        return "rotated"


def adapter(wire: str, url: str, vault: Vault, world: World) -> Any:
    if wire == "anthropic":
        return AnthropicProvider(
            api_key=vault.read, base_url=url, account="team", clock=world.clock
        )
    return OpenAIProvider(
        api=wire,  # type: ignore[arg-type]
        api_key=vault.read,
        base_url=f"{url}/v1",
        account="team",
        clock=world.clock,
    )


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key of each request that was received, in order."""
    keys: list[str] = []
    received = WireLog.received

    def noted(log: WireLog, path: str, headers: Any, request: Any) -> Any:
        lines = list(headers)
        named = dict(lines)
        keys.append(named.get("x-api-key") or named["authorization"].removeprefix("Bearer "))
        return received(log, path, lines, request)

    monkeypatch.setattr(WireLog, "received", noted)
    return keys


def written(directory: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(directory)), file.read_bytes()


def accounts(world: World) -> list[tuple[Any, ...]]:
    return [key for key, _ in world.runtime._store.scan("account_waits", ())]


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["anthropic", "responses", "chat"])
async def test_a_key_that_is_rotated_in_a_turn_keeps_its_account_and_is_nowhere_on_disk(
    world: World,
    virtual_time: MockClock,
    wire: str,
    carried: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    vault = Vault()
    left = ["rotate", "limited", "limited late", "fine", "fine", "refused", "refused late"]

    def script(_request: WireRequest) -> Answer:
        # Services quote what they were sent.
        limited = {"type": "rate_limit_error", "message": f"slow down, {carried[-1]}"}
        refused = {
            "type": "authentication_error",
            "message": f"no {carried[-1]}",
            "code": carried[-1],
        }
        return {
            "rotate": Answer(tools=(SimulatedTool("rotate"),)),
            "limited": Answer(status=429, body={"error": limited}, headers={"retry-after": "3700"}),
            "limited late": Answer(
                text="half", error_after=1, error=limited, headers={"retry-after": "60"}
            ),
            "fine": Answer(text="at last"),
            "refused": Answer(status=401, body={"error": refused}),
            "refused late": Answer(text="half", error_after=1, error=refused),
        }[left.pop(0)]

    async with ProviderSimulator(script, clock=world.clock) as simulator:
        provider = adapter(wire, simulator.base_url, vault, world)
        tools = [tool("rotate", vault.rotate)]
        ana_is = AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        async with world.open(account_waits=True) as runtime:
            ana = await runtime.add_agent(ana_is)
            await ana.send("a marker that is stored")
            await ana.wait_idle()
            # The first call carried the old key, and the next, of the same turn, the new one.
            assert carried == [OLD, NEW]
            assert world.state().state == "held"
            walls = accounts(world)
            assert len(walls) == 1
        await provider.aclose()

        # Another process, another adapter object, and the new key from its start.
        provider = adapter(wire, simulator.base_url, vault, world)
        again = AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        async with world.open(account_waits=True) as runtime:
            ana = await runtime.add_agent(again)
            bo = await runtime.add_agent(AgentSpec(name="bo", provider=provider, model="m"))
            await bo.send("hello")
            await bo.wait_idle()
            assert (world.state("bo").state, world.state("bo").held.cause) == ("held", "account")
            assert (accounts(world), len(carried)) == (walls, 2)
            await trio.sleep(3_750)
            for agent in (ana, bo):
                await agent.wait_idle()
            await trio.sleep(120)
            for agent in (ana, bo):
                await agent.wait_idle()
            # The second refusal, in the stream, went to the same account's row.
            assert {key[0] for key in accounts(world)} <= {walls[0][0]}
            request = ModelRequest(
                model="m",
                messages=(ProviderMessage(role="user", blocks=(TextBlock(text="hi"),)),),
            )
            failed: list[BaseException] = []
            while left:
                try:
                    await ana.auxiliary_call(request)
                except ProviderError as error:
                    failed.append(error)
                await trio.sleep(1)
            said = "".join(
                "".join(traceback.format_exception(error))
                + f"{error!r} {error.__dict__} {pickle.dumps(error)!r}"
                for error in failed
            )
            told = " ".join([*await shown(ana), *await shown(bo)])
            listed = f"{runtime.alerts()} {runtime.status()} {runtime.provider_waits()}"
        await provider.aclose()
    assert set(carried[1:]) == {NEW}
    assert len(failed) == 2
    assert "[key]" in said
    everything = {
        "errors": said.encode(),
        "transcripts": told.encode(),
        "what is listed": listed.encode(),
        "logs": (caplog.text + repr([record.__dict__ for record in caplog.records])).encode(),
        **dict(written(world.directory)),
    }
    assert any(b"a marker that is stored" in data for data in everything.values())
    assert any("failures" in name for name in everything)
    assert [name for name, data in everything.items() if OLD.encode() in data] == []
    assert [name for name, data in everything.items() if NEW.encode() in data] == []
