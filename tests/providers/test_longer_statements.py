"""A longer statement is never read as a shorter one: it is read whole, or it states nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abeyance.actors.providers import WaitEnds, read_stated_wait
from abeyance.actors.providers.durations import leading_duration, spelled_duration

NOW_S = 1_791_374_400
SECOND, MINUTE, HOUR, DAY, WEEK = 1_000, 60_000, 3_600_000, 86_400_000, 604_800_000

UNITS = {
    WEEK: ("week", " weeks", "w", " Wochen", "周", " semaines", " weeks"),
    DAY: ("d", " day", " days", "D", "天", " Tage", " días", " jours", "日", " day(s)"),
    HOUR: ("h", "hr", " hrs", " hr.", " hour", " hours", "小时", "个小时", " Std.", " Stunden",
           " horas", " heures", "時間", " hour(s)"),
    MINUTE: ("m", "min", " min.", " mins", " Minute", " minutes", "分钟",
             "分", " Min.", " minutos"),
    SECOND: ("s", "sec", " secs.", " second", " seconds", "秒", " Sek.", " Sekunden", " segundos"),
    1: ("ms", " msec", " milliseconds", "毫秒", " Millisekunden"),
}  # fmt: skip
JOINERS = ("", " ", "  ", ", ", " and ", ", and ", " & ", " + ", "/", " / ", ".", ". ", ":", "; ",
           "-", " - ", " – ", "—", " then ", ", then ", " and then ", " plus ", ", plus another ",
           "\n", "\r\n  ", "<br>", "、", "，", "又", "零", " und ", " et ", " y ", " e ", " · ",
           " (and ", " with another ", " and about ", "\u2009", "\u00a0and ")  # fmt: skip
FRACTIONS = (" and a half", " and one half", "½", " ½", " 1/2", " and 3/4", ", and a quarter",
             " plus half", "半", " und eine halbe", " et demie", " y media", " - half")  # fmt: skip
WORDED = (" and thirty minutes", " and a minute", " thirty", ", and a few minutes", " and two days",
          " plus a couple of hours", "三十分钟", " and twenty-five seconds", " and minutes: 30",
          " 30", " and 30", " 2:03", "30", " and 1 month", ", 2 years", " ３０ minutes",
          " deux minutes", " und dreißig Sekunden", "5.5")  # fmt: skip
TAILS = ("", ".", " before retrying.", ". Visit https://example.com for more.", ")", "\n")
TERM = st.integers(1, 99).flatmap(
    lambda count: st.sampled_from(sorted(UNITS)).flatmap(
        lambda unit_ms: st.sampled_from(UNITS[unit_ms]).map(
            lambda name: (count * unit_ms, unit_ms, f"{count}{name}")
        )
    )
)


def told(text: str) -> float | None:
    """What a refusal's words are read as, in milliseconds; None where they state nothing."""
    found = leading_duration(f"try again in {text}", 13)
    wait = read_stated_wait(
        status=429, headers={}, body=f"Rate limited. Please try again in {text}",
        received_at=NOW_S, provider="generic", transport="text",
    )  # fmt: skip
    assert wait is not None
    if wait.ends is WaitEnds.UNTIL:
        assert wait.deadline_ms is not None
        assert found is not None
        assert wait.deadline_ms == NOW_S * 1_000 + found[0]
        return found[0]
    assert wait.ends is WaitEnds.UNKNOWN
    assert found is None
    return None


@settings(max_examples=400)
@given(
    st.lists(TERM, min_size=2, max_size=4, unique_by=lambda term: term[1]),
    st.lists(st.sampled_from(JOINERS), min_size=4, max_size=4),
    st.sampled_from(TAILS),
)
def test_terms_are_summed_or_state_nothing_however_they_are_joined(
    terms: list[tuple[int, int, str]], joiners: list[str], tail: str
):
    terms.sort(key=lambda term: -term[1])
    text = terms[0][2] + "".join(
        joiner + term[2] for joiner, term in zip(joiners, terms[1:], strict=False)
    )
    read = told(text + tail)
    assert read is None or read >= sum(term[0] for term in terms), text


