"""The adapters, held against what every adapter must do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.testing import Answer, ScriptedProvider, WallClock, fail, reply
from abeyance.actors.testing.conformance import ProviderConformance, Served, WireConformance
from abeyance.actors.testing.context_conformance import ContextConformance
from abeyance.actors.testing.scripted import Step
from abeyance.storage.tables.blocks import ToolUseBlock


class TestAnthropicProvider(WireConformance):
    def adapter(self, base_url: str, *, clock: WallClock, **deadlines: float) -> Any:
        return AnthropicProvider(api_key="any", base_url=base_url, clock=clock, **deadlines)


class TestOpenAIResponses(WireConformance):
    def adapter(self, base_url: str, *, clock: WallClock, **deadlines: float) -> Any:
        return OpenAIProvider(api_key="any", base_url=f"{base_url}/v1", clock=clock, **deadlines)


class TestOpenAIChat(WireConformance):
    signs_reasoning = False

    def adapter(self, base_url: str, *, clock: WallClock, **deadlines: float) -> Any:
        return OpenAIProvider(
            api="chat", api_key="any", base_url=f"{base_url}/v1", clock=clock, **deadlines
        )


def step(answer: Answer) -> Step:
    if answer.status != 200:
        headers = {name: str(value) for name, value in answer.headers.items()}
        return fail(answer.status, headers=headers)
    calls = [
        ToolUseBlock(id=tool.id or "call", name=tool.name, input=tool.input)
        for tool in answer.tools
    ]
    return reply(*([answer.text] if answer.text else []), *calls)


class TestScriptedProvider(ProviderConformance):
    @asynccontextmanager
    async def serving(self, *answers: Answer) -> AsyncIterator[Served]:
        clock = WallClock()
        provider = ScriptedProvider([step(answer) for answer in answers], clock=clock)
        yield Served(provider, lambda: len(provider.requests), clock)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("suite", "what"),
    [
        (ProviderConformance, "serving"),
        (WireConformance, "adapter"),
        (ContextConformance, "strategy"),
    ],
)
def test_suite_that_says_nothing_of_what_it_is_about_cannot_be_run(suite: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        type("TestOurs", (suite,), {})()
