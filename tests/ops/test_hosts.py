"""Several hosts of one state directory: all are asked, each does what is its own."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from rich.console import Console

from abeyance.actors.core.errors import ActorDeadError, MessageNotKeptError
from abeyance.actors.domain.errors import AgentOwnedElsewhereError, UnknownAgentError
from abeyance.actors.ops import cli, render, targets
from abeyance.actors.ops.address import all_sockets, host_sockets
from abeyance.actors.ops.client import (
    ControlClient,
    HostSilentError,
    RefusedByHostError,
)
from abeyance.actors.ops.reports import (
    AgentReport,
    LimitReport,
    StatusReport,
    UnrecordedReport,
    WaitReport,
)

from ..stopping import stop_between_commits

HOST = """
import sys, trio
from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail, reply

async def main():
    async with open_runtime(sys.argv[1]) as runtime:
        provider = ScriptedProvider([fail(429, retry_after=7_200), reply("here I am")])
        agent = await runtime.add_agent(AgentSpec(name=sys.argv[2], provider=provider, model="m1"))
        await agent.send("hello")
        await agent.wait_idle()
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        await agent.wait_idle()
        print(*[message.text async for message in agent.transcript()], sep="|", flush=True)

trio.run(main)
"""


class Host:
    """A process that hosts one agent, which is held."""

    def __init__(self, state: Path, agent: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST, str(state), agent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self.process.pid
        assert self._said() == "ready"

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def ends_with(self) -> str:
        """Have it end; the agent's transcript."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")
        self.process.stdin.flush()
        return self._said()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def hosts(state: Path) -> Iterator[tuple[Host, Host]]:
    """Two processes on one directory, of ana and of bo."""
    with contextlib.ExitStack() as stack:
        started = []
        for agent in ("ana", "bo"):
            host = Host(state, agent)
            stack.enter_context(host.process)
            stack.callback(host.process.kill)
            started.append(host)
        yield started[0], started[1]


Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line: its exit code, the JSON it printed, and what it said on stderr."""

    def run(*arguments: str) -> tuple[int, Any, str]:
        code = cli.main([*arguments, "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out), printed.err

    return run


def test_two_hosts_of_a_directory_are_shown_as_one_and_each_agent_is_released_by_its_host(
    state: Path,
    hosts: tuple[Host, Host],
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, status, _ = run("status", str(state))
    assert (code, status["silent_pids"]) == (0, [])
    assert {(agent["name"], agent["pid"]) for agent in status["agents"]} == {
        ("ana", hosts[0].pid),
        ("bo", hosts[1].pid),
    }
    assert {host["pid"] for host in status["hosts"]} == {host.pid for host in hosts}
    assert sorted(wait["agent"] for wait in status["waits"]) == ["ana", "bo"]
    assert run("waits", str(state))[1] == {"waits": status["waits"]}
    assert cli.main(["status", str(state)]) == 0
    shown = capsys.readouterr().out
    assert "2 hosts running" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(("ana ", "bo "))]
    assert [(row[0], row[-1]) for row in rows[:2]] == [
        ("ana", str(hosts[0].pid)),
        ("bo", str(hosts[1].pid)),
    ]
    monkeypatch.setenv("COLUMNS", "50")
    assert cli.main(["status", str(state)]) == 0
    assert f", pid {hosts[0].pid}\n" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    _, tree, _ = run("tree", str(state))
    assert {tree["pid"], *(other["pid"] for other in tree["others"])} == {h.pid for h in hosts}
    assert cli.main(["tree", str(state)]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith("pid ")]
    assert sorted(heads) == sorted(f"pid {host.pid}" for host in hosts)
    for agent, host in zip(("bo", "ana"), reversed(hosts), strict=True):
        code, report, _ = run("release", str(state), agent)
        assert (code, [lifted["agent"] for lifted in report["released"]]) == (0, [agent])
        assert host.ends_with() == "hello|here I am"


@pytest.mark.slow
def test_killed_host_is_neither_asked_nor_missed_and_another_releases_its_agent(
    state: Path, hosts: tuple[Host, Host], run: Run
) -> None:
    hosts[0].kill()
    assert len(all_sockets(state)) == 2
    assert [at.pid for at in host_sockets(state)] == [hosts[1].pid]
    code, status, said = run("status", str(state))
    assert (code, said, status["silent_pids"]) == (0, "", [])
    assert [agent["name"] for agent in status["agents"]] == ["bo"]
    code, report, _ = run("release", str(state), "ana")
    assert (code, [lifted["agent"] for lifted in report["released"]]) == (0, ["ana"])


@pytest.mark.slow
def test_stopped_host_is_named_and_the_others_are_shown_and_steered(
    state: Path, hosts: tuple[Host, Host], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "ControlClient", lambda path: ControlClient(path, timeout_s=1.5))
    stopped = hosts[0].pid
    stop_between_commits(stopped, state)
    code, found, said = run("waits", str(state))
    assert (code, said) == (0, "")
    assert sorted(wait["agent"] for wait in found["waits"]) == ["ana", "bo"]
    code, status, said = run("status", str(state))
    assert (code, status["silent_pids"]) == (1, [stopped])
    assert [agent["name"] for agent in status["agents"]] == ["bo"]
    assert f"host process {stopped} did not answer" in said
    code, refused, said = run("waits", str(state), "--agent", "cy")
    assert (code, refused["error"]["code"]) == (1, "host_silent")
    assert f"host process {stopped} did not answer" in said
    code, tree, said = run("tree", str(state))
    assert (code, tree["pid"], tree["others"]) == (1, hosts[1].pid, [])
    assert f"host process {stopped} did not answer" in said
    code, refused, said = run("release", str(state), "ana")
    assert (code, refused["error"]["code"]) == (1, "host_silent")
    assert f"host process {stopped} did not answer" in said
    assert "nothing was done" in said
    assert f"`kill -CONT {stopped}`" in said
    code, report, _ = run("release", str(state), "bo")
    assert (code, [lifted["agent"] for lifted in report["released"]]) == (0, ["bo"])
    assert hosts[1].ends_with() == "hello|here I am"


def test_listings_of_a_lone_host_that_is_stopped_are_read_from_its_store(
    state: Path, hosts: tuple[Host, Host], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "ControlClient", lambda path: ControlClient(path, timeout_s=0.5))
    hosts[0].kill()
    stopped = hosts[1].pid
    stop_between_commits(stopped, state)
    code, status, said = run("status", str(state))
    assert (code, status["silent_pids"], status["open_pids"]) == (1, [stopped], [stopped])
    assert sorted(wait["agent"] for wait in status["waits"]) == ["ana", "bo"]
    assert f"host process {stopped} did not answer" in said
    code, found, said = run("waits", str(state), "--agent", "bo")
    assert (code, [wait["agent"] for wait in found["waits"]]) == (1, ["bo"])
    assert f"`kill -CONT {stopped}`" in said
    assert "what the store holds is shown" in said
    for listing in (
        "inbox",
        "alerts",
        "dead-letters",
        "runs",
        "schedules",
        "approve",
        "usage",
        "outbox",
    ):
        code, _, said = run(listing, str(state))
        assert code == 1
        assert said.count("did not answer") == 1
        assert "what the store holds is shown" in said
    code, refused, said = run("release", str(state), "bo")
    assert (code, refused["error"]["code"]) == (1, "host_silent")
    assert "nothing was done" in said


# -- two hosts that say what a test wants ---------------------------------------------------------


@pytest.fixture
def pair(
    state: Path, runtime: Any, serve_until_cancelled: Any
) -> Callable[..., contextlib.AbstractAsyncContextManager[None]]:
    """Serve two runtimes on one directory within a block."""

    @contextlib.asynccontextmanager
    async def serve(first: Any, second: Any) -> Any:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_until_cancelled, first, state, "aa")
            await nursery.start(serve_until_cancelled, second, state, "bb")
            yield
            nursery.cancel_scope.cancel()

    return serve


class Owner:
    """A runtime that does what concerns one name, and refuses the rest."""

    def __init__(self, name: str, number: int, refusal: Exception) -> None:
        self._name = name
        self._number = number
        self._refusal = refusal
        self.asked: list[object] = []

    async def release_provider_wait(self, agent: str, model: str = "*", *, requester: str) -> Any:
        self.asked.append(agent)
        if agent != self._name:
            raise self._refusal
        return Released()

    def provider_waits(self, _agent: str | None = None) -> tuple[Any, ...]:
        return ()

    async def replay_dead_letter(self, id: int, *, requester: str) -> Any:  # noqa: A002
        self.asked.append(id)
        if id != self._number:
            raise self._refusal
        return Replayed()


class Released:
    released = ()


class Replayed:
    id = 1
    kind = "dead_letter"
    actor = message = reason = error = ""
    replayable = True
    incarnation = deliveries = origin_kind = origin = None
    replays = at_ms = 1


REFUSALS = (
    AgentOwnedElsewhereError("it is another's", agent="x", pid=1, host="h"),
    UnknownAgentError("not known here", agent="x"),
    ActorDeadError("no such actor here"),
    MessageNotKeptError("not kept here", entry=1),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: error.code)
async def test_verb_goes_past_a_host_that_refuses_it_as_not_its_own(
    state: Path, pair: Any, refusal: Exception
) -> None:
    first, second = Owner("ana", 1, refusal), Owner("bo", 2, refusal)

    def ask() -> None:
        with ControlClient(state, timeout_s=5) as client:
            # Whichever greeted first, of each pair one is the other host's.
            client.release("ana")
            client.release("bo")
            client.replay("dead_letter", 1)
            client.replay("dead_letter", 2)
            with pytest.raises(RefusedByHostError) as caught:
                client.release("cy")
            assert caught.value.remote_code == refusal.code  # type: ignore[attr-defined]

    async with pair(first, second):
        await trio.to_thread.run_sync(ask)
    assert len(first.asked) + len(second.asked) == 8


async def test_verb_that_a_host_refuses_for_another_reason_is_put_to_no_other(
    state: Path, pair: Any
) -> None:
    failing = RuntimeError("broken")
    first, second = Owner("", 0, failing), Owner("", 0, failing)

    def ask() -> None:
        with ControlClient(state, timeout_s=5) as client, pytest.raises(RefusedByHostError):
            client.release("ana")

    async with pair(first, second):
        await trio.to_thread.run_sync(ask)
    assert first.asked + second.asked == ["ana"]


def test_all_silent_hosts_are_named(state: Path, listening: Any) -> None:
    with (
        listening(state, 77, "aa"),
        listening(state, 78, "bb"),
        pytest.raises(HostSilentError, match="host processes 77, 78 did not answer"),
    ):
        ControlClient(state, timeout_s=0.05)


@pytest.mark.parametrize("columns", [120, 40], ids=["a table", "blocks"])
def test_status_names_who_is_at_a_limit_of_its_own_and_nobody_else(columns: int) -> None:
    free = LimitReport(
        inbox_messages_max=3, inbox_bytes=0, inbox_bytes_max=800, message_bytes_max=100, turns=2,
        turns_waiting=0, turns_max=2, tool_threads=1, tool_threads_max=2,
    )  # fmt: skip
    full = msgspec.structs.replace(free, inbox_bytes=701, turns_waiting=4, tool_threads=2)
    agents = tuple(
        AgentReport(
            name=name, state="idle", model="m", turn=None, round=None, attempts=None, held=None,
            inbox=inbox, wakes=0, limits=limits,
        )
        for name, inbox, limits in (("ana", 3, full), ("bo", 2, free), ("cy", 9, None))
    )  # fmt: skip
    report = StatusReport(
        directory="d", store_id="s", pid=1, started_ms=None, agents=agents, waits=(),
        dead_letters=0, quarantine=0,
    )  # fmt: skip
    out = io.StringIO()
    render.print_status(Console(file=out, width=columns), report, 0)
    said = [line for line in out.getvalue().splitlines() if "limits" in line]
    assert said == [
        "ana is at its limits: inbox 3 of 3 messages; inbox 701 of 800 bytes; turns 2 of 2, "
        "4 waiting; tool threads 2 of 2"
    ]


def test_status_names_what_the_store_refuses_of_whom_since_when_and_why() -> None:
    agents = tuple(
        AgentReport(
            name=name, state="unrecorded", model="m", turn=1, round=0, attempts=1, held=None,
            inbox=0, wakes=1, unrecorded=refused,
        )
        for name, refused in (
            ("ana", UnrecordedReport(what="a reply", reason="no\x1b room", since_ms=5_000)),
            ("bo", None),
        )
    )  # fmt: skip
    report = StatusReport(
        directory="d", store_id="s", pid=1, started_ms=None, agents=agents, waits=(),
        dead_letters=0, quarantine=0,
    )  # fmt: skip
    out = io.StringIO()
    render.print_status(Console(file=out, width=120), report, 65_000)
    said = [line for line in out.getvalue().splitlines() if "waits for the store" in line]
    assert said == [r"ana waits for the store, for 1m: a reply cannot be recorded; no\u001b room"]


# -- names that are on disk already ---------------------------------------------------------------

HIDDEN = "a\u202eb\u200bc\x9bd"
ESCAPED = r"a\u202eb\u200bc\u009bd"


@pytest.mark.parametrize("columns", [120, 40], ids=["a table", "blocks"])
def test_name_that_would_mislead_is_escaped_in_what_status_and_waits_print(columns: int) -> None:
    agent = AgentReport(
        name=HIDDEN, state="idle", model=HIDDEN, turn=None, round=None, attempts=None, held=None,
        inbox=0, wakes=0,
    )  # fmt: skip
    wait = WaitReport(agent=HIDDEN, model=HIDDEN, deadline_ms=None, reason=HIDDEN, set_ms=0)
    report = StatusReport(
        directory="d", store_id="s", pid=1, started_ms=None, agents=(agent,), waits=(wait,),
        dead_letters=0, quarantine=0,
    )  # fmt: skip
    out = io.StringIO()
    render.print_status(Console(file=out, width=columns), report, 0)
    assert not {char for char in HIDDEN if not char.isalpha()} & set(out.getvalue())
    assert out.getvalue().count(ESCAPED) == 5
    text = render.json_text(report)
    assert text.isascii()
    assert json.loads(text)["agents"][0]["name"] == HIDDEN
