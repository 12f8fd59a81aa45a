"""The demo's child processes as their director sees them.

Invariants:
    I1  Every question to a host is settled: by its answer, by its refusal, or by the host's death.
    I2  A child is gone when `wait_gone` or `kill` returns: its locks are free.

Runs in the director's trio thread.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

import trio

from abeyance.actors.core.errors import AbeyanceError

from .play import ANA, BO

HOST: Final = "abeyance.actors.ops.demo.host"
SIMULATOR: Final = "abeyance.actors.ops.demo.simulator"
START_S_MAX: Final = 20.0
ANSWER_S_MAX: Final = 20.0


class DemoError(AbeyanceError):
    """The demo cannot be played to its end. Nothing outside its own state was touched."""

    code: ClassVar[str] = "demo"


class ChildDiedError(DemoError):
    """A child process ended while it was asked something."""

    code = "child_died"


class ChildSilentError(DemoError):
    """A child process lives and does not answer."""

    code = "child_silent"


class RefusedByChildError(DemoError):
    """The host refused a command. Attribute `remote_code`."""

    code = "refused_by_child"
    remote_code: str


class Process(Protocol):
    """A started process, its standard input and output at hand."""

    pid: int
    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream

    def kill(self) -> None:
        """Send SIGKILL."""

    async def wait(self) -> int:
        """Wait for the end, and return the exit status (negative: the signal)."""


Launch: TypeAlias = Callable[[str, Sequence[str], Mapping[str, str]], Awaitable[Process]]
"""Starts a module of this package with arguments and extra environment; returns a `Process`."""


async def launch(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Start `python -m module` with pipes. Its errors go to this process's stderr."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        # Ctrl-C belongs to the director, which then ends its children in order.
        start_new_session=True,
    )
    return cast(Process, process)  # Both pipes were asked for, so both are there.


Event = dict[str, Any]


class Child:
    """One child: its events so far, and whether it lives."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.events: list[Event] = []
        self.ended = False
        self.on_event: Callable[[Event], None] | None = None
        self._changed = trio.Event()
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def read(self) -> None:
        """Take in events until the child's end. One task a child; cancelled with it."""
        pending = b""
        async for piece in self.process.stdout:
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self.events.append(event)
                if self.on_event is not None:
                    self.on_event(event)
            self._notify()
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_event(self, matches: Callable[[Event], bool], since: int = 0) -> Event:
        """Return the first event that matches, from the `since`-th on, once it is there.

        Raises:
            ChildDiedError: The child ended without one.
        """
        position = since
        while True:
            while position < len(self.events):
                if matches(self.events[position]):
                    return self.events[position]
                position += 1
            if self.ended:
                raise ChildDiedError(
                    f"child process {self.pid} ended; its last event was "
                    f"{self.events[-1:]}; start it again"
                )
            await self._changed.wait()

    async def ask(self, do: str, **fields: Any) -> Any:
        """Send a command and return its result.

        Raises:
            ChildDiedError: The host died first; whether it was done is unknown.
            RefusedByChildError: The host refused it.
            ChildSilentError: The host lives and did not answer within `ANSWER_S_MAX`.
        """
        number = next(self._numbers)
        since = len(self.events)
        await self.tell(do, n=number, **fields)
        answer: Event | None = None
        with trio.move_on_after(ANSWER_S_MAX):
            answer = await self.wait_event(lambda event: event.get("n") == number, since)
        if answer is None:
            raise ChildSilentError(
                f"the host (pid {self.pid}) did not answer {do!r} within {ANSWER_S_MAX:g} s; its "
                f"last event was {self.events[-1:]}; look at its stderr"
            )
        if answer["event"] == "refused":
            raise RefusedByChildError(answer["text"], remote_code=answer["code"])
        return answer["result"]

    async def tell(self, do: str, **fields: Any) -> None:
        """Send a command line and do not wait.

        Raises:
            ChildDiedError: The child has ended.
        """
        await self.send(do=do, **fields)

    async def send(self, **fields: Any) -> None:
        """Send a line of these fields. As `tell`."""
        try:
            await self.process.stdin.send_all(json.dumps(fields).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ChildDiedError(f"child process {self.pid} has ended; start it again") from None

    async def kill(self) -> int:
        """SIGKILL it and wait until it is gone. Returns its exit status."""
        self.process.kill()
        return await self.process.wait()

    async def wait_gone(self) -> int:
        """Close its input and wait for its end, at most `ANSWER_S_MAX` s, then kill it."""
        await self.process.stdin.aclose()
        with trio.move_on_after(ANSWER_S_MAX):
            return await self.process.wait()
        return await self.kill()


@dataclass(frozen=True, slots=True)
class HostSetting:
    """How a host is started: always the same way, also after its death."""

    state: Path
    effects: Path
    models: Mapping[str, str]
    base_url: str | None = None
    """Of the simulator; None is the real provider, whose key is in the environment."""
    tool_s: float = 0.6
    watch: bool = False
    """Whether the host prints its transcripts as they grow."""

    @property
    def arguments(self) -> list[str]:
        arguments = [
            *("--state", os.fspath(self.state)),
            *("--effects", os.fspath(self.effects)),
            *("--ana-model", self.models[ANA]),
            *("--bo-model", self.models[BO]),
            *("--tool-s", str(self.tool_s)),
        ]
        if self.base_url is not None:
            arguments += ["--base-url", self.base_url]
        return [*arguments, "--watch"] if self.watch else arguments

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.base_url is None else {"ANTHROPIC_API_KEY": "simulated"}


async def launch_host(
    setting: HostSetting, launch: Launch = launch, environment: Mapping[str, str] | None = None
) -> Child:
    """Start a host process; it is not ready yet. The caller reads it and, in the end, ends it."""
    return Child(
        await launch(HOST, setting.arguments, {**setting.environment, **(environment or {})})
    )


async def wait_ready(host: Child) -> None:
    """Wait until a host has both agents.

    Raises:
        ChildDiedError: It ended first.
        DemoError: It says that it cannot start.
        trio.TooSlowError: It takes longer than `START_S_MAX`.
    """
    with trio.fail_after(START_S_MAX):
        event = await host.wait_event(lambda event: event["event"] in ("ready", "failed"))
    if event["event"] == "failed":
        raise DemoError(f"the host did not start: {event['text']}")


async def start_simulator(
    nursery: trio.Nursery, log: Path, *options: str, launch: Launch = launch
) -> tuple[Child, str]:
    """Start the simulator; returns it and its base URL once it serves.

    A checkpoint. Cancelled, or failed: the simulator is ended.
    """
    child = Child(await launch(SIMULATOR, ["--log", os.fspath(log), *options], {}))
    nursery.start_soon(child.read)
    try:
        with trio.fail_after(START_S_MAX):
            serving = await child.wait_event(lambda event: event["event"] == "serving")
    except BaseException:
        # Nobody else knows of it yet; left alone, it would speak into a pipe without a reader.
        with trio.CancelScope(shield=True):
            await child.kill()
        raise
    return child, serving["base_url"]
