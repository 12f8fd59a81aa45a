"""The HTTP API: what it answers, whom it turns away, and that it cannot hold up its host.

That its verbs are the command line's is in test_surfaces.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from abeyance.actors import AgentSpec, HostedRuntime, HttpApi, Runtime, open_runtime
from abeyance.actors.domain.errors import InvalidSpecError
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops import requests
from abeyance.actors.ops.answers import READING
from abeyance.actors.ops.http import app, gate, openapi
from abeyance.actors.ops.http.answering import VERBS_HERE
from abeyance.actors.ops.http.gate import Gate, HttpRefusedError
from abeyance.actors.ops.http.server import HttpAddressError
from abeyance.actors.ops.protocol import REQUEST_BYTES_MAX
from abeyance.actors.testing import ScriptedProvider, reply

ADMIN = "the-admins-own-token"
READER = "who-may-only-look-around"
BEARER = {"authorization": f"Bearer {ADMIN}"}


@asynccontextmanager
async def opened(state: Path, **how: Any) -> AsyncIterator[tuple[Runtime, httpx2.AsyncClient]]:
    """A runtime whose agent waits until somebody ends it, and a client of its API."""
    options = {"port": 0, "admin_token": ADMIN, **how.pop("http", {})}
    async with open_runtime(state, http=HttpApi(**options), **how) as runtime:
        spec = AgentSpec(name="ana", provider=ScriptedProvider([reply("hi")]), model="m")
        await runtime.add_agent(spec)
        await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
        assert runtime.http_url is not None
        async with httpx2.AsyncClient(base_url=runtime.http_url) as client:
            yield runtime, client


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# -- what it answers -----------------------------------------------------------------------------


async def test_health_readiness_and_metrics_are_answered(state: Path) -> None:
    async with opened(state) as (runtime, client):
        assert (await client.get("/healthz")).json() == {"alive": True}
        assert (await client.get("/readyz")).json() == {"ready": True, "mode": "serving"}
        await runtime.quiesce("upgrade", requester="ops")
        assert (await client.get("/readyz")).json() == {"ready": True, "mode": "quiesced"}
        scraped = await client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {each.name for each in text_string_to_metric_families(scraped.text)}
        assert {"abeyance_actors", "abeyance_runtime_unavailable"} <= families


async def test_runtime_that_has_ended_is_not_ready_and_answers_no_verb(state: Path) -> None:
    async with opened(state) as (runtime, client):
        runtime._lifetime.ending.set()
        answers = [await client.get(path) for path in ("/readyz", "/v1/waits")]
        assert [code(answer) for answer in answers] == [(503, "runtime_closed")] * 2


@pytest.mark.parametrize("verb", sorted(VERBS_HERE))
async def test_verb_is_asked_for_by_the_method_that_says_whether_it_changes_something(
    state: Path, verb: str
) -> None:
    method = "GET" if VERBS_HERE[verb] in READING else "POST"
    other = "POST" if method == "GET" else "GET"
    async with opened(state) as (_, client):
        answer = await client.request(other, f"/v1/{verb}", headers=BEARER)
        assert code(answer) == (405, "wrong_method")
        assert answer.headers["allow"] == method
        answer = await client.request(
            method,
            f"/v1/{verb}?protocol=2",
            headers=BEARER,
            **({} if method == "GET" else {"json": {"nonsense": 1}}),
        )
        assert answer.status_code in (200, 404, 422)


async def test_file_of_the_host_is_not_imported_by_http(state: Path) -> None:
    assert requests.ImportRequest not in VERBS_HERE.values()
    async with opened(state) as (_, client):
        answer = await client.post("/v1/import", json={"path": "/etc/passwd"}, headers=BEARER)
        assert code(answer) == (404, "unknown_verb")


async def test_description_has_each_verb_with_its_fields_and_says_which_need_the_token(
    state: Path,
) -> None:
    async with opened(state) as (_, client):
        described = (await client.get("/openapi.json")).json()
    assert described == json.loads(openapi.description())
    paths = described["paths"]
    assert {path.removeprefix("/v1/") for path in paths if path.startswith("/v1/")} == {
        *VERBS_HERE,
        "events",
    }
    release = paths["/v1/release"]["post"]
    body = release["requestBody"]["content"]["application/json"]["schema"]
    assert (body["required"], set(body["properties"])) == (
        ["agent"],
        {"agent", "model", "requester"},
    )
    assert release["security"] == [{"token": []}]
    (agent,) = paths["/v1/waits"]["get"]["parameters"]
    assert (agent["name"], agent["required"]) == ("agent", False)


@pytest.mark.parametrize(
    ("how", "answered"),
    [
        ({"content": b"{"}, (400, "malformed_request")),
        ({"content": b"[1]"}, (400, "malformed_request")),
        ({"content": b"\xff\xfe"}, (400, "malformed_request")),
        ({"content": b'{"agent": "ana", "verb": "status"}'}, (422, "invalid_field")),
        ({"content": b'{"agent": "ana", "nonsense": 1}'}, (422, "invalid_field")),
        ({"content": b'{"agent": 7}'}, (422, "invalid_field")),
        (
            {"content": b'{"agent": "ana", "requester": "x", "model": "m9", "model": "*"}'},
            (422, "invalid_field"),
        ),
        ({"content": b"{}"}, (422, "invalid_field")),
        ({"content": b" " * (REQUEST_BYTES_MAX + 1)}, (413, "request_too_large")),
        ({"content": b"{}", "kind": "text/plain"}, (415, "not_json")),
        ({"content": b"agent=ana", "kind": "application/x-www-form-urlencoded"}, (415, "not_json")),
    ],
    ids=lambda value: repr(value)[:50],
)
async def test_request_that_is_malformed_is_refused_and_nothing_is_done(
    state: Path, how: dict[str, Any], answered: tuple[int, str]
) -> None:
    headers = {"content-type": how.pop("kind", "application/json"), **BEARER}
    async with opened(state) as (runtime, client):
        answer = await client.post("/v1/release", headers=headers, **how)
        assert code(answer) == answered
        assert len(runtime.provider_waits()) == 1


@pytest.mark.parametrize(
    ("path", "answered"),
    [
        ("/v1/waits?agent=ana&agent=bo", (422, "invalid_field")),
        ("/v1/waits?nonsense=1", (422, "invalid_field")),
        ("/v1/alerts?limit=0", (422, "invalid_input")),
        ("/v1/alerts?limit=x", (422, "invalid_field")),
        ("/v1/edits?agent=nobody", (404, "unknown_agent")),
        ("/v1/run?run=nothing", (404, "unknown_run")),
        ("/v1/nothing", (404, "unknown_verb")),
        ("/v1/events?nonsense=1", (422, "invalid_field")),
        ("/v1/events?kinds=wait_released,bogus", (422, "invalid_input")),
        ("/nothing", (404, "unknown_path")),
        ("/v1/%0d%0aset-cookie:%20a=b", (404, "unknown_verb")),
    ],
)
async def test_query_that_is_malformed_is_refused(
    state: Path, path: str, answered: tuple[int, str]
) -> None:
    async with opened(state) as (_, client):
        answer = await client.get(path)
        assert code(answer) == answered
        assert "set-cookie" not in answer.headers
        text = answer.json()["error"]["text"]
        assert "\n" not in text
        assert "\r" not in text


@pytest.mark.parametrize("method", ["DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/status", "/healthz", "/nothing"])
async def test_method_that_no_path_has_is_a_refusal_like_any_other(
    state: Path, method: str, path: str
) -> None:
    async with opened(state) as (_, client):
        answer = await client.request(method, path)
        assert code(answer) == (405, "wrong_method")
        assert "GET" in answer.headers["allow"]


async def test_failure_of_a_request_is_one_answer_and_one_line_and_the_host_lives_on(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ZeroDivisionError("an inner\nmatter")

    async with opened(state) as (runtime, client):
        monkeypatch.setattr(runtime, "status", fails)
        answer = await client.get("/v1/status")
        assert code(answer) == (500, "internal")
        assert answer.json()["error"]["text"] == "an inner matter"
        assert (await client.get("/v1/waits")).status_code == 200
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.message == "an HTTP request failed"
    assert record.exc_info is not None


# -- who is let in -------------------------------------------------------------------------------


async def test_nothing_is_changed_where_there_is_no_admin_token(state: Path) -> None:
    async with opened(state, http={"admin_token": None}) as (runtime, client):
        for headers in ({}, BEARER):
            answer = await client.post("/v1/release", json={"agent": "ana"}, headers=headers)
            assert code(answer) == (403, "changes_disabled")
        assert (await client.get("/v1/waits")).status_code == 200
        assert len(runtime.provider_waits()) == 1


@pytest.mark.parametrize(
    ("authorization", "looks", "changes"),
    [
        (None, (401, "unauthorized"), (401, "unauthorized")),
        ("Bearer wrong", (401, "unauthorized"), (401, "unauthorized")),
        (f"Basic {ADMIN}", (401, "unauthorized"), (401, "unauthorized")),
        (f"Bearer {ADMIN[:-1]}", (401, "unauthorized"), (401, "unauthorized")),
        (f"Bearer {READER}", 200, (403, "admin_only")),
        (f"bearer  {ADMIN}", 200, 200),
    ],
    ids=["none", "wrong", "basic", "short", "reader", "admin"],
)
async def test_token_says_who_may_look_and_who_may_change(
    state: Path, authorization: str | None, looks: Any, changes: Any
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    async with opened(state, http={"read_token": READER}) as (runtime, client):
        answers = []
        for method, path in (("GET", "/v1/waits"), ("GET", "/metrics"), ("POST", "/v1/release")):
            body = {"json": {"agent": "ana"}} if method == "POST" else {}
            answer = await client.request(method, path, headers=headers, **body)
            answers.append(200 if answer.status_code == 200 else code(answer))
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answers == [looks, looks, changes]
        assert len(runtime.provider_waits()) == (0 if changes == 200 else 1)


@pytest.mark.parametrize("authorization", [None, "Bearer"])
async def test_where_only_a_read_token_is_set_no_token_is_none(
    state: Path, authorization: str | None
) -> None:
    async with opened(state, http={"admin_token": None, "read_token": READER}) as (_, client):
        headers = {} if authorization is None else {"authorization": authorization}
        answer = await client.get("/v1/waits", headers=headers)
        assert code(answer) == (401, "unauthorized")


async def test_gate_of_the_host_is_asked_behind_the_token(state: Path) -> None:
    seen = []

    def admin(act: Any) -> bool:
        seen.append((act.verb, act.agent, act.requester))
        return False

    async with opened(state, admin=admin) as (runtime, client):
        body = {"agent": "ana", "requester": "eve"}
        answer = await client.post("/v1/release", json=body, headers=BEARER)
        assert code(answer) == (403, "not_permitted")
        assert seen == [("release_provider_wait", "ana", "http:eve")]
        assert len(runtime.provider_waits()) == 1


def turned_away(guard: Gate, address: str = "a", token: str = ADMIN, **headers: str) -> str | None:
    """The code with which a change is refused."""
    every = {"host": "127.0.0.1:80", "authorization": f"Bearer {token}", **headers}
    try:
        guard.check(every, address, changes=True)
    except HttpRefusedError as error:
        return error.code
    return None


async def test_address_that_guesses_is_not_answered_for_a_minute_whatever_it_sends(
    autojump_clock: MockClock,
) -> None:
    guard = Gate(HttpApi(admin_token=ADMIN), 80)
    for _ in range(gate.FAILURES_MAX):
        assert turned_away(guard, token="wrong") == "unauthorized"
        await trio.sleep(1)
    assert turned_away(guard) == "too_many_wrong_tokens"
    assert turned_away(guard, "b") is None, "another address is another matter"
    await trio.sleep(gate.WINDOW_S - gate.FAILURES_MAX)
    assert turned_away(guard) is None
    assert turned_away(guard, token="wrong") == "unauthorized", "a right token ends the count"


async def test_addresses_that_guess_are_remembered_in_bounded_number(
    autojump_clock: MockClock,
) -> None:
    guard = Gate(HttpApi(admin_token=ADMIN), 80)
    for number in range(gate.ADDRESSES_MAX + 50):
        assert turned_away(guard, str(number), token="wrong") == "unauthorized"
    assert len(guard._failures) == gate.ADDRESSES_MAX


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"host": "evil.example:80"}, "unknown_host_name"),
        ({"host": ""}, "unknown_host_name"),
        ({"host": "127.0.0.1:81"}, "unknown_host_name"),
        ({"host": "LOCALHOST:80"}, None),
        ({"host": "127.0.0.1"}, None),
        ({"host": "box.lan:8443"}, None),
        ({"host": "box.lan:80"}, "unknown_host_name"),
        ({"origin": "https://evil.example"}, "foreign_origin"),
        ({"origin": "null"}, "foreign_origin"),
        ({"origin": "http://127.0.0.1:81"}, "foreign_origin"),
        ({"origin": "http://127.0.0.1:80"}, None),
        ({"sec-fetch-site": "cross-site"}, "foreign_origin"),
        ({"sec-fetch-site": "same-site"}, "foreign_origin"),
        ({"sec-fetch-site": "same-origin"}, None),
    ],
    ids=lambda value: str(value),
)
async def test_browser_that_another_site_uses_is_turned_away_though_it_has_the_token(
    headers: dict[str, str], refused: str | None
) -> None:
    guard = Gate(HttpApi(admin_token=ADMIN, names=["box.lan:8443"]), 80)
    assert turned_away(guard, **headers) == refused


async def test_page_of_another_site_learns_nothing_by_looking(state: Path) -> None:
    async with opened(state) as (_, client):
        for path in (
            "/healthz",
            "/v1/waits",
            "/v1/events",
            "/metrics",
            "/openapi.json",
            "/nothing",
        ):
            for header in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
                answer = await client.get(path, headers=header)
                assert answer.status_code in (403, 421)
                assert "access-control-allow-origin" not in answer.headers


async def test_token_is_nowhere_to_be_read(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = HttpApi(port=0, admin_token=ADMIN, read_token=READER)
    assert ADMIN not in repr(options)
    assert READER not in repr(options)
    async with opened(state, http={"read_token": READER}) as (runtime, client):
        wrong = await client.get("/v1/status", headers={"authorization": f"Bearer {ADMIN}x"})
        right = await client.get("/v1/status", headers=BEARER)
        assert (wrong.status_code, right.status_code) == (401, 200)
        assert ADMIN not in wrong.text + right.text + repr(runtime.status())
    kept = b"".join(each.read_bytes() for each in state.rglob("*") if each.is_file())  # noqa: ASYNC240
    for token in (ADMIN, READER):
        assert token not in caplog.text
        assert token.encode() not in kept


# -- streams of events -----------------------------------------------------------------------------


@asynccontextmanager
async def listened(runtime: Runtime, path: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """A stream of events, as its lines come over a socket; those that are empty are left out."""
    assert runtime.http_url is not None
    name = runtime.http_url.removeprefix("http://")
    async with await trio.open_tcp_stream("127.0.0.1", int(name.rpartition(":")[2])) as wire:
        await wire.send_all(f"GET {path} HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
        lines: list[str] = []
        read = b""

        async def line() -> str:
            nonlocal read
            with trio.fail_after(20):
                while not lines:
                    read += await wire.receive_some()
                    *whole, read = read.split(b"\n")
                    # What is no line of the stream is the head, or the length of a chunk.
                    lines.extend(
                        text for each in whole if (text := each.decode().strip()).startswith(STREAM)
                    )
            return lines.pop(0)

        assert (await line()).startswith(":")
        yield line


STREAM = (":", "event:", "data:")


async def test_events_arrive_as_they_happen_and_only_those_asked_for(state: Path) -> None:
    path = "/v1/events?kinds=wait_released"
    async with opened(state) as (runtime, client), listened(runtime, path) as line:
        await client.post("/v1/release", json={"agent": "ana"}, headers=BEARER)
        assert await line() == "event: wait_released"
        event = json.loads((await line()).removeprefix("data: "))
    assert (event["kind"], event["agent"]) == ("wait_released", "ana")


async def test_stream_on_which_nothing_happens_is_kept_open(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BEAT_S", 0.01)
    path = "/v1/events?kinds=wait_released"
    async with opened(state) as (runtime, _), listened(runtime, path) as line:
        assert [await line(), await line()] == [": still there"] * 2


async def test_streams_are_bounded_and_one_that_is_left_makes_room(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 1)
    async with opened(state) as (_, client):
        async with client.stream("GET", "/v1/events") as first:
            assert first.status_code == 200
            refused = await client.get("/v1/events")
            assert code(refused) == (503, "busy")
            assert refused.headers["retry-after"] == "5"
        with trio.fail_after(20):
            while True:
                async with client.stream("GET", "/v1/events") as again:
                    if again.status_code == 200:
                        break


async def test_stream_does_not_keep_a_host_from_ending(state: Path) -> None:
    with trio.fail_after(20):
        async with httpx2.AsyncClient() as client:
            async with open_runtime(state, http=HttpApi(port=0)) as runtime:
                request = client.build_request("GET", f"{runtime.http_url}/v1/events")
                stream = await client.send(request, stream=True)
                assert stream.status_code == 200
            await stream.aclose()


# -- where it listens ----------------------------------------------------------------------------


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


async def test_port_that_is_taken_is_one_error_and_the_directory_can_be_opened_again(
    state: Path,
) -> None:
    with taken_port() as port, pytest.raises(HttpAddressError, match=f"port {port} ") as caught:
        async with open_runtime(state, http=HttpApi(port=port)):
            pytest.fail("it was opened")
    assert caught.value.field == "http.port"
    async with open_runtime(state) as runtime:
        assert runtime.http_url is None


async def test_program_that_the_host_starts_does_not_inherit_the_socket(state: Path) -> None:
    def sockets() -> list[int]:
        found = []
        for name in os.listdir("/dev/fd"):
            try:
                if os.get_inheritable(int(name)) and os.readlink(f"/dev/fd/{name}").startswith(
                    "socket:"
                ):
                    found.append(int(name))
            except OSError:
                continue
        return found

    before = sockets()
    async with open_runtime(state, http=HttpApi(port=0)):
        assert sockets() == before


def test_api_of_a_threaded_host_is_where_it_says(state: Path) -> None:
    with HostedRuntime(state, http=HttpApi(port=0)) as host:
        assert host.http_url is not None
        assert httpx2.get(f"{host.http_url}/healthz").json() == {"alive": True}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"host": "localhost"}, "host"),
        ({"host": ""}, "host"),
        ({"host": "0.0.0.0"}, "read_token"),
        ({"host": "0.0.0.0", "admin_token": ADMIN}, "read_token"),
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"port": True}, "port"),
        ({"port": "8321"}, "port"),
        ({"admin_token": ""}, "admin_token"),
        ({"admin_token": "short"}, "admin_token"),
        ({"admin_token": "x" * 257}, "admin_token"),
        ({"admin_token": "sixteen letters\n!"}, "admin_token"),
        ({"admin_token": ADMIN.encode()}, "admin_token"),
        ({"read_token": "short"}, "read_token"),
        ({"admin_token": ADMIN, "read_token": ADMIN}, "read_token"),
        ({"names": "box.lan"}, "names"),
        ({"names": ["box.lan"] * 33}, "names"),
        ({"names": ["box.lan", "http://box.lan"]}, "names[1]"),
        ({"names": [7]}, "names[0]"),
    ],
    ids=repr,
)
def test_description_that_is_malformed_is_refused_as_it_is_made(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        HttpApi(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("http", [True, {}, "127.0.0.1:80"], ids=repr)
async def test_what_is_no_description_of_an_api_is_refused(state: Path, http: Any) -> None:
    with pytest.raises(InvalidSpecError, match="HttpApi"):
        async with open_runtime(state / "new", http=http):
            pytest.fail("it was opened")
