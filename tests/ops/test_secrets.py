"""A host with secrets goes through what may fail, and all that it wrote or said is looked through:
files, log lines with their tracebacks, answers over HTTP, what commands print, errors."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from abeyance.actors import AgentSpec, HttpApi, Runtime, Webhook, open_runtime
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops import cli
from abeyance.actors.ops.http.answering import VERBS_HERE, method_of
from abeyance.actors.providers.anthropic import AnthropicProvider
from abeyance.actors.providers.openai import OpenAIProvider

KEYS = {"ana": "sk-ant-api03-KEYofAna9x7", "bo": "sk-proj-KEYofBo5q2w", "cy": "plainKEYofCy-8877"}
KINDS = {"ana": "anthropic", "bo": "responses", "cy": "chat"}
ADMIN, READER = "ADMINtoken-4711-x", "READERtoken-0815-y"
HOOK = {"user": "HOOKuser77", "password": "HOOKpass88", "path": "HOOKpath99", "token": "HOOKhead66"}
SECRETS = (*KEYS.values(), ADMIN, READER, *HOOK.values())


class Wire:
    """A service, or whatever stands before one, that says in its answers what it was asked with."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}
        self.asked: list[bytes] = []
        self.port = 0
        self._wanted = 0
        self._enough = trio.Event()

    async def answered(self, times: int) -> None:
        """Wait until so many requests were answered, or cut off."""
        self._wanted = times
        if len(self.asked) < times:
            await self._enough.wait()

    async def serve(self, stream: trio.SocketStream) -> None:
        received = b""
        with suppress(trio.BrokenResourceError):
            async with stream:
                while not _is_whole(received):
                    piece = await stream.receive_some(65_536)
                    if not piece:
                        return
                    received += piece
                self.asked.append(received)
                if self.status:
                    await stream.send_all(self._answer(received))
        if len(self.asked) >= self._wanted > 0:
            self._enough.set()

    def _answer(self, received: bytes) -> bytes:
        head = received.partition(b"\r\n\r\n")[0].decode("latin-1")
        given = dict(line.split(": ", 1) for line in head.splitlines()[1:])
        key = given.get("x-api-key") or given.get("authorization") or given.get("Authorization", "")
        error = {"type": "authentication_error", "message": f"invalid key: {key}", "code": key}
        body = json.dumps({"type": "error", "error": error, "asked": given}).encode()
        lines = [f"HTTP/1.1 {self.status} {key}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"request-id: req-{key}", f"x-asked-with: {key}", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


def _is_whole(received: bytes) -> bool:
    head, parted, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(parted) and len(body) >= (int(lengths[0].split(b":")[1]) if lengths else 0)


@asynccontextmanager
async def served(wire: Wire) -> AsyncIterator[Wire]:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        wire.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, wire.serve, [listener])
        yield wire
        nursery.cancel_scope.cancel()


