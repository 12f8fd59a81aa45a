"""How long a request may be: what a provider says of one that is too long, and an estimate before.

Invariants:
    I1  A refusal is known by its structure, a code or a type. Words count only where a service has
        no code for it, and only within an error of the type that it has then.
    I2  What is unknown blocks nothing: a limit that nobody states, or that cannot be had.

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)

from .options import InvalidOptionError
from .port import ContextTooLongError, ModelRequest, name_of

BYTES_A_TOKEN: Final = 4
"""English prose has about four bytes a token, other languages and code fewer: so what is estimated
is seldom more than what a provider counts, and a request that would fit is seldom kept back."""
IMAGE_TOKENS: Final = 1_600
"""Of an image: what services scale a large one down to."""
DOCUMENT_TOKENS: Final = 1_500
"""Of a document that is no text: a page. How many it has, nobody looks."""
AUDIO_BYTES_A_TOKEN: Final = 3_200
"""A tenth of a second of speech, uncompressed; services count ten tokens a second."""
BODY_BYTES_MAX: Final = 64 * 1024
_CODES: Final = frozenset({"context_length_exceeded", "request_too_large"})
_WORDS: Final = re.compile(
    r"\s*(?:prompt is too long\b|input length and `max_tokens` exceed context limit\b)", re.I
)


def is_too_long(body: str | bytes | None) -> bool:
    """Whether a response, or an event of one, says that the request was too long. Total."""
    if not body or len(body) > BODY_BYTES_MAX:
        return False
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(data, Mapping):
        return False
    response = data.get("response")
    for place in (data, response if isinstance(response, Mapping) else {}):
        error = place.get("error", data if place is data else None)
        if isinstance(error, Mapping) and _says(error):
            return True
    return False


def _says(error: Mapping[str, Any]) -> bool:
    kind, code, message = (error.get(name) for name in ("type", "code", "message"))
    if (isinstance(code, str) and code in _CODES) or (isinstance(kind, str) and kind in _CODES):
        return True
    is_invalid = kind == "invalid_request_error"
    return is_invalid and isinstance(message, str) and _WORDS.match(message) is not None


def estimated_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has, without its reply: its bytes of UTF-8 by four."""
    size = _bytes(request.system or "")
    for message in request.messages:
        size += sum(_block_bytes(block) for block in message.blocks)
    for tool in request.tools:
        size += _bytes(tool.name) + _bytes(tool.description) + _bytes(str(tool.input_schema))
    return size // BYTES_A_TOKEN


def attachment_tokens(block: AttachmentBlock) -> int:
    """About how many tokens an attachment has that a model is shown."""
    match block:
        case ImageBlock():
            return IMAGE_TOKENS
        case AudioBlock():
            return block.size_bytes // AUDIO_BYTES_A_TOKEN + 1
        case DocumentBlock(media_type=media_type) if media_type.startswith("text/"):
            return block.size_bytes // BYTES_A_TOKEN + 1
        case DocumentBlock():
            return DOCUMENT_TOKENS


def check_length(provider: object, request: ModelRequest) -> None:
    """Refuse a request that is longer than its provider says the model takes, before it is made.

    Raises:
        ContextTooLongError: By the estimate; nothing was sent.
    """
    limit = _limit(provider, request.model)
    if limit is None:
        return
    tokens = estimated_tokens(request)
    if tokens > limit:
        error = ContextTooLongError(
            f"the request to {name_of(provider)} has about {tokens:,} tokens, and "
            f"{request.model!r} takes {limit:,}; nothing was sent; shorten the "
            "transcript (docs/context.md), or choose a model that takes more",
            retryable=False,
            sent=False,
        )
        error.provider, error.model = name_of(provider), request.model
        raise error


def checked_tokens(tokens: Mapping[str, int] | None) -> dict[str, int]:
    """Return the limits that an adapter was given, by model.

    Raises:
        InvalidOptionError: One is no positive whole number, or a model no text.
    """
    if tokens is not None and not isinstance(tokens, Mapping):
        raise InvalidOptionError(
            "context_tokens", f"must be a mapping of models to numbers, not {tokens!r:.80}"
        )
    for model, limit in dict(tokens or {}).items():
        if not isinstance(model, str) or type(limit) is not int or limit < 1:
            raise InvalidOptionError(
                "context_tokens",
                f"has positive numbers by model, not {model!r:.80}: {limit!r:.80}",
            )
    return dict(tokens or {})


def _limit(provider: object, model: str) -> int | None:
    known = getattr(provider, "context_tokens", None)
    try:
        limit = known(model) if callable(known) else None
    except Exception:  # noqa: BLE001 - anybody may have written the adapter; unknown blocks nothing.
        return None
    return limit if type(limit) is int and limit > 0 else None


def _block_bytes(block: Block) -> int:
    match block:
        case TextBlock():
            return _bytes(block.text)
        case ThinkingBlock():
            return _bytes(block.thinking) + len(block.signature)
        case ToolResultBlock():
            return sum(_block_bytes(part) for part in block.content)
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return attachment_tokens(block) * BYTES_A_TOKEN
        case _:
            return len(block.name) + _bytes(str(block.input))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
