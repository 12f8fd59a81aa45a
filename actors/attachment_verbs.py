"""Bytes that messages may name: stored ahead of them. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from abeyance.storage.tables.blocks import AttachmentBlock

from .domain.attaching import AttachmentSource

if TYPE_CHECKING:
    from .runtime import Runtime


class AttachmentVerbs:
    """The part of a runtime that is about attachments."""

    async def attach(
        self, source: AttachmentSource, *, media_type: str | None = None, name: str | None = None
    ) -> AttachmentBlock:
        """Store an image, a sound or a document durably, and return the block that names it.

        The block goes into a message, beside text or alone, or is what a tool returns; any number
        of them may name the bytes, which are stored once. What no message and no result names is
        deleted after `Retention.attachments_days`, 30 where nothing else is said.

        A checkpoint, many times where there is much. The bytes are read, hashed and made ready in
        threads, and stored in pieces of 384 KiB, a commit each. Cancelled: nothing names what was
        stored; attach it again to go on with it. Durable: on return.

        Args:
            source: Bytes, or the path of a file, which must not change meanwhile; 1 byte to 32 MiB.
            media_type: JPEG, PNG, GIF or WebP as `image/...`; `audio/wav`, `audio/mpeg`,
                `audio/ogg` or `audio/flac`; `application/pdf`; or `text/plain`, `text/markdown`,
                `text/csv` or `text/html`, in UTF-8. None: what the first bytes show, which a text's
                do not.
            name: What a person calls it, at most 200 characters. None: a path's last part.
        Returns:
            An `ImageBlock`, an `AudioBlock` or a `DocumentBlock`, by the media type.
        Raises:
            AttachmentTooLargeError: There are more bytes; names the size and the limit. Nothing was
                stored.
            InvalidInputError: Names the argument: it cannot be read, is empty, or is not of the
                media type. Nothing names what was stored.
            NotStoredError: A commit failed; nothing names what was stored.
            UnreadableRecordError: What is stored of it already cannot be read.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        with runtime._lifetime.answers():
            return await runtime._attacher.attach(source, media_type, name)
