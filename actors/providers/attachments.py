"""Attachments in a request: who shows them to a model, and what stands where one is not shown.

A block names bytes by their digest. An adapter that declares a media type in `attachment_types`
reads them through the request, a piece at a time; for any other a line of text stands in the
block's place. A transcript outlives the provider it was written for: what one model was shown must
not make every later call of another fail.

Pure.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Iterable
from typing import Final, Literal, NamedTuple, Protocol

from msgspec.structs import replace

from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    ResultBlock,
    TextBlock,
    ToolResultBlock,
    attachments_in,
)

from .port import ModelRequest, ProviderError, ProviderMessage

IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
TEXTS: Final = frozenset({"text/plain", "text/markdown", "text/csv", "text/html"})
PDF: Final = "application/pdf"


class Attachments(Protocol):
    """Where a request's attachments are read."""

    def pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an attachment, in order, in pieces of a multiple of three bytes; the last
        may be any. A checkpoint a piece; close it where it is left early.

        Raises:
            AttachmentUnreadableError: Some of it is not there, or cannot be read.
        """


class AttachmentUnreadableError(ProviderError):
    """An attachment of a request cannot be read. The provider got no whole request."""

    code = "attachment_unreadable"


def in_words(block: AttachmentBlock) -> str:
    """What a model is told of an attachment that it is not shown. The same block, the same text."""
    name = "" if block.name is None else f" {block.name!r},"
    size = f"{block.size_bytes:,} bytes"
    return f"[attached:{name} {block.media_type}, {size}; it is not shown here]"


def types_of(provider: object) -> frozenset[str]:
    """The media types that a provider's adapter shows to models; none where it declares none."""
    types: object = getattr(provider, "attachment_types", None)
    return frozenset(types) if isinstance(types, set | frozenset) else frozenset()


def shown(
    messages: Iterable[ProviderMessage], types: frozenset[str]
) -> tuple[ProviderMessage, ...]:
    """Messages with the attachments of these media types, and in words all others.

    In the agent's own words none is shown: no wire has a place for it there.
    """
    return tuple(_shown(message, types) for message in messages)


def _shown(message: ProviderMessage, types: frozenset[str]) -> ProviderMessage:
    if next(attachments_in(message.blocks), None) is None:
        return message
    if message.role == "assistant":
        types = frozenset()
    return ProviderMessage(message.role, tuple(_block(block, types) for block in message.blocks))


def _block(block: Block, types: frozenset[str]) -> Block:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=tuple(_part(part, types) for part in block.content))
    return _part(block, types) if isinstance(block, AttachmentBlock) else block


def _part(part: ResultBlock, types: frozenset[str]) -> ResultBlock:
    if isinstance(part, AttachmentBlock) and part.media_type not in types:
        return TextBlock(text=in_words(part))
    return part


def digests_of(request: ModelRequest) -> set[str]:
    """The attachments that a request names."""
    return {
        block.digest for message in request.messages for _, block in attachments_in(message.blocks)
    }


Form = Literal["base64", "text"]


class Place(NamedTuple):
    """Where an attachment goes in a request's JSON, and how it is written there."""

    block: AttachmentBlock
    form: Form


class Places:
    """Stands for attachments in a request's JSON until it leaves.

    What an SDK and an HTTP client make of a request, they make on the loop, whole: so they are
    given a mark for each attachment, which nobody can guess, and its bytes take the mark's place
    on their way out (`outgoing`).
    """

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._places: list[Place] = []

    def base64(self, block: AttachmentBlock) -> str:
        """Stands for the bytes in base64, within a JSON string."""
        return self._mark(Place(block, "base64"))

    def data_url(self, block: AttachmentBlock) -> str:
        return f"data:{block.media_type};base64,{self.base64(block)}"

    def text(self, block: AttachmentBlock) -> str:
        """Stands for the bytes as text, within a JSON string."""
        return self._mark(Place(block, "text"))

    def _mark(self, place: Place) -> str:
        self._places.append(place)
        return f"{self._token}-{len(self._places) - 1}-"

    def __bool__(self) -> bool:
        return bool(self._places)

    def split(self, body: bytes) -> list[bytes | Place]:
        """The parts of a request's JSON, in order.

        Raises:
            ValueError: A mark is not there, or there twice.
        """
        parts = re.split(rb"%s-([0-9]+)-" % self._token.encode(), body)
        numbers = [int(part) for part in parts[1::2]]
        if sorted(numbers) != list(range(len(self._places))):
            raise ValueError("a request's attachments are not where they were put")
        split: list[bytes | Place] = [parts[0]]
        for number, part in zip(numbers, parts[2::2], strict=True):
            split += (self._places[number], part)
        return split


__all__ = [
    "IMAGES",
    "PDF",
    "TEXTS",
    "AttachmentUnreadableError",
    "Attachments",
    "AudioBlock",
    "DocumentBlock",
    "ImageBlock",
    "Place",
    "Places",
    "digests_of",
    "in_words",
    "shown",
    "types_of",
]
