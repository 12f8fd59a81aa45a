"""Bytes that show themselves to be of some media type; what tests of attachments share."""

from __future__ import annotations

import hashlib
import random
from contextlib import aclosing
from typing import Any

from abeyance.storage.tables.attachments import PIECE_BYTES

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = PNG + b"a small picture"
PDF = b"%PDF-1.7 a document"
WAV = b"RIFF\x10\x00\x00\x00WAVE a sound"


def picture(size: int = 2 * PIECE_BYTES + 7, seed: int = 1) -> bytes:
    """A picture of so many bytes, the same for the same seed."""
    return (PNG + random.Random(seed).randbytes(size))[:size]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def read(request: Any, digest: str) -> bytes:
    """An attachment as an adapter reads it."""
    async with aclosing(request.attachments.pieces(digest)) as pieces:
        return b"".join([piece async for piece in pieces])
