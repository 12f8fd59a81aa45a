"""The socket of the HTTP API, in the runtime's own nursery.

Runs in: the loop thread.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from abeyance.actors.core.logs import Log

from ..errors import ControlError
from .app import Api, Served
from .gate import Gate
from .options import HttpApi

SILENT_S_MAX: Final = 30.0
"""How long a connection may be silent between two requests, or within one."""
HEAD_BYTES_MAX: Final = 16_384

_log = Log(__name__)


class HttpAddressError(ControlError):
    """The HTTP API cannot listen where it was told to; nothing was opened for long.

    Attribute `field`: `http.port`."""

    code = "http_address"
    field = "http.port"


async def serve_http(
    runtime: Served,
    options: HttpApi,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a runtime's HTTP API until cancelled; reports its base URL when it accepts connections.

    A checkpoint. Cancelled: connections are closed, streams of events among them. A verb that has
    handed something to the runtime is the runtime's to finish. Nothing of its own is durable.

    Raises:
        HttpAddressError: The address cannot be listened on.
    """
    with _bound(options) as listening:
        port: int = listening.getsockname()[1]
        # Of its own: the server closes what it is given.
        handed = os.dup(listening.fileno())
        application = Api(runtime, Gate(options, port)).application()
        url = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{port}"
        async with trio.open_nursery() as nursery:
            await nursery.start(_serve, application, _config(handed))
            # The server lets programs that the host starts inherit it; they are not to.
            os.set_inheritable(handed, False)
            _log.info("the HTTP API is at %s", url)
            task_status.started(url)


async def _serve(
    application: object,
    config: Config,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    await serve(application, config, mode="asgi", task_status=task_status)  # type: ignore[arg-type]


def _config(descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.accesslog = None
    config.errorlog = Log(f"{__name__}.connections").logger
    config.include_server_header = False
    config.keep_alive_timeout = SILENT_S_MAX
    config.read_timeout = int(SILENT_S_MAX)
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.graceful_timeout = 0.5
    return config


def _bound(options: HttpApi) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.host, options.port))
    except OSError as error:
        listening.close()
        raise HttpAddressError(
            f"the HTTP API cannot listen on {options.host} port {options.port} "
            f"({os.strerror(error.errno or 0)}); the runtime was not opened; choose another port, "
            "or 0 for a free one"
        ) from error
    return listening
