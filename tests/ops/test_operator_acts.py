"""Every act that names who asks, at every door there is to it: validated alike, and asked of the
host's admin gate where it comes through the host's own API, blocking or not."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from abeyance.actors import (
    AgentSpec,
    HostedRuntime,
    ModelChoice,
    RunContext,
    Runtime,
    Tool,
    open_runtime,
)
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.errors import InvalidInputError, NotPermittedError
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.domain.requesters import OperatorAct
from abeyance.actors.ops import cli
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply

from .test_control import asked, in_thread, request
from .test_entries import Crashing, crash


class Act(NamedTuple):
    """One act: its name at the gate, whom it is of, and how it is asked for at each door."""

    agent: str
    api: Callable[[Runtime, Any], Awaitable[Any]]
    hosted: Callable[[HostedRuntime, Any], Any]
    socket: dict[str, Any] | None = None
    """The control request, where the socket has the act."""
    arguments: tuple[str, ...] | None = None
    """What the command line is called with, without the directory behind the verb."""


def queue() -> io.StringIO:
    """A file of one deferred message."""
    said = {"participant": "user", "content": [{"type": "text", "text": "x"}]}
    return io.StringIO(json.dumps({"format": "abeyance-deferred", "version": 1, "entries": [said]}))


async def _close(runtime: Runtime, by: Any) -> None:
    fork = await runtime.open_conversation("ana", channel="c")
    await fork.close(requester=by)


EDIT = 5
"""The number of the edit that `prepare` makes."""

ACTS: dict[str, Act] = {
    "release_provider_wait": Act(
        "ana",
        lambda runtime, by: runtime.release_provider_wait("ana", requester=by),
        lambda host, by: host.release_provider_wait("ana", requester=by),
        {"verb": "release", "agent": "ana"},
        ("release", "ana"),
    ),
    "cancel_turn": Act(
        "dee",
        lambda runtime, by: runtime.agent("dee").cancel_turn(requester=by),
        lambda host, by: host.agent("dee").cancel_turn(requester=by),
        {"verb": "cancel-turn", "agent": "dee"},
        ("cancel-turn", "dee"),
    ),
    "set_model": Act(
        "ana",
        lambda runtime, by: runtime.agent("ana").set_model("m2", requester=by),
        lambda host, by: host.agent("ana").set_model("m2", requester=by),
        {"verb": "set-model", "agent": "ana", "model": "m2"},
        ("set-model", "ana", "m2"),
    ),
    "approve": Act(
        "eli",
        lambda runtime, by: runtime.approve("eli/1/1/0", requester=by),
        lambda host, by: host.approve("eli/1/1/0", requester=by),
        {"verb": "decide", "approval": "eli/1/1/0", "verdict": "approve"},
        ("approve", "eli/1/1/0"),
    ),
    "deny": Act(
        "eli",
        lambda runtime, by: runtime.deny("eli/1/1/0", requester=by),
        lambda host, by: host.deny("eli/1/1/0", requester=by),
        {"verb": "decide", "approval": "eli/1/1/0", "verdict": "deny"},
        ("approve", "eli/1/1/0", "--deny"),
    ),
    "undo_rewind": Act(
        "ana",
        lambda runtime, by: runtime.agent("ana").undo_rewind(requester=by),
        lambda host, by: host.agent("ana").undo_rewind(requester=by),
        {"verb": "rewind", "agent": "ana", "undo": True},
        ("rewind", "ana", "--undo"),
    ),
    "rewind": Act(
        "ana",
        lambda runtime, by: runtime.agent("ana").rewind(to=0, requester=by),
        lambda host, by: host.agent("ana").rewind(to=0, requester=by),
        {"verb": "rewind", "agent": "ana", "to": 0},
        ("rewind", "ana", "--place", "0"),
    ),
    "edit": Act(
        "ana",
        lambda runtime, by: runtime.agent("ana").edit(2, "other", requester=by),
        lambda host, by: host.agent("ana").edit(2, "other", requester=by),
        {"verb": "edit", "agent": "ana", "message": 2, "blocks": "other"},
        ("edit", "ana", "--place", "2", "--text", "other"),
    ),
    "undo_edit": Act(
        "ana",
        lambda runtime, by: runtime.agent("ana").undo_edit(EDIT, requester=by),
        lambda host, by: host.agent("ana").undo_edit(EDIT, requester=by),
        {"verb": "edit", "agent": "ana", "undo": 5},
        ("edit", "ana", "--undo", "5"),
    ),
    "import_deferred": Act(
        "ana",
        lambda runtime, by: runtime.import_deferred(queue(), agent="ana", requester=by),
        lambda host, by: host.import_deferred(queue(), agent="ana", requester=by),
    ),
    "replay_dead_letter": Act(
        "gone",
        lambda runtime, by: runtime.replay_dead_letter(1, requester=by),
        lambda host, by: host.replay_dead_letter(1, requester=by),
        {"verb": "replay", "kind": "dead_letter", "id": 1},
        ("dead-letters", "--replay", "1"),
    ),
    "replay_quarantined": Act(
        "host",
        lambda runtime, by: runtime.replay_quarantined(1, requester=by),
        lambda host, by: host.replay_quarantined(1, requester=by),
        {"verb": "replay", "kind": "quarantine", "id": 1},
        ("quarantine", "--replay", "1"),
    ),
    "close": Act(
        "a fork of ana",
        _close,
        lambda host, by: host.open_conversation("ana", channel="c").close(requester=by),
    ),
    "resume_agent": Act(
        "ana",
        lambda runtime, by: runtime.resume_agent("ana", requester=by),
        lambda host, by: host.resume_agent("ana", requester=by),
    ),
    "start_run": Act(
        "new",
        lambda runtime, by: runtime.start_run("new", "walled", requester=by),
        lambda host, by: host.start_run("new", "walled", requester=by),
    ),
    "resume_run": Act(
        "k",
        lambda runtime, by: runtime.resume_run("k", requester=by),
        lambda host, by: host.resume_run("k", requester=by),
        {"verb": "resume-run", "run": "k"},
        ("resume", "k"),
    ),
    "use_fallback": Act(
        "k",
        lambda runtime, by: runtime.use_fallback("k", provider="p", model="m2", requester=by),
        lambda host, by: host.use_fallback("k", provider="p", model="m2", requester=by),
        {"verb": "use-fallback", "run": "k", "provider": "p", "model": "m2"},
        ("fallback", "k", "--provider", "p", "--model", "m2"),
    ),
    "take_over_run": Act(
        "k",
        lambda runtime, by: runtime.take_over_run("k", requester=by),
        lambda host, by: host.take_over_run("k", requester=by),
    ),
    "cancel_run": Act(
        "k",
        lambda runtime, by: runtime.cancel_run("k", requester=by),
        lambda host, by: host.cancel_run("k", requester=by),
        {"verb": "cancel-run", "run": "k"},
        ("cancel", "k"),
    ),
    "add_schedule": Act(
        "hourly",
        lambda runtime, by: runtime.add_schedule("hourly", "walled", every=3_600, requester=by),
        lambda host, by: host.add_schedule("hourly", "walled", every=3_600, requester=by),
    ),
    "pause_schedule": Act(
        "pulse",
        lambda runtime, by: runtime.pause_schedule("pulse", requester=by),
        lambda host, by: host.pause_schedule("pulse", requester=by),
        {"verb": "schedule-act", "schedule": "pulse", "act": "pause"},
        ("schedules", "pulse", "--pause"),
    ),
    "resume_schedule": Act(
        "still",
        lambda runtime, by: runtime.resume_schedule("still", requester=by),
        lambda host, by: host.resume_schedule("still", requester=by),
        {"verb": "schedule-act", "schedule": "still", "act": "resume"},
        ("schedules", "still", "--resume"),
    ),
    "remove_schedule": Act(
        "pulse",
        lambda runtime, by: runtime.remove_schedule("pulse", requester=by),
        lambda host, by: host.remove_schedule("pulse", requester=by),
        {"verb": "schedule-act", "schedule": "pulse", "act": "remove"},
        ("schedules", "pulse", "--remove"),
    ),
    "unpark": Act(
        "runs",
        lambda runtime, by: runtime.unpark("runs", requester=by),
        lambda host, by: host.unpark("runs", requester=by),
    ),
    "remove_agent": Act(
        "ana",
        lambda runtime, by: runtime.remove_agent("ana", requester=by),
        lambda host, by: host.remove_agent("ana", requester=by),
    ),
}


async def _walled(run: RunContext, _params: Any) -> None:
    await run.do("ask", _meet_a_wall)


async def _meet_a_wall() -> None:
    raise CapacityExhaustedError((Exhaustion(provider="p", model="m"),))


async def prepare(runtime: Runtime) -> None:
    """Something to do for each act: a wait, a rewound message, a fork, a message of each kind, a
    run that waits, and a schedule of each state."""
    provider = ScriptedProvider([reply("one"), reply("two")])
    ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
    for words in ("a", "b"):
        await ana.send(words)
        await ana.wait_idle()
    await ana.rewind(to=2, requester="setup")
    assert (await ana.edit(1, "edited", requester="setup")).edit == EDIT
    dee = await runtime.add_agent(
        AgentSpec(name="dee", provider=ScriptedProvider([fail(402)]), model="m")
    )
    await dee.send("go")
    await dee.wait_idle()
    pay = Tool("pay", "", {"type": "object"}, lambda: None, approve=True)
    script = [call_tool("pay"), reply("paid")]
    eli = await runtime.add_agent(
        AgentSpec(name="eli", provider=ScriptedProvider(script), model="m", tools=[pay])
    )
    await eli.send("go")
    await eli.wait_idle()
    await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
    await runtime.open_conversation("ana", channel="c")
    await crash(runtime, "one")
    runtime._system.start(Crashing, name="gone")
    runtime.add_workflow("walled", _walled, fallbacks=[ModelChoice("p", "m2")])
    with runtime.events(kinds={"run_changed"}) as events:
        await runtime.start_run("k", "walled", requester="setup")
        while not runtime.run("k").state.startswith("waiting"):
            await anext(aiter(events))
    for name in ("pulse", "still"):
        await runtime.add_schedule(name, "walled", every=86_400, requester="setup")
    await runtime.pause_schedule("still", requester="setup")


async def stands(runtime: Runtime) -> dict[str, Any]:
    """Whatever an act could have changed."""
    return {
        "waits": runtime.provider_waits(),
        "transcript": [each.text async for each in runtime.agent("ana").transcript()],
        "agents": sorted(runtime._members),
        "model": runtime.health()["ana"].model if "ana" in runtime._members else None,
        "approvals": [
            (row.record.state, row.record.by)  # type: ignore[union-attr]
            for _, row in runtime._store.scan("approvals")
        ],
        "turns": [row.record.state for _, row in runtime._store.scan("turns", ("dee",))],  # type: ignore[union-attr]
        "runs": {each.id: len(runtime.run_history(each.id)) for each in runtime.runs()},
        "schedules": {each.name: each.state for each in runtime.schedules()},
        "replays": [each.replays for each in (*runtime.dead_letters(), *runtime.quarantine())],
    }


class Gate:
    """A host's admin gate that remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[OperatorAct] = []

    def __call__(self, act: OperatorAct) -> bool:
        self.seen.append(act)
        return act.requester in ("api:setup", "api:ops")

    def asked(self) -> list[OperatorAct]:
        """What it was asked since the preparation."""
        return [act for act in self.seen if act.requester != "api:setup"]


