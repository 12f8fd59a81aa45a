"""The webhook: an alert as one POST to a URL that the operator names.

The URL is a secret, whole: its user, its query, and often its path. What is logged or raised names
scheme and host only. Requests are sent below the HTTP client, which would log their URLs.

Invariants:
    I1  No redirect is followed, so what is sent goes to the host that was named and to no other.
    I2  A request ends within `timeout_s`; nothing of a response is read but its status.

Sent directly: no proxy that the environment names is used.

Runs in: the task of the alerts actor that serves this sink.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.parse
from typing import Final

import httpx2
import trio

from abeyance.actors.domain.alert_book import Alert, AlertNotDeliveredError, Webhook
from abeyance.actors.domain.errors import InvalidSpecError

AGAIN: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which asking again is of use."""


class WebhookSink:
    """Posts alerts.

    Args:
        webhook: Where to; a URL alone has the defaults of `Webhook`.
    Raises:
        InvalidSpecError: Names what is malformed, without its value.
    """

    name = "webhook"

    def __init__(
        self, webhook: Webhook | str, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        made, self._url, self._headers = check_webhook(webhook)
        self._timeout_s = made.timeout_s
        self._transport = transport
        self._tls: ssl.SSLContext | None = None
        self._place = f"{self._url.scheme}://{self._url.host}"

    async def deliver(self, alert: Alert) -> None:
        """Post an alert. A checkpoint. Cancelled: whether it arrived is unknown.

        Raises:
            AlertNotDeliveredError: It did not take it. `final` where it answered that it never
                will.
        """
        if self._tls is None and self._url.scheme == "https":
            # Reading every authority's certificate takes the loop's time for milliseconds.
            self._tls = await trio.to_thread.run_sync(httpx2.create_ssl_context)
        # A connection an alert: alerts are rare, and a kept one would go stale.
        transport = self._transport or httpx2.AsyncHTTPTransport(verify=self._tls or True)
        request = httpx2.Request(
            "POST",
            self._url,
            headers={**self._headers, "idempotency-key": _ascii(alert.episode)},
            content=json.dumps(alert.as_json(), ensure_ascii=True).encode(),
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), None)},
        )
        status = None
        try:
            with trio.move_on_after(self._timeout_s):
                async with transport:
                    response = await transport.handle_async_request(request)
                    try:
                        status = response.status_code
                    finally:
                        await response.aclose()
        except Exception as error:  # noqa: BLE001 - its text may hold the URL: only its class is told.
            if status is None:
                raise self._failed(type(error).__name__) from None
        if status is None:
            raise self._failed(f"no answer within {self._timeout_s:g} s")
        if not 200 <= status < 300:
            final = status < 500 and status not in AGAIN
            raise self._failed(f"status {status}", final=final)

    def _failed(self, why: str, *, final: bool = False) -> AlertNotDeliveredError:
        return AlertNotDeliveredError(
            f"the webhook at {self._place} did not take an alert ({why}); the alert stands in the "
            "store; see to the webhook",
            final=final,
        )


def check_webhook(webhook: Webhook | str) -> tuple[Webhook, httpx2.URL, dict[str, str]]:
    """Return a webhook, where it posts to, and the headers it sends; or refuse it.

    Raises:
        InvalidSpecError: Names what is malformed, without its value.
    """
    if isinstance(webhook, str):
        try:
            webhook = Webhook(webhook)
        except InvalidSpecError as error:
            raise error.within("webhook") from None
    if not isinstance(webhook, Webhook):
        raise InvalidSpecError("webhook", "must be a URL or a Webhook")
    try:
        url = httpx2.URL(webhook.url)
        # The host as text: an address that cannot be one is refused here, not at the first alert.
        bad = url.scheme not in ("http", "https") or not url.host or bool(url.fragment)
    except Exception:  # noqa: BLE001 - the parser's error holds the URL.
        bad = True
    if bad:
        raise InvalidSpecError(
            "webhook.url", "must be an http or https URL with a host and without a fragment"
        ) from None
    headers = {"content-type": "application/json", "user-agent": "abeyance"}
    if url.userinfo:
        pair = urllib.parse.unquote_to_bytes(url.userinfo)
        pair = pair if b":" in pair else pair + b":"
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        url = url.copy_with(username=None, password=None)
    headers.update((name.lower(), value) for name, value in webhook.headers.items())
    return webhook, url, headers


def _ascii(text: str) -> str:
    """What may stand in a header."""
    return urllib.parse.quote(text, safe=":/@-._~")
