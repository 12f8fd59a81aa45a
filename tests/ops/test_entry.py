"""The console script: Ctrl-C ends it with one line, whenever it comes; what is imported when."""

from __future__ import annotations

import ast
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import abeyance.actors as actors

# A real SIGINT at the n-th import since the console script's `main` was entered; for n = 0 none,
# and the number of imports at the end.
SCRIPT = """
import os, signal, sys
at, seen = int(sys.argv.pop(1)), 0
def look(event, _):
    global seen
    if event == "import":
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGINT)
from abeyance.actors.ops.entry import main
sys.addaudithook(look)
code = main()
if not at:
    print(seen, file=sys.stderr)
sys.exit(code)
"""


@contextmanager
def heard(how: Any) -> Iterator[None]:
    """Children hear an interrupt as this process then does."""
    before = signal.signal(signal.SIGINT, how)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted(at: int, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(at), *arguments],
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def imports() -> int:
    done = interrupted(0, "--version")
    assert done.returncode == 0
    return int(done.stderr)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("part", range(4))
def test_interrupt_while_the_command_line_is_imported_is_one_line_and_no_traceback(
    imports: int, seed: int, part: int
) -> None:
    assert imports > 100
    at = imports * part // 4 + random.Random(seed + part).randint(1, imports // 4)
    with heard(signal.default_int_handler):
        done = interrupted(at, "--version")
    assert (done.stderr, done.returncode) == (b"abeyance: interrupted\n", 130), f"import {at}"


def test_interrupt_while_the_command_line_is_imported_is_an_object_with_json() -> None:
    with heard(signal.default_int_handler):
        done = interrupted(2, "status", "/nowhere", "--json")
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["code"] == "interrupted"


def test_interrupt_that_is_ignored_is_ignored_while_the_command_line_is_imported(
    imports: int,
) -> None:
    with heard(signal.SIG_IGN):
        assert interrupted(imports // 2, "--version").returncode == 0


def test_package_imports_nothing_before_a_name_of_it_is_asked_for() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import sys, abeyance.actors as a; print('trio' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "False\n"


def test_every_public_name_is_found_where_the_types_say_it_is() -> None:
    source = ast.parse(Path(actors.__file__).read_text("utf-8"))
    (typed,) = (node for node in source.body if isinstance(node, ast.If) and not node.orelse
                and ast.unparse(node.test) == "TYPE_CHECKING")  # fmt: skip
    said = {
        f".{line.module}": tuple(name.name for name in line.names)
        for line in typed.body
        if isinstance(line, ast.ImportFrom)
    }
    assert said == actors._HOMES
    assert sorted(actors.__all__) == sorted([*actors._HOME, "__version__"])
    assert all(getattr(actors, name) is not None for name in actors.__all__)
    assert set(actors.__all__) <= set(dir(actors))


def test_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = actors.nothing  # type: ignore[attr-defined]
