"""The last step before the wire: one permit, one request, and a deadline for every byte.

`PermitTransport` is an httpx2 transport, so any SDK that takes an httpx2 client can sit on it.

Invariants:
    I1  No request leaves without consuming the context's permit, and none consumes two. Retries,
        redirects and an SDK's side requests find the permit used and are refused unsent.
    I2  A response that sends no byte for `byte_idle_s` ends in `ProviderStalledError`. Comments and
        pings are bytes.
    I3  However its reading ends, a response body is closed and its generators are exhausted:
        trio has nothing left to finalize.

Runs in the calling trio task.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2
import trio

from .outgoing import outgoing
from .port import ProviderStalledError, use_permit

_FINISH_GRACE_S = 0.25
"""How long a reader that is done waits for the response's end, so the connection can be reused."""

_KEEP_ALIVE_S = 60


_carried: ContextVar[Mapping[str, str]] = ContextVar("abeyance_carried_headers")


@contextmanager
def carrying(headers: Mapping[str, str]) -> Iterator[None]:
    """Have the requests of this block leave with these headers, which nobody above sees or logs."""
    token = _carried.set(headers)
    try:
        yield
    finally:
        _carried.reset(token)


class PermitTransport(httpx2.AsyncBaseTransport):
    """Sends permitted requests, over a proxy where the environment names one.

    Args:
        byte_idle_s: Seconds without a byte, also before the first, until a call counts as stalled.
        direct: What carries requests; by default a pool of connections with TCP keep-alive.
    """

    def __init__(
        self, *, byte_idle_s: float, direct: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._byte_idle_s = byte_idle_s
        self._direct = direct or _pool(None)
        # An explicit transport switches a client's own reading of the environment off.
        proxies = {} if direct is not None else urllib.request.getproxies()
        everything = proxies.get("all")
        self._proxied = {
            scheme: _pool(proxy if "://" in proxy else f"http://{proxy}")
            for scheme in ("http", "https")
            if (proxy := proxies.get(scheme, everything))
        }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Consume the permit, send, and return the response with its body under the deadline.

        A checkpoint. Cancelled: the connection is closed; whether the request arrived is unknown.

        Raises:
            PermitError: No unused permit; nothing was sent.
            AttachmentUnreadableError: Nothing whole was sent.
            ProviderStalledError: No byte for `byte_idle_s`.
            httpx2.HTTPError: Connecting or sending failed.
        """
        carrier = self._carrier(request.url)
        use_permit()
        request.headers.update(_carried.get({}))
        with trio.move_on_after(self._byte_idle_s) as idle:

            def go_on() -> None:
                idle.deadline = trio.current_time() + self._byte_idle_s

            response = await carrier.handle_async_request(await outgoing(request, go_on))
        if idle.cancelled_caught:
            raise _stalled(self._byte_idle_s, "before its response began")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            status_code=response.status_code,
            headers=response.headers,
            stream=_DeadlinedBody(response.stream, self._byte_idle_s),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        for transport in (self._direct, *self._proxied.values()):
            await transport.aclose()

    def _carrier(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        proxied = self._proxied.get(url.scheme)
        if proxied is None or _is_loopback(url.host) or urllib.request.proxy_bypass(url.host):
            return self._direct
        return proxied


class _DeadlinedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream, idle_s: float) -> None:
        self._body = body
        self._idle_s = idle_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._body.__aiter__()
        try:
            while True:
                # The scope never spans the yield: the reader's time is not the provider's.
                with trio.move_on_after(self._idle_s) as idle:
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        return
                if idle.cancelled_caught:
                    raise _stalled(self._idle_s, "in the middle of its response")
                yield chunk
        finally:
            await _exhaust(chunks)

    async def aclose(self) -> None:
        await self._body.aclose()


async def _exhaust(chunks: AsyncIterator[bytes]) -> None:
    """Read a body to its end, or cancel the reading.

    `aclose()` on the outer generator would leave the inner ones, which httpx2 iterates without
    closing, to the garbage collector. A cancelled read unwinds them all.
    """
    already_cancelled = trio.current_effective_deadline() == -math.inf
    grace_s = 0.0 if already_cancelled else _FINISH_GRACE_S
    with trio.CancelScope(shield=True, deadline=trio.current_time() + grace_s):
        try:
            async for _ in chunks:
                pass
        except httpx2.HTTPError:
            return  # The call has its outcome already; this connection is closed either way.


def _pool(proxy: str | None) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(
        proxy=proxy,
        retries=0,
        limits=httpx2.Limits(max_connections=1_000, max_keepalive_connections=100),
        socket_options=_keep_alive_options(),
    )


def _keep_alive_options() -> list[tuple[int, int, int]]:
    """TCP keep-alive as the SDKs set it, so that a dead peer is noticed below HTTP too."""
    options: list[tuple[int, int, int]] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    interval = getattr(socket, "TCP_KEEPINTVL", None)
    if interval is not None:
        options.append((socket.IPPROTO_TCP, interval, _KEEP_ALIVE_S))
    idle = getattr(socket, "TCP_KEEPIDLE", None)
    if idle is None and sys.platform == "darwin":
        idle = getattr(socket, "TCP_KEEPALIVE", 0x10)
    if idle is not None:
        options.append((socket.IPPROTO_TCP, idle, _KEEP_ALIVE_S))
    count = getattr(socket, "TCP_KEEPCNT", None)
    if count is not None:
        options.append((socket.IPPROTO_TCP, count, 5))
    return options


def _is_loopback(host: str) -> bool:
    """A proxy elsewhere cannot reach our loopback, whatever the environment forgot to exempt."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stalled(idle_s: float, when: str) -> ProviderStalledError:
    return ProviderStalledError(
        f"the provider sent nothing for {idle_s:g} s {when}; the request may have been processed, "
        "no reply was taken; the call may be made again once nothing holds it",
        retryable=True,
    )
