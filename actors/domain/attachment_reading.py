"""Reading attachments for a request. A piece of the store a step of the loop.

Runs in: whichever task makes the call, on the loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import trio

from abeyance.actors.providers.attachments import digests_of, shown, types_of
from abeyance.actors.providers.outgoing import unreadable
from abeyance.actors.providers.port import ModelRequest
from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.store import Row, Store


class StoredAttachments:
    """The attachments of a store, as adapters read them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        """See `Attachments.pieces`."""
        try:
            for number in range(read_head(self._store, digest).record.pieces):
                await trio.lowlevel.checkpoint()
                row = self._store.get("attachment_pieces", (digest, number))
                if row is None:
                    raise unreadable(f"piece {number} of {digest} is not there")
                yield row.record.data
        except StorageError as error:
            raise unreadable(str(error)) from error


def read_head(store: Store, digest: str) -> Row:
    """What says of how many pieces an attachment is.

    Raises:
        UnreadableRecordError: It cannot be read, or is gone, which nothing that names it allows.
    """
    row = store.get("attachments", (digest,))
    if row is None or row.record.state == "writing":
        raise UnreadableRecordError(
            f"row {(digest,)!r} of table attachments is gone, and a message names it; nothing was "
            "sent; attach the same bytes again, or edit the message",
            table="attachments",
            key=(digest,),
            cause="gone",
        )
    return row


def with_attachments(store: Store, provider: object, request: ModelRequest) -> ModelRequest:
    """A request as a provider is given it: what its adapter shows can be read, and all else that is
    attached is in words.

    Raises:
        UnreadableRecordError: One that is shown is not there; nothing was sent.
    """
    request = replace(
        request,
        messages=shown(request.messages, types_of(provider)),
        attachments=StoredAttachments(store),
    )
    for digest in digests_of(request):
        read_head(store, digest)
    return request
