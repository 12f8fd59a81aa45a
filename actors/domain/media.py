"""What an attachment may be: media types by kind of block, and what bytes show themselves to be.

A provider refuses a picture whose bytes are of another type than it is told, at every request that
carries it. So what the first bytes tell is held against what is said, before anything is stored.

Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from abeyance.storage.tables.blocks import AttachmentBlock, AudioBlock, DocumentBlock, ImageBlock

from .errors import InvalidInputError

KINDS: Final[dict[type[Any], frozenset[str]]] = {
    ImageBlock: frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
    AudioBlock: frozenset({"audio/wav", "audio/mpeg", "audio/ogg", "audio/flac"}),
    DocumentBlock: frozenset(
        {"application/pdf", "text/plain", "text/markdown", "text/csv", "text/html"}
    ),
}
"""What each kind of block may hold."""
FIRST_BYTES: Final = 12
"""As many as tell."""
_ALIASES: Final = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}
_MARKS: Final = (
    (rb"\x89PNG\r\n\x1a\n", "image/png"),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"RIFF....WEBP", "image/webp"),
    (rb"RIFF....WAVE", "audio/wav"),
    (rb"OggS", "audio/ogg"),
    (rb"fLaC", "audio/flac"),
    (rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]", "audio/mpeg"),
    (rb"%PDF-", "application/pdf"),
)
_MARKED: Final = tuple((re.compile(mark, re.S), media_type) for mark, media_type in _MARKS)


def is_text(media_type: str) -> bool:
    """Whether its bytes are text, in UTF-8."""
    return media_type.startswith("text/")


def shown_by(first: bytes) -> str | None:
    """The media type that the first bytes of an attachment show; None: they show none."""
    return next((known for mark, known in _MARKED if mark.match(first)), None)


def read_media_type(said: object, first: bytes, field: str = "media_type") -> str:
    """The media type of an attachment, out of what is said of it and its first bytes.

    Raises:
        InvalidInputError: It is none that a block may have, or another than the bytes show.
    """
    shown = shown_by(first)
    if said is None:
        if shown is None:
            raise InvalidInputError(field, f"must be said, for the bytes show none of {_all()}")
        return shown
    if not isinstance(said, str):
        raise InvalidInputError(field, f"must be text, not {type(said).__name__}")
    media_type = _ALIASES.get(said, said)
    if kind_of(media_type) is None:
        raise InvalidInputError(field, f"must be one of {_all()}, not {said!r:.60}")
    if shown != media_type and not (shown is None and is_text(media_type)):
        found = "none" if shown is None else shown
        raise InvalidInputError(field, f"must be what the bytes show ({found}), not {said!r:.60}")
    return media_type


def kind_of(media_type: str) -> type[AttachmentBlock] | None:
    """The kind of block that holds such bytes."""
    return next((kind for kind, types in KINDS.items() if media_type in types), None)


def fits(media_type: str, stored: str) -> bool:
    """Whether bytes that were attached as one type may be shown as another: texts may."""
    return media_type == stored or (is_text(media_type) and is_text(stored))


def _all() -> str:
    return ", ".join(sorted(each for types in KINDS.values() for each in types))
