"""A key that a function gives, and that is rotated: its account's limit stands, and no file has it.

Run it with a directory for its state. The provider is simulated, so that it needs no key.
"""

import sys
from pathlib import Path

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.testing import Answer, ProviderSimulator, WireRequest


class Vault:
    """Where a host has its key."""

    def __init__(self) -> None:
        self.key, self.asked = "sk-of-last-month-0123", 0

    async def read(self) -> str:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return self.key


def answers(request: WireRequest) -> Answer:
    """What the simulated service says: the account is limited for two hours."""
    if request.number == 1:
        return Answer(status=429, headers={"retry-after": "7200"})
    return Answer(text="Hello!")


async def main(state: str) -> None:
    vault = Vault()
    async with ProviderSimulator(answers) as simulator:
        for life in ("the first", "the second"):
            provider = AnthropicProvider(
                api_key=vault.read, account="team", base_url=simulator.base_url
            )
            async with open_runtime(state, account_waits=True) as runtime:
                ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
                bo = await runtime.add_agent(AgentSpec(name="bo", provider=provider, model="m"))
                if life == "the first":
                    await ana.send("Hello?")
                    await ana.wait_idle()
                    vault.key = "sk-of-this-month-4567"  # Rotated, while it runs.
                    await bo.send("And I?")
                await ana.wait_idle()
                await bo.wait_idle()
                walls = [wait for wait in runtime.provider_waits() if wait.agent[:8] == "account:"]
                held = [agent.name for agent in runtime.status().agents if agent.held]
                print(f"in {life} life: {len(walls)} wall, and {' and '.join(held)} are held")
                if life == "the second":
                    for name in (walls[0].agent, "ana"):
                        await runtime.release_provider_wait(name, requester="cy")
                    for agent in (ana, bo) * 2:  # One goes first, the other once it succeeded.
                        await agent.wait_idle()
                    for agent in (ana, bo):
                        said = [message.text async for message in agent.transcript()]
                        print(f"{agent.name}: {said[-1]}")
            await provider.aclose()
    print(f"the vault was asked {vault.asked} times")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
    files = [file.read_bytes() for file in Path(sys.argv[1]).rglob("*") if file.is_file()]
    print("a key is in", sum(b"sk-of" in data for data in files), "files")
