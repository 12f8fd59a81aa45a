"""Starting the demo's processes by way of the zygote, with the interface that the demo expects."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

ROOT = Path(__file__).parents[2]


class ForkedProcess:
    """A grandchild: started and reaped by the zygote, killed from here."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin: trio.abc.SendStream = trio.lowlevel.FdStream(stdin)
        self.stdout: trio.abc.ReceiveStream = trio.lowlevel.FdStream(stdout)
        self.pid = 0
        self.status: int | None = None
        self.started = trio.Event()
        self.ended = trio.Event()

    def kill(self) -> None:
        if self.status is None:
            # The zygote reaps first and tells afterwards; the pid may be free by then.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.status is not None
        return self.status


class Zygote:
    """Launches modules as forks of one process. Made by `zygote()`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._starting: ForkedProcess | None = None
        self._one_at_a_time = trio.Lock()
        self._running: dict[int, ForkedProcess] = {}

    async def launch(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> ForkedProcess:
        """Start a module's `main(arguments)` in a process of its own."""
        child_in, ours_in = os.pipe()
        ours_out, child_out = os.pipe()
        process = ForkedProcess(ours_in, ours_out)
        request = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
        line = json.dumps(request).encode() + b"\n"
        async with self._one_at_a_time:
            self._starting = process
            socket.send_fds(self._control, [line], [child_in, child_out])
            os.close(child_in)
            os.close(child_out)
            await process.started.wait()
        return process

    def running(self) -> list[ForkedProcess]:
        """What was launched and has not ended."""
        return list(self._running.values())

    async def listen(self) -> None:
        """Take in the zygote's answers until its end."""
        pending = b""
        while True:
            await trio.lowlevel.wait_readable(self._control)
            data = self._control.recv(4_096)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, answer: Mapping[str, int]) -> None:
        if "started" in answer:
            process = self._starting
            assert process is not None
            process.pid = answer["started"]
            self._running[process.pid] = process
            process.started.set()
        else:
            process = self._running.pop(answer["ended"])
            process.status = answer["status"]
            process.ended.set()


@contextlib.asynccontextmanager
async def zygote() -> AsyncIterator[Zygote]:
    """A zygote for the time of a block; what it forked is killed by its user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            started = subprocess.Popen(  # noqa: ASYNC220 - blocks for a moment, in a test.
                [sys.executable, "-m", "tests.crash.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        try:
            async with trio.open_nursery() as nursery:
                forks = Zygote(ours)
                nursery.start_soon(forks.listen)
                yield forks
                nursery.cancel_scope.cancel()
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            await trio.to_thread.run_sync(started.wait)
