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
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final

import msgspec
import trio

from abeyance.actors._version import __version__
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log

from .address import CONTROL_NAME, HostSocket, all_sockets, socket_address
from .answers import Controlled, answer
from .errors import ControlError, RequestTooLargeError
from .protocol import REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Hello, error_line, ok_line, read_request
from .requests import PROTOCOL

CONNECTIONS_MAX: Final = 32
IDLE_S_MAX: Final = 60.0
"""How long a connection may be silent between two requests."""
SEND_S_MAX: Final = 10.0
"""How long a client may take to read one reply."""

_log = Log(__name__)


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
            reply = ok_line(await answer(self._runtime, request, "cli"))
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
