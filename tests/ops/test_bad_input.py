"""What is malformed or names nothing that is there: one table, refused alike by the API, by HTTP
and by the command line, of a running host and of a stopped store; nothing is changed by it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import trio

from abeyance.actors import HttpApi, Runtime, open_runtime
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.ops import cli
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.storage.tables import TABLES

from .test_operator_acts import Crashing, prepare, stands

TOKEN = "the-admins-own-token"


class Bad(NamedTuple):
    """One thing that nobody may ask for, at each door."""

    code: str
    field: str | None
    status: int
    api: Callable[[Runtime], Awaitable[Any]]
    verb: str
    fields: dict[str, Any]
    arguments: tuple[str, ...]
    """Of the command line, without the directory behind the verb."""


def looked(call: Callable[[Runtime], Any]) -> Callable[[Runtime], Awaitable[Any]]:
    async def look(runtime: Runtime) -> Any:
        return call(runtime)

    return look


def _said(char: str) -> dict[str, Bad]:
    words = f"a{char}b"
    line = repr(char)
    return {
        f"note of an approval with {line}": Bad(
            "invalid_input", "note", 422,
            lambda r: r.approve("eli/1/1/0", requester="ops", note=words),
            "decide", {"approval": "eli/1/1/0", "verdict": "approve", "note": words},
            ("approve", "eli/1/1/0", "--note", words),
        ),
        f"note of a denial with {line}": Bad(
            "invalid_input", "note", 422,
            lambda r: r.deny("eli/1/1/0", requester="ops", note=words),
            "decide", {"approval": "eli/1/1/0", "verdict": "deny", "note": words},
            ("approve", "eli/1/1/0", "--deny", "--note", words),
        ),
        f"reason to quiesce with {line}": Bad(
            "invalid_input", "reason", 422,
            lambda r: r.quiesce(words, requester="ops"),
            "quiesce", {"reason": words}, ("quiesce", "--reason", words),
        ),
        f"reason of a cancel with {line}": Bad(
            "invalid_run", "reason", 422,
            lambda r: r.cancel_run("k", requester="ops", reason=words),
            "cancel-run", {"run": "k", "reason": words}, ("cancel", "k", "--reason", words),
        ),
    }  # fmt: skip


UNKNOWN = {
    "waits of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.provider_waits("nobody")),
        "waits", {"agent": "nobody"}, ("waits", "--agent", "nobody"),
    ),
    "usage of nobody": Bad(
        "unknown_agent", None, 404, lambda r: r.usage("nobody"),
        "usage", {"agent": "nobody"}, ("usage", "nobody"),
    ),
    "approvals of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.approvals("nobody")),
        "approvals", {"agent": "nobody"}, ("approve", "--agent", "nobody"),
    ),
    "inbox of nobody": Bad(
        "unknown_agent", None, 404, lambda r: r.inbox("nobody"),
        "inbox", {"agent": "nobody"}, ("inbox", "--agent", "nobody"),
    ),
    "edits of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.agent("nobody")),
        "edits", {"agent": "nobody"}, ("edits", "nobody"),
    ),
    "release of nobody": Bad(
        "unknown_agent", None, 404, lambda r: r.release_provider_wait("nobody", requester="ops"),
        "release", {"agent": "nobody"}, ("release", "nobody"),
    ),
    "cancel of nobody's turn": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.agent("nobody")),
        "cancel-turn", {"agent": "nobody"}, ("cancel-turn", "nobody"),
    ),
    "model of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.agent("nobody")),
        "set-model", {"agent": "nobody", "model": "m"}, ("set-model", "nobody", "m"),
    ),
    "rewind of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.agent("nobody")),
        "rewind", {"agent": "nobody", "to": 0}, ("rewind", "nobody", "--place", "0"),
    ),
    "edit of nobody": Bad(
        "unknown_agent", None, 404, looked(lambda r: r.agent("nobody")),
        "edit", {"agent": "nobody", "message": 1, "blocks": "x"},
        ("edit", "nobody", "--place", "1", "--text", "x"),
    ),
    "unpark of nobody": Bad(
        "unknown_agent", None, 404, lambda r: r.resume_agent("nobody", requester="ops"),
        "unpark", {"agent": "nobody"}, ("unpark", "--agent", "nobody"),
    ),
    "decision on no call": Bad(
        "unknown_approval", None, 404, lambda r: r.approve("nobody/1/1/0", requester="ops"),
        "decide", {"approval": "nobody/1/1/0", "verdict": "approve"}, ("approve", "nobody/1/1/0"),
    ),
    "replay of no message": Bad(
        "unknown_entry", None, 404, lambda r: r.replay_quarantined(99, requester="ops"),
        "replay", {"kind": "quarantine", "id": 99}, ("quarantine", "--replay", "99"),
    ),
    "replay of no dead letter": Bad(
        "unknown_entry", None, 404, lambda r: r.replay_dead_letter(99, requester="ops"),
        "replay", {"kind": "dead_letter", "id": 99}, ("dead-letters", "--replay", "99"),
    ),
    "take-over of no run": Bad(
        "unknown_run", None, 404, lambda r: r.take_over_run("nosuch", requester="ops"),
        "take-over-run", {"run": "nosuch"}, ("take-over", "nosuch"),
    ),
    "resume of no run": Bad(
        "unknown_run", None, 404, lambda r: r.resume_run("nosuch", requester="ops"),
        "resume-run", {"run": "nosuch"}, ("resume", "nosuch"),
    ),
    "cancel of no run": Bad(
        "unknown_run", None, 404, lambda r: r.cancel_run("nosuch", requester="ops"),
        "cancel-run", {"run": "nosuch"}, ("cancel", "nosuch"),
    ),
    "schedule that is not there": Bad(
        "unknown_schedule", None, 404, lambda r: r.pause_schedule("nosuch", requester="ops"),
        "schedule-act", {"schedule": "nosuch", "act": "pause"}, ("schedules", "nosuch", "--pause"),
    ),
}  # fmt: skip
OF_OPENINGS = {"meta", "processes"}
"""Tables that each opening for writing changes."""
LOOKS = {"waits", "usage", "approvals", "inbox", "edits"}
TABLE = {
    **_said("\n"),
    **dict(pair for char in "\x07\u2028\u202e" for pair in list(_said(char).items())[:1]),
    **UNKNOWN,
}


@pytest.fixture(autouse=True)
def _mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crashing, "mended", set())


async def _by_command_line(
    state: Path, bad: Bad, capsys: pytest.CaptureFixture[str]
) -> tuple[str, str | None]:
    verb, *rest = bad.arguments
    capsys.readouterr()
    code = await trio.to_thread.run_sync(cli.main, (verb, str(state), *rest, "--json"))
    out = capsys.readouterr().out
    assert code == 1, out
    error = json.loads(out)["error"]
    return error["code"], error["field"]


@pytest.mark.behaviour("W-104")
async def test_what_is_malformed_or_not_there_is_refused_alike_at_every_door_of_a_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, http=HttpApi(port=0, admin_token=TOKEN)) as runtime:
        await prepare(runtime)
        before = await stands(runtime)
        rows = len(list(runtime._store.scan("log")))
        assert runtime.http_url is not None
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=runtime.http_url, headers=headers) as client:
            for name, bad in TABLE.items():
                with pytest.raises(AbeyanceError) as caught:
                    await bad.api(runtime)
                found = caught.value.code, getattr(caught.value, "field", None)
                assert found == (bad.code, bad.field), name
                if bad.verb in LOOKS:
                    answer = await client.get(f"/v1/{bad.verb}", params=bad.fields)
                else:
                    answer = await client.post(f"/v1/{bad.verb}", json=bad.fields)
                error = answer.json().get("error", {})
                found = answer.status_code, error.get("code"), error.get("field")
                assert found == (bad.status, bad.code, bad.field), name
                said = await _by_command_line(state, bad, capsys)
                assert said == (bad.code, bad.field), name
        assert await stands(runtime) == before
        assert len(list(runtime._store.scan("log"))) == rows
        assert runtime.status().mode.state == "serving"


@pytest.mark.behaviour("W-104")
async def test_what_is_malformed_or_not_there_is_refused_alike_of_a_stopped_store(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await prepare(runtime)

    def rows() -> dict[str, list[Any]]:
        stopped = StoppedStore(state)
        try:
            return {
                table: [(key, repr(row)) for key, row in stopped.store.scan(table)]
                for table in TABLES.keys() - OF_OPENINGS
            }
        finally:
            stopped.close()

    before = rows()
    for name, bad in TABLE.items():
        assert await _by_command_line(state, bad, capsys) == (bad.code, bad.field), name
    assert rows() == before


@pytest.mark.behaviour("W-104")
async def test_agent_that_is_there_and_has_nothing_is_no_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await prepare(runtime)
        assert runtime.provider_waits("eli") == ()
        assert runtime.approvals("ana") == ()
        assert (await runtime.usage("dee", runtime.clock.now_ms())).lines == ()
    stopped = StoppedStore(state)
    try:
        assert stopped.waits("eli") == ()
        assert stopped.approvals("ana") == ()
        assert stopped.usage("dee", 4_000_000_000_000).lines == ()
    finally:
        stopped.close()
