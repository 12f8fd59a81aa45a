"""A wait with alternatives or conditions is read as its longest, or as nothing: never shorter."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from abeyance.actors.providers import WaitEnds, read_stated_wait

NOW_S = 1_791_374_400
"""2026-10-07 12:00:00 UTC."""
MINUTE, HOUR, DAY = 60, 3_600, 86_400


def told(
    words: str, *, provider: str = "generic", body: str | None = None, status: int = 429
) -> float | None:
    """Seconds until what is read of a refusal; None where its end is not known."""
    wait = read_stated_wait(
        status=status, headers={}, body=words if body is None else body, received_at=NOW_S,
        provider=provider, transport="text" if body is None else "http",
    )  # fmt: skip
    assert wait is not None
    if wait.ends is WaitEnds.UNTIL:
        assert wait.deadline_ms is not None
        return wait.deadline_ms / 1_000 - NOW_S
    assert wait.ends is WaitEnds.UNKNOWN
    return None


GRID: list[tuple[str, float | None]] = [
    ("Try again in 1 minute, or in 24 hours if your daily quota is used up", DAY),
    ("Try again in 1 minute. If your daily quota is used up, try again in 24 hours.", DAY),
    ("Try again in 1 minute. If your daily quota is used up it is 24 hours.", None),
    ("Try again in 1 minute. 24 hours if the daily quota is used up.", None),
    ("Try again in 1 minute. Daily quota: try again tomorrow.", None),
    ("Try again in 5 min or tomorrow", None),
    ("Try again in 5 min oder morgen", None),
    ("请在1分钟后重试，或明天", None),
    ("请在1分钟后重试，如果每日额度用完则24小时后", DAY),
    ("Retry after 2 minutes but no earlier than 13:00 UTC", HOUR),
    ("Do not retry before 13:00 UTC; try again in 1 minute", HOUR),
    ("Retry after 2 minutes, not before 9am", None),
    ("Wait at least 5 minutes", 5 * MINUTE),
    ("Wait a minimum of 5 minutes", 5 * MINUTE),
    ("Wait between 5 and 10 minutes", 10 * MINUTE),
    ("Wait between 5 minutes and 2 hours", 2 * HOUR),
    ("Wait from 5 to 10 minutes", 10 * MINUTE),
    ("Wait 5-10 minutes", 10 * MINUTE),
    ("Wait 20-10 seconds", 20),
    ("Wait 1h to 2h", 2 * HOUR),
    ("Wait 600 or 24 hours", 600 * HOUR),
    ("Wait 5 minutes to an hour", HOUR),
    ("Wait 5 minutes or until 13:00 UTC, whichever is later", HOUR),
    ("Wait up to 2 hours", 2 * HOUR),
    ("Wait until tomorrow 9am UTC", 21 * HOUR),
    ("Wait until tomorrow 9am", None),
    ("Wait 5 minutes or until tomorrow 9am", None),
    ("Resets at 13:00 UTC tomorrow", 25 * HOUR),
    ("Resets at 13:00-14:00 UTC", None),
    ("Resets at 13:00 UTC - 14:00 UTC", 2 * HOUR),
    ("Resets at 13:00 UTC or 15:00 UTC", 3 * HOUR),
    ("Wait a few minutes", None),
    ("Try again in 2 minutes (24 h for free accounts)", None),
    ("Try again in 2 minutes (an hour at peak times)", None),
    ("Try again in 1 minute (peak: 24 hours)", DAY),
    ("Try again in 1 minute or at midnight UTC", 12 * HOUR),
    ("Try again in 1 minute or on Monday", None),
    ("Try again in 1 minute or next week", None),
    ("Try again in 1 minute or until your quota resets", None),
    ("Try again in 1 minute, unless you hit your 5-hour limit", None),
    ("Try again in 1 minute or twice that for free accounts", None),
    ("Try again in 1 minute, and after that another 24 hours", None),
    ("Try again in PT1M or PT24H", DAY),
    ("In 24 hours if the quota is used up, otherwise try again in 1 minute", None),
    ("You are blocked for 24 hours. Try again in 1 minute", DAY),
    ("Try again in 1,200 seconds", 1_200),
    ("Try again in 1,200.5 seconds", 1_200.5),
    ("Try again in 600", None),
    ("Try again in 1.5 hours", 1.5 * HOUR),
    ("Try again in 1,5 minutes", None),
    ("Try again in 10,20 seconds", None),
    ("Try again in 1 200 seconds", None),
    ("Try again in 1 minute or 1 200 seconds", None),
    ("Try again in 90s/1m30s", None),
    ("Try again in 2 h 30 min", 2.5 * HOUR),
    ("Try again in 5 minutes past midnight", None),
]


@pytest.mark.parametrize(("words", "expected"), GRID)
def test_a_wait_with_alternatives_is_its_longest_or_unknown(words: str, expected: float | None):
    assert told(f"Rate limited. {words}") == expected
    assert told(f"Rate limited. {words}.") == expected


@pytest.mark.parametrize(
    "words",
    [
        "(limit: 50 requests per 5 minutes)", ". Limit: 3 / 1 day", ". Limit 50 per 86400s.",
        ". You have used 5 hours in the last 24 hours.", " or longer", " until your limit resets",
        ". If the problem persists for more than 24 hours, contact support.",
        ". Model gpt-4o-2024-08-06, API version 2024-02-01.", ". Your 5-hour window is full.",
        " (3 times a day)", ". Upgrade to Pro today for $20 a month.",
    ],
)  # fmt: skip
def test_what_speaks_of_time_and_is_no_wait_changes_nothing(words: str):
    assert told(f"Rate limited. Try again in 1 minute{words}") == MINUTE


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("claude-code", "You've hit your limit · resets 3pm or tomorrow at 9am (UTC)"),
        ("claude-code", "5-hour limit reached ∙ resets 3pm tomorrow"),
        ("openai-codex", "You've hit your usage limit. Try again in 5 minutes or at 7:58 PM."),
        ("zai", "Usage limit reached. Your limit will reset at 2026-10-07 21:00:00 or next week"),
        ("github-copilot", "You are rate-limited. Please wait 2 minutes, or 3 hours at peak times"),
        ("gemini", "Please retry in 44.09s, or tomorrow"),
    ],
)
def test_every_providers_words_are_never_read_short(provider: str, words: str):
    read = told(words, provider=provider)
    assert read is None or read >= 2.9 * HOUR


LEADS = ("try again in ", "", "in ", "retry after ", "after ", "up to ")
WAITS = st.tuples(
    st.sampled_from(LEADS),
    st.integers(1, 90),
    st.sampled_from([("s", 1), (" minutes", 60), ("h", HOUR)]),
).map(lambda wait: (f"{wait[0]}{wait[1]}{wait[2][0]}", wait[1] * wait[2][1]))
MOMENTS = st.tuples(
    st.sampled_from(["at ", "not before ", "until ", "no earlier than ", "resets at "]),
    st.integers(13, 23),
).map(lambda moment: (f"{moment[0]}{moment[1]}:00 UTC", (moment[1] - 12) * HOUR))
READABLE = st.one_of(WAITS, MOMENTS)
CONNECTIVES = st.sampled_from(
    [" or ", ", or ", " but ", ", but ", "; ", ". Or ", ". If that fails, ", " (", " – ", ", ",
     " and ", ". Otherwise ", " unless you are on a free plan: ", " / ", " to ",
     ", in rare cases ", "\nor ", ". Try again ", ", whichever is later: ", " then ",
     ", for free accounts ", ". Daily quota: "]
)  # fmt: skip


@settings(max_examples=300, derandomize=True, deadline=None)
@example(("1s", 1), " and ", ("in 2h", 7_200))
@given(READABLE, CONNECTIVES, READABLE)
def test_two_waits_in_words_are_never_read_as_the_shorter(
    one: tuple[str, int], connective: str, other: tuple[str, int]
):
    words = f"Rate limited. Try again {one[0]}{connective}{other[0]}"
    read = told(words)
    assert read is None or read >= max(one[1], other[1]) or one[1] == other[1], words


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"error": {"retry_after": 60, "retry_after": 5}}', 60),
        ('{"error": {"retry_after": 5, "retry_after": 60}}', 60),
        ('{"error": {"retry_after": "60", "retry_after": 5}}', 60),
        ('{"error": {"retry_after": 60}, "error": {"retry_after": 5}}', 60),
        ('{"error": {"retry_after": "1 hour", "retry_after": 5}}', None),
        ('data: {"error": {"retry_after": 60, "retry_after": 5}}\n\n', 60),
        ('429 {"error": {"retry_after": 60, "retry_after": 5}}', 60),
    ],
)
def test_of_a_key_that_stands_twice_the_longer_wait_is_read(body: str, expected: float | None):
    assert told("", body=body) == expected
