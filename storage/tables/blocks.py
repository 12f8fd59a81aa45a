"""The content of a message: one recursive schema, used at ingress, in bodies and on recovery.

Bounds are part of the schema, so that what was accepted can always be rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

TEXT_CHARS_MAX = 4_000_000
BLOCKS_MAX = 1_000
RESULT_BLOCKS_MAX = 100
ATTACHMENT_BYTES_MAX = 32 * 1024 * 1024
"""Of one attachment."""
ATTACHMENTS_MAX = 100
"""That one message, or one tool's result, names."""

Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""SHA-256 of the bytes, in hexadecimal."""
MediaType: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z]{1,20}/[a-z0-9.+-]{1,100}\Z")]
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]


class _Block(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class TextBlock(_Block, frozen=True, tag="text"):
    """Text, as a person or a model wrote it. May be empty."""

    text: Text


class ThinkingBlock(_Block, frozen=True, tag="thinking"):
    """A model's signed reasoning. Valid only behind the exact prefix it was produced under."""

    thinking: Text
    signature: Text = ""
    redacted: bool = False
    """True: `thinking` is the provider's opaque data and is returned as such."""


class _Attached(_Block, frozen=True, kw_only=True):
    """Bytes that are stored beside: what they are shown as, and where they are."""

    digest: Digest
    media_type: MediaType
    size_bytes: Annotated[int, Meta(ge=1, le=ATTACHMENT_BYTES_MAX)]
    name: FileName | None = None
    """What a person calls it: a file's name."""


class ImageBlock(_Attached, frozen=True, tag="image"):
    """A picture, by the digest of its bytes; `runtime.attach` makes one."""


class AudioBlock(_Attached, frozen=True, tag="audio"):
    """A sound, by the digest of its bytes; `runtime.attach` makes one."""


class DocumentBlock(_Attached, frozen=True, tag="document"):
    """A document, by the digest of its bytes; `runtime.attach` makes one."""


AttachmentBlock: TypeAlias = ImageBlock | AudioBlock | DocumentBlock


class ToolUseBlock(_Block, frozen=True, tag="tool_use"):
    """A model's request to run a tool."""

    id: CallId
    name: ToolName
    input: dict[str, Any]


ResultBlock: TypeAlias = TextBlock | AttachmentBlock


class ToolResultBlock(_Block, frozen=True, tag="tool_result"):
    """What a tool call came to."""

    tool_use_id: CallId
    content: Annotated[tuple[ResultBlock, ...], Meta(max_length=RESULT_BLOCKS_MAX)] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        """Its texts, a line each."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextBlock))


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | AttachmentBlock
Blocks: TypeAlias = Annotated[tuple[Block, ...], Meta(min_length=1, max_length=BLOCKS_MAX)]


def attachments_in(
    blocks: Iterable[Block], field: str = "blocks"
) -> Iterator[tuple[str, AttachmentBlock]]:
    """The attachments that blocks name, also inside tool results, each with its place."""
    for place, block in enumerate(blocks):
        if isinstance(block, AttachmentBlock):
            yield f"{field}[{place}]", block
        elif isinstance(block, ToolResultBlock):
            yield from attachments_in(block.content, f"{field}[{place}].content")
