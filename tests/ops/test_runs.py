"""Runs for an operator, at the command line and the socket, of a host and of a stopped store."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from msgspec import structs

from abeyance.actors import (
    ModelChoice,
    RunContext,
    RunOwnedElsewhereError,
    RunStateError,
    Runtime,
    open_runtime,
)
from abeyance.actors.domain.errors import InvalidInputError, QuiescedError
from abeyance.actors.domain.run_rows import ENDED
from abeyance.actors.ops import cli, shell
from abeyance.actors.ops.client import ControlClient
from abeyance.actors.ops.connection import HostSilentError, RefusedByHostError
from abeyance.actors.ops.render_runs import print_runs
from abeyance.actors.ops.run_reports import RunsReport
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.ops.stopped_runs import StoppedRuns
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.run_reading import _BUCKETS, OPEN
from abeyance.storage.tables.runs import Bucket

from .test_control import asked, in_thread, request

FAR_MS = 4_102_444_800_000
"""1 January 2100, in UTC."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour, UTC."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


class Pages:
    """A workflow of three items; some meet walls first, or die with their process."""

    def __init__(self, *walls: int | None) -> None:
        self.walls = list(walls)
        self.done: list[str] = []
        self.choices: list[ModelChoice | None] = []

    async def write(self, name: str) -> str:
        await trio.lowlevel.checkpoint()
        if name == "b" and self.walls:
            raise CapacityExhaustedError(
                (
                    Exhaustion(
                        provider="anthropic",
                        model="opus",
                        window="seven_day",
                        retry_at_ms=self.walls.pop(0),
                    ),
                )
            )
        self.done.append(name)
        return f"{name}!"

    async def body(self, run: RunContext, _params: Any) -> Any:
        self.choices.append(run.choice)
        with run.step("write", total=3):
            return [await run.do(name, self.write, name) for name in ("a", "b", "c")]


async def until_waiting(runtime: Runtime, run: str) -> None:
    with runtime.events(kinds={"run_changed"}) as events:
        while not runtime.run(run).state.startswith("waiting"):
            await anext(aiter(events))


async def suspended(runtime: Runtime, pages: Pages, key: str = "k") -> None:
    runtime.add_workflow("pages", pages.body, fallbacks=[ModelChoice("openai", "gpt")])
    run = await runtime.start_run(key, "pages")
    await until_waiting(runtime, run.id)


async def leave_suspended(state: Path, retry_at_ms: int | None = FAR_MS) -> None:
    async with open_runtime(state, control=False) as runtime:
        await suspended(runtime, Pages(retry_at_ms))


