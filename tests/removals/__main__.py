"""`./dev removals [ID ...]`: delete each guard of `tests/removals/*.toml` and see its test fail.

A tag on a test proves nothing; a test that passes without the code it is about proves less. Each
removal is tried in a copy of the project: the test must pass there unchanged, and fail by what the
code then does when the guard is gone.

Exit code 1: a test passed without its guard. 2: the table cannot be tried as it stands, or a test
does not pass unchanged.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .table import MalformedError, Removal, Table, read
from .trial import Copy, Outcome, copy_project

ROOT = Path(__file__).parents[2]
_BASELINE_S_MAX = 1200.0


@dataclass
class Report:
    """What is printed in the end, and with `--json` written."""

    seed: int
    tried: list[dict[str, object]] = field(default_factory=list)
    untried: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def survivors(self) -> list[dict[str, object]]:
        return [line for line in self.tried if line["how"] == "passed"]

    @property
    def exit_code(self) -> int:
        return 1 if self.survivors() else 2 if self.problems else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev removals", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("ids", nargs="*", metavar="ID", help="ids, or names of tests; default: all")
    parser.add_argument("--changed", action="store_true", help="guards or tests in changed files")
    parser.add_argument("--base", help="what --changed compares with; default: the fork from main")
    parser.add_argument("--sample", type=int, metavar="N", help="only N, drawn by the seed")
    parser.add_argument("--seed", type=int, help="of the sample and of random tests; printed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies side by side")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="of one test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--project", type=Path, default=ROOT, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _changed(root: Path, base: str | None) -> set[str]:
    """The files that differ from where this branch left main, in the tree or in commits."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    base = base or git("merge-base", "HEAD", "main") or "HEAD"
    new = git("ls-files", "-o", "--exclude-standard")
    return set(git("diff", "--name-only", base).splitlines() + new.splitlines())


def _selected(table: Table, options: argparse.Namespace) -> list[Removal]:
    chosen = list(table.removals)
    if options.ids:
        known = {i for r in chosen for i in (*r.ids, r.function)} | set(table.untried)
        if unknown := sorted(set(options.ids) - known):
            raise MalformedError([f"no removal is of {name}" for name in unknown])
        wanted = set(options.ids)
        chosen = [r for r in chosen if wanted & {*r.ids, r.function}]
    if options.changed:
        changed = _changed(options.project, options.base)
        chosen = [r for r in chosen if {r.file, r.test.partition("::")[0]} & changed]
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    return chosen


class _Progress:
    """One line that is written over on a terminal, and a line each elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def step(self, removal: Removal, outcome: Outcome) -> None:
        with self._lock:
            self._done += 1
            line = f"[{self._done}/{self._total}] {outcome.how:7} {removal.label}"
            if sys.stderr.isatty():
                print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _try_all(chosen: list[Removal], copies: list[Copy], timeout_s: float) -> list[Outcome]:
    outcomes: list[Outcome] = [Outcome("broken", "never tried")] * len(chosen)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(chosen)):
        waiting.put(number)
    progress = _Progress(len(chosen))

    def work(copy: Copy) -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            outcomes[number] = copy.without(chosen[number], timeout_s)
            progress.step(chosen[number], outcomes[number])

    workers = [threading.Thread(target=work, args=(copy,), daemon=True) for copy in copies]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    progress.end()
    return outcomes


def _run(chosen: list[Removal], options: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="removals-") as scratch:
        first = Path(scratch) / "0"
        copy_project(options.project, first)
        copies = [Copy(first, options.seed)]
        tests = sorted({removal.test for removal in chosen})
        print(f"{len(tests)} tests unchanged ...", file=sys.stderr, flush=True)
        before = copies[0].unchanged(tests, options.timeout, _BASELINE_S_MAX)
        for test, outcome in before.items():
            if outcome.how != "passed":
                report.problems.append(f"{test} unchanged: {outcome.how}, {outcome.why}")
        good = [removal for removal in chosen if before[removal.test].how == "passed"]
        for number in range(1, max(1, min(options.jobs, len(good)))):
            shutil.copytree(first, Path(scratch) / str(number), symlinks=True)
            copies.append(Copy(Path(scratch) / str(number), options.seed))
        for removal, outcome in zip(good, _try_all(good, copies, options.timeout), strict=True):
            report.tried.append({"label": removal.label, **asdict(removal), **asdict(outcome)})
            if outcome.how == "broken":
                report.problems.append(f"{removal.label}: {removal.test}: {outcome.why}")


def _print(report: Report) -> None:
    width = max([len(str(line["label"])) for line in report.tried] or [0])
    for line in report.tried:
        label = f"{line['label']:{width}}"
        print(f"{line['how']:7} {label}  {line['test']}\n{'':7} {'':{width}}  {line['why']}")
    for name, reason in sorted(report.untried.items()):
        print(f"untried {name}: {reason}")
    for problem in report.problems:
        print(f"problem {problem}")
    for line in report.survivors():
        print(
            f"SURVIVES {line['label']}: {line['test']} passes without its guard in {line['file']}"
        )
    fell = sum(line["how"] in ("failed", "hung") for line in report.tried)
    survive = len(report.survivors())
    print(
        f"{fell} of {len(report.tried)} removals fail their test, {survive} survive, "
        f"{len(report.untried)} untried, {len(report.problems)} problems; "
        f"seed {report.seed}, {report.seconds} s"
    )


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
    began = time.monotonic()
    report = Report(options.seed)
    try:
        table = read(options.project)
        chosen = _selected(table, options)
    except MalformedError as exc:
        report.problems = exc.problems
    else:
        wanted = set(options.ids)
        report.untried = {i: r for i, r in table.untried.items() if not wanted or i in wanted}
        print(f"seed {options.seed}, {len(chosen)} of {len(table.removals)} removals", flush=True)
        if chosen:
            _run(chosen, options, report)
    report.seconds = round(time.monotonic() - began, 1)
    _print(report)
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
