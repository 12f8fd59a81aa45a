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

WITHOUT_A_TEST: dict[str, str] = {}
"""The beginnings of the statements that no test can prove, each with the reason."""


PROSE_LINES_MAX = 5
"""Of the page behind its head: what leads a section in."""


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


def run_by_pytest(source: str) -> set[str]:
    """The tests of a file that pytest runs: at its top or in a class, and not marked to be left."""
    tree = ast.parse(source)
    tests: set[str] = set()
    for holder in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for node in holder.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
                if not marks & {"pytest.mark.skip", "pytest.mark.xfail", "pytest.fixture"}:
                    tests.add(node.name)
    return tests


def unproven(found: list[tuple[str, str]], defined: set[str]) -> list[str]:
    """The statements of which no test is named that is there."""
    return [
        f"{section}: {text}"
        for section, text in found
        if section not in NO_PROMISES
        and not text.endswith(":")
        and not text.startswith(tuple(WITHOUT_A_TEST))
        and not set(re.findall(r"`(test_\w+)`", text)) & defined
    ]


@pytest.fixture(scope="module")
def defined() -> set[str]:
    return set[str]().union(
        *(run_by_pytest(path.read_text("utf-8")) for path in TESTS.rglob("test_*.py"))
    )


def test_every_statement_of_the_semantics_page_names_a_test_that_is_there(
    defined: set[str],
) -> None:
    assert len(STATEMENTS) > 100
    assert unproven(STATEMENTS, defined) == [], (
        "name the test that proves each, or say in WITHOUT_A_TEST why none can"
    )


def test_statement_without_a_test_that_runs_is_found() -> None:
    source = """
def test_runs(): ...
class TestMore:
    async def test_runs_too(self): ...
@pytest.mark.skip(reason="later")
def test_left(): ...
def helper():
    def test_inner(): ...
"""
    assert run_by_pytest(source) == {"test_runs", "test_runs_too", "helper"}
    page = "- a (`test_runs`)\n- b\n- c (`test_left`)\n- d (`test_inner`)\n- e (`test_gone`)\n"
    found = unproven(statements(page), run_by_pytest(source))
    assert found == [": b", ": c (`test_left`)", ": d (`test_inner`)", ": e (`test_gone`)"]


def behind_its_tests(text: str) -> str:
    """What a statement goes on to say behind the last test that it names."""
    last = re.split(r"`test_\w+`", text)[-1]
    return re.sub(r"^, and the rest of `tests/[\w/]+\.py`", "", last).strip(" |().")


def test_no_statement_goes_on_behind_the_tests_that_it_names() -> None:
    """One bullet may say several things, each with its tests: nothing stands behind the last."""
    assert behind_its_tests("a (`test_a`) b. (`test_b`)") == ""
    assert behind_its_tests("a (`test_a`) And b.") == "And b"
    found = [
        f"{section}: {text}"
        for section, text in STATEMENTS
        if section not in NO_PROMISES and "`test_" in text and not text.startswith("|")
        if behind_its_tests(text)
    ]
    assert found == []


def test_nothing_but_bullets_tables_and_what_leads_to_them_states_anything() -> None:
    """Prose is looked at by nobody here: a page that grew a promise in it would go unproven."""
    page = PAGE.read_text("utf-8").partition("\n## ")[2].partition("\n")[2]
    prose = [line for line in page.splitlines() if line[:1].isalpha()]
    assert len(prose) <= PROSE_LINES_MAX, prose


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
