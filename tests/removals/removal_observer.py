"""A pytest plugin of the removals command: how each test ended, line by line, in a file.

It is loaded by its bare name into a pytest that runs in a copy of the project, so that the copy's
own settings stay as they are. REMOVALS_OBSERVED names the file.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def _leaves(error: BaseException) -> list[BaseException]:
    """What failed: a nursery, and Hypothesis with several examples, hide it in a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def pytest_configure(config: pytest.Config) -> None:
    if (config.rootpath / ".dev" / "abeyance").is_dir():
        spec = importlib.util.find_spec("abeyance.actors")
        if not spec or not Path(spec.origin or "").resolve().is_relative_to(config.rootpath):
            raise pytest.UsageError(f"this Python imports abeyance from elsewhere: {spec}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report = yield
    leaves = _leaves(call.excinfo.value) if call.excinfo else []
    line = {
        "node": item.nodeid,
        "phase": report.when,
        "outcome": report.outcome,
        "kinds": [kind.__name__ for leaf in leaves for kind in type(leaf).__mro__],
        "text": f"{type(leaves[0]).__name__}: {leaves[0]}"[:400] if leaves else "",
    }
    with open(os.environ["REMOVALS_OBSERVED"], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    return report