async def command(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


Said = pytest.CaptureFixture[str]


async def told(capsys: Said, *arguments: str, code: int = 0) -> Any:
    found = await command(*arguments, "--json")
    out = capsys.readouterr()
    assert found == code, out.err
    return json.loads(out.out)


# -- looking


@pytest.mark.behaviour("S-025", "S-049")
async def test_waiting_run_is_listed_alike_by_a_host_and_by_its_stopped_store(
    state: Path, capsys: Said
) -> None:
    async with open_runtime(state) as runtime:
        await suspended(runtime, Pages(FAR_MS))
        hosted = await told(capsys, "runs", str(state))
        assert await command("runs", str(state)) == 0
        shown = capsys.readouterr().out
        detail = await told(capsys, "runs", str(state), "k")
        assert await command("runs", str(state), "k@1") == 0
        long = capsys.readouterr().out
    stopped = await told(capsys, "runs", str(state))
    assert hosted["pid"] is not None
    assert stopped == {**hosted, "pid": None}
    (run,) = stopped["runs"]
    assert (run["id"], run["state"], run["window"]) == ("k@1", "waiting_for_capacity", "seven_day")
    assert run["retry_at_ms"] == FAR_MS
    assert run["resume_after_ms"] == FAR_MS + 300_000
    line = "Waiting for anthropic capacity (seven_day) \u00b7 resumes after 2100-01-01 00:05 UTC"
    assert run["text"] == line
    assert line in " ".join(shown.split())
    assert "at write/b, 1 item done; 2 of 3 in its step; walls 1" in shown
    assert "running" not in shown.lower()
    assert max(map(len, shown.splitlines())) <= 80
    assert await told(capsys, "runs", str(state), "k") == {**detail, "pid": None}
    assert [step["state"] for step in detail["steps"]] == ["done", "blocked"]
    assert [each["after"] for each in detail["history"]] == ["running", "waiting_for_capacity"]
    assert "0  write/a: done" in long
    assert max(map(len, long.splitlines())) <= 80


async def test_list_has_what_needs_a_decision_first_and_what_has_ended_on_request(
    state: Path, capsys: Said
) -> None:
    async with open_runtime(state, control=False) as runtime:
        pages = Pages(None)
        runtime.add_workflow("pages", pages.body)
        done = await runtime.start_run("done", "pages")
        await until_waiting(runtime, "done")
        await runtime.resume_run("done", requester="ops")
        await done.wait()
        for key, ends in (("a", FAR_MS), ("b", None), ("c", FAR_MS - 1)):
            pages.walls = [ends]
            await runtime.start_run(key, "pages")
            await until_waiting(runtime, key)

    async def listed(*options: str) -> list[str]:
        found = await told(capsys, "runs", str(state), *options)
        return [run["key"] for run in found["runs"]]

    assert await listed() == ["b", "c", "a"]
    assert await listed("--all") == ["a", "b", "c", "done"]
    assert await listed("--all", "--limit", "2") == ["a", "b"]
    assert await listed("--all", "--after", "b@1") == ["c", "done"]
    assert await listed("--state", "completed") == ["done"]
    assert await listed("--state", "waiting_for_capacity") == ["c", "a"]
    assert await listed("--state", "running") == []
    assert await listed("--workflow", "other") == []
    assert await command("runs", str(state), "done") == 0
    assert 'result ["a!","b!","c!"]' in capsys.readouterr().out
    assert await command("runs", str(state), "--workflow", "other") == 0
    assert capsys.readouterr().out == "No such runs.\n"


def test_list_of_what_is_open_looks_wherever_the_index_has_a_run() -> None:
    assert set(_BUCKETS[OPEN]) == set(get_args(Bucket)) - ENDED


async def test_store_without_runs_says_so(state: Path, capsys: Said) -> None:
    async with open_runtime(state, control=False):
        pass
    assert await command("runs", str(state)) == 0
    assert capsys.readouterr().out == "No runs that have not ended.\n"


# -- acts on a running host


@pytest.mark.behaviour("S-050", "S-051")
async def test_run_is_resumed_by_the_command_line_and_a_second_press_changes_nothing(
    state: Path, capsys: Said
) -> None:
    pages = Pages(None, FAR_MS)
    async with open_runtime(state) as runtime:
        await suspended(runtime, pages)
        first = await told(capsys, "resume", str(state), "k")
        assert (first["id"], first["state"], first["changed"]) == ("k@1", "resuming", True)
        await until_waiting(runtime, "k")
        assert runtime.run("k").state == "waiting_for_capacity"
        assert await command("resume", str(state), "k@1") == 0
        assert "k@1 is resuming, in process" in capsys.readouterr().out
        await runtime.wait_run("k")
        again = await told(capsys, "resume", str(state), "k")
        assert (again["state"], again["changed"]) == ("completed", False)
        assert await command("resume", str(state), "k") == 0
        assert capsys.readouterr().out == "k@1 is completed; nothing was changed.\n"
        assert [each.by for each in runtime.run_history("k")][2].startswith("cli:")
    assert pages.done == ["a", "b", "c"]


@pytest.mark.behaviour("S-052")
async def test_run_goes_on_with_the_model_that_the_command_line_names(
    state: Path, capsys: Said
) -> None:
    pages = Pages(None)
    async with open_runtime(state) as runtime:
        await suspended(runtime, pages)
        arguments = ("fallback", str(state), "k", "--provider", "openai", "--model", "gpt")
        assert (await told(capsys, *arguments))["changed"]
        assert (await runtime.wait_run("k")).fallback == ("openai", "gpt")
        assert not (await told(capsys, *arguments))["changed"]
    assert pages.choices == [None, ModelChoice("openai", "gpt")]
    assert pages.done == ["a", "b", "c"]


@pytest.mark.behaviour("S-053")
async def test_run_that_the_command_line_cancels_is_never_taken_up(
    state: Path, capsys: Said
) -> None:
    pages = Pages(FAR_MS)
    async with open_runtime(state) as runtime:
        await suspended(runtime, pages)
        assert await command("cancel", str(state), "k", "--reason", "not needed") == 0
        assert capsys.readouterr().out == "k@1 is cancelled; nothing takes it up any more.\n"
        status = runtime.run("k")
        assert (status.state, status.reason) == ("cancelled", "not needed")
        for verb in ("cancel", "resume"):
            again = await told(capsys, verb, str(state), "k")
            assert (again["state"], again["changed"]) == ("cancelled", False)
    assert pages.done == ["a"]


async def test_cancel_says_that_a_thread_of_the_run_goes_on(state: Path, capsys: Said) -> None:
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go.wait(20)

    async def body(run: RunContext, _params: Any) -> None:
        await run.do("hold", hold)

    async with open_runtime(state) as runtime:
        runtime.add_workflow("pages", body)
        await runtime.start_run("k", "pages")
        await in_thread(entered.wait, 20)
        assert await command("cancel", str(state), "k") == 0
        go.set()
    assert "that run on, recording nothing: 1" in capsys.readouterr().out


async def test_act_that_is_not_possible_is_one_line_with_the_hosts_code(
    state: Path, capsys: Said
) -> None:
    async with open_runtime(state) as runtime:
        for arguments in (("runs", "no"), ("resume", "no"), ("cancel", "no")):
            verb, run = arguments
            refused = await told(capsys, verb, str(state), run, code=1)
            assert refused["error"]["code"] == "unknown_run"
        await suspended(runtime, Pages(FAR_MS))
        await runtime.quiesce("upgrade", 0)
        assert (await told(capsys, "resume", str(state), "k", code=1))["error"][
            "code"
        ] == "quiesced"
        assert runtime.run("k").state == "waiting_for_capacity"


MALFORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "a state": ("state", {"verb": "runs", "state": "late"}),
    "a workflow": ("workflow", {"verb": "runs", "workflow": ""}),
    "a limit": ("limit", {"verb": "runs", "limit": 0}),
    "a page of what is open": ("after", {"verb": "runs", "state": "open", "after": "k@1"}),
    "a page behind a key": ("after", {"verb": "runs", "after": "k"}),
    "a run that is no text": ("run", {"verb": "run", "run": 7}),
    "a run that is missing": ("run", {"verb": "cancel-run"}),
    "a decision": ("in_doubt", {"verb": "resume-run", "run": "k", "in_doubt": "maybe"}),
    "a provider": ("provider", {"verb": "use-fallback", "run": "k", "provider": "", "model": "m"}),
    "a model": ("model", {"verb": "use-fallback", "run": "k", "provider": "p", "model": "m" * 200}),
    "a reason": ("reason", {"verb": "cancel-run", "run": "k", "reason": "x" * 1_001}),
    "a requester": ("requester", {"verb": "cancel-run", "run": "k", "requester": 1}),
}


