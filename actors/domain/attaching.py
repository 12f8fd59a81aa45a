"""Bytes on their way into the store: read, hashed and made ready in threads, a piece at a time.

Bytes are stored under their digest: the same bytes are written once, whoever attaches them, however
often. The pieces come first, each in a commit of its own; the head, by which content may name them,
becomes whole in a commit that guards every one of them.

Invariants:
    I1  A whole head has all its pieces, and they are of its digest, whatever else writes or deletes
        meanwhile.
    I2  What is refused is refused before anything is stored.
    I3  The loop holds at most a piece of it at a time, and never for longer than it takes to hand
        it over.

Runs in: the caller's task; what looks at bytes, in threads.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from pathlib import Path
from typing import IO, Any, Final, TypeAlias
from weakref import WeakValueDictionary

import trio
from msgspec.structs import replace

from abeyance.actors.core.clock import Clock
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Committed, Guard, Put, Request, Row, Store, Value
from abeyance.storage.tables.attachments import (
    PIECE_BYTES,
    Attachment,
    AttachmentPiece,
    pieces_of,
)
from abeyance.storage.tables.blocks import (
    ATTACHMENT_BYTES_MAX,
    AttachmentBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
)

from .errors import AttachmentTooLargeError, InvalidInputError
from .media import FIRST_BYTES, fits, is_text, kind_of, read_media_type

AttachmentSource: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str]
"""Bytes, or the path of a file that has them."""

NAME_CHARS_MAX: Final = 200
REFRESH_MS: Final = 3_600_000
"""What was attached longer ago than this is attached anew by attaching it again."""

declare("attach.begun", "an attachment is begun, and none of its pieces is stored")
declare("attach.piece", "a piece of an attachment is stored, and its head is not whole")
declare("attach.before_whole", "all pieces of an attachment are stored, and its head is not whole")
declare("attach.whole", "an attachment is stored, and nobody was told")


class Attacher:
    """Stores what is attached, of one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.journal: Any = None
        self._store = store
        self._clock = clock
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """By digest: of two who attach the same, one writes."""

    async def attach(
        self,
        source: object,
        media_type: object,
        name: object,
        bytes_max: int = ATTACHMENT_BYTES_MAX,
    ) -> AttachmentBlock:
        """See `AgentHandle.attach`."""
        called = read_file_name(name)
        reading = await _in_thread(_Source, source, media_type, bytes_max)
        try:
            digest = await _in_thread(reading.digest)
            lock = self._locks.setdefault(digest, trio.Lock())
            async with lock:
                await self._stored(digest, reading)
        finally:
            reading.close()
        kind = kind_of(reading.media_type)
        assert kind is not None
        return kind(
            digest=digest,
            media_type=reading.media_type,
            size_bytes=reading.size,
            name=called or reading.name,
        )

    async def _stored(self, digest: str, reading: _Source) -> None:
        """Have it stored. Others may store or delete it meanwhile: each commit says whether."""
        key, store = (digest,), self._store
        while True:
            head = store.get("attachments", key)
            if head is None:
                begun = Attachment(
                    state="writing",
                    media_type=reading.media_type,
                    size_bytes=reading.size,
                    pieces=pieces_of(reading.size),
                    attached_ms=self._clock.now_ms(),
                )
                await self._commit(_written(head, key, begun))
                crashpoint("attach.begun")
                continue
            if not fits(reading.media_type, head.record.media_type):
                raise InvalidInputError(
                    "media_type", f"must be {head.record.media_type!r}, as these bytes are stored"
                )
            if head.record.state == "whole":
                age_ms = self._clock.now_ms() - head.record.attached_ms
                if age_ms < REFRESH_MS or await self._commit(self._whole(head, key)):
                    return
                continue
            guards = await self._write_pieces(head, digest, reading)
            if guards is None:
                continue
            crashpoint("attach.before_whole")
            if await self._commit(self._whole(head, key, guards)):
                crashpoint("attach.whole")
                return

    def _whole(self, head: Row, key: tuple[str], guards: tuple[Guard, ...] = ()) -> Request:
        whole = replace(head.record, state="whole", attached_ms=self._clock.now_ms())
        return _written(head, key, whole, guards)

    async def _write_pieces(
        self, head: Row, digest: str, reading: _Source
    ) -> tuple[Guard, ...] | None:
        """Store the pieces that are not there; a guard of each. None: the head was written since.

        Raises:
            InvalidInputError: The file was changed since its digest was made.
        """
        guards = []
        for number in range(pieces_of(reading.size)):
            data, value = await _in_thread(reading.piece, number)
            guard = await self._write_piece(head, (digest, number), data, value)
            if guard is None:
                return None
            guards.append(guard)
        reading.check_is(digest)
        return tuple(guards)

    async def _write_piece(
        self, head: Row, key: tuple[str, int], data: bytes, value: Value
    ) -> Guard | None:
        stands = Guard("attachments", key[:1], head.counter)
        counter = 0
        while True:
            # Under the head as it was read: nobody writes over a piece of one that is whole.
            guards = (stands, Guard("attachment_pieces", key, counter))
            put = Put("attachment_pieces", key, value)
            if await self._commit(Request(guards=guards, puts=(put,))):
                crashpoint("attach.piece")
                return Guard("attachment_pieces", key, counter + 1)
            now = self._store.get("attachments", key[:1])
            if now is None or now.counter != head.counter:
                return None
            there = self._store.get("attachment_pieces", key)
            counter = 0 if there is None else there.counter
            # Another's, of a file that changed in its hands, is not what it stands under.
            if there is not None and there.record.data == data:
                return Guard("attachment_pieces", key, counter)

    async def _commit(self, request: Request) -> bool:
        """Whether it was stored; it was refused where somebody was first.

        Raises:
            NotStoredError: It could not be stored.
        """
        return isinstance(await self.journal.ask(request), Committed)


