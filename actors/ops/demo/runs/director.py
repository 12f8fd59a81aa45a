"""Runs the runs' demo: starts the processes, kills two hosts, has others go on, and collects.

Invariants:
    I1  Every child is ended before `run_runs_demo` returns, however it returns.
    I2  The director only commands, watches and collects; what holds is decided by the audit.

Runs a trio loop of its own in the calling thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import trio
from rich.console import Console

from ..audit import DemoReport
from ..children import START_S_MAX, Child, DemoError, launch
from ..site import check_sdk, demo_site
from ..site import play as play_through
from ..stage import Stage
from ..wire import Tail, read_calls
from . import play
from .audit import RunEvidence, audit

HOST: Final = "abeyance.actors.ops.demo.runs.host"
PROVIDER: Final = "abeyance.actors.ops.demo.runs.provider"
ENDPOINT: Final = "abeyance.actors.ops.demo.runs.endpoint"
STEP_S_MAX: Final = 60.0 + play.WALL_S_MAX
"""How long one thing that is waited for may take; the wall itself is part of one."""
STARTS_IN_THE_WAIT: Final = 6
"""How many process starts, one after the other, must fit between the wall and its end."""
_DEMO_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class RunsDemoOptions:
    """Where to play."""

    state: Path | None = None
    """An empty or new directory to work in. By default a temporary one."""
    keep: bool = False
    """Whether a temporary directory is left behind."""


def run_runs_demo(options: RunsDemoOptions, console: Console | None = None) -> DemoReport:
    """Play the runs' demo and return what it came to. Blocks for about fifteen seconds.

    Args:
        console: Where to show it as it happens; None shows nothing.
    Raises:
        DemoError: It could not be played to its end; every child is ended.
        StateUnusableError: The directory is not empty, or cannot be made; it was left alone. Or
            there is no room in it; every child is ended.
        KeyboardInterrupt: Ctrl-C; every child is ended.
    """
    check_sdk()
    with demo_site(options.state, keep=options.keep) as root:
        director = _Director(options, root, Stage(console))
        play_through(director.run, root)
        return director.report()


@dataclass
class _Director:
    options: RunsDemoOptions
    root: Path
    stage: Stage
    evidence: RunEvidence = field(default_factory=RunEvidence)
    _children: list[Child] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = self.root / "state"
        self.wire = self.root / "wire.jsonl"
        self.posts = self.root / "posts.jsonl"

    async def run(self) -> None:
        with trio.fail_after(_DEMO_S_MAX):
            async with trio.open_nursery() as nursery:
                try:
                    await self._play(nursery)
                finally:
                    with trio.CancelScope(shield=True):
                        for child in self._children:
                            await child.kill()
                nursery.cancel_scope.cancel()

    async def _play(self, nursery: trio.Nursery) -> None:
        self.stage.heading("A report of five steps, which posts as it goes")
        served: dict[str, tuple[Child, str]] = {}

        async def serve(module: str, log: Path, *options: str) -> None:
            served[module] = await self._serve(nursery, module, log, *options)

        async with trio.open_nursery() as both:
            both.start_soon(serve, PROVIDER, self.wire)
            both.start_soon(serve, ENDPOINT, self.posts, "--held", play.HELD_POST)
        (provider, base_url), (endpoint, url) = served[PROVIDER], served[ENDPOINT]
        nursery.start_soon(self._watch_wire)
        self._arguments = [
            *("--state", os.fspath(self.state), "--base-url", base_url, "--endpoint", url)
        ]
        began = trio.current_time()
        first = await self._start_host(nursery, "A")
        start_s = trio.current_time() - began
        wall_s = play.WALL_S_MIN + STARTS_IN_THE_WAIT * start_s
        await provider.send(wall=min(wall_s, play.WALL_S_MAX))
        await first.tell("start")
        await self._until(first, "run", state="waiting_for_capacity")
        # It is due before this at the latest.
        due_s = time.time() + wall_s + play.BUFFER_S
        await self._look(first)
        check_waits(self.evidence.waiting, due_s, time.time())
        await self._kill_in_the_wait(first)
        check_waits(self.evidence.left, due_s, time.time())
        self.stage.heading("Two other hosts come up, and both want to resume it")
        others: list[Child] = []
        async with trio.open_nursery() as starting:
            for name in ("B", "C"):
                starting.start_soon(self._start_into, others, nursery, name)
        self._show_waiting(len(others))
        await self._until(endpoint, "post", item=play.HELD_POST)
        await self._kill_in_a_post(others)
        fourth = await self._start_host(nursery, "D")
        await self._until(fourth, "run", state="completed")
        await self._end([*others, fourth], endpoint)

    async def _look(self, host: Child) -> None:
        """While it waits: what the command line says of it, and whether another may start."""
        self.evidence.waiting = await self._read_and_show()
        await host.tell("start")
        refused = await self._until(host, "refused")
        self.evidence.refused = refused["code"]
        self.stage.say("host", f"A is asked to start another of {play.KEY}: {refused['code']}")

    async def _kill_in_the_wait(self, host: Child) -> None:
        self.stage.heading("The host dies in the wait")
        self.evidence.killed_waiting = await self._kill(host)
        self.evidence.left = left = await self._read_one()
        self.stage.say("shell", "$ abeyance runs .../state --json")
        self.stage.show(str(left["text"]))

    async def _kill_in_a_post(self, others: list[Child]) -> None:
        """Kill whichever resumed it. It posted, and has not heard so."""
        resumed = [each for each in others if any(_is_state(e, "resuming") for e in each.events)]
        if len(resumed) != 1:
            raise DemoError(
                f"{len(resumed)} hosts say that they resumed the run; every child is ended; what "
                f"it left is in {self.root} if it was kept (--keep)"
            )
        self.stage.heading("The host that resumed it dies in the middle of a post")
        self.evidence.killed_posting = await self._kill(resumed[0])
        others.remove(resumed[0])

    async def _end(self, hosts: list[Child], endpoint: Child) -> None:
        self.stage.heading("It has completed; an operator presses resume and cancel")
        presses: dict[str, Mapping[str, Any]] = {}

        async def press(verb: str) -> None:
            printed, status = await self._command(verb, os.fspath(self.state), play.KEY, "--json")
            pressed = json.loads(printed) if status == 0 else {}
            presses[verb] = {**pressed, "exit": status}
            self.stage.say("shell", f"$ abeyance {verb} .../state {play.KEY} --json")
            self.stage.show(json.dumps(pressed))

        async with trio.open_nursery() as pressing:
            for verb in ("resume", "cancel"):
                pressing.start_soon(press, verb)
        self.evidence.presses = [presses["resume"], presses["cancel"]]
        async with trio.open_nursery() as reading:
            reading.start_soon(self._read_end)
            reading.start_soon(self._show, "runs", os.fspath(self.state), play.KEY)
        for host in hosts:
            await host.tell("stop")
            await host.wait_gone()
        self.evidence.calls = read_calls(self.wire)
        self.evidence.posts = list(Tail(self.posts).lines())
        self.evidence.asked = [e["key"] for e in endpoint.events if e["event"] == "asked"]
        # Beside the logs, so that whoever keeps the state can audit it again.
        saved = {name: value for name, value in asdict(self.evidence).items() if name != "calls"}
        (self.root / "evidence.json").write_text(json.dumps(saved, indent=1))

    async def _read_end(self) -> None:
        printed, _ = await self._command("runs", os.fspath(self.state), play.KEY, "--json")
        self.evidence.detail = json.loads(printed)
        printed, _ = await self._command("runs", os.fspath(self.state), "--all", "--json")
        self.evidence.runs = len(json.loads(printed)["runs"])

    # -- processes ---------------------------------------------------------------------------

    async def _serve(
        self, nursery: trio.Nursery, module: str, log: Path, *options: str
    ) -> tuple[Child, str]:
        child = Child(await launch(module, ["--log", os.fspath(log), *options], {}))
        self._children.append(child)
        child.on_event = self._show_event
        nursery.start_soon(child.read)
        serving = await self._until(child, "serving", within_s=START_S_MAX)
        return child, str(serving["url"])

    async def _start_host(self, nursery: trio.Nursery, name: str) -> Child:
        host = Child(await launch(HOST, self._arguments, {}))
        self._children.append(host)
        self._names[host.pid] = name
        host.on_event = lambda event: self._show_event({**event, "host": name})
        nursery.start_soon(host.read)
        with trio.fail_after(START_S_MAX):
            event = await host.wait_event(lambda event: event["event"] in ("ready", "failed"))
        if event["event"] == "failed":
            raise DemoError(f"host {name} did not start: {event['text']}")
        self.stage.say("host", f"{name} is pid {host.pid} and has the workflow")
        return host

    async def _start_into(self, hosts: list[Child], nursery: trio.Nursery, name: str) -> None:
        hosts.append(await self._start_host(nursery, name))

    def _show_waiting(self, hosts: int) -> None:
        """Count the hosts that were there in time."""
        left_s = (self.evidence.left.get("resume_after_ms") or 0) / 1_000 - time.time()
        self.evidence.hosts_waiting = hosts if left_s > 0 else 0
        self.stage.say("host", f"both wait for {max(0.0, left_s):.1f} s")

    async def _kill(self, host: Child) -> int:
        status = await host.kill()
        self.stage.say("kill", f"SIGKILL to {self._names[host.pid]}, pid {host.pid}: exit {status}")
        return status

    async def _until(
        self, child: Child, event: str, *, within_s: float = STEP_S_MAX, **fields: Any
    ) -> Mapping[str, Any]:
        """The first event of a child that has these fields."""
        wanted = {"event": event, **fields}
        with trio.fail_after(within_s):
            return await child.wait_event(lambda found: wanted.items() <= found.items())

    # -- the command line --------------------------------------------------------------------

    async def _command(self, *command: str) -> tuple[str, int]:
        """Run the real command line in a process of its own: what it printed, and its exit code."""
        done = await trio.run_process(
            [sys.executable, "-m", "abeyance.actors.ops.cli", *command],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "COLUMNS": "72"},
        )
        return (done.stdout or done.stderr).decode(), done.returncode

    async def _show(self, *command: str) -> None:
        shown = " ".join(part.replace(os.fspath(self.root), "...") for part in command)
        printed, _ = await self._command(*command)
        self.stage.say("shell", f"$ abeyance {shown}")
        self.stage.show(printed)

    async def _read_and_show(self) -> Mapping[str, Any]:
        """The only run, as a program and as a person reads of it, at once."""
        read: list[Mapping[str, Any]] = []

        async def into() -> None:
            read.append(await self._read_one())

        async with trio.open_nursery() as both:
            both.start_soon(into)
            both.start_soon(self._show, "runs", os.fspath(self.state))
        return read[0]

    async def _read_one(self) -> Mapping[str, Any]:
        """The only run, as the command line tells of it."""
        printed, status = await self._command("runs", os.fspath(self.state), "--json")
        if status != 0:
            raise DemoError(f"the runs could not be listed: {printed}")
        (run,) = json.loads(printed)["runs"]
        found: Mapping[str, Any] = run
        return found

    # -- showing -----------------------------------------------------------------------------

    def report(self) -> DemoReport:
        kept = self.options.keep or self.options.state is not None
        report = DemoReport(
            provider="simulator",
            seconds=round(self.stage.seconds, 1),
            state=os.fspath(self.root) if kept else None,
            promises=audit(self.evidence),
        )
        self.stage.table(report)
        return report

    def _show_event(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "run":
                self.stage.say("host", f"{event['host']}: {event['run']} is {event['state']}")
            case "post":
                self.stage.say("post", f"{event['item']}: {event['text']}")
            case "asked":
                known = "it has" if event["known"] else "it has not"
                self.stage.say("post", f"asked for {event['key']}, which {known}")

    async def _watch_wire(self) -> None:
        tail = Tail(self.wire)
        while True:
            for line in tail.lines():
                if line["event"] == "received":
                    asked = play.asked(line["request"])
                    self.stage.say("wire", f"call {line['number']}: {asked}")
                elif line["status"] != 200:
                    self.stage.say("wire", f"call {line['number']}: answered {line['status']}")
            await trio.sleep(0.02)


def check_waits(read: Mapping[str, Any], due_s: float, now_s: float) -> None:
    """What is still to be done in the wait cannot be, where that is over.

    Raises:
        DemoError: The run was taken up, and its time had come.
    """
    if read["state"] != "waiting_for_capacity" and now_s >= due_s:
        raise DemoError(
            "the run's wait was over before its host was killed in it: the machine has been much "
            "busier than when that began; every child is ended, and nothing was shown to fail; "
            "play it again"
        )


def _is_state(event: Mapping[str, Any], state: str) -> bool:
    return bool(event["event"] == "run" and event["state"] == state)
