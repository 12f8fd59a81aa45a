"""What the rooms import is what the distribution declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from .checkout import ROOT

_DISTRIBUTION = {
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "trio_util": "trio-util",
    "pytest_trio": "pytest-trio",
}
"""Where the import name is not the distribution's."""


def _project() -> dict[str, list[str]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    named = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: [re.split(r"[<>=\[;~! ]", requirement)[0] for requirement in requirements]
        for extra, requirements in named.items()
    }


def _imported(room: str) -> dict[str, Path]:
    """The top-level names of third-party modules, and a file that imports each."""
    found: dict[str, Path] = {}
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in {"abeyance", "__future__"}:
                    found.setdefault(_DISTRIBUTION.get(top, top), path.relative_to(ROOT))
    return found


def test_every_third_party_import_is_declared() -> None:
    declared = {name for names in _project().values() for name in names}
    imported = _imported("actors") | _imported("storage")
    assert {name: str(p) for name, p in imported.items() if name not in declared} == {}


def test_every_declared_dependency_is_imported() -> None:
    imported = _imported("actors") | _imported("storage")
    # tzdata is read by zoneinfo where the system has no time zones of its own.
    assert [n for n in _project()[""] if n not in imported and n != "tzdata"] == []
