"""The decisions of a supervisor: tables and plans, without an actor."""

from __future__ import annotations

from random import Random

import pytest

from abeyance.actors.core import Backoff, SupervisorSpec
from abeyance.actors.core.restarts import (
    Fall,
    Restarts,
    Round,
    affected,
    plan,
    starts_again,
    uncovered,
)
from abeyance.actors.core.settling import CRASHED, Exit

IDS = ("a", "b", "c", "d")
POISON = Exit(CRASHED, poison=True)


def falls(names):
    return [Fall(name, Exit(CRASHED)) for name in names]


def waits(*answers):
    """Hand out these waits, and keep whether each restart was to count."""
    left = list(answers)

    def next_wait_s(counts):
        next_wait_s.asked.append(counts)
        return left.pop(0)

    next_wait_s.asked = []
    return next_wait_s


@pytest.mark.parametrize(
    ("restart", "crashed", "again"),
    [
        ("permanent", True, True),
        ("permanent", False, True),
        ("transient", True, True),
        ("transient", False, False),
        ("temporary", True, False),
        ("temporary", False, False),
    ],
)
def test_restart_type_and_exit_say_whether_a_child_starts_again(restart, crashed, again):
    assert starts_again(restart, crashed) is again


@pytest.mark.parametrize(
    ("strategy", "who"), [("one_for_one", "b"), ("rest_for_one", "bcd"), ("one_for_all", "abcd")]
)
def test_strategy_says_who_is_restarted_with_a_child(strategy, who):
    assert "".join(affected(strategy, IDS, "b")) == who


def test_falls_are_decided_on_in_start_order_without_those_that_are_gone_or_start_anyway():
    assert uncovered(falls("dxcab"), IDS, "c") == falls("abd")


@pytest.mark.parametrize(
    "fall", [Fall("c", POISON), Fall("c", Exit(CRASHED), spent=True)], ids=["poison", "spent"]
)
def test_fall_that_exhausts_is_covered_by_no_restart(fall):
    assert uncovered([fall], IDS, "abcd") == [fall]
    decision = plan("one_for_all", IDS, "", [*falls("a"), fall], waits())
    assert decision == Fall("c", fall.exit, spent=True)


@pytest.mark.parametrize(
    ("strategy", "fallen", "pending", "who", "counted"),
    [
        ("one_for_one", "bd", "", "bd", 2),
        ("one_for_one", "b", "cd", "bcd", 1),
        ("one_for_one", "b", "a", "ab", 1),
        ("rest_for_one", "bd", "", "bcd", 1),
        ("rest_for_one", "a", "c", "abcd", 1),
        ("one_for_all", "bcd", "", "abcd", 1),
    ],
)
def test_round_answers_every_fall_and_counts_those_that_no_other_covers(
    strategy, fallen, pending, who, counted
):
    next_wait_s = waits(1.0, 0.5)
    assert plan(strategy, IDS, pending, falls(fallen), next_wait_s) == Round(tuple(who), 1.0)
    assert next_wait_s.asked == [True] * counted


def test_fall_that_is_one_too_many_ends_the_round():
    decision = plan("one_for_one", IDS, "", falls("ab"), waits(0.0, None))
    assert decision == Fall("b", Exit(CRASHED), spent=True)


def test_restarts_that_do_not_count_are_in_the_total_only():
    spec = SupervisorSpec("group", intensity=1, period_s=10, backoff=Backoff(1, 1, 1, 0))
    restarts, random = Restarts(), Random(0)
    found = [
        restarts.next_wait_s(spec, at, counts, random)
        for at, counts in [(0, False), (1, True), (2, False), (3, True), (11, True)]
    ]
    assert found == [0.0, 0.0, 1.0, None, 0.0]
    assert (restarts.total, restarts.recent(spec, 12)) == (4, 1)
    restarts.forget()
    assert (restarts.total, restarts.recent(spec, 12)) == (4, 0)


# -- how long a restart waits


def backoff_waits(backoff, times, *, seed=0, intensity=100, period_s=1e9):
    spec = SupervisorSpec("group", intensity=intensity, period_s=period_s, backoff=backoff)
    restarts, random = Restarts(), Random(seed)
    return [restarts.next_wait_s(spec, at, True, random) for at in times]


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(1.0, 100.0, 3.0, 0.0), [0, 1, 3, 9, 27, 81, 100, 100]),
        (Backoff(1.0, 100.0, 1.0, 0.0), [0, 1, 1, 1]),
        (Backoff(5.0, 2.0, 2.0, 0.0), [0, 2, 2]),
        (Backoff(0.0, 2.0, 2.0, 0.0), [0, 0, 0]),
        (Backoff(1.0, 0.0, 2.0, 0.0), [0, 0, 0]),
    ],
    ids=["grows", "factor of one", "longest below the first", "first of zero", "longest of zero"],
)
def test_waits_grow_by_the_factor_up_to_the_longest(backoff, waits):
    assert backoff_waits(backoff, [0.0] * len(waits)) == waits


