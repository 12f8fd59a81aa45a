"""The simulator: its script, its strictness, its log as a witness, and it as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from abeyance.actors.testing import (
    Answer,
    ProviderSimulator,
    Rule,
    SimulatedTool,
    When,
)
from abeyance.actors.testing.simulator import read_script

HELLO: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hello"}],
}


def client(simulator: ProviderSimulator) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=simulator.base_url, headers={"x-api-key": "any"}, timeout=20, trust_env=False
    )


async def post(simulator: ProviderSimulator, body: Any = HELLO, **extra: Any) -> httpx2.Response:
    async with client(simulator) as http:
        return await http.post("/v1/messages", json={**body, **extra})


async def text_of(simulator: ProviderSimulator, **extra: Any) -> str:
    return str((await post(simulator, **extra)).json()["content"][0]["text"])


def events_of(response: httpx2.Response) -> list[str]:
    return [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]


async def test_without_a_rule_it_echoes_the_last_user_text():
    async with ProviderSimulator() as simulator:
        assert await text_of(simulator) == "you said: hello"


async def test_rules_answer_by_marker_count_model_text_and_tool_result():
    rules = [
        Rule(Answer(text="ana's second"), When(marker="Ana", nth=2)),
        Rule(Answer(text="third of all"), When(nth=3)),
        Rule(Answer(text="big"), When(model="big")),
        Rule(Answer(text="sunny"), When(last_text="weather"), times=1),
    ]
    async with ProviderSimulator(rules) as simulator:
        assert await text_of(simulator, system="You are Ana") == "you said: hello"
        assert await text_of(simulator, system="You are Ana") == "ana's second"
        assert await text_of(simulator) == "third of all"
        assert await text_of(simulator, model="big") == "big"
        weather = [{"role": "user", "content": [{"type": "text", "text": "the weather?"}]}]
        assert await text_of(simulator, messages=weather) == "sunny"
        assert await text_of(simulator, messages=weather) == "you said: the weather?"


async def test_a_rule_can_wait_for_tool_results():
    rules = [
        Rule(Answer(text="seen"), When(after_tool=True)),
        Rule(Answer(tools=(SimulatedTool("look", {"at": 1}),))),
    ]
    async with ProviderSimulator(rules) as simulator:
        first = (await post(simulator)).json()
        call = first["content"][0]
        assert (first["stop_reason"], call["input"]) == ("tool_use", {"at": 1})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sky"}
        messages = [
            *HELLO["messages"],
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        assert await text_of(simulator, messages=messages) == "seen"


CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ([{"role": "assistant", "content": "hi"}], "first message"),
        ([{"role": "system", "content": "hi"}], "role"),
        ([{"role": "user", "content": " "}], "non-whitespace"),
        ([{"role": "user", "content": []}], "non-empty"),
        ([{"role": "user", "content": [RESULT]}], "unexpected `tool_use_id`"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": [CALL]}],
            "without results",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": "b"},
            ],
            "without `tool_result`",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [TEXT, RESULT]},
            ],
            "must come first",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [CALL]},
                {"role": "user", "content": [RESULT, RESULT]},
            ],
            "single result",
        ),
    ],
)
async def test_a_malformed_transcript_is_refused_as_the_service_refuses_it(
    messages: list[Any], words: str
):
    async with ProviderSimulator() as simulator:
        response = await post(simulator, messages=messages)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]


async def test_results_may_be_spread_over_consecutive_user_messages():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [CALL, {**CALL, "id": "c2"}]},
        {"role": "user", "content": [RESULT]},
        {"role": "user", "content": [{**RESULT, "tool_use_id": "c2"}]},
        {"role": "user", "content": "b"},
    ]
    async with ProviderSimulator() as simulator:
        assert await text_of(simulator, messages=messages) == "you said: b"


async def test_a_request_without_a_credential_is_refused():
    async with ProviderSimulator() as simulator, httpx2.AsyncClient(trust_env=False) as http:
        response = await http.post(simulator.base_url + "/v1/messages", json=HELLO)
        assert (response.status_code, (await simulator.wait_replied(1)).status) == (401, 401)


async def test_unknown_paths_and_bodies_are_refused():
    async with ProviderSimulator() as simulator, client(simulator) as http:
        assert (await http.get("/v1/nothing")).status_code == 404
        assert (await http.post("/v1/messages", content=b"no json")).status_code == 400
        assert (await http.post("/v1/messages", json={})).status_code == 400


async def test_a_stream_is_the_message_in_pieces():
    rule = Rule(Answer(text="hello there", chunk_chars=6, pings=1, tools=(SimulatedTool("look"),)))
    async with ProviderSimulator([rule]) as simulator:
        response = await post(simulator, stream=True)
        assert events_of(response) == [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        entry = await simulator.wait_replied(1)
        whole = (await post(simulator)).json()
    assert entry.finished
    assert entry.reply["content"][0] == whole["content"][0]


async def test_a_cut_stream_is_logged_as_far_as_it_went():
    rule = Rule(Answer(text="hello there", chunk_chars=6, cut_after=3))
    async with ProviderSimulator([rule]) as simulator:
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(simulator, stream=True)
        entry = await simulator.wait_replied(1)
    assert not entry.finished
    assert entry.reply["content"] == [{"type": "text", "text": "hello "}]


async def test_errors_have_the_body_and_headers_of_their_script():
    rules = [
        Rule(Answer(status=529), times=1),
        Rule(Answer(status=400, body="plain", headers={"x": ["1", "2"]})),
    ]
    async with ProviderSimulator(rules) as simulator:
        overloaded = await post(simulator)
        assert overloaded.json()["error"]["type"] == "overloaded_error"
        plain = await post(simulator)
    assert (plain.text, plain.headers.get_list("x")) == ("plain", ["1", "2"])


async def test_a_request_is_on_disk_before_the_first_byte_of_its_response(tmp_path: Path):
    log = tmp_path / "wire.jsonl"
    rules = [Rule(Answer(text="x", hold="h"))]
    async with (
        ProviderSimulator(rules, log_path=log) as simulator,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(post, simulator)
        await simulator.wait_held("h")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["event"] for line in lines] == ["received"]
        assert lines[0]["request"] == HELLO
        assert simulator.log[0].status is None
        simulator.release("h")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["event"], line["number"]) for line in lines] == [("received", 1), ("replied", 1)]
    assert (lines[1]["status"], lines[1]["finished"]) == (200, True)


async def test_a_client_that_leaves_ends_its_response_at_once():
    rules = [Rule(Answer(text="x", hold="never"))]
    async with ProviderSimulator(rules) as simulator:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, simulator)
            await simulator.wait_held("never")
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            entry = await simulator.wait_replied(1)
        assert (entry.status, entry.finished) == (0, False)


async def test_a_hold_within_a_stream_is_after_its_first_piece():
    rule = Rule(Answer(text="abcd", chunk_chars=2, hold_in_stream="mid"))
    got: list[str] = []
    async with ProviderSimulator([rule]) as simulator, client(simulator) as http:

        async def read() -> None:
            body = {**HELLO, "stream": True}
            async with http.stream("POST", "/v1/messages", json=body) as response:
                got.extend([line async for line in response.aiter_lines()])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await simulator.wait_held("mid")
            assert (await http.get("/_sim/holds")).json() == ["mid"]
            assert simulator.log[0].status is None
            assert (await http.post("/_sim/release/mid")).status_code == 200
        assert (await http.get("/_sim/holds")).json() == []
        assert (await http.get("/_sim/log")).json()[0]["request"]["stream"] is True
        assert (await http.get("/_sim/nothing")).status_code == 404
    assert sum("text_delta" in line for line in got) == 2


async def test_a_hold_until_a_file_exists_ends_with_it(tmp_path: Path):
    flag = tmp_path / "go"
    rules = [Rule(Answer(text="went", hold_until=str(flag)))]
    async with ProviderSimulator(rules) as simulator, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await text_of(simulator) == "went"

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        flag.touch()


async def test_the_error_of_a_body_leaves_the_simulator_unwrapped():
    with pytest.raises(ZeroDivisionError):
        async with ProviderSimulator():
            raise ZeroDivisionError


async def test_tokens_are_counted():
    async with ProviderSimulator() as simulator, client(simulator) as http:
        response = await http.post("/v1/messages/count_tokens", json=HELLO)
    assert response.json()["input_tokens"] > 0


@pytest.mark.parametrize(
    ("script", "field"),
    [
        ('[{"then": {"texto": "x"}}]', "texto"),
        ('[{"when": {}}]', "then"),
        ('[{"then": {"status": 42}}]', "status"),
        ('[{"then": {}, "when": {"nth": 0}}]', "nth"),
        ("{}", "array"),
        ("no json", "malformed"),
    ],
)
def test_a_script_that_is_wrong_is_refused_by_its_field(script: str, field: str):
    with pytest.raises(ValueError, match=field):
        read_script(script)


# As a process.

MODULE = [sys.executable, "-m", "abeyance.actors.testing.simulator"]


def test_as_a_process_a_wrong_script_ends_it_with_2(tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text('[{"then": {"texto": "x"}}]')
    done = subprocess.run(
        [*MODULE, "--script", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "texto" in done.stderr) == (2, True)
    done = subprocess.run(
        [*MODULE, "--script", tmp_path / "none"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2


async def test_as_a_process_it_serves_logs_and_ends_on_sigterm(tmp_path: Path):
    script, log, port_file = (tmp_path / name for name in ("script.json", "log", "port"))
    script.write_text('[{"then": {"text": "hi", "hold": "h"}, "times": 1}]')
    arguments = ["--script", script, "--log", log, "--port-file", port_file]
    process = await trio.lowlevel.open_process([*MODULE, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = b""
        while not line.endswith(b"\n"):
            line += await process.stdout.receive_some()
        url = line.decode().split()[-1]
        assert url.endswith(port_file.read_text().strip())
        async with httpx2.AsyncClient(
            base_url=url, headers={"x-api-key": "any"}, timeout=20, trust_env=False
        ) as http:
            await http.post("/_sim/release/h")
            response = await http.post("/v1/messages", json=HELLO)
            assert response.json()["content"][0]["text"] == "hi"
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.stdout.aclose()
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == [
        "received",
        "replied",
    ]
