"""What a model is told of its tool calls: results of bodies, recorded ones, and why there is none.

Pure.
"""

from __future__ import annotations

import json
from typing import Any, Final, get_args

import msgspec

from abeyance.storage.tables.blocks import (
    RESULT_BLOCKS_MAX,
    AttachmentBlock,
    Block,
    ResultBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from abeyance.storage.tables.slots import ToolCall

RESULT_CHARS_MAX: Final = 1_000_000
_PARTS: Final = get_args(ResultBlock)

UNKNOWN_TEXT: Final = (
    "The outcome of this call is unknown: the process died while it ran. "
    "It may have had its effect."
)
CUT_OFF_TEXT: Final = (
    "The outcome of this call is unknown: the turn was ended while it ran. "
    "It may have had its effect, or still have it."
)
TIMED_OUT_TEXT: Final = (
    "No result within the time limit of {limit} s. It may still have its effect."
)
UNTOLD_TEXT: Final = "The tool returned a value that is no text and no JSON: it is or holds {kind}."
CUT_OFF_AGAIN_TEXT: Final = (
    "This call was cut off: its turn was ended while it ran. It may have had its effect, "
    "and can be made again."
)
CANCELLED_TEXT: Final = "This call was not started: the turn was ended first."


def result_of(
    call: ToolUseBlock, *parts: str | AttachmentBlock, is_error: bool = False
) -> ToolResultBlock:
    """Texts and attachments as the result of a call, cut where they exceed what a result holds."""
    content: list[ResultBlock] = []
    left = RESULT_CHARS_MAX
    for part in parts:
        if not isinstance(part, str):
            is_last = len(content) == RESULT_BLOCKS_MAX - 1 < len(parts) - 1
            content.append(TextBlock(text="[cut]") if is_last else part)
            if is_last:
                break
            continue
        told = part.encode("utf-8", "replace").decode()
        if len(told) > left or len(content) == RESULT_BLOCKS_MAX - 1 < len(parts) - 1:
            content.append(TextBlock(text=told[:left] + "\n[cut]"))
            break
        content.append(TextBlock(text=told))
        left -= len(told)
    return ToolResultBlock(tool_use_id=call.id, content=tuple(content), is_error=is_error)


def recorded_of(call: ToolUseBlock, record: ToolCall) -> ToolResultBlock:
    """The result of a call as its row has it."""
    content = tuple(block for block in record.result or () if isinstance(block, ResultBlock))
    return ToolResultBlock(tool_use_id=call.id, content=content, is_error=record.is_error)


def told_of(call: ToolUseBlock, value: object) -> ToolResultBlock:
    """What a body returned, as the model is told it; an error where there is no telling."""
    if value is None:
        return result_of(call, "done")
    if isinstance(value, str):
        return result_of(call, value)
    blocks = (value,) if isinstance(value, ResultBlock) else value
    if isinstance(blocks, tuple | list) and blocks and all(type(b) in _PARTS for b in blocks):
        return result_of(call, *(b.text if isinstance(b, TextBlock) else b for b in blocks))
    untold: list[str] = []

    def plain(inner: object) -> Any:
        # Dates, data classes and their like; a block is no data of the tool's.
        try:
            if isinstance(inner, get_args(Block)):
                raise TypeError("a block")
            return msgspec.to_builtins(inner)
        except Exception:
            untold.append(type(inner).__name__)
            raise

    try:
        return result_of(call, json.dumps(value, ensure_ascii=False, default=plain))
    except Exception:  # noqa: BLE001 - it may do anything when it is looked at.
        kind = untold[0] if untold else type(value).__name__
        return result_of(call, UNTOLD_TEXT.format(kind=kind), is_error=True)
