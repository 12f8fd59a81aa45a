"""The control server: a host's Unix socket for operators, in its state directory.

Hosts that share a directory have a socket each, named after the opening's nonce (`address`). It
runs in the runtime's nursery, on the loop thread, and ends with it. The socket has mode 0600 and
its folder 0700: whoever may open it is the admin; there is no second gate.

Invariants:
    I1  A host binds its own socket and removes it at its end. Another's is removed only where the
        opening's proof of life says that its process is gone, so a live host's never is.
    I2  The socket is never connectable with a mode wider than 0600.
    I3  One reply a request, in order. A bad request gets one typed error and changes nothing.
    I4  No client can hold up the host: lines, connections and every wait for a client are bounded.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import trio

from abeyance.actors._version import __version__
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.actors.domain.requesters import Door

from .address import CONTROL_NAME, HostSocket, all_sockets, socket_address
from .protocol import (
    ERROR_CHARS_MAX,
    EVERY_MODEL,
    PROTOCOL,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    AdmissionReport,
    AgentReport,
    AlertReport,
    AlertsReport,
    AlertsRequest,
    ControlError,
    DeadLettersRequest,
    EntriesReport,
    EntryReport,
    FailureReport,
    HeldReport,
    Hello,
    HostReport,
    ImportedReport,
    ImportReport,
    ImportRequest,
    InboxReport,
    InboxRequest,
    InboxRowReport,
    ModeReport,
    NodeReport,
    QuarantineRequest,
    QuiesceReport,
    QuiesceRequest,
    ReleasedReport,
    ReleaseReport,
    ReleaseRequest,
    RepairReport,
    ReplayReport,
    ReplayRequest,
    Request,
    RequestTooLargeError,
    RewindReport,
    RewindRequest,
    StatusReport,
    StatusRequest,
    TreeReport,
    TreeRequest,
    WaitReport,
    WaitsReport,
    clean_requester,
    error_line,
    ok_line,
    read_request,
)

CONNECTIONS_MAX: Final = 32
IDLE_S_MAX: Final = 60.0
"""How long a connection may be silent between two requests."""
SEND_S_MAX: Final = 10.0
"""How long a client may take to read one reply."""

_log = Log(__name__)


class Controlled(Protocol):
    """What the verbs need of a runtime."""

    def status(self) -> Any:
        """The structure that `StatusReport` mirrors, attribute by attribute."""

    def provider_waits(self, agent: str | None = None) -> Sequence[Any]:
        """The binding waits of one agent, or of all."""

    def tree(self, *, depth_max: int, width_max: int) -> Any:
        """The structure that `NodeReport` mirrors, attribute by attribute."""

    async def release_provider_wait(
        self, agent: str, model: str = "*", *, requester: str, door: Door
    ) -> Any:
        """End waits; `.released` of what is returned says which, and how far the record reached."""

    async def quiesce(self, reason: str, within_s: float, *, requester: str, door: Door) -> Any:
        """Start no more turns; the structure that `QuiesceReport` takes its fields from."""

    async def resume(self, *, requester: str, door: Door) -> Any:
        """Start turns again; `was_quiesced`, `reason` and `landed` of what is returned."""

    def agent(self, name: str) -> Any:
        """The handle of an agent; its `rewind` and `undo_rewind` are used."""

    def dead_letters(self, *, before: int | None, limit: int) -> Sequence[Any]:
        """Rows that `EntryReport` mirrors, the newest first."""

    def quarantine(self, *, before: int | None, limit: int) -> Sequence[Any]:
        """Rows that `EntryReport` mirrors, the newest first."""

    def alerts(self, *, after: int | None, limit: int) -> Sequence[Any]:
        """Rows that `AlertReport` mirrors, oldest first."""

    async def import_deferred(
        self, source: str, *, agent: str | None, wake: bool, dry_run: bool
    ) -> Any:
        """Accept a file's deferred messages; what `ImportReport` mirrors."""

    async def inbox(self, agent: str | None, *, after: int | None, limit: int) -> Sequence[Any]:
        """Rows that `InboxRowReport` mirrors, in the order they land."""

    async def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        door: Door,
    ) -> Any:
        """Send a dead letter's message again; the row, counted."""

    async def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        door: Door,
    ) -> Any:
        """Send a quarantined message again; the row, counted."""


class SocketTakenError(ControlError):
    """Something that is no folder stands where the control sockets belong; it was left alone."""

    code = "socket_taken"


