"""Makes the harness importable: a package of the checkout, run with `python -m tests.crash`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def harness_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of `tests.crash` by its name."""
    monkeypatch.syspath_prepend(ROOT)

    def load(name: str) -> Any:
        return importlib.import_module(f"tests.crash.{name}")

    return load
