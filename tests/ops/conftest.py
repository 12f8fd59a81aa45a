"""A runtime's public face without a runtime: socket and command line are tested by themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors.domain.errors import UnknownAgentError
from abeyance.actors.domain.requesters import Vouched
from abeyance.actors.ops.address import HostSocket
from abeyance.actors.ops.control import serve_control
from abeyance.storage.locks import FileLock


def shape(**fields: Any) -> Any:
    """Attributes by name, as any of the runtime's frozen structures."""
    return dataclasses.make_dataclass("Shape", list(fields), frozen=True)(**fields)


def wait(agent: str, model: str, deadline_ms: int | None, reason: str = "slow down") -> Any:
    named: dict[str, Any] = {"agent": agent, "model": model, "reason": reason}
    return shape(
        **named, deadline_ms=deadline_ms, set_ms=1_000, window=None, of_quota=False, pending=False
    )


class FakeRuntime:
    """Two agents with waits, and a record of every release that got through."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listed = [
            wait("ana", "m1", 8_640_000_000_000_000),
            wait("ana", "m2", None, "quota"),
            wait("bo", "m1", 4_102_444_800_000),
        ]
        self.releases: list[tuple[str, str, str]] = []
        self.failure: Exception | None = None
        self.proceed = trio.Event()
        self.proceed.set()
        self.entered = trio.Event()

    def status(self) -> Any:
        if self.failure is not None:
            raise self.failure
        held = shape(
            model="m1", cause="wait", deadline_ms=8_640_000_000_000_000, reason="slow down",
            window=None, of_quota=False,
        )  # fmt: skip
        limits = shape(
            inbox_messages_max=10_000, inbox_bytes=40, inbox_bytes_max=64_000_000,
            message_bytes_max=8_000_000, turns=0, turns_waiting=0, turns_max=None,
            tool_threads=0, tool_threads_max=16,
        )  # fmt: skip
        ana = shape(
            name="ana",
            state="held",
            model="m1",
            turn=3,
            round=1,
            attempts=1,
            held=held,
            inbox=2,
            wakes=1,
            admission=shape(waits=tuple(self.listed[:2]), pending=1, calls=0),
            limits=limits,
            unrecorded=None,
            parked=None,
        )
        bo = shape(
            name="bo", state="idle", model="m1", turn=None, round=None, attempts=None, held=None,
            inbox=0, wakes=0, admission=shape(waits=tuple(self.listed[2:]), pending=0, calls=0),
            limits=limits,
            unrecorded=None,
            parked=None,
        )  # fmt: skip
        return shape(
            directory=str(self.directory), store_id="5f1e", pid=4242, started_ms=1_000,
            agents=(ana, bo), waits=tuple(self.listed), dead_letters=0, quarantine=0,
            mode=shape(state="serving", reason="", by="", since_ms=None),
        )  # fmt: skip

    def provider_waits(self, agent: str | None = None) -> tuple[Any, ...]:
        return tuple(item for item in self.listed if agent in (None, item.agent))

    async def release_provider_wait(self, agent: str, model: str = "*", *, requester: str) -> Any:
        assert isinstance(requester, Vouched)
        assert requester.door == "cli"
        self.entered.set()
        await self.proceed.wait()
        if agent not in ("ana", "bo"):
            raise UnknownAgentError(f"no agent {agent!r}; nothing was done; name one", agent=agent)
        self.releases.append((agent, model, requester))
        lifted = [item for item in self.provider_waits(agent) if model in ("*", item.model)]
        self.listed = [item for item in self.listed if item not in lifted]
        return shape(
            released=tuple(shape(agent=i.agent, model=i.model, reach="recorded") for i in lifted)
        )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def runtime(state: Path) -> FakeRuntime:
    return FakeRuntime(state)


NONCE = "5f1e0a"


@contextlib.contextmanager
def alive(directory: Path, nonce: str = NONCE) -> Iterator[None]:
    """Prove, as an opening does, that the process of that nonce lives."""
    owners = directory / "store" / "owners"
    owners.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.closing(FileLock(owners / nonce)) as proof:
        assert proof.acquire_nowait()
        yield
        (owners / nonce).unlink()


@contextlib.contextmanager
def listening(directory: Path, pid: int = 77, nonce: str = NONCE) -> Iterator[socket.socket]:
    """A live host's socket on which nobody says anything by itself."""
    at = HostSocket(pid, nonce).path(directory)
    at.parent.mkdir(mode=0o700, exist_ok=True)
    with alive(directory, nonce), socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(at))
        silent.listen()
        yield silent


async def serve_until_cancelled(
    runtime: Any,
    directory: Path,
    nonce: str = NONCE,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with alive(directory, nonce):
        await serve_control(runtime, directory, nonce=nonce, task_status=task_status)


Serving = Callable[..., contextlib.AbstractAsyncContextManager[FakeRuntime]]


@pytest.fixture
def serving(runtime: FakeRuntime, state: Path) -> Serving:
    """Serve the control socket of `state` (or of another directory) within a block."""

    @contextlib.asynccontextmanager
    async def serve(directory: Path | None = None) -> AsyncIterator[FakeRuntime]:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_until_cancelled, runtime, directory or state)
            yield runtime
            nursery.cancel_scope.cancel()

    return serve


@pytest.fixture(name="listening")
def _listening() -> Callable[..., contextlib.AbstractContextManager[socket.socket]]:
    return listening


@pytest.fixture(name="serve_until_cancelled")
def _serve_until_cancelled() -> Callable[..., Any]:
    return serve_until_cancelled