def expected(verb: str, runtime: Runtime, by: str) -> OperatorAct:
    agent = ACTS[verb].agent
    if verb == "close":
        (agent,) = (name for name in runtime._members if name not in ("ana", "dee", "eli"))
    return OperatorAct(verb, agent, by)


BAD = ["", " \n\t", "api:", None, 7, ["ops"]]


@pytest.fixture(autouse=True)
def _mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crashing, "mended", set())


@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("verb", ACTS)
async def test_act_of_somebody_whom_the_gate_refuses_or_who_says_nothing_changes_nothing(
    state: Path, verb: str
) -> None:
    gate = Gate()
    async with open_runtime(state, admin=gate, control=False) as runtime:
        await prepare(runtime)
        before = await stands(runtime)
        for bad in BAD:
            with pytest.raises(InvalidInputError) as malformed:
                await ACTS[verb].api(runtime, bad)
            assert malformed.value.field == "requester"
        assert gate.asked() == []
        with pytest.raises(NotPermittedError) as caught:
            await ACTS[verb].api(runtime, "eve")
        assert gate.asked() == [expected(verb, runtime, "api:eve")]
        assert (caught.value.verb, caught.value.agent) == gate.asked()[0][:2]
        assert await stands(runtime) == before
        await ACTS[verb].api(runtime, "ops")
        assert gate.asked()[1:] == [gate.asked()[0]._replace(requester="api:ops")]


