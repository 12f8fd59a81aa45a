"""What an agent used and what it cost, and a budget that holds it until somebody lets it go on.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys
from decimal import Decimal

import trio

from abeyance.actors import AgentSpec, Budget, Price, Prices, open_runtime
from abeyance.actors.providers import Usage
from abeyance.actors.testing import ScriptedProvider, reply

PRICES = Prices(
    "EUR",
    # What a million tokens cost; a provider is named as its adapter is, `anthropic` or `openai`.
    {("ScriptedProvider", "large"): Price(input=Decimal("13.50"), output=Decimal("67.50"))},
)
BUDGET = Budget(per="month", cost=Decimal("0.05"), zone="Europe/Vienna")


async def main(state: str) -> None:
    used = Usage(input_tokens=1_000, output_tokens=200)
    provider = ScriptedProvider(lambda _: reply("Here it is.", usage=used))
    async with open_runtime(state, prices=PRICES) as runtime:
        spec = AgentSpec(name="ana", provider=provider, model="large", budgets=[BUDGET])
        ana = await runtime.add_agent(spec)
        for day in ("Monday", "Tuesday", "Wednesday"):
            await ana.send(f"What happened on {day}?")
            await ana.wait_idle()
            print(f"{day}: {runtime.status().agents[0].state}")
        for wait in runtime.provider_waits("ana"):
            print(f"{wait.model}: {wait.reason}")

        # One more allowance of the same amount: enough for the message that waits.
        await runtime.release_provider_wait("ana", requester="cy")
        await ana.wait_idle()
        for line in (await runtime.usage("ana", by="agent")).lines:
            print(f"{line.agent}: {line.calls} calls, {line.tokens} tokens", end=", ")
            print(f"{line.cost:.4f} {line.currency}")


trio.run(main, sys.argv[1])
