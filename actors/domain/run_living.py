"""One life of a run, from its claim to what it came to, both recorded.

Runs in: the task of the life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio
from msgspec.structs import replace

from abeyance.storage.crashpoints import crashpoint, declare

from .foreign import parted, told
from .run_context import RunContext
from .run_errors import InvalidRunError, RunEndedError, StepFailedError
from .run_items import PASSING_S, Items
from .run_life import Life
from .run_rows import bounded, not_kept, pack_plain, unpacked
from .run_walls import Where, suspend, wall_of
from .run_workflow import Workflow

declare("run.after_running", "a claimed run is recorded as running and its workflow has not begun")
declare("run.before_end", "a run's workflow has returned and its end is not recorded")


async def live(life: Life, workflow: Workflow, running: Callable[[], object]) -> None:
    """Execute a run's workflow and its finalisers, and record what they came to.

    A checkpoint. Cancelled by the life's own scope: what it came to is recorded, or the run goes on
    in another life.

    Args:
        running: Told once a run that was claimed is recorded as running.
    """
    with life.scope:
        await _execute(life, workflow, running)
    if life.failure is not None:
        await _end(life, "failed", reason=life.failure)


async def _execute(life: Life, workflow: Workflow, running: Callable[[], object]) -> None:
    record = life.record
    if record.state == "resuming":
        now_ms = life.clock.now_ms()
        goes_on = replace(record, state="running", suspension=None, reason="", changed_ms=now_ms)
        if not await life.move(goes_on, "runtime"):
            life.end("lost")
            return
        crashpoint("run.after_running")
        running()
    context = RunContext(life)
    try:
        value = await workflow.function(context, unpacked(life.record.params))
        try:
            packed = pack_plain(value, "result")
        except InvalidRunError as refusal:
            raise not_kept(refusal) from None
        life.is_final = True
        for name, function, in_doubt in workflow.finalisers:
            with context.step("final"):
                await context.do(name, function, value, in_doubt=in_doubt)
    except BaseException as error:  # noqa: BLE001 - a workflow's failure is its run's state.
        failure, passing = parted(error)
        if passing is None and failure is not None:
            await _failed(life, failure)
            return
        if failure is not None and not life.is_over():
            # It ends the host; the next one is not to run into it again.
            with trio.move_on_after(PASSING_S, shield=True):
                await _end(life, "failed", reason=told(failure))
        assert passing is not None
        raise passing  # noqa: B904 - as it came, or what of its group is to pass on.
    if life.is_over():
        # The workflow kept what cut it off to itself: what it returned is not its run's result.
        return
    await Items(life).check_whole()
    crashpoint("run.before_end")
    await _end(life, "completed", result=packed)


async def _failed(life: Life, error: BaseException) -> None:
    if life.is_over() or isinstance(error, RunEndedError):
        return
    await Items(life).settle_cut_off()
    wall = None
    if not isinstance(error, StepFailedError | InvalidRunError):
        # Met between two items; there is nothing to run again but what follows.
        wall = wall_of(error, life, Where("between steps", 0, phase="between"))
    if wall is not None:
        await suspend(life, wall)
    else:
        await _end(life, "failed", reason=told(error))


async def _end(
    life: Life,
    state: Literal["completed", "failed"],
    *,
    result: bytes | None = None,
    reason: str = "",
) -> None:
    record = replace(
        life.record,
        state=state,
        result=result,
        reason=bounded(reason),
        suspension=None,
        changed_ms=life.clock.now_ms(),
    )
    moved = await life.move(record, "runtime")
    life.end(state if moved else "lost")
