"""`tests/removals/*.toml`: which guard each promise stands on, and what is wrong with the files.

There is a file for each part of the project, so that parts change side by side; which file a
removal is in means nothing, and a new one stands beside those of the same test. It has:

    [[removal]]
    ids   the ids of docs/behaviours.md that the test proves; it carries each as a mark. Without
          ids the removal is of a statement of docs/semantics.md that names the test.
    file  where the guard stands
    old   a snippet that occurs in that file exactly once
    new   what stands there when the guard is deleted or turned round; it must parse
    test  a node id, with [case] where one case is meant
    note  optional

Several removals may be of one id. An id that no removal proves is named with the reason:

    [untried]
    W-000 = "why not"

I1: a removal that is returned names a snippet that is in its file exactly once, parses with the
    replacement in its place, and a test that is there.
I2: everything that is wrong is reported at once, each with the removal it is about.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ID = re.compile(r"\b(?:[WDSX]-\d{3}|R-\d{1,2})\b")
_FIELDS = {"ids", "file", "old", "new", "test", "note"}


class MalformedError(Exception):
    """The table cannot be tried; nothing was run. `problems` holds one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Removal:
    """One guard, what stands in its place when it is deleted, and the test that then fails."""

    ids: tuple[str, ...]
    file: str
    old: str
    new: str
    test: str

    @property
    def function(self) -> str:
        return self.test.rpartition("::")[2].partition("[")[0]

    @property
    def label(self) -> str:
        """The ids it proves, or, for a statement of docs/semantics.md, its test's name."""
        return ", ".join(self.ids) or self.function

    def applied(self, source: str) -> str:
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Table:
    removals: tuple[Removal, ...]
    untried: dict[str, str]


@cache
def _tests(path: Path) -> dict[str, set[str]]:
    """The test functions of a file, each with the behaviours that it is marked with."""
    found: dict[str, set[str]] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = {
                    argument.value
                    for mark in node.decorator_list
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(".behaviour")
                    for argument in mark.args
                    if isinstance(argument, ast.Constant)
                }

    walk(ast.parse(path.read_text("utf-8")).body, "")
    return found


def marked(root: Path) -> dict[str, list[str]]:
    """Every catalogue id that a test carries, with the node ids of those tests."""
    carriers: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name, ids in _tests(path).items():
            for id_ in ids:
                carriers.setdefault(id_, []).append(f"{path.relative_to(root)}::{name}")
    return carriers


def _page(root: Path, name: str) -> str:
    page = root / "docs" / name
    return page.read_text("utf-8") if page.exists() else ""


def _problems_of(removal: Removal, root: Path) -> list[str]:
    problems = []
    file = root / removal.file
    if not file.is_file():
        problems.append(f"there is no file {removal.file}")
    else:
        source = file.read_text("utf-8")
        count = source.count(removal.old)
        if not removal.old.strip() or removal.old == removal.new:
            problems.append("`old` is empty, or the same as `new`")
        elif count != 1:
            problems.append(f"`old` occurs {count} times in {removal.file}, not once")
        elif file.suffix == ".py":
            try:
                ast.parse(removal.applied(source))
            except SyntaxError as exc:
                problems.append(f"{removal.file} does not parse with `new` in place: {exc}")
    path, _, name = removal.test.partition("[")[0].partition("::")
    if not (root / path).is_file() or name not in (tests := _tests(root / path)):
        problems.append(f"there is no test {removal.test}")
    elif missing := sorted(set(removal.ids) - tests[name]):
        problems.append(f"{removal.test} is not marked with {', '.join(missing)}")
    if not removal.ids and f"`{removal.function}`" not in _page(root, "semantics.md"):
        problems.append("has no id, and docs/semantics.md does not name its test")
    return problems


def _entry(raw: dict[str, Any]) -> Removal | str:
    fields = {k: raw.get(k) for k in ("file", "old", "new", "test")}
    if unknown := sorted(set(raw) - _FIELDS):
        return f"unknown field {', '.join(unknown)}"
    if missing := [k for k, v in fields.items() if not isinstance(v, str)]:
        return f"{', '.join(missing)} must be text"
    ids = raw.get("ids", [])
    if not (isinstance(ids, list) and all(isinstance(i, str) for i in ids)):
        return "`ids` must be a list of text"
    return Removal(tuple(ids), **fields)  # type: ignore[arg-type]


def read(root: Path) -> Table:
    """Read and check the tables of the project at `root`, as one.

    Raises:
        MalformedError: Something of it cannot be tried; all of that is listed.
    """
    files = sorted((root / "tests" / "removals").glob("*.toml"))
    problems: list[str] = [] if files else ["tests/removals: there is no table"]
    removals: list[Removal] = []
    untried: dict[str, str] = {}
    promised = set(_ID.findall(_page(root, "behaviours.md")))
    for path in files:
        name = path.relative_to(root).as_posix()
        try:
            raw = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as exc:
            problems.append(f"{name}: {exc}")
            continue
        problems += [f"{name}: unknown table {k}" for k in raw if k not in ("removal", "untried")]
        untried |= raw.get("untried", {})
        for number, item in enumerate(raw.get("removal", []), 1):
            entry = _entry(item)
            if isinstance(entry, str):
                problems.append(f"{name}: removal {number}: {entry}")
                continue
            removals.append(entry)
            where = f"{name}: removal {number} ({entry.label})"
            unknown = [i for i in entry.ids if i not in promised]
            problems += [f"{where}: unknown id {i}" for i in unknown]
            problems += [f"{where}: {problem}" for problem in _problems_of(entry, root)]
    tried = {i for removal in removals for i in removal.ids}
    for id_, reason in untried.items():
        if id_ not in promised:
            problems.append(f"untried: unknown id {id_}")
        if not isinstance(reason, str) or not reason.strip():
            problems.append(f"untried: {id_} has no reason")
        if id_ in tried:
            problems.append(f"untried: {id_} has a removal as well")
    if problems:
        raise MalformedError(problems)
    return Table(tuple(removals), untried)