@settings(max_examples=200)
@given(TERM, st.sampled_from(FRACTIONS + WORDED), st.sampled_from(TAILS))
def test_a_term_with_a_part_of_a_unit_or_a_number_in_words_behind_it_states_nothing_shorter(
    term: tuple[int, int, str], more: str, tail: str
):
    read = told(term[2] + more + tail)
    # None of these is worth less than nothing: what is read holds some of it, or is none.
    assert read is None or read > term[0], term[2] + more


@settings(max_examples=150)
@given(TERM, TERM, st.sampled_from(["-", " - ", "–", " to ", " or ", "...", "…"]),
       st.booleans())  # fmt: skip
def test_of_a_range_the_far_end_is_read_or_nothing(
    near: tuple[int, int, str], far: tuple[int, int, str], between: str, bare: bool
):
    if bare:
        # `10-20 seconds`: the unit stands once.
        count = near[0] // near[1]
        text, least = f"{count}{between}{far[2]}", max(count * far[1] if count * far[1] <= far[0]
                                                       else 0, far[0])  # fmt: skip
    else:
        text, least = near[2] + between + far[2], max(near[0], far[0])
    read = told(text)
    assert read is None or read >= least, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 hour and a half", 90 * MINUTE),
        ("1 hour, then 30 minutes", 90 * MINUTE),
        ("1 Min. 30 Sek.", None),
        ("1 day/2 hours", 26 * HOUR),
        ("1d.2h", 26 * HOUR),
        ("3 hours – 30 minutes", 210 * MINUTE),
        ("1m30", None),
        ("1 hour 30", 90 * MINUTE),
        ("1h30m15", None),
        ("1 minute, 30.", None),
        ("1 day<br>2 Std.", None),
        ("1小时半", None),
        ("1小时30分", None),
        ("1小时又30分钟", 90 * MINUTE),
        ("2 hours and 1 month", None),
        ("PT1H.5M", None),
        ("5631 seconds (1.5 hours)", 5_631 * SECOND),
        ("90 seconds (~2 minutes)", 2 * MINUTE),
        ("3 hours (30 minutes)", None),
        ("1 hour or 30 minutes", HOUR),
        ("30 minutes – 2 hours", 2 * HOUR),
    ],
)
def test_more_time_is_read_whole_or_the_statement_is_none(text: str, expected: int | None):
    assert told(text) == expected


@pytest.mark.parametrize(
    "tail",
    [
        "", ".", " ", ". ", ")", "\"}", " before retrying.", ", 3 attempts left.",
        ". Limit 50 per 86400s.", ". Visit https://example.com/2 for more.", " (429)",
        " (HTTP 429)",
        "\n429 Too Many Requests", " and try again", ", or upgrade to the 5x plan", "。",
        " from now", "; request id 7f", " - rate limit of 5 requests", ". A request was refused",
        ", code 429", " or contact support", " to continue", "\n3 of 5 done", "后重试",
    ],
    ids=repr,
)  # fmt: skip
def test_what_follows_a_duration_and_is_no_time_changes_nothing(tail: str):
    assert told("20s" + tail) == 20 * SECOND
    assert told("1 hour 5 minutes" + tail) == 65 * MINUTE


@settings(max_examples=200)
@given(st.text(st.sampled_from("0123456789 .,:/-–½半hmsdand and PT小时分秒()\n"), max_size=40))
def test_what_is_read_alone_is_what_is_read_of_the_whole_text(text: str):
    """A field or header is a duration only where no part of it is left over."""
    found = leading_duration(text, 0)
    if spelled_duration(text) is not None:
        assert found is not None
        assert found[0] == spelled_duration(text)