@pytest.mark.parametrize(("field", "fields"), MALFORMED.values(), ids=MALFORMED)
async def test_malformed_request_of_runs_is_refused_by_its_field_and_changes_nothing(
    state: Path, field: str, fields: dict[str, Any]
) -> None:
    async with open_runtime(state) as runtime:
        await suspended(runtime, Pages(FAR_MS))
        before = runtime.run("k")
        verb = fields["verb"]
        rest = {name: value for name, value in fields.items() if name != "verb"}
        (answer,) = await in_thread(asked, state, request(verb, **rest))
        assert not answer["ok"]
        assert answer["error"]["field"] == field
        assert runtime.run("k") == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "--all", "--state", "failed"),
        ("runs", "k", "--all"),
        ("runs", "--state", "late"),
        ("runs", "--after", "k@1"),
        ("resume", "k", "--in-doubt", "maybe"),
        ("resume", "k", "--result", "1"),
        ("resume", "k", "--in-doubt", "done", "--result", "{"),
        ("resume", "k", "--in-doubt", "done", "--result", "[NaN]"),
        ("fallback", "k", "--provider", "p"),
        ("fallback", "k", "--provider", "", "--model", "m"),
        ("cancel", "k", "--reason", "x" * 1_001),
        ("cancel",),
    ],
    ids=" ".join,
)
async def test_malformed_command_of_runs_is_refused_before_anybody_is_asked(
    state: Path, arguments: tuple[str, ...], capsys: Said
) -> None:
    verb, *rest = arguments
    assert await command(verb, str(state), *rest) in (1, 2)
    line = capsys.readouterr().err
    assert "store" not in line
    assert "in_doubt" not in line, "it is called --in-doubt there"
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("host", [True, False], ids=["host", "stopped"])
async def test_run_that_has_ended_shows_its_directory_and_each_number_of_its_result(
    state: Path, host: bool, capsys: Said
) -> None:
    nested: list[Any] = []
    deep = nested
    for _ in range(300):
        deep.append([])
        deep = deep[0]
    result = {"a": [float("nan"), 1.5, {"b": -float("inf")}], "c": float("inf"), "d": nested}

    async def makes(run: RunContext, _params: Any) -> Any:
        (run.folder / "made").write_text("x")
        return result

    async with open_runtime(state) as runtime:
        runtime.add_workflow("makes", makes)
        status = await (await runtime.start_run("k", "makes")).wait()
        assert status.state == "completed"
        assert status.folder is not None
        assert (state / status.folder / "made").read_text() == "x"
        if host:
            detail = await told(capsys, "runs", str(state), "k")
            (listed,) = (await told(capsys, "runs", str(state), "--all"))["runs"]
    if not host:
        detail = await told(capsys, "runs", str(state), "k")
        (listed,) = (await told(capsys, "runs", str(state), "--all"))["runs"]
    assert detail["run"]["folder"] == listed["folder"] == status.folder
    assert detail["result"]["a"] == ["NaN", 1.5, {"b": "-Infinity"}]
    assert detail["result"]["c"] == "Infinity"
    shutil.rmtree(state / status.folder)
    async with open_runtime(state, control=False) as runtime:
        assert runtime.run("k").folder is None, "a host may delete it"


