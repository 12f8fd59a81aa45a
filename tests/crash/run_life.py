"""One life of a host of runs, in a fork that lets itself be killed at a named place.

The workflow has five items and a finaliser. Its effects are lines in a file that outlives every
life, each by its item's key: what is done twice is there twice. What a life meets is decided by the
wall clock and by what the life is told, never by what happened before.
"""

from __future__ import annotations

import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import trio

from abeyance.actors import (
    AgentSpec,
    DidNotHappen,
    Happened,
    ModelChoice,
    RunContext,
    RunOpenError,
    Runtime,
    StepContext,
    open_runtime,
    step_context,
)
from abeyance.actors.domain.run_rows import NOBODY, RunId, in_bucket
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.testing import ScriptedProvider, WallClock, reply
from abeyance.storage import crashpoints
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.ownership import Owner

KEY = "k"
FALLBACKS = (ModelChoice("p", "m2"),)
NOW = 1_791_374_400_000
HOUR = 3_600_000
ITEMS = ("gather", "write/a", "write/b", "write/c", "close", "final/file")
"""Every item's path, in order; the last is the finaliser's."""
ASKED = ("draft", "ana")
"""The item that is an agent's turn, where there is one: behind the others. Whose it is."""
BLOCKED = "b"
"""The item that meets the walls."""
REAL_S_MAX = 60.0
POLL_S = 0.01


class Stage(NamedTuple):
    """What one life is to do, and what it meets."""

    hour: int
    """When it is, in hours after the start."""
    walls: tuple[int | None, ...] = ()
    """The hours until which the item is walled, ascending; None: nobody says until when."""
    acts: tuple[str, ...] = ()
    """What an operator presses: `resume`, `fallback`, `cancel`."""
    start: bool = False
    in_doubt: str = "ask"
    """What becomes of an item in doubt: a function is `ask`ed, `retry`, or an operator decides."""
    agent: Literal["none", "elsewhere", "here"] = "none"
    """Where the agent is whose turn is the last item before the end; `none`: there is no such."""


class Effects:
    """What the items did: a line each, by key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def act(self) -> str:
        with self._path.open("a") as lines:
            lines.write(f"{step_context().key}\n")
        return "acted"

    def known(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    async def asked(self, context: StepContext) -> Any:
        await trio.lowlevel.checkpoint()
        return Happened("acted") if context.key in self.known() else DidNotHappen


class Play:
    """The workflow as one life has it."""

    def __init__(self, effects: Effects, clock: WallClock, stage: Stage) -> None:
        self.effects = effects
        self.clock = clock
        self._stage = stage

    async def body(self, run: RunContext, _params: Any) -> list[str]:
        policy: Any = self.effects.asked if self._stage.in_doubt == "ask" else "recover"
        first = await run.do("gather", self._act, "gather", None, in_doubt=policy)
        with run.step("write", total=3):
            written = [
                await run.do(name, self._act, name, run.choice, in_doubt=policy)
                for name in ("a", BLOCKED, "c")
            ]
        last = await run.do("close", self._act, "close", None, in_doubt=policy)
        if self._stage.agent != "none":
            await run.ask(*ASKED, "hello")
        return [first, *written, last]

    async def file(self, _result: Any) -> str:
        await trio.lowlevel.checkpoint()
        return self.effects.act()

    async def _act(self, name: str, choice: Any) -> str:
        await trio.lowlevel.checkpoint()
        if name == BLOCKED and choice is None:
            self._meet_walls()
        return self.effects.act()

    def _meet_walls(self) -> None:
        for hour in self._stage.walls:
            ends_ms = None if hour is None else NOW + hour * HOUR
            if ends_ms is None or self.clock.now_ms() < ends_ms:
                raise CapacityExhaustedError(
                    (Exhaustion(provider="p", model="m", window="five_hour", retry_at_ms=ends_ms),)
                )


async def live(
    directory: Path,
    stage: Stage,
    keys: tuple[str, ...] = (KEY,),
    within_s: float = REAL_S_MAX,
) -> None:
    """Open the runtime, do what the stage says, and stay until nothing of a run goes on."""
    clock, effects = WallClock(NOW + stage.hour * HOUR), Effects(directory / "effects")
    play = Play(effects, clock, stage)
    if stage.agent == "elsewhere":
        # There is such an agent; then it is not here.
        async with open_runtime(directory / "state", control=False, clock=clock) as runtime:
            await _add_agent(runtime)
    with agent_elsewhere(directory / "state") if stage.agent == "elsewhere" else nullcontext():
        await _live(directory, stage, keys, within_s, play)


@contextmanager
def agent_elsewhere(state: Path) -> Iterator[None]:
    """Within the block the agent is another opening's, which lives for as long as this process."""
    store = LmdbStore.open(state, clock_ms=lambda: NOW)
    proof = FileLock(store.directory / "owners" / store.nonce)
    for kind in ("agent", "slot"):
        row = store.get("owners", (kind, ASKED[1]))
        fence = 1 if row is None else row.record.fence + 1
        put = Put("owners", (kind, ASKED[1]), encode(Owner(nonce=store.nonce, fence=fence)))
        assert isinstance(store.commit(Request(puts=(put,)))[0], Committed)
    store.close()
    proof.acquire_nowait()
    try:
        yield
    finally:
        proof.close()


