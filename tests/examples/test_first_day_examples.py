"""The examples of a host's first day run, and print what their pages say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "first_day"


def play(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_stop_button_ends_the_turn_once_and_the_next_message_is_answered(tmp_path: Path) -> None:
    assert play("cancel_turn.py", str(tmp_path / "state")) == [
        "turn 1: cancelled",
        "turn 1: cancelled",
        "the run: failed",
        "user: Everything about whales?",
        "assistant: (tools)",
        "results: (tools)",
        "marker: this turn was cancelled by api:cy",
        "user: Never mind. Hello?",
        "assistant: Hello again.",
    ]


def test_payment_waits_for_a_person_through_a_restart_and_is_made_once(tmp_path: Path) -> None:
    assert play("approvals.py", str(tmp_path / "state")) == [
        'ana wants to pay {"amount": 900, "to": "bo"}',
        "ana/1/1/0: approved by api:cy",
        "[the bank] 900 to bo",
        "user: Pay bo what we owe.",
        "assistant: (tools)",
        "results: (tools)",
        "assistant: Done.",
    ]
