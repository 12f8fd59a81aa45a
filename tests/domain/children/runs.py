"""Lives of runs, each in a fork that lets itself be killed at a named place. JSON in, JSON out.

A job is a list of lives that are played one after the other, or, of one `at once`, together. Each
opens the runtime at an instant of its own, starts what it is to start, and stays until every run
has ended or waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
import trio.testing

from abeyance.actors import (
    AgentSpec,
    DidNotHappen,
    Happened,
    RunContext,
    RunOpenError,
    open_runtime,
    step_context,
)
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.providers.port import ReplyDelta
from abeyance.actors.testing import ScriptedProvider, WallClock, fail, reply
from abeyance.storage.crashpoints import arm

ITEMS = ("gather", "a", "b", "c", "close")
REAL_S_MAX = 60.0
"""How long a life may take: a bound for tests that fail."""
BLOCKED = "b"
"""The item that meets a wall until the instant that the parameters name."""


class Ledger:
    """Where the effects are: a file with a line for each, by the item's key; and, in another,
    which items it was asked about."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "effects"
        self._questions = directory / "asked"

    def act(self) -> str:
        with self._path.open("a") as lines:
            lines.write(f"{step_context().key}\n")
        return "acted"

    def asked(self, context: Any) -> Any:
        with self._questions.open("a") as lines:
            lines.write(f"{context.key}\n")
        known = self._path.read_text().splitlines() if self._path.exists() else []
        return Happened("acted") if context.key in known else DidNotHappen


def workflow(ledger: Ledger, clock: WallClock) -> Any:
    async def act(name: str, ends_ms: int) -> str:
        await trio.lowlevel.checkpoint()
        if name == BLOCKED and clock.now_ms() < ends_ms:
            raise CapacityExhaustedError(
                (Exhaustion(provider="p", model="m", window="five_hour", retry_at_ms=ends_ms),)
            )
        return ledger.act()

    async def body(run: RunContext, ends_ms: int) -> Any:
        return [await run.do(name, act, name, ends_ms, in_doubt=ledger.asked) for name in ITEMS]

    return body


QUESTIONS = ("first", "second")


async def asks(run: RunContext, _ends_ms: int) -> Any:
    return [await run.ask(name, "ana", f"{name}?") for name in QUESTIONS]


class DiesInTheMiddle:
    """A reply whose stream stands still; the process is killed while it does."""

    async def play(self, call: Any) -> Any:
        call.on_delta(ReplyDelta("text", 0, "half of"))
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGKILL)


def provider(clock: WallClock, ends_ms: int, hangs_at: str | None) -> ScriptedProvider:
    """One that is out for the second question until an instant."""

    def answer(request: Any) -> Any:
        said = request.messages[-1].blocks[0].text
        if said == hangs_at:
            return DiesInTheMiddle()
        if said == "second?" and clock.now_ms() < ends_ms:
            return fail(429, retry_after=(ends_ms - clock.now_ms()) / 1_000)
        return reply(f"re {said}")

    return ScriptedProvider(answer, clock=clock)


async def play(life: dict[str, Any]) -> None:
    directory = Path(life["directory"])
    clock = WallClock(life["now_ms"])
    async with open_runtime(directory / "state", control=False, clock=clock) as runtime:
        runtime.add_workflow("five", workflow(Ledger(directory), clock), buffer_s=0)
        name = life.get("workflow", "five")
        if name == "asks":
            runtime.add_workflow("asks", asks)
            await runtime.add_agent(
                AgentSpec(
                    name="ana",
                    provider=provider(clock, life["ends_ms"], life.get("hangs_at")),
                    model="m",
                )
            )
        for key in life["start"]:
            with suppress(RunOpenError):
                await runtime.start_run(key, name, life["ends_ms"])
        # Another process may end them, which no event here tells.
        with trio.fail_after(REAL_S_MAX):
            while True:
                found = runtime.runs(limit=1_000)
                if all(run.ended or (run.resume_after_ms or 0) > clock.now_ms() for run in found):
                    break
                # Looking reads them all: of a thousand, it would be what most of the time goes to.
                await trio.sleep(max(0.002, len(found) / 2_000))


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
    jobs = json.load(sys.stdin)
    statuses = []
    for job in jobs:
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
