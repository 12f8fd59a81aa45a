"""`python -m tests.crash.run_matrix --sample 40 --seed 7`: runs and SIGKILL, and runs and a race.

A trial is lives of a host on a fresh state directory, stage by stage of a scenario; in one stage
the process dies as by SIGKILL at one named place, and that stage is lived again. Then the rows and
the effects are judged. The places are found by counting: an undisturbed life passes each commit of
the writer (before and behind it) and each crash point of a run. Without `--sample` every place of
every stage is tried once.

    --race 4x1000    so many processes take up so many runs that are due, at once

Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Row

from .run_life import ASKED, ITEMS, KEY, REAL_S_MAX, Stage, count, fork

SCENARIOS: dict[str, tuple[Stage, ...]] = {
    "wall": (Stage(0, (1,), start=True), Stage(1, (1,))),
    "second wall": (Stage(0, (1, 2), start=True), Stage(1, (1, 2)), Stage(2, (1, 2))),
    "unknown": (Stage(0, (None,), start=True), Stage(0, (), ("resume",))),
    "fallback": (Stage(0, (None,), start=True), Stage(0, (None,), ("fallback",))),
    "cancel": (Stage(0, (1,), start=True), Stage(0, (1,), ("cancel",)), Stage(1)),
    "decided": (
        Stage(0, (1,), start=True, in_doubt="recover"),
        Stage(1, (1,), in_doubt="recover"),
    ),
    "given up": (Stage(0, start=True, agent="elsewhere"), Stage(0, agent="here")),
}
WALLS = {"second wall": 2, "given up": 0}
CANCELLED = ("cancel",)
BY_AN_OPERATOR = ("decided",)
ASKING = ("given up",)
"""An agent's turn is the last item but the finaliser, and no effect."""
KILLED = -signal.SIGKILL
PLACES = ("run.", "writer.")
PROGRESS_EVERY = 25


class Trial(NamedTuple):
    """In which stage of which scenario the process dies, and where."""

    scenario: str
    stage: int
    point: str

    def __str__(self) -> str:
        return f"{self.scenario}, stage {self.stage}, {self.point}"


def plan() -> list[Trial]:
    """Every place that the undisturbed lives of the scenarios pass."""
    trials = []
    for scenario, stages in SCENARIOS.items():
        directory = Path(tempfile.mkdtemp(prefix="abeyance-runs-"))
        for number, stage in enumerate(stages):
            for name, hits in sorted(count(directory, stage).items()):
                if name.startswith(PLACES):
                    trials += [
                        Trial(scenario, number, f"{name}:{nth}") for nth in range(1, hits + 1)
                    ]
        shutil.rmtree(directory)
    return trials


def play(trial: Trial) -> list[str]:
    """Play a trial in a directory of its own, which is kept where something did not hold."""
    directory = Path(tempfile.mkdtemp(prefix="abeyance-runs-"))
    found = []
    for number, stage in enumerate(SCENARIOS[trial.scenario]):
        if number == trial.stage:
            status = _ends(fork(directory, stage, trial.point))
            # The count of commits is not the same each time: a batch may hold two requests.
            if status not in (0, KILLED):
                found.append(f"the life that was to die ended with {status}")
        status = _ends(fork(directory, stage))
        if status != 0:
            found.append(f"stage {number} ended with {status}")
    found += judge(directory, trial.scenario)
    if found:
        found.append(f"evidence in {directory}")
    else:
        shutil.rmtree(directory)
    return found


