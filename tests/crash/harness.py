"""Kills the demo's host in the first half of its play, again and again, and judges what is left.

A trial is one play on a fresh state directory: the host is killed at random instants (or dies at a
named crash point), started again until the play has reached its hold, released, run to rest,
stopped; then everything is read back and judged. Processes, sockets, signals and the disk are real;
instants are seeded, what they hit is the machine's.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from abeyance.actors.ops.client import ControlClient, HostSilentError, NoHostError
from abeyance.actors.ops.demo.children import (
    Child,
    ChildDiedError,
    DemoError,
    HostSetting,
    launch_host,
    start_simulator,
    wait_ready,
)
from abeyance.actors.ops.demo.first_half import Acks, play_first_half, until_rest
from abeyance.actors.ops.demo.play import ANA, BO, MODELS
from abeyance.actors.ops.demo.wire import read_calls

from .forked import Zygote
from .rows import Snapshot, read_snapshot
from .verdict import Observed, Verdict, judge

TRIAL_S_MAX = 60.0
TOOL_S = 0.03
FIRST_BYTE_MS = 2
KILLS_A_TRIAL_MAX = 2
"""A third crash of one turn fails it, as the runtime promises; that is another test's subject."""


@dataclass(slots=True)
class Trial:
    """What one trial came to."""

    number: int
    seed: int
    kills: int = 0
    deaths: int = 0
    """Deaths that nobody here caused: a crash point, or a fault."""
    verdict: Verdict = field(default_factory=Verdict)
    observed: Observed | None = None
    seconds: float = 0.0
    first_half_s: float = 0.0
    kept: Path | None = None
    """Where the evidence lies, for a trial with violations."""


class StuckError(Exception):
    """A trial that did not come to its end: as bad as a loss."""


