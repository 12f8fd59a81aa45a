"""The page of a host's first day names each example, and the suite runs what it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "first_day"


def named() -> set[str]:
    """The files that the page has to run."""
    page = (ROOT / "docs" / "first-day.md").read_text("utf-8")
    return {
        name
        for line in page.splitlines()
        if line.startswith("| ") and not line.startswith("|---")
        for name in re.findall(r"`([\w./]+\.(?:py|toml))`", line)
    }


def test_page_of_the_first_day_names_every_example_and_no_other() -> None:
    assert all((EXAMPLES / name).is_file() for name in named())
    assert {path.name for path in EXAMPLES.glob("*.py")} <= named()


def test_suite_runs_every_example_of_the_first_day() -> None:
    suites = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in named():
        assert f'{Path(name).name}"' in suites or f'"{Path(name).stem}"' in suites, name
