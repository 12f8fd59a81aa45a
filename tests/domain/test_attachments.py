"""Attachments: bytes that are stored once, named by messages and results, and deleted unnamed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    AgentSpec,
    AudioBlock,
    DocumentBlock,
    HostedRuntime,
    ImageBlock,
    Retention,
    TextBlock,
)
from abeyance.actors.domain.drafts import Draft
from abeyance.actors.domain.errors import (
    AttachmentTooLargeError,
    InvalidInputError,
    InvalidMessageError,
    InvalidSpecError,
    MessageTooLargeError,
    RuntimeClosedError,
    UnknownAttachmentError,
)
from abeyance.actors.domain.retention import DAY_MS
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Delete, Put, Request
from abeyance.storage.tables.attachments import PIECE_BYTES, AttachmentPiece
from abeyance.storage.tables.blocks import ATTACHMENT_BYTES_MAX, ATTACHMENTS_MAX, ToolUseBlock

from ..lives import KILLED, lived
from .children import attaching
from .damage import DAMAGES, damage
from .pictures import PDF, SMALL, WAV, digest_of, picture, read
from .world import World, tool, until

DAY = Retention(attachments_days=1)
SAYS = TextBlock(text="what is this?")


def left(world: World, table: str, *prefix: Any) -> int:
    return len(list(world.runtime._store.scan(table, prefix)))


def puts(world: World, table: str, after: int = 0) -> int:
    return sum(found == table for _, found, _ in world.runtime._store.changes(after))


def now(world: World) -> int:
    return world.clock.now_ms()


# -- attaching -----------------------------------------------------------------------------------


async def test_bytes_are_attached_in_pieces_and_read_by_the_call_that_carries_them(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    data = picture()
    path = tmp_path / "cat.png"
    path.write_bytes(data)
    async with world.open():
        ana = await world.add([reply("a cat")])
        block = await ana.attach(path)
        assert block == ImageBlock(
            digest=digest_of(data), media_type="image/png", size_bytes=len(data), name="cat.png"
        )
        assert left(world, "attachment_pieces") == 3
        sizes = [len(row.data) for row in world.rows("attachment_pieces")]
        assert sizes == [PIECE_BYTES, PIECE_BYTES, 7]
        await ana.send([block, SAYS])
        await ana.wait_idle()
        (request,) = world.providers[0].requests
        assert request.messages[0].blocks == (block, SAYS)
        assert await read(request, block.digest) == data
        assert sum(row.body_bytes for row in world.rows("inbox")) == 0


async def test_the_same_bytes_are_written_once_whoever_attaches_them(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    data = picture()
    (tmp_path / "x").write_bytes(data)
    async with world.open() as runtime:
        first = await runtime.attach(data)
        revision = runtime._store.revision()
        again = await runtime.attach(tmp_path / "x", name="y")
        assert runtime._store.revision() == revision
        assert (again.digest, again.name) == (first.digest, "y")

        others: list[Any] = []

        async def attach() -> None:
            others.append(await runtime.attach(picture(seed=2)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(attach)
        assert others[0] == others[1] == others[2]
        assert puts(world, "attachment_pieces", revision) == 3
        world.clock.advance(DAY_MS)
        await runtime.attach(data)
        assert puts(world, "attachment_pieces", revision) == 3
        assert world.rows("attachments", first.digest)[0].attached_ms == world.clock.now_ms()


async def test_two_runtimes_attach_the_same_at_once(world: World, virtual_time: MockClock) -> None:
    data, found = picture(), []

    async def attach(runtime: Any) -> None:
        found.append(await runtime.attach(data))

    async with world.open() as runtime, trio.open_nursery() as nursery:
        other = type(runtime._attacher)(runtime._store, world.clock)
        other.journal = runtime._journal
        nursery.start_soon(attach, runtime)
        nursery.start_soon(other.attach, data, None, None)
    async with world.open() as runtime:
        assert check(runtime._store).is_sound
        assert left(world, "attachments") == 1


@pytest.mark.parametrize(
    ("data", "said", "kind", "media_type"),
    [
        (SMALL, None, ImageBlock, "image/png"),
        (b"\xff\xd8\xff\xe0 jpeg", "image/jpg", ImageBlock, "image/jpeg"),
        (b"GIF89a", None, ImageBlock, "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", None, ImageBlock, "image/webp"),
        (WAV, None, AudioBlock, "audio/wav"),
        (b"ID3\x04", None, AudioBlock, "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg", AudioBlock, "audio/mpeg"),
        (b"OggS", None, AudioBlock, "audio/ogg"),
        (b"fLaC", None, AudioBlock, "audio/flac"),
        (PDF, None, DocumentBlock, "application/pdf"),
        ("Grüße".encode(), "text/markdown", DocumentBlock, "text/markdown"),
        (PDF, "text/plain", None, "media_type"),
        (SMALL, "image/jpeg", None, "media_type"),
        (b"plain", "image/png", None, "media_type"),
        (b"plain", None, None, "media_type"),
        (b"plain", "video/mp4", None, "media_type"),
        (b"plain", 7, None, "media_type"),
        (b"\xe4\xf6", "text/plain", None, "source"),
        (b"", "text/plain", None, "source"),
        (7, "text/plain", None, "source"),
    ],
    ids=str,
)
async def test_media_types_are_what_the_bytes_show(
    world: World, virtual_time: MockClock, data: Any, said: Any, kind: Any, media_type: str
) -> None:
    async with world.open() as runtime:
        if kind is None:
            with pytest.raises(InvalidInputError) as refused:
                await runtime.attach(data, media_type=said)
            assert refused.value.field == media_type
            assert left(world, "attachments") == 0
        else:
            block = await runtime.attach(data, media_type=said)
            assert (type(block), block.media_type) == (kind, media_type)


async def test_a_text_is_shown_as_any_text_and_stored_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        plain = await runtime.attach(b"a,b", media_type="text/plain")
        table = await runtime.attach(b"a,b", media_type="text/csv")
        assert (plain.digest, table.media_type) == (table.digest, "text/csv")
        ana = await world.add([reply("x")])
        await ana.send([table])


async def test_what_is_too_large_is_refused_by_field_and_limit_before_any_effect(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(ATTACHMENT_BYTES_MAX + 1)
    async with world.open() as runtime:
        ana = await world.add([reply("x")], attachment_bytes_max=20)
        before = runtime._store.revision()
        with pytest.raises(AttachmentTooLargeError) as refused:
            await runtime.attach(large)
        error = refused.value
        assert (error.field, error.size, error.limit) == (
            "source", ATTACHMENT_BYTES_MAX + 1, ATTACHMENT_BYTES_MAX,
        )  # fmt: skip
        with pytest.raises(AttachmentTooLargeError) as own:
            await ana.attach(SMALL)
        assert (own.value.size, own.value.limit) == (len(SMALL), 20)
        assert runtime._store.revision() == before
        block = await runtime.attach(SMALL)
        before = runtime._store.revision()
        with pytest.raises(MessageTooLargeError) as sent:
            await ana.send([SAYS, block])
        assert (sent.value.field, sent.value.limit) == ("message[1].size_bytes", 20)
        assert sent.value.messages == (Draft([SAYS, block]),)
        with pytest.raises(MessageTooLargeError) as once:
            await runtime.run_ephemeral(
                AgentSpec(
                    name="once",
                    provider=ScriptedProvider([]),
                    model="m",
                    attachment_bytes_max=20,
                ),
                [block],
            )
        assert once.value.field == "message[0].size_bytes"
        assert runtime._store.revision() == before
        with pytest.raises(InvalidSpecError, match="attachment_bytes_max"):
            await world.add([], "bo", attachment_bytes_max=ATTACHMENT_BYTES_MAX + 1)


async def test_a_source_that_cannot_be_read_is_refused_by_its_name(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with world.open() as runtime:
        await runtime.attach(SMALL)
        descriptors = len(os.listdir("/proc/self/fd"))
        for source in (tmp_path / "nothing", tmp_path, tmp_path / "pipe", "a\0b"):
            with pytest.raises(InvalidInputError) as refused:
                await runtime.attach(source)
            assert refused.value.field == "source"
        for source in (tmp_path, tmp_path / "pipe"):
            with pytest.raises(InvalidInputError, match="must be a file"):
                await runtime.attach(source)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        for name in ("", "a\nb", "x" * 201, 7):
            with pytest.raises(InvalidInputError) as refused:
                await runtime.attach(SMALL, name=name)  # type: ignore[arg-type]
            assert refused.value.field == "name"


async def test_a_file_that_changes_while_it_is_read_is_refused_and_harms_no_other(
    world: World, virtual_time: MockClock, tmp_path: Path, monkeypatch: Any
) -> None:
    path, data = tmp_path / "x.png", picture()
    path.write_bytes(data)
    async with world.open() as runtime:
        ask, asked = runtime._journal.ask, 0

        def changing(request: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                path.write_bytes(picture(seed=2))
            return ask(request)

        runtime._attacher.journal = type("J", (), {"ask": staticmethod(changing)})()
        with pytest.raises(InvalidInputError, match="must not change"):
            await runtime.attach(path)
        runtime._attacher.journal = runtime._journal
        ana = await world.add([reply("x")])
        block = ImageBlock(digest=digest_of(data), media_type="image/png", size_bytes=len(data))
        with pytest.raises(UnknownAttachmentError):
            await ana.send([block])
        assert await runtime.attach(data) == block
        await ana.send([block])
        await ana.wait_idle()
        assert await read(world.providers[0].requests[0], block.digest) == data
        assert check(runtime._store).is_sound


def test_a_threaded_host_attaches(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(SMALL)
    provider = ScriptedProvider([reply("seen")])
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        block = ana.attach(tmp_path / "x.png")
        assert host.attach(SMALL, name="x.png") == block
        assert host.attach(SMALL, name="x.png", block=False).get() == block
        ana.send([block])
        ana.wait_idle()
    assert provider.requests[0].messages[0].blocks == (block,)


async def test_a_runtime_that_has_ended_attaches_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await runtime.attach(SMALL)
    with pytest.raises(RuntimeClosedError):
        await runtime.attach(SMALL)


# -- naming --------------------------------------------------------------------------------------


def named(**changes: Any) -> dict[str, Any]:
    block = {
        "type": "image", "digest": digest_of(SMALL), "media_type": "image/png",
        "size_bytes": len(SMALL),
    }  # fmt: skip
    return {**block, **changes}


@pytest.mark.parametrize(
    ("changes", "field", "error"),
    [
        ({"digest": "0" * 64}, "message[0].digest", UnknownAttachmentError),
        ({"size_bytes": 7}, "message[0].size_bytes", UnknownAttachmentError),
        ({"media_type": "image/gif"}, "message[0].media_type", UnknownAttachmentError),
        ({"digest": "x"}, "message[0].digest", InvalidMessageError),
        ({"media_type": "audio/wav"}, "message[0].media_type", InvalidMessageError),
        ({"size_bytes": 0}, "message[0].size_bytes", InvalidMessageError),
        ({"name": "a\nb"}, "message[0].name", InvalidMessageError),
        ({"data": "AAAA"}, "message[0]", InvalidMessageError),
    ],
    ids=str,
)
async def test_a_block_is_taken_only_as_its_bytes_are_stored(
    world: World,
    virtual_time: MockClock,
    changes: dict[str, Any],
    field: str,
    error: type[InvalidMessageError],
) -> None:
    async with world.open() as runtime:
        await runtime.attach(SMALL)
        ana = await world.add([reply("x")])
        before = runtime._store.revision()
        with pytest.raises(error) as refused:
            await ana.send([named(**changes)])
        assert (type(refused.value), refused.value.field) == (error, field)
        with pytest.raises(error) as many:
            await ana.send_many([Draft("fine"), Draft([named(**changes)])])
        assert many.value.field == f"drafts[1].{field}"
        assert runtime._store.revision() == before
        await ana.send([named()])


async def test_an_unknown_attachment_is_refused_at_every_door(
    world: World, virtual_time: MockClock
) -> None:
    unknown = named(digest="0" * 64)
    async with world.open() as runtime:
        ana = await world.add([reply("x")])
        await ana.send("go")
        await ana.wait_idle()
        last = await ana.send("a", wake=False)
        before = runtime._store.revision()
        with pytest.raises(UnknownAttachmentError):
            await ana.hand_over([unknown])
        with pytest.raises(UnknownAttachmentError):
            await ana.hand_over_many([Draft("x"), Draft([unknown])])
        with pytest.raises(UnknownAttachmentError):
            await ana.send([unknown], subject="s")
        spec = AgentSpec(name="once", provider=ScriptedProvider([]), model="m")
        with pytest.raises(UnknownAttachmentError):
            await runtime.run_ephemeral(spec, [unknown])
        with pytest.raises(UnknownAttachmentError):
            await ana.edit(1, [unknown], requester="ops")
        assert runtime._store.revision() == before
        # Nor was anything of a batch planned.
        assert (await ana.send("b", wake=False)).seq == last.seq + 1
        source = io.StringIO(
            '{"format": "abeyance-deferred", "version": 1, "entries": [{"id": "a", '
            f'"participant": "bo", "content": [{str(unknown).replace(chr(39), chr(34))}]}}]}}'
        )
        report = await runtime.import_deferred(source, agent="ana", requester="ops")
        assert [repair.kind for repair in report.repairs] == ["refused"]
        assert "content[0].digest names no attachment" in report.repairs[0].text
        assert left(world, "inbox") == 0


async def test_too_many_attachments_of_one_message_are_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidMessageError, match=f"at most {ATTACHMENTS_MAX}"):
            await ana.send([named()] * (ATTACHMENTS_MAX + 1))


async def test_a_tool_returns_attachments_and_a_compile_after_a_restart_carries_the_same(
    world: World, virtual_time: MockClock
) -> None:
    block: Any = None

    async def look() -> Any:
        return [TextBlock(text="here"), block]

    async def look_away() -> Any:
        return ImageBlock(digest="0" * 64, media_type="image/png", size_bytes=1)

    tools = [tool("look", look), tool("look_away", look_away)]
    async with world.open() as runtime:
        block = await runtime.attach(SMALL)
        ana = await world.add([call_tool("look"), call_tool("look_away"), reply("x")], tools=tools)
        await ana.send("go")
        await ana.wait_idle()
        requests = world.providers[0].requests
        (result,) = requests[1].messages[-1].blocks
        assert result.content == (TextBlock(text="here"), block)
        (failed,) = requests[2].messages[-1].blocks
        assert failed.is_error
        assert "names no attachment of this store" in failed.text
        assert check(runtime._store).is_sound
    async with world.open():
        ana = await world.add([reply("y")], tools=tools)
        await ana.send("more")
        await ana.wait_idle()
        (again,) = world.providers[1].requests
        assert again.messages[:5] == requests[2].messages
        assert await read(again, block.digest) == SMALL


async def test_an_edit_keeps_an_attachment_and_gives_other_words(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("x"), reply("y")])
        block = await ana.attach(SMALL)
        receipt = await ana.send([block, SAYS])
        await ana.wait_idle()
        await ana.edit(receipt.id, [block, TextBlock(text="other")], requester="ops")
        await ana.send("again")
        await ana.wait_idle()
        request = world.providers[0].requests[1]
        assert request.messages[0].blocks == (block, TextBlock(text="other"))
        assert check(runtime._store).is_sound


async def test_what_an_adapter_does_not_show_is_told_in_words(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = world.provider([reply("x"), reply("y")], attachment_types={"image/png"})
        ana = await world.add(provider)
        image = await runtime.attach(SMALL)
        sound = await runtime.attach(WAV, name="hello.wav")
        await ana.send([image, sound])
        await ana.send([image], author="ana")
        await ana.wait_idle()
        await ana.send("and?")
        await ana.wait_idle()
        first = provider.requests[-1].messages
        words = f"[attached: 'hello.wav', audio/wav, {len(WAV)} bytes; it is not shown here]"
        assert first[0].blocks == (image, TextBlock(text=words))
        own = next(m for m in first if m.role == "assistant" and "attached" in str(m.blocks))
        assert own.blocks == (
            TextBlock(text=f"[attached: image/png, {len(SMALL)} bytes; it is not shown here]"),
        )


# -- keeping -------------------------------------------------------------------------------------


async def test_what_nothing_names_is_deleted_after_its_days_and_what_something_names_stays(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=DAY) as runtime:
        ana = await world.add([reply("x"), reply("y")])
        kept = await runtime.attach(SMALL)
        unsent = await runtime.attach(picture())
        taken_back = await runtime.attach(WAV)
        await ana.send([kept])
        await ana.wait_idle()
        bo = await world.add([], "bo")
        await runtime.quiesce("upgrade")
        receipt = await bo.send([taken_back])
        await bo.retract(receipt)
        await runtime.resume()
        assert await runtime.prune() == {}
        world.clock.advance(2 * DAY_MS)
        deleted = await runtime.prune()
        assert deleted == {"attachments": 2, "attachment_pieces": 4, "attachment_uses": 1}
        assert [key for key, _ in runtime._store.scan("attachments")] == [(kept.digest,)]
        before = runtime._store.revision()
        assert await runtime.prune() == {}
        assert runtime._store.revision() == before
        for gone in (unsent, taken_back):
            with pytest.raises(UnknownAttachmentError):
                await ana.send([gone])
        await ana.send("and?")
        await ana.wait_idle()
        assert await read(world.providers[0].requests[1], kept.digest) == SMALL
        assert check(runtime._store).is_sound


async def test_a_message_that_comes_while_its_attachment_is_looked_at_keeps_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=DAY) as runtime:
        ana = await world.add([reply("x")])
        block = await runtime.attach(SMALL)
        world.clock.advance(2 * DAY_MS)
        journal, sent = runtime._pruner.journal, []

        class Racing:
            """Accepts the message when the pruner has looked, and before its word is in."""

            async def ask(self, request: Any) -> Any:
                if not sent:
                    sent.append(await ana.send([block]))
                return await journal.ask(request)

        runtime._pruner.journal = Racing()
        assert await runtime.prune() == {}
        runtime._pruner.journal = journal
        assert world.rows("attachments")[0].state == "whole"
        await ana.wait_idle()
        assert await read(world.providers[0].requests[0], block.digest) == SMALL


async def test_attaching_what_is_being_deleted_keeps_it(
    world: World, virtual_time: MockClock
) -> None:
    data = picture()
    async with world.open(retention=DAY) as runtime:
        await runtime.attach(data)
        world.clock.advance(2 * DAY_MS)
        runtime._pruner._room, journal, asked = 1, runtime._journal, 0

        class Racing:
            async def ask(self, request: Any) -> Any:
                nonlocal asked
                asked += 1
                if asked == 3:  # Leaving, and without its first piece.
                    await runtime.attach(data)
                return await journal.ask(request)

        runtime._pruner.journal = Racing()
        await runtime.prune()
        assert check(runtime._store).is_sound
        assert left(world, "attachment_pieces") == 3


@pytest.mark.parametrize(
    "point",
    ["attach.begun", "attach.piece", "attach.piece:2", "attach.piece:3", "attach.before_whole",
     "writer.before_commit:3", "attach.whole"],
)  # fmt: skip
async def test_a_death_while_attaching_leaves_nothing_that_a_message_can_name(
    world: World, virtual_time: MockClock, point: str
) -> None:
    ended = await trio.to_thread.run_sync(
        lived, attaching.attach, world.directory, point, now(world)
    )
    assert ended.status == KILLED, ended.err
    data, is_whole = picture(), point == "attach.whole"
    block = ImageBlock(digest=digest_of(data), media_type="image/png", size_bytes=len(data))
    async with world.open(retention=DAY) as runtime:
        assert check(runtime._store).is_sound
        ana = await world.add([reply("x")])
        if not is_whole:
            with pytest.raises(UnknownAttachmentError):
                await ana.send([block])
        there = left(world, "attachment_pieces")
        world.clock.advance(2 * DAY_MS)
        await runtime.prune()
        assert left(world, "attachments") == left(world, "attachment_pieces") == 0, there
        assert await runtime.attach(data) == block
        await ana.send([block])
        await ana.wait_idle()
        assert await read(world.providers[0].requests[0], block.digest) == data


async def test_attaching_again_after_a_death_goes_on_where_it_was(
    world: World, virtual_time: MockClock
) -> None:
    run = attaching.attach
    await trio.to_thread.run_sync(lived, run, world.directory, "attach.piece:2", now(world))
    async with world.open() as runtime:
        before = runtime._store.revision()
        await runtime.attach(picture())
        assert puts(world, "attachment_pieces", before) == 1
        assert check(runtime._store).is_sound


@pytest.mark.parametrize(
    "point", ["retention.leaving", "retention.between:2", "retention.between:3"]
)
async def test_a_death_while_an_attachment_is_deleted_leaves_the_rest_for_the_next_pass(
    world: World, virtual_time: MockClock, point: str
) -> None:
    ended = await trio.to_thread.run_sync(
        lived, attaching.prune, world.directory, point, now(world)
    )
    assert ended.status == KILLED, ended.err
    async with world.open(retention=Retention(attachments_days=None)) as runtime:
        ana = await world.add([])
        with pytest.raises(UnknownAttachmentError):
            await ana.send([named(digest=digest_of(picture()), size_bytes=len(picture()))])
        await runtime.prune()
        assert left(world, "attachments") == left(world, "attachment_pieces") == 0


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("table", ["attachments", "attachment_pieces", "attachment_uses"])
async def test_an_attachment_that_cannot_be_read_fails_by_name_what_names_it_alone(
    world: World, virtual_time: MockClock, how: str, table: str
) -> None:
    async with world.open():
        ana = await world.add([reply("x")])
        block = await ana.attach(SMALL)
        receipt = await ana.send([block])
        await ana.wait_idle()
        use = (block.digest, "entry", "ana", receipt.seq)
    if table == "attachments":
        damage(world.directory, world.clock, "attachments", (block.digest,), how)
    elif table == "attachment_pieces":
        damage(world.directory, world.clock, "attachment_pieces", (block.digest, 0), how)
    else:
        damage(world.directory, world.clock, "attachment_uses", use, how)
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    found = {finding.table for finding in check(store).findings}
    store.close()
    assert table in found
    async with world.open(retention=DAY) as runtime:
        world.clock.advance(2 * DAY_MS)
        await runtime.prune()

        def answer(request: Any) -> Any:
            return reply("fine")

        ana = await world.add(answer)
        bo = await world.add(answer, "bo")
        for agent in (ana, bo):
            await agent.send("go")
            await agent.wait_idle()
        states = [world.turns(name)[-1].state for name in ("ana", "bo")]
        assert states == ["failed" if table == "attachments" else "done", "done"]
        if table == "attachments":
            assert world.turns("ana")[-1].failure == "unreadable_record"
        if table == "attachment_pieces":
            request = world.providers[1].requests[0]
            with pytest.raises(Exception, match="an attachment cannot be read"):
                await read(request, block.digest)


async def test_check_finds_pieces_of_other_bytes_and_content_without_its_attachment(
    world: World, virtual_time: MockClock
) -> None:
    data = picture()
    async with world.open():
        ana = await world.add([reply("x")])
        block = await ana.attach(data)
        receipt = await ana.send([block])
        await ana.wait_idle()
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms)
    try:
        assert check(store).is_sound
        other = encode(AttachmentPiece(data=b"other"))
        store.commit(Request(puts=(Put("attachment_pieces", (block.digest, 2), other),)))
        (finding,) = check(store).findings
        assert (finding.problem, finding.key) == ("digest", (block.digest,))
        store.commit(Request(deletes=(Delete("attachment_pieces", (block.digest, 2)),)))
        (finding,) = check(store).findings
        assert (finding.problem, finding.table) == ("dangling", "attachments")
        use = (block.digest, "entry", "ana", receipt.seq)
        store.commit(
            Request(
                deletes=(
                    Delete("attachments", (block.digest,)),
                    Delete("attachment_uses", use),
                )
            )
        )
        assert {(found.problem, found.table) for found in check(store).findings} == {
            ("dangling", "bodies")
        }
    finally:
        store.close()


async def test_a_newer_message_of_a_subject_keeps_what_it_names(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=DAY) as runtime:
        ana = await world.add([reply("x")])
        first, second = await runtime.attach(SMALL), await runtime.attach(WAV)
        await runtime.quiesce("upgrade")
        await ana.send([first], subject="s")
        receipt = await ana.send([second], subject="s")
        assert receipt.replaces is not None
        world.clock.advance(2 * DAY_MS)
        await runtime.prune()
        assert [key for key, _ in runtime._store.scan("attachments")] == [(second.digest,)]
        await runtime.resume()
        await ana.wait_idle()
        assert await read(world.providers[0].requests[0], second.digest) == WAV
        assert check(runtime._store).is_sound


async def test_a_tools_result_keeps_what_it_names_while_its_turn_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    entered, go = trio.Event(), trio.Event()
    block: Any = None

    async def look() -> Any:
        return block

    async def wait() -> str:
        entered.set()
        await go.wait()
        return "x"

    both = [ToolUseBlock(id=name, name=name, input={}) for name in ("look", "wait")]
    async with world.open(retention=DAY) as runtime:
        block = await runtime.attach(SMALL)
        tools = [tool("look", look), tool("wait", wait)]
        ana = await world.add([reply(*both), reply("x")], tools=tools)
        await ana.send("go")
        await entered.wait()
        await until(lambda: any(call.state == "done" for call in world.tool_calls()))
        world.clock.advance(2 * DAY_MS)
        await runtime.prune()
        go.set()
        await ana.wait_idle()
        assert await read(world.providers[0].requests[1], block.digest) == SMALL
        assert check(runtime._store).is_sound