class Player:
    """One trial, from a fresh directory to its verdict."""

    def __init__(
        self, zygote: Zygote, trial: Trial, delays_s: list[float], crash_at: str = ""
    ) -> None:
        self._zygote = zygote
        self._trial = trial
        self._delays_s = delays_s
        self._crash_at = crash_at
        self._told: list[dict[str, Any]] = []
        self._snapshots: list[tuple[Snapshot, list[str]]] = []
        self._status = ""

    async def run(self) -> None:
        """Play, kill, read back, judge. The verdict is in the trial."""
        started = time.monotonic()
        root = Path(tempfile.mkdtemp(prefix="abeyance-kill-"))
        try:
            with trio.fail_after(TRIAL_S_MAX):
                observed = await self._play(root)
            self._trial.observed = observed
            self._trial.verdict = judge(observed)
        except* (StuckError, trio.TooSlowError, DemoError) as group:
            for error in _leaves(group):
                self._trial.verdict.violations.append(f"stuck {self._status}: {error!r}")
        if self._trial.verdict.violations:
            self._trial.kept = root
        else:
            shutil.rmtree(root)
        self._trial.seconds = time.monotonic() - started

    async def _play(self, root: Path) -> Observed:
        acks = Acks(root / "acks.jsonl")
        setting: HostSetting | None = None
        async with trio.open_nursery() as nursery:
            simulator, base_url = await start_simulator(
                nursery,
                root / "wire.jsonl",
                *("--first-byte-ms", str(FIRST_BYTE_MS), "--chunk-delay-ms", "1"),
                launch=self._zygote.launch,
            )
            setting = HostSetting(
                root / "state", root / "effects", MODELS, base_url=base_url, tool_s=TOOL_S
            )
            try:
                began = time.monotonic()
                host = await self._to_the_hold(nursery, setting, acks)
                self._trial.first_half_s = time.monotonic() - began
                observed = await self._to_the_end(nursery, setting, acks, host, simulator)
            finally:
                with trio.CancelScope(shield=True):
                    for process in self._zygote.running():
                        process.kill()
                        await process.wait()
                acks.close()
                nursery.cancel_scope.cancel()
        observed.calls = read_calls(root / "wire.jsonl")
        effects = root / "effects"
        observed.effects = effects.read_text().split() if effects.exists() else []
        observed.final = read_snapshot(setting.state, _now_ms())
        return observed

    async def _to_the_hold(self, nursery: trio.Nursery, setting: HostSetting, acks: Acks) -> Child:
        """Play the first half, starting the host anew after each death, until no kill is owed."""
        while True:
            self._status = "in the first half"
            host = await self._start(nursery, setting)
            async with trio.open_nursery() as killing:
                due = trio.Event()
                owed = bool(self._delays_s)
                if owed:
                    killing.start_soon(self._kill_after, host, self._delays_s.pop(0), due)
                try:
                    await wait_ready(host)
                    await play_first_half(host, acks)
                except ChildDiedError:
                    pass
                else:
                    if not owed:
                        return host
                    # It was faster than its killer: then it dies in the hold.
                    due.set()
                await host.process.wait()
                killing.cancel_scope.cancel()
            self._note_death(host, setting, acks, owed)

    async def _start(self, nursery: trio.Nursery, setting: HostSetting) -> Child:
        environment = {}
        if self._crash_at:
            environment = {"ABEYANCE_CRASH_AT": self._crash_at}
        host = await launch_host(setting, self._zygote.launch, environment)
        nursery.start_soon(host.read)
        return host

    async def _kill_after(self, host: Child, delay_s: float, due: trio.Event) -> None:
        with trio.move_on_after(delay_s):
            await due.wait()
        await host.kill()

    def _note_death(self, host: Child, setting: HostSetting, acks: Acks, owed: bool) -> None:
        status = host.process.status  # type: ignore[attr-defined]
        if status != -9:
            raise StuckError(f"the host ended by itself with {status}")
        if owed and not self._crash_at:
            self._trial.kills += 1
        else:
            self._trial.deaths += 1
        self._crash_at = ""
        self._told += [event for event in host.events if event["event"] == "told"]
        snapshot = read_snapshot(setting.state, _now_ms())
        acked = [row["id"] for row in acks.rows]
        if snapshot is not None:
            self._snapshots.append((snapshot, acked))
        elif acked:
            raise StuckError("messages had receipts and there is no store")

    async def _to_the_end(
        self,
        nursery: trio.Nursery,
        setting: HostSetting,
        acks: Acks,
        host: Child,
        simulator: Child,
    ) -> Observed:
        """Release, rest, read back, stop; a death on the way starts the host once more."""
        await simulator.tell("lift")
        await simulator.wait_event(lambda event: event["event"] == "lifted")
        observed = Observed(acks=acks.rows, snapshots=self._snapshots, released_ms=_now_ms())
        while True:
            try:
                self._status = "in the second half"
                await wait_ready(host)
                await trio.to_thread.run_sync(_release, setting.state)
                await until_rest(host)
                observed.transcripts = {
                    agent: await host.ask("transcript", agent=agent) for agent in (ANA, BO)
                }
                self._status = "at the stop"
                await host.tell("stop")
                status = await host.wait_gone()
                if status == 0:
                    break
            except (ChildDiedError, HostSilentError, NoHostError):
                await host.process.wait()
            self._note_death(host, setting, acks, owed=False)
            host = await self._start(nursery, setting)
        self._told += [event for event in host.events if event["event"] == "told"]
        observed.told = self._told
        observed.kills = self._trial.kills + self._trial.deaths
        return observed


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _release(state: Path) -> None:
    with ControlClient(state) as client:
        client.release(ANA, requester="cli:harness")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def kill_at_random(
    zygote: Zygote, kills: int, seed: int, on_trial: Callable[[Trial], None]
) -> list[Trial]:
    """Run trials until that many kills were made. Each trial's seed follows from `seed`."""
    span_s = await _measure(zygote, on_trial)
    chooser = random.Random(seed)
    trials: list[Trial] = []
    made = 0
    while made < kills:
        trial = Trial(len(trials) + 1, chooser.getrandbits(32))
        dice = random.Random(trial.seed)
        wanted = min(dice.randint(1, KILLS_A_TRIAL_MAX), kills - made)
        delays_s = [dice.uniform(0, span_s) for _ in range(wanted)]
        await Player(zygote, trial, delays_s).run()
        trials.append(trial)
        made += max(1, trial.kills)
        on_trial(trial)
    return trials


async def _measure(zygote: Zygote, on_trial: Callable[[Trial], None]) -> float:
    """How long the first half takes undisturbed: kills are spread over that."""
    trial = Trial(0, 0)
    await Player(zygote, trial, []).run()
    on_trial(trial)
    return trial.first_half_s


async def kill_at_points(
    zygote: Zygote, points: list[str], hits: int, on_trial: Callable[[Trial, str], None]
) -> None:
    """Run a trial for each point's 1st, 2nd, ... hit, up to `hits` or the last one there is."""
    number = 0
    for point in points:
        for hit in range(1, hits + 1):
            number += 1
            trial = Trial(number, 0)
            await Player(zygote, trial, [], crash_at=f"{point}:{hit}").run()
            on_trial(trial, f"{point}:{hit}")
            if not trial.deaths:
                break
