"""What is logged: below `abeyance`, one line a message, with the ids it is about."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import ActorSystem, TrioActor
from abeyance.actors.core.logs import Log, one_line

ROOT = Path(__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
ABOUT = {"actor", "agent", "run", "turn"}
ABOUT_NOBODY = {
    "the HTTP API is at %s",
    "an HTTP request failed",
    "deleted what was old: %s",
    "on_event failed; the system goes on",
    "a control request failed",
    "a commit waits until it can be stored: %s",
    "an entry is lost with this process: %s",
    "an entry is in memory only: %s",
    "an alert is lost with this process: %s",
    "what %s is owed cannot be read: %s",
    "an alert that is owed cannot be read: %s",
    "which alert is owed to %s cannot be read; it is in the store",
    "that %s took an alert is not stored yet",
}
"""Messages that are about no one actor or agent."""
HOSTILE = "x\nERROR forged\r\x1b[31m\u2028\x9b2Jy"


def sources() -> list[Path]:
    return sorted(path for room in ("actors", "storage") for path in (ROOT / room).rglob("*.py"))


def calls() -> list[tuple[str, ast.Call]]:
    """Every call of a method of a logger, by file."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in sources()
        if path.name != "logs.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id.lower().lstrip("_") in ("logger", "log", "logging")
    ]


def test_every_logger_is_one_of_the_projects() -> None:
    made = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sources()
        if path.name != "logs.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        # Pykka's logger is looked at, and not written to.
        if "getLogger(" in line.replace('getLogger("pykka")', "")
        or "basicConfig" in line
        or "import warnings" in line
    ]
    assert made == []


def test_every_log_call_has_a_plain_text_and_says_whom_it_is_about() -> None:
    found = calls()
    assert len(found) > 30
    unplain, nobody = [], set()
    for place, call in found:
        text = call.args[0] if call.args else None
        if isinstance(text, ast.Name):
            continue  # `reporting`, whose callers are in the kernel.
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            unplain.append(place)
        elif not ABOUT & {keyword.arg for keyword in call.keywords}:
            nobody.add(text.value)
    assert unplain == []
    assert nobody == ABOUT_NOBODY


def test_import_configures_no_logging() -> None:
    program = """
import logging, pkgutil, importlib
import abeyance.actors, abeyance.actors.ops.cli, abeyance.actors.hosted
named = [logging.getLogger(n) for n in logging.root.manager.loggerDict if n.startswith("abeyance")]
assert named
kinds = {type(h) for each in named for h in each.handlers}
assert kinds <= {logging.NullHandler}, kinds
assert all(each.level == logging.NOTSET and each.propagate for each in named)
assert not logging.root.handlers and logging.root.level == logging.WARNING
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_logger_outside_the_project_is_refused() -> None:
    with pytest.raises(ValueError, match="below 'abeyance'"):
        Log("other.abeyance")


def test_value_of_a_message_is_one_line_and_steers_no_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log("abeyance.tested")
    caplog.set_level(logging.DEBUG)
    for say in (log.debug, log.info, log.warning, log.error):
        say("of %s: %r, %d", HOSTILE, ValueError(HOSTILE), 7, agent=HOSTILE, turn=3)
    assert len(caplog.records) == 4
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert "forged" in record.getMessage()
        assert record.agent.isprintable()  # type: ignore[attr-defined]
        assert (record.turn, record.actor) == (3, None)  # type: ignore[attr-defined]
        assert (record.funcName, record.filename) == (
            "test_value_of_a_message_is_one_line_and_steers_no_terminal",
            "test_logging.py",
        )


@pytest.mark.parametrize("text", ["plain", "é✓", "a b"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == text


class Crashing(TrioActor):
    def on_receive(self, message: Any) -> None:
        raise ValueError(message)


async def test_records_of_an_actor_name_it(caplog: pytest.LogCaptureFixture) -> None:
    async with ActorSystem() as system:
        ref = system.start(Crashing, name="ana")
        with pytest.raises(ValueError, match="x"):
            with trio.fail_after(60):
                await ref.ask("x")
        ref.tell(HOSTILE)
        await ref.stopped()
    records = [record for record in caplog.records if record.name == "abeyance.core"]
    assert records
    assert {record.actor for record in records} == {"ana"}  # type: ignore[attr-defined]
    assert all(record.getMessage().isprintable() for record in records)


def test_each_logger_that_the_page_names_is_one_that_is_written_to() -> None:
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    modules = {
        ".".join(("abeyance", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sources()
        if "Log(__name__)" in path.read_text(encoding="utf-8")
    }
    written_to = modules | {"abeyance.core"}
    named = set(re.findall(r'getLogger\("([\w.]+)"\)', page))
    assert named
    for name in named:
        assert any(each == name or each.startswith(f"{name}.") for each in written_to), name


CRASHES = """
import logging, sys, trio
from abeyance.actors import ActorSystem, TrioActor

class Falls(TrioActor):
    def on_receive(self, message):
        raise RuntimeError("boom")

async def main():
    async with ActorSystem() as system:
        ref = system.start(Falls)
        ref.tell("go")
        await trio.testing.wait_all_tasks_blocked()

import trio.testing
if sys.argv[1:]:
    logging.basicConfig()
trio.run(main)
"""


@pytest.mark.parametrize("configured", [False, True])
def test_a_crash_is_printed_where_the_host_has_a_handler_and_nowhere_else(configured: bool) -> None:
    given = [sys.executable, "-c", CRASHES, *(["yes"] if configured else [])]
    done = subprocess.run(given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("boom" in done.stderr) is configured
