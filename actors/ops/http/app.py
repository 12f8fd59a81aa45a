"""The paths of the HTTP API, as a Starlette application.

Every handler is a task of the host's own loop and asks the runtime as the control socket does; only
a scrape of the metrics waits in a thread, for it reads from outside.

Invariants:
    I1  The gate is asked first, whatever the path.
    I2  A body is read up to its bound, and a stream of events has one of a few places: no client
        holds up the host.

Runs in: the loop thread.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..answers import Controlled
from ..protocol import REQUEST_BYTES_MAX
from .answering import body_fields, method_of, query_fields, refusal_of, reply_of
from .assets import Asset, assets
from .gate import Gate, HttpRefusedError
from .openapi import description

STREAMS_MAX: Final = 16
BEAT_S: Final = 15.0
"""How long a stream of events is silent at most: a comment keeps it open."""
HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
PAGE_HEADERS: Final = {
    **HEADERS,
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
_JSON: Final = "application/json"
_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Served(Controlled, Protocol):
    """What the API needs of a runtime."""

    def events(self, *, kinds: Any = None) -> Any:
        """What happens from now on, a `with` block's; each with `kind` and `as_json()`."""


class Api:
    """The handlers of one runtime's API."""

    def __init__(self, runtime: Served, gate: Gate) -> None:
        self._runtime = runtime
        self._gate = gate
        self._files = tuple(assets().items())
        self._streams = 0
        self._scrapes = trio.CapacityLimiter(1)
        self._scrape: Callable[[], bytes] | None = None

    def application(self) -> Starlette:
        looks = partial(self._guarded, changes=False)
        return Starlette(
            routes=[
                *(Route(path, self._file(asset), methods=["GET"]) for path, asset in self._files),
                Route("/healthz", looks(self._alive), methods=["GET"]),
                Route("/readyz", looks(self._ready), methods=["GET"]),
                Route("/metrics", looks(self._metrics), methods=["GET"]),
                Route("/openapi.json", looks(self._described), methods=["GET"]),
                Route("/v1/events", looks(self._events), methods=["GET"]),
                Route("/v1/{verb}", self._verb, methods=["GET", "POST"]),
                Route("/{path:path}", looks(self._nowhere), methods=["GET", "POST"]),
            ],
            exception_handlers={405: _wrong_method},
        )

    def _guarded(self, handler: _Handler, *, changes: bool) -> _Handler:
        async def guarded(request: Request) -> Response:
            try:
                self._check(request, changes=changes)
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - one request is the unit that fails here.
                return _refused(error)

        return guarded

    def _file(self, asset: Asset) -> _Handler:
        async def file(request: Request) -> Response:
            try:
                self._gate.check_name(request.headers)
            except HttpRefusedError as error:
                return _refused(error)
            return Response(asset.body, media_type=asset.kind, headers=PAGE_HEADERS)

        return file

    def _check(self, request: Request, *, changes: bool) -> None:
        address = "?" if request.client is None else request.client.host
        self._gate.check(request.headers, address, changes=changes)

    async def _verb(self, request: Request) -> Response:
        """Look, or change something; a `POST` needs the admin token before it is understood."""
        posts = request.method == "POST"
        return await self._guarded(self._answered, changes=posts)(request)

    async def _answered(self, request: Request) -> Response:
        verb = request.path_params["verb"]
        method = method_of(verb)
        if request.method not in (method, "HEAD" if method == "GET" else method):
            raise HttpRefusedError(
                405,
                "wrong_method",
                f"{verb} is asked for by {method}; nothing was done; send it so",
                {"allow": method},
            )
        if method == "GET":
            fields: dict[str, Any] = dict(query_fields(request.query_params.multi_items()))
            return _json(await reply_of(self._runtime, verb, fields, strict=False))
        fields = body_fields(await _body(request))
        return _json(await reply_of(self._runtime, verb, fields, strict=True))

    async def _alive(self, _request: Request) -> Response:
        return _json(b'{"alive":true}')

    async def _ready(self, _request: Request) -> Response:
        """Whether the runtime answers, and whether it starts turns: a quiesced one is ready."""
        mode = self._runtime.status().mode.state
        return _json(msgspec.json.encode({"ready": True, "mode": mode}))

    async def _metrics(self, _request: Request) -> Response:
        if self._scrape is None:
            try:
                from ..metrics import RuntimeCollector, exposition
            except ModuleNotFoundError:
                raise HttpRefusedError(
                    501,
                    "metrics_not_installed",
                    "the host has no metrics library; nothing was done; install abeyance[metrics]",
                ) from None
            runtime: Any = self._runtime
            self._scrape = partial(exposition, RuntimeCollector(runtime))
        text = await trio.to_thread.run_sync(self._scrape, limiter=self._scrapes)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(text, media_type=kind, headers=HEADERS)

    async def _described(self, _request: Request) -> Response:
        return _json(description())

    async def _nowhere(self, request: Request) -> Response:
        raise HttpRefusedError(
            404,
            "unknown_path",
            f"there is nothing at {request.url.path[:100]!r}; nothing was done; /openapi.json has "
            "the paths there are",
        )

    async def _events(self, request: Request) -> Response:
        fields = query_fields(request.query_params.multi_items())
        kinds = fields.pop("kinds", None)
        if fields:
            raise HttpRefusedError(
                422, "invalid_field", "events are asked for with `kinds` alone; leave the rest out"
            )
        if self._streams >= STREAMS_MAX:
            raise HttpRefusedError(
                503,
                "busy",
                f"{STREAMS_MAX} streams of events are open; close one, or try again",
                {"retry-after": "5"},
            )
        chosen = None if kinds is None else [kind for kind in kinds.split(",") if kind]
        return _Stream(self, self._runtime.events(kinds=chosen))