async def _add_agent(runtime: Runtime) -> None:
    # Whatever of it an earlier life of this stage got to send, there is an answer left.
    provider = ScriptedProvider([reply("hi")] * 3)
    await runtime.add_agent(AgentSpec(name=ASKED[1], provider=provider, model="m"))


async def _live(
    directory: Path, stage: Stage, keys: tuple[str, ...], within_s: float, play: Play
) -> None:
    clock, effects = play.clock, play.effects
    async with open_runtime(directory / "state", control=False, clock=clock) as runtime:
        if stage.agent == "here":
            await _add_agent(runtime)
        # Finalisers are items as others are; the policy of one in doubt is to ask an operator.
        runtime.add_workflow(
            "five", play.body, finalisers=[("file", play.file)], fallbacks=FALLBACKS, buffer_s=0
        )
        with trio.fail_after(within_s):
            if stage.start:
                for key in keys:
                    try:
                        await runtime.start_run(key, "five")
                    except RunOpenError:
                        continue  # An earlier life of this stage got as far as that.
            await settled(runtime, effects, clock)
            for act in stage.acts:
                await press(runtime, act)
                await settled(runtime, effects, clock)


async def press(runtime: Runtime, act: str) -> None:
    match act:
        case "resume":
            await runtime.resume_run(KEY, requester="ops")
        case "fallback":
            await runtime.use_fallback(KEY, provider="p", model="m2", requester="ops")
        case "cancel":
            await runtime.cancel_run(KEY, requester="ops")


async def settled(runtime: Runtime, effects: Effects, clock: WallClock) -> None:
    """Wait until every run has ended or waits for later; decide what is in doubt by its effect."""
    while True:
        for run in runtime.runs(state="recovery_required"):
            await decide(runtime, run.id, effects)
        # By the index, the soonest first: however many there are, one of each tells.
        due = any(
            (run.resume_after_ms or 0) <= clock.now_ms()
            for run in runtime.runs(state="waiting_for_capacity", limit=1)
        )
        if next(in_bucket(runtime._store, "live"), None) is not None and is_left(runtime):
            return
        # In one look behind that one: what is resumed meanwhile is in either, whichever is seen.
        if (
            not due
            and next(in_bucket(runtime._store, "live"), None) is None
            # Behind that look: one that came to need somebody meanwhile is in either, too.
            and not runtime.runs(state="recovery_required", limit=1)
        ):
            return
        await trio.sleep(POLL_S)  # Another process may end them, which no event here tells.


def is_left(runtime: Runtime) -> bool:
    """Whether the run was given up for the process that has its agent."""
    row = runtime._store.get("owners", RunId(KEY, 1).owned)
    where = runtime._store.get("owners", ("agent", ASKED[1]))
    if row is None or row.record.nonce != NOBODY or where is None:
        return False
    nonce = where.record.nonce
    return nonce != runtime._ownership.nonce and runtime._ownership.is_alive(nonce)


async def decide(runtime: Runtime, run: str, effects: Effects) -> None:
    """Decide as an operator who looks whether the item in doubt had its effect."""
    steps = runtime.run_steps(run)
    place = next(number for number, step in enumerate(steps) if step.state == "started")
    happened = f"{run}/{place}" in effects.known()
    if happened:
        await runtime.resume_run(run, requester="ops", in_doubt="done", result="acted")
    else:
        await runtime.resume_run(run, requester="ops", in_doubt="retry")


def fork(
    directory: Path,
    stage: Stage,
    point: str = "",
    keys: tuple[str, ...] = (KEY,),
    within_s: float = REAL_S_MAX,
) -> int:
    """Live a stage in a child process; its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        crashpoints.arm(point)
        trio.run(live, directory, stage, keys, within_s)
        status = 0
    except BaseException:
        with (directory / "error").open("a") as lines:
            traceback.print_exc(file=lines)
    finally:
        os._exit(status)


def count(directory: Path, stage: Stage) -> dict[str, int]:
    """Live a stage undisturbed in a child process; how often it passed each place."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            hits: Counter[str] = Counter()
            passed: Callable[[str], None] = lambda name: hits.update([name])  # noqa: E731
            crashpoints._armed, crashpoints._hit = "nowhere", passed
            trio.run(live, directory, stage)
            os.write(writing, json.dumps(hits).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as counted:
        said = counted.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise RuntimeError(f"an undisturbed life failed: {stage}")
    found: dict[str, int] = json.loads(said)
    return found