async def test_take_over_of_a_run_that_no_other_process_owns_says_so(
    state: Path, capsys: Said
) -> None:
    async with open_runtime(state) as runtime:
        await suspended(runtime, Pages(FAR_MS))
        assert await command("take-over", str(state), "k") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said == (
        "k@1 is waiting for capacity; no other live process owns it, so nothing was taken."
    )


# -- a stopped store


@pytest.mark.behaviour("S-050")
@pytest.mark.parametrize("ends_ms", [FAR_MS, None], ids=["known", "unknown"])
async def test_run_that_is_resumed_in_a_stopped_store_is_taken_up_once_by_the_next_host(
    state: Path, ends_ms: int | None, capsys: Said
) -> None:
    await leave_suspended(state, ends_ms)
    assert await command("resume", str(state), "k") == 0
    said = capsys.readouterr().out
    assert "k@1 is resuming; the next host that has its workflow goes on" in said
    again = await told(capsys, "resume", str(state), "k")
    assert (again["state"], again["changed"]) == ("resuming", False)
    assert await command("runs", str(state)) == 0
    assert "Resuming \u00b7 goes on when a process that has" in capsys.readouterr().out
    pages = Pages()
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("pages", pages.body)
        status = await runtime.wait_run("k")
        assert (status.state, status.lives, status.result) == ("completed", 2, ["a!", "b!", "c!"])
        steps = runtime.run_history("k")
    assert [each.after for each in steps] == [
        "running",
        str(steps[1].after),
        "resuming",
        "running",
        "completed",
    ]
    assert steps[2].by.startswith("cli:")
    assert pages.done == ["b", "c"]


