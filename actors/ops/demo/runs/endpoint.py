"""Where the runs' demo posts: an HTTP server on loopback, in a process of its own.

`POST /posts` with an `idempotency-key` has its effect each time it is received: a line in a file,
synced. So what is sent twice is there twice; the key only lets a client ask, by `GET /posts/KEY`,
whether it had its effect. One post is kept without an answer until the line `answer` arrives, so
that its client can be killed in its middle.

Runs threads of its own: one a connection, and the main thread for its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from ..pipes import say

BODY_BYTES_MAX = 65_536
HELD_S_MAX = 60.0


class Posts:
    """The effects: a line each, in the order they came."""

    def __init__(self, path: Path, held: str) -> None:
        self._path = path
        self._held = held
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self.answered = threading.Event()

    def take(self, key: str, item: str, text: str) -> None:
        """Have the effect; of the held item, return only when it may be answered."""
        line = json.dumps({"key": key, "item": item, "text": text, "at_ms": _now_ms()})
        with self._lock:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._keys.add(key)
        say("post", key=key, item=item, text=text)
        if item == self._held:
            self.answered.wait(HELD_S_MAX)

    def knows(self, key: str) -> bool:
        with self._lock:
            return key in self._keys


def _handler(posts: Posts) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            key = self.headers.get("idempotency-key")
            if self.path != "/posts" or key is None or size > BODY_BYTES_MAX:
                self._reply(400)
                return
            body = json.loads(self.rfile.read(size))
            posts.take(key, body["item"], body["text"])
            self._reply(201)

        def do_GET(self) -> None:
            known = self.path.startswith("/posts/") and posts.knows(unquote(self.path[7:]))
            say("asked", key=unquote(self.path[7:]), known=known)
            self._reply(200 if known else 404)

        def _reply(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing; `say` does."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed in its middle is what this is for."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the end of standard input."""
    parser = argparse.ArgumentParser(prog="abeyance-demo-endpoint")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--held", default="")
    options = parser.parse_args(arguments)
    posts = Posts(options.log, options.held)
    with _Server(("127.0.0.1", 0), _handler(posts)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say("serving", url=f"http://127.0.0.1:{server.server_address[1]}")
        for line in sys.stdin:
            if json.loads(line) == {"do": "answer"}:
                posts.answered.set()
        posts.answered.set()
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
