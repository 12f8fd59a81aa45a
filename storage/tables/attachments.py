"""Attachments: bytes that messages name by their digest, written once, in pieces.

A head says what stands under a digest. Content may name it only while it is `whole`, and whoever
does so guards it and puts a row of use beside what names it. So a head that nothing uses can be
taken out without a look at all content there is.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from ..store import Record
from .blocks import ATTACHMENT_BYTES_MAX, MediaType
from .fields import Instant

PIECE_BYTES: Final = 3 * 2**17
"""384 KiB: divisible by three, so that the base64 of pieces in a row is the base64 of the whole."""
PIECES_MAX: Final = -(-ATTACHMENT_BYTES_MAX // PIECE_BYTES)


class Attachment(Record, frozen=True, kw_only=True):
    """What stands under a digest: of how many bytes, in how many pieces."""

    KIND = "attachment"
    state: Literal["writing", "whole", "leaving"]
    """`writing`: not all of its pieces are there. `whole`: they are, and content may name it.
    `leaving`: they are, and nothing named it when this was written; it is to be deleted."""
    media_type: MediaType
    """As what it was attached first."""
    size_bytes: Annotated[int, Meta(ge=1, le=ATTACHMENT_BYTES_MAX)]
    pieces: Annotated[int, Meta(ge=1, le=PIECES_MAX)]
    attached_ms: Instant


class AttachmentPiece(Record, frozen=True, kw_only=True):
    """A part of the bytes; all but the last of `PIECE_BYTES`. Never written again."""

    KIND = "attachment_piece"
    data: Annotated[bytes, Meta(min_length=1, max_length=PIECE_BYTES)]


class AttachmentUse(Record, frozen=True, kw_only=True):
    """Says what names an attachment: the content of an entry, or calls of a turn. It counts for as
    long as that is there and does."""

    KIND = "attachment_use"
    at_ms: Instant


def pieces_of(size_bytes: int) -> int:
    """How many pieces so many bytes are."""
    return -(-size_bytes // PIECE_BYTES)


USE_KINDS: Final = ("call", "entry")
"""Second part of the key of a use: of `entry` a slot and a number follow, under which the row of
`bodies` is; of `call` an agent and a turn."""

__all__ = [
    "PIECES_MAX",
    "PIECE_BYTES",
    "USE_KINDS",
    "Attachment",
    "AttachmentPiece",
    "AttachmentUse",
    "pieces_of",
]
