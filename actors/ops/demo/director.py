"""Runs the demo: starts the processes, plays both halves, kills, restarts, releases, collects.

Invariants:
    I1  Every child is ended before `run_demo` returns, however it returns.
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

from .audit import DemoReport, Evidence, audit
from .children import (
    Child,
    DemoError,
    HostSetting,
    launch_host,
    start_simulator,
    wait_ready,
)
from .first_half import POLL_S, Acks, play_first_half, until_held, until_rest
from .play import ANA, BO, MODELS, Line
from .site import check_sdk, demo_site, play
from .stage import Stage
from .wire import Tail, WireCall, read_calls

WATCHED_S: Final = 1.5
"""How long the audience watches the restarted host make no call."""
REAL_MODEL: Final = "claude-haiku-4-5"
_DEMO_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to play, and where."""

    provider: str = "simulator"
    """`simulator`, or `anthropic` with a key in ANTHROPIC_API_KEY."""
    model: str | None = None
    """With `anthropic`: the model of both agents."""
    state: Path | None = None
    """An empty or new directory to work in. By default a temporary one."""
    keep: bool = False
    """Whether a temporary directory is left behind."""
    tool_s: float = 0.6
    """How long the slow tool takes; messages are sent meanwhile."""


def run_demo(options: DemoOptions, console: Console | None = None) -> DemoReport:
    """Play the demo and return what it came to. Blocks for about ten seconds.

    Args:
        console: Where to show it as it happens; None shows nothing.
    Raises:
        DemoError: It could not be played to its end; every child is ended.
        StateUnusableError: The directory is not empty, or cannot be made; it was left alone. Or
            there is no room in it; every child is ended.
        KeyboardInterrupt: Ctrl-C; every child is ended.
    """
    _check(options)
    with demo_site(options.state, keep=options.keep) as root:
        director = _Director(options, root, Stage(console))
        play(director.run, root)
        return director.report()


def _check(options: DemoOptions) -> None:
    check_sdk()
    if options.provider == "anthropic" and not os.environ.get("ANTHROPIC_API_KEY"):
        raise DemoError(
            "--provider anthropic needs a key; nothing was started; set ANTHROPIC_API_KEY"
        )


