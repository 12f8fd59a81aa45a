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


def _kinds(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [kind for inner in error.exceptions for kind in _kinds(inner)]
    # A failed Hypothesis example or a group of a nursery hides what failed; a cause never does.
    return [kind.__name__ for kind in type(error).__mro__]


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
    line = {
        "node": item.nodeid,
        "phase": report.when,
        "outcome": report.outcome,
        "kinds": _kinds(call.excinfo.value) if call.excinfo else [],
        "text": str(call.excinfo.value)[:400] if call.excinfo else "",
    }
    with open(os.environ["REMOVALS_OBSERVED"], "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    return report
