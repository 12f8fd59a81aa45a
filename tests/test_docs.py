"""The documents say what is so: links, code blocks, the list of errors, the list of behaviours."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]
    if ".venv" not in page.parts
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ID = re.compile(r"\b(?:[WDSX]-\d{3}|R-\d{1,2})\b")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _anchor(heading: str) -> str:
    """The anchor that a heading gets where Markdown is rendered."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return kept.replace(" ", "-")


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists():
            broken.append(target)
        elif anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", _prose(linked), re.M)
            if anchor not in {_anchor(heading) for heading in headings}:
                broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_page_names_a_place_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = re.findall(r"(?<![\w.])/(?:work|root|home|Users|tmp|opt|mnt)/[^\s`)]*", text)
    assert places == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_of_a_page_parses_and_what_it_imports_is_there(page: Path) -> None:
    for language, code in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                module = importlib.import_module(node.module)
                # What is imported of a package may be a module that nobody has imported yet.
                missing = [
                    alias.name
                    for alias in node.names
                    if not hasattr(module, alias.name)
                    and not (
                        hasattr(module, "__path__")
                        and importlib.util.find_spec(f"{node.module}.{alias.name}")
                    )
                ]
                assert missing == [], f"{node.module} has no {missing}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)


def test_every_test_that_a_page_names_is_there() -> None:
    """But for that of an example of a host's own suite."""
    tests = list((ROOT / "tests").rglob("*.py"))
    there = {path.stem for path in tests}
    for path in tests:
        there |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M))
    named = {
        (page.name, name)
        for page in PAGES
        for span in re.findall(r"`[^`\n]+`", _prose(page))
        for name in re.findall(r"\btest_\w+", span)
    }
    assert {each for each in named if each[1] not in {*there, "test_my_adapter"}} == set()


def test_every_decision_is_in_the_index_and_every_index_entry_is_a_decision() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(
        r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\)", (folder / "README.md").read_text(), re.M
    )
    assert [file for _, file in listed] == sorted(p.name for p in folder.glob("[0-9]*.md"))


def test_every_decision_names_context_choice_and_what_would_change_it() -> None:
    for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        text = page.read_text(encoding="utf-8")
        for part in ("**Context.**", "**Options.**", "**Choice.**", "**What would change it.**"):
            assert part in text, f"{page.name} lacks {part}"


@pytest.fixture(scope="module")
def errors_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("errors_page", ROOT / "docs" / "errors_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_exception_of_the_rooms_ends_in_error(errors_page: ModuleType) -> None:
    assert [e.__name__ for e in errors_page.errors() if not e.__name__.endswith("Error")] == []


def test_every_error_has_a_code_of_its_own(errors_page: ModuleType) -> None:
    codes: dict[str, list[str]] = {}
    for error in errors_page.errors():
        codes.setdefault(getattr(error, "code", ""), []).append(error.__name__)
    assert {code: names for code, names in codes.items() if not code or len(names) > 1} == {}


def test_every_error_survives_pickling(errors_page: ModuleType) -> None:
    for kind in errors_page.errors():
        error = kind.__new__(kind)
        Exception.__init__(error, "what failed; what is still true; what to do")
        error.field = "kept"
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (str(again), again.field) == (str(error), "kept")


def test_every_error_says_in_its_docstring_what_is_still_true(errors_page: ModuleType) -> None:
    assert [e.__name__ for e in errors_page.errors() if not e.__dict__.get("__doc__")] == []


def test_every_error_belongs_to_one_family(errors_page: ModuleType) -> None:
    without = [e.__name__ for e in errors_page.errors() if errors_page.family_of(e) is None]
    assert without == [], "name each in FAMILIES of docs/errors_page.py"


def test_no_family_names_an_error_that_is_gone(errors_page: ModuleType) -> None:
    there = {error.__name__ for error in errors_page.errors()}
    named = [name for family in errors_page.FAMILIES for name in family.members]
    assert sorted(set(named) - there) == []
    assert len(named) == len(set(named))


def test_page_of_errors_is_what_the_classes_say(errors_page: ModuleType) -> None:
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert written == errors_page.page(), "run ./dev docs --write"


def test_page_of_providers_is_what_the_readings_say() -> None:
    spec = importlib.util.spec_from_file_location(
        "providers_page", ROOT / "docs" / "providers_page.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    assert written == module.page(), "run ./dev docs --write"


@functools.cache
def _marked() -> frozenset[str]:
    """The catalogue ids that some test carries, read from the tests' own source."""
    marked: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "behaviour"
            ):
                marked |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return frozenset(marked)


def test_every_promised_behaviour_is_marked_on_a_test_and_every_marked_one_is_promised() -> None:
    page = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
    promised = set(_ID.findall(page))
    marked = _marked()
    assert sorted(promised - marked) == [], "promised, and no test carries it"
    assert sorted(marked - promised) == [], "carried by a test, and not promised"


def test_marks_are_ids_of_the_catalogue() -> None:
    assert [mark for mark in sorted(_marked()) if not _ID.fullmatch(mark)] == []
