"""`./dev soak`: a host under a mixed load for minutes, and whether what it holds stays flat.

Agents that talk, use tools, meet limits and are released; runs that are suspended and resumed;
actors that are killed; the runtime closed and opened again every minute, its agents replaced by
others. Meanwhile memory, descriptors, threads, the store and the loop's lateness are sampled. At
the end each acknowledged message must be in a transcript once, and each run's effects made once.

Exit code 1: something was lost, made twice, or did not stay flat. Real time, a real store.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from abeyance.actors import AgentSpec, RunContext, Runtime, Tool, open_runtime
from abeyance.actors.domain.errors import AgentParkedError
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.check import check

AGENTS: Final = 6
SEND_S: Final = 0.15
"""Between two messages to one agent."""
KILL_S: Final = 0.4
RUN_S: Final = 0.7
SAMPLE_S: Final = 1.0
TICK_S: Final = 0.005
WARM_S: Final = 30.0
"""Samples before count for nothing: modules are imported and pools are filled."""
GROWTH_MAX: Final = 1.10
"""By so much the last third's median of memory may be above the first's."""
SPREAD_MAX: Final = 3
"""By so many the last third's median of descriptors and threads may be above the first's."""


@dataclass
class Sample:
    """What was looked at in one second."""

    at_s: float
    memory_mib: float
    mapped_mib: float
    descriptors: int
    threads: int
    store_mib: float
    late_p99_ms: float
    late_max_ms: float


@dataclass
class Load:
    """One soak: what was sent, what was done, what was seen."""

    state: Path
    rng: random.Random
    sent: dict[str, list[str]] = field(default_factory=dict)
    """By agent, the ids of messages that were acknowledged, in order."""
    effects: Counter[str] = field(default_factory=Counter)
    runs: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    providers: list[ScriptedProvider] = field(default_factory=list)

    # -- what the host does

    def answer(self, request: ModelRequest) -> Step:
        last = request.messages[-1].blocks[-1]
        kind = type(last).__name__
        draw = self.rng.random()
        self.counts["calls"] += 1
        if kind != "ToolResultBlock" and draw < 0.05:
            self.counts["limits"] += 1
            return fail(429, retry_after=self.rng.choice([1, 2, 30]))
        if draw < 0.07:
            self.counts["failures"] += 1
            return fail(503)
        if kind != "ToolResultBlock" and draw < 0.4:
            return call_tool("note", {"text": "x"})
        return reply("y" * 200)

    def spec(self, name: str) -> AgentSpec:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tool = Tool(name="note", description="Note.", input_schema=schema, run=lambda text: text)
        provider = ScriptedProvider(self.answer)
        self.providers.append(provider)
        return AgentSpec(name=name, provider=provider, model="m", tools=[tool])

    async def workflow(self, run: RunContext, params: Any) -> Any:
        async def effect(number: int) -> int:
            self.effects[f"{run.key} {number}"] += 1
            return number

        async def wall() -> str:
            if self.rng.random() < 0.5:
                out = Exhaustion(
                    provider="p", model="m", retry_at_ms=int(time.time() * 1_000) + 1_500
                )
                self.counts["suspensions"] += 1
                raise CapacityExhaustedError((out,))
            return "through"

        await run.do("first", lambda: effect(1))
        await run.do("wall", wall)
        return await run.do("second", lambda: effect(2))

    # -- the load

    async def life(self, number: int, until_s: float) -> None:
        """Open the store, serve a generation of agents until an instant, and close it."""
        names = [f"a{number}-{place}" for place in range(AGENTS)]
        self.providers.clear()
        async with open_runtime(self.state, control=False) as runtime:
            self.counts["lives"] += 1
            runtime.add_workflow("soak", self.workflow, buffer_s=0)
            for name in names:
                await runtime.add_agent(self.spec(name))
                self.sent[name] = []
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(self.send, runtime, name)
                for act in (self.kill, self.release, self.start_runs):
                    nursery.start_soon(act, runtime, names)
                await trio.sleep_until(until_s)
                nursery.cancel_scope.cancel()
            with trio.move_on_after(60) as settling:
                for name in names:
                    await self.settle(runtime, name)
                    await self.look(runtime, name)
                    await runtime.remove_agent(name, requester="soak")
            self.counts["lives that did not settle"] += settling.cancelled_caught

    async def send(self, runtime: Runtime, name: str) -> None:
        for number in range(10**9):
            await trio.sleep(self.rng.uniform(0, 2 * SEND_S))
            message = f"{name}-{number}"
            with trio.CancelScope(shield=True):
                while True:
                    try:
                        await runtime.agent(name).send("x" * 100, author="user", id=message)
                    except AgentParkedError:
                        self.counts["parked"] += 1
                        await runtime.resume_agent(name, requester="soak")
                        continue
                    except Exception:  # noqa: BLE001 - a killed actor's; the same id is sent again.
                        self.counts["sent again"] += 1
                        await trio.sleep(0.05)
                        continue
                    break
            self.sent[name].append(message)
            self.counts["messages"] += 1

    async def kill(self, runtime: Runtime, names: list[str]) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0, 2 * KILL_S))
            name = self.rng.choice(names)
            actor = self.rng.choice([name, f"slot:{name}", f"gate:{name}"])
            ref = runtime._system.find(actor)
            if ref is not None:
                self.counts["kills"] += 1
                ref.kill("the soak")

    async def release(self, runtime: Runtime, names: list[str]) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0, 3))
            waits = runtime.provider_waits()
            if waits:
                self.counts["releases"] += 1
                wait = self.rng.choice(waits)
                await runtime.release_provider_wait(wait.agent, requester="soak")

    async def start_runs(self, runtime: Runtime, names: list[str]) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0, 2 * RUN_S))
            key = f"run-{len(self.runs)}"
            with trio.CancelScope(shield=True):
                await runtime.start_run(key, "soak")
            self.runs.append(key)

    async def settle(self, runtime: Runtime, name: str) -> None:
        """Have an agent come to rest: what holds it is released, and what was parked goes on."""
        while True:
            try:
                await runtime.agent(name).wait_idle()
            except AgentParkedError:
                self.counts["parked"] += 1
                await runtime.resume_agent(name, requester="soak")
                continue
            if all(wait.agent != name for wait in runtime.provider_waits()):
                return
            await runtime.release_provider_wait(name, requester="soak")
            await trio.sleep(SAMPLE_S / 10)

    async def look(self, runtime: Runtime, name: str) -> None:
        """Each acknowledged message is in the transcript once, in its order."""
        sent = set(self.sent[name])
        found = [m.id async for m in runtime.agent(name).transcript() if m.id in sent]
        if found != self.sent[name]:
            self.counts["lost or out of order"] += 1
        self.sent[name] = []

    # -- what is seen

    async def tick(self) -> None:
        while True:
            due = trio.current_time() + TICK_S
            await trio.sleep_until(due)
            self.late_ms.append((trio.current_time() - due) * 1_000)

    async def sample(self) -> None:
        begun = trio.current_time()
        data = self.state / "store" / "data.mdb"
        while True:
            await trio.sleep(SAMPLE_S)
            for provider in self.providers:
                # They note every request for tests, whose memory this is not about.
                for noted in (provider.requests, provider.permits, provider.exchanges):
                    noted.clear()
            late, self.late_ms = sorted(self.late_ms), []
            if not late or not data.exists():
                continue
            self.samples.append(
                Sample(
                    trio.current_time() - begun,
                    *_process(),
                    threading.active_count(),
                    data.stat().st_blocks * 512 / 2**20,
                    late[int(len(late) * 0.99)],
                    late[-1],
                )
            )

    async def run(self, seconds: float, reopen_s: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tick)
            nursery.start_soon(self.sample)
            ends = trio.current_time() + seconds
            number = 0
            while (left := ends - trio.current_time()) > 0:
                await self.life(number, trio.current_time() + min(reopen_s, left))
                # What a life left in rings of references, and what the allocator keeps of what
                # was freed, is not held.
                gc.collect()
                _trim()
                number += 1
            await self.finish_runs()
            nursery.cancel_scope.cancel()

    async def finish_runs(self) -> None:
        async with open_runtime(self.state, control=False) as runtime:
            runtime.add_workflow("soak", self.workflow, buffer_s=0)
            with trio.move_on_after(120):
                for key in self.runs:
                    await runtime.wait_run(key)
            self.counts["runs not ended"] = len(runtime.runs(state="open", limit=1_000))
            self.counts["findings"] = len(check(runtime._store).findings)


def _trim() -> None:
    """Give what was freed back to the system, where the allocator is one that can be asked to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _process() -> tuple[float, float, int]:
    """MiB of memory of the process's own, MiB of files that are mapped, and its descriptors.

    What is mapped of the store is in the system's cache, and goes when somebody needs the room.
    """
    page_mib = os.sysconf("SC_PAGE_SIZE") / 2**20
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    descriptors = len(os.listdir("/proc/self/fd"))
    return (resident - shared) * page_mib, shared * page_mib, descriptors


