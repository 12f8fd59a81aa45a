"""What a host hands in to be sent: one message, or several that are accepted together.

Everything is refused here, by field, before any effect; of a batch by its place in it, as in
`drafts[3].message[0].text`.

Runs in: the caller's task or thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Store, Value
from abeyance.storage.tables.blocks import TEXT_CHARS_MAX, AttachmentBlock, Block, TextBlock
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.slots import Inboxed, Wake

from .attachment_rows import Named, check_named, read_named
from .errors import (
    BatchTooLargeError,
    InvalidInputError,
    InvalidMessageError,
    MessageTooLargeError,
    UnknownAttachmentError,
)
from .ingress import (
    MESSAGE_BYTES_MAX,
    RESERVED_NAMES,
    Content,
    check_bytes,
    check_name,
    encode_body,
    encode_text,
    is_blank,
    is_plain,
    is_same,
    new_message_id,
    read_blocks,
    says_nothing,
)
from .slot_forms import inboxed, wake_of
from .slot_ids import check_same
from .slot_inbox import receipt_of
from .slot_messages import Accept, AcceptMany, Receipt
from .slot_rows import read_cuts

DRAFTS_MAX: Final = 10_000
"""Of one batch; what a store's one commit holds may be fewer."""
READ_SLICE: Final = 64
"""Drafts that are read before the loop gets a turn."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that is not sent yet: what `send` takes, for `send_many`."""

    content: Content
    author: str = "user"
    id: str | None = None
    wake: bool = True
    channel: str | None = None
    subject: str | None = None
    joins: bool = True
    at_ms: int | None = None
    """When it was said, in epoch milliseconds; None: now."""


def read_message(
    clock: Clock, agent: str, draft: Draft, bytes_max: int = MESSAGE_BYTES_MAX
) -> Accept:
    """What a host hands in for an agent, or a refusal that names the field, and hands back what is
    too large."""
    return read_said(
        clock,
        agent,
        draft.content,
        draft.author,
        draft.id,
        wake=draft.wake,
        channel=draft.channel,
        subject=draft.subject,
        joins=draft.joins,
        at_ms=draft.at_ms,
        bytes_max=bytes_max,
    )


def read_said(
    clock: Clock,
    agent: str,
    content: Content,
    author: str,
    id_: str | None,
    *,
    wake: bool,
    channel: str | None,
    subject: str | None,
    joins: bool,
    at_ms: int | None = None,
    bytes_max: int = MESSAGE_BYTES_MAX,
) -> Accept:
    """As `read_message`, of a message that needs no draft."""
    if type(author) is not str or not is_plain(author) or author in RESERVED_NAMES:
        author = check_name(author, "author")
    if id_ is not None:
        check_name(id_, "id", reserved=False)
    if channel is not None:
        check_name(channel, "channel", reserved=False)
    if subject is not None:
        check_name(subject, "subject", reserved=False)
    if type(wake) is not bool:
        _refuse_bool(wake, "wake")
    if type(joins) is not bool:
        _refuse_bool(joins, "joins")
    if at_ms is not None and (type(at_ms) is not int or not 0 <= at_ms <= INSTANT_MS_MAX):
        raise InvalidMessageError("at_ms", f"must be an instant in epoch ms, not {at_ms!r:.40}")
    named: tuple[Named, ...] = ()
    if type(content) is str and len(content) <= TEXT_CHARS_MAX:
        body = encode_text(content)
        if len(body.body) > bytes_max:
            check_bytes(body, "message", bytes_max)
    else:
        blocks = read_blocks(content)
        named = read_named(blocks, "message")
        body = _encode_said(blocks, bytes_max)
    now_ms = clock.now_ms()
    if at_ms is None:
        # A clock before the epoch, or far past it, makes no row that cannot be read.
        at_ms = now_ms if 0 <= now_ms <= INSTANT_MS_MAX else min(max(now_ms, 0), INSTANT_MS_MAX)
    own = author == agent or is_same(author, agent)
    return Accept(
        new_message_id(now_ms) if id_ is None else id_,
        body,
        body.body_crc,
        author,
        agent,
        channel,
        wake and not own,
        own,
        at_ms,
        id_ is not None,
        subject,
        joins,
        named,
    )


def _encode_said(blocks: tuple[Block, ...], bytes_max: int) -> Value:
    """Make the body of a message of any content, or refuse what a message does not hold."""
    for position, block in enumerate(blocks):
        if not isinstance(block, TextBlock | AttachmentBlock):
            kind = type(block).__struct_config__.tag
            raise InvalidMessageError(
                f"message[{position}].type",
                f"a sent message holds text and attachments, not {kind!r} blocks",
            )
    if all(isinstance(block, TextBlock) and is_blank(block.text) for block in blocks):
        raise says_nothing()
    return encode_body(blocks, bytes_max=bytes_max)


def _refuse_bool(value: object, field: str) -> NoReturn:
    raise InvalidMessageError(field, f"must be True or False, not {type(value).__name__}")


def read_history(drafts: object) -> tuple[Draft, ...]:
    """A channel's past as a batch: in the order in which it was said, waking nobody.

    Raises:
        InvalidMessageError: It is none, or one of it does not say when; names the place.
    """
    if not isinstance(drafts, Sequence) or isinstance(drafts, (str, bytes, bytearray)):
        kind = type(drafts).__name__
        raise InvalidMessageError("drafts", f"must be a sequence of Draft, not {kind}")
    said: list[tuple[int, Draft]] = []
    for place, draft in enumerate(drafts):
        at_ms = draft.at_ms if isinstance(draft, Draft) else None
        if type(at_ms) is not int:
            raise InvalidMessageError(
                f"drafts[{place}].at_ms", "must say when this was said, in epoch ms"
            )
        said.append((at_ms, replace(draft, wake=False)))
    # What was said at one instant keeps its order.
    return tuple(draft for _, draft in sorted(said, key=lambda each: each[0]))


