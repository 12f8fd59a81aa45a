"""A host that attaches a picture, or deletes it, and may die in the middle of that."""

from __future__ import annotations

from pathlib import Path

from abeyance.actors import Retention, open_runtime
from abeyance.actors.testing import WallClock
from abeyance.storage.crashpoints import arm

from ..pictures import picture

DAY_MS = 86_400_000


async def attach(directory: Path, point: str, start_ms: int) -> None:
    async with open_runtime(directory, control=False, clock=WallClock(start_ms)) as runtime:
        arm(point)
        await runtime.attach(picture())


async def prune(directory: Path, point: str, start_ms: int) -> None:
    clock = WallClock(start_ms)
    async with open_runtime(
        directory, control=False, clock=clock, retention=Retention(attachments_days=1)
    ) as runtime:
        if not point:
            return
        await runtime.attach(picture())
        clock.advance(2 * DAY_MS)
        runtime._pruner._room = 1
        arm(point)
        await runtime.prune()