class Said:
    """Everything that was said, each with where."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: object) -> None:
        self.texts.append((where, text if isinstance(text, str) else repr(text)))

    def error(self, where: str, error: BaseException) -> None:
        self.add(where, "".join(traceback.format_exception(error)))
        self.add(where, vars(error))

    def files(self, root: Path) -> None:
        for path in root.rglob("*"):
            self.add("a file's name", str(path))
            if path.is_file():
                self.add(str(path.relative_to(root)), path.read_bytes().decode("latin-1"))

    def leaks(self) -> set[tuple[str, str]]:
        return {(where, each) for where, text in self.texts for each in SECRETS if each in text}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.DEBUG, logger="abeyance")
    return Said()


def _provider(kind: str, key: str, port: int) -> Any:
    url = f"http://127.0.0.1:{port}"
    if kind == "anthropic":
        return AnthropicProvider(api_key=key, base_url=url)
    return OpenAIProvider(api=kind, api_key=key, base_url=url)  # type: ignore[arg-type]


async def _live(state: Path, wire: Wire, hook: Wire, said: Said) -> None:
    """A host whose calls and whose webhook fail, looked at from everywhere while it runs."""
    url = f"http://{HOOK['user']}:{HOOK['password']}@127.0.0.1:{hook.port}/{HOOK['path']}"
    webhook = Webhook(url, headers={"authorization": f"Bearer {HOOK['token']}"})
    http = HttpApi(port=0, admin_token=ADMIN, read_token=READER)
    said.add("repr", [webhook, http])
    async with open_runtime(state, webhook=webhook, http=http, account_waits=True) as runtime:
        for name, kind in KINDS.items():
            provider = _provider(kind, KEYS[name], wire.port)
            spec = AgentSpec(name=name, provider=provider, model="m")
            said.add("repr", [provider, spec])
            agent = await runtime.add_agent(spec)
            await agent.send("go", author="user")
        with trio.fail_after(20):
            await wire.answered(len(KINDS))
            await runtime._ledger.ask(RecordWait("ana", "m2", None, "slow down"))
            await hook.answered(1)
        said.add("status", [runtime.status(), runtime.health()])
        for name in KINDS:
            said.add("transcript", [each async for each in runtime.agent(name).transcript()])
            try:
                with trio.fail_after(0.5):
                    await runtime.agent(name).wait_idle()
            except Exception as error:
                said.error("wait_idle", error)
        await _over_http(runtime, said)


async def _over_http(runtime: Runtime, said: Said) -> None:
    assert runtime.http_url is not None
    looks = [f"/v1/{verb}" for verb in sorted(VERBS_HERE) if method_of(verb) == "GET"]
    async with httpx2.AsyncClient(base_url=runtime.http_url) as client:
        for path in ("/", "/metrics", "/openapi.json", "/readyz", *looks):
            for token in (READER, "wrong"):
                bearer = {"authorization": f"Bearer {token}"}
                for of in ("", "?agent=ana", "?run=k"):
                    answer = await client.get(path + of, headers=bearer)
                    said.add(f"GET {path}", [answer.text, dict(answer.headers)])
                    assert token == "wrong" or answer.status_code != 401
        bearer = {"authorization": f"Bearer {READER}"}
        answer = await client.post("/v1/release", json={"agent": "ana"}, headers=bearer)
        said.add("POST", [answer.text, dict(answer.headers)])


COMMANDS = (
    ("status",), ("waits",), ("alerts",), ("dead-letters",), ("quarantine",), ("check",),
    ("transcript", "ana"), ("usage",), ("inbox", "ana"), ("runs",), ("log",),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {}),
        (400, {}),
        (429, {"retry-after": "3600"}),
        (500, {}),
        (0, {}),
    ],
    ids=["refused", "invalid", "limited", "broken", "cut off"],
)
def test_no_secret_is_in_anything_that_a_host_writes_or_says(
    tmp_path: Path,
    said: Said,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    status: int,
    headers: dict[str, str],
) -> None:
    state = tmp_path / "state"

    async def main() -> None:
        async with served(Wire(status, headers)) as wire, served(Wire(500)) as hook:
            await _live(state, wire, hook, said)
            # Else nothing was tried.
            assert (
                sum(any(key.encode() in each for each in wire.asked) for key in KEYS.values()) == 3
            )

    trio.run(main)
    for arguments in COMMANDS:
        for more in ((), ("--json",)):
            cli.main([arguments[0], str(state), *arguments[1:], *more])
            printed = capsys.readouterr()
            said.add(f"abeyance {arguments[0]}", [printed.out, printed.err])
    assert cli.main(["backup", str(state), str(tmp_path / "copy")]) == 0
    said.files(tmp_path)
    form = logging.Formatter("%(name)s %(message)s")
    for record in caplog.records:
        if record.name.startswith("abeyance"):
            said.add(f"log {record.name}", form.format(record))
            said.add(f"fields of a line of {record.name}", vars(record))
    assert said.leaks() == set()
