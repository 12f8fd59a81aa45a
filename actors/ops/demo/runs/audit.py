"""The audit of the runs' demo: what was promised, and what was counted.

Each line counts from the provider's wire log, the endpoint's log, and what the command line read
from the store, never from what a host says of itself.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..audit import Promise
from ..wire import WireCall
from . import play

Json = Mapping[str, Any]


@dataclass(slots=True)
class RunEvidence:
    """What the director collected. Instants are epoch milliseconds; None: it never happened."""

    calls: Sequence[WireCall] = ()
    posts: Sequence[Json] = ()
    """The endpoint's log: `key`, `item`, `text`, `at_ms`."""
    asked: Sequence[str] = ()
    """Keys of which the endpoint was asked whether it has them."""
    waiting: Json = field(default_factory=dict)
    """The run as a host told of it while it waited."""
    left: Json = field(default_factory=dict)
    """The same as the stopped store told of it after the host's death."""
    runs: int = 0
    """How many runs the store has in the end."""
    refused: str | None = None
    """The code by which another start of its key was refused while it waited."""
    killed_waiting: int | None = None
    killed_posting: int | None = None
    """Exit statuses of the two hosts that were killed."""
    hosts_waiting: int = 0
    """How many hosts had the workflow before the run was due."""
    detail: Json = field(default_factory=dict)
    """The run, its items and its history, as they were read in the end."""
    presses: Sequence[Json] = ()
    """What `resume` and `cancel` answered once it had completed: `exit`, and what was printed."""


def audit(evidence: RunEvidence) -> tuple[Promise, ...]:
    """Hold every promise against what was counted."""
    return (
        _waits(evidence),
        _still(evidence),
        _left_by_the_dead(evidence),
        _one_of_its_key(evidence),
        _resumed_once(evidence),
        _asked_again_once(evidence),
        _dead_in_a_post(evidence),
        _posts_once(evidence),
        _items_once(evidence),
        _finalised(evidence),
        _states(evidence),
        _presses(evidence),
    )


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _wall(evidence: RunEvidence) -> WireCall | None:
    return next((call for call in evidence.calls if call.status == 429), None)


def _stated_ms(evidence: RunEvidence) -> int | None:
    """The instant that the window opens again, as the run has it."""
    stated: int | None = evidence.waiting.get("retry_at_ms")
    return stated


def _due_ms(evidence: RunEvidence) -> int:
    return int(evidence.waiting.get("resume_after_ms") or 0)


def _waits(evidence: RunEvidence) -> Promise:
    run, wall, stated = evidence.waiting, _wall(evidence), _stated_ms(evidence)
    ahead = None
    if wall is not None and wall.replied_ms is not None and stated is not None:
        ahead = (stated - wall.replied_ms) / 1_000
    said = (
        run.get("state") == "waiting_for_capacity"
        and run.get("window") == play.WINDOW
        and run.get("step") == play.WALLED
        and f"Waiting for {play.PROVIDER} capacity ({play.WINDOW})" in str(run.get("text"))
    )
    return Promise(
        promised="a wall in the middle of a step: the run waits as a record that says for what",
        counted=f"{run.get('state')}, {run.get('window')}"
        + ("" if ahead is None else f", {ahead:.1f} s ahead"),
        holds=said and ahead is not None and 0 < ahead <= play.WALL_S_MAX,
    )


def _still(evidence: RunEvidence) -> Promise:
    wall, due = _wall(evidence), _due_ms(evidence)
    begins = due if wall is None or wall.replied_ms is None else wall.replied_ms
    calls = sum(begins < call.at_ms < due for call in evidence.calls)
    posts = sum(begins < post["at_ms"] < due for post in evidence.posts)
    return Promise(
        promised="while it waits nobody asks the model, and nothing is posted",
        counted=f"{_times(calls, 'call')}, {_times(posts, 'post')} "
        f"in {(due - begins) / 1_000:.1f} s",
        holds=calls == posts == 0 < due - begins,
    )


def _left_by_the_dead(evidence: RunEvidence) -> Promise:
    same = bool(evidence.waiting) and evidence.left == evidence.waiting
    return Promise(
        promised="the host dies by SIGKILL and its store says the same",
        counted=f"exit {evidence.killed_waiting}, {'the same' if same else 'something else'}",
        holds=evidence.killed_waiting == -9 and same,
    )