class Batch:
    """Drafts on their way to one commit: read, and afterwards told apart again by their places.

    Args:
        drafts: A sequence of `Draft`, at most 10,000.
        channel: Of drafts that name none.
        bytes_max: Of one message.
    Raises:
        InvalidMessageError: It is none; names the place.
        BatchTooLargeError: There are more.
    """

    def __init__(
        self,
        clock: Clock,
        agent: str,
        drafts: object,
        channel: str | None,
        bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        if not isinstance(drafts, Sequence) or isinstance(drafts, (str, bytes, bytearray)):
            kind = type(drafts).__name__
            raise InvalidMessageError("drafts", f"must be a sequence of Draft, not {kind}")
        self.drafts: tuple[Draft, ...] = tuple(drafts)
        """As they were handed in; each is looked at by `read`."""
        if len(self.drafts) > DRAFTS_MAX:
            error = too_large("messages", len(drafts), DRAFTS_MAX, len(drafts))
            error.messages = self.drafts
            raise error
        self._clock = clock
        self._agent = agent
        self._channel = channel
        self._bytes_max = bytes_max
        self._accepts: dict[str, Accept] = {}
        self._ids: list[str] = []
        self._forms: dict[str, tuple[Inboxed, Wake | None]] = {}
        self._stored: dict[str, Receipt] = {}
        self._looked = False

    def read(self) -> Iterator[None]:
        """Read the drafts, a slice a step.

        Raises:
            InvalidMessageError, InvalidNameError: Names the draft and the field; of one that is
                too large `messages` are all of them.
        """
        for place, draft in enumerate(self.drafts):
            try:
                self._take(place, draft)
            except InvalidInputError as error:
                named = error.within(f"drafts[{place}]")
                if isinstance(named, MessageTooLargeError):
                    named.messages = self.drafts
                raise named from None
            if place % READ_SLICE == READ_SLICE - 1:
                yield

    def _take(self, place: int, draft: object) -> None:
        if not isinstance(draft, Draft):
            kind = "a mapping" if isinstance(draft, Mapping) else type(draft).__name__
            raise InvalidMessageError("type", f"must be a Draft, not {kind}")
        if draft.channel is None and self._channel is not None:
            draft = replace(draft, channel=self._channel)
        accept = read_message(self._clock, self._agent, draft, self._bytes_max)
        earlier = self._accepts.setdefault(accept.message, accept)
        if earlier is accept:
            self._forms[accept.message] = inboxed(accept), wake_of(accept)
        elif earlier.body_crc != accept.body_crc:
            first = self._ids.index(accept.message)
            raise InvalidMessageError("id", f"is that of drafts[{first}], which says other things")
        self._ids.append(accept.message)

    def look(self, store: Store, slot: str) -> Iterator[None]:
        """Look up which ids are used, a slice a step. To be stepped through right before asking:
        what comes meanwhile is told from a guard, and costs the slot a look at each.

        Raises:
            MessageConflictError: One was used for other content.
            UnknownAttachmentError: A draft names what is not stored.
        """
        cuts, looked = read_cuts(store, slot), True

        def is_cut(seq: int) -> bool:
            return any(cut.first <= seq <= cut.last for cut in cuts)

        for place, accept in enumerate(self._accepts.values(), 1):
            if accept.named:
                try:
                    check_named(store, accept.named)
                except UnknownAttachmentError as error:
                    place_of = self._ids.index(accept.message)
                    raise error.within(f"drafts[{place_of}]") from None
            if accept.known:
                try:
                    row = store.get("ids", (slot, accept.message))
                except StorageError:
                    row, looked = None, False  # The slot looks again, and says what is wrong.
                if row is not None:
                    check_same(accept, row.record.body_crc)
                    id_ = accept.message
                    self._stored[id_] = receipt_of(id_, row.record, is_cut)
            if place % READ_SLICE == 0:
                yield
        self._looked = looked

    @property
    def message(self) -> AcceptMany:
        """What the slot is asked: what was not found stored already."""
        stored = self._stored
        accepts = tuple(each for id_, each in self._accepts.items() if id_ not in stored)
        forms = tuple(each for id_, each in self._forms.items() if id_ not in stored)
        return AcceptMany(accepts, forms, self._looked)

    def each(self, answers: Sequence[Any]) -> tuple[Any, ...]:
        """The receipts in the order of the drafts, of which two may be one message."""
        by_id: dict[str, Any] = dict(self._stored)
        asked = (id_ for id_ in self._accepts if id_ not in self._stored)
        by_id.update(zip(asked, answers, strict=True))
        return tuple(by_id[id_] for id_ in self._ids)


def too_large(what: str, size: int, limit: int, count: int) -> BatchTooLargeError:
    return BatchTooLargeError(
        f"a batch of {count:,} messages has {size:,} {what}, and one commit of this store holds "
        f"{limit:,}; none of them was accepted; send them in smaller batches",
        what=what,
        size=size,
        limit=limit,
    )


__all__ = ["DRAFTS_MAX", "Batch", "Draft", "read_history", "read_message", "read_said", "too_large"]
