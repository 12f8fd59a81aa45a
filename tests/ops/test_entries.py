"""Dead letters and quarantine for an operator: through a host's socket, on a stopped store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import HostedRuntime, Runtime, TrioActor, open_runtime
from abeyance.actors.core import ReplaysExceededError
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient, RefusedByHostError
from abeyance.actors.ops.requests import PROTOCOL
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Append, Request
from abeyance.storage.tables.kept import DeadLetter

from .test_control import asked, in_thread, request
from .test_stopped import listing

HOSTILE = "\x1b]0;owned\x07\x9b31m\u2028two"


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour, UTC."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


class Crashing(TrioActor):
    """Crashes on text, keeps the rest."""

    mended: set[str] = set()
    seen: list[Any] = []

    def on_receive(self, message: Any) -> None:
        if isinstance(message, str) and message not in self.mended:
            raise ValueError(f"cannot take {HOSTILE}")
        self.seen.append(message)


async def crash(runtime: Runtime, *messages: Any, name: str = "host") -> Any:
    """Have each message quarantined; a dead letter each of what is behind the last."""
    from abeyance.actors.core import ChildSpec, SupervisorSpec

    spec = SupervisorSpec(id=name, children=(ChildSpec("a", Crashing, name=name),), intensity=50)
    ref = (await runtime._system.start_supervisor(spec)).refs["a"]
    for message in messages:
        ref.tell(message)
    gone = runtime._system.start(Crashing, name="gone")
    gone.tell({"left": 1})
    gone.stop(now=True)
    await gone.stopped()
    archive = runtime._system.find("archive")
    while archive.statistics().queued or archive.statistics().owed or ref.statistics().queued:  # type: ignore[union-attr]
        await trio.lowlevel.checkpoint()
    await runtime._journal.ask(Request())
    return ref


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


async def listed(state: Path, verb: str, capsys: Any, *options: str) -> list[Any]:
    assert await run(verb, str(state), "--json", *options) == 0
    entries: list[Any] = json.loads(capsys.readouterr().out)["entries"]
    return entries


async def test_host_and_stopped_store_list_the_same(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        await crash(runtime, "one", "two")
        running = [await listed(state, verb, capsys) for verb in ("quarantine", "dead-letters")]
    stopped = [await listed(state, verb, capsys) for verb in ("quarantine", "dead-letters")]
    assert running == stopped
    (two, one), (letter,) = stopped
    assert (two["id"], one["id"], one["message"]) == (2, 1, "'one'")
    assert (one["actor"], one["reason"], one["deliveries"]) == ("host", "ValueError", 1)
    assert (letter["reason"], letter["message"], letter["error"]) == ("stopped", "{'left': 1}", "")
    assert await listed(state, "quarantine", capsys, "--limit", "1") == [two]
    assert await listed(state, "quarantine", capsys, "--before", "2") == [one]


async def test_listing_reads_well_and_no_control_character_reaches_the_terminal(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await crash(runtime, HOSTILE)
    store = LmdbStore.open(state, clock_ms=lambda: 0)
    record = DeadLetter(actor=HOSTILE, reason=HOSTILE, message=HOSTILE, at_ms=5)
    store.commit(Request(appends=(Append("dead_letters", encode(record)),)))
    store.close()
    for arguments in (
        ("quarantine", str(state)),
        ("quarantine", str(state), "--tracebacks"),
        ("quarantine", str(state), "--json"),
        ("dead-letters", str(state)),
        ("dead-letters", str(state), "--json"),
    ):
        assert await run(*arguments) == 0
        out = capsys.readouterr().out
        assert not {c for c in out if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)}
        assert "\u2028" not in out
    assert await run("quarantine", str(state), "--tracebacks") == 0
    out = capsys.readouterr().out
    assert "  host  ValueError\n" in out
    assert "  delivered once, incarnation 1\n" in out
    assert "raise ValueError" in out
    assert await run("dead-letters", str(state)) == 0
    assert "cannot be replayed" in capsys.readouterr().out


async def test_empty_listing_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_runtime(state):
        for verb, said in (
            ("dead-letters", "No dead letters.\n"),
            ("quarantine", "No messages in quarantine.\n"),
        ):
            assert await run(verb, str(state)) == 0
            assert capsys.readouterr().out == said


async def test_replay_through_the_host_sends_and_counts_and_is_refused_again(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crashing, "seen", [])
    monkeypatch.setattr(Crashing, "mended", {"one"})
    async with open_runtime(state) as runtime:
        monkeypatch.setattr(Crashing, "mended", set())
        ref = await crash(runtime, "one")
        monkeypatch.setattr(Crashing, "mended", {"one"})
        assert await run("quarantine", str(state), "--replay", "1") == 0
        said = "Quarantined message 1 was sent to host again: 'one'\n"
        assert capsys.readouterr().out == said
        await ref.ask({"sync": 1})
        assert Crashing.seen == ["one", {"sync": 1}]
        assert await run("quarantine", str(state), "--replay", "1", "--json") == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == ReplaysExceededError.code
        (entry,) = await listed(state, "quarantine", capsys)
        assert entry["replays"] == 1
        row = runtime._store.get("quarantine", (1,))
        assert row is not None
        assert row.record.replayed_by.startswith("cli:")
        await in_thread(_replays_a_dead_letter_to_nobody, state)


def _replays_a_dead_letter_to_nobody(state: Path) -> None:
    client = ControlClient(state)
    with pytest.raises(RefusedByHostError) as caught:
        client.replay("dead_letter", 1)
    assert caught.value.remote_code == "actor_dead"
    client.close()


async def test_replay_on_a_stopped_store_is_refused_and_changes_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await crash(runtime, "one")
    before = listing(state)
    assert await run("quarantine", str(state), "--replay", "1", "--json") == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["field"]) == ("needs_host", "id")
    assert listing(state) == before


BAD = [
    (("--limit", "0"), {"limit": 0}, "limit"),
    (("--limit", "1001"), {"limit": 1_001}, "limit"),
    (("--before", "0"), {"before": 0}, "before"),
    (("--before", "-3"), {"before": -3}, "before"),
]


@pytest.mark.parametrize(("options", "fields", "field"), BAD, ids=lambda value: f"{value}")
async def test_what_is_no_page_is_refused_by_its_field_on_every_way(
    state: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    fields: dict[str, Any],
    field: str,
) -> None:
    async with open_runtime(state):
        for verb in ("dead-letters", "quarantine"):
            assert await run(verb, str(state), "--json", *options) == 1
            error = json.loads(capsys.readouterr().out)["error"]
            assert (error["code"], error["field"]) == ("invalid_input", field)
            (reply,) = await in_thread(asked, state, request(verb, **fields))
            assert (reply["error"]["code"], reply["error"]["field"]) == ("invalid_input", field)
    store = StoppedStore(state)
    with pytest.raises(Exception, match=field):
        store.entries("quarantine", **fields)
    store.close()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"kind": "dead_letter", "id": 0}, "invalid_input", "id"),
        ({"kind": "dead_letter", "id": "1"}, "invalid_field", "id"),
        ({"kind": "dead_letter"}, "invalid_field", "id"),
        ({"kind": "other", "id": 1}, "invalid_field", "kind"),
        ({"id": 1}, "invalid_field", "kind"),
        ({"kind": "dead_letter", "id": 1, "more": 1}, "invalid_field", "more"),
        ({"kind": "dead_letter", "id": 9}, "unknown_entry", None),
    ],
    ids=str,
)
async def test_malformed_replay_is_refused_by_its_field(
    state: Path, fields: dict[str, Any], code: str, field: str | None
) -> None:
    async with open_runtime(state):
        (reply,) = await in_thread(asked, state, request("replay", **fields))
    error = reply["error"]
    assert (error["code"], error.get("field")) == (code, field)
    assert PROTOCOL == 1


def test_threaded_host_lists_and_replays(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crashing, "seen", [])
    monkeypatch.setattr(Crashing, "mended", set())
    with HostedRuntime(state, control=False) as host:

        async def crashed(runtime: Runtime) -> Any:
            return await crash(runtime, "one")

        ref = host._call(crashed, True)
        assert [entry.message for entry in host.quarantine()] == ["'one'"]
        assert [entry.message for entry in host.dead_letters(limit=1)] == ["{'left': 1}"]
        monkeypatch.setattr(Crashing, "mended", {"one"})
        assert host.replay_quarantined(1, requester="ops").replays == 1
        ref.ask({"sync": 1})
        assert Crashing.seen == ["one", {"sync": 1}]
        with pytest.raises(ReplaysExceededError):
            host.replay_quarantined(1, requester="ops", block=False).get()
