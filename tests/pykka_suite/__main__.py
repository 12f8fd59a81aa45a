"""`./dev pykka-suite`: pykka's own tests, with TrioActor as one more of its runtimes.

Downloads the source of the pykka that is installed, puts `shadow_conftest.py` in the place of its
tests' conftest, and runs them from a scratch directory. Nothing of it is kept here.

Exit code 0: every test passed on a TrioActor that passes on pykka's ThreadingActor, but for the
differences that are named here, and there were many; 1: one did not; 3: the source is not to be had
here, and nothing was tried.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
NEEDS = "pytest-mock>=3.14,<4"
"""What pykka's tests use and ours do not."""
TESTS_MIN = 100
"""Fewer tests of the trio runtime than this are no proof, whatever became of them."""
NOT_TO_BE_HAD = 3

_MADE = "an instance belongs to a cell, so it is made by starting it and not by hand"
_TEXT = "the error says what became of the message and what to do, not only that nobody was found"
_ALIVE = "alive until its supervisor has decided, which is after `on_failure`"
DIFFERENCES = {
    "test_on_failure_failure_causes_actor_to_stop": _ALIVE,
    "test_init_can_be_called_with_arbitrary_arguments": _MADE,
    "test_str_on_raw_actor_contains_actor_class_name": _MADE,
    "test_str_on_raw_actor_contains_actor_urn": _MADE,
    "test_tell_fails_if_actor_is_stopped": _TEXT,
    "test_ask_fails_if_actor_is_stopped": _TEXT,
    "test_ask_nonblocking_fails_future_if_actor_is_stopped": _TEXT,
}
"""Where a TrioActor is not as a ThreadingActor on purpose, each with the reason."""
RACES = ["test_on_failure_failure_causes_actor_to_stop"]
"""Of these the difference is seen where the test's thread looks before the loop has decided."""


class NotToBeHadError(Exception):
    """The source could not be downloaded; the text is the last line of what pip said."""


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotToBeHadError((lines or ["pip failed and said nothing"])[-1])


def fetch(version: str, scratch: Path) -> Path:
    """Download and unpack the source of pykka, and what its tests need; return its directory.

    Raises:
        NotToBeHadError: There is no way to it from here.
    """
    try:
        _pip("install", "--quiet", "--no-deps", "--target", str(scratch / "needs"), NEEDS)
        source = ["--no-deps", "--no-binary", "pykka", f"pykka=={version}"]
        _pip("download", "--quiet", "--dest", str(scratch), *source)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotToBeHadError(str(exc)) from exc
    with tarfile.open(next(scratch.glob("pykka-*.tar.gz"))) as archive:
        archive.extractall(scratch, filter="data")
    root = scratch / f"pykka-{version}"
    if not (root / "tests" / "conftest.py").is_file():
        raise NotToBeHadError(f"the source of pykka {version} comes without its tests")
    return root


def run(root: Path, needs: Path, arguments: list[str]) -> dict[str, dict[str, str]]:
    """Run the tests; what became of each on each runtime, by its name without that."""
    (root / "tests" / "conftest.py").rename(root / "tests" / "pykkas_conftest.py")
    (root / "tests" / "conftest.py").write_text((HERE / "shadow_conftest.py").read_text("utf-8"))
    (root / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\ntimeout = 60\n")
    report = root / "report.xml"
    kept = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(root), str(needs), *filter(None, kept)])
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "pytest_mock"]
    command += ["-p", "no:cacheprovider", "--junitxml", str(report), "tests", *arguments]
    told = {
        "PYTHONPATH": path,
        "PYKKA_SUITE_DIFFERENCES": json.dumps(DIFFERENCES),
        "PYKKA_SUITE_RACES": json.dumps(RACES),
    }
    subprocess.run(command, cwd=root, env=os.environ | told, check=False)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ET.parse(report).iter("testcase") if report.exists() else ():
        name = f"{case.get('classname')}.{case.get('name')}"
        bad = [
            "xfailed" if child.get("type") == "pytest.xfail" else child.tag
            for child in case
            if child.tag in ("failure", "error", "skipped")
        ]
        for runtime in ("trio", "threading"):
            if f"[{runtime}" in name or f"-{runtime}" in name:
                found[name.replace(runtime, "*")][runtime] = bad[0] if bad else "passed"
    return found


def _function(name: str) -> str:
    return name.partition("[")[0].rpartition(".")[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev pykka-suite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each there")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    version = importlib.metadata.version("pykka")
    with tempfile.TemporaryDirectory(prefix="pykka-suite-") as directory:
        scratch = Path(directory)
        try:
            root = fetch(version, scratch)
        except NotToBeHadError as exc:
            print(f"NOT TO BE HAD: the source of pykka {version}, so nothing was tried: {exc}")
            return NOT_TO_BE_HAD
        found = run(root, scratch / "needs", options.arguments)
    passed = [name for name, on in found.items() if on.get("trio") == "passed"]
    bad = [
        name
        for name, on in sorted(found.items())
        if on.get("trio") != "passed" and on.get("threading") == "passed"
    ]
    meant = [name for name in bad if found[name].get("trio") == "xfailed"]
    worse = [f"{name}: {found[name].get('trio', 'not run')}" for name in bad if name not in meant]
    print(
        f"pykka {version}: {len(passed)} of its tests pass with TrioActor, "
        f"{len(meant)} differ on purpose, {len(worse)} fail"
    )
    for name in meant:
        print(f"  differs: {name}: {DIFFERENCES[_function(name)]}")
    for line in worse:
        print(f"  {line}")
    if len(passed) < TESTS_MIN and not options.arguments:
        print(f"  fewer than {TESTS_MIN}: its tests are not what they were")
        worse.append("too few")
    if options.json:
        report = {"pykka": version, "passed": passed, "differs": meant, "worse": worse}
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
