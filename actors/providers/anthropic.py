"""The Anthropic Messages API through the official SDK, built never to retry.

The SDK makes the request: authentication, headers, URL, errors of status. The stream is decoded
here, because the SDK hides the pings that a deadline needs to know apart, and leaves generators
unclosed when the stream states an error.

Invariants:
    I1  One call, one request, one permit (`PermitTransport`); `max_retries=0`, no redirects.
    I2  The wire's own end of message completes a call, whether or not the socket closes.
    I3  Three deadlines: bytes (in the transport), the first event that is no ping, the whole call.
    I4  Whatever fails is raised as one `ProviderError`, except `PermitError` and cancellation.

Runs in the calling trio task; one instance serves any number at once.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import httpx2
import trio

from ..core.clock import Clock, SystemClock
from ..core.errors import AbeyanceError
from .anthropic_wire import ReplyAssembly, UnreadableReplyError, read_json, request_body
from .credentials import fingerprint
from .failures import refusal
from .grammar import printable
from .port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    PermitError,
    ProviderError,
    ProviderStalledError,
    ReplyDelta,
)
from .sse import ServerSentEvent, SseDecoder
from .transport import PermitTransport

if TYPE_CHECKING:
    import anthropic

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]] | None

_NAME = "anthropic"
_UNSENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
_TRANSIENT_TYPES = frozenset({"api_error", "timeout_error", "overloaded_error", "rate_limit_error"})
_TERMINAL_TYPES = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "billing_error",
    }
)


class ProviderNotInstalledError(AbeyanceError):
    """An adapter's SDK is an optional extra, and it is not installed. Attribute: `extra`."""

    code: ClassVar[str] = "provider_not_installed"

    extra: str


