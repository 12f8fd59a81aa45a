"""Attachments as each wire has them, over a real socket: streamed from the store, whole or not."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from abeyance.actors import AgentSpec, TextBlock, Tool, open_runtime
from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.providers.attachments import (
    IMAGES,
    AttachmentUnreadableError,
    Places,
    in_words,
    shown,
)
from abeyance.actors.providers.outgoing import leaving, outgoing, unreadable
from abeyance.actors.providers.port import ModelRequest, Permit, ProviderMessage, permitted
from abeyance.actors.testing import Answer, ProviderSimulator, SimulatedTool, WireRequest
from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from ..domain.pictures import PDF, SMALL, WAV, picture

WIRES = ("anthropic", "responses", "chat")
EACH_WIRE = pytest.mark.parametrize("wire", WIRES)
TEXT = 'Grüße, "Welt"\n\\ \N{GRINNING FACE}'
IMAGE_URL, FILE_URL = "data:image/png;base64,", "data:application/pdf;base64,"


def adapter(wire: str, simulator: ProviderSimulator) -> Any:
    if wire == "anthropic":
        return AnthropicProvider(api_key="any", base_url=simulator.base_url)
    return OpenAIProvider(api=wire, api_key="any", base_url=f"{simulator.base_url}/v1")  # type: ignore[arg-type]


class Held:
    """Attachments in memory, as an adapter reads them; in pieces of three bytes."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {hashlib.sha256(each).hexdigest(): each for each in contents}
        self.read: list[str] = []
        self.most = 0

    async def pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        data = self.contents[digest]
        for start in range(0, len(data), 3):
            await trio.lowlevel.checkpoint()
            yield data[start : start + 3]
        self.read.append(digest)


def block(kind: Callable[..., Any], data: bytes, media_type: str, name: str | None = None) -> Any:
    digest = hashlib.sha256(data).hexdigest()
    return kind(digest=digest, media_type=media_type, size_bytes=len(data), name=name)


IMAGE = block(ImageBlock, SMALL, "image/png", "cat.png")
DOCUMENT = block(DocumentBlock, PDF, "application/pdf", "a.pdf")
NOTES = block(DocumentBlock, TEXT.encode(), "text/markdown", "notes.md")
SOUND = block(AudioBlock, WAV, "audio/wav")


def digest(attached: AttachmentBlock) -> str:
    return f"sha256:{attached.digest}, {attached.size_bytes} bytes"


async def sent(wire: str, *messages: ProviderMessage, held: Any = None) -> Any:
    """What is on the wire of a request, as the simulator's log has it."""
    async with ProviderSimulator(lambda _: Answer(text="seen")) as simulator:
        provider = adapter(wire, simulator)
        request = ModelRequest(
            "m", messages, attachments=held or Held(SMALL, PDF, WAV, TEXT.encode())
        )
        try:
            with permitted(Permit(1, "ana", "m", "turn")), trio.fail_after(60):
                reply = await provider.call(request, lambda _: None)
            assert reply.blocks == (TextBlock(text="seen"),)
            return simulator.log[0].request
        finally:
            await provider.aclose()


def user(*blocks: Any) -> ProviderMessage:
    return ProviderMessage("user", blocks)


async def test_anthropic_has_images_and_documents_as_sources() -> None:
    body = await sent("anthropic", user(IMAGE, DOCUMENT, NOTES, TextBlock(text="and?")))
    plain = f"sha256:{NOTES.digest}, {NOTES.size_bytes} bytes"
    assert body["messages"][0]["content"] == [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": digest(IMAGE)},
        },
        {
            "type": "document",
            "source": {
                "type": "base64", "media_type": "application/pdf", "data": digest(DOCUMENT),
            },
            "title": "a.pdf",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": plain},
            "title": "notes.md",
        },
        {"type": "text", "text": "and?"},
    ]  # fmt: skip


async def test_responses_have_images_and_files_as_inputs() -> None:
    body = await sent("responses", user(IMAGE, DOCUMENT, NOTES, TextBlock(text="and?")))
    assert body["input"][0]["content"] == [
        {"type": "input_image", "detail": "auto", "image_url": IMAGE_URL + digest(IMAGE)},
        {"type": "input_file", "filename": "a.pdf", "file_data": FILE_URL + digest(DOCUMENT)},
        {"type": "input_text", "text": f"notes.md:\n\n{TEXT}"},
        {"type": "input_text", "text": "and?"},
    ]


