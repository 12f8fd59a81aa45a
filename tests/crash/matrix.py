"""`python -m tests.crash.matrix --sample 40 --seed 7`: the crash matrix of messages that wait.

A trial is lives of one host on a fresh state directory: in each but the last something dies at one
named place, the last one comes to rest; then everything is read back and judged. The places are
found by counting: an undisturbed life passes each writer's commit, each crash point, each step of
the turn's tasks. Without `--sample` every place of every variant is tried once, with each of what
can die there. Exit code 1: something did not hold.

    SIGKILL      at every crash point, as often as it is passed, and at every step of the turn
    kill         of each actor, and of the agent's group, at every step and every commit
    slice        where many messages are out, both at every step in which their rows are made
    refuse       the store refuses the n-th write

Pairs of faults, one a life, are drawn by the seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .deaths import BESIDE, VICTIMS
from .judge import judge
from .life import Setting
from .lives import live

VARIANTS = {
    "plain": "messages of all kinds, joined and held",
    "held": "a stated wait between two rounds of the turn",
    "quiesced": "a quiesce cuts the turn off, and a resume follows",
    "big": "a batch of 2,101 messages in flight",
    "small": "a store that takes 128 operations a request",
    "pairs": "an operator's tools, on the idle slot and behind a live turn",
    "shared": "two agents in one slot, and messages for both",
    "closing": "a conversation that is closed while its turn lives",
    "edited": "an operator's edits, under a hold and at rest, one of them undone",
    "decided": "a call that waits for approval, another model, and a turn that is cancelled",
    "leaving": "two agents of one slot that are removed, one after the other",
}
SLICED = ("big",)
"""Variants of which each step in which the slot makes rows is a place, too."""
PAIRS_A_VARIANT = 40
PROGRESS_EVERY = 25


@dataclass(frozen=True)
class Trial:
    """What dies where, a life each."""

    variant: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.variant}: {', then '.join(self.faults) or 'undisturbed'}"


@dataclass
class Outcome:
    """What a trial came to."""

    violations: list[str] = field(default_factory=list)
    deaths: int = 0
    hits: dict[str, int] = field(default_factory=dict)


def play(trial: Trial) -> Outcome:
    """Play a trial in a directory of its own, which is kept where something did not hold."""
    directory = Path(tempfile.mkdtemp(prefix="abeyance-matrix-"))
    outcome = Outcome()
    for number, fault in enumerate((*trial.faults, ""), 1):
        status, report, error = live(Setting(directory, trial.variant, number, fault))
        outcome.violations += report.problems
        if status == 0:
            outcome.hits = report.hits
            outcome.violations += judge(directory, trial.variant, report)
            break
        if status != -9:
            outcome.violations.append(f"life {number} ended with {error or status}")
            break
        outcome.deaths += 1
    if outcome.violations:
        outcome.violations.append(f"evidence in {directory}")
    else:
        shutil.rmtree(directory)
    return outcome


# -- the matrix ----------------------------------------------------------------------------------


def matrix(variant: str, hits: dict[str, int]) -> Iterator[Trial]:
    """Every single fault of a variant, told from what an undisturbed life passes."""
    for name, count in sorted(hits.items()):
        if name in ("step", "commit", "slice"):
            continue
        for nth in range(1, count + 1):
            yield Trial(variant, (f"point {name} {nth}",))
    for nth in range(1, hits["step"] + 1):
        yield Trial(variant, (f"step {nth}",))
    for where in ("step", "commit"):
        for nth in range(1, hits[where] + 1):
            for victim in (*VICTIMS, *BESIDE.get(variant, ())):
                yield Trial(variant, (f"kill {victim} {where} {nth}",))
    if variant in SLICED:
        for nth in range(1, hits["slice"] + 1):
            yield Trial(variant, (f"slice {nth}",))
            for victim in ("slot", "group"):
                yield Trial(variant, (f"kill {victim} slice {nth}",))
    for nth in range(1, hits["commit"] + 1):
        yield Trial(variant, (f"refuse {nth}",))


def pairs(trials: list[Trial], chance: random.Random, count: int) -> Iterator[Trial]:
    """Trials of two faults, a life each; the first must be a death for the second to be met."""
    deadly = [trial for trial in trials if trial.faults[0].startswith(("point", "step"))]
    for _ in range(count if deadly else 0):
        first, second = chance.choice(deadly), chance.choice(trials)
        yield Trial(first.variant, (*first.faults, *second.faults))


def plan(variants: list[str], sample: int | None, seed: int) -> tuple[list[Trial], list[str]]:
    """The trials of a run, and what did not hold in the undisturbed lives."""
    chance, trials, found = random.Random(seed), [], []
    for variant in variants:
        outcome = play(Trial(variant, ()))
        found += [f"{variant}, undisturbed: {line}" for line in outcome.violations]
        if not outcome.hits:
            continue
        single = list(matrix(variant, outcome.hits))
        if sample is not None:
            # A quarter are pairs; the rest is spread over the kinds of faults.
            share = max(1, sample // len(variants))
            twice = list(pairs(single, chance, share // 4))
            trials += _spread(single, chance, share - len(twice)) + twice
        else:
            trials += single + list(pairs(single, chance, PAIRS_A_VARIANT))
    # So that a run that is cut short has tried something of everything.
    chance.shuffle(trials)
    return trials, found


def _spread(trials: list[Trial], chance: random.Random, count: int) -> list[Trial]:
    """Draw trials so that every kind of fault has its turn, however few of it there are."""
    kinds: dict[str, list[Trial]] = {}
    for trial in trials:
        words = trial.faults[0].split()
        kinds.setdefault(" ".join(words[:2]) if len(words) > 2 else words[0], []).append(trial)
    names = sorted(kinds)
    chance.shuffle(names)
    drawn = []
    for place in range(count):
        left = kinds[names[place % len(names)]]
        if left:
            drawn.append(left.pop(chance.randrange(len(left))))
    return drawn


@dataclass
class Summary:
    """What a run came to; written with `--json`."""

    seed: int
    trials: int = 0
    deaths: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run(trials: list[Trial], summary: Summary, *, jobs: int = 1, within_s: float = 1e9) -> None:
    """Play trials, with a line of progress; no new one begins when the time is up."""
    started = time.monotonic()
    for place, (trial, outcome) in enumerate(_played(trials, jobs), 1):
        summary.trials += 1
        summary.deaths += outcome.deaths
        summary.violations += [f"{trial}: {line}" for line in outcome.violations]
        text = (
            f"[{place}/{len(trials)}] {summary.deaths} deaths, "
            f"{len(summary.violations)} violations, {time.monotonic() - started:.0f} s; {trial}"
        )
        if sys.stdout.isatty():
            print(f"\r\x1b[2K{text[:110]}", end="", flush=True)
        elif place % PROGRESS_EVERY == 0 or place == len(trials) or outcome.violations:
            print(text, flush=True)
        for line in outcome.violations:
            print(f"\n  {trial}: {line}", flush=True)
        if time.monotonic() - started > within_s:
            break
    summary.seconds = round(time.monotonic() - started, 1)


def _played(trials: list[Trial], jobs: int) -> Iterator[tuple[Trial, Outcome]]:
    if jobs == 1:
        yield from map(_play, trials)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_play, trials)


def _play(trial: Trial) -> tuple[Trial, Outcome]:
    return trial, play(trial)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.matrix")
    parser.add_argument("--sample", type=int, help="so many trials, drawn by the seed; else all")
    parser.add_argument("--seed", type=int, default=None, help="printed; random by default")
    parser.add_argument("--variants", default=",".join(VARIANTS), help=", ".join(VARIANTS))
    parser.add_argument(
        "--trial", action="append", help="only this one, as it was printed: 'plain: step 3'"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument(
        "--within-s", type=float, default=1e9, help="begin no trial after so many seconds"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(31)
    print(f"seed {options.seed}", flush=True)
    summary = Summary(options.seed)
    if options.trial:
        parts = [trial.partition(": ") for trial in options.trial]
        trials = [Trial(variant, tuple(faults.split(", then "))) for variant, _, faults in parts]
    else:
        trials, summary.violations = plan(options.variants.split(","), options.sample, options.seed)
    run(trials, summary, jobs=options.jobs, within_s=options.within_s)
    print(
        f"\n{summary.trials} of {len(trials)} trials, {summary.deaths} deaths, "
        f"{len(summary.violations)} violations, {summary.seconds} s, seed {summary.seed}"
    )
    for line in summary.violations:
        print(f"  {line}")
    if options.json:
        options.json.write_text(json.dumps(vars(summary), indent=2))
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())
