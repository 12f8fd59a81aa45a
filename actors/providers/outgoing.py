"""A request that names attachments, on its way out: its JSON in parts, their bytes in between.

The bytes are read from where they are stored as the connection takes them, a piece at a time, and
are in memory no longer than that. Their base64, or their text as JSON writes it, is made in a
thread: it is a part of a millisecond a piece.

Invariants:
    I1  The length is stated ahead and is what is sent; where it cannot be, nothing whole is.

Runs in the calling trio task.
"""

from __future__ import annotations

import binascii
import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar

import httpx2
import trio

from .attachments import Attachments, AttachmentUnreadableError, Place, Places

_outgoing: ContextVar[tuple[Places, Attachments | None] | None] = ContextVar(
    "abeyance_outgoing", default=None
)


@contextmanager
def leaving(places: Places, attachments: Attachments | None) -> Iterator[None]:
    """Have the request of this block leave with its attachments where their marks are."""
    token = _outgoing.set((places, attachments) if places else None)
    try:
        yield
    finally:
        _outgoing.reset(token)


async def outgoing(request: httpx2.Request, on_piece: Callable[[], None]) -> httpx2.Request:
    """The request as it leaves. A checkpoint where it has texts, which are measured first.

    Args:
        on_piece: Called whenever the connection has taken a piece.
    Raises:
        AttachmentUnreadableError: An attachment cannot be read.
    """
    given = _outgoing.get()
    if given is None:
        return request
    places, attachments = given
    if attachments is None:
        raise unreadable("this request has no attachments to read from")
    parts = places.split(await request.aread())
    length = 0
    for part in parts:
        length += len(part) if isinstance(part, bytes) else await _length(part, attachments)
    headers = [(k, v) for k, v in request.headers.multi_items() if k.lower() != "content-length"]
    return httpx2.Request(
        request.method,
        request.url,
        headers=[*headers, ("Content-Length", str(length))],
        stream=_Parts(parts, attachments, on_piece),
        extensions=request.extensions,
    )


def unreadable(why: str) -> AttachmentUnreadableError:
    return AttachmentUnreadableError(
        f"an attachment cannot be read: {why}; the provider got no whole request; see `abeyance "
        "check`, attach the same bytes again, or edit the message that names it",
        retryable=False,
        sent=False,
    )


async def _length(place: Place, attachments: Attachments) -> int:
    if place.form == "base64":
        return 4 * -(-place.block.size_bytes // 3)
    length = 0
    async with aclosing(_written(place, attachments)) as pieces:
        async for piece in pieces:
            length += len(piece)
    return length


async def _written(place: Place, attachments: Attachments) -> AsyncGenerator[bytes, None]:
    """An attachment's bytes as they stand in the JSON, a piece at a time."""
    write = _base64 if place.form == "base64" else _Escaped().write
    size = 0
    async with aclosing(attachments.pieces(place.block.digest)) as pieces:
        async for piece in pieces:
            size += len(piece)
            yield await trio.to_thread.run_sync(write, piece)
    if size != place.block.size_bytes:
        raise unreadable(f"it has {size} bytes, and {place.block.size_bytes} were attached")


def _base64(piece: bytes) -> bytes:
    return binascii.b2a_base64(piece, newline=False)


class _Escaped:
    """Text as a JSON string has it; a character may stand across two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes) -> bytes:
        return json.dumps(self._decoder.decode(piece)).encode()[1:-1]


class _Parts(httpx2.AsyncByteStream):
    def __init__(
        self,
        parts: list[bytes | Place],
        attachments: Attachments,
        on_piece: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._attachments = attachments
        self._on_piece = on_piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
                continue
            async with aclosing(_written(part, self._attachments)) as pieces:
                async for piece in pieces:
                    yield piece
                    self._on_piece()
