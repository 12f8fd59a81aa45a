"""What every test shares: the seed of random tests, printed, and Hypothesis set by it.

A run prints one seed in its header. `ABEYANCE_SEED=<n>` repeats it: the `seed` fixture, the
Hypothesis examples and the order of anything drawn from either are then the same.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import hypothesis
import pytest

from abeyance.actors.testing.witness import Witness, witnessed

_SEED = int(os.environ.get("ABEYANCE_SEED") or secrets.randbelow(2**31))

hypothesis.settings.register_profile("abeyance", deadline=None, print_blob=True)
hypothesis.settings.load_profile("abeyance")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(_SEED)


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
