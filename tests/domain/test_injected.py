"""Whatever arrives, what a request carries of it is what every later request carries, too."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import HostClock, ScriptedProvider, call_tool, invariant, reply
from abeyance.actors.testing.witness import witnessed
from abeyance.storage.tables.blocks import TextBlock

from .world import Stop

WORDS = st.one_of(
    st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() and text.strip() != ""),
    st.sampled_from(["x" * 5_000, "é" * 3_000, "a\nb", "{}", "\u200dok"]),
    st.builds(lambda n: "long " * n, st.integers(1_000, 4_000)),
)
AUTHORS = st.sampled_from(["bo", "cy", "ana"])
ARRIVALS = st.lists(st.tuples(AUTHORS, st.lists(WORDS, min_size=1, max_size=4)), max_size=4)
"""Of one round: who says what, in how many blocks."""


@pytest.mark.behaviour("R-6")
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow],
    # Each example is a host on a disk: what failed is told as it was drawn.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@example(rounds=[[("bo", ["one", "two"]), ("ana", ["own"]), ("cy", ["three"])], []])
@given(rounds=st.lists(ARRIVALS, min_size=1, max_size=3))
def test_what_joins_a_turn_is_carried_as_every_later_request_carries_it(
    rounds: list[list[tuple[str, list[str]]]],
) -> None:
    with witnessed() as witness, tempfile.TemporaryDirectory() as directory:
        provider = trio.run(_play, Path(directory), rounds, clock=HostClock())
        exchanges = invariant.read_scripted(provider)
        assert len(exchanges) >= len(rounds) + 2
        assert invariant.violations(exchanges) == []
        assert witness.problems() == []
    # Each carries on from the last one: the last has, unchanged, what any of them carried.
    *earlier, last = exchanges
    for exchange in earlier:
        assert last.messages[: len(exchange.messages)] == exchange.messages


async def _play(directory: Path, rounds: list[list[tuple[str, list[str]]]]) -> ScriptedProvider:
    """A turn with a tool each round, during which messages arrive; then another turn."""
    stops = [Stop() for _ in rounds]
    tools = [stop.tool(f"wait{number}") for number, stop in enumerate(stops)]
    script = [call_tool(f"wait{number}") for number in range(len(rounds))]
    provider = ScriptedProvider([*script, *[reply("Done")] * 3])
    async with open_runtime(directory / "state", control=False) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        )
        await ana.send("go")
        for stop, arrivals in zip(stops, rounds, strict=True):
            await stop.entered.wait()
            for author, words in arrivals:
                blocks = [TextBlock(text=text) for text in words]
                await ana.send(blocks, author=author, wake=False)
            stop.go.set()
        await ana.wait_idle()
        await ana.send("and now")
        await ana.wait_idle()
    return provider
