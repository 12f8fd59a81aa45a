"""Lives with a schedule, each in a fork that lets itself be killed at a named place. JSON in, out.

A job is a list of lives that are played one after the other, or, of one `at_once`, together. Each
opens the runtime at an instant of its own, adds the schedules, and stays until what was due by then
was decided and its runs have ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import trio

from abeyance.actors import RunContext, open_runtime
from abeyance.actors.testing import WallClock
from abeyance.storage.crashpoints import arm

from .runs import REAL_S_MAX, Ledger


def workflow(ledger: Ledger) -> Any:
    async def act() -> str:
        await trio.lowlevel.checkpoint()
        return ledger.act()

    async def body(run: RunContext, params: Any) -> Any:
        return await run.do("work", act, in_doubt=ledger.asked)

    return body


async def play(life: dict[str, Any]) -> None:
    directory = Path(life["directory"])
    clock = WallClock(life["now_ms"])
    async with open_runtime(directory / "state", control=False, clock=clock) as runtime:
        runtime.add_workflow("report", workflow(Ledger(directory)))
        for name in life["add"]:
            await runtime.add_schedule(name, "report", every=3_600)
        # Another process may decide and end them, which no event here tells.
        with trio.fail_after(REAL_S_MAX):
            while not (  # noqa: ASYNC110
                all((each.next_ms or 0) > clock.now_ms() for each in runtime.schedules())
                and all(run.ended for run in runtime.runs(limit=1_000))
            ):
                await trio.sleep(0.002)


def run(life: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            arm(life["point"])
            trio.run(play, life)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def main() -> None:
    statuses = []
    for job in json.load(sys.stdin):
        if job["at_once"]:
            pids = [run(life) for life in job["lives"]]
            statuses.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
        else:
            statuses.append(
                [os.waitstatus_to_exitcode(os.waitpid(run(life), 0)[1]) for life in job["lives"]]
            )
    json.dump(statuses, sys.stdout)


if __name__ == "__main__":
    main()
