"""The webhook: what is posted, what is taken for an answer, and that its URL stays secret."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from abeyance.actors import Alert, AlertNotDeliveredError, Webhook
from abeyance.actors.domain.errors import InvalidSpecError
from abeyance.actors.ops.webhook import WebhookSink

ALERT = Alert(7, "provider_wait", "ana", "m", "held ✓", 5_000, "épi\n1", 1_000)
SECRETS = ("us3r", "p4ss", "t0ken", "p4th")


class Receiver:
    """One loopback server that answers every request with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.closed = 0
        self.port = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        received = b""
        async with stream:
            while b"\r\n\r\n" not in received or len(received.split(b"\r\n\r\n", 1)[1]) < _length(
                received
            ):
                piece = await stream.receive_some(65_536)
                if not piece:
                    break
                received += piece
            self.requests.append(received)
            if self.answer:
                await stream.send_all(self.answer)
            else:
                await stream.receive_some(1)  # Until the client has enough of it.
        self.closed += 1


def _length(received: bytes) -> int:
    head = received.split(b"\r\n\r\n", 1)[0].lower()
    found = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return int(found[0].split(b":")[1]) if found else 0


@asynccontextmanager
async def receiver(answer: bytes) -> AsyncIterator[Receiver]:
    made = Receiver(answer)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        made.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, made.serve, [listener])
        yield made
        nursery.cancel_scope.cancel()


def answer(status: int, *lines: str) -> bytes:
    head = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 {status} X\r\n{head}content-length: 0\r\n\r\n".encode()


def url(made: Receiver) -> str:
    return f"http://us3r:p4ss%40@127.0.0.1:{made.port}/p4th?k=t0ken"


async def test_webhook_posts_an_alert_as_json_with_its_episode_as_key() -> None:
    async with receiver(answer(204)) as made:
        await WebhookSink(Webhook(url(made), headers={"X-Token": "abc"})).deliver(ALERT)
    (request,) = made.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /p4th?k=t0ken HTTP/1.1"
    named = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    assert named["authorization"] == f"Basic {base64.b64encode(b'us3r:p4ss@').decode()}"
    assert named["x-token"] == "abc"
    assert named["idempotency-key"] == "%C3%A9pi%0A1"
    assert named["content-type"] == "application/json"
    assert json.loads(body) == ALERT.as_json()
    assert body.isascii()


@pytest.mark.parametrize(
    ("status", "final"),
    [(301, True), (307, True), (400, True), (404, True), (408, False), (425, False), (429, False),
     (500, False), (503, False)],
)  # fmt: skip
async def test_webhook_that_answers_with_no_success_did_not_take_the_alert(
    status: int, final: bool
) -> None:
    async with receiver(answer(status)) as made:
        with pytest.raises(AlertNotDeliveredError, match=f"status {status}") as caught:
            await WebhookSink(url(made)).deliver(ALERT)
    assert caught.value.final is final


async def test_webhook_follows_no_redirect() -> None:
    async with receiver(answer(204)) as other:
        there = f"location: http://127.0.0.1:{other.port}/"
        async with receiver(answer(307, there)) as made:
            with pytest.raises(AlertNotDeliveredError):
                await WebhookSink(url(made)).deliver(ALERT)
        assert (len(made.requests), other.requests) == (1, [])


async def test_webhook_that_does_not_answer_is_given_its_time_and_no_more(
    autojump_clock: Any,
) -> None:
    autojump_clock.autojump_threshold = 0.05  # The sockets are real.
    async with receiver(b"") as made:
        before = trio.current_time()
        with pytest.raises(AlertNotDeliveredError, match="no answer within 3 s"):
            await WebhookSink(Webhook(url(made), timeout_s=3)).deliver(ALERT)
        assert trio.current_time() - before < 4


def _nobody(port: int) -> str:
    return f"http://us3r:p4ss@127.0.0.1:{port}/p4th?k=t0ken"


async def test_webhook_tells_nobody_its_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    async with receiver(answer(500)) as made:
        with pytest.raises(AlertNotDeliveredError) as caught:
            await WebhookSink(url(made)).deliver(ALERT)
        said.append(str(caught.value))
    with pytest.raises(AlertNotDeliveredError) as caught:
        await WebhookSink(_nobody(made.port)).deliver(ALERT)
    assert caught.value.__cause__ is None
    said += [str(caught.value), repr(Webhook(url(made), headers={"a": "t0ken"}))]
    said += [record.getMessage() for record in caplog.records]
    assert "http://127.0.0.1" in said[0]
    assert [text for text in said if any(secret in text for secret in SECRETS)] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: "ftp://h/p4th",
        lambda: "https:///p4th",
        lambda: "p4th",
        lambda: "",
        lambda: "https://h/p4th#x",
        lambda: "https://h/p4th\nx",
        lambda: "https://h:p4th/",
        lambda: "https://h/" + "p4th" * 2_000,
        lambda: Webhook(url=b"https://h/p4th"),  # type: ignore[arg-type]
        lambda: 7,
        lambda: Webhook("https://h", timeout_s=0),
        lambda: Webhook("https://h", timeout_s=float("nan")),
        lambda: Webhook("https://h", timeout_s=31),
        lambda: Webhook("https://h", headers={"a": "p4th\r\nx: y"}),
        lambda: Webhook("https://h", headers={"a": "p4th é"}),
        lambda: Webhook("https://h", headers={"a": 1}),  # type: ignore[dict-item]
        lambda: Webhook("https://h", headers=[]),  # type: ignore[arg-type]
    ],
)
def test_webhook_that_is_malformed_is_refused_by_field_without_its_value(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        WebhookSink(make())
    assert caught.value.field in {"webhook", "webhook.url", "url", "headers", "timeout_s"}
    assert "p4th" not in str(caught.value)
    assert "p4th" not in repr(caught.value.__context__)
