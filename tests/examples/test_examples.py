"""The README's examples: the same text as the files, run against a provider on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from abeyance.actors.testing import Answer, ProviderSimulator, Rule, SimulatedTool, When

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_WEATHER = (
    Rule(
        when=When(last_text="umbrella", after_tool=False),
        then=Answer(tools=(SimulatedTool(name="look", input={"place": "Oslo"}),)),
    ),
    Rule(when=When(after_tool=True), then=Answer(text="Yes, take one.")),
)


def _readme_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


def test_code_blocks_of_the_readme_are_the_example_files() -> None:
    assert sorted(_readme_blocks()) == sorted(path.read_text() for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short_enough_to_be_read_at_a_glance(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 20


async def _run(name: str, simulator: ProviderSimulator, where: Path) -> str:
    done = await trio.run_process(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=where,
        env=os.environ | {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": simulator.base_url},
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = done.stdout.decode()
    assert done.returncode == 0, said
    return said


async def test_trio_example_runs_a_turn_with_a_tool(tmp_path: Path) -> None:
    async with ProviderSimulator(_WEATHER) as simulator:
        said = await _run("trio_host.py", simulator, tmp_path)
    assert "user: Do I need an umbrella in Oslo?" in said
    assert said.rstrip().endswith("ana: Yes, take one.")
    assert len(simulator.log) == 2


@pytest.mark.slow
async def test_trio_example_run_again_finds_its_message_answered_and_calls_nobody(
    tmp_path: Path,
) -> None:
    async with ProviderSimulator(_WEATHER) as simulator:
        first = await _run("trio_host.py", simulator, tmp_path)
        again = await _run("trio_host.py", simulator, tmp_path)
    assert again == first
    assert len(simulator.log) == 2


@pytest.mark.slow
async def test_threaded_example_serves_two_agents_from_two_threads(tmp_path: Path) -> None:
    async with ProviderSimulator() as simulator:
        said = await _run("threaded_host.py", simulator, tmp_path)
    for name, question in (("ana", "What is a hold?"), ("bo", "What is a wait?")):
        assert f"{name} | user: {question}" in said
        assert f"{name} | {name}: you said: {question}" in said
    assert len(simulator.log) == 2
