"""The content of a message: one recursive schema, used at ingress, in bodies and on recovery.

Bounds are part of the schema, so that what was accepted can always be rendered.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

TEXT_CHARS_MAX = 4_000_000
BLOCKS_MAX = 1_000
RESULT_BLOCKS_MAX = 100

Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]


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


class ToolUseBlock(_Block, frozen=True, tag="tool_use"):
    """A model's request to run a tool."""

    id: CallId
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(_Block, frozen=True, tag="tool_result"):
    """What a tool call came to."""

    tool_use_id: CallId
    content: Annotated[tuple[TextBlock, ...], Meta(max_length=RESULT_BLOCKS_MAX)] = ()
    is_error: bool = False


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
Blocks: TypeAlias = Annotated[tuple[Block, ...], Meta(min_length=1, max_length=BLOCKS_MAX)]
