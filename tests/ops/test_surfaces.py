"""One rule at every door: releases, rewinds and listings by the API, under threads, by the socket,
by HTTP and on a stopped store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from msgspec import structs

from abeyance.actors import AgentSpec, HostedRuntime, HttpApi, Runtime, open_runtime
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.errors import NotPermittedError
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.domain.requesters import OperatorAct
from abeyance.actors.ops import cli
from abeyance.actors.ops.address import host_sockets
from abeyance.actors.ops.stopped import NeedsHostError, StoppedStore
from abeyance.actors.testing import ScriptedProvider, WallClock, fail, reply

from .test_control import _with_client, asked, in_thread, request

HOUR_MS = 3_600_000
ABSENT: Any = ...


class Door:
    """A way in: how a request is made there, and what it came to in one shape."""

    def __init__(self, runtime: Runtime, state: Path) -> None:
        self.runtime = runtime
        self.state = state

    async def release(self, agent: Any, model: Any, requester: str = "ops") -> list[str] | str:
        """The models released, or the refused field or code."""
        raise NotImplementedError

    async def waits(self, agent: Any) -> list[str] | str:
        raise NotImplementedError


class Api(Door):
    async def release(self, agent: Any, model: Any, requester: str = "ops") -> list[str] | str:
        how = {} if model is ABSENT else {"model": model}
        try:
            receipt = await self.runtime.release_provider_wait(agent, requester=requester, **how)
        except AbeyanceError as error:
            return getattr(error, "field", error.code)
        return [item.model for item in receipt.released]

    async def waits(self, agent: Any) -> list[str] | str:
        try:
            return [wait.model for wait in self.runtime.provider_waits(agent)]
        except AbeyanceError as error:
            return getattr(error, "field", error.code)


class Socket(Door):
    async def _ask(self, line: dict[str, Any]) -> Any:
        (answer,) = await in_thread(asked, self.state, line)
        return answer

    async def release(self, agent: Any, model: Any, requester: str = "ops") -> list[str] | str:
        fields = {} if model is ABSENT else {"model": model}
        answer = await self._ask(request("release", agent=agent, requester=requester, **fields))
        if not answer["ok"]:
            return answer["error"].get("field") or answer["error"]["code"]
        return [item["model"] for item in answer["result"]["released"]]

    async def waits(self, agent: Any) -> list[str] | str:
        answer = await self._ask(request("waits", agent=agent))
        if not answer["ok"]:
            return answer["error"].get("field") or answer["error"]["code"]
        return [item["model"] for item in answer["result"]["waits"]]


class Http(Door):
    async def _ask(self, method: str, verb: str, **how: Any) -> httpx2.Response:
        assert self.runtime.http_url is not None
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=self.runtime.http_url, headers=headers) as client:
            return await client.request(method, f"/v1/{verb}", **how)

    async def release(self, agent: Any, model: Any, requester: str = "ops") -> list[str] | str:
        fields = {} if model is ABSENT else {"model": model}
        body = {"agent": agent, "requester": requester, **fields}
        answer = await self._ask("POST", "release", json=body)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert answer.status_code == (422 if error["field"] else 404)
            return error["field"] or error["code"]
        return [item["model"] for item in answer.json()["released"]]

    async def waits(self, agent: Any) -> list[str] | str:
        answer = await self._ask("GET", "waits", params={"agent": agent})
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert answer.status_code == (422 if error["field"] else 404)
            return error["field"] or error["code"]
        return [item["model"] for item in answer.json()["waits"]]


DOORS = [Api, Socket, Http]
TOKEN = "the-admins-own-token"


@asynccontextmanager
async def opened(state: Path, door: type[Door]) -> AsyncIterator[Door]:
    http = HttpApi(port=0, admin_token=TOKEN) if door is Http else None
    async with open_runtime(state, http=http) as runtime:
        for name in ("ana", "bo"):
            provider = ScriptedProvider([])
            await runtime.add_agent(AgentSpec(name=name, provider=provider, model="m1"))
        for key in (("ana", "m1"), ("ana", "m2"), ("bo", "m1"), ("gone", "m1")):
            deadline_ms = runtime.clock.now_ms() + HOUR_MS
            await runtime._ledger.ask(RecordWait(*key, deadline_ms, "slow down"))
        yield door(runtime, state)


def log(runtime: Runtime) -> list[tuple[str, str, str]]:
    found = []
    for _, row in runtime._store.scan("log"):
        record: Any = row.record  # type: ignore[union-attr]
        if record.event == "wait_released":
            found.append((record.agent, record.model, record.text))
    return found


@pytest.mark.behaviour("W-104", "W-105", "W-106", "W-107", "W-108", "W-116")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("agent", "model", "outcome"),
    [
        ("ana", ABSENT, ["m1", "m2"]),
        ("ana", "*", ["m1", "m2"]),
        ("ana", "m1", ["m1"]),
        ("ana", "m3", []),
        ("gone", ABSENT, ["m1"]),
        ("gone", "m1", ["m1"]),
        *(("ana", model, "model") for model in ("", 42, 1.5, [], ["m1"], {}, {"m1": 1}, True)),
        ("ana", None, "model"),
        *(("ana", f"m{char}1", "model") for char in "\n\x00\x1f\x7f\x85\x9b\u2028\u2029"),
        ("ana", "two\nlines", "model"),
        ("ana", "m" * 129, "model"),
        *((agent, "m1", "agent") for agent in ("*", "framework", "", None, 7, [], {})),
        ("nobody", ABSENT, "unknown_agent"),
    ],
    ids=repr,
)
async def test_release_is_refused_or_done_alike_at_every_door(
    state: Path, door: type[Door], agent: Any, model: Any, outcome: Any
) -> None:
    async with opened(state, door) as way:
        before = way.runtime.provider_waits()
        assert await way.release(agent, model) == outcome
        lifted = outcome if isinstance(outcome, list) else []
        assert [(wait.agent, wait.model) for wait in way.runtime.provider_waits()] == [
            (wait.agent, wait.model)
            for wait in before
            if not (wait.agent == agent and wait.model in lifted)
        ]
        assert [key[:2] for key in log(way.runtime)] == [(agent, each) for each in lifted]


@pytest.mark.behaviour("W-115")
@pytest.mark.parametrize(
    ("door", "prefix"),
    [(Api, "api:"), (Socket, "cli:"), (Http, "http:")],
    ids=["api", "socket", "http"],
)
@pytest.mark.parametrize(
    ("requester", "kept"),
    [
        ("ops", "ops"),
        ("ops\n[admin] released \u2028x\x85\x1b[0m", "ops [admin] released  x  [0m"),
        ("x" * 10_000, "x" * 199 + "\N{HORIZONTAL ELLIPSIS}"),
        ("api:ops", None),
        ("cli:root", None),
        ("http:web", None),
    ],
    ids=["plain", "lines", "long", "says api", "says cli", "says http"],
)
async def test_requester_is_one_bounded_line_behind_the_name_of_its_own_door(
    state: Path, door: type[Door], prefix: str, requester: str, kept: str | None
) -> None:
    async with opened(state, door) as way:
        assert await way.release("bo", ABSENT, requester) == ["m1"]
        ((_, _, text),) = log(way.runtime)
    assert text.startswith(f"by {prefix}")
    if kept is None:
        kept = requester.removeprefix(prefix)
    assert text == f"by {prefix}{kept}"
    assert len(text) < 220


@pytest.mark.behaviour("W-115")
@pytest.mark.parametrize("requester", ["", " \n\t", None, 7, ["ops"]], ids=repr)
async def test_requester_that_says_nothing_is_refused_by_the_api(
    state: Path, requester: Any
) -> None:
    async with opened(state, Api) as way:
        assert await way.release("bo", ABSENT, requester) == "requester"
        assert log(way.runtime) == []


CLAIMS: list[dict[str, Any]] = [
    {"requester": "cli:eve"},
    {"requester": "http:eve"},
    {"requester": "eve", "door": "cli"},
    {"requester": "eve", "door": "http"},
]


@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
async def test_no_caller_of_the_api_can_claim_that_it_came_by_another_door(
    state: Path, claim: dict[str, Any]
) -> None:
    asked: list[OperatorAct] = []

    def refuses(act: OperatorAct) -> bool:
        asked.append(act)
        return False

    async with open_runtime(state, admin=refuses) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        )
        await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
        acts: list[Callable[..., Awaitable[Any]]] = [
            partial(runtime.release_provider_wait, "ana"),
            partial(ana.rewind, 0),
            partial(ana.set_model, "m9"),
        ]
        for act in acts:
            with pytest.raises(TypeError if "door" in claim else NotPermittedError):
                await act(**claim)
        assert [wait.model for wait in runtime.provider_waits()] == ["m"]
        assert log(runtime) == []
        told = [] if "door" in claim else [f"api:{claim['requester']}"] * len(acts)
        assert [each.requester for each in asked] == told


@pytest.mark.behaviour("W-119", "W-120")
@pytest.mark.parametrize(
    ("door", "agent"),
    [
        (door, agent)
        for agent in (42, "", "*", "framework", [], {}, True, "a\nb")
        for door in DOORS
        if door is not Http or isinstance(agent, str)  # A query is all text.
    ],
    ids=repr,
)
async def test_listing_refuses_a_malformed_filter_at_every_door(
    state: Path, door: type[Door], agent: Any
) -> None:
    async with opened(state, door) as way:
        assert await way.waits(agent) == "agent"
        assert await way.waits("ana") == ["m1", "m2"]
        assert await way.waits("nobody") == "unknown_agent"


# -- the admin gate ----------------------------------------------------------------------------


@pytest.mark.behaviour("W-118")
@pytest.mark.parametrize("answer", [False, None, 1, "yes", KeyError("gate")], ids=repr)
async def test_act_that_the_hosts_gate_lets_not_pass_is_refused_and_the_socket_has_its_own(
    state: Path, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[OperatorAct] = []

    def admin(act: OperatorAct) -> bool:
        seen.append(act)
        if isinstance(answer, Exception):
            raise answer
        allowed: bool = answer
        return allowed

    async with open_runtime(state, admin=admin) as runtime:
        spec = AgentSpec(name="ana", provider=ScriptedProvider([reply("one")]), model="m")
        ana = await runtime.add_agent(spec)
        await ana.send("a")
        await ana.wait_idle()
        await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
        for act in (
            lambda: runtime.release_provider_wait("ana", requester="eve"),
            lambda: ana.rewind(to=0, requester="eve"),
            lambda: ana.undo_rewind(requester="eve"),
        ):
            with pytest.raises(NotPermittedError) as caught:
                await act()
            assert caught.value.agent == "ana"
        assert [wait.model for wait in runtime.provider_waits()] == ["m"]
        assert len([message async for message in ana.transcript()]) == 2
        assert seen == [
            OperatorAct(verb, "ana", "api:eve")
            for verb in ("release_provider_wait", "rewind", "undo_rewind")
        ]
        assert await Socket(runtime, state).release("ana", ABSENT) == ["m"]
        (at,) = host_sockets(state)
        assert at.path(state).stat().st_mode & 0o777 == 0o600
        assert len(seen) == 3


async def test_act_that_the_hosts_gate_lets_pass_is_done(state: Path) -> None:
    async with open_runtime(state, admin=lambda act: act.requester == "api:ops") as runtime:
        await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
        with pytest.raises(NotPermittedError):
            await runtime.release_provider_wait("ana", requester="eve")
        receipt = await runtime.release_provider_wait("ana", requester="ops")
        assert [item.reach for item in receipt.released] == ["recorded"]


# -- health ------------------------------------------------------------------------------------


@pytest.mark.behaviour("W-121")
async def test_health_status_socket_and_stopped_store_show_the_same_binding_waits(
    state: Path,
) -> None:
    async with open_runtime(state) as runtime:
        provider = ScriptedProvider([fail(429, retry_after=7_200)])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        bo = AgentSpec(name="bo", provider=ScriptedProvider([]), model="m")
        await runtime.add_agent(bo)
        await ana.send("hi")
        await ana.wait_idle()
        health = runtime.health()
        assert [wait.model for wait in health["ana"].admission.waits] == ["m"]
        held = health["ana"].held
        assert held is not None
        assert held.cause == "wait"
        assert held.deadline_ms == health["ana"].admission.waits[0].deadline_ms
        assert (health["ana"].can_call, health["bo"].can_call) == (False, True)
        assert health["bo"].admission.waits == ()
        assert (health["ana"].admission.pending, health["ana"].admission.calls) == (0, 0)
        live = await in_thread(_with_client, state, lambda client: client.status())
    stopped = StoppedStore(state)
    try:
        dead = stopped.status()
    finally:
        stopped.close()
    for report in (live, dead):
        shown = {agent.name: agent.admission for agent in report.agents}
        assert shown["ana"] is not None
        assert [structs.astuple(wait) for wait in shown["ana"].waits] == [
            tuple(wait) for wait in health["ana"].admission.waits
        ]
        assert shown["bo"] is not None
        assert shown["bo"].waits == ()


async def test_every_door_counts_the_dead_letters_that_are_stored_and_listed(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        # One that a slot makes, and of the kernel's own none.
        spec = AgentSpec(name="bo", provider=ScriptedProvider([fail(400)]), model="m")
        bo = await runtime.add_agent(spec)
        await bo.send("hi")
        await bo.wait_idle()
        await runtime.quiesce("upgrade", requester="ops")
        await bo.send("again")
        await runtime.remove_agent("bo", requester="ops")
        assert runtime._system.dead_letters.total == 0
        stored = len(runtime.dead_letters())
        assert stored == runtime.status().dead_letters == 1
    async with open_runtime(state, http=HttpApi(port=0)) as runtime:
        # Made before this process was there.
        live = await in_thread(_with_client, state, lambda client: client.status())
        printed = await in_thread(cli.main, ["status", str(state)])
        assert "1 dead letters, 0 in quarantine." in capsys.readouterr().out
        assert runtime.http_url is not None
        async with httpx2.AsyncClient(base_url=runtime.http_url) as client:
            shown = (await client.get("/v1/status")).json()
            scraped = {
                line.partition("{")[0]: float(line.rpartition(" ")[2])
                for line in (await client.get("/metrics")).text.splitlines()
                if line.startswith("abeyance_stored_")
            }
        told = runtime.status()
    stopped = StoppedStore(state)
    try:
        dead = stopped.status()
    finally:
        stopped.close()
    assert [told.dead_letters, live.dead_letters, dead.dead_letters] == [1, 1, 1]
    assert (shown["dead_letters"], printed) == (1, 0)
    assert [told.quarantine, live.quarantine, dead.quarantine, shown["quarantine"]] == [0] * 4
    assert scraped == {
        "abeyance_stored_dead_letters": 1.0,
        "abeyance_stored_quarantined_messages": 0.0,
    }


@pytest.mark.behaviour("W-121")
def test_health_is_had_under_threads(tmp_path: Path) -> None:
    clock = WallClock()
    with HostedRuntime(tmp_path / "state", control=False, clock=clock) as host:
        spec = AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        host.add_agent(spec)
        assert host.health()["ana"].admission.pending == 0
        assert host.health()["ana"].can_call


# -- rewinds -----------------------------------------------------------------------------------


async def spoken(runtime: Runtime) -> Any:
    provider = ScriptedProvider([reply("one"), reply("two")])
    ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
    for words in ("a", "b"):
        await ana.send(words, id=f"id-{words}")
        await ana.wait_idle()
    return ana


async def texts(ana: Any) -> list[str]:
    return [message.text async for message in ana.transcript()]


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


async def test_rewind_by_the_command_line_is_done_by_the_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        assert await run("rewind", str(state), "ana", "--to", "id-a") == 0
        assert capsys.readouterr().out == "ana: places 2 to 4 taken out, and kept for 7 days\n"
        assert await texts(ana) == ["a"]
        assert await run("rewind", str(state), "ana", "--undo", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"first": 2, "last": 4}
        assert await run("rewind", str(state), "ana", "--place", "0") == 0
        assert await texts(ana) == []
        assert await run("rewind", str(state), "ana", "--place", "0") == 0
        assert "nothing was behind it" in capsys.readouterr().out
        lines = [
            row.record.text  # type: ignore[union-attr]
            for _, row in runtime._store.scan("log")
            if row.record.event in ("slot_rewound", "rewind_undone")  # type: ignore[union-attr]
        ]
        assert len(lines) == 3
        assert all(" by cli:" in line for line in lines)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "to"),
        ({"to": 1, "undo": True}, "to"),
        *(({"to": to}, "to") for to in ("", None, -1, 1.5, [], "a\nb", "x" * 129)),
        ({"agent": "*", "to": 1}, "agent"),
        ({"to": "nobody"}, None),
        ({"to": 9}, None),
        ({"agent": "cy", "to": 1}, None),
    ],
    ids=repr,
)
async def test_malformed_rewind_is_refused_at_the_socket(
    state: Path, fields: dict[str, Any], field: str | None
) -> None:
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        (answer,) = await in_thread(asked, state, request("rewind", **{"agent": "ana", **fields}))
        assert not answer["ok"]
        assert answer["error"].get("field") == field
        assert len(await texts(ana)) == 4


@pytest.mark.parametrize(
    "arguments", [(), ("--undo", "--to", "x"), ("--to", ""), ("--place", "-1")], ids=repr
)
async def test_malformed_rewind_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    assert await run("rewind", str(state), "ana", *arguments) in (1, 2)


async def test_rewind_of_a_stopped_store_needs_its_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        await spoken(runtime)
    assert await run("rewind", str(state), "ana", "--undo") == 1
    assert "start the host" in capsys.readouterr().err
    stopped = StoppedStore(state)
    try:
        with pytest.raises(NeedsHostError):
            stopped.rewind("ana", 1)
    finally:
        stopped.close()


def test_rewind_under_threads(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider([reply("one")])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        ana.send("a", id="x")
        ana.wait_idle()
        assert ana.rewind(to="x", requester="ops").last == 2
        assert [message.text for message in ana.rewound()] == ["one"]
        assert ana.undo_rewind(requester="ops", block=False).get().last == 2
        assert [message.text for message in ana.transcript()] == ["a", "one"]


# -- names -------------------------------------------------------------------------------------


@pytest.mark.behaviour("X-008")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "*"}, "name"),
        ({"name": "framework"}, "name"),
        ({"name": "Framework"}, "name"),
        ({"name": "\uff0a"}, "name"),
        ({"model": "*"}, "model"),
        ({"model": "\uff0a"}, "model"),
    ],
    ids=repr,
)
async def test_reserved_names_are_refused_at_registration(
    state: Path, fields: dict[str, str], field: str
) -> None:
    async with open_runtime(state, control=False) as runtime:
        named = {"name": "ana", "model": "m", **fields}
        with pytest.raises(AbeyanceError) as caught:
            await runtime.add_agent(AgentSpec(provider=ScriptedProvider([]), **named))
        assert caught.value.field == field  # type: ignore[attr-defined]
        assert runtime.status().agents == ()
        assert [row for _, row in runtime._store.scan("agents")] == []
        # What is reserved of agents only is a model's name like any other.
        spec = AgentSpec(name="ana", model="framework", provider=ScriptedProvider([]))
        await runtime.add_agent(spec)
        assert [agent.model for agent in runtime.status().agents] == ["framework"]
