"""The examples of kinds of agents, run against a provider on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trio

from abeyance.actors.testing import Answer, ProviderSimulator, Rule, When

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


async def test_summary_example_prints_what_the_run_said(tmp_path: Path) -> None:
    rules = (Rule(when=When(last_text="Summarise"), then=Answer(text="Rain.")),)
    async with ProviderSimulator(rules) as simulator:
        assert (await run("summarise.py", simulator, tmp_path)).strip() == "Rain."


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
