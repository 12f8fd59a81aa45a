"""What is history is deleted once it is old, and what is still needed stays.

Run it with a directory for its state. The provider is scripted, so that it needs no key, and the
clock is one that can be moved on.
"""

import sys

import trio

from abeyance.actors import AgentSpec, Retention, open_runtime
from abeyance.actors.testing import ScriptedProvider, WallClock

DAY_MS = 86_400_000


async def main(state: str) -> None:
    clock = WallClock()
    keeps = Retention(calls_days=30, requests_days=30, ids_days=60, log_days=None)
    async with open_runtime(state, retention=keeps, clock=clock) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
        )
        for number in (1, 2, 3):
            await ana.send(f"order {number}", id=f"order-{number}")
            await ana.wait_idle()
        print("young:", await runtime.prune())

        clock.advance(40 * DAY_MS)
        print("after 40 days:", await runtime.prune())
        again = await ana.send("order 1", id="order-1")
        print("sent again:", again.state, len([m async for m in ana.transcript()]), "messages")

        clock.advance(40 * DAY_MS)
        print("after 80 days:", await runtime.prune())
        await ana.send("order 1", id="order-1")
        await ana.wait_idle()
        print("sent again:", len([m async for m in ana.transcript()]), "messages")
        report = await runtime.usage("ana", by="agent")
        print("calls that are counted:", report.calls)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
