"""Every import contract breaks when it is broken: each is violated once in a scratch copy."""

from __future__ import annotations

import ast
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from .checkout import ROOT, run


class Plant(NamedTuple):
    """A line that breaks a contract, and the module it is planted in."""

    contract: str
    module: str
    line: str


PLANTS = [
    Plant("rooms", "actors/providers/port.py", "import abeyance.actors.domain"),
    Plant("rooms", "actors/domain/errors.py", "import abeyance.actors.runtime"),
    Plant("rooms", "actors/runtime.py", "import abeyance.actors.testing"),
    Plant("rooms", "actors/ops/control.py", "import abeyance.actors.runtime"),
    Plant("rooms", "storage/keys.py", "import abeyance.actors.core.clock"),
    Plant("storage", "storage/keys.py", "import abeyance.actors.core.clock"),
    Plant("storage", "storage/keys.py", "import trio"),
    Plant("storage", "storage/tables/fields.py", "import pykka"),
    Plant("core", "actors/core/clock.py", "import abeyance.storage.keys"),
    Plant("core", "actors/core/clock.py", "import abeyance.actors.domain.errors"),
    Plant("core", "actors/core/clock.py", "import lmdb"),
    Plant("pykka", "actors/domain/errors.py", "import pykka"),
    Plant("pykka", "actors/ops/protocol.py", "from pykka import ThreadingActor"),
    Plant("outcome", "actors/core/mailbox.py", "import outcome"),
    Plant("lmdb", "storage/keys.py", "import lmdb"),
    Plant("lmdb", "actors/ops/protocol.py", "import lmdb"),
    Plant("msgpack", "storage/keys.py", "import msgpack"),
    Plant("msgpack", "actors/domain/errors.py", "import msgpack"),
    Plant("cronsim", "actors/domain/schedules.py", "import cronsim"),
    Plant("cronsim", "storage/keys.py", "from cronsim import CronSim"),
    Plant("prometheus", "actors/core/clock.py", "import prometheus_client"),
    Plant("prometheus", "actors/ops/control.py", "from prometheus_client import Gauge"),
    Plant("opentelemetry", "actors/core/serving.py", "from opentelemetry import context"),
    Plant("opentelemetry", "actors/domain/agent.py", "import opentelemetry.trace"),
    Plant("starlette", "actors/ops/control.py", "from starlette.routing import Route"),
    Plant("starlette", "actors/opening.py", "import hypercorn"),
    Plant("http", "actors/domain/errors.py", "import httpx2"),
    Plant("http", "actors/core/clock.py", "import http.client"),
    Plant("http", "storage/keys.py", "import h11"),
]


def _contracts() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return [contract["id"] for contract in listed]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("scratch")
    shutil.copy2(ROOT / "pyproject.toml", copy)
    (copy / ".dev" / "abeyance").mkdir(parents=True)
    for room in ("actors", "storage"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / ".dev" / "abeyance" / room).symlink_to(Path("..", "..", room))
    return copy


def _lint(scratch: Path, contract: str) -> tuple[int, str]:
    # The scratch copy stands before the editable project on the path.
    done = run(
        *(Path(sys.executable).with_name("lint-imports"), "--no-cache", "--contract", contract),
        cwd=scratch,
        PYTHONPATH=str(scratch / ".dev"),
    )
    return done.returncode, done.stdout


@pytest.mark.drawn(4)
@pytest.mark.parametrize("contract", _contracts())
def test_contract_is_kept(scratch: Path, contract: str) -> None:
    code, said = _lint(scratch, contract)
    assert code == 0, said
    assert "1 kept, 0 broken" in said


@pytest.mark.drawn(6)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: f"{p.contract}-{p.module}-{p.line}")
def test_contract_breaks_when_it_is_violated(scratch: Path, plant: Plant) -> None:
    path = scratch / plant.module
    before = path.read_text(encoding="utf-8")
    path.write_text(f"{before}\n{plant.line}\n", encoding="utf-8")
    try:
        code, said = _lint(scratch, plant.contract)
    finally:
        path.write_text(before, encoding="utf-8")
    assert code == 1, said
    assert "0 kept, 1 broken" in said


def _actors_of(module: str) -> set[str]:
    """The actor classes that a domain module defines."""
    tree = ast.parse((ROOT / "actors" / "domain" / f"{module}.py").read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "TrioActor" for base in node.bases)
    }


def test_domain_modules_import_messages_and_never_one_anothers_actors() -> None:
    # Import contracts see modules, not names; an actor's messages stand beside it.
    domain = ROOT / "actors" / "domain"
    modules = sorted(path.stem for path in domain.glob("*.py"))
    actors = {module: found for module in modules if (found := _actors_of(module))}
    assert set(actors) >= {"agent", "alarm", "gate", "journal", "slot", "waits"}
    taken = []
    for module in modules:
        for node in ast.walk(ast.parse((domain / f"{module}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {alias.name for alias in node.names}
                there = actors.get(node.module.rpartition(".")[2], set())
                taken += [f"{module} imports {name}" for name in sorted(named & there)]
    assert taken == []


def test_every_contract_has_a_violation_planted() -> None:
    assert {plant.contract for plant in PLANTS} == set(_contracts())
