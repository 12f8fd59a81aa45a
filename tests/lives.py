"""Processes that live a part of a test, and may be killed in it.

Each is a fork of one process that has imported everything, opened no store and run no loop: as
fresh as a process that was started anew, thirty times as fast, and what kills it is SIGKILL. A
worker of the tests has one such process, from its first use to its end.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

KILLED: Final = -signal.SIGKILL
REAL_S_MAX: Final = 100
"""How long a life may take before its test fails."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "abeyance.actors.opening",
        "abeyance.actors.testing.scripted",
        "anthropic",
        "trio.testing",
        "pytest",
    ]
)


@dataclass(frozen=True)
class Ended:
    """How a life ended: its exit status (below zero: the signal), and what it said."""

    status: int
    out: str
    err: str


class Life:
    """A process that has begun. Made by `begin`."""

    def __init__(self, part: Callable[..., Any], *arguments: Any) -> None:
        self._said = tempfile.TemporaryDirectory()
        said = Path(self._said.name)
        self._out, self._err = said / "out", said / "err"
        self._process = _PROCESSES.Process(
            target=_live, args=(str(self._out), str(self._err), part, arguments), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self) -> Ended:
        """Block until it has ended. One that was neither killed nor ran to its end fails a test."""
        with self._said:
            self._process.join(REAL_S_MAX)
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()
                raise TimeoutError(f"a life took more than {REAL_S_MAX} s: {self._err.read_text()}")
            ended = Ended(self._process.exitcode, self._out.read_text(), self._err.read_text())
        self._process.close()
        assert ended.status in (0, KILLED), ended.err
        return ended


def begin(part: Callable[..., Any], *arguments: Any) -> Life:
    """Start a process that runs a function of a module, in trio where it is asynchronous."""
    return Life(part, *arguments)


def lived(part: Callable[..., Any], *arguments: Any) -> Ended:
    """Run a function in a process of its own, to its end or its death. Blocks."""
    return begin(part, *arguments).wait()


def _live(out: str, err: str, part: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for target, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, target)
        os.close(descriptor)
    if inspect.iscoroutinefunction(part):
        trio.run(part, *arguments)
    else:
        part(*arguments)
