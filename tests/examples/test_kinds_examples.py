"""The examples of kinds of agents, run against a provider on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from abeyance.actors.testing import Answer, ProviderSimulator, Rule, When, WireRequest

KINDS = Path(__file__).parents[2] / "examples" / "kinds"


async def run(name: str, simulator: ProviderSimulator, where: Path) -> str:
    done = await trio.run_process(
        [sys.executable, str(KINDS / name)],
        cwd=where,
        env=os.environ | {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": simulator.base_url},
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    return said


@pytest.mark.slow
async def test_summary_example_prints_what_the_run_said(tmp_path: Path) -> None:
    rules = (Rule(when=When(last_text="Summarise"), then=Answer(text="Rain.")),)
    async with ProviderSimulator(rules) as simulator:
        assert (await run("summarise.py", simulator, tmp_path)).strip() == "Rain."


@pytest.mark.slow
async def test_conversation_example_knows_what_the_resident_heard(tmp_path: Path) -> None:
    rules = (
        Rule(when=When(last_text="noon"), then=Answer(text="Noted.")),
        Rule(when=When(last_text="When"), then=Answer(text="At noon.")),
    )
    async with ProviderSimulator(rules) as simulator:
        said = (await run("conversation.py", simulator, tmp_path)).splitlines()
    assert said == [
        "user: We meet at noon.",
        "assistant: Noted.",
        "user: When do we meet?",
        "assistant: At noon.",
    ]


@pytest.mark.slow
async def test_context_example_sums_up_what_is_old_and_goes_on(tmp_path: Path) -> None:
    def answer(request: WireRequest) -> Answer:
        if request.system.startswith("You keep the memory"):
            return Answer(text="Three towns, and Tromsø the coldest.")
        if "coldest" in request.last_text:
            return Answer(text="In Tromsø.")
        return Answer(text="It is by the sea. " * 50)

    async with ProviderSimulator(answer) as simulator:
        said = (await run("context.py", simulator, tmp_path)).splitlines()
        carried = simulator.log[-1].request["messages"]
    assert said[0].startswith("places 1 to ")
    assert said[0].endswith("Three towns, and Tromsø the coldest.")
    assert said[1:] == ["user: Where was it coldest?", "assistant: In Tromsø."]
    assert len(carried) < 7
