"""The fixtures, in a pytest of their own: a host's project that asked for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "testing"


def run(where: Path, *args: str) -> tuple[int, str]:
    (where / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text((EXAMPLE / "conftest.py").read_text())
    return tmp_path


@pytest.mark.slow
def test_example_of_a_hosts_own_tests_passes(project: Path) -> None:
    (project / "test_host.py").write_text((EXAMPLE / "test_host.py").read_text())
    code, said = run(project)
    assert (code, "3 passed" in said) == (0, True), said


def test_page_on_testing_shows_the_example_files() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    for name in ("conftest.py", "test_host.py"):
        assert (EXAMPLE / name).read_text() in blocks


FAILING = """
from abeyance.actors.core import ActorSystem, TrioActor
import pytest

@pytest.mark.trio
async def test_loses(faults):
    faults.at("mailbox_put", actor="TrioActor", probability=1.0).drop()
    async with ActorSystem(faults=faults) as system:
        system.start(TrioActor).tell(1)
    assert False
"""


def test_failed_test_shows_its_schedule_and_seed(project: Path) -> None:
    (project / "test_it.py").write_text(FAILING)
    code, said = run(project, "--faults-seed", "4711")
    assert code == 1
    schedule = r"# seed 4711; 1 faults;.*\ntask_order 4711\nmailbox_put TrioActor 1 drop"
    assert re.search(rf"-+ faults -+\n{schedule}", said)


def test_passed_test_shows_none(project: Path) -> None:
    (project / "test_it.py").write_text(FAILING.replace("assert False", "assert True"))
    code, said = run(project, "-rA")
    assert (code, "# seed" in said) == (0, False), said


RACING = """
import pytest, trio

@pytest.mark.trio
async def test_races(faults):
    order = []
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(note, order, n)
    print("ORDER", order)

async def note(order, n):
    order.append(n)
"""


@pytest.mark.slow
def test_seed_of_the_faults_is_the_seed_of_the_order_of_a_tests_tasks(project: Path) -> None:
    (project / "test_it.py").write_text(RACING)
    orders = []
    for seed in ("1", "1", "2"):
        code, said = run(project, "-rP", "--faults-seed", seed)
        assert code == 0, said
        orders.append(re.findall("ORDER .*", said))
    assert orders[0] == orders[1] != orders[2]
    assert len(orders[0]) == 1


UNBALANCED = """
from abeyance.actors.core import ActorSystem, TrioActor
import pytest

@pytest.mark.trio
async def test_miscounts(faults):
    async with ActorSystem(faults=faults) as system:
        ref = system.start(TrioActor)
        ref._cell.handled = 3
"""


@pytest.mark.slow
def test_accounts_are_checked_after_each_test_that_has_faults(project: Path) -> None:
    (project / "test_it.py").write_text(UNBALANCED)
    code, said = run(project)
    assert code == 1
    assert "0 accepted, but 3 handled" in said


def test_nobody_has_the_fixtures_who_did_not_ask_for_them(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(faults):\n    pass\n")
    code, said = run(tmp_path)
    assert code == 1
    assert "fixture 'faults' not found" in said


FIXTURES = """
import pytest, trio

@pytest.mark.trio
async def test_simulator_answers(provider_simulator):
    assert provider_simulator.base_url.startswith("http://127.0.0.1")

@pytest.mark.trio
async def test_wall_clock_moves_with_trios(wall_clock, host_clock):
    began = wall_clock.now_ms()
    await trio.sleep(60)
    assert wall_clock.now_ms() - began == 60_000
"""


def test_simulator_and_wall_clock_are_fixtures_too(project: Path) -> None:
    (project / "test_it.py").write_text(FIXTURES)
    code, said = run(project)
    assert (code, "2 passed" in said) == (0, True), said


BROKEN = """
import pytest
from abeyance.actors import AgentSpec, Tool
from abeyance.actors.domain.turn import TurnTask
from abeyance.actors.testing import ScriptedProvider

pytestmark = pytest.mark.usefixtures("wire_invariant")
LOOK = Tool("look", "looks", {"type": "object", "properties": {}}, lambda **_: "x")


@pytest.mark.trio
@pytest.mark.parametrize("breaks", [False, True])
async def test_turn(abeyance_runtime, monkeypatch, breaks):
    request = TurnTask._request

    def compacted(turn):
        if turn.round:
            turn._messages[:1] = []
        return request(turn)

    if breaks:
        monkeypatch.setattr(TurnTask, "_request", compacted)
    provider = ScriptedProvider.echo("look", rounds=2)
    ana = await abeyance_runtime.add_agent(
        AgentSpec(name="ana", provider=provider, model="m", tools=[LOOK])
    )
    await ana.send("hi")
    await ana.wait_idle()
"""


@pytest.mark.slow
def test_project_that_asks_for_it_is_told_where_a_wire_breaks_the_invariant(project: Path) -> None:
    (project / "test_wire.py").write_text(BROKEN)
    code, said = run(project)
    assert code == 1
    assert "2 passed, 1 error" in said, said
    assert "ERROR test_wire.py::test_turn[True]" in said
    assert re.search(r"call 2 of ana of .* than call 1 and its reply: at message 1", said), said
