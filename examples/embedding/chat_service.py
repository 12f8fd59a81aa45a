"""A chat service on loopback, small enough to read, as a bridge meets one.

It hands out what people wrote until that is acknowledged, and takes what is to be shown, once for
each idempotency key:

    GET /updates            what is not acknowledged, oldest first; waits a while for the first
    POST /updates/ID/ack    that one is taken care of
    POST /messages          {"room": ..., "text": ...}, with the header Idempotency-Key

People write by `chat.write(room, text)`, or `POST /rooms/ROOM` with the text as its body.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

POLL_S = 5.0


class ChatService(ThreadingHTTPServer):
    """`with ChatService() as chat:` serves at `chat.url` in a thread."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.changed = threading.Condition()
        self.updates: dict[str, dict[str, str]] = {}
        """What people wrote and nobody has acknowledged, by id."""
        self.shown: dict[str, dict[str, str]] = {}
        """What was posted, by idempotency key."""
        self.posts: list[str] = []
        """The key of each post, those that were posted before included."""
        self._written = 0

    def __enter__(self) -> "ChatService":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def write(self, room: str, text: str) -> None:
        with self.changed:
            self._written += 1
            update = {"id": f"{self._written}", "room": room, "text": text}
            self.updates[update["id"]] = update
            self.changed.notify_all()

    def pending(self) -> list[dict[str, str]]:
        with self.changed:
            self.changed.wait_for(lambda: self.updates, POLL_S)
            return list(self.updates.values())

    def acknowledge(self, update: str) -> None:
        with self.changed:
            self.updates.pop(update, None)

    def show(self, key: str, message: dict[str, str]) -> None:
        with self.changed:
            self.posts.append(key)
            self.shown.setdefault(key, message)
            self.changed.notify_all()

    def wait_shown(self, room: str) -> str:
        """Wait until something is shown there; return the first of it."""
        with self.changed:
            return self.changed.wait_for(lambda: self._first(room))

    def _first(self, room: str) -> str:
        return next((each["text"] for each in self.shown.values() if each["room"] == room), "")


class _Handler(BaseHTTPRequestHandler):
    server: ChatService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"updates": self.server.pending()})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        match self.path.strip("/").split("/"):
            case ["updates", update, "ack"]:
                self.server.acknowledge(update)
            case ["messages"]:
                self.server.show(self.headers["idempotency-key"], json.loads(body))
            case ["rooms", room]:
                self.server.write(room, body)
            case _:
                self.send_error(404)
                return
        self._answer({})

    def _answer(self, fields: dict[str, Any]) -> None:
        body = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""
