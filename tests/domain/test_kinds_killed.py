"""What a SIGKILL between two commits of a fork, an end or a run leaves, and what makes it good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Row

from ..lives import KILLED, lived
from .children import kinds


def play(lives: list[tuple[Path, str, str]]) -> list[int]:
    """The exit statuses of lives, played one after the other."""
    return [lived(kinds.live, *life).status for life in lives]


class Lives:
    """What lives of one state directory ended with, and what is there afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def play(self, *lives: tuple[str, str] | str) -> list[int]:
        named = [life if isinstance(life, tuple) else (life, "") for life in lives]
        return play([(self.directory, *life) for life in named])

    def rows(self, table: str, *prefix: Any) -> list[Any]:
        store = LmdbStore.open(self.directory, clock_ms=lambda: 0, read_only=True)
        try:
            found = []
            for _, row in store.scan(table, prefix):
                assert isinstance(row, Row), row
                found.append(row.record)
            return found
        finally:
            store.close()


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "state")


@pytest.mark.parametrize(
    "point",
    ["conversation.named", "conversation.forked:1", "conversation.forked:2", "conversation.open"],
)
def test_a_fork_that_a_death_cut_off_is_completed_by_the_next_opening(
    lives: Lives, point: str
) -> None:
    assert lives.play("notes", ("fork", point), "fork") == [0, KILLED, 0]
    (row,) = lives.rows("conversations")
    assert row.state == "open"
    rows = lives.rows("slots", row.agent)
    assert [entry.origin for entry in rows] == ["ana"] * kinds.NOTES + [None] * 2
    assert rows[kinds.NOTES].message == "a1"
    assert len(lives.rows("bodies")) == kinds.NOTES + 2, "no content was copied"


@pytest.mark.behaviour("R-28")
def test_an_end_that_a_death_cut_off_is_whole(lives: Lives) -> None:
    assert lives.play(("close", "disposal.after_commit"), "open_again") == [KILLED, 0]
    (row,) = lives.rows("conversations")
    assert row.state == "open"
    ended = [agent for agent in lives.rows("agents") if agent.ended_ms is not None]
    assert len(ended) == 1
    assert not lives.rows("wakes")
    letters = lives.rows("dead_letters")
    assert [("w1" in each.message, "w2" in each.message) for each in letters] == [
        (True, False),
        (False, True),
    ]
    assert [turn.state for turn in lives.rows("turns")] == ["cancelled"]


@pytest.mark.drawn(1)
@pytest.mark.behaviour("R-28")
@pytest.mark.parametrize("point", ["writer.before_commit", "writer.after_commit"])
def test_a_wake_is_work_or_a_dead_letter_whatever_commit_of_an_end_dies(
    tmp_path: Path, point: str
) -> None:
    deaths = [(tmp_path / f"{nth}", "remove", f"{point}:{nth}") for nth in range(1, 16)]
    assert KILLED in (statuses := play(deaths))
    assert 0 in statuses, "past the last commit nothing dies"
    for directory, _, _ in deaths:
        lives = Lives(directory)
        sent = lives.rows("ids")
        turns = [turn for turn in lives.rows("turns") if turn.state in ("running", "held")]
        places = len(lives.rows("wakes")) + len(turns) + len(lives.rows("dead_letters"))
        assert places == len(sent), directory.name


@pytest.mark.drawn(1)
@pytest.mark.behaviour("D-068")
@pytest.mark.parametrize("point", ["writer.before_commit", "writer.after_commit"])
def test_an_import_is_done_once_in_order_whatever_commit_of_it_dies(
    tmp_path: Path, point: str
) -> None:
    """A store of 128 operations takes 25 entries a commit."""
    deaths = [(tmp_path / f"{nth}", "take_over_queue", f"{point}:{nth}") for nth in range(3, 8)]
    assert play(deaths) == [KILLED] * 5
    left = {len(Lives(directory).rows("ids")) for directory, _, _ in deaths}
    assert left == {0, 25, 50, kinds.QUEUED}, "each part is whole, and a death was behind each"
    assert play([(directory, "take_over_queue", "") for directory, _, _ in deaths]) == [0] * 5
    for directory, _, _ in deaths:
        lives = Lives(directory)
        names = [row.message for row in lives.rows("slots", "ana")]
        assert names == [f"q{number}" for number in range(kinds.QUEUED)], directory.name
        assert not lives.rows("inbox")


POINTS = [
    "ephemeral.started",
    "turn.after_reply",
    "ephemeral.answered",
    *(f"writer.after_commit:{nth}" for nth in range(3, 10)),
]


def test_a_run_that_a_death_cut_off_is_closed_and_never_resumed(tmp_path: Path) -> None:
    deaths = [(tmp_path / str(nth), "run", point) for nth, point in enumerate(POINTS)]
    openings = [(directory, "only_open", "") for directory, _, _ in deaths]
    statuses = play([*deaths, *openings])
    assert statuses.count(KILLED) >= 6
    assert statuses[len(deaths) :] == [0] * len(openings)
    for directory, _, point in deaths:
        lives = Lives(directory)
        assert not lives.rows("ephemerals"), point
        assert not lives.rows("wakes"), point
        assert {turn.state for turn in lives.rows("turns")} <= {"done", "cancelled"}, point
        assert all(lease.turn is None for lease in lives.rows("leases")), point
        assert all(agent.ended_ms is not None for agent in lives.rows("agents")), point


@pytest.mark.drawn(1)
@pytest.mark.behaviour("D-030", "D-036")
@pytest.mark.parametrize(
    "kind",
    ["writer.before_commit", "writer.after_commit", "mode.after_commit", "mode.before_agents"],
)
def test_a_quiesce_that_dies_at_any_commit_loses_and_doubles_nothing(
    tmp_path: Path, kind: str
) -> None:
    last = 3 if kind.startswith("mode") else 22
    points = [f"{kind}:{nth}" for nth in range(1, last)]
    deaths = [(tmp_path / str(nth), "quiesce", point) for nth, point in enumerate(points)]
    statuses = play([*deaths, *((directory, "go_on", "") for directory, _, _ in deaths)])
    assert statuses.count(KILLED) >= min(10, last - 1), "nothing died"
    assert not any(statuses[len(deaths) :])
    for directory, _, point in deaths:
        lives = Lives(directory)
        entries = [row.entry for row in lives.rows("ids", "ana")]
        rows = lives.rows("slots", "ana")
        landed = [row.entry for row in rows if row.turn is None]
        assert landed == sorted(entries), point
        roles = [row.role for row in rows if row.role != "marker"]
        for place, row in enumerate(rows):
            if row.role == "results":
                assert rows[place - 1].role == "assistant", point
        assert not entries or roles[-1] == "assistant", f"{point}: {roles}"
        assert not lives.rows("wakes"), point
        assert not lives.rows("inbox"), point
        assert all(mode.state == "serving" for mode in lives.rows("modes")), point
        assert {turn.state for turn in lives.rows("turns")} <= {"done", "cancelled"}, point
