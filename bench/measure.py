"""Take two figures in turns and state their ratio; place the process; say how much is enough.

Invariants:
    I1  Subject and peer are timed in the same process, in alternating pieces, so that a machine
        whose speed drifts changes both.
    I2  A ratio is taken piece by piece, and the median of the ratios is what is compared.

Runs in: a child process per suite and placement, so that one suite's garbage, threads and
processor affinity do not reach the next.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

Placement = Literal["free", "pinned"]
"""`free`: the system places the threads. `pinned`: all of the process on one processor."""


class Scale(NamedTuple):
    """How much to measure."""

    rounds: int
    piece_s: float
    """About how long one timed piece of one side takes."""
    quick: bool
    pinned: bool = False
    """Where the process was placed: some rows have a floor for each placement."""


FULL = Scale(rounds=9, piece_s=0.25, quick=False)
QUICK = Scale(rounds=3, piece_s=0.05, quick=True)


class Spread(NamedTuple):
    """Median, smallest and largest of a figure's rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures))


class Bound(NamedTuple):
    """What a figure is held against: `floor` must be reached, `goal` is aimed at."""

    floor: float | None = None
    goal: float | None = None
    better: Literal["higher", "lower"] = "higher"

    def verdict(self, figure: float) -> str:
        """`goal`, `floor`, `below`, or `-` where there is nothing to be held against."""

        def reached(limit: float | None) -> bool:
            if limit is None:
                return False
            return figure >= limit if self.better == "higher" else figure <= limit

        if reached(self.goal):
            return "goal"
        if reached(self.floor):
            return "floor"
        return "-" if self.floor is None and self.goal is None else "below"


UNBOUND = Bound()


@dataclass(frozen=True)
class Result:
    """One row of the table. `figure` is a ratio where there is a peer, else an absolute figure."""

    row: str
    subject: str
    peer: str
    unit: str
    figure: Spread
    bound: Bound = UNBOUND
    subject_figure: Spread | None = None
    peer_figure: Spread | None = None
    beside: dict[str, float] = field(default_factory=dict)
    """Further figures of the same run, by name; the unit ends the name."""
    missing: bool = False
    """Whether nothing was measured, because the peer is not installed."""

    def as_json(self, placement: str) -> dict[str, Any]:
        said = asdict(self) | {"placement": placement}
        for name in ("figure", "bound", "subject_figure", "peer_figure"):
            value = getattr(self, name)
            said[name] = None if value is None else value._asdict()
        return said | {"verdict": self.bound.verdict(self.figure.median)}


def place(placement: Placement) -> bool:
    """Put this process where `placement` says. False: this system cannot."""
    if placement == "free":
        return True
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return True


Piece = Callable[[int], float]
"""Do so many operations; return the seconds they took. The side times itself, so that what it
prepares and clears up is not counted."""
AsyncPiece = Callable[[int], Awaitable[float]]


class _Pacer:
    """Chooses how many operations fill a piece, from the pieces that were timed before."""

    def __init__(self, scale: Scale, first: int, most: int) -> None:
        self._scale = scale
        self._most = most
        self.count = first

    def settle(self, seconds: float) -> bool:
        """Adjust the count by one trial piece. True: it is large enough to be timed."""
        if seconds >= self._scale.piece_s / 3 or self.count >= self._most:
            return True
        grow = min(self._scale.piece_s / max(seconds, 1e-6), 8.0)
        self.count = min(self._most, max(self.count + 1, int(self.count * grow)))
        return False


async def in_turns(
    scale: Scale, subject: AsyncPiece, peer: AsyncPiece, *, first: int = 1000, most: int = 10**7
) -> tuple[list[float], list[float]]:
    """Time both sides in alternating pieces. Returns their operations per second, by round."""
    counts = []
    for side in (subject, peer):
        pacer = _Pacer(scale, first, most)
        while not pacer.settle(await side(pacer.count)):
            pass
        counts.append(pacer.count)
    rates: tuple[list[float], list[float]] = ([], [])
    sides = [(subject, counts[0], rates[0]), (peer, counts[1], rates[1])]
    for number in range(scale.rounds):
        # The order changes each round: what the first side leaves behind meets both.
        for side, count, rate in sides if number % 2 == 0 else reversed(sides):
            gc.collect()
            rate.append(count / await side(count))
    return rates


def in_turns_sync(
    scale: Scale, subject: Piece, peer: Piece, *, first: int = 1000, most: int = 10**7
) -> tuple[list[float], list[float]]:
    """`in_turns` for sides that block the calling thread."""

    def as_async(side: Piece) -> AsyncPiece:
        async def piece(count: int) -> float:
            return side(count)

        return piece

    run = in_turns(scale, as_async(subject), as_async(peer), first=first, most=most)
    try:
        run.send(None)
    except StopIteration as done:
        rates: tuple[list[float], list[float]] = done.value
        return rates
    raise RuntimeError("a blocking side cannot suspend")


def ratio_of(
    row: str,
    subject: str,
    peer: str,
    rates: tuple[list[float], list[float]],
    bound: Bound = UNBOUND,
    *,
    unit: str = "1/s",
    beside: dict[str, float] | None = None,
) -> Result:
    """A row whose figure is subject over peer: rates where more is better, costs where less is."""
    mine, theirs = rates
    if bound.better == "lower":
        ratios = [b / a for a, b in zip(mine, theirs, strict=True)]
    else:
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return Result(
        row, subject, peer, unit, Spread.of(ratios), bound, Spread.of(mine), Spread.of(theirs),
        beside or {},
    )  # fmt: skip


def not_installed(row: str, subject: str, peer: str) -> Result:
    """A row without figures, whose peer the dependency group `bench` would bring."""
    return Result(row, subject, peer, "1/s", Spread(0.0, 0.0, 0.0), missing=True)


def seconds_since(start: float) -> float:
    return time.perf_counter() - start
