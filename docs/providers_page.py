"""Write docs/providers.md from the readings themselves: `./dev docs --write`.

A page that no longer equals what this prints fails a test.
"""

from __future__ import annotations

from pathlib import Path

from abeyance.actors.providers.reader import READINGS
from abeyance.actors.providers.readings.table import KIND_BY_STATUS, KindRow, Reading, UntilRow

PAGE = Path(__file__).with_name("providers.md")

_HEAD = """\
# What providers state, and how it is read

`read_stated_wait` turns a response that limited a call into what kind of refusal it is, until when it lasts, and whether it is one model's or the whole account's. This page is written from the tables it goes by (`./dev docs --write`).

- The rows that say **what it is** are tried in order, and the first that fits decides. Where none fits, the status does: {statuses}; any other is no limit.
- All rows that say **until when** are read, and the longest statement binds; none is shortened, and a further one never shortens. Where a documentation leaves a unit or a meaning open, the longer reading is taken, and the row says so.
- Where nothing is stated, or what is stated cannot be read, the end is `unknown`. No instant is made up.
- A response that is no limit states only what a header of its own says (a Retry-After on a 401): kind `other`, kept for the calls after it. A call that went through states nothing.
- What lies in the past is already over. What no instant can hold (NaN or infinity in JSON, sums past 8,640,000,000,000,000 ms) holds until it is released; minus infinity is over. A truth value is no number.
- Clock times that name no zone, as terminals print them, are read in the `zone` that the caller gives, or as UTC.
- Typed errors of provider libraries, of whatever copy, alone or in a group, are read by their attributes: a response's status, headers and body, `retry_after_ms` in milliseconds, `retry_after` in seconds. Only a number states a wait there.

A star marks what counts only beside a limit.

`read_usage` reads of any response, refused or not, how much of each usage window is gone and when it starts anew, where a provider tells. That is telemetry: it holds nobody, and what is not told is None.

A provider that nobody named, or one with an unknown name, is recognised by what only it sends, and else read as any other service.
"""


def page() -> str:
    """The whole page."""
    by_kind: dict[str, list[str]] = {}
    for status, kind in KIND_BY_STATUS.items():
        by_kind.setdefault(kind.value, []).append(str(status))
    statuses = "; ".join(
        f"{' and '.join(codes)} is `{kind}`" if len(codes) == 1 else
        f"{' and '.join(codes)} are `{kind}`"
        for kind, codes in by_kind.items()
    )  # fmt: skip
    parts = [_HEAD.format(statuses=statuses)]
    parts += [_section(READINGS[name]) for name in sorted(READINGS) if name != "generic"]
    return "".join([*parts, _section(READINGS["generic"])])


def _section(reading: Reading) -> str:
    also = ", ".join(f"`{alias}`" for alias in reading.aliases)
    lines = [
        f"\n## {reading.title}\n",
        f"\nName: `{reading.name}`{f' (also {also})' if also else ''}.",
    ]
    lines.append(f" {reading.notes}\n" if reading.notes else "\n")
    lines.append("\n| where | what | is | of | window |\n|---|---|---|---|---|\n")
    lines += [_kind(row) for row in reading.kinds]
    lines.append("\n| where | what | how it is read |\n|---|---|---|\n")
    lines += [_until(row) for row in reading.untils]
    if reading.windows_how:
        lines.append(f"\nUsage windows (`read_usage`): {reading.windows_how}.\n")
    return "".join(lines)


def _kind(row: KindRow) -> str:
    is_ = "no limit" if row.kind.value == "other" else row.kind.value
    of = row.scope.value if row.scope is not None else ""
    window = row.window or ("as stated" if row.refined is not None else "")
    return _row(row.where, row.what, is_, of, window)


def _until(row: UntilRow) -> str:
    return _row(row.where, row.what, f"{row.how}{'' if row.standing else ' *'}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
