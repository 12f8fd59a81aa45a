"""OpenAI, and what speaks its wires, through the official SDK, built never to retry.

What it has of its own is its client and a choice of two wires; `sdk` makes the call,
`openai_responses_wire` and `openai_chat_wire` read and write.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from ..core.clock import Clock
from . import openai_chat_wire, openai_responses_wire
from .attachments import Places
from .options import ApiKey, InvalidOptionError, check_text, checked
from .port import ModelRequest, OnDelta
from .sdk import Assembly, SdkProvider, not_installed


class OpenAIProvider(SdkProvider):
    """A `Provider` for OpenAI's Responses and Chat Completions. Making it does no I/O.

        OpenAIProvider()
        OpenAIProvider(api="chat", base_url="http://localhost:8000/v1", api_key="none")

    Args:
        api: `responses`, whose reasoning an agent keeps between its rounds, or `chat`, which most
            other services and local servers speak.
        api_key: A key, or a function called before each call that returns one or an awaitable of
            one. None takes OPENAI_API_KEY, now. A server that asks for none takes any text.
        base_url: None takes OPENAI_BASE_URL, else the service's own.
        service: Whom errors name, and by whose readings statements about waiting are read: a name
            of docs/providers.md. One that is not there is read by what only one service sends.
        output_limit: The field that bounds a reply's tokens on the `chat` wire; some servers know
            only the older `max_tokens`.
        byte_idle_s: Seconds without a byte until a call counts as stalled.
        first_event_s: Seconds until the first event.
        call_s: Seconds for the whole call.
        clock: The wall clock that stated waits are counted from.
        account: A name of yours for the account that the keys are of. With
            `open_runtime(account_waits=True)` its limits are then its own through every rotation of
            a key. None: each key is an account of its own, and a function's keys are of none.
        context_tokens: How many tokens a request may have, by model; one that is longer, by an
            estimate, is not sent. A model that is not in it blocks nothing.
    Raises:
        ProviderNotInstalledError: The extra `abeyance[openai]` is not installed.
        InvalidOptionError: Names the option: there is no key, or none that a header can carry; a
            deadline is not positive; `account` or `service` is no name, `base_url` no URL; `api` or
            `output_limit` is neither of its two words.
    """

    def __init__(
        self,
        *,
        api: Literal["responses", "chat"] = "responses",
        api_key: ApiKey = None,
        base_url: str | None = None,
        service: str = "openai",
        output_limit: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        byte_idle_s: float = 120.0,
        first_event_s: float = 900.0,
        call_s: float = 3600.0,
        clock: Clock | None = None,
        account: str | None = None,
        context_tokens: Mapping[str, int] | None = None,
    ) -> None:
        if api not in ("responses", "chat"):
            raise InvalidOptionError("api", f"is 'responses' or 'chat', not {api!r:.80}")
        if output_limit not in ("max_completion_tokens", "max_tokens"):
            raise InvalidOptionError(
                "output_limit",
                f"is 'max_completion_tokens' or 'max_tokens', not {output_limit!r:.80}",
            )
        check_text("service", service, "the name of a service")
        key = checked(
            api_key,
            "OPENAI_API_KEY",
            os.environ.get("OPENAI_API_KEY"),
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
            return sdk.AsyncOpenAI(
                api_key=key,
                base_url=base_url,
                max_retries=0,
                timeout=None,
                http_client=http_client,
            )

        self._api = api
        self._output_limit = output_limit
        super().__init__(
            name=service,
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

    @property
    def attachment_types(self) -> frozenset[str]:
        """The media types that it shows to models."""
        return openai_chat_wire.TYPES if self._api == "chat" else openai_responses_wire.TYPES

    def _response(self, request: ModelRequest, places: Places) -> AbstractAsyncContextManager[Any]:
        create: Any
        if self._api == "responses":
            create = self._client.responses.with_streaming_response.create
            body = openai_responses_wire.request_body(request, places)
        else:
            create = self._client.chat.completions.with_streaming_response.create
            limit = self._output_limit
            body = openai_chat_wire.request_body(request, places, output_limit=limit)
        return create(**body)  # type: ignore[no-any-return]

    def _assembly(self, on_delta: OnDelta) -> Assembly:
        if self._api == "responses":
            return openai_responses_wire.ResponsesAssembly(on_delta)
        return openai_chat_wire.ChatAssembly(on_delta)

    def _key_header(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}


def _import_sdk() -> Any:
    try:
        import openai
    except ImportError as error:
        raise not_installed("OpenAI", "openai") from error
    return openai
