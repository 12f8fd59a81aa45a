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