@dataclass
class _Director:
    options: DemoOptions
    root: Path
    stage: Stage
    evidence: Evidence | None = None
    _children: list[Child] = field(default_factory=list)
    _shown: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.simulated = self.options.provider == "simulator"
        self.state = self.root / "state"
        self.wire = self.root / "wire.jsonl"
        self.effects = self.root / "effects"
        real = self.options.model or REAL_MODEL
        self.models = MODELS if self.simulated else {ANA: real, BO: real}
        self.base_url: str | None = None

    async def run(self) -> None:
        acks = Acks(self.root / "acks.jsonl")
        acks.on_ack = self._show_receipt
        self.evidence = Evidence(acks=acks.rows, told=[], effects=[], transcripts={})
        try:
            with trio.fail_after(_DEMO_S_MAX):
                async with trio.open_nursery() as nursery:
                    try:
                        await self._play(nursery, acks)
                    finally:
                        with trio.CancelScope(shield=True):
                            for child in self._children:
                                await child.kill()
                    nursery.cancel_scope.cancel()
        finally:
            acks.close()

    async def _play(self, nursery: trio.Nursery, acks: Acks) -> None:
        evidence = self.evidence
        assert evidence is not None
        simulator = None
        self.stage.heading("Two agents plan a picnic")
        if self.simulated:
            simulator, self.base_url = await start_simulator(nursery, self.wire)
            self._children.append(simulator)
            self.stage.say("wire", f"the simulated provider serves on {self.base_url}")
            nursery.start_soon(self._watch_wire)
        host = await self._start_host(nursery)
        await play_first_half(host, acks, limited=self.simulated)
        if self.simulated:
            await self._show_hold(host)
        else:
            await until_rest(host)
        evidence.before_kill = await _transcripts(host)
        await self._kill(host)
        host = await self._start_host(nursery)
        evidence.restarted_ms = _now_ms()
        if simulator is not None:
            await self._hold_on(host)
            await simulator.tell("lift")
            await simulator.wait_event(lambda event: event["event"] == "lifted")
            await self._release()
        await until_rest(host)
        evidence.transcripts = await _transcripts(host)
        for agent, rows in evidence.transcripts.items():
            self.stage.heading(f"{agent}'s transcript, read back")
            for row in rows:
                self.stage.recall(row)
        await host.tell("stop")
        await host.wait_gone()
        self._collect(evidence)

    async def _start_host(self, nursery: trio.Nursery) -> Child:
        host = await launch_host(
            HostSetting(
                self.state,
                self.effects,
                self.models,
                base_url=self.base_url,
                tool_s=self.options.tool_s,
                watch=True,
            )
        )
        self._children.append(host)
        host.on_event = self._show_event
        nursery.start_soon(host.read)
        await wait_ready(host)
        self.stage.say("host", f"pid {host.pid} runs {ANA} and {BO}")
        return host

    # -- the second half ---------------------------------------------------------------------

    async def _show_hold(self, host: Child) -> None:
        wait = await until_held(host)
        self.stage.say(ANA, f"held: {wait['reason']}")

    async def _kill(self, host: Child) -> None:
        assert self.evidence is not None
        self.stage.heading("The host dies" + (" in the hold" if self.simulated else ""))
        self.evidence.killed_ms = _now_ms()
        self.evidence.killed_status = await host.kill()
        self.stage.say("kill", f"SIGKILL to pid {host.pid}: exit {self.evidence.killed_status}")
        if self.simulated:
            await self._shell("waits", os.fspath(self.state))
        self.stage.heading("The host is started again")

    async def _hold_on(self, host: Child) -> None:
        assert self.evidence is not None
        await until_held(host)
        self.evidence.held_after_restart = True
        self.stage.say(ANA, "still held, from the record; nobody calls the provider")
        await trio.sleep(WATCHED_S)

    async def _release(self) -> None:
        assert self.evidence is not None
        self.stage.heading("An operator releases the wait, from another process")
        self.evidence.released_ms = _now_ms()
        self.evidence.release_exit = await self._shell(
            "release", os.fspath(self.state), ANA, "--model", self.models[ANA]
        )

    async def _shell(self, *command: str) -> int:
        """Run the real command line in a process of its own, and show it."""
        shown = " ".join(part.replace(os.fspath(self.root), "...") for part in command)
        self.stage.say("shell", f"$ abeyance {shown}")
        done = await trio.run_process(
            [sys.executable, "-m", "abeyance.actors.ops.cli", *command],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "COLUMNS": "72"},
        )
        self.stage.show((done.stdout or done.stderr).decode())
        return done.returncode

    # -- collecting and showing --------------------------------------------------------------

    def _collect(self, evidence: Evidence) -> None:
        if self.simulated:
            evidence.calls = read_calls(self.wire)
        evidence.told = [
            event for child in self._children for event in child.events if event["event"] == "told"
        ]
        if self.effects.exists():
            evidence.effects = self.effects.read_text().split()
        # Beside the wire log, so that whoever keeps the state can audit it again.
        saved = {name: value for name, value in asdict(evidence).items() if name != "calls"}
        (self.root / "evidence.json").write_text(json.dumps(saved, indent=1))

    def report(self) -> DemoReport:
        assert self.evidence is not None
        kept = self.options.keep or self.options.state is not None
        report = DemoReport(
            provider=self.options.provider,
            seconds=round(self.stage.seconds, 1),
            state=os.fspath(self.root) if kept else None,
            promises=audit(self.evidence),
        )
        self.stage.table(report)
        return report

    def _show_receipt(self, line: Line, receipt: Mapping[str, Any]) -> None:
        self.stage.say(line.author, f"-> {line.agent}, durable as {receipt['seq']}: {line.text}")

    def _show_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "row" and (event["agent"], event["id"]) not in self._shown:
            # A host that was started again finds its rows where they were; once is enough.
            self._shown.add((event["agent"], event["id"]))
            self.stage.row(event["agent"], event)
        elif event["event"] == "told":
            self.stage.say(event["agent"], f"-> {event['to']}, with the call's id {event['id']}")

    async def _watch_wire(self) -> None:
        calls: dict[int, WireCall] = {}
        agents = {model: agent for agent, model in MODELS.items()}
        tail = Tail(self.wire)
        while True:
            for line in tail.lines():
                if line["event"] == "received":
                    call = WireCall(line["number"], line["at_ms"], line["request"])
                    calls[call.number] = call
                    self.stage.call(agents.get(call.model, "?"), call)
                else:
                    calls[line["number"]].status = line["status"]
                    self.stage.reply(calls[line["number"]])
            await trio.sleep(POLL_S)


async def _transcripts(host: Child) -> dict[str, list[dict[str, Any]]]:
    return {agent: await host.ask("transcript", agent=agent) for agent in (ANA, BO)}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
