"""The example of a host's own adapter is held against what every adapter must do."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "testing"

sys.path.insert(0, str(EXAMPLE))
try:
    _module: Any = import_module("test_my_adapter")
finally:
    sys.path.remove(str(EXAMPLE))

TestGateway = _module.TestGateway


def test_page_on_adapters_names_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "adapters.md").read_text("utf-8")
    assert "examples/testing/my_adapter.py" in page
