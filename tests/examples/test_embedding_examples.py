"""The examples of hosts that are there already: of pykka, of asyncio, and beside a chat service."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "embedding"
WAIT_S = 30.0


def play(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_application_of_pykkas_talks_to_an_agent_and_to_an_actor_on_the_loop(
    tmp_path: Path,
) -> None:
    assert play("pykka_app.py", str(tmp_path / "state")) == [
        "Yes, we have 3.",
        "user: Do you have lamps? (A lamp is 40.)",
        "assistant: (tools)",
        "results: (tools)",
        "assistant: Yes, we have 3.",
    ]


# -- FastAPI


@contextlib.contextmanager
def web_app(state: Path) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start("web_app.py", str(state), str(port))
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Running on" in line:
                break
        else:
            raise AssertionError("it does not serve")
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
            yield process, client
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_web_application_keeps_what_it_answered_for_and_ends_with_a_stream_open(
    tmp_path: Path,
) -> None:
    said = {"id": "m1", "text": "Hello?"}
    with web_app(tmp_path / "state") as (process, client):
        for _ in range(2):  # As a client does that did not see the answer.
            assert client.post("/agents/ana/messages", json=said).status_code == 202
        assert client.post("/agents/ana/messages", json=said | {"text": "?"}).status_code == 409
        assert client.get("/agents/bo/messages").status_code == 404
        assert client.post("/agents/ana/messages", json={"text": ""}).status_code == 422
        process.kill()
    with (
        web_app(tmp_path / "state") as (process, client),
        client.stream("GET", "/agents/ana/stream") as streamed,
    ):
        lines = streamed.iter_lines()
        client.post("/agents/ana/messages", json={"id": "m2", "text": "And?"})
        heard = [line for line in (next(lines) for _ in range(4)) if line]
        assert heard[-1] == 'data: {"author": "ana", "text": "And?"}'
        told = [each["text"] for each in client.get("/agents/ana/messages").json()]
        assert told == ["Hello?", "Hello?", "And?", "And?"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


# -- a chat service


def chat_service() -> Any:
    spec = importlib.util.spec_from_file_location("chat_service", EXAMPLES / "chat_service.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_chat_bridge_takes_in_what_people_write_and_posts_what_the_agent_says(
    tmp_path: Path,
) -> None:
    assert play("chat_bridge.py", str(tmp_path / "state")) == [
        "#garden: Is it raining?",
        "#kitchen: What is for dinner?",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["taken in, not acknowledged", "posted, not done"])
def test_chat_bridge_that_is_killed_in_between_shows_each_reply_once(
    tmp_path: Path, killed: str
) -> None:
    module = chat_service()
    bridges: list[subprocess.Popen[str]] = []

    class Killing(module.ChatService):  # type: ignore[misc]
        """Kills the bridge at an instant, once, and leaves its request without an answer."""

        def kill(self) -> None:
            if len(bridges) == 1:
                bridges[0].kill()
                bridges[0].wait()

        def acknowledge(self, update: str) -> None:
            if killed.startswith("taken") and len(bridges) == 1:
                self.kill()
            else:
                super().acknowledge(update)

        def show(self, key: str, message: dict[str, str]) -> None:
            super().show(key, message)
            if killed.startswith("posted"):
                self.kill()

        def handle_error(self, *_: object) -> None:
            """Whoever asked is dead."""

    with Killing() as chat:
        try:
            for room in ("garden", "kitchen"):
                chat.write(room, f"Is anybody in the {room}?")
            for _ in range(2):
                bridges.append(start("chat_bridge.py", str(tmp_path / "state"), chat.url))
                if len(bridges) == 1:
                    assert bridges[0].wait(WAIT_S) == -signal.SIGKILL
            for room in ("garden", "kitchen"):
                assert chat.wait_shown(room) == f"Is anybody in the {room}?"
        finally:
            for bridge in bridges:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(bridge.pid, signal.SIGKILL)
                bridge.communicate()
    assert len(chat.shown) == 2
    assert sorted(chat.posts) == sorted(chat.shown) or killed.startswith("posted")
    assert len(chat.posts) == (3 if killed.startswith("posted") else 2)
    assert not chat.updates
