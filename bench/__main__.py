"""`python -m bench`: run every suite in both placements, print a table, write JSON.

Each suite runs in a child process for each placement, so that processor affinity, threads and
garbage of one do not reach the next. A suite that fails is named at the end, and the exit code
is 1; the others still run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import table
from .measure import FULL, QUICK, Placement, Scale, place
from .suites import SUITES, Suite

_PLACEMENTS: tuple[Placement, ...] = ("free", "pinned")
_RESULTS = Path(__file__).with_name("results")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a look: fewer and shorter rounds")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="suites or rows that begin with NAME"
    )
    parser.add_argument("--placement", choices=_PLACEMENTS, help="one placement instead of both")
    parser.add_argument("--json", metavar="FILE", type=Path, help="where to write the results")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table as docs/performance.md has it"
    )
    parser.add_argument(
        "--read", metavar="FILE", type=Path, help="print what an earlier run wrote; measure nothing"
    )
    parser.add_argument("--list", action="store_true", help="name the suites and their rows")
    parser.add_argument("--child", metavar="SUITE", help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(suite: Suite, placement: Placement, scale: Scale) -> int:
    """Run one suite here; its results are the last line of the output."""
    placed = place(placement)
    results = suite.run(scale._replace(pinned=placement == "pinned")) if placed else []
    print(json.dumps([result.as_json(placement) for result in results]))
    return 0


def _chosen(only: list[str] | None) -> list[Suite]:
    if not only:
        return [suite for suite in SUITES if not suite.is_long]
    chosen = [
        suite
        for suite in SUITES
        if any(name.startswith(wanted) for wanted in only for name in (suite.name, *suite.rows))
    ]
    if not chosen:
        raise SystemExit(f"bench: no suite or row begins with {', '.join(only)}; see --list")
    return chosen


def _run(suite: Suite, placement: Placement, quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Results of one suite in a process of its own, or why there are none."""
    command = [sys.executable, "-m", "bench", "--child", suite.name, "--placement", placement]
    try:
        done = subprocess.run(
            command + ["--quick"] * quick,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=suite.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f"not done after {suite.timeout_s} s"
    if done.returncode:
        return [], done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results, ""


def _machine() -> dict[str, Any]:
    return {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load_before": list(os.getloadavg()),
    }


def _all(arguments: argparse.Namespace) -> int:
    machine = _machine()
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    placements = [arguments.placement] if arguments.placement else list(_PLACEMENTS)
    jobs = [(s, p) for s in _chosen(arguments.only) for p in placements]
    for number, (suite, placement) in enumerate(jobs, 1):
        start = time.monotonic()
        print(f"[{number}/{len(jobs)}] {suite.name}, {placement} ...", end="", file=sys.stderr)
        sys.stderr.flush()
        taken, trouble = _run(suite, placement, arguments.quick)
        print(f" {time.monotonic() - start:.0f} s {trouble and 'FAILED'}", file=sys.stderr)
        results += taken
        if trouble:
            failed.append(f"{suite.name}, {placement}: {trouble}")
    machine["load_after"] = list(os.getloadavg())
    if results:
        _print(results, machine, arguments)
    path = arguments.json or _RESULTS / f"{machine['taken'].replace(':', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"machine": machine, "quick": arguments.quick, "results": results, "failed": failed}
    path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")
    for trouble in failed:
        print(f"bench: {trouble}", file=sys.stderr)
    return 1 if failed else 0


def _print(
    results: list[dict[str, Any]], machine: dict[str, Any], arguments: argparse.Namespace
) -> None:
    lines = table.markdown(results, machine) if arguments.markdown else table.lines(results)
    print("\n".join(lines))


def main() -> int:
    arguments = _parse()
    if arguments.read is not None:
        said = json.loads(arguments.read.read_text(encoding="utf-8"))
        _print(said["results"], said["machine"], arguments)
        return 0
    if arguments.list:
        for suite in SUITES:
            print(f"{suite.name}: {', '.join(suite.rows)}")
        return 0
    if arguments.child:
        (suite,) = (suite for suite in SUITES if suite.name == arguments.child)
        return _child(suite, arguments.placement, QUICK if arguments.quick else FULL)
    return _all(arguments)


if __name__ == "__main__":
    sys.exit(main())
