"""What the audience sees: a line an event, with the seconds since the start.

Pure but for the console that is handed in; without one, silent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .audit import DemoReport, Promise
from .play import ANA, BO
from .wire import WireCall

_WHO_STYLE = {ANA: "cyan", BO: "magenta", "wire": "dim", "kill": "bold red", "shell": "bold"}
_MARKS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("not run", "dim")}


class Stage:
    """Prints the play as it happens."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the curtain rose."""
        return time.monotonic() - self._started

    def heading(self, text: str) -> None:
        if self._console is not None:
            self._console.print()
            self._console.print(Text(text, style="bold"))

    def say(self, who: str, text: str) -> None:
        """Print one line: when, who, what. Longer than the console is cut."""
        if self._console is None:
            return
        line = Text(f"{self.seconds:6.2f}  ")
        line.append(f"{who:<6}", style=_WHO_STYLE.get(who, ""))
        line.append(" ".join(text.split()))
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def show(self, printed: str) -> None:
        """Print what another program printed, indented."""
        if self._console is not None:
            for line in printed.splitlines():
                if line.strip():
                    self._console.print(Text("        " + line.rstrip()), no_wrap=True, crop=True)

    def row(self, agent: str, row: Mapping[str, Any]) -> None:
        """A row that has entered an agent's slot."""
        calls = [block["name"] for block in row["blocks"] if block["type"] == "tool_use"]
        if row["role"] == "results":
            self.say(agent, f"   tools: {_results(row)}")
        elif row["role"] == "marker":
            self.say(agent, f"   ({row['text']})")
        elif row["role"] == "assistant":
            self.say(agent, row["text"] + (f" [calls {', '.join(calls)}]" if calls else ""))
        else:
            self.say(agent, f"   hears {row['author']}: {row['text']}")

    def recall(self, row: Mapping[str, Any]) -> None:
        """A row of a transcript that is read back: its place, who, what."""
        if self._console is None:
            return
        calls = [block["name"] for block in row["blocks"] if block["type"] == "tool_use"]
        text = _results(row) if row["role"] == "results" else " ".join(row["text"].split())
        line = Text(f"{row['seq']:6}  ")
        who = "tools" if row["role"] == "results" else row["author"]
        line.append(f"{who:<8}", style=_WHO_STYLE.get(who, ""))
        line.append(text + (f" [calls {', '.join(calls)}]" if calls else ""))
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def call(self, agent: str, call: WireCall) -> None:
        messages = len(call.request["messages"])
        self.say("wire", f"call {call.number}: {agent} asks {call.model}, {messages} messages")

    def reply(self, call: WireCall) -> None:
        if call.status != 200:
            self.say("wire", f"call {call.number}: answered {call.status}")

    def table(self, report: DemoReport) -> None:
        if self._console is None:
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("promised", overflow="fold")
        table.add_column("counted", overflow="fold")
        table.add_column("", no_wrap=True)
        for promise in report.promises:
            table.add_row(promise.promised, promise.counted, _mark(promise))
        self._console.print()
        self._console.print(table)
        failed = sum(promise.holds is False for promise in report.promises)
        self._console.print()
        verdict = "Every line holds." if report.holds else f"{failed} line(s) do not hold."
        style = "bold green" if report.holds else "bold red"
        self._console.print(Text(f"{verdict} {report.seconds:.1f} s.", style=style))
        if report.state is not None:
            self._console.print(Text(f"The state is kept in {report.state}"))


def _mark(promise: Promise) -> Text:
    word, style = _MARKS[promise.holds]
    return Text(word, style=style)


def _results(row: Mapping[str, Any]) -> str:
    return " / ".join(
        part["text"]
        for block in row["blocks"]
        if block["type"] == "tool_result"
        for part in block["content"]
    )