def _one_of_its_key(evidence: RunEvidence) -> Promise:
    return Promise(
        promised="no other run of its key starts meanwhile",
        counted=f"refused: {evidence.refused}; {_times(evidence.runs, 'run')} in the end",
        holds=evidence.refused == "run_open" and evidence.runs == 1,
    )


def _history(evidence: RunEvidence) -> Sequence[Json]:
    history: Sequence[Json] = evidence.detail.get("history", ())
    return history


def _resumed_once(evidence: RunEvidence) -> Promise:
    resumed = [
        step["at_ms"] - _due_ms(evidence)
        for step in _history(evidence)
        if step["before"] == "waiting_for_capacity" and step["after"] == "resuming"
    ]
    late = f"{resumed[0] / 1_000:.1f} s behind its instant" if resumed else "never"
    return Promise(
        promised="of the hosts that want to resume it one does, and not before its instant",
        counted=f"{_times(evidence.hosts_waiting, 'host')}, resumed "
        f"{_times(len(resumed), 'time')}, {late}",
        holds=evidence.hosts_waiting == 2 and len(resumed) == 1 and resumed[0] >= 0,
    )


def _asked_again_once(evidence: RunEvidence) -> Promise:
    counts = Counter(play.asked(call.request) for call in evidence.calls)
    again = [
        call
        for call in evidence.calls
        if play.asked(call.request) == play.TRANSLATE and call.answered
    ]
    behind = all(call.at_ms >= _due_ms(evidence) for call in again)
    return Promise(
        promised="the model is asked again for what met the wall, and for nothing else",
        counted=f"the draft {_times(counts[play.DRAFT], 'time')}, "
        f"the translation {_times(counts[play.TRANSLATE], 'time')}",
        holds=counts == {play.DRAFT: 1, play.TRANSLATE: 2} and len(again) == 1 and behind,
    )


def _dead_in_a_post(evidence: RunEvidence) -> Promise:
    keys = [post["key"] for post in evidence.posts if post["item"] == play.HELD_POST]
    asked = sum(key in keys for key in evidence.asked)
    return Promise(
        promised="a host dies in the middle of a post: the endpoint is asked, not sent it again",
        counted=f"exit {evidence.killed_posting}, asked {_times(asked, 'time')}, "
        f"posted {_times(len(keys), 'time')}",
        holds=evidence.killed_posting == -9 and asked >= 1 and len(keys) == 1,
    )


def _posts_once(evidence: RunEvidence) -> Promise:
    items = [post["item"] for post in evidence.posts]
    keys = Counter(post["key"] for post in evidence.posts)
    return Promise(
        promised="each post is in the endpoint's log once, in order",
        counted=f"{_times(len(keys), 'key')}, {_times(len(items), 'post')}",
        holds=tuple(items) == play.POSTS and set(keys.values()) == {1},
    )


def _items_once(evidence: RunEvidence) -> Promise:
    steps = evidence.detail.get("steps", ())
    tries = {step["path"]: step["attempts"] for step in steps}
    expected = {path: 2 if path == play.WALLED else 1 for path in play.ITEMS}
    done = sum(step["state"] == "done" for step in steps)
    repeated = sum(count > expected.get(path, 0) for path, count in tries.items())
    return Promise(
        promised="what was done is not done again, over three processes",
        counted=f"{_times(done, 'item')} done, {repeated} of them too often",
        holds=tries == expected and done == len(steps) == len(play.ITEMS),
    )


def _finalised(evidence: RunEvidence) -> Promise:
    filed = [place for place, post in enumerate(evidence.posts) if post["item"] == play.POSTS[-1]]
    last = filed == [len(evidence.posts) - 1]
    return Promise(
        promised="the finaliser runs once, behind everything else",
        counted=f"{_times(len(filed), 'time')}, {'last' if last else 'not last'}",
        holds=last,
    )


def _states(evidence: RunEvidence) -> Promise:
    states = tuple(step["after"] for step in _history(evidence))
    return Promise(
        promised="its states are recorded, in order, to its completion",
        counted=f"{_times(len(states), 'state')}, the last {states[-1] if states else 'none'}",
        holds=states == play.STATES,
    )


def _presses(evidence: RunEvidence) -> Promise:
    changed = sum(bool(press.get("changed", True)) for press in evidence.presses)
    failed = sum(press.get("exit") != 0 for press in evidence.presses)
    return Promise(
        promised="resume and cancel, pressed once more, change nothing",
        counted=f"{len(evidence.presses)} pressed, {changed} changed something, {failed} failed",
        holds=len(evidence.presses) == 2 and changed == failed == 0,
    )