@pytest.mark.behaviour("S-052")
async def test_model_that_is_named_in_a_stopped_store_is_the_next_lifes(
    state: Path, capsys: Said
) -> None:
    await leave_suspended(state, None)
    arguments = ("fallback", str(state), "k", "--provider", "openai", "--model", "gpt")
    assert (await told(capsys, *arguments))["changed"]
    assert not (await told(capsys, *arguments))["changed"]
    pages = Pages()
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("pages", pages.body, fallbacks=[ModelChoice("openai", "gpt")])
        assert (await runtime.wait_run("k")).state == "completed"
    assert pages.choices == [ModelChoice("openai", "gpt")]


async def test_command_line_says_that_a_stopped_store_cannot_check_a_fallback_and_what_then_helps(
    state: Path, capsys: Said
) -> None:
    await leave_suspended(state, None)
    await command("fallback", str(state), "k", "--provider", "openai", "--model", "typo")
    said = " ".join(capsys.readouterr().out.split())
    assert "Whether it may use that model could not be checked here: the host does." in said
    await command("runs", str(state), "k")
    said = " ".join(capsys.readouterr().out.split())
    assert "k@1 pages v1 Resuming \u00b7 goes on when a process" in said, (
        "what it waited for is over"
    )
    async with open_runtime(state) as runtime:
        runtime.add_workflow("pages", Pages().body, fallbacks=[ModelChoice("openai", "gpt")])
        with runtime.events(kinds={"run_changed"}) as events:
            while runtime.run("k").state != "recovery_required":
                await anext(aiter(events))
        await command("runs", str(state), "k")
        said = " ".join(capsys.readouterr().out.split())
        assert "openai/typo, which was chosen for it, is none of the fallbacks" in said
        assert "once that is seen to: resume (as it is, without a decision), or cancel" in said
        assert "--in-doubt" not in said
        await command("fallback", str(state), "k", "--provider", "openai", "--model", "gpt")
        assert (await runtime.wait_run("k")).state == "completed"


@pytest.mark.behaviour("S-053")
async def test_run_that_is_cancelled_in_a_stopped_store_is_never_taken_up(
    state: Path, capsys: Said
) -> None:
    await leave_suspended(state)
    assert (await told(capsys, "cancel", str(state), "k"))["changed"]
    again = await told(capsys, "cancel", str(state), "k")
    assert (again["state"], again["changed"]) == ("cancelled", False)
    pages = Pages()
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("pages", pages.body)
        assert runtime.run("k").reason.startswith("cancelled by cli:")
        assert (await (await runtime.start_run("k", "pages")).wait()).id == "k@2"
        assert runtime.run("k@1").state == "cancelled"
    assert pages.done == ["a", "b", "c"]


async def test_run_of_another_version_that_was_resumed_in_a_stopped_store_needs_recovery(
    state: Path,
) -> None:
    await leave_suspended(state)
    store = StoppedStore(state, writing=True)
    assert store.resume_run("k").changed
    store.close()
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("pages", Pages().body, version=2)
        with runtime.events(kinds={"run_changed"}) as events:
            while runtime.run("k").state != "recovery_required":
                await anext(aiter(events))


async def test_store_of_a_quiesced_host_resumes_nothing_and_cancels(state: Path) -> None:
    await leave_suspended(state)
    store = StoppedStore(state, writing=True)
    store.quiesce("upgrade", 0)
    with pytest.raises(QuiescedError):
        store.resume_run("k")
    assert store.run("k").run.state == "waiting_for_capacity"
    assert store.cancel_run("k").changed
    store.close()


DIES_IN_AN_ITEM = """
import os, signal, sys, trio
from abeyance.actors import open_runtime

async def body(run, params):
    return [await run.do("a", lambda: "a!"), await run.do("b", die)]

async def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_runtime(sys.argv[1], control=False) as runtime:
        runtime.add_workflow("pages", body)
        await (await runtime.start_run("k", "pages")).wait()

trio.run(main)
"""


