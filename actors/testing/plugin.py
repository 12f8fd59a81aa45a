"""Fixtures for hosts' own tests, with pytest and pytest-trio (the extra `testing`).

Nothing registers it: a project that wants it says so in its top `conftest.py`,
`pytest_plugins = ["abeyance.actors.testing.plugin"]`. `--faults-seed N` repeats the chances of a
run and the order of its tasks. A test that fails and used `faults` shows its schedule in a section
of the report.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_trio import trio_fixture

from abeyance.actors.opening import open_runtime
from abeyance.actors.runtime import Runtime

from .clock import WallClock
from .faults import Faults
from .host_clock import HostClock as _HostClock
from .simulator import ProviderSimulator
from .witness import Witness, witnessed

_FAULTS: Final = pytest.StashKey[Faults]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--faults-seed`."""
    parser.addoption(
        "--faults-seed",
        type=int,
        default=None,
        help="the seed of the `faults` fixture; by default one is drawn for each test",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the schedule of a test that failed."""
    report = yield
    faults = item.stash.get(_FAULTS, None)
    if report.failed and faults is not None:
        report.sections.append(("faults", faults.schedule))
    return report


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """Faults for `ActorSystem(faults=...)`, `HostedSystem` or a runtime; checked after the test.

    They are open as a block from before the test's run, which is therefore ordered by their seed.
    """
    made = Faults(seed=request.config.getoption("--faults-seed"))
    request.node.stash[_FAULTS] = made
    with made:
        yield made


@pytest.fixture
def host_clock() -> _HostClock:
    """Virtual time for the test, which stands still while threads and the store work."""
    return _HostClock()


@pytest.fixture
def wire_invariant() -> Iterator[Witness]:
    """Holds every call of every turn against the slot it was compiled from; checked at the end.

    For every test of a project: `pytestmark = pytest.mark.usefixtures("wire_invariant")`, or an
    autouse fixture of the project's own that takes it.
    """
    with witnessed() as witness:
        yield witness
    witness.check()


@trio_fixture  # type: ignore[untyped-decorator]
async def wall_clock() -> WallClock:
    """A wall clock that moves with trio's."""
    return WallClock(follow_trio=True)


@trio_fixture  # type: ignore[untyped-decorator]
async def provider_simulator() -> AsyncIterator[ProviderSimulator]:
    """A provider on loopback that echoes, until the test gives it rules."""
    async with ProviderSimulator() as simulator:
        yield simulator


@trio_fixture  # type: ignore[untyped-decorator]
async def abeyance_runtime(
    tmp_path: Path, faults: Faults, wall_clock: Any
) -> AsyncIterator[Runtime]:
    """A runtime on a fresh state directory, with the test's faults and wall clock."""
    async with open_runtime(
        tmp_path / "state", clock=wall_clock, control=False, faults=faults
    ) as runtime:
        yield runtime
