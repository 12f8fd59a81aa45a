"""The rows that content stands on which names attachments: guards of heads, and uses. No actor.

Invariants:
    I1  Whatever names an attachment guards its head, which must be whole, and puts its use in the
        same commit: so the head is there for as long as the use is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from abeyance.storage.codec import encode
from abeyance.storage.store import Guard, Put, Store
from abeyance.storage.tables.attachments import AttachmentUse
from abeyance.storage.tables.blocks import ATTACHMENTS_MAX, AttachmentBlock, Block, attachments_in

from .errors import InvalidMessageError, MessageTooLargeError, UnknownAttachmentError
from .media import KINDS, fits


class Named(NamedTuple):
    """An attachment that content names, and where."""

    field: str
    block: AttachmentBlock


class Uses(NamedTuple):
    """What a request that stores content has besides, for the attachments which that names."""

    guards: tuple[Guard, ...] = ()
    puts: tuple[Put, ...] = ()


NO_USES: Final = Uses()


def read_named(blocks: Iterable[Block], field: str) -> tuple[Named, ...]:
    """The attachments that blocks name.

    Raises:
        InvalidMessageError: A block is shown as what its kind does not hold, or they are too many.
    """
    named = tuple(Named(*each) for each in attachments_in(blocks, field))
    for where, block in named:
        known = KINDS[type(block)]
        if block.media_type not in known:
            kinds = ", ".join(sorted(known))
            raise InvalidMessageError(
                f"{where}.media_type", f"must be one of {kinds}, not {block.media_type!r:.60}"
            )
    if len(named) > ATTACHMENTS_MAX:
        count = len(named)
        raise InvalidMessageError(field, f"must name at most {ATTACHMENTS_MAX}, not {count}")
    return named


def check_sizes(named: Iterable[Named], bytes_max: int) -> None:
    """Refuse attachments that are larger than an agent takes.

    Raises:
        MessageTooLargeError: Names the first.
    """
    for field, block in named:
        if block.size_bytes > bytes_max:
            raise MessageTooLargeError(f"{field}.size_bytes", block.size_bytes, bytes_max)


def uses_of(
    store: Store,
    named: Iterable[Named],
    kind: Literal["call", "entry"],
    owner: str,
    number: int,
    at_ms: int,
) -> Uses:
    """The rows that content stands on.

    Args:
        kind: `entry`: the content of an entry, `owner` its slot. `call`: a call's result, `owner`
            its agent and `number` its turn.
    Raises:
        UnknownAttachmentError: One is not stored, or not as it is named.
    """
    guards = check_named(store, named)
    if not guards:
        return NO_USES
    value = encode(AttachmentUse(at_ms=at_ms))
    puts = tuple(
        Put("attachment_uses", (guard.key[0], kind, owner, number), value) for guard in guards
    )
    return Uses(guards, puts)


def check_named(store: Store, named: Iterable[Named]) -> tuple[Guard, ...]:
    """See that what is named is stored, as it is named; the guards that keep it so.

    Raises:
        UnknownAttachmentError: One is not stored, or not as it is named.
        UnreadableRecordError: What says so cannot be read.
    """
    guards: dict[str, Guard] = {}
    for field, block in named:
        digest = block.digest
        row = store.get("attachments", (digest,))
        if row is None or row.record.state != "whole":
            raise UnknownAttachmentError(
                f"{field}.digest", "names no attachment of this store; attach its bytes first"
            )
        head = row.record
        if block.size_bytes != head.size_bytes:
            raise UnknownAttachmentError(
                f"{field}.size_bytes", f"must be that of the attachment, {head.size_bytes}"
            )
        if not fits(block.media_type, head.media_type):
            raise UnknownAttachmentError(
                f"{field}.media_type", f"must be that of the attachment, {head.media_type!r}"
            )
        guards[digest] = Guard("attachments", (digest,), row.counter)
    return tuple(guards.values())