@pytest.mark.parametrize("decision", ["retry", "done"])
async def test_item_in_doubt_is_decided_in_a_stopped_store_and_only_with_a_decision(
    state: Path, decision: str, capsys: Said
) -> None:
    await in_thread(
        lambda: subprocess.run([sys.executable, "-c", DIES_IN_AN_ITEM, str(state)], check=False)
    )
    ran: list[str] = []

    async def body(run: RunContext, _params: Any) -> Any:
        return [await run.do(name, lambda name=name: ran.append(name)) for name in ("a", "b")]

    async with open_runtime(state) as runtime:
        runtime.add_workflow("pages", body)
        with runtime.events(kinds={"run_changed"}) as events:
            while runtime.run("k").state != "recovery_required":
                await anext(aiter(events))
        assert (await told(capsys, "resume", str(state), "k", code=1))["error"][
            "code"
        ] == "run_state"
        assert await command("runs", str(state)) == 0
        assert "decide: resume (--in-doubt retry, or done), or cancel" in capsys.readouterr().out
    refused = await told(capsys, "resume", str(state), "k", code=1)
    assert refused["error"]["code"] == "run_state"
    options = ["--in-doubt", decision, *(["--result", '"b?"'] if decision == "done" else [])]
    assert (await told(capsys, "resume", str(state), "k", *options))["changed"]
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("pages", body)
        status = await runtime.wait_run("k")
        assert status.state == "completed", status.reason
        assert status.result == ["a!", None if decision == "retry" else "b?"]
    assert ran == (["b"] if decision == "retry" else [])


