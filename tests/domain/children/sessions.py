"""Lives of a run that stands in a session, each in a fork that is killed at a named place.

JSON in, JSON out: jobs of lives that are played one after the other, as in `runs`. The sessions are
files, as the provider's are where the process has none of them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from abeyance.actors import DidNotHappen, Happened, RunContext, RunOpenError, open_runtime
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.providers.port import ModelRequest, ProviderMessage
from abeyance.actors.testing import ScriptedProvider, ScriptedSessions, WallClock, reply
from abeyance.storage.crashpoints import arm
from abeyance.storage.tables.blocks import TextBlock

from .runs import REAL_S_MAX

SAID = ("plan", "build", "check")
BLOCKED = "build"
"""What meets a wall until the instant that the parameters name."""


def workflow(far: ScriptedSessions, clock: WallClock) -> Any:
    provider = ScriptedProvider(lambda _request: reply("ok"), sessions=far, clock=clock)

    async def say(session: Any, text: str, ends_ms: int) -> str:
        if text == BLOCKED and clock.now_ms() < ends_ms:
            fact = Exhaustion(provider="p", model="m", window="five_hour", retry_at_ms=ends_ms)
            raise CapacityExhaustedError((fact,))
        message = ProviderMessage("user", (TextBlock(text=text),))
        await session.send(ModelRequest("m", (message,)))
        return text

    async def body(run: RunContext, ends_ms: int) -> Any:
        async with run.session("coder", provider) as session:
            handle = str(session.handle)

            def heard(context: Any) -> Any:
                """Ask the far side whether what was being said was heard."""
                text = context.path
                said = [part.text for each in far.messages(handle) for part in each.blocks]  # type: ignore[union-attr]
                return Happened(text) if text in said else DidNotHappen

            return [
                await run.do(text, say, session, text, ends_ms, in_doubt=heard) for text in SAID
            ]

    return body


async def play(life: dict[str, Any]) -> None:
    directory, clock = Path(life["directory"]), WallClock(life["now_ms"])
    far = ScriptedSessions(directory / "far")
    async with open_runtime(directory / "state", control=False, clock=clock) as runtime:
        runtime.add_workflow("code", workflow(far, clock), buffer_s=0)
        with suppress(RunOpenError):
            if not runtime.runs():
                await runtime.start_run("k", "code", life["ends_ms"])
        with trio.fail_after(REAL_S_MAX):
            while not all(  # noqa: ASYNC110
                run.ended or (run.resume_after_ms or 0) > clock.now_ms() for run in runtime.runs()
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
    json.dump(
        [
            [os.waitstatus_to_exitcode(os.waitpid(run(life), 0)[1]) for life in job]
            for job in json.load(sys.stdin)
        ],
        sys.stdout,
    )


if __name__ == "__main__":
    main()
