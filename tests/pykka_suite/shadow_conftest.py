"""Pykka's conftest with one runtime more: it is put in the place of `tests/conftest.py` of pykka's
source, whose own is beside it under another name.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.types import Runtime  # type: ignore[import-not-found]

from abeyance.actors.core import HostedSystem, TrioActor, TrioFuture
from tests import pykkas_conftest  # type: ignore[attr-defined]

DIFFERENCES: dict[str, str] = json.loads(os.environ["PYKKA_SUITE_DIFFERENCES"])
RACES: list[str] = json.loads(os.environ["PYKKA_SUITE_RACES"])

globals().update({k: v for k, v in vars(pykkas_conftest).items() if not k.startswith("__")})

TRIO = pytest.param(
    Runtime(
        name="trio",
        actor_class=TrioActor,
        event_class=threading.Event,
        future_class=TrioFuture,
        sleep_func=time.sleep,
    ),
    id="trio",
)


@pytest.fixture(scope="session", params=[*pykkas_conftest.RUNTIMES.values(), TRIO])
def runtime(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param.name != "trio":
        yield request.param
        return
    # Pykka's rule for exceptions that are no Exception; by ours they would end the run.
    with HostedSystem(stop_all_on_base_exception=True):
        yield request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect what differs on purpose to fail: one that passes is a difference no more."""
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in DIFFERENCES and "trio" in item.name:
            strict = name not in RACES
            item.add_marker(pytest.mark.xfail(reason=DIFFERENCES[name], strict=strict))