OWNS_WITHOUT_A_SOCKET = """
import sys, trio
from abeyance.actors import open_runtime

async def body(run, params):
    with run.step("write"):
        await run.do("a", trio.sleep_forever)
        await run.do("b", trio.sleep_forever)

async def main():
    async with open_runtime(sys.argv[1], control=False) as runtime:
        runtime.add_workflow("pages", body)
        await runtime.start_run("other", "pages")
        if sys.argv[2:] == ["k"]:
            await runtime.resume_run("k", requester="ops")
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


def boot(state: Path, *arguments: str) -> subprocess.Popen[bytes]:
    host = subprocess.Popen(
        [sys.executable, "-c", OWNS_WITHOUT_A_SOCKET, str(state), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    return host


async def test_run_of_a_live_process_without_a_socket_is_left_to_it(
    state: Path, capsys: Said
) -> None:
    await leave_suspended(state)
    host = await in_thread(boot, state)
    with host:
        await command("runs", str(state))
        said = " ".join(capsys.readouterr().out.split())
        assert f"executed by process {host.pid} on" in said
        assert "Interrupted" not in said
        store = StoppedStore(state, writing=True)
        with pytest.raises(RunOwnedElsewhereError) as caught:
            store.cancel_run("other")
        assert caught.value.pid == host.pid
        assert not store.resume_run("other").changed
        store.close()
        host.kill()
        host.wait()
        await command("runs", str(state))
        said = " ".join(capsys.readouterr().out.split())
        assert "Interrupted \u00b7 goes on when a process that has its workflow finds it" in said
        assert "resumed by a host that has its workflow, then or as it starts" in said
        store = StoppedStore(state, writing=True)
        assert store.cancel_run("other").changed
        store.close()


async def test_act_on_a_stopped_store_is_judged_again_where_a_host_claims_the_run_meanwhile(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_suspended(state)
    hosts: list[subprocess.Popen[bytes]] = []
    judged = StoppedRuns._run_guard

    def boot_a_host_behind(self: StoppedRuns, run: Any, record: Any) -> Any:
        guard = judged(self, run, record)
        if not hosts:
            hosts.append(boot(state, "k"))
        return guard

    monkeypatch.setattr(StoppedRuns, "_run_guard", boot_a_host_behind)
    store = StoppedStore(state, writing=True)
    try:
        with pytest.raises(RunOwnedElsewhereError) as caught:
            await in_thread(store.cancel_run, "k")
        assert caught.value.pid == hosts[0].pid
        assert store.run("k").run.state in ("resuming", "running")
    finally:
        store.close()
        for host in hosts:
            with host:
                host.kill()


@pytest.mark.parametrize(
    ("field", "act"),
    [
        ("run", lambda store: store.resume_run(7)),
        ("in_doubt", lambda store: store.resume_run("k", in_doubt="maybe")),
        ("provider", lambda store: store.use_fallback("k", provider="", model="m")),
        ("reason", lambda store: store.cancel_run("k", reason=7)),
        ("state", lambda store: store.runs(state="late")),
        ("after", lambda store: store.runs(state=None, after="k")),
    ],
    ids=["run", "decision", "provider", "reason", "state", "page"],
)
async def test_malformed_act_on_a_stopped_store_is_refused_by_its_field(
    state: Path, field: str, act: Callable[[StoppedStore], Any]
) -> None:
    await leave_suspended(state)
    store = StoppedStore(state, writing=True)
    with pytest.raises(InvalidInputError) as caught:
        act(store)
    assert caught.value.field == field
    assert store.run("k").run.state == "waiting_for_capacity"
    store.close()


# -- several hosts


class Partial:
    """A host that refuses what a test says, and counts what it was asked."""

    def __init__(self, runtime: Runtime | None, refusal: Exception | None) -> None:
        self._runtime = runtime
        self._refusal = refusal
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def resume_run(self, run: str, **how: Any) -> Any:
        self.asked += 1
        if self._refusal is not None:
            raise self._refusal
        assert self._runtime is not None
        return await self._runtime.resume_run(run, **how)


@pytest.mark.parametrize(
    "refusal",
    [
        RunOwnedElsewhereError("another's", run="k@1", pid=1, host="h"),
        RunStateError("another version", run="k@1", state="waiting_for_capacity"),
    ],
    ids=lambda error: error.code,
)
async def test_act_goes_past_a_host_that_cannot_do_it_to_the_one_that_can(
    state: Path, serve_until_cancelled: Any, refusal: Exception
) -> None:
    pages = Pages(FAR_MS)
    async with open_runtime(state, control=False) as runtime, trio.open_nursery() as nursery:
        await suspended(runtime, pages)
        refusing, able = Partial(None, refusal), Partial(runtime, None)
        await nursery.start(serve_until_cancelled, refusing, state, "aa")
        await nursery.start(serve_until_cancelled, able, state, "bb")

        def ask() -> None:
            with ControlClient(state, timeout_s=5) as client:
                assert client.resume_run("k").changed

        await in_thread(ask)
        await runtime.wait_run("k")
        able._refusal = RunOwnedElsewhereError("another's", run="k@1", pid=1, host="h")

        def ask_in_vain() -> None:
            with ControlClient(state, timeout_s=5) as client:
                with pytest.raises(RefusedByHostError) as caught:
                    client.resume_run("k")
                assert caught.value.remote_code in ("run_state", "run_owned_elsewhere")

        await in_thread(ask_in_vain)
        nursery.cancel_scope.cancel()
    assert pages.done == ["a", "b", "c"]


@pytest.mark.behaviour("S-059")
async def test_run_whose_owner_does_not_answer_says_so_through_another_host_and_names_take_over(
    state: Path, serve_until_cancelled: Any, listening: Any, capsys: Said
) -> None:
    async with open_runtime(state, control=False) as runtime, trio.open_nursery() as nursery:
        await suspended(runtime, Pages(FAR_MS))
        refusal = RunOwnedElsewhereError(
            "another's; nothing was done; do it there, or take it over", run="k@1", pid=77, host="h"
        )
        await nursery.start(serve_until_cancelled, Partial(runtime, refusal), state, "aa")

        def ask() -> RunsReport:
            with (
                listening(state, pid=77, nonce="bb"),
                ControlClient(state, timeout_s=0.5) as client,
            ):
                with pytest.raises(HostSilentError, match="take it over") as caught:
                    client.resume_run("k")
                assert str(caught.value).count("nothing was done") == 1
                assert client.run("k").silent_pids == (77,)
                return client.runs()

        found = await in_thread(ask)
        nursery.cancel_scope.cancel()
    assert found.silent_pids == (77,)
    (run,) = (structs.replace(each, owner_pid=77, owner_host="h") for each in found.runs[:1])
    print_runs(shell.console(), structs.replace(found, runs=(run,)), filtered=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "owned by process 77 on h, which did not answer here; where it hangs" in said
    assert "take-over" in said
