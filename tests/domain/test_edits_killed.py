"""What a SIGKILL around each commit of an operator's edits leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from abeyance.actors.testing import reply
from abeyance.storage.check import check

from ..lives import KILLED, lived
from .children import editing
from .world import World, shown, texts

ACTS = ["changed", "removed", "sent", "put back", "undone"]
AFTER = [
    ["user: a", "assistant: one"],
    ["user: x", "assistant: one"],
    ["user: x"],
    ["user: x", "user: aside"],
    ["user: x", "assistant: one", "user: aside"],
    ["user: a", "assistant: one", "user: aside"],
]
"""The transcript before the first act, and after each."""


def live(directory: Path, point: str) -> tuple[int, list[str]]:
    ended = lived(editing.live, directory, point)
    return ended.status, ended.out.split("\n")[:-1]


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("point", ["writer.before_commit", "writer.after_commit"])
async def test_an_edit_is_done_whole_or_not_at_all_whenever_its_host_is_killed(
    world: World, virtual_time: MockClock, point: str, nth: int
) -> None:
    code, told = live(world.directory, f"{point}:{nth}")
    assert code == KILLED
    # One commit an act: the n-th died before it, or behind it and before anybody was told.
    assert told == ACTS[: nth - 1]
    stands = nth - 1 if point == "writer.before_commit" else nth
    async with world.open() as runtime:
        ana = await world.add([reply("on")])
        assert await shown(ana) == AFTER[stands]
        assert check(runtime._store).findings == ()
        # What was not done is done now; what was done can be undone, the last first.
        for edit in reversed(ana.edits()):
            if edit.undone_ms is None:
                await ana.undo_edit(edit.edit, requester="ops")
        assert (await shown(ana))[:2] == AFTER[0]
        await ana.send("b")
        await ana.wait_idle()
        aside = ["user: aside"] if stands >= 3 else []
        assert texts(world.providers[0].requests[0]) == [
            *("user: a", "agent: one"),
            *aside,
            "user: b",
        ]