class AnthropicProvider:
    """A `Provider` for the Anthropic Messages API. Making it does no I/O.

    Args:
        api_key: A key, or a function called before each call that returns one or an awaitable of
            one. None takes ANTHROPIC_API_KEY, now.
        base_url: None takes ANTHROPIC_BASE_URL, else the service's own.
        byte_idle_s: Seconds without a byte until a call counts as stalled.
        first_event_s: Seconds until the first event that is no ping.
        call_s: Seconds for the whole call.
        clock: The wall clock that stated waits are counted from.
    Raises:
        ProviderNotInstalledError: The extra `abeyance[anthropic]` is not installed.
        ValueError: There is no key, or a deadline is not positive.
    """

    carries_injections = True

    def __init__(
        self,
        *,
        api_key: ApiKey = None,
        base_url: str | None = None,
        byte_idle_s: float = 120.0,
        first_event_s: float = 900.0,
        call_s: float = 3600.0,
        clock: Clock | None = None,
    ) -> None:
        for seconds in (byte_idle_s, first_event_s, call_s):
            if not seconds > 0:
                raise ValueError(f"a provider's deadline is a positive number, not {seconds!r}")
        key = os.environ.get("ANTHROPIC_API_KEY") if api_key is None else api_key
        if not key:
            raise ValueError("no API key: pass api_key or set ANTHROPIC_API_KEY")
        self._first_event_s = first_event_s
        self._call_s = call_s
        self._clock = clock or SystemClock()
        self._key = key if callable(key) else None
        self._sdk = _import_sdk()
        self._client = self._sdk.AsyncAnthropic(
            # Always explicit: without a key the SDK looks for profiles on disk and would exchange
            # tokens by requests of its own. A function's key is set on each request instead.
            api_key="set on each request" if callable(key) else key,
            base_url=base_url,
            max_retries=0,
            timeout=None,
            http_client=httpx2.AsyncClient(
                transport=PermitTransport(byte_idle_s=byte_idle_s),
                timeout=None,
                follow_redirects=False,
            ),
        )

    def credential(self, salt: str) -> str | None:
        """A fingerprint of the API key; None where a function returns it, since it may change."""
        return None if self._key is not None else fingerprint(str(self._client.api_key), salt)

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Make one streamed call under the permit in the context. See `Provider.call`.

        Raises:
            PermitError: No unused permit in the context; nothing was sent.
            ProviderStalledError: One of the three deadlines passed.
            ProviderError: Refused, failed, cut off, or not readable.
            Exception: Whatever `on_delta` raised, as it is; the call is abandoned.
        """
        now = trio.current_time()
        whole = trio.CancelScope(deadline=now + self._call_s)
        first = trio.CancelScope(deadline=now + self._first_event_s)
        observed = _Observer(on_delta)
        with whole, first:
            try:
                return await self._reply(request, observed, first)
            except (PermitError, ProviderError):
                raise
            except Exception as error:
                if error is observed.error:
                    raise  # The caller's own fault; no retry of the call would mend it.
                # The SDK, the HTTP client and the wire fail in more ways than can be listed, and a
                # turn knows one: whatever it was becomes that one, with its cause attached.
                raise self._translated(error) from error
        if first.cancelled_caught:
            raise _late(f"no event for {self._first_event_s:g} s")
        raise _late(f"no whole reply for {self._call_s:g} s")

    async def aclose(self) -> None:
        """Close connections. Idempotent. Without it the SDK's finalizer reaches for asyncio."""
        await self._client.close()

    async def _reply(
        self, request: ModelRequest, on_delta: OnDelta, first: trio.CancelScope
    ) -> ModelReply:
        headers = {} if self._key is None else {"X-Api-Key": await self._current_key(self._key)}
        create: Any = self._client.messages.with_streaming_response.create
        assembly = ReplyAssembly(on_delta)
        async with create(**request_body(request), extra_headers=headers) as response:
            body = response.http_response.aiter_bytes()
            decoder = SseDecoder()
            async with aclosing(body):
                async for chunk in body:
                    for event in decoder.feed(chunk):
                        if event.name != "ping":
                            first.deadline = math.inf
                        self._take(event, assembly, response.http_response)
                    if assembly.complete:
                        break
        return assembly.reply()

    def _take(
        self, event: ServerSentEvent, assembly: ReplyAssembly, response: httpx2.Response
    ) -> None:
        data = read_json(event.data)
        if event.name != "error" and data.get("type") != "error":
            assembly.feed(data)
            return
        kind, message = _error(data)
        retryable = None if kind in _TERMINAL_TYPES else True
        raise refusal(
            provider=_NAME,
            status=response.status_code,
            headers=response.headers.multi_items(),
            body=event.data,
            message=message,
            received_at=self._clock.now_ms() / 1_000,
            transport="sse",
            retryable=retryable,
        )

    async def _current_key(self, key: Callable[[], str | Awaitable[str]]) -> str:
        try:
            value = key()
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            raise ProviderError(
                f"the function that gives {_NAME}'s API key raised {type(error).__name__}; "
                "nothing was sent; look at its cause",
                retryable=True,
                sent=False,
            ) from error

    def _translated(self, error: Exception) -> ProviderError | PermitError:
        # The SDK wraps what a transport raises before headers, so the cause is what happened.
        for cause in _causes(error):
            if isinstance(cause, PermitError | ProviderError):
                return cause
        if isinstance(error, self._sdk.APIStatusError):
            return self._refused(error)
        if isinstance(error, UnreadableReplyError):
            words = printable(str(error), chars_max=300)
            return ProviderError(
                f"{_NAME} sent a reply that cannot be used: {words}; none of it was taken; "
                "ask the gate again",
                retryable=True,
            )
        sent = not any(isinstance(cause, _UNSENT) for cause in _causes(error))
        *_, root = _causes(error)
        words = f"{type(error).__name__}: {root or error}"
        return ProviderError(
            f"the call to {_NAME} failed ({printable(words, chars_max=300)}); "
            + ("whether it was processed is unknown" if sent else "nothing was sent")
            + "; ask the gate again",
            retryable=True,
            sent=sent,
        )

    def _refused(self, error: anthropic.APIStatusError) -> ProviderError:
        response = error.response
        body = response.text
        try:
            _kind, message = _error(read_json(body))
        except UnreadableReplyError:
            message = body
        return refusal(
            provider=_NAME,
            status=response.status_code,
            headers=response.headers.multi_items(),
            body=body,
            message=message,
            received_at=self._clock.now_ms() / 1_000,
            retryable=True if response.headers.get("x-should-retry") == "true" else None,
        )


class _Observer:
    """Passes deltas on, and remembers what the caller's function raised."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self.error: Exception | None = None

    def __call__(self, delta: ReplyDelta) -> None:
        try:
            self._on_delta(delta)
        except Exception as error:
            self.error = error
            raise


def _import_sdk() -> Any:
    try:
        import anthropic
    except ImportError as error:
        raise ProviderNotInstalledError(
            "the Anthropic SDK is not installed; nothing was sent; "
            "install it with: pip install 'abeyance[anthropic]'",
            extra="anthropic",
        ) from error
    return anthropic


def _error(data: dict[str, Any]) -> tuple[str, str]:
    error = data.get("error")
    error = error if isinstance(error, dict) else {}
    kind, message = error.get("type"), error.get("message")
    return (
        kind if isinstance(kind, str) else "",
        message if isinstance(message, str) else "",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _late(what: str) -> ProviderStalledError:
    return ProviderStalledError(
        f"{_NAME} sent {what}; the request may have been processed, no reply was taken; "
        "ask the gate again",
        retryable=True,
    )
