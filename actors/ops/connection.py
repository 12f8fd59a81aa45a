"""One blocking connection to one host's control socket. `client` has one to each host.

Invariants:
    I1  Every wait has a deadline; a host that accepts and says nothing is an error, not a hang.
    I2  A request is sent at most once. What became of one that got no reply is unknown, and the
        error says so.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from abeyance.actors.core.tree import DEPTH, WIDTH
from abeyance.actors.domain.archive_book import Kind

from .address import HostSocket, socket_address
from .errors import ControlError, UnsupportedProtocolError, look_at
from .protocol import REPLY_BYTES_MAX, Hello, Reply, clean_requester
from .reports import (
    AlertReport,
    AlertsReport,
    CancelTurnReport,
    EditReport,
    EditRowReport,
    EditsReport,
    EntriesReport,
    EntryReport,
    ImportReport,
    InboxReport,
    InboxRowReport,
    NodeReport,
    QuiesceReport,
    ReleaseReport,
    ReplayReport,
    RewindReport,
    StatusReport,
    TreeReport,
    WaitReport,
    WaitsReport,
)
from .requests import (
    EVERY_MODEL,
    PROTOCOL,
    AlertsRequest,
    CancelTurnRequest,
    DeadLettersRequest,
    EditRequest,
    EditsRequest,
    ImportRequest,
    InboxRequest,
    QuarantineRequest,
    QuiesceRequest,
    ReleaseRequest,
    ReplayRequest,
    Request,
    RewindRequest,
    StatusRequest,
    TreeRequest,
    WaitsRequest,
)

TIMEOUT_S: Final = 10.0
"""For connecting, and again for each reply."""

_T = TypeVar("_T", bound=msgspec.Struct)


class NoHostError(ControlError):
    """No running host serves that state directory. Nothing was done."""

    code = "no_host"


class HostSilentError(ControlError):
    """The host did not answer in time, or hung up. What became of the request is unknown.

    Attribute `pids`: of the hosts, where it is known.
    """

    code = "host_silent"
    pids: tuple[int, ...] = ()


class HostForbiddenError(ControlError):
    """The host's socket is not this user's to open. Nothing was done."""

    code = "host_forbidden"


class _HungUpError(Exception):
    """The other side closed the connection."""


class RefusedByHostError(ControlError):
    """The host refused the request or failed it. Attributes: `remote_code`, `field`."""

    code = "refused"
    remote_code: str


def this_requester() -> str:
    """Who asks, as it is recorded: `cli:` and the user's name."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # A user id without a name, as in many containers.
        name = f"uid {os.getuid()}"
    return clean_requester(name, "cli")