def _ends(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def rows(directory: Path, table: str) -> list[tuple[Any, Any]]:
    store = LmdbStore.open(directory / "state", clock_ms=lambda: 0, read_only=True)
    try:
        return [
            (key, row.record if isinstance(row, Row) else row) for key, row in store.scan(table)
        ]
    finally:
        store.close()


def effects(directory: Path) -> Counter[str]:
    return Counter((directory / "effects").read_text().splitlines())


def judge(directory: Path, scenario: str) -> list[str]:
    """Hold what is left of a trial against every promise."""
    found = []
    runs = rows(directory, "runs")
    if [key for key, _ in runs] != [(KEY, 1)]:
        return [f"the runs are {[key for key, _ in runs]}"]
    run = runs[0][1]
    ends = "cancelled" if scenario in CANCELLED else "completed"
    if run.state != ends:
        found.append(f"it is {run.state}, not {ends}: {run.reason}")
    places = [*range(2 if scenario in CANCELLED else len(ITEMS))]
    if scenario in ASKING:
        places[-1] += 1
    expected = Counter(f"{KEY}@1/{number}" for number in places)
    if effects(directory) != expected:
        found.append(f"the effects are {dict(effects(directory))}")
    if run.walls != (walls := WALLS.get(scenario, 1)):
        found.append(f"it met {run.walls} walls, not {walls}")
    steps = [record for _, record in rows(directory, "run_transitions")]
    if any(one.after != two.before for one, two in pairwise(steps)):
        found.append("its history has a gap")
    if scenario in ASKING and not any(
        record.agent == ASKED[1] and record.state == "done"
        for _, record in rows(directory, "run_items")
    ):
        found.append("its agent's turn is not recorded")
    woken = sum(step.before.startswith("waiting") for step in steps if step.before)
    if woken != walls:
        found.append(f"it was woken {woken} times for {walls} walls")
    if [step.after for step in steps].count(ends) != 1 or steps[-1].after != ends:
        found.append("its end is not the last of its history, once")
    asked = any(step.after == "recovery_required" for step in steps)
    finaliser_in_doubt = any(
        record.path == ITEMS[-1] and record.attempts > 1
        for _, record in rows(directory, "run_items")
    )
    if asked and scenario not in BY_AN_OPERATOR and not (finaliser_in_doubt or _was_final(steps)):
        found.append("it needed an operator")
    if (left := [key[0] for key, _ in rows(directory, "run_index")]) != [ends]:
        found.append(f"the index has it as {left}")
    if any(record.is_open for _, record in rows(directory, "run_keys")):
        found.append("its key is still taken")
    return found


def _was_final(steps: list[Any]) -> bool:
    """Whether what needed an operator was the finaliser, whose policy that is: it came last."""
    states = [step.after for step in steps]
    return states.count("recovery_required") == 1 and states[-4:] == [
        "recovery_required",
        "resuming",
        "running",
        "completed",
    ]


def race(processes: int, runs: int) -> tuple[list[str], str]:
    """Let processes take up runs that are due, at once; what did not hold, and the figures."""
    directory = Path(tempfile.mkdtemp(prefix="abeyance-race-"))
    keys = tuple(f"r{number:05}" for number in range(runs))
    within_s = REAL_S_MAX + runs
    status = _ends(fork(directory, Stage(0, (1,), start=True), keys=keys, within_s=within_s))
    found = [] if status == 0 else [f"the start ended with {status}"]
    began = time.monotonic()
    stage = Stage(1, (1,))
    pids = [fork(directory, stage, keys=(), within_s=within_s) for _ in range(processes)]
    found += [f"a process ended with {status}" for pid in pids if (status := _ends(pid)) != 0]
    seconds = time.monotonic() - began
    ended = Counter(record.state for _, record in rows(directory, "runs"))
    if ended != {"completed": runs}:
        found.append(f"the runs are {dict(ended)}")
    expected = Counter(f"{key}@1/{number}" for key in keys for number in range(len(ITEMS)))
    if (missing := expected - effects(directory)) or (effects(directory) - expected):
        found.append(f"{missing.total()} effects are missing, others are there twice")
    taken = Counter(
        key[0] for key, step in rows(directory, "run_transitions") if step.after == "resuming"
    )
    if taken != Counter(keys):
        found.append("not each was taken up once")
    shares = Counter(record.nonce for key, record in rows(directory, "owners") if key[0] == "run")
    figures = (
        f"{processes} processes, {runs:,} runs, {seconds:.1f} s, "
        f"taken up by each: {sorted(shares.values())}"
    )
    if not found:
        shutil.rmtree(directory)
    return found, figures


def _play(trial: Trial) -> tuple[Trial, list[str]]:
    return trial, play(trial)


def _played(trials: list[Trial], jobs: int) -> Iterator[tuple[Trial, list[str]]]:
    if jobs == 1:
        yield from map(_play, trials)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_play, trials)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.run_matrix")
    parser.add_argument("--sample", type=int, help="so many trials, drawn by the seed; else all")
    parser.add_argument("--seed", type=int, default=None, help="printed; random by default")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument(
        "--within-s", type=float, default=1e9, help="begin no trial after so many seconds"
    )
    parser.add_argument("--race", action="append", default=[], metavar="PxN", help="4x1000")
    parser.add_argument("--only-race", action="store_true", help="no trials")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(31)
    print(f"seed {options.seed}", flush=True)
    violations: list[str] = []
    if not options.only_race:
        violations += trials_of(options)
    for pair in options.race:
        processes, _, runs = pair.partition("x")
        found, figures = race(int(processes), int(runs))
        print(f"race: {figures}, {len(found)} violations", flush=True)
        violations += [f"race {pair}: {line}" for line in found]
    for line in violations:
        print(f"  {line}")
    return 1 if violations else 0


def trials_of(options: argparse.Namespace) -> list[str]:
    """Play what was asked for, with a line of progress; no new trial begins when the time is up."""
    every = plan()
    chance = random.Random(options.seed)
    trials = chance.sample(every, min(options.sample or len(every), len(every)))
    began, violations, played = time.monotonic(), [], 0
    for trial, found in _played(trials, options.jobs):
        played += 1
        violations += [f"{trial}: {line}" for line in found]
        if played % PROGRESS_EVERY == 0 or found:
            print(f"[{played}/{len(trials)}] {len(violations)} violations; {trial}", flush=True)
        if time.monotonic() - began > options.within_s:
            break
    print(
        f"{played} of {len(trials)} trials of {len(every)}, {len(violations)} violations, "
        f"{time.monotonic() - began:.0f} s, seed {options.seed}"
    )
    return violations


if __name__ == "__main__":
    sys.exit(main())
