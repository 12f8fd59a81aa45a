"""Lines that come with no status: that a limit was reached is read, talk of limits is not."""

from __future__ import annotations

import pytest

from abeyance.actors.providers import StatedWait, WaitKind, WaitScope, read_stated_wait

NOW_S = 1_791_374_400
"""Wednesday, 2026-10-07 12:00:00 UTC."""
MINUTE, HOUR = 60, 3_600
RATE, QUOTA = WaitKind.RATE_LIMITED, WaitKind.QUOTA_EXHAUSTED
MODEL, ACCOUNT = WaitScope.MODEL, WaitScope.ACCOUNT
COPILOT, GEMINI, CODE = "github-copilot", "gemini-code-assist", "claude-code"


def read(provider: str, line: str) -> StatedWait | None:
    return read_stated_wait(
        status=None,
        headers=None,
        body=line,
        received_at=NOW_S,
        provider=provider,
        transport="text",
    )


@pytest.mark.parametrize(
    ("provider", "line", "seconds", "kind", "scope"),
    [
        (
            COPILOT,
            "Sorry, you've hit a rate limit that restricts the number of requests you can"
            " make within a time period. Please try again in 1 hour 3 minutes.",
            63 * MINUTE,
            QUOTA,
            ACCOUNT,
        ),
        (
            COPILOT,
            "You've hit the rate limit for this model. Please try switching to another model"
            " or try again in 2 hours.",
            2 * HOUR,
            RATE,
            MODEL,
        ),
        (COPILOT, "Oops, you reached the rate limit. Please try again later.", None, RATE, None),
        (COPILOT, "Rate limit exceeded, please wait 5 minutes.", 5 * MINUTE, RATE, None),
        (COPILOT, "You have hit your request limit. Wait 40 seconds.", 40, RATE, None),
        (
            GEMINI,
            "You have exhausted your capacity on this model. Your quota will reset after"
            " 19h14m47s.",
            69_287,
            QUOTA,
            MODEL,
        ),
        (
            GEMINI,
            "Usage limit reached for gemini-3-pro. Access resets at 4:52 PM PDT.",
            None,
            QUOTA,
            MODEL,
        ),
        (
            GEMINI,
            "Usage limit reached for all Pro models. Access resets at 16:52 UTC.",
            292 * MINUTE,
            QUOTA,
            None,
        ),
        (GEMINI, "You've hit your rate limit. Please retry in 20s.", 20, RATE, None),
        ("gemini", "You've reached your request limit. Please retry in 20s.", 20, RATE, None),
        (
            CODE,
            "You've hit your weekly limit for Opus · resets Monday 9am (UTC)",
            117 * HOUR,
            QUOTA,
            MODEL,
        ),
        (
            CODE,
            "You've reached your weekly limit on Claude Sonnet · resets Monday 9am (UTC)",
            117 * HOUR,
            QUOTA,
            MODEL,
        ),
        (
            CODE,
            "Weekly limit for Haiku reached ∙ resets Monday 9am (UTC)",
            117 * HOUR,
            QUOTA,
            MODEL,
        ),
        (CODE, "Weekly limit reached for Opus ∙ resets Monday 9am (UTC)", 117 * HOUR, QUOTA, MODEL),
        (
            CODE,
            "You've hit your weekly limit · resets Monday 9am (UTC)",
            117 * HOUR,
            QUOTA,
            ACCOUNT,
        ),
        ("vertex", "You've exceeded your quota; retry in 5 minutes", 5 * MINUTE, RATE, None),
    ],
)
def test_a_line_of_a_limit_that_was_reached_is_read_without_a_status(
    provider: str, line: str, seconds: float | None, kind: WaitKind, scope: WaitScope | None
) -> None:
    wait = read(provider, line)
    assert wait is not None
    left = None if wait.deadline_ms is None else wait.deadline_ms / 1_000 - NOW_S
    assert (left, wait.kind) == (seconds, kind)
    assert wait.scope is scope


@pytest.mark.parametrize("provider", [COPILOT, GEMINI, "gemini", "vertex"])
@pytest.mark.parametrize(
    "line",
    [
        "If you hit the rate limit, please try again in 2 hours.",
        "Once you've reached your limit, wait 2 hours.",
        "When the rate limit is exceeded, wait 2 hours.",
        "You've used 95% of your usage limit. It resets in 2 hours.",
        "Approaching your usage limit; it resets in 2 hours.",
        "The tests passed in 2 hours. Try again in 5 minutes.",
    ],
)
def test_talk_of_limits_is_none(provider: str, line: str) -> None:
    assert read(provider, line) is None


def test_a_window_of_one_model_is_named_as_its_header_names_it() -> None:
    for model in ("opus", "sonnet", "haiku"):
        wait = read(CODE, f"You've hit your weekly limit for {model} · resets Monday 9am (UTC)")
        assert wait is not None
        assert wait.window == f"seven_day_{model}"
