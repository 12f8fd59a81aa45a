"""docs/semantics.md names the test that proves a statement: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "semantics.md"


def test_every_test_that_the_semantics_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text("utf-8")))
    defined: set[str] = set()
    for path in HERE.glob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", path.read_text("utf-8")))
    assert len(named) > 100
    assert named - defined == set()