class HostClient:
    """A connection to one host, which has yet to greet.

    Args:
        directory: The state directory.
        at: Which host.
        timeout_s: Bounds connecting, the greeting, and each reply.
    Raises:
        NoHostError: There is no socket, or nobody listens on it.
        HostForbiddenError: The socket is another user's.
        HostSilentError: The host takes no connection.
        OSError: The path cannot be followed; `filename` is the socket's.
    """

    hello: Hello

    def __init__(
        self,
        directory: str | os.PathLike[str],
        at: HostSocket,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.at = at
        self._timeout_s = timeout_s
        self._pending = bytearray()
        self._socket = _connect(at.path(Path(directory)), at.pid, timeout_s)

    def fileno(self) -> int:
        """The connection's descriptor: readable when the greeting has come."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def status(self) -> StatusReport:
        """What the host runs and what waits.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self.ask(StatusRequest(), StatusReport)

    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]:
        """The binding waits of one agent, or of all.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = WaitsRequest(agent=msgspec.UNSET if agent is None else agent)
        return self.ask(request, WaitsReport).waits

    def tree(self, *, depth: int = DEPTH, width: int = WIDTH) -> NodeReport:
        """The host's supervisors and actors.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self.ask(TreeRequest(depth=depth, width=width), TreeReport).tree

    def release(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str | None = None
    ) -> ReleaseReport:
        """End the waits of one agent: one model's, or with `*` every model's.

        Durable for each wait that the receipt calls `recorded`.

        Raises:
            RefusedByHostError: The host refused it; `remote_code` says whether anything changed.
            HostSilentError: Whether it was done is unknown; releasing again is harmless.
        """
        request = ReleaseRequest(
            agent=agent,
            model=model,
            requester=this_requester() if requester is None else requester,
        )
        return self.ask(request, ReleaseReport)

    def rewind(
        self, agent: str, to: str | int | None, *, requester: str | None = None
    ) -> RewindReport:
        """Rewind an agent's transcript to a message, or with None undo the last rewind.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was done.
            HostSilentError: Whether it was done is unknown; the transcript tells.
        """
        request = RewindRequest(
            agent=agent,
            to=msgspec.UNSET if to is None else to,
            undo=to is None,
            requester=this_requester() if requester is None else requester,
        )
        return self.ask(request, RewindReport)

    def cancel_turn(
        self, agent: str, turn: int | None, *, requester: str | None = None
    ) -> CancelTurnReport:
        """End an agent's open turn for good, or the one of a number.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; `remote_code` says whether anything changed.
            HostSilentError: Whether it was done is unknown; the status tells.
        """
        request = CancelTurnRequest(
            agent=agent,
            turn=msgspec.UNSET if turn is None else turn,
            requester=this_requester() if requester is None else requester,
        )
        return self.ask(request, CancelTurnReport)

    def edit(
        self,
        agent: str,
        message: str | int,
        blocks: str | list[Any] | None,
        *,
        requester: str | None = None,
    ) -> EditReport:
        """Give a stored message other words, or with None take it out.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was changed.
            HostSilentError: Whether it was done is unknown; the transcript tells.
        """
        request = EditRequest(
            agent=agent,
            message=message,
            blocks=msgspec.UNSET if blocks is None else blocks,
            remove=blocks is None,
            requester=this_requester() if requester is None else requester,
        )
        return self.ask(request, EditReport)

    def undo_edit(self, agent: str, edit: int, *, requester: str | None = None) -> EditReport:
        """Put a message back as it was before an edit. As `edit`."""
        by = this_requester() if requester is None else requester
        return self.ask(EditRequest(agent=agent, undo=edit, requester=by), EditReport)

    def edits(self, agent: str) -> tuple[EditRowReport, ...]:
        """The edits of an agent's transcript that are kept, oldest first.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self.ask(EditsRequest(agent=agent), EditsReport).edits

    def quiesce(
        self, reason: str, within_s: float, *, requester: str | None = None
    ) -> QuiesceReport:
        """Have the host start no more turns, and wait until none lives.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; `remote_code` says whether anything changed.
            HostSilentError: Whether it was done is unknown; the status tells.
        """
        by = this_requester() if requester is None else requester
        request = QuiesceRequest(reason=reason, within_s=within_s, requester=by)
        # The answer comes when the window is over, at the latest.
        return self.ask(request, QuiesceReport, patience_s=within_s)

    def resume(self, *, requester: str | None = None) -> QuiesceReport:
        """Have the host start turns again. As `quiesce`."""
        by = this_requester() if requester is None else requester
        return self.ask(QuiesceRequest(end=True, requester=by), QuiesceReport)

    def entries(
        self, kind: Kind, *, before: int | None = None, limit: int = 100
    ) -> tuple[EntryReport, ...]:
        """Rows of the dead letters or of the quarantine, the newest first.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        number = msgspec.UNSET if before is None else before
        request: Request = (
            DeadLettersRequest(before=number, limit=limit)
            if kind == "dead_letter"
            else QuarantineRequest(before=number, limit=limit)
        )
        return self.ask(request, EntriesReport).entries

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[AlertReport, ...]:
        """What operators were told of, oldest first.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = AlertsRequest(after=msgspec.UNSET if after is None else after, limit=limit)
        return self.ask(request, AlertsReport).alerts

    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRowReport, ...]:
        """What waits in an agent's inbox, or slot by slot, in the order it lands.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = InboxRequest(
            agent=msgspec.UNSET if agent is None else agent,
            after=msgspec.UNSET if after is None else after,
            limit=limit,
        )
        return self.ask(request, InboxReport).inbox

    def import_deferred(
        self, path: str, *, agent: str | None, wake: bool, dry_run: bool
    ) -> ImportReport:
        """Have the host accept a file's deferred messages.

        Durable: on return, unless `dry_run`.

        Raises:
            RefusedByHostError: The host refused it, or it failed on the way: import it again.
            HostSilentError: How far it got is unknown; import it again.
        """
        request = ImportRequest(
            path=path,
            agent=msgspec.UNSET if agent is None else agent,
            wake=wake,
            dry_run=dry_run,
            requester=this_requester(),
        )
        return self.ask(request, ImportReport)

    def replay(self, kind: Kind, number: int, *, requester: str | None = None) -> ReplayReport:
        """Have the message of a row sent to its actor again.

        Durable: that it was, before it is sent.

        Raises:
            RefusedByHostError: The host refused it, and nothing was sent.
            HostSilentError: Whether it was sent is unknown; the row's count tells.
        """
        by = this_requester() if requester is None else requester
        return self.ask(ReplayRequest(kind=kind, id=number, requester=by), ReplayReport)

    def ask(self, request: Request, kind: type[_T], *, patience_s: float = 0.0) -> _T:
        """Send a request and return what its answer carries.

        Args:
            patience_s: How long the verb itself may take, beside the answer's own deadline.
        Raises:
            RefusedByHostError, HostSilentError: As they say.
        """
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
        except OSError as error:
            raise self.silent(str(error)) from None
        try:
            line = self._line(patience_s)
        except _HungUpError:
            raise self.silent("it hung up") from None
        try:
            reply = msgspec.json.decode(line, type=Reply)
            if reply.ok and reply.result is not msgspec.UNSET:
                return msgspec.json.decode(reply.result, type=kind)
        except msgspec.DecodeError as error:
            raise self.silent(f"its answer cannot be read: {error}") from None
        if reply.error is msgspec.UNSET:
            raise self.silent("its answer carries neither a result nor an error")
        raise RefusedByHostError(
            reply.error.text, remote_code=reply.error.code, field=reply.error.field
        )

    def greet(self) -> None:
        """Read the host's greeting into `hello`.

        Raises:
            NoHostError: The host is ending.
            RefusedByHostError: It takes no more connections.
            HostSilentError: It says no hello.
            UnsupportedProtocolError: It speaks another version of the protocol.
        """
        try:
            line = self._line()
        except _HungUpError:
            # Nothing was asked yet: a host that ends closes what still waits to be greeted.
            raise NoHostError(
                "the host hung up before its greeting, as one that ends does; nothing was done; "
                "ask again"
            ) from None
        hello, refusal = _decoded(line, Hello), _decoded(line, Reply)
        if refusal is not None and refusal.error is not msgspec.UNSET:
            raise RefusedByHostError(
                refusal.error.text, remote_code=refusal.error.code, field=refusal.error.field
            )
        if hello is None:
            raise self.silent("what it says is no greeting of a control socket", asked=False)
        if hello.protocol != PROTOCOL:
            raise UnsupportedProtocolError(
                f"the host (pid {hello.pid}, version {hello.abeyance}) speaks control protocol "
                f"{hello.protocol}, not {PROTOCOL}; nothing was done; use that version's command",
                field="protocol",
            )
        self.hello = hello

    def _line(self, patience_s: float = 0.0) -> bytes:
        until = time.monotonic() + self._timeout_s + patience_s
        looked = 0
        while (end := self._pending.find(b"\n", looked)) < 0:
            looked = len(self._pending)
            if len(self._pending) > REPLY_BYTES_MAX:
                raise self.silent("its answer is longer than the bound")
            try:
                self._socket.settimeout(max(0.001, until - time.monotonic()))
                piece = self._socket.recv(65_536)
            except TimeoutError:
                raise self.silent(f"no answer within {self._timeout_s:g} s") from None
            except OSError:
                piece = b""
            if not piece:
                raise _HungUpError
            self._pending += piece
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def silent(self, why: str, *, asked: bool = True) -> HostSilentError:
        """The error that says that this host did not answer."""
        became = "what became of the request is unknown" if asked else "nothing was done"
        return HostSilentError(
            f"host process {self.at.pid} did not answer ({why}); {became}; "
            f"{look_at(self.at.pid)}, then ask again",
            pids=(self.at.pid,),
        )


def _decoded(line: bytes, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError:
        return None


def _connect(path: Path, pid: int, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with socket_address(path) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        connection.close()
        raise NoHostError(
            f"no running host serves {path}; nothing was done; start the host"
        ) from None
    except PermissionError:
        connection.close()
        raise HostForbiddenError(
            f"{path} belongs to another user; nothing was done; ask as the user who runs the host"
        ) from None
    except (TimeoutError, BlockingIOError):
        connection.close()
        raise HostSilentError(
            f"host process {pid} takes no connection; nothing was done; {look_at(pid)}",
            pids=(pid,),
        ) from None
    except OSError as error:
        connection.close()
        # Of a socket's address, the system's error does not name the path.
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None
    except BaseException:
        connection.close()
        raise
    return connection