def verdicts(load: Load) -> list[str]:
    """What did not hold, a line each."""
    wrong = [
        f"{load.counts[what]} {what}"
        for what in (
            "lives that did not settle",
            "lost or out of order",
            "runs not ended",
            "findings",
        )
        if load.counts[what]
    ]
    expected = {f"{key} {number}": 1 for key in load.runs for number in (1, 2)}
    if dict(load.effects) != expected:
        odd = [key for key in {*expected, *load.effects} if load.effects[key] != 1]
        wrong.append(f"{len(odd)} effects were not made once, as {odd[0]}")
    kept = [sample for sample in load.samples if sample.at_s >= WARM_S] or load.samples
    third = max(1, len(kept) // 3)
    first, last = kept[:third], kept[-third:]

    def median(samples: list[Sample], name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in samples))

    before, after = median(first, "memory_mib"), median(last, "memory_mib")
    if after > before * GROWTH_MAX:
        wrong.append(f"memory went from {before:.0f} to {after:.0f} MiB")
    for name in ("descriptors", "threads"):
        before, after = median(first, name), median(last, name)
        if after > before + SPREAD_MAX:
            wrong.append(f"{name} went from {before:.0f} to {after:.0f}")
    return wrong


def show(load: Load) -> None:
    columns = ("own MiB", "mapped MiB", "descriptors", "threads", "store MiB")
    print("   ".join(["minute", *columns, "late p99 ms", "late max ms"]))
    minutes: dict[int, list[Sample]] = {}
    for sample in load.samples:
        minutes.setdefault(int(sample.at_s // 60), []).append(sample)
    for minute, samples in minutes.items():
        figures = (
            statistics.median(sample.memory_mib for sample in samples),
            statistics.median(sample.mapped_mib for sample in samples),
            max(sample.descriptors for sample in samples),
            max(sample.threads for sample in samples),
            samples[-1].store_mib,
            statistics.median(sample.late_p99_ms for sample in samples),
            max(sample.late_max_ms for sample in samples),
        )
        row = "{:>6}   {:>7.1f}   {:>10.1f}   {:>11}   {:>7}   {:>9.1f}   {:>11.1f}   {:>11.1f}"
        print(row.format(minute + 1, *figures))
    print(", ".join(f"{name} {count:,}" for name, count in sorted(load.counts.items())))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--reopen-s", type=float, default=60.0, help="how long one opening serves")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", metavar="FILE", type=Path, help="where to write every sample")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes:g} min, opened anew every {options.reopen_s:g} s")
    with tempfile.TemporaryDirectory(prefix="abeyance-soak-") as directory:
        load = Load(Path(directory) / "state", random.Random(seed))
        trio.run(load.run, options.minutes * 60, options.reopen_s)
    show(load)
    if options.json is not None:
        samples = [asdict(sample) for sample in load.samples]
        figures = {"seed": seed, "counts": load.counts, "samples": samples}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    wrong = verdicts(load)
    print("\n".join(wrong) if wrong else "Flat, and every message and effect once.")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
