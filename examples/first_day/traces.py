"""A turn that is held and goes on, as two traces with a link between them.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from abeyance.actors import AgentSpec, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply

NOTHING = {"type": "object", "properties": {}}


def look() -> str:
    with trace.get_tracer("my.tools").start_as_current_span("ask the station"):
        return "rain, 12 degrees"


def print_within(spans: list[ReadableSpan], parent: int | None, depth: int) -> None:
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent and span.context is not None:
            linked = " (goes on with the one before)" if span.links else ""
            print(f"{'  ' * depth}{span.name}{linked}")
            print_within(spans, span.context.span_id, depth + 1)


async def main(state: str) -> None:
    exporter, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(traces)
    provider = ScriptedProvider([fail(429, retry_after=7_200), call_tool("look"), reply("Rain.")])
    tool = Tool(name="look", description="The weather.", input_schema=NOTHING, run=look)
    async with open_runtime(state, trace=True) as runtime:
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
        ana = await runtime.add_agent(spec)
        await ana.send("Do I need an umbrella?")
        await ana.wait_idle()
        await runtime.release_provider_wait("ana", requester="me")
        await ana.wait_idle()
    print_within(list(exporter.get_finished_spans()), None, 0)


trio.run(main, sys.argv[1])