@pytest.mark.parametrize("jitter", [0.1, 0.5, 1.0])
def test_jitter_stays_within_its_part_and_never_exceeds_the_longest_wait(jitter):
    backoff = Backoff(1.0, 64.0, 2.0, jitter)
    drawn = [backoff_waits(backoff, [0.0] * 12, seed=seed) for seed in range(400)]
    assert {waits[0] for waits in drawn} == {0.0}
    for place in range(1, 12):
        base = min(2.0 ** (place - 1), 64.0 / (1 + jitter))
        found = [waits[place] for waits in drawn]
        low, high = base * (1 - jitter), base * (1 + jitter)
        assert low - 1e-9 <= min(found) < base < max(found) <= min(high, 64.0) + 1e-9
        # Spread over all of it, at the longest wait too: a herd must not come back at one instant.
        assert max(found) - min(found) > 0.9 * (high - low)
        assert len(set(found)) > 390


def test_jitter_is_drawn_from_the_random_numbers_that_were_given():
    backoff = Backoff(1.0, 8.0, 2.0, 0.5)

    class Fixed(Random):
        def random(self):
            return 1.0

    spec = SupervisorSpec("group", backoff=backoff)
    restarts = Restarts()
    found = [restarts.next_wait_s(spec, 0.0, True, Fixed()) for _ in range(5)]
    assert found == [0.0, 1.5, 3.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("reset_after_s", "times", "waits"),
    [
        # Each restart waits from when it is decided; what is quiet begins when it starts.
        (10.0, [0, 1, 2, 4], [0, 1, 2, 4]),
        (10.0, [0, 1, 11.9, 23], [0, 1, 2, 4]),
        (10.0, [0, 1, 12, 12.5], [0, 1, 0, 1]),
        (None, [0, 1, 12, 24], [0, 1, 2, 4]),
    ],
    ids=["no quiet", "not quite", "quiet", "by the period"],
)
def test_backoff_is_reset_by_a_time_without_restarts(reset_after_s, times, waits):
    assert backoff_waits(Backoff(1.0, 99.0, 2.0, 0.0, reset_after_s), times) == waits


def test_backoff_with_a_reset_of_its_own_outlives_the_period():
    """A child that falls once a period would never wait otherwise."""
    times = [0.0, 11.0, 22.0, 33.0]
    own = Backoff(1.0, 99.0, 2.0, 0.0, 60.0)
    assert backoff_waits(own, times, intensity=1, period_s=10) == [0, 1, 2, 4]
    assert backoff_waits(Backoff(1.0, 99.0, 2.0, 0.0), times, intensity=1, period_s=10) == [0] * 4


def test_forgotten_restarts_do_not_grow_the_backoff():
    spec = SupervisorSpec("group", backoff=Backoff(1.0, 99.0, 2.0, 0.0, 60.0))
    restarts, random = Restarts(), Random(0)
    assert [restarts.next_wait_s(spec, 0.0, True, random) for _ in range(2)] == [0, 1]
    restarts.forget()
    assert restarts.next_wait_s(spec, 0.0, True, random) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"initial_s": -1.0},
        {"initial_s": float("nan")},
        {"max_s": float("inf")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"reset_after_s": 0.0},
        {"reset_after_s": float("nan")},
    ],
    ids=str,
)
def test_malformed_backoff_is_refused_by_its_field(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Backoff(**fields)


@pytest.mark.parametrize("kind", ["poison", "spent", "escalates"])
@pytest.mark.parametrize("pending", ["", "c"])
def test_fall_that_no_restart_answers_ends_the_round_however_the_others_are_covered(kind, pending):
    fall = Fall(
        "c",
        POISON if kind == "poison" else Exit(CRASHED),
        spent=kind == "spent",
        escalates=kind == "escalates",
    )
    (first, last) = uncovered([fall, *falls("a")], IDS, set(pending))
    assert (first.id, last) == ("a", fall)
    decision = plan("one_for_all", IDS, pending, [first, last], waits())
    assert isinstance(decision, Fall)
    assert (decision.id, decision.escalates) == ("c", kind == "escalates")
