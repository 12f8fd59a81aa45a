"""The measurements' own arithmetic, and that the one command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import table
from bench.measure import QUICK, Bound, Result, Scale, Spread, in_turns_sync, ratio_of
from bench.suites import SUITES

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("bound", "figure", "verdict"),
    [
        (Bound(2, 3), 3.0, "goal"),
        (Bound(2, 3), 2.9, "floor"),
        (Bound(2, 3), 1.9, "below"),
        (Bound(2.5, 2, "lower"), 2.0, "goal"),
        (Bound(2.5, 2, "lower"), 2.4, "floor"),
        (Bound(2.5, 2, "lower"), 2.6, "below"),
        (Bound(None, 2, "lower"), 2.6, "below"),
        (Bound(), 2.6, "-"),
    ],
)
def test_verdict_tells_goal_from_floor_from_below(
    bound: Bound, figure: float, verdict: str
) -> None:
    assert bound.verdict(figure) == verdict


def test_ratio_is_taken_round_by_round_and_not_of_the_medians() -> None:
    result = ratio_of("r", "s", "p", ([10.0, 40.0, 30.0], [5.0, 10.0, 30.0]))
    assert result.figure == Spread(median=2.0, least=1.0, most=4.0)


def test_ratio_of_costs_is_the_inverse_of_the_ratio_of_rates() -> None:
    result = ratio_of("r", "s", "p", ([10.0], [20.0]), Bound(3, 2, "lower"))
    assert result.figure.median == 2.0


@pytest.mark.slow
def test_pieces_alternate_and_grow_until_they_can_be_timed() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str, cost_s: float):  # type: ignore[no-untyped-def]
        def piece(count: int) -> float:
            calls.append((name, count))
            return count * cost_s

        return piece

    rates = in_turns_sync(
        Scale(rounds=3, piece_s=1.0, quick=True), side("a", 1e-3), side("b", 1e-4), first=10
    )
    assert [round(rate) for rate in rates[0]] == [1000] * 3
    assert [round(rate) for rate in rates[1]] == [10_000] * 3
    timed = calls[-6:]
    assert [name for name, _ in timed] == ["a", "b", "b", "a", "a", "b"]
    assert all(count * (1e-3 if name == "a" else 1e-4) >= 1 / 3 for name, count in timed)


def test_markdown_has_the_placements_of_a_row_side_by_side_and_its_misses_in_bold() -> None:
    def of(figure: float, bound: Bound, unit: str = "1/s") -> Result:
        even = Spread(figure, figure, figure)
        return Result("a-row", "s", "p", unit, even, bound, Spread(43.0, 43, 43), Spread(9.0, 9, 9))

    machine = {
        "taken": "2026-12-01T10:00:00+00:00",
        "python": "3.11.7",
        "system": "Linux 6 x86_64",
        "processors": 2,
        "load_before": [0.1, 0, 0],
        "load_after": [0.5, 0, 0],
    }
    results = [
        of(7.0, Bound(6, 10)).as_json("free"),
        of(8.0, Bound(10, 20)).as_json("pinned"),
    ]
    head, _, _, _, row = table.markdown(results, machine)
    assert head.startswith("2026-12-01, 2 processors, CPython 3.11.7")
    assert row == "| `a-row` | 7 | **8** | ≥ 6 / ≥ 10 | ≥ 10 / ≥ 20 |"
    cost = of(5.0, Bound(), "us").as_json("free")
    assert table.markdown([cost], machine)[-1] == "| `a-row` | 5 (43 us) | – | – | – |"
    time = Result("stall", "s", "", "ms", Spread(3.5, 1, 4), Bound(5, 3, "lower"))
    assert table.markdown([time.as_json("free")], machine)[-1] == (
        "| `stall` | 3.5 ms | – | ≤ 5 | ≤ 3 |"
    )


def test_table_names_every_row_and_what_it_was_measured_beside() -> None:
    result = Result(
        "tell", "a tell", "a channel", "1/s", Spread(12.3, 11, 14), Bound(12, 18),
        Spread(1.2e6, 1e6, 2e6), Spread(1e5, 1e5, 1e5), {"stall_ms": 1.5},
    )  # fmt: skip
    text = "\n".join(table.lines([result.as_json("free")]))
    for part in (
        "12.3 x",
        "11-14",
        "1.2 M 1/s",
        "≥ 12",
        "≥ 18",
        "floor",
        "a channel",
        "stall_ms 1.5",
    ):
        assert part in text


@pytest.mark.slow
def test_command_writes_what_it_prints(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", "ask-trio", "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ask-trio" in done.stdout
    said = json.loads(path.read_text())
    assert {(r["row"], r["placement"]) for r in said["results"]} >= {("ask-trio", "free")}
    assert said["failed"] == []


def test_command_refuses_a_name_that_no_row_has() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no suite or row begins with nothing" in done.stderr


@pytest.mark.parametrize("suite", ["thespian", "xoscar"])
def test_row_says_so_where_its_peer_is_not_installed(
    suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, suite, None)
    (found,) = (s for s in SUITES if s.name == suite)
    results = found.run(QUICK)
    assert tuple(result.row for result in results) == found.rows
    lines = table.lines([result.as_json("free") for result in results])
    for row in found.rows:
        (line,) = (line for line in lines if line.startswith(f"{row} ") and " free " in line)
        assert "not installed" in line
