"""What every test shares: the seed of random tests, printed, and Hypothesis set by it.

A run prints one seed in its header. `ABEYANCE_SEED=<n>` repeats it: the `seed` fixture, the
Hypothesis examples and the order of anything drawn from either are then the same. Where the tests
are spread over processes, all of them have the one that prints it. Of large grids it draws the
cells that the default run has; `./dev long` has the others.

Python keeps what it compiles, whatever the environment says: tests start it hundreds of times.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from abeyance.actors.testing.witness import Witness, witnessed

_SEED = int(os.environ.get("ABEYANCE_SEED") or secrets.randbelow(2**31))

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("abeyance", deadline=None, print_blob=True)
hypothesis.settings.load_profile("abeyance")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    global _SEED
    _SEED = getattr(config, "workerinput", {}).get("abeyance_seed", _SEED)
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(_SEED)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["abeyance_seed"] = _SEED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in address for address in config.args):
        leave_to_the_long_run(items)
    # Processes that share the tests must name them alike, and so must two runs.
    addresses = [i.nodeid for i in items if re.search(r" at 0x[0-9a-f]{4}", i.nodeid)]
    if addresses:
        raise pytest.UsageError(f"a test's name holds an address: {addresses[0]}")


def leave_to_the_long_run(items: list[pytest.Item]) -> None:
    """Of a test that is `drawn(n)`, keep n cells of its grid, and mark the others as slow.

    By one seed the default run and `./dev long` have each cell once between them. A test that is
    named by its address has all of its cells.
    """
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("drawn"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cells in grids.items():
        mark = cells[0].get_closest_marker("drawn")
        assert mark is not None
        (kept,) = mark.args
        order = random.Random(f"{_SEED} {name}").sample(cells, len(cells))
        for cell in order[kept:]:
            cell.add_marker("slow")


def pytest_report_header(config: pytest.Config) -> str:
    return f"random tests: ABEYANCE_SEED={_SEED} repeats this run"


@pytest.fixture(autouse=True)
def wire_invariant(request: pytest.FixtureRequest) -> Iterator[Witness | None]:
    """Holds every call that a turn makes in this process against the invariant of its slot.

    A test that breaks it on purpose says so: `@pytest.mark.breaks_the_wire("why")`.
    """
    with witnessed() as witness:
        yield witness
    mark = request.node.get_closest_marker("breaks_the_wire")
    if mark is None:
        witness.check()
    else:
        assert len(mark.args) == 1, "breaks_the_wire takes the reason"
        assert witness.problems(), f"nothing was broken here, though: {mark.args[0]}"


@pytest.fixture
def seed() -> int:
    """The seed of this run's random tests; in the header and beside a failure."""
    print(f"ABEYANCE_SEED={_SEED}")
    return _SEED
