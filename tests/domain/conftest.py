"""Fixtures of the domain's tests: virtual time on a real store.

A test that takes `virtual_time` runs in it; `world` needs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.testing import WallClock

from .world import OutsideWork, World


@pytest.fixture
def virtual_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """A clock that jumps when the loop idles and nobody works outside it.

    A module whose tests wait for bytes says by `JUMPS_AFTER_S` how long the loop must have idled.
    """
    clock = MockClock(autojump_threshold=getattr(request.module, "JUMPS_AFTER_S", 0))
    OutsideWork(clock).watch(monkeypatch)
    return clock


@pytest.fixture
async def world(tmp_path: Path, virtual_time: MockClock) -> World:
    """A state directory and a wall clock that follows virtual time; no runtime is open yet."""
    assert trio.lowlevel.current_clock() is virtual_time, "the test must take `virtual_time` too"
    return World(tmp_path / "state", WallClock(follow_trio=True), virtual_time)
