"""Spans: what a turn's lives, rounds, calls, tools and commits take, for whoever traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.providers.port import ModelReply
from abeyance.actors.testing import call_tool, fail, reply
from abeyance.actors.testing.scripted import ScriptedCall

from ..lives import lived
from .children import tracing
from .world import World, tool

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
SECRET = "swordfish"


class Raising:
    """A step whose call fails by an error that quotes what was said."""

    async def play(self, call: ScriptedCall) -> ModelReply:
        raise ValueError(f"cannot send {SECRET}")


@pytest.fixture(autouse=True)
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host's provider for these tests alone: OpenTelemetry lets a process set one once."""
    monkeypatch.setattr(trace, "get_tracer", PROVIDER.get_tracer)
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def finished() -> list[ReadableSpan]:
    return sorted(EXPORTER.get_finished_spans(), key=lambda span: span.start_time or 0)


def named(prefix: str) -> list[ReadableSpan]:
    return [span for span in finished() if span.name.startswith(prefix)]


def tree() -> list[str]:
    """Spans that have ended, by when they began, each behind its parents' names."""
    by_id = {span.context.span_id: span for span in finished()}

    def path(span: ReadableSpan) -> str:
        above = None if span.parent is None else by_id.get(span.parent.span_id)
        return span.name if above is None else f"{path(above)} > {span.name}"

    return [path(span) for span in finished()]


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_turn_is_a_trace_of_rounds_calls_tools_and_commits(
    world: World, virtual_time: MockClock
) -> None:
    seen = []

    def look() -> str:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return SECRET

    async with world.open(trace=True):
        ana = await world.add([call_tool("look"), reply(SECRET)], tools=[tool("look", look)])
        await ana.send(SECRET)
        await ana.wait_idle()
    turn, one, two = "invoke_agent ana", "abeyance.round", "abeyance.round"
    assert sorted(tree()) == sorted(
        [
            turn,
            f"{turn} > {one}",
            f"{turn} > {one} > chat m",
            f"{turn} > {one} > abeyance.commit",
            f"{turn} > {one} > execute_tool look",
            f"{turn} > {one} > execute_tool look > abeyance.commit",
            f"{turn} > {one} > execute_tool look > abeyance.commit",
            f"{turn} > {one} > abeyance.commit",
            f"{turn} > {two}",
            f"{turn} > {two} > chat m",
            f"{turn} > {two} > abeyance.commit",
        ]
    ), tree()
    (life,), (call, _), (body,) = named("invoke"), named("chat"), named("execute")
    assert life.parent is None
    assert seen == [body.context.span_id], "what a body calls is not within its span"
    assert said(life)["abeyance.state"] == "done"
    assert said(life)["gen_ai.agent.name"] == "ana"
    assert (said(call)["gen_ai.provider.name"], call.kind) == ("ScriptedProvider", SpanKind.CLIENT)
    assert {span.status.is_ok for span in finished()} == {True}
    records = [said(span)["abeyance.records"] for span in named("abeyance.commit")]
    assert records == [
        "a reply",
        "a tool call",
        "a tool call",
        "the results of tools",
        "a reply",
    ]
    assert SECRET not in "".join(span.to_json() for span in finished())


async def test_held_turn_goes_on_in_a_span_that_is_linked_to_the_one_before(
    world: World, virtual_time: MockClock
) -> None:
    script = [fail(429, retry_after=7_200), reply("done")]
    provider = world.provider(script)
    async with world.open(trace=True):
        ana = await world.add(provider)
        await ana.send("go")
        await ana.wait_idle()
    (first,) = named("invoke")
    async with world.open(trace=True) as runtime:
        ana = await world.add(provider)
        await runtime.release_provider_wait("ana", requester="me")
        await ana.wait_idle()
    (again, second) = named("invoke")
    assert again.context == first.context
    assert said(first)["abeyance.state"] == "held"
    assert (said(second)["abeyance.state"], second.parent) == ("done", None)
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [link.context.trace_id for link in second.links] == [first.context.trace_id]
    (failed, _) = named("chat")
    assert failed.status.is_ok is False
    assert not first.links


async def test_turn_of_a_host_that_was_killed_is_linked_to_the_span_that_died_with_it(
    world: World, virtual_time: MockClock
) -> None:
    assert lived(tracing.live, world.directory, "turn.after_reply").status == -9
    async with world.open(trace=True):
        (turn,) = world.turns()
        assert turn.trace is not None
        ana = await world.add([reply("done")])
        await ana.wait_idle()
    (life,) = named("invoke")
    (link,) = life.links
    place = f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-"
    assert turn.trace.startswith(place)
    assert said(life)["abeyance.attempts"] == 2


async def test_what_fails_says_by_which_code_and_nothing_that_was_said(
    world: World, virtual_time: MockClock
) -> None:
    def look() -> None:
        raise ValueError(SECRET)

    script = [call_tool("look"), Raising()]
    async with world.open(trace=True):
        ana = await world.add(script, tools=[tool("look", look)])
        await ana.send("go")
        await ana.wait_idle()
    (life,), (_, call), (body,) = named("invoke"), named("chat"), named("execute")
    assert [said(span)["error.type"] for span in (life, body)] == ["turn_failed", "tool_error"]
    assert said(call)["error.type"] == "ValueError"
    assert SECRET not in "".join(span.to_json() for span in finished())


async def test_runtime_that_does_not_trace_makes_no_span_and_writes_no_place(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("done")])
        await ana.send("go")
        await ana.wait_idle()
        (turn,) = world.turns()
    assert turn.trace is None
    assert not finished()


async def test_what_is_used_once_is_called_as_its_specification_within_what_is_current(
    world: World, virtual_time: MockClock
) -> None:
    spec = AgentSpec(name="sum", provider=world.provider([reply("in short")]), model="m")
    async with world.open(trace=True) as runtime:
        with PROVIDER.get_tracer("host").start_as_current_span("nightly"):
            await runtime.run_ephemeral(spec, "go")
    assert "nightly > invoke_agent sum > abeyance.round > chat m" in tree()
    (life,) = named("invoke")
    assert said(life)["gen_ai.agent.name"] == "sum"
    assert said(life)["gen_ai.agent.id"] != "sum"


async def test_call_that_a_death_cut_off_is_marked_as_in_doubt(
    world: World, virtual_time: MockClock
) -> None:
    assert lived(tracing.live, world.directory, "tool.after_started").status == -9
    async with world.open(trace=True):
        ana = await world.add([reply("done")], tools=[tool("look", lambda: "sun")])
        await ana.wait_idle()
    (body,) = named("execute")
    assert said(body)["abeyance.in_doubt"] is True
    assert said(body)["error.type"] == "tool_error", "nobody knows what it came to"
