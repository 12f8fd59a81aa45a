"""The adapters, held against what every adapter must do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.providers.port import Permit, ProviderError, permitted
from abeyance.actors.testing import (
    Answer,
    ScriptedProvider,
    ScriptedSessions,
    WallClock,
    fail,
    reply,
)
from abeyance.actors.testing.conformance import ProviderConformance, Served, WireConformance
from abeyance.actors.testing.context_conformance import ContextConformance
from abeyance.actors.testing.scripted import Step
from abeyance.actors.testing.session_conformance import SessionConformance
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


class TestScriptedSessions(SessionConformance):
    @asynccontextmanager
    async def serving(self, *answers: Answer) -> AsyncIterator[Served]:
        clock = WallClock()
        far = ScriptedSessions(resumable=self.resumes)
        provider = self.adapter([step(answer) for answer in answers], sessions=far, clock=clock)
        yield Served(provider, lambda: len(provider.requests), clock)

    def adapter(self, script: list[Step], **how: Any) -> ScriptedProvider:
        return ScriptedProvider(script, **how)

    async def lose(self, served: Served, handle: str) -> None:
        served.provider.sessions.lose(handle)  # type: ignore[attr-defined]


class TestScriptedSessionsWithoutHandles(TestScriptedSessions):
    resumes = False


class _Forgetful(ScriptedProvider):
    """Opens another session in the place of one that is lost."""

    def session(self, handle: str | None = None) -> Any:
        return super().session(handle if handle in self.sessions.handles else None)


class _Eager(ScriptedProvider):
    """Says everything again that was refused, and tells of the refusal."""

    @asynccontextmanager
    async def session(self, handle: str | None = None) -> AsyncIterator[Any]:
        async with super().session(handle) as session:
            said = session.send

            async def send(request: Any, on_delta: Any) -> Any:
                try:
                    return await said(request, on_delta)
                except ProviderError:
                    with permitted(Permit(99, "run", "m", "run")):
                        await said(request, on_delta)
                    raise

            session.send = send  # type: ignore[method-assign]
            yield session


@pytest.mark.parametrize(
    ("adapter", "test"),
    [
        (_Forgetful, "test_what_was_lost_is_told_and_no_other_opened_in_its_place"),
        (_Eager, "test_a_limit_is_one_error_that_carries_what_was_stated"),
    ],
)
async def test_suite_of_sessions_finds_an_adapter_that_breaks_a_rule(
    adapter: type[ScriptedProvider], test: str
) -> None:
    class Broken(TestScriptedSessions):
        def adapter(self, script: list[Step], **how: Any) -> ScriptedProvider:
            return adapter(script, **how)

    with pytest.raises(AssertionError):
        await getattr(Broken(), test)()


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
        (SessionConformance, "serving"),
    ],
)
def test_suite_that_says_nothing_of_what_it_is_about_cannot_be_run(suite: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        type("TestOurs", (suite,), {})()