def _wrong_method(request: Request, error: Exception) -> Response:
    """A method that a path has not; starlette's own answer is no refusal that a program reads."""
    allowed = dict(getattr(error, "headers", None) or {})
    text = f"{request.method[:20]} is no method of this path; nothing was done; see `allow`"
    return _refused(HttpRefusedError(405, "wrong_method", text, allowed))


class _Stream(Response):
    """Server-sent events, until the client or the runtime is gone."""

    def __init__(self, api: Api, events: Any) -> None:
        super().__init__(media_type="text/event-stream", headers=HEADERS)
        del self.headers["content-length"]
        self._api = api
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._api._streams += 1
        try:
            with self._events:
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say, send, nursery.cancel_scope)
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    nursery.cancel_scope.cancel()
        finally:
            self._api._streams -= 1

    async def _say(self, send: Send, scope: trio.CancelScope) -> None:
        await _say(send, ": events from now on; not all of them, where this is read too slowly\n\n")
        events = aiter(self._events)
        while True:
            with trio.move_on_after(BEAT_S) as waiting:
                event = await anext(events, None)
            if waiting.cancelled_caught:
                await _say(send, ": still there\n\n")
            elif event is None:
                break
            else:
                text = json.dumps(event.as_json())
                await _say(send, f"event: {event.kind}\ndata: {text}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        scope.cancel()


async def _say(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _body(request: Request) -> bytes:
    """The body of a request that changes something.

    Raises:
        HttpRefusedError: It is not JSON by its own account, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        # A form of another site can send anything but this without asking first.
        raise HttpRefusedError(
            415, "not_json", f"the body must be {_JSON}; nothing was done; say so in content-type"
        )
    body = bytearray()
    async with aclosing(request.stream()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > REQUEST_BYTES_MAX:
                raise HttpRefusedError(
                    413,
                    "request_too_large",
                    f"the body is longer than {REQUEST_BYTES_MAX} bytes; nothing was done; "
                    "send less",
                )
    return bytes(body)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type=_JSON)


def _refused(error: Exception) -> Response:
    status, report, headers = refusal_of(error)
    return _json(msgspec.json.encode({"error": report}), status, headers)
