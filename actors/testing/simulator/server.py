"""A provider on loopback: a real HTTP server that speaks providers' wires by a script.

    async with ProviderSimulator(rules) as simulator:
        provider = AnthropicProvider(api_key="any", base_url=simulator.base_url)

It speaks Anthropic's Messages, and below `base_url + "/v1"` OpenAI's Responses and Chat
Completions: the path of a request tells which. One script answers on each.

As a process: `python -m abeyance.actors.testing.simulator --script FILE --port-file FILE`. A
process is steered over HTTP: `POST /_sim/release/<name>` releases a hold, `GET /_sim/holds` lists
the holds that requests wait in, `GET /_sim/log` returns the log.

Invariants:
    I1  A request is in the log, on disk, before the first byte of its response is sent.
    I2  Answers are chosen in order of arrival, when a request was read whole.
    I3  A client that leaves ends its response at once, wherever it waits.

Runs in the task that entered it, one child task a connection; h11 parses, sockets are trio's.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import h11
import trio

from ...core.clock import Clock, SystemClock
from .attached import folded
from .script import Answer, Player, Script
from .wire_log import LogEntry, WireLog
from .wires import WIRES, Event, Wire, sse

_HOLD_POLL_S = 0.01
_READ_BYTES = 65_536


class Holds:
    """Named points where responses wait until they are released. A release may come first."""

    def __init__(self) -> None:
        self._released: dict[str, trio.Event] = {}
        self._entered: dict[str, trio.Event] = {}

    def release(self, name: str) -> None:
        """Let everything through that waits, or will wait, under this name. Not a checkpoint."""
        self._event(self._released, name).set()

    def waiting(self) -> list[str]:
        """Names that a response has reached and that are not released, sorted."""
        return sorted(
            name
            for name, event in self._entered.items()
            if event.is_set() and not self._event(self._released, name).is_set()
        )

    async def wait_entered(self, name: str) -> None:
        """Block until a response has reached this hold. A checkpoint."""
        await self._event(self._entered, name).wait()

    async def wait_released(self, name: str) -> None:
        """Wait in the hold."""
        self._event(self._entered, name).set()
        await self._event(self._released, name).wait()

    @staticmethod
    def _event(events: dict[str, trio.Event], name: str) -> trio.Event:
        return events.setdefault(name, trio.Event())


class ProviderSimulator:
    """An async context manager that serves from entry to exit; leaving cuts what is open.

    Args:
        script: Rules, or a deterministic function of the request. None echoes.
        port: 0 takes a free one.
        log_path: Where the wire log is appended, one JSON object a line. None keeps it in memory.
        clock: The log's wall clock.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        port: int = 0,
        log_path: str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._player = Player(script)
        self._port = port
        self._log_path = None if log_path is None else Path(log_path)
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._wire_log: WireLog | None = None
        self.holds = Holds()

    async def __aenter__(self) -> Self:
        self._wire_log = WireLog(self._clock, self._log_path)
        self._stack.callback(self._wire_log.close)
        nursery = await self._stack.enter_async_context(trio.open_nursery())
        self._stack.callback(nursery.cancel_scope.cancel)
        serve = partial(trio.serve_tcp, self._connected, self._port, host="127.0.0.1")
        try:
            listeners = await nursery.start(serve)
        except BaseException:  # Cancelled, or the port is taken: nobody else leaves the nursery.
            await self._stack.aclose()
            raise
        self._port = listeners[0].socket.getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Not told of the body's error: the nursery would wrap it in a group, and it is the body's.
        await self._stack.aclose()

    @property
    def port(self) -> int:
        return self._port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> list[LogEntry]:
        """What was on the wire, in order of arrival; control requests and noise are not in it."""
        return [] if self._wire_log is None else self._wire_log.entries

    def release(self, name: str) -> None:
        """Release a named hold. Not a checkpoint."""
        self.holds.release(name)

    async def wait_held(self, name: str) -> None:
        """Block until a response waits in this hold. A checkpoint."""
        await self.holds.wait_entered(name)

    async def wait_replied(self, number: int) -> LogEntry:
        """Block until the response to the n-th request is over. A checkpoint."""
        assert self._wire_log is not None
        return await self._wire_log.wait_replied(number)

    async def _connected(self, stream: trio.SocketStream) -> None:
        connection = _Connection(stream)
        try:
            while (request := await connection.next_request()) is not None:
                await self._serve(connection, request)
                if not connection.reusable():
                    break
        except* (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            # The client left, or spoke no HTTP: the log has what was sent until then.
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve(self, connection: _Connection, request: _Request) -> None:
        if request.path.startswith("/_sim/"):
            await connection.send_json(*self._control(request))
            return
        wire = WIRES.get(request.path) if request.method == "POST" else None
        if wire is None:
            error = WIRES["/v1/messages"].error_body(404, f"no such path: {request.path}")
            await connection.send_json(404, error)
            return
        assert self._wire_log is not None
        body = folded(request.json())
        entry = self._wire_log.received(request.path, request.headers, body)
        response = _Response(connection, self.holds, wire)
        try:
            await connection.while_connected(
                partial(self._answer, wire, response, entry.number, request, body)
            )
        finally:
            self._wire_log.replied(
                entry, status=response.status, reply=response.sent, finished=response.finished
            )

    async def _answer(
        self,
        wire: Wire,
        response: _Response,
        number: int,
        request: _Request,
        body: dict[str, Any] | None,
    ) -> None:
        if not any(name in ("x-api-key", "authorization") for name, _ in request.headers):
            await response.refuse(401, "an API key is required")
            return
        refused = "the body is not a JSON object" if body is None else wire.refusal(body)
        if body is None or refused is not None:
            await response.refuse(400, refused or "")
            return
        parsed = wire.parse(number, body)
        if request.path.endswith("/count_tokens"):
            await response.send(200, {"input_tokens": len(json.dumps(body)) // 4})
            return
        answer = self._player.answer(parsed)
        await response.wait(answer)
        if answer.status != 200:
            content = answer.body
            if content is None:
                content = wire.error_body(answer.status, f"simulated {answer.status}")
            await response.send(answer.status, content, answer.headers)
            return
        whole = wire.message(number, parsed, answer)
        if body.get("stream"):
            await response.stream(whole, answer)
        else:
            await response.send(200, whole, answer.headers)

    def _control(self, request: _Request) -> tuple[int, Any]:
        head, _, name = request.path.removeprefix("/_sim/").partition("/")
        match (request.method, head):
            case ("POST", "release") if name:
                self.holds.release(name)
                return 200, {"released": name}
            case ("GET", "holds"):
                return 200, self.holds.waiting()
            case ("GET", "log"):
                return 200, [asdict(entry) for entry in self.log]
        return 404, {"error": f"no such control: {request.method} {request.path}"}


class _Request:
    def __init__(self, head: h11.Request, body: bytes) -> None:
        self.method = head.method.decode()
        self.path = head.target.decode().partition("?")[0]
        self.headers = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
        self._body = body

    def json(self) -> dict[str, Any] | None:
        try:
            value = json.loads(self._body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class _Connection:
    """One client connection: h11 over a trio stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER)

    async def next_request(self) -> _Request | None:
        """Read one whole request; None where the client is done."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    await self.send_event(
                        h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                    )
                self._h11.receive_data(await self._stream.receive_some(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return _Request(head, bytes(body))
            else:  # The connection was closed between requests.
                return None

    def reusable(self) -> bool:
        """Make ready for the next request on this connection, where that is possible."""
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            return True
        return False

    async def send_event(self, event: Any) -> None:
        data = self._h11.send(event)
        if data:
            await self._stream.send_all(data)

    async def send_json(
        self, status: int, content: Any, headers: list[tuple[str, str]] | None = None
    ) -> None:
        """Send a whole response. A text is sent as it is."""
        plain = isinstance(content, str)
        payload = (content if plain else json.dumps(content)).encode()
        fields = list(headers or [])
        if not any(name.lower() == "content-type" for name, _ in fields):
            fields.append(("content-type", "text/plain" if plain else "application/json"))
        fields.append(("content-length", str(len(payload))))
        await self.send_event(h11.Response(status_code=status, headers=fields))
        await self.send_event(h11.Data(data=payload))
        await self.send_event(h11.EndOfMessage())

    async def while_connected(self, respond: Any) -> None:
        """Run a response, and end it at once when the client leaves."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                # No client of this wire sends ahead of a response, so whatever arrives is for the
                # next request, and nothing at all means that the client has left.
                while data := await self._receive_or_gone():
                    self._h11.receive_data(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await respond()
            nursery.cancel_scope.cancel()

    async def _receive_or_gone(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""


class _Response:
    """One response as it is sent, and what was sent of it."""

    def __init__(self, connection: _Connection, holds: Holds, wire: Wire) -> None:
        self._connection = connection
        self._holds = holds
        self._wire = wire
        self.status = 0
        """0: no byte was sent."""
        self.sent: Any = None
        self.finished = False

    async def refuse(self, status: int, text: str) -> None:
        await self.send(status, self._wire.error_body(status, text))

    async def send(
        self, status: int, content: Any, headers: dict[str, str | list[str]] | None = None
    ) -> None:
        self.status, self.sent = status, content
        await self._connection.send_json(status, content, _lines(headers or {}))
        self.finished = True

    async def wait(self, answer: Answer) -> None:
        """What an answer waits for before its head."""
        await trio.sleep(answer.delay_ms / 1_000)
        if answer.hold is not None:
            await self._holds.wait_released(answer.hold)
        if answer.hold_until is not None:
            path = trio.Path(answer.hold_until)
            # Polled: another process makes the file, and the standard library has no watch.
            while not await path.exists():  # noqa: ASYNC110
                await trio.sleep(_HOLD_POLL_S)

    async def stream(self, whole: dict[str, Any], answer: Answer) -> None:
        """Send a message event by event, with whatever the script does to it on the way."""
        headers = [("content-type", "text/event-stream"), *_lines(answer.headers)]
        self.status = 200
        await self._connection.send_event(h11.Response(status_code=200, headers=headers))
        sent: list[Event] = []
        for position, event in enumerate(self._wire.events(whole, answer)):
            if not await self._goes_on(position, answer, sent):
                return
            await self._write(sse(event))
            sent.append(event)
            self.sent = self._wire.folded(sent)
            if self._wire.is_content(event):
                await self._pause(answer, sent)
        self.finished = True
        if answer.linger:
            await self._living(answer, trio.sleep_forever)
        await self._connection.send_event(h11.EndOfMessage())

    async def _goes_on(self, position: int, answer: Answer, sent: list[Event]) -> bool:
        if position == answer.stall_after:
            await self._living(answer, trio.sleep_forever)
        if position == answer.cut_after:
            return False
        if position == answer.end_after:
            await self._connection.send_event(h11.EndOfMessage())
            return False
        if position == answer.error_after:
            failure = self._wire.error_event(answer.error)
            await self._write(sse(failure))
            self.sent = self._wire.folded([*sent, failure])
            await self._connection.send_event(h11.EndOfMessage())
            return False
        return True

    async def _pause(self, answer: Answer, sent: list[Event]) -> None:
        if answer.hold_in_stream is not None:
            first = sum(self._wire.is_content(event) for event in sent) == 1
            if first:
                release = partial(self._holds.wait_released, answer.hold_in_stream)
                await self._living(answer, release)
        if answer.chunk_delay_ms:
            await self._living(answer, partial(trio.sleep, answer.chunk_delay_ms / 1_000))

    async def _living(self, answer: Answer, wait: Any) -> None:
        """Wait, with signs of life meanwhile where the answer asks for them."""
        if not answer.keep_alive_ms:
            await wait()
            return
        async with trio.open_nursery() as nursery:
            ping = self._wire.PING if answer.keep_alive == "ping" else None
            sign = b": keep-alive\n\n" if ping is None else sse(ping)

            async def live() -> None:
                while True:
                    await trio.sleep(answer.keep_alive_ms / 1_000)
                    await self._write(sign)

            nursery.start_soon(live)
            await wait()
            nursery.cancel_scope.cancel()

    async def _write(self, data: bytes) -> None:
        await self._connection.send_event(h11.Data(data=data))


def _lines(headers: dict[str, str | list[str]]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]