@pytest.mark.drawn(8)
@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("verb", ACTS)
def test_act_of_somebody_whom_the_gate_refuses_changes_nothing_under_threads(
    tmp_path: Path, verb: str
) -> None:
    gate = Gate()
    with HostedRuntime(tmp_path / "state", admin=gate, control=False) as host:
        host._call(prepare, True)
        before = host._call(stands, True)
        for bad in BAD:
            with pytest.raises(InvalidInputError) as malformed:
                ACTS[verb].hosted(host, bad)
            assert malformed.value.field == "requester"
        with pytest.raises(NotPermittedError):
            ACTS[verb].hosted(host, "eve")
        assert gate.asked() == [expected(verb, host.runtime, "api:eve")]
        assert host._call(stands, True) == before
        ACTS[verb].hosted(host, "ops")
        assert [act.requester for act in gate.asked()] == ["api:eve", "api:ops"]


@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("verb", [verb for verb, act in ACTS.items() if act.socket is not None])
async def test_act_at_the_socket_is_recorded_as_its_own_and_not_asked_of_the_hosts_gate(
    state: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, act = Gate(), ACTS[verb]
    assert act.socket is not None
    assert act.arguments is not None
    async with open_runtime(state, admin=gate) as runtime:
        await prepare(runtime)
        before = await stands(runtime)
        fields = {name: value for name, value in act.socket.items() if name != "verb"}
        for bad in (None, 7, ["ops"], {}):
            line = request(act.socket["verb"], **fields, requester=bad)
            (answer,) = await in_thread(asked, state, line)
            assert not answer["ok"]
            assert answer["error"]["field"] == "requester"
        assert await stands(runtime) == before
        line = request(act.socket["verb"], **fields, requester="eve\n[admin] forged")
        (answer,) = await in_thread(asked, state, line)
        assert answer["ok"], answer
        assert await stands(runtime) != before
        assert gate.asked() == []
        told = [row.record.text for _, row in runtime._store.scan("log")]  # type: ignore[union-attr]
        assert any("by cli:eve [admin] forged" in line for line in told)


@pytest.mark.drawn(6)
@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("verb", [verb for verb, act in ACTS.items() if act.arguments is not None])
async def test_act_by_the_command_line_is_recorded_with_the_users_name(
    state: Path, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGNAME", "eve\x1b[0m")
    gate, act = Gate(), ACTS[verb]
    assert act.arguments is not None
    async with open_runtime(state, admin=gate) as runtime:
        await prepare(runtime)
        before = await stands(runtime)
        command, *rest = act.arguments
        code = await trio.to_thread.run_sync(cli.main, (command, str(state), *rest, "--json"))
        out = capsys.readouterr()
        assert code == 0, out.err
        json.loads(out.out)
        assert await stands(runtime) != before
        assert gate.asked() == []
        told = [row.record.text for _, row in runtime._store.scan("log")]  # type: ignore[union-attr]
        assert any("by cli:eve" in line for line in told)
        assert not any("\x1b" in line for line in told)


async def test_act_that_is_malformed_otherwise_is_told_so_whoever_asks(state: Path) -> None:
    gate = Gate()
    async with open_runtime(state, admin=gate, control=False) as runtime:
        for malformed in (
            lambda: runtime.release_provider_wait("*", requester="eve"),
            lambda: runtime.remove_agent("nobody", requester="eve"),
            lambda: runtime.resume_agent("nobody", requester="eve"),
            lambda: runtime.replay_dead_letter(-1, requester="eve"),
            lambda: runtime.replay_quarantined(9, requester="eve"),
        ):
            with pytest.raises(AbeyanceError) as caught:
                await malformed()
            assert not isinstance(caught.value, NotPermittedError)
        assert gate.seen == []
