"""`python -m tests.crash --kills 200 --seed 7`: see `harness`. Exit code 1: something was lost.

Without arguments: 200 kills, and a death at each of the first 50 hits of every crash point.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import trio

import abeyance.actors.runtime  # noqa: F401 - its modules declare crash points.
from abeyance.storage.crashpoints import CRASHPOINTS

from .forked import zygote
from .harness import Trial, kill_at_points, kill_at_random


@dataclass
class Summary:
    """What is printed in the end, and with `--json` written."""

    seed: int
    trials: int = 0
    kills: int = 0
    deaths_at_points: dict[str, bool] = field(default_factory=dict)
    unrecorded_calls: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, trial: Trial, label: str) -> None:
        self.trials += 1
        self.kills += trial.kills
        self.unrecorded_calls += [f"{label}: {line}" for line in trial.verdict.unrecorded]
        for line in trial.verdict.violations:
            self.violations.append(f"{label} (evidence in {trial.kept}): {line}")


async def _run(options: argparse.Namespace, summary: Summary) -> None:
    started = time.monotonic()

    def random_trial(trial: Trial) -> None:
        if options.evidence and not trial.number:
            options.evidence.write_bytes(pickle.dumps(trial.observed))
        label = f"trial {trial.number} (seed {trial.seed})"
        summary.take(trial, label)
        _print_line(label, trial)

    def point_trial(trial: Trial, point: str) -> None:
        summary.take(trial, point)
        summary.deaths_at_points[point] = trial.deaths > 0
        _print_line(point if trial.deaths else f"{point} (not reached)", trial)

    async with zygote() as forks:
        if options.kills:
            await kill_at_random(forks, options.kills, options.seed, random_trial)
        if options.points:
            names = sorted(CRASHPOINTS) if options.points == "all" else options.points.split(",")
            await kill_at_points(forks, names, options.hits, point_trial)
    summary.seconds = round(time.monotonic() - started, 1)


def _print_line(label: str, trial: Trial) -> None:
    bad = f", {len(trial.verdict.violations)} VIOLATIONS" if trial.verdict.violations else ""
    lost = f", {len(trial.verdict.unrecorded)} unrecorded call(s)" * bool(trial.verdict.unrecorded)
    print(
        f"{label}: {trial.kills + trial.deaths} death(s), {trial.seconds:.1f} s{lost}{bad}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--kills", type=int, default=0, help="at random instants of the first half")
    parser.add_argument("--seed", type=int, default=None, help="printed; random by default")
    parser.add_argument("--points", help="'all', or names of crash points, comma-separated")
    parser.add_argument("--hits", type=int, default=1, help="each point at its first N hits")
    parser.add_argument("--json", metavar="FILE", help="write the summary there")
    parser.add_argument("--evidence", type=Path, help="keep what the undisturbed trial left")
    options = parser.parse_args()
    if not options.kills and not options.points:
        options.kills, options.points, options.hits = 200, "all", 50
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(32)
    print(f"seed {options.seed}", flush=True)
    summary = Summary(options.seed)
    trio.run(_run, options, summary)
    _report(summary)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump(vars(summary), stream, indent=2)
    return 1 if summary.violations else 0


def _report(summary: Summary) -> None:
    reached = sum(summary.deaths_at_points.values())
    print(
        f"\n{summary.kills} kills and {reached} deaths at crash points in {summary.trials} trials, "
        f"{summary.seconds} s"
    )
    print(f"{len(summary.unrecorded_calls)} calls were on the wire and are not recorded:")
    for line in summary.unrecorded_calls:
        print(f"  {line}")
    print(f"{len(summary.violations)} violations" + (":" if summary.violations else "."))
    for line in summary.violations:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