async def serve_control(
    runtime: Controlled,
    directory: str | os.PathLike[str],
    *,
    nonce: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a control socket of a state directory until cancelled.

    Reports itself started when the socket accepts connections. Sockets that dead hosts left are
    removed first.
    A checkpoint. Cancelled: connections are closed, the socket is removed. A verb that has handed
    a release to the runtime is the runtime's to finish. Nothing of its own is durable.

    Args:
        directory: The state directory; it exists.
        nonce: Of the opening, whose proof of life is there until this has ended.
    Raises:
        SocketTakenError, SocketPathError: The socket cannot be bound; nothing was changed.
        OSError: The directory does not take a socket.
    """
    root = Path(directory)
    _make_folder(root)
    _remove_dead(root)
    with _bound(HostSocket(os.getpid(), nonce).path(root)) as listening:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await trio.serve_listeners(
            _Server(runtime).serve, [listener], task_status=_Started(task_status)
        )


class _Started:
    """Reports the start without the listeners."""

    def __init__(self, status: trio.TaskStatus[None]) -> None:
        self._status = status

    def started(self, _listeners: object = None) -> None:
        self._status.started()


def _make_folder(root: Path) -> None:
    folder = root / CONTROL_NAME
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise SocketTakenError(
            f"{folder} is not a folder; it was left alone; move it away and start the host again"
        )
    folder.chmod(0o700)


def _remove_dead(root: Path) -> None:
    for at in all_sockets(root):
        if not at.is_alive(root):
            at.path(root).unlink(missing_ok=True)


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with socket_address(path) as address:
            listening.bind(address)
        try:
            # A bound socket refuses connections until it listens: the mode is set before that.
            path.chmod(0o600)
            listening.listen(CONNECTIONS_MAX)
            yield listening
        finally:
            path.unlink(missing_ok=True)


class _Server:
    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime
        self._connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection. A client that vanishes ends only its own connection."""
        self._connections += 1
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.TooSlowError):
                async with stream:
                    if self._connections > CONNECTIONS_MAX:
                        await _send(
                            stream, error_line("busy", "too many control connections; try again")
                        )
                        return
                    hello = Hello(abeyance=__version__, protocol=PROTOCOL, pid=os.getpid())
                    await _send(stream, msgspec.json.encode(hello) + b"\n")
                    await self._converse(stream)
        finally:
            self._connections -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        try:
            async with contextlib.aclosing(_lines(stream)) as lines:
                async for line in lines:
                    await _send(stream, await self._answer(line))
        except RequestTooLargeError as error:
            await _send(stream, error_line(error.code, str(error)))
            await _discard_rest(stream)

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = read_request(line)
            reply = ok_line(await self._do(request))
        except ControlError as error:
            return error_line(error.code, str(error), error.field)
        except AbeyanceError as error:
            return error_line(error.code, str(error), getattr(error, "field", None))
        except Exception as error:  # noqa: BLE001
            # One request is the unit that fails here: the operator gets an answer, the host lives
            # on, the traceback is in its log. Storage errors arrive here too, with their code.
            _log.exception("a control request failed")
            code = getattr(error, "code", None)
            return error_line(
                code if isinstance(code, str) else "internal", str(error) or repr(error)
            )
        if len(reply) > REPLY_BYTES_MAX:
            return error_line(
                "reply_too_large", "the answer is too large to send; ask for one agent"
            )
        return reply

    async def _do(self, request: Request) -> msgspec.Struct:
        if isinstance(request, StatusRequest):
            return report_status(self._runtime.status())
        if isinstance(request, ReleaseRequest):
            receipt = await self._runtime.release_provider_wait(
                request.agent,
                EVERY_MODEL if request.scope is None else request.scope,
                requester=clean_requester(request.requester),
                door="cli",
            )
            return ReleaseReport(
                released=tuple(_mirror(item, ReleasedReport) for item in receipt.released)
            )
        if isinstance(request, RewindRequest):
            handle, by = self._runtime.agent(request.agent), clean_requester(request.requester)
            if request.to is msgspec.UNSET:
                return _mirror(await handle.undo_rewind(requester=by, door="cli"), RewindReport)
            rewound = await handle.rewind(request.to, requester=by, door="cli")
            return _mirror(rewound, RewindReport)
        if isinstance(request, ImportRequest):
            of = None if request.agent is msgspec.UNSET else request.agent
            report = await self._runtime.import_deferred(
                request.path, agent=of, wake=request.wake, dry_run=request.dry_run
            )
            return report_import(report)
        if isinstance(request, QuiesceRequest):
            return await self._quiesce(request)
        if isinstance(request, TreeRequest):
            tree = self._runtime.tree(depth_max=request.depth, width_max=request.width)
            return TreeReport(tree=report_tree(tree))
        if isinstance(request, DeadLettersRequest | QuarantineRequest):
            dead = isinstance(request, DeadLettersRequest)
            listing = self._runtime.dead_letters if dead else self._runtime.quarantine
            before = None if request.before is msgspec.UNSET else request.before
            entries = listing(before=before, limit=request.limit)
            return EntriesReport(entries=tuple(_mirror(entry, EntryReport) for entry in entries))
        if isinstance(request, AlertsRequest):
            after = None if request.after is msgspec.UNSET else request.after
            alerts = self._runtime.alerts(after=after, limit=request.limit)
            return AlertsReport(alerts=tuple(_mirror(alert, AlertReport) for alert in alerts))
        if isinstance(request, InboxRequest):
            of = None if request.agent is msgspec.UNSET else request.agent
            behind = None if request.after is msgspec.UNSET else request.after
            rows = await self._runtime.inbox(of, after=behind, limit=request.limit)
            return InboxReport(inbox=tuple(_mirror(row, InboxRowReport) for row in rows))
        if isinstance(request, ReplayRequest):
            dead = request.kind == "dead_letter"
            replay = self._runtime.replay_dead_letter if dead else self._runtime.replay_quarantined
            by = clean_requester(request.requester)
            sent = await replay(request.id, requester=by, door="cli")
            return ReplayReport(replayed=_mirror(sent, EntryReport))
        agent = None if request.agent is msgspec.UNSET else request.agent
        waits = self._runtime.provider_waits(agent)
        return WaitsReport(waits=tuple(_mirror(wait, WaitReport) for wait in waits))

    async def _quiesce(self, request: QuiesceRequest) -> QuiesceReport:
        by, was = clean_requester(request.requester), self._runtime.status().mode
        if request.end:
            ended = await self._runtime.resume(requester=by, door="cli")
            was_ = "quiesced" if ended.was_quiesced else "serving"
            return QuiesceReport(
                state="serving", was=was_, reason=ended.reason, landed=ended.landed
            )
        receipt = await self._runtime.quiesce(
            request.reason, request.within_s, requester=by, door="cli"
        )
        return QuiesceReport(
            state="quiesced",
            was=was.state,
            reason=receipt.reason,
            abandoned=receipt.abandoned,
            held=receipt.held,
            runs_ended=receipt.runs_ended,
            bodies_running=receipt.bodies_running,
        )


