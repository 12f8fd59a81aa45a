"""The table a person reads, from results as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def figure(value: float) -> str:
    """Three significant digits, without an exponent up to a billion."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e6:
        return f"{value / 1e6:.3g} M"
    if magnitude >= 1e4:
        return f"{value / 1e3:.3g} k"
    return f"{value:.3g}" if magnitude < 1000 else f"{value:.0f}"


def _bound(result: dict[str, Any], which: str) -> str:
    limit = result["bound"][which]
    if limit is None:
        return "-"
    return ("≥ " if result["bound"]["better"] == "higher" else "≤ ") + f"{limit:g}"


_HEAD = ("row", "placed", "figure", "min-max", "subject", "peer", "floor", "goal", "met")
_MET = {"goal": "goal", "floor": "floor", "below": "NO", "-": ""}


def lines(results: Iterable[dict[str, Any]]) -> list[str]:
    """The table's lines, and what was measured beside a row under it."""
    rows: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for result in results:
        least, most = result["figure"]["least"], result["figure"]["most"]
        sides = [
            "-" if result[side] is None else figure(result[side]["median"]) + " " + result["unit"]
            for side in ("subject_figure", "peer_figure")
        ]
        ratio = result["subject_figure"] is not None
        shown = figure(result["figure"]["median"]) + (" x" if ratio else " " + result["unit"])
        spread = f"{figure(least)}-{figure(most)}"
        if result.get("missing"):
            shown, spread = "not installed", "-"
        cells = (
            result["row"],
            result["placement"],
            shown,
            spread,
            *sides,
            _bound(result, "floor"),
            _bound(result, "goal"),
            _MET[result["verdict"]],
        )
        rows.append((cells, result))
    widths = [
        max(len(c) for c in column) for column in zip(_HEAD, *(r for r, _ in rows), strict=True)
    ]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(
            cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
        ).rstrip()

    out = [line(_HEAD), line(tuple("-" * width for width in widths))]
    for cells, result in rows:
        out.append(line(cells))
        if result["beside"]:
            beside = ", ".join(f"{name} {figure(v)}" for name, v in result["beside"].items())
            out.append(f"    {beside}")
    out.append("")
    seen: dict[str, dict[str, Any]] = {}
    for _, result in rows:
        seen.setdefault(result["row"], result)
    width = max((len(name) for name in seen), default=0)
    for name, result in seen.items():
        beside = f"  beside  {result['peer']}" if result["peer"] else ""
        out.append(f"{name.ljust(width)}  {result['subject']}{beside}")
    return out


def markdown(results: Iterable[dict[str, Any]], machine: dict[str, Any]) -> list[str]:
    """The table of docs/performance.md: a row each, its placements side by side, misses in bold.

    Args:
        machine: As the results' file holds it.
    """
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results:
        rows.setdefault(result["row"], {})[result["placement"]] = result
    load = " / ".join(f"{machine[when][0]:.2f}" for when in ("load_before", "load_after"))
    out = [
        f"{machine['taken'][:10]}, {machine['processors']} processors, CPython "
        f"{machine['python']}, {machine['system']}; load before / after {load}.",
        "",
        "| row | free | pinned | floor | goal |",
        "|---|--:|--:|--:|--:|",
    ]
    for row, placed in rows.items():
        cells = [_cell(placed.get(placement)) for placement in ("free", "pinned")]
        for which in ("floor", "goal"):
            bounds = [_bound(result, which) for result in placed.values()]
            shown = bounds if len(set(bounds)) > 1 else bounds[:1]
            cells.append(" / ".join("–" if bound == "-" else bound for bound in shown))
        out.append(f"| `{row}` | " + " | ".join(cells) + " |")
    return out


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    if result.get("missing"):
        return "not installed"
    shown = figure(result["figure"]["median"])
    mine = result["subject_figure"]
    if mine is None:
        shown += f" {result['unit']}"
    elif not result["unit"].endswith("/s"):
        shown += f" ({figure(mine['median'])} {result['unit']})"
    return f"**{shown}**" if result["verdict"] == "below" else shown
