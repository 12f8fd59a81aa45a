"""`abeyance serve`: what a file declares, whom a line is for, and how a host ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from abeyance.actors import HttpApi, StreamDelta, StreamSkipped, StreamStored, StreamSuperseded
from abeyance.actors.domain.streaming import Attempt
from abeyance.actors.domain.transcript import TranscriptMessage
from abeyance.actors.ops.cli import main
from abeyance.actors.ops.errors import InvalidConfigError
from abeyance.actors.ops.serve import read_config
from abeyance.actors.ops.serve.lines import Addresses, Line, Printer, UnaddressedError
from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.testing import Answer, ProviderSimulator
from abeyance.storage.tables.blocks import TextBlock

ECHO = """
state = "state"
[providers.here]
kind = "echo"
[agents.ana]
provider = "here"
model = "m"
[agents.bo]
provider = "here"
model = "m"
"""
REAL_S_MAX = 60.0
TOOL_MODULE = """
from abeyance.actors import Tool
look = Tool(name="look", description="Look.", input_schema={"type": "object"}, run=lambda: "rain")
other = 5
"""


def declared(path: Path, text: str) -> Path:
    file = path / "host.toml"
    file.write_text(text)
    return file


# -- the file ------------------------------------------------------------------------------------


def test_a_file_declares_providers_and_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "served_tools.py").write_text(TOOL_MODULE)
    file = declared(
        tmp_path,
        """
        state = "kept/here"
        account_waits = true
        webhook_env = "HOOK"

        [providers.a]
        kind = "anthropic"
        api_key_env = "KEY"
        account = "team"
        byte_idle_s = 5

        [providers.o]
        kind = "openai"
        api = "chat"
        base_url = "http://127.0.0.1:1/v1"
        api_key_env = "KEY"
        service = "groq"

        [agents.ana]
        provider = "a"
        model = "claude"
        system = "You are Ana."
        tools = ["served_tools:look"]
        rounds_max = 3
        inbox_messages_max = 5
        turns_max = 2

        [agents.bo]
        provider = "o"
        model = "m"
        slot = "table"
        """,
    )
    config = read_config(file, {"KEY": "secret", "HOOK": "https://example.org/"})
    assert config.state == tmp_path / "kept/here"
    assert (config.account_waits, config.webhook) == (True, "https://example.org/")
    ana, bo = config.agents
    assert isinstance(ana.provider, AnthropicProvider)
    assert isinstance(bo.provider, OpenAIProvider)
    assert (ana.name, ana.model, ana.system, ana.rounds_max) == ("ana", "claude", "You are Ana.", 3)
    assert (ana.inbox_messages_max, ana.turns_max, bo.turns_max) == (5, 2, None)
    assert [tool.name for tool in ana.tools] == ["look"]
    assert (bo.name, bo.slot) == ("bo", "table")


def test_the_file_of_the_documents_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_tools.py").write_text(TOOL_MODULE)
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    keys = {"ANTHROPIC_API_KEY": "a", "LOCAL_KEY": "b", "ALERT_WEBHOOK": "https://example.org/"}
    keys["ABEYANCE_TOKEN"] = "a-token-of-sixteen"
    config = read_config(declared(tmp_path, text), keys)
    assert [spec.name for spec in config.agents] == ["ana", "bo"]
    assert config.http == HttpApi(admin_token="a-token-of-sixteen")


WITHOUT = {
    "state": ECHO.replace('state = "state"\n', ""),
    "statr": ECHO.replace("state =", "statr =").replace('"state"', '"x"'),
    "agents": 'state = "s"\n[providers]\n[agents]\n',
    "account_waits": "account_waits = 1\n" + ECHO,
    "webhook_env": 'webhook_env = "NOBODY"\n' + ECHO,
    "http.port": ECHO + "\n[http]\nport = 70000\n",
    "http.prot": ECHO + "\n[http]\nprot = 1\n",
    "http.read_token_env": ECHO + '\n[http]\nhost = "0.0.0.0"\n',
    "http.admin_token_env": ECHO + '\n[http]\nadmin_token_env = "NOBODY"\n',
    "providers.here.first_wait_s": ECHO.replace('kind = "echo"', 'kind = "echo"\nfirst_wait_s = 0'),
    "providers.here.kind": ECHO.replace('kind = "echo"', "retries = 3"),
    "providers.here.retries": ECHO.replace('kind = "echo"', 'kind = "echo"\nretries = 3'),
    "providers.here.api_key_env": ECHO.replace('"echo"', '"anthropic"'),
    "providers.here.api": ECHO.replace('"echo"', '"openai"\napi = "completions"'),
    "providers.here.call_s": ECHO.replace('"echo"', '"openai"\ncall_s = 0'),
    "providers.here.account": ECHO.replace('"echo"', '"openai"\naccount = " "'),
    "agents.ana.modell": ECHO.replace('model = "m"', 'model = "m"\nmodell = "m"', 1),
    "agents.ana.model": ECHO.replace('model = "m"', "model = 5", 1),
    "agents.ana.provider": ECHO.replace('provider = "here"', 'provider = "there"', 1),
    "agents.ana.tool_threads_max": ECHO.replace(
        'model = "m"', 'model = "m"\ntool_threads_max = 17', 1
    ),
    "agents.ana.rounds_max": ECHO.replace('model = "m"', 'model = "m"\nrounds_max = 0', 1),
    "agents.framework.name": ECHO.replace("agents.ana", "agents.framework"),
    "agents.ana.tools": ECHO.replace('model = "m"', 'model = "m"\ntools = ["no_such:thing"]', 1),
}


def test_a_kind_that_is_not_known_is_named(tmp_path: Path):
    with pytest.raises(InvalidConfigError) as caught:
        read_config(declared(tmp_path, ECHO.replace('"echo"', '"elsewhere"')), {})
    assert caught.value.field == "providers.here.kind"
    assert "elsewhere" in str(caught.value)


@pytest.mark.parametrize("field", WITHOUT)
def test_a_key_that_is_wrong_is_named_by_its_path(tmp_path: Path, field: str):
    with pytest.raises(InvalidConfigError) as caught:
        read_config(declared(tmp_path, WITHOUT[field]), {})
    assert caught.value.field == field
    assert field in str(caught.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "host.toml"], "something was begun"


SECRETS = {"ANTHROPIC_API_KEY": "a\nb", "OPENAI_API_KEY": "k", "HOOK": "ftp://me:s3cret@h/p4th"}
REFUSED_BY_A_CLASS = {
    "providers.here.api_key_env": ECHO.replace('"echo"', '"anthropic"'),
    "providers.here.base_url": ECHO.replace('"echo"', '"openai"\nbase_url = "ftp://h"'),
    "providers.here.service": ECHO.replace('"echo"', '"openai"\nservice = " "'),
    "providers.here.call_s": ECHO.replace('"echo"', '"openai"\ncall_s = inf'),
    "agents.ana.output_tokens_max": ECHO.replace(
        'model = "m"', 'model = "m"\noutput_tokens_max = 1_000_000_001', 1
    ),
    "webhook_env": 'webhook_env = "HOOK"\n' + ECHO,
}


@pytest.mark.parametrize("field", REFUSED_BY_A_CLASS)
def test_a_value_that_only_the_class_it_is_for_refuses_is_named_by_its_key(
    tmp_path: Path, field: str
):
    with pytest.raises(InvalidConfigError) as caught:
        read_config(declared(tmp_path, REFUSED_BY_A_CLASS[field]), SECRETS)
    assert caught.value.field == field
    assert "s3cret" not in str(caught.value)
    assert "p4th" not in str(caught.value)


@pytest.mark.parametrize("why", ["a directory of something else", "a port that is taken"])
def test_a_host_that_cannot_be_opened_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
):
    text, code = ECHO, 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if why == "a port that is taken":
            text += f"\n[http]\nport = {taken.getsockname()[1]}\n"
            code = 1
        else:
            (tmp_path / "state").mkdir()
            (tmp_path / "state" / "theirs").touch()
        assert main(["serve", str(declared(tmp_path, text))]) == code
    said = capsys.readouterr().err
    assert "internal" not in said
    assert ("belongs to something else" if code == 2 else "cannot listen") in said


@pytest.mark.parametrize(
    "tool", ["served_tools", "served_tools:", ":look", "served_tools:nobody", "served_tools:other"]
)
def test_what_is_no_tool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "served_tools.py").write_text(TOOL_MODULE)
    text = ECHO.replace('model = "m"', f'model = "m"\ntools = ["{tool}"]', 1)
    with pytest.raises(InvalidConfigError) as caught:
        read_config(declared(tmp_path, text), {})
    assert caught.value.field == "agents.ana.tools"


@pytest.mark.parametrize("data", [b"state =", b"\xff", b"x" * 1_000_001, b"a = " + b"[" * 100_000])
def test_what_is_no_toml_is_refused(tmp_path: Path, data: bytes):
    file = tmp_path / "host.toml"
    file.write_bytes(data)
    with pytest.raises(InvalidConfigError) as caught:
        read_config(file, {})
    assert caught.value.field == "host.toml"


# -- lines ---------------------------------------------------------------------------------------


def test_a_line_goes_to_whom_it_names_or_to_whom_the_last_one_went():
    to = Addresses(["ana", "bo"])
    with pytest.raises(UnaddressedError, match="ana, bo"):
        to.read("hello")
    lines = ["ana: hello", "and you?", "  bo:  hi: there ", "", "  ", "bo:", "see http://x.org"]
    assert [to.read(line) for line in lines] == [
        Line("ana", "hello"),
        Line("ana", "and you?"),
        Line("bo", "hi: there"),
        None,
        None,
        None,
        Line("bo", "see http://x.org"),
    ]


def test_a_misspelled_name_is_nobody():
    to = Addresses(["ana"])
    assert to.read("hello") == Line("ana", "hello")
    with pytest.raises(UnaddressedError, match="no agent 'anna'"):
        to.read("anna: hello")
    assert to.read("ana: note: this") == Line("ana", "note: this")


def a_delta(text: str, turn: int = 1, kind: Any = "text") -> StreamDelta:
    return StreamDelta(turn, 1, Attempt(1, 1), kind, 0, text)


def a_reply(text: str, turn: int = 1, role: Any = "assistant") -> StreamStored:
    blocks = (TextBlock(text=text),)
    return StreamStored(TranscriptMessage("id", 1, 1, "ana", role, blocks, 0, None, turn, 1))


def printed(*items: tuple[str, Any]) -> str:
    printer = Printer()
    return "".join(printer.shown(agent, item) for agent, item in items)


def test_a_reply_is_printed_as_it_streams_and_once():
    said = [("ana", a_delta("It ")), ("ana", a_delta("rains.")), ("ana", a_reply("It rains."))]
    assert printed(*said) == "ana> It rains.\n"


def test_pieces_of_two_agents_never_share_a_line():
    said = [("ana", a_delta("It ")), ("bo", a_delta("No.")), ("ana", a_delta("rains."))]
    assert printed(*said) == "ana> It \nbo> No.\nana> rains."


def test_what_does_not_count_is_said_not_to():
    taken = StreamSuperseded(1, 1, Attempt(1, 1))
    said = [("ana", a_delta("It is")), ("ana", taken), ("ana", a_reply("It rains."))]
    assert printed(*said) == (
        "ana> It is\nana: what was said last does not count\nana> It rains.\n"
    )
    assert printed(("ana", taken)) == ""


def test_what_was_skipped_comes_whole_when_it_is_stored():
    said = [("ana", a_delta("It ")), ("ana", StreamSkipped(2)), ("ana", a_reply("It rains."))]
    assert printed(*said) == "ana> It \nana> It rains.\n"


def test_a_models_text_does_not_steer_the_terminal():
    said = printed(("ana", a_delta("a\x1b[2Jb\nc")), ("bo", a_reply("d\x07\x9b", role="marker")))
    assert said == "ana> a [2Jb\nc\nbo: d  \n"


def test_reasoning_tools_and_what_users_said_are_not_printed():
    assert (
        printed(("ana", a_delta("hm", kind="thinking")), ("ana", a_reply("hi", role="user"))) == ""
    )


# -- the command ---------------------------------------------------------------------------------


class Host:
    """A served host in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def reads(self, text: str) -> None:
        """Wait for a line of output."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == text + "\n"

    def notes(self, text: str) -> None:
        """Wait for a line on the other stream that holds a text."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert text in line, line

    def ends(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(REAL_S_MAX)


@contextmanager
def served(file: Path, *arguments: str, **environment: str) -> Iterator[Host]:
    with subprocess.Popen(
        [sys.executable, "-m", "abeyance.actors.ops.entry", "serve", str(file), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield Host(process)
        finally:
            process.kill()


def test_lines_go_in_and_replies_come_out_until_the_input_ends(tmp_path: Path):
    with served(declared(tmp_path, ECHO)) as host:
        host.notes("serving ana, bo")
        host.say("ana: hello")
        host.reads("ana> hello")
        host.say("nobody: x")
        host.notes("no agent 'nobody' here")
        host.say("bo: and you?")
        host.reads("bo> and you?")
        assert host.ends() == 0


def test_a_rehearsed_wait_is_released_over_http_and_its_turn_goes_on(tmp_path: Path):
    token = "a-token-of-ones-own"
    example = Path(__file__).parents[2] / "examples" / "first_day" / "serve" / "held.toml"
    text = example.read_text().replace("[http]", "[http]\nport = 0")
    with served(declared(tmp_path, text), ABEYANCE_TOKEN=token) as host:
        host.notes("serving ana")
        assert host.process.stderr is not None
        url = host.process.stderr.readline().split()[-1]
        host.say("ana: hello")
        with httpx2.Client(base_url=url) as client:
            gives_up_at = time.monotonic() + REAL_S_MAX
            while not (waits := client.get("/v1/waits").json()["waits"]):
                assert time.monotonic() < gives_up_at
            assert [wait["agent"] for wait in waits] == ["ana"]
            answer = client.post(
                "/v1/release",
                json={"agent": "ana", "requester": "cy"},
                headers={"authorization": f"Bearer {token}"},
            )
            assert answer.json()["released"][0]["reach"] == "recorded"
        host.reads("ana> hello")
        assert host.ends() == 0


def test_json_tells_each_item_of_a_stream(tmp_path: Path):
    with served(declared(tmp_path, ECHO), "--json") as host:
        host.say("ana: hello")
        assert host.ends() == 0
        assert host.process.stdout is not None
        told = [json.loads(line) for line in host.process.stdout]
    assert [one["kind"] for one in told] == ["stored", "delta", "stored"]
    assert (told[1]["of"], told[1]["text"], told[1]["turn"], told[1]["round"]) == (
        "text",
        "hello",
        1,
        1,
    )
    assert [(one["role"], one["text"]) for one in (told[0], told[2])] == [
        ("user", "hello"),
        ("assistant", "hello"),
    ]


def test_a_file_that_is_wrong_ends_with_a_line_and_2(tmp_path: Path):
    file = declared(tmp_path, WITHOUT["agents.ana.modell"])
    for arguments in ([], ["--check"]):
        with served(file, *arguments) as host:
            assert host.ends() == 2
            host.notes("agents.ana.modell: is no key here")


def test_a_check_begins_nothing(tmp_path: Path):
    with served(declared(tmp_path, ECHO), "--check") as host:
        assert host.ends() == 0
    assert not (tmp_path / "state").exists()


def with_a_wire(path: Path, base_url: str) -> Path:
    text = ECHO.replace('"echo"', f'"anthropic"\nbase_url = "{base_url}"')
    return declared(path, text)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_lets_the_live_turn_end_and_a_second_one_stops_it(
    tmp_path: Path, number: signal.Signals
):
    answer = Answer(text="It rains.", chunk_chars=3, hold_in_stream="mid")
    async with ProviderSimulator(lambda _: answer) as simulator:
        file = with_a_wire(tmp_path, simulator.base_url)
        for twice in (False, True):
            simulator.holds.__init__()  # type: ignore[misc]
            with served(file, ANTHROPIC_API_KEY="any") as host:
                await trio.to_thread.run_sync(host.notes, "serving")
                await trio.to_thread.run_sync(host.say, "ana: Does it rain?")
                await simulator.wait_held("mid")
                host.process.send_signal(number)
                await trio.to_thread.run_sync(host.notes, "stopping when the live turns")
                if twice:
                    host.process.send_signal(number)
                else:
                    simulator.release("mid")
                code = await trio.to_thread.run_sync(host.process.wait, REAL_S_MAX)
                assert host.process.stdout is not None
                said = await trio.to_thread.run_sync(host.process.stdout.read)
            assert code == (130 if twice else 0)
            assert said.startswith("ana> It ")
            assert ("rains." in said) is not twice


@pytest.mark.slow
async def test_a_held_turn_is_told_of_at_the_end_and_goes_on_with_the_next_start(tmp_path: Path):
    left = [Answer(status=429, headers={"retry-after": "7200"}), Answer(text="It rains.")]
    async with ProviderSimulator(lambda _: left.pop(0)) as simulator:
        file = with_a_wire(tmp_path, simulator.base_url)
        with served(file, ANTHROPIC_API_KEY="any") as host:
            host.say("ana: Does it rain?")
            await simulator.wait_replied(1)
            assert await trio.to_thread.run_sync(host.ends) == 0
            host.notes("serving")
            host.notes("ana is held until")
        with served(file, ANTHROPIC_API_KEY="any") as host:
            await trio.to_thread.run_sync(host.notes, "serving")
            entry = [sys.executable, "-m", "abeyance.actors.ops.entry"]
            await trio.run_process(
                [*entry, "release", str(tmp_path / "state"), "ana"], capture_stdout=True
            )
            await trio.to_thread.run_sync(host.reads, "ana> It rains.")
            assert await trio.to_thread.run_sync(host.ends) == 0


@pytest.mark.slow
def test_what_was_said_before_a_kill_is_answered_after_it(tmp_path: Path):
    file = declared(tmp_path, ECHO)
    with served(file) as host:
        host.notes("serving")
        host.say("ana: hello")
        host.reads("ana> hello")
        host.process.kill()
    with served(file) as host:
        host.say("ana: again")
        host.reads("ana> again")
        assert host.ends() == 0


def test_a_line_without_an_end_is_refused(tmp_path: Path):
    with served(declared(tmp_path, ECHO)) as host:
        assert host.process.stdin is not None
        host.process.stdin.write("ana: " + "x" * 1_000_001)
        assert host.ends() == 1
        host.notes("serving")
        host.notes("standard input: has a line of more than")


@pytest.mark.slow
def test_agents_that_another_host_serves_are_refused_by_its_pid(tmp_path: Path):
    file = declared(tmp_path, ECHO)
    with served(file) as first:
        first.notes("serving")
        with served(file) as second:
            assert second.process.wait(REAL_S_MAX) == 1
            second.notes(str(first.process.pid))
        first.say("ana: hello")
        first.reads("ana> hello")