def _written(
    head: Row | None, key: tuple[str], record: Attachment, guards: tuple[Guard, ...] = ()
) -> Request:
    counter = 0 if head is None else head.counter
    guard = Guard("attachments", key, counter)
    return Request(guards=(guard, *guards), puts=(Put("attachments", key, encode(record)),))


async def _in_thread(run: Any, *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(run, *arguments)


def read_file_name(name: object) -> str | None:
    """The name of a file, or a refusal of what is none.

    Raises:
        InvalidInputError: It is no text, empty, too long, or has control characters.
    """
    if name is None:
        return None
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise InvalidInputError(
            "name", f"must be text of 1 to {NAME_CHARS_MAX} characters that can be printed, or None"
        )
    return str.__str__(name)


class _Source:
    """Bytes that are read piece by piece, twice: for their digest, and to be stored.

    Raises:
        InvalidInputError, AttachmentTooLargeError: They cannot be read, are none, are too many, or
            are not what they are said to be.
    """

    def __init__(self, source: object, media_type: object, bytes_max: int) -> None:
        self.name: str | None = None
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._bytes: bytes | None = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self.size = source.nbytes if isinstance(source, memoryview) else len(source)
            self._check_size(bytes_max)
            self._bytes = bytes(source)
        elif isinstance(source, (str, os.PathLike)):
            self.size = self._open(source)
        else:
            kind = type(source).__name__
            raise InvalidInputError("source", f"must be bytes or a path, not {kind}")
        try:
            self._check_size(bytes_max)
            self.media_type = read_media_type(media_type, self._read(0, FIRST_BYTES))
        except BaseException:
            self.close()
            raise

    def _open(self, source: str | os.PathLike[str]) -> int:
        try:
            path = Path(source)
            # A pipe without a writer would be waited for, for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                os.close(descriptor)
                raise InvalidInputError("source", "must be a file, not a directory or a device")
            self._file = os.fdopen(descriptor, "rb", buffering=0)
        except (OSError, ValueError) as error:
            raise _unread(error) from None
        if path.name.isprintable() and 1 <= len(path.name) <= NAME_CHARS_MAX:
            self.name = path.name
        return found.st_size

    def _check_size(self, bytes_max: int) -> None:
        if self.size > bytes_max:
            raise AttachmentTooLargeError("source", self.size, bytes_max)
        if self.size == 0:
            raise InvalidInputError("source", "must not be empty")

    def _read(self, start: int, size: int) -> bytes:
        if self._bytes is not None:
            return self._bytes[start : start + size]
        assert self._file is not None
        parts, left = [], size
        try:
            self._file.seek(start)
            while left:
                part = self._file.read(left)
                if not part:
                    break
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise _unread(error) from None
        return b"".join(parts)

    def digest(self) -> str:
        """The digest of all of it; of a text, once it was seen to be one."""
        whole = hashlib.sha256()
        decoder = codecs.getincrementaldecoder("utf-8")() if is_text(self.media_type) else None
        for start in range(0, self.size, PIECE_BYTES):
            part = self._read(start, min(PIECE_BYTES, self.size - start))
            whole.update(part)
            if decoder is not None:
                try:
                    decoder.decode(part, final=start + PIECE_BYTES >= self.size)
                except UnicodeDecodeError:
                    raise InvalidInputError("source", "must be text in UTF-8") from None
        return whole.hexdigest()

    def piece(self, number: int) -> tuple[bytes, Value]:
        """One piece, and ready to be stored; they are asked for in order."""
        start = number * PIECE_BYTES
        data = self._read(start, min(PIECE_BYTES, self.size - start))
        if number == 0:
            self._hash = hashlib.sha256()
        self._hash.update(data)
        if not data:
            raise _changed()
        return data, encode(AttachmentPiece(data=data))

    def check_is(self, digest: str) -> None:
        """See that the pieces were of what the digest is of."""
        if self._hash.hexdigest() != digest:
            raise _changed()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _unread(error: Exception) -> InvalidInputError:
    why = getattr(error, "strerror", None) or str(error)
    return InvalidInputError("source", f"cannot be read ({why})")


def _changed() -> InvalidInputError:
    return InvalidInputError("source", "must not change while it is read")


__all__ = [
    "Attacher",
    "AttachmentSource",
    "AudioBlock",
    "DocumentBlock",
    "ImageBlock",
    "TextBlock",
]
