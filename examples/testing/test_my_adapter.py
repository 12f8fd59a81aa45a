from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from my_adapter import GatewayAnswer, GatewayProvider

from abeyance.actors.testing import Answer, WallClock
from abeyance.actors.testing.conformance import ProviderConformance, Served


class TestGateway(ProviderConformance):
    """The tests are those of the class it derives from; pytest-trio runs them."""

    @asynccontextmanager
    async def serving(self, *answers: Answer) -> AsyncIterator[Served]:
        left, asked, clock = list(answers), list[Any](), WallClock()

        async def gateway(question: dict[str, Any]) -> GatewayAnswer:
            asked.append(question)
            return as_gateway_says(left.pop(0))

        provider = GatewayProvider(gateway, now_s=lambda: clock.now_ms() / 1_000)
        yield Served(provider, lambda: len(asked), clock)


def as_gateway_says(answer: Answer) -> GatewayAnswer:
    """What a test wants, in the gateway's own form."""
    headers = {name: str(value) for name, value in answer.headers.items()}
    if answer.status != 200:
        return GatewayAnswer(answer.status, headers, {"error": "refused"})
    calls = [{"id": t.id, "tool": t.name, "input": t.input} for t in answer.tools]
    tokens = {"tokens_in": 9, "tokens_out": len((answer.text or "").split())}
    return GatewayAnswer(200, headers, {"text": answer.text, "calls": calls, **tokens})