async def test_chat_has_images_sounds_and_files_as_parts() -> None:
    body = await sent("chat", user(IMAGE, SOUND, DOCUMENT, NOTES, TextBlock(text="and?")))
    assert body["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": IMAGE_URL + digest(IMAGE)}},
        {"type": "input_audio", "input_audio": {"data": digest(SOUND), "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": FILE_URL + digest(DOCUMENT)}},
        {"type": "text", "text": f"notes.md:\n\n{TEXT}"},
        {"type": "text", "text": "and?"},
    ]


@EACH_WIRE
async def test_what_is_attached_to_a_result_goes_with_it(wire: str) -> None:
    call = ProviderMessage("assistant", (ToolUseBlock(id="c", name="look", input={}),))
    seen = ToolResultBlock(tool_use_id="c", content=(TextBlock(text="here"), IMAGE))
    body = await sent(wire, user(TextBlock(text="look")), call, user(seen))
    if wire == "anthropic":
        (result,) = body["messages"][-1]["content"]
        assert [part["type"] for part in result["content"]] == ["text", "image"]
        assert result["content"][1]["source"]["data"] == digest(IMAGE)
    elif wire == "responses":
        text, image = body["input"][-1]["output"]
        assert (text["text"], image["image_url"]) == ("here", IMAGE_URL + digest(IMAGE))
    else:
        result, beside = body["messages"][-2:]
        assert (result["role"], result["content"]) == ("tool", "here")
        (part,) = beside["content"]
        assert (beside["role"], part["image_url"]["url"]) == ("user", IMAGE_URL + digest(IMAGE))


def test_what_is_attached_to_a_result_is_in_words_where_it_is_not_shown() -> None:
    (message,) = shown(
        [user(ToolResultBlock(tool_use_id="t", content=(IMAGE, SOUND)))], frozenset(IMAGES)
    )
    (result,) = message.blocks
    assert isinstance(result, ToolResultBlock)
    assert result.content == (IMAGE, TextBlock(text=in_words(SOUND)))


@pytest.mark.parametrize("wire", ["anthropic", "responses"])
async def test_a_sound_is_in_words_where_the_wire_has_no_place_for_one(wire: str) -> None:
    said = json.dumps(await sent(wire, user(SOUND, TextBlock(text="and?"))))
    assert in_words(SOUND) in said
    async with ProviderSimulator([]) as simulator:
        assert SOUND.media_type not in adapter(wire, simulator).attachment_types


class Broken(Held):
    """Ends too early, or in the middle of a piece."""

    def __init__(self, why: str) -> None:
        super().__init__(SMALL)
        self.why = why

    async def pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        yield SMALL[:3]
        await trio.lowlevel.checkpoint()
        if self.why == "damaged":
            raise unreadable("a piece is damaged")


@EACH_WIRE
@pytest.mark.parametrize("why", ["damaged", "too short"])
async def test_an_attachment_that_cannot_be_read_ends_the_call_and_nothing_whole_is_sent(
    wire: str, why: str
) -> None:
    async with ProviderSimulator(lambda _: Answer(text="never")) as simulator:
        provider = adapter(wire, simulator)
        request = ModelRequest("m", (user(IMAGE),), attachments=Broken(why))
        try:
            with (
                permitted(Permit(1, "ana", "m", "turn")) as permit,
                trio.fail_after(60),
                pytest.raises(AttachmentUnreadableError) as refused,
            ):
                await provider.call(request, lambda _: None)
        finally:
            await provider.aclose()
        assert (refused.value.retryable, refused.value.sent) == (False, False)
        assert refused.value.model == "m"
        assert permit.used
        assert simulator.log == []