def report_status(status: Any) -> StatusReport:
    """Copy a runtime's status into the shape that travels."""
    agents = tuple(
        _mirror(
            agent,
            AgentReport,
            held=agent.held and _mirror(agent.held, HeldReport),
            admission=_mirror(
                agent.admission,
                AdmissionReport,
                waits=tuple(_mirror(wait, WaitReport) for wait in agent.admission.waits),
            ),
            pid=status.pid,
        )
        for agent in status.agents
    )
    waits = tuple(_mirror(wait, WaitReport) for wait in status.waits)
    return _mirror(
        status,
        StatusReport,
        agents=agents,
        waits=waits,
        open_pids=(),
        hosts=(_mirror(status, HostReport),),
        silent_pids=(),
        mode=_mirror(status.mode, ModeReport),
    )


def report_import(report: Any) -> ImportReport:
    """Copy an import's report into the shape that travels."""
    return _mirror(
        report,
        ImportReport,
        messages=tuple(_mirror(message, ImportedReport) for message in report.messages),
        repairs=tuple(_mirror(repair, RepairReport) for repair in report.repairs),
    )


def report_tree(node: Any) -> NodeReport:
    """Copy a tree into the shape that travels. Its texts are bounded as those of errors are."""
    failure = node.last_failure
    return _mirror(
        node,
        NodeReport,
        children=tuple(map(report_tree, node.children)),
        last_failure=failure
        and FailureReport(
            type=failure.type, text=failure.text[:ERROR_CHARS_MAX], at_ms=failure.at_ms
        ),
    )


_T = TypeVar("_T", bound=msgspec.Struct)


def _mirror(source: Any, kind: type[_T], **given: Any) -> _T:
    """Make a `kind` of the attributes of the same names."""
    names = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**given, **{name: getattr(source, name) for name in names})


async def _send(stream: trio.SocketStream, line: bytes) -> None:
    with trio.fail_after(SEND_S_MAX):
        await stream.send_all(line)


async def _lines(stream: trio.SocketStream) -> AsyncGenerator[bytes, None]:
    """Yield the lines that arrive, without their newline; end at the end or after a long silence.

    Raises:
        RequestTooLargeError: A line grew past its bound; the rest of the connection is unusable.
    """
    pending = bytearray()
    while True:
        end = pending.find(b"\n")
        if 0 <= end <= REQUEST_BYTES_MAX:
            line = bytes(pending[:end])
            del pending[: end + 1]
            yield line
            continue
        if len(pending) > REQUEST_BYTES_MAX:
            raise RequestTooLargeError(
                f"the request is longer than {REQUEST_BYTES_MAX} bytes; nothing was done; send less"
            )
        with trio.fail_after(IDLE_S_MAX):
            piece = await stream.receive_some(16_384)
        if not piece:
            return
        pending += piece


async def _discard_rest(stream: trio.SocketStream) -> None:
    """Read on for a moment: closing on unread bytes would reset the reply away from the client."""
    with trio.move_on_after(1.0):
        while await stream.receive_some(65_536):
            pass
