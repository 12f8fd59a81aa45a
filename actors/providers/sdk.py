"""What an adapter over a service's official SDK does the same way, whichever service it is.

The SDK makes the request: authentication, headers, URL, errors of status. The stream is decoded
here, because SDKs hide the pings that a deadline needs to know apart, and leave generators
unclosed when the stream states an error.

Invariants:
    I1  One call, one request, one permit (`PermitTransport`); no retries, no redirects.
    I2  The wire's own end of message completes a call, whether or not the socket closes.
    I3  Three deadlines: bytes (in the transport), the first event that is no ping, the whole call.
    I4  Whatever fails is raised as one `ProviderError`, except `PermitError` and cancellation.

Runs in the calling trio task; one instance serves any number at once.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, ClassVar, Protocol

import httpx2
import trio

from ..core.clock import Clock, SystemClock
from ..core.errors import AbeyanceError
from .attachments import Places
from .context_limit import checked_tokens
from .credentials import fingerprint
from .failures import refusal
from .grammar import printable
from .options import ApiKey
from .outgoing import leaving
from .port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    PermitError,
    ProviderError,
    ProviderStalledError,
    ReplyDelta,
    note_usage,
)
from .sse import ServerSentEvent, SseDecoder
from .transport import PermitTransport, carrying
from .usage import read_usage
from .wire import StatedError, UnreadableReplyError, error_of, read_json

SECRETS_KEPT = 16
"""Keys of the last calls: one that was rotated away may be quoted by a call that is still out."""
SECRET_CHARS_MIN = 8
"""A key that is shorter, as a local server's "none", is no secret and may be any word."""
KEY_OF_A_FUNCTION = "set on each request"
"""What the SDK is given for a key where a function returns it: never sent."""

_UNSENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


class ProviderNotInstalledError(AbeyanceError):
    """An adapter's SDK is an optional extra, and it is not installed. Attribute: `extra`."""

    code: ClassVar[str] = "provider_not_installed"

    extra: str


class Assembly(Protocol):
    """Builds one reply out of its events, in order."""

    complete: bool

    def feed(self, event: ServerSentEvent) -> None:
        """Take one event.

        Raises:
            StatedError: The event says that the call failed.
            UnreadableReplyError: It does not fit what came before it.
        """

    def reply(self) -> ModelReply:
        """The whole reply, once no more events come.

        Raises:
            UnreadableReplyError: It was not complete, or cannot be kept.
        """


