"""The Anthropic Messages API through the official SDK, built never to retry.

What it has of its own is its client; `sdk` makes the call, `anthropic_wire` reads and writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..core.clock import Clock
from .anthropic_wire import TYPES, ReplyAssembly, request_body
from .attachments import Places
from .options import ApiKey, checked
from .port import ModelRequest, OnDelta
from .sdk import ProviderNotInstalledError, SdkProvider, not_installed


class AnthropicProvider(SdkProvider):
    """A `Provider` for the Anthropic Messages API. Making it does no I/O.

    Args:
        api_key: A key, or a function called before each call that returns one or an awaitable of
            one. None takes ANTHROPIC_API_KEY, now.
        base_url: None takes ANTHROPIC_BASE_URL, else the service's own.
        byte_idle_s: Seconds without a byte until a call counts as stalled.
        first_event_s: Seconds until the first event that is no ping.
        call_s: Seconds for the whole call.
        clock: The wall clock that stated waits are counted from.
        account: A name of yours for the account that the keys are of. With
            `open_runtime(account_waits=True)` its limits are then its own through every rotation of
            a key. None: each key is an account of its own, and a function's keys are of none.
        context_tokens: How many tokens a request may have, by model; one that is longer, by an
            estimate, is not sent. A model that is not in it blocks nothing.
    Raises:
        ProviderNotInstalledError: The extra `abeyance[anthropic]` is not installed.
        InvalidOptionError: Names the option: there is no key, or none that a header can carry; a
            deadline is not positive; `account` is no name, `base_url` no URL.
    """

    attachment_types = TYPES

    def __init__(
        self,
        *,
        api_key: ApiKey = None,
        base_url: str | None = None,
        byte_idle_s: float = 120.0,
        first_event_s: float = 900.0,
        call_s: float = 3600.0,
        clock: Clock | None = None,
        account: str | None = None,
        context_tokens: Mapping[str, int] | None = None,
    ) -> None:
        key = checked(
            api_key,
            "ANTHROPIC_API_KEY",
            os.environ.get("ANTHROPIC_API_KEY"),
            deadlines_s={
                "byte_idle_s": byte_idle_s,
                "first_event_s": first_event_s,
                "call_s": call_s,
            },
            account=account,
            base_url=base_url,
            clock=clock,
        )
        sdk = _import_sdk()

        def client(key: str, http_client: Any) -> Any:
            # Always an explicit key: without one the SDK looks for profiles on disk and would
            # exchange tokens by requests of its own.
            return sdk.AsyncAnthropic(
                api_key=key,
                base_url=base_url,
                max_retries=0,
                timeout=None,
                http_client=http_client,
            )

        super().__init__(
            name="anthropic",
            api_key=key,
            client=client,
            status_error=sdk.APIStatusError,
            byte_idle_s=byte_idle_s,
            first_event_s=first_event_s,
            call_s=call_s,
            clock=clock,
            account=account,
            context_tokens=context_tokens,
        )

    def _response(self, request: ModelRequest, places: Places) -> AbstractAsyncContextManager[Any]:
        create: Any = self._client.messages.with_streaming_response.create
        return create(**request_body(request, places))  # type: ignore[no-any-return]

    def _assembly(self, on_delta: OnDelta) -> ReplyAssembly:
        return ReplyAssembly(on_delta)

    def _key_header(self, key: str) -> dict[str, str]:
        return {"X-Api-Key": key}


def _import_sdk() -> Any:
    try:
        import anthropic
    except ImportError as error:
        raise not_installed("Anthropic", "anthropic") from error
    return anthropic


__all__ = ["AnthropicProvider", "ProviderNotInstalledError"]
