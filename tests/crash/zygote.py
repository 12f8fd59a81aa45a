"""A process that has imported everything and forks a host in milliseconds.

Started with the number of a socket. Each request is one JSON line, `{"module", "arguments",
"environment"}`, with two descriptors: the child's standard input and output. The next is sent after
the answer `{"started": pid}`. Later comes `{"ended": pid, "status": code}`.

It opens no store and runs no loop, so what it forks is as fresh as a new process; what is killed is
a real process with SIGKILL. It ends with its socket.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

MODULES = ("abeyance.actors.ops.demo.host", "abeyance.actors.ops.demo.simulator", "anthropic")


def main(descriptor: int) -> None:
    for module in MODULES:
        importlib.import_module(module)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer)
    control = socket.socket(fileno=descriptor)
    while True:
        ready, _, _ = select.select([control, wake_reader], [], [])
        if wake_reader in ready:
            os.read(wake_reader, 1_024)
            _reap(control)
        if control in ready:
            request, descriptors = _receive(control)
            if request is None:
                return
            _tell(control, {"started": _fork(request, descriptors, control)})


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(control, 65_536, 2)
    while data and not data.endswith(b"\n"):
        data += control.recv(65_536)
    return (json.loads(data) if data else None), descriptors


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(control, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(control: socket.socket, answer: dict[str, Any]) -> None:
    control.sendall(json.dumps(answer).encode() + b"\n")


def _fork(request: dict[str, Any], descriptors: list[int], control: socket.socket) -> int:
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        code = _run(request)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(code)


def _run(request: dict[str, Any]) -> int:
    from abeyance.storage import crashpoints

    os.environ.update(request["environment"])
    # Read at import in a process of its own; here it was imported before the variable was set.
    crashpoints.arm(os.environ.get(crashpoints.VARIABLE))
    module: Any = importlib.import_module(request["module"])
    code: int = module.main(request["arguments"])
    return code


if __name__ == "__main__":
    main(int(sys.argv[1]))