class SdkProvider(ABC):
    """A `Provider` over an SDK's asynchronous client. An adapter adds three methods to it.

    Args:
        name: Whom errors name, and by whose readings statements are read.
        api_key: As the adapter was given it, or as the environment has it.
        client: Makes the SDK's client out of a key and an HTTP client. The key is
            `KEY_OF_A_FUNCTION` where a function gives it before each call.
        status_error: The SDK's error for a response with a status of failure.
        account: What the host calls the account that its keys are of; None where a key is all that
            is known of it.
    """

    carries_injections = True

    def __init__(
        self,
        *,
        name: str,
        api_key: ApiKey,
        client: Callable[[str, httpx2.AsyncClient], Any],
        status_error: type[Any],
        byte_idle_s: float,
        first_event_s: float,
        call_s: float,
        clock: Clock | None,
        account: str | None,
        context_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self._name = name
        self._context_tokens = checked_tokens(context_tokens)
        self._secrets: deque[str] = deque(maxlen=SECRETS_KEPT)
        """The keys of the last calls: what must be in no error's words."""
        self._account = account
        self._status_error = status_error
        self._first_event_s = first_event_s
        self._call_s = call_s
        self._clock = clock or SystemClock()
        self._key = api_key if callable(api_key) else None
        self._client = client(
            KEY_OF_A_FUNCTION if callable(api_key) else str(api_key),
            httpx2.AsyncClient(
                transport=PermitTransport(byte_idle_s=byte_idle_s),
                timeout=None,
                follow_redirects=False,
            ),
        )

    @property
    def name(self) -> str:
        """What it is called where somebody waits for it."""
        return self._name

    @property
    def call_s(self) -> float:
        """Seconds for the whole call."""
        return self._call_s

    def context_tokens(self, model: str) -> int | None:
        """How many tokens a request to a model may have; None: unknown."""
        return self._context_tokens.get(model)

    def credential(self, salt: str) -> str | None:
        """A fingerprint of the account's name, which stays when its key is rotated.

        Without a name it is the key's; None where a function returns the key, since it may change.
        """
        if self._account is not None:
            return fingerprint(f"\0account {self._account}", salt)
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
            except PermitError:
                raise
            except ProviderError as refused:
                self._of(request, refused)
                raise
            except Exception as error:
                if error is observed.error:
                    raise  # The caller's own fault; no retry of the call would mend it.
                # The SDK, the HTTP client and the wire fail in more ways than can be listed, and a
                # turn knows one: whatever it was becomes that one, with its cause attached.
                raise self._of(request, self._translated(error)) from error
        if first.cancelled_caught:
            raise self._of(request, self._late(f"no event for {self._first_event_s:g} s"))
        raise self._of(request, self._late(f"no whole reply for {self._call_s:g} s"))

    def _of(self, request: ModelRequest, error: AbeyanceError) -> AbeyanceError:
        """The error, with whom the call was made of."""
        if isinstance(error, ProviderError):
            error.provider, error.model = self._name, request.model
        return error

    async def aclose(self) -> None:
        """Close connections. Idempotent. Without it the SDK's finalizer reaches for asyncio."""
        await self._client.close()

    # -- what an adapter adds -----------------------------------------------------------------

    @abstractmethod
    def _response(self, request: ModelRequest, places: Places) -> AbstractAsyncContextManager[Any]:
        """The SDK's streaming response to a request; its attachments are put in places."""

    @abstractmethod
    def _assembly(self, on_delta: OnDelta) -> Assembly:
        """What builds the reply to one call."""

    @abstractmethod
    def _key_header(self, key: str) -> dict[str, str]:
        """The header that carries a key."""

    # -- one call -----------------------------------------------------------------------------

    async def _reply(
        self, request: ModelRequest, on_delta: OnDelta, first: trio.CancelScope
    ) -> ModelReply:
        key = None if self._key is None else await self._current_key(self._key)
        self._note_secret(str(self._client.api_key) if key is None else key)
        assembly, places = self._assembly(on_delta), Places()
        headers = {} if key is None else self._key_header(key)
        # Past the SDK, which logs the headers that a call is given.
        response = self._response(request, places)
        with carrying(headers), leaving(places, request.attachments):
            return await self._streamed(response, assembly, first)

    async def _streamed(
        self,
        responding: AbstractAsyncContextManager[Any],
        assembly: Assembly,
        first: trio.CancelScope,
    ) -> ModelReply:
        async with responding as response:
            self._note_usage(response.http_response, None)
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

    def _take(self, event: ServerSentEvent, assembly: Assembly, response: httpx2.Response) -> None:
        try:
            assembly.feed(event)
        except StatedError as error:
            raise refusal(
                provider=self._name,
                status=response.status_code,
                headers=response.headers.multi_items(),
                body=self._scrubbed(event.data),
                message=self._scrubbed(error.message),
                received_at=self._clock.now_ms() / 1_000,
                transport="sse",
                retryable=error.retryable,
            ) from None

    async def _current_key(self, key: Callable[[], str | Awaitable[str]]) -> str:
        try:
            value = key()
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            raise ProviderError(
                f"the function that gives {self._name}'s API key raised {type(error).__name__}; "
                "nothing was sent; look at its cause",
                retryable=True,
                sent=False,
            ) from error

    # -- what became of it --------------------------------------------------------------------

    def _note_secret(self, key: str) -> None:
        if len(key) >= SECRET_CHARS_MIN and key not in self._secrets:
            self._secrets.append(key)

    def _scrubbed(self, words: str) -> str:
        """Words of a service or a library, without a key of this adapter: some quote what they were
        sent, and what an error says is stored and logged."""
        for secret in self._secrets:
            words = words.replace(secret, "[key]")
        return words

    def _translated(self, error: Exception) -> ProviderError | PermitError:
        # The SDK wraps what a transport raises before headers, so the cause is what happened.
        for cause in _causes(error):
            if isinstance(cause, PermitError | ProviderError):
                return cause
        if isinstance(error, self._status_error):
            return self._refused(error)
        if isinstance(error, UnreadableReplyError):
            words = printable(self._scrubbed(str(error)), chars_max=300)
            return ProviderError(
                f"{self._name} sent a reply that cannot be used: {words}; none of it was taken; "
                "the call may be made again once nothing holds it",
                retryable=True,
            )
        sent = not any(isinstance(cause, _UNSENT) for cause in _causes(error))
        *_, root = _causes(error)
        words = self._scrubbed(f"{type(error).__name__}: {root or error}")
        return ProviderError(
            f"the call to {self._name} failed ({printable(words, chars_max=300)}); "
            + ("whether it was processed is unknown" if sent else "nothing was sent")
            + "; the call may be made again once nothing holds it",
            retryable=True,
            sent=sent,
        )

    def _refused(self, error: Any) -> ProviderError:
        response: httpx2.Response = error.response
        body = self._scrubbed(response.text)
        self._note_usage(response, body)
        try:
            _kind, message = error_of(read_json(body))
        except UnreadableReplyError:
            message = body
        return refusal(
            provider=self._name,
            status=response.status_code,
            headers=response.headers.multi_items(),
            body=body,
            message=message,
            received_at=self._clock.now_ms() / 1_000,
            retryable=True if response.headers.get("x-should-retry") == "true" else None,
        )

    def _note_usage(self, response: httpx2.Response, body: str | None) -> None:
        note_usage(
            read_usage(
                status=response.status_code,
                headers=response.headers.multi_items(),
                body=body,
                received_at=self._clock.now_ms() / 1_000,
                provider=self._name,
            )
        )

    def _late(self, what: str) -> ProviderStalledError:
        return ProviderStalledError(
            f"{self._name} sent {what}; the request may have been processed, no reply was taken; "
            "the call may be made again once nothing holds it",
            retryable=True,
        )


def not_installed(sdk: str, extra: str) -> ProviderNotInstalledError:
    """The error for an SDK that cannot be imported."""
    return ProviderNotInstalledError(
        f"the {sdk} SDK is not installed; nothing was sent; "
        f"install abeyance's extra {extra!r}, from where abeyance came: "
        f"pip install 'path/to/clone[{extra}]'",
        extra=extra,
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__
