"""docs/semantics.md names, for every statement, a test that proves it and that is there.

A statement is a bullet or a row of a table. One that ends in a colon introduces those below it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "semantics.md"

NO_PROMISES = ("Not promised",)
"""Sections that say what is not promised: nothing can prove them."""

WITHOUT_A_TEST = {
    "A ring that passes through another process": "not promised: such a ring is not seen",
}
"""The beginnings of the statements that no test can prove, each with the reason."""


def statements(page: str) -> list[tuple[str, str]]:
    """Every bullet and table row, as (section, text), in order."""
    found: list[tuple[str, str]] = []
    section = ""
    goes_on = False
    for line in page.splitlines():
        text = line.strip()
        if line.startswith("#"):
            section, goes_on = text.lstrip("# "), False
        elif text.startswith("- "):
            found.append((section, text[2:]))
            goes_on = True
        elif text.startswith("|"):
            if set(text) <= set("|-: "):
                found.pop()  # What stands above this line was the table's head.
            else:
                found.append((section, text))
            goes_on = False
        elif text and goes_on and line.startswith(" "):
            found[-1] = (section, f"{found[-1][1]} {text}")
        elif text:
            goes_on = False
    return found


STATEMENTS = statements(PAGE.read_text("utf-8"))


@pytest.fixture(scope="module")
def defined() -> set[str]:
    names: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
    return names


def test_every_statement_of_the_semantics_page_names_a_test_that_is_there(
    defined: set[str],
) -> None:
    assert len(STATEMENTS) > 100
    unproven = []
    for section, text in STATEMENTS:
        if section in NO_PROMISES or text.endswith(":") or text.startswith(tuple(WITHOUT_A_TEST)):
            continue
        if not set(re.findall(r"`(test_\w+)`", text)) & defined:
            unproven.append(f"{section}: {text}")
    assert unproven == [], "name the test that proves each, or say in WITHOUT_A_TEST why none can"


def test_every_test_that_the_semantics_page_names_is_there(defined: set[str]) -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text("utf-8")))
    assert len(named) > 100
    assert named - defined == set()


def test_no_exemption_outlives_its_statement() -> None:
    for begins in WITHOUT_A_TEST:
        assert [text for _, text in STATEMENTS if text.startswith(begins)] != [], begins


def test_statements_are_bullets_with_their_continuations_and_rows_without_their_head() -> None:
    page = "# A\n- one\n  two (`test_x`)\n\n  | h | i |\n  |--|--|\n  | a | b |\n\nprose\n- three\n"
    assert statements(page) == [
        ("A", "one two (`test_x`)"),
        ("A", "| a | b |"),
        ("A", "three"),
    ]
