"""The control socket: what it answers, what it refuses, and that it cannot hold up its host."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from abeyance.actors.ops import control
from abeyance.actors.ops.address import (
    CONTROL_NAME,
    HostSocket,
    SocketPathError,
    host_sockets,
    socket_address,
)
from abeyance.actors.ops.client import (
    ControlClient,
    HostSilentError,
    NoHostError,
    RefusedByHostError,
)
from abeyance.actors.ops.control import SocketTakenError, serve_control
from abeyance.actors.ops.errors import UnsupportedProtocolError
from abeyance.actors.ops.protocol import REQUEST_BYTES_MAX
from abeyance.actors.ops.requests import PROTOCOL


async def in_thread(function: Any, *arguments: Any) -> Any:
    """Run a blocking client without blocking the server beside it."""
    return await trio.to_thread.run_sync(function, *arguments)


def reached(directory: Path) -> contextlib.AbstractContextManager[str]:
    """An address of the only host's socket."""
    (at,) = host_sockets(directory)
    return socket_address(at.path(directory))


def asked(directory: Path, *requests: bytes) -> list[dict[str, Any]]:
    """Send raw lines over one connection and read one reply a line."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        with reached(directory) as address:
            raw.connect(address)
        replies = []
        with raw.makefile("rwb") as stream:
            stream.readline()
            for line in requests:
                stream.write(line + b"\n")
                stream.flush()
                replies.append(json.loads(stream.readline()))
        return replies


def request(verb: str, **fields: Any) -> bytes:
    return json.dumps({"protocol": PROTOCOL, "verb": verb, **fields}).encode()


async def test_status_mirrors_the_runtime_field_by_field(serving: Any, state: Path) -> None:
    async with serving():
        report = await in_thread(_with_client, state, lambda client: client.status())
    assert (report.pid, report.store_id, report.directory) == (4242, "5f1e", str(state))
    ana, bo = report.agents
    assert (ana.name, ana.state, ana.turn, ana.held.cause) == ("ana", "held", 3, "wait")
    assert (bo.held, bo.turn, bo.wakes) == (None, None, 0)
    assert [(wait.agent, wait.model, wait.deadline_ms) for wait in report.waits] == [
        ("ana", "m1", 8_640_000_000_000_000),
        ("ana", "m2", None),
        ("bo", "m1", 4_102_444_800_000),
    ]


def _with_client(directory: Path, ask: Any) -> Any:
    with ControlClient(directory, timeout_s=5) as client:
        return ask(client)


@pytest.mark.behaviour("W-119")
async def test_waits_lists_all_or_one_agents(serving: Any, state: Path) -> None:
    async with serving():
        both = await in_thread(_with_client, state, lambda c: (c.waits(), c.waits("bo")))
    assert [len(found) for found in both] == [3, 1]


@pytest.mark.behaviour("W-106")
@pytest.mark.parametrize("model", [{}, {"model": "*"}], ids=["omitted", "star"])
async def test_release_covers_every_model_when_it_is(
    serving: Any, state: Path, model: dict[str, str]
) -> None:
    async with serving() as runtime:
        (reply,) = await in_thread(asked, state, request("release", agent="ana", **model))
    assert [(item["model"], item["reach"]) for item in reply["result"]["released"]] == [
        ("m1", "recorded"),
        ("m2", "recorded"),
    ]
    assert runtime.releases[0][:2] == ("ana", "*")
    assert [item.agent for item in runtime.listed] == ["bo"]


async def test_release_of_one_model_leaves_the_others(serving: Any, state: Path) -> None:
    async with serving() as runtime:
        await in_thread(_with_client, state, lambda c: c.release("ana", "m2"))
    assert [(item.agent, item.model) for item in runtime.listed] == [("ana", "m1"), ("bo", "m1")]


@pytest.mark.behaviour("W-105", "W-107", "W-108", "W-116")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"agent": "ana", "model": ""}, "model"),
        ({"agent": "ana", "model": None}, "model"),
        ({"agent": "ana", "model": 42}, "model"),
        ({"agent": "ana", "model": []}, "model"),
        ({"agent": "ana", "model": {}}, "model"),
        ({"agent": "ana", "model": ["m1"]}, "model"),
        ({"agent": "ana", "model": "m1\n[ops] released"}, "model"),
        ({"agent": "ana", "model": "m\x85"}, "model"),
        ({"agent": "ana", "model": "m\u2028"}, "model"),
        ({"agent": "ana", "model": "m" * 129}, "model"),
        ({}, "agent"),
        ({"agent": "*"}, "agent"),
        ({"agent": "framework"}, "agent"),
        ({"agent": ""}, "agent"),
        ({"agent": None}, "agent"),
        ({"agent": 42}, "agent"),
        ({"agent": "a\x00b"}, "agent"),
        ({"agent": "ana", "modle": "m1"}, "modle"),
        ({"agent": "ana", "requester": 7}, "requester"),
    ],
    ids=repr,
)
async def test_malformed_release_is_refused_by_its_field_and_releases_nothing(
    serving: Any, state: Path, fields: dict[str, Any], field: str
) -> None:
    async with serving() as runtime:
        [reply] = await in_thread(asked, state, request("release", **fields))
    assert reply["ok"] is False
    assert reply["error"]["field"] == field
    assert runtime.releases == []
    assert len(runtime.listed) == 3


@pytest.mark.behaviour("W-108")
async def test_release_of_an_unknown_agent_is_refused_with_the_runtimes_code(
    serving: Any, state: Path
) -> None:
    async with serving() as runtime:
        with pytest.raises(RefusedByHostError) as caught:
            await in_thread(_with_client, state, lambda c: c.release("cy"))
    assert caught.value.remote_code == "unknown_agent"
    assert runtime.releases == []


@pytest.mark.behaviour("W-120")
@pytest.mark.parametrize("agent", [42, "", "*", "framework", [], None, "a\x1b"], ids=repr)
async def test_malformed_filter_is_refused(serving: Any, state: Path, agent: Any) -> None:
    async with serving():
        [reply] = await in_thread(asked, state, request("waits", agent=agent))
    assert reply["ok"] is False
    assert reply["error"]["field"] == "agent"


@pytest.mark.behaviour("W-115")
async def test_requester_is_one_bounded_line_that_says_it_came_from_the_command_line(
    serving: Any, state: Path
) -> None:
    async with serving() as runtime:
        for name in ("eve\n[ops] released", "x" * 10_000, "\x00\x1b"):
            await in_thread(asked, state, request("release", agent="bo", requester=name))
    given = [requester for _, _, requester in runtime.releases]
    assert given[0] == "cli:eve [ops] released"
    assert given[1].startswith("cli:xxx")
    assert len(given[1]) <= 250
    assert given[2] == "cli:unknown"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "malformed_request"),
        (b"{", "malformed_request"),
        (b"[]", "malformed_request"),
        (b"null", "malformed_request"),
        (b"\xff\xfe", "malformed_request"),
        (b'{"verb": "status"} {}', "malformed_request"),
        (b'{"verb": "stat\xff"}', "malformed_request"),
        (b'{"x": ' + b"[" * 60_000, "malformed_request"),
        (b'{"protocol": 1}', "invalid_field"),
        (b'{"verb": "shutdown", "protocol": 1}', "unknown_verb"),
        (b'{"verb": 42}', "invalid_field"),
        (b'{"verb": "status", "protocol": 2}', "unsupported_protocol"),
        (b'{"verb": "status", "protocol": "1"}', "invalid_field"),
        (b'{"verb": "status", "agent": "ana"}', "invalid_field"),
    ],
    ids=lambda value: repr(value[:30]),
)
async def test_bad_request_gets_one_typed_error_and_the_connection_goes_on(
    serving: Any, state: Path, line: bytes, code: str
) -> None:
    async with serving():
        bad, good = await in_thread(asked, state, line, request("status"))
    assert (bad["ok"], bad["error"]["code"]) == (False, code)
    assert "\n" not in bad["error"]["text"]
    assert good["ok"] is True


async def test_request_of_exactly_the_bound_is_read_and_one_byte_more_is_refused(
    serving: Any, state: Path
) -> None:
    line = request("status")
    async with serving():
        [reply] = await in_thread(asked, state, line + b" " * (REQUEST_BYTES_MAX - len(line)))
        [refusal] = await in_thread(asked, state, line + b" " * (REQUEST_BYTES_MAX - len(line) + 1))
    assert reply["ok"] is True
    assert refusal["error"]["code"] == "request_too_large"


async def test_line_without_an_end_is_refused_before_it_is_read_whole(
    serving: Any, state: Path
) -> None:
    def flood() -> bytes:
        with socket.socket(socket.AF_UNIX) as raw, reached(state) as address:
            raw.settimeout(5)
            raw.connect(address)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                raw.sendall(b"x" * (REQUEST_BYTES_MAX + 20_000))
            received = b""
            raw.shutdown(socket.SHUT_WR)
            while piece := raw.recv(65_536):
                received += piece
            return received

    async with serving():
        received = await in_thread(flood)
    assert b"request_too_large" in received


async def test_failing_verb_answers_with_its_code_and_the_host_lives_on(
    serving: Any, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as runtime:
        runtime.failure = RuntimeError("a bug\nof two lines")
        [failed] = await in_thread(asked, state, request("status"))
        runtime.failure = None
        [good] = await in_thread(asked, state, request("status"))
    assert failed["error"] == {"code": "internal", "text": "a bug of two lines", "field": None}
    assert good["ok"] is True
    assert "a control request failed" in caplog.text


async def test_client_that_hangs_up_during_a_verb_does_not_end_the_host(
    serving: Any, state: Path
) -> None:
    def start_and_hang_up() -> None:
        with socket.socket(socket.AF_UNIX) as raw, reached(state) as address:
            raw.connect(address)
            raw.recv(1_000)
            raw.sendall(request("release", agent="ana") + b"\n")

    async with serving() as runtime:
        runtime.proceed = trio.Event()
        await in_thread(start_and_hang_up)
        runtime.proceed.set()
        report = await in_thread(_with_client, state, lambda c: c.status())
    assert report.pid == 4242


async def test_connections_are_bounded(
    serving: Any, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 1)

    def second() -> str:
        with (
            ControlClient(state, timeout_s=5),
            pytest.raises(RefusedByHostError) as caught,
        ):
            ControlClient(state, timeout_s=5)
        return caught.value.remote_code

    async with serving():
        assert await in_thread(second) == "busy"


async def test_host_that_ends_during_a_verb_leaves_its_outcome_unknown(
    runtime: Any, state: Path, serve_until_cancelled: Any
) -> None:
    runtime.proceed = trio.Event()
    outcome: list[BaseException] = []

    def release() -> None:
        with (
            ControlClient(state, timeout_s=5) as client,
            pytest.raises(HostSilentError, match="unknown") as caught,
        ):
            client.release("ana")
        outcome.append(caught.value)

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_until_cancelled, runtime, state)
        nursery.start_soon(in_thread, release)
        await runtime.entered.wait()
        nursery.cancel_scope.cancel()
    assert outcome


async def test_silent_connection_is_closed_after_its_deadline(
    runtime: Any, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    started = trio.current_time()
    await control._Server(runtime).serve(theirs)  # type: ignore[arg-type]
    assert trio.current_time() - started == control.IDLE_S_MAX
    assert (await ours.receive_some(10_000)).startswith(b'{"abeyance"')
    assert await ours.receive_some(1) == b""


# -- where the socket is -------------------------------------------------------------------------


async def test_socket_has_mode_0600_in_a_folder_of_0700_and_is_gone_after_the_host(
    serving: Any, state: Path
) -> None:
    (state / CONTROL_NAME).mkdir(mode=0o755)
    async with serving():
        (at,) = host_sockets(state)
        assert at.pid == os.getpid()
        mode = at.path(state).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert stat.S_IMODE((state / CONTROL_NAME).stat().st_mode) == 0o700
    assert os.listdir(state / CONTROL_NAME) == []


async def test_socket_of_a_dead_host_is_no_hosts_and_removed_by_the_next(
    serving: Any, state: Path, listening: Any
) -> None:
    (state / CONTROL_NAME).mkdir()
    left = HostSocket(1, "dead").path(state)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
        dead.listen()  # As where a child of the dead process has the socket still.
        with pytest.raises(NoHostError):
            ControlClient(state)
        with listening(state, 78, "5f1e0b"):
            async with serving():
                assert (await in_thread(_with_client, state, lambda c: c.hello)).pid == os.getpid()
                assert not left.exists()
                assert HostSocket(78, "5f1e0b").path(state).exists()


async def test_file_in_the_place_of_the_sockets_is_left_alone(runtime: Any, state: Path) -> None:
    (state / CONTROL_NAME).write_text("notes")
    with pytest.raises(SocketTakenError):
        await serve_control(runtime, state, nonce="5f1e")
    assert (state / CONTROL_NAME).read_text() == "notes"


async def test_deep_state_directory_is_served_and_reached(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    before = set(os.listdir("/tmp"))
    async with serving(deep):
        assert stat.S_ISSOCK(host_sockets(deep)[0].path(deep).stat().st_mode)
        assert (await in_thread(_with_client, deep, lambda c: c.status())).pid == 4242
        monkeypatch.chdir(deep.parent)
        relative = Path(deep.name)
        assert (await in_thread(_with_client, relative, lambda c: c.status())).pid == 4242
    assert not {name for name in set(os.listdir("/tmp")) - before if name.startswith("abeyance-")}


def test_socket_path_that_cannot_be_shortened_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abeyance.actors.ops.address.ADDRESS_BYTES_MAX", 10)
    with pytest.raises(SocketPathError, match="TMPDIR"), socket_address(tmp_path):
        pass


# -- the client ----------------------------------------------------------------------------------


def test_client_names_the_missing_host(state: Path) -> None:
    with pytest.raises(NoHostError, match="no running host"):
        ControlClient(state)
    with pytest.raises(NoHostError):
        ControlClient(state / "nothing")


@pytest.mark.parametrize(
    ("spoken", "error"),
    [
        (None, HostSilentError),
        (b"", NoHostError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", HostSilentError),
        (b'{"abeyance": "9", "protocol": 99, "pid": 1}\n', UnsupportedProtocolError),
    ],
    ids=["silent", "hangs up", "another protocol", "another version"],
)
def test_client_does_not_wait_for_ever_nor_misread_a_stranger(
    state: Path, listening: Any, spoken: bytes | None, error: type[Exception]
) -> None:
    with listening(state) as stranger:
        if spoken is None:
            with pytest.raises(error):
                ControlClient(state, timeout_s=0.05)
            return

        def speak() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(spoken)

        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(error):
            ControlClient(state, timeout_s=5)
        speaker.join()
