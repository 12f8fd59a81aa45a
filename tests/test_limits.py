"""The numbers that users are told are those of the program (W-133)."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from abeyance.actors import CompactingContext, Pacing
from abeyance.actors.domain import alert_posts, compacting, context_keeper, limits, policy
from abeyance.actors.domain.call import RETRY_IN_TURN_S_MAX
from abeyance.actors.domain.persistence import PAUSE_MAX_S
from abeyance.actors.providers import AnthropicProvider

ROOT = Path(__file__).parents[1]
UNITS_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000}
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
BEHAVIOURS = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
KINDS = (ROOT / "docs" / "kinds.md").read_text(encoding="utf-8")
OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def row(begins: str) -> int:
    """The limit that the table of docs/behaviours.md states, in milliseconds."""
    found = re.search(rf"^\| {re.escape(begins)}[^|]*\| (\d+) (\w+) \|$", BEHAVIOURS, re.M)
    assert found is not None, begins
    return int(found[1]) * UNITS_MS[found[2]]


def said(text: str, pattern: str) -> set[int]:
    """What a text states, in milliseconds, wherever the pattern occurs in it."""
    found = re.findall(pattern.replace("LIMIT", r"(\d+) (s|min|h)\b"), text)
    assert found, pattern
    return {int(number) * UNITS_MS[unit] for number, unit in found}


@pytest.mark.behaviour("W-133")
def test_published_limits_are_the_programs() -> None:
    assert row("an alert is raised by a hold of more than") == limits.ALERT_PAST_MS
    assert row("what could not be read is tried again") == limits.RECHECK_MS
    assert row("a wait that could not be stored is offered again") == PAUSE_MAX_S * 1_000
    assert row("an ephemeral run sleeps") == limits.EPHEMERAL_SLEEP_MAX_MS
    assert row("a guessed pause lasts") == limits.COOLDOWN_MAX_MS
    assert "| a stated wait lasts at most | – |" in BEHAVIOURS
    for text in (SEMANTICS, BEHAVIOURS, CHANGES):
        assert said(text, r"past LIMIT") == {limits.ALERT_PAST_MS}
    assert said(PROMISES, r"held for more than LIMIT") == {limits.ALERT_PAST_MS}
    assert said(BEHAVIOURS, r"exactly LIMIT") == {limits.ALERT_PAST_MS}
    assert said(BEHAVIOURS, r"again every LIMIT") == {limits.RECHECK_MS}
    assert said(KINDS, r"up to and including LIMIT") == {limits.EPHEMERAL_SLEEP_MAX_MS}
    assert said(OPERATING, r"looked at every LIMIT") == {limits.RECHECK_MS}
    assert said(OPERATING, r"guess of the runtime, of at most LIMIT") == {limits.COOLDOWN_MAX_MS}


def test_published_numbers_of_failed_calls_are_the_programs() -> None:
    text = (ROOT / "docs" / "failed-calls.md").read_text(encoding="utf-8")
    pacing = Pacing()
    assert f"`Pacing.default_s` ({pacing.default_s:g} s)" in text
    assert f"up to `jitter_s` ({pacing.jitter_s:g} s)" in text
    assert said(text, r"at most LIMIT together") == {limits.COOLDOWN_MAX_MS}
    assert said(text, r"A delay of up to LIMIT") == {RETRY_IN_TURN_S_MAX * 1_000}
    assert "tried four times" in text
    assert policy.ATTEMPTS_MAX == 4
    assert "from a second up to a minute" in text
    assert (policy.RETRY_INITIAL_S, policy.RETRY_MAX_S) == (1, 60)
    deadlines = inspect.signature(AnthropicProvider).parameters
    for name, pattern in (
        ("byte_idle_s", "no byte for LIMIT"),
        ("first_event_s", "no event but pings for LIMIT"),
        ("call_s", "no whole reply for LIMIT"),
    ):
        assert said(text, pattern) == {deadlines[name].default * 1_000}


def test_published_bounds_of_sinks_are_the_programs() -> None:
    assert f"{alert_posts.ATTEMPT_S_MAX:g} s an attempt" in SEMANTICS
    assert "eight attempts" in SEMANTICS
    assert len(alert_posts.PAUSES_S) + 1 == 8
    assert 13 * 60 < sum(alert_posts.PAUSES_S) < 17 * 60
    assert f"At most {alert_posts.OWED_MAX:,} alerts wait" in SEMANTICS


def test_published_numbers_of_contexts_are_the_programs() -> None:
    text = (ROOT / "docs" / "context.md").read_text(encoding="utf-8")
    assert said(text, r"waits for it for at most LIMIT") == {limits.COMPACTION_YIELD_MS}
    assert said(SEMANTICS, r"waits at most LIMIT for a strategy") == {limits.COMPACTION_YIELD_MS}
    assert said(text, r"it may take LIMIT") == {limits.COMPACTION_CALL_MS_MAX}
    assert said(text, r"each for at most LIMIT") == {context_keeper.EVENT_S_MAX * 1_000}
    assert "one `compact` may take an hour" in text
    assert context_keeper.COMPACTION_S_MAX == 3_600
    assert "after a minute at the soonest, then two, up to an hour" in text
    assert (context_keeper.PAUSE_INITIAL_S, context_keeper.PAUSE_MAX_S) == (60, 3_600)
    for name, field in CompactingContext.__dataclass_fields__.items():
        if isinstance(field.default, int):
            assert f"| `{name}` | {field.default:,} |" in text
    assert f"each row bounded to {compacting.ROW_CHARS_MAX:,} characters" in text