async def test_each_piece_that_is_taken_feeds_the_deadline_of_bytes() -> None:
    places, fed = Places(), list[int]()
    body = f'{{"data": "{places.base64(IMAGE)}"}}'.encode()
    request = httpx2.Request("POST", "http://127.0.0.1", content=body)
    with leaving(places, Held(SMALL)):
        leaves = await outgoing(request, lambda: fed.append(1))
    assert isinstance(leaves.stream, httpx2.AsyncByteStream)
    said = b"".join([part async for part in leaves.stream])
    assert json.loads(said) == {"data": base64.b64encode(SMALL).decode()}
    assert len(said) == int(leaves.headers["content-length"])
    assert len(fed) == -(-len(SMALL) // 3)


@pytest.mark.parametrize("body", ["{}", '"MARK" "MARK"'])
async def test_a_request_whose_marks_are_not_where_they_were_put_is_not_sent(body: str) -> None:
    places = Places()
    content = body.replace("MARK", places.base64(IMAGE)).encode()
    request = httpx2.Request("POST", "http://127.0.0.1", content=content)
    with leaving(places, Held(SMALL)), pytest.raises(ValueError, match="where they were put"):
        await outgoing(request, lambda: None)


@EACH_WIRE
async def test_an_agents_picture_comes_whole_and_later_requests_carry_it_again(
    wire: str, tmp_path: Path
) -> None:
    data = picture(1_000_000)
    (tmp_path / "cat.png").write_bytes(data)

    def script(request: WireRequest) -> Answer:
        if request.number == 1:
            return Answer(tools=[SimulatedTool("look")])
        return Answer(text="a cat")

    async with (
        ProviderSimulator(script, log_path=tmp_path / "log") as simulator,
        open_runtime(tmp_path / "state", control=False) as runtime,
    ):
        found: list[Any] = []
        look = Tool(
            name="look",
            description="look",
            input_schema={"type": "object", "properties": {}},
            run=lambda: found,
        )
        provider = adapter(wire, simulator)
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=[look])
        )
        block = await ana.attach(tmp_path / "cat.png")
        found += [TextBlock(text="another"), await runtime.attach(SMALL)]
        with trio.fail_after(60):
            await ana.send([block, TextBlock(text="what is this?")])
            await ana.wait_idle()
            await ana.send("sure?")
            await ana.wait_idle()
        assert [m.text async for m in ana.transcript()][-1] == "a cat"
        assert len(simulator.log) == 3
        for entry in simulator.log:
            assert digest(block) in json.dumps(entry.request)
        for entry in simulator.log[1:]:
            assert digest(IMAGE) in json.dumps(entry.request)
        assert (tmp_path / "log").stat().st_size < 100_000
        await provider.aclose()


async def test_a_damaged_piece_fails_the_turn_by_name(tmp_path: Path) -> None:
    async with (
        ProviderSimulator(lambda _: Answer(text="x")) as simulator,
        open_runtime(tmp_path, control=False) as runtime,
    ):
        provider = adapter("anthropic", simulator)
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        block = await ana.attach(picture(1_000_000))
        get = runtime._store.get

        def damaged(table: str, key: Any) -> Any:
            if (table, key) == ("attachment_pieces", (block.digest, 1)):
                return None
            return get(table, key)

        runtime._store.get = damaged  # type: ignore[method-assign]
        with trio.fail_after(60):
            await ana.send([block])
            await ana.wait_idle()
        turn = get("turns", ("ana", 1))
        assert turn is not None
        assert (turn.record.state, turn.record.failure) == ("failed", "attachment_unreadable")
        assert simulator.log == []
        await provider.aclose()


def refusals(wire: str, part: dict[str, Any], role: str = "user") -> str | None:
    from abeyance.actors.testing.simulator.attached import folded
    from abeyance.actors.testing.simulator.wires import WIRES as KNOWN

    path = {"anthropic": "/v1/messages", "chat": "/v1/chat/completions"}.get(wire, "/v1/responses")
    message = {"role": role, "content": [part]}
    first = {"role": "user", "content": "hi"}
    if wire == "responses":
        body: dict[str, Any] = {"model": "m", "input": [first, message]}
    else:
        body = {"model": "m", "max_tokens": 1, "messages": [first, message]}
    return KNOWN[path].refusal(folded(body))


@pytest.mark.parametrize(
    ("wire", "part"),
    [
        ("anthropic", {"type": "audio", "source": {}}),
        ("anthropic", {"type": "image", "source": {"type": "base64", "data": "not base64!"}}),
        (
            "anthropic",
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/bmp", "data": "AAAA"},
            },
        ),
        ("responses", {"type": "input_image", "image_url": "data:image/png;base64,not!"}),
        ("chat", {"type": "image_url", "image_url": {"url": "data:image/png;base64,not!"}}),
        ("chat", {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_the_simulator_refuses_what_the_services_refuse(wire: str, part: dict[str, Any]) -> None:
    assert refusals(wire, part) is not None


def test_the_simulator_refuses_attachments_in_an_assistants_words() -> None:
    good = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    for wire, part in (
        ("anthropic", {"type": "image", "source": good}),
        ("responses", {"type": "input_image", "image_url": IMAGE_URL + "AAAA"}),
        ("chat", {"type": "image_url", "image_url": {"url": IMAGE_URL + "AAAA"}}),
    ):
        assert refusals(wire, part) is None
        assert refusals(wire, part, "assistant") is not None
