"""Which attachments may go: those that nothing names, and what an attaching that died left.

Invariants:
    I1  One that is deleted was `leaving` while its uses were looked through: what was accepted
        before is among them, and what comes later finds it not whole. So nothing names it.
    I2  Pieces go first, each deletion under the head as it was read: a death leaves a head by which
        the rest is found, and whoever attaches the bytes again stops it.

Runs in: the task of `retention`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Delete, Guard, Key, Put, Request, Row, Store
from abeyance.storage.tables.blocks import attachments_in

LEFTOVER_MS: Final = 86_400_000
"""An attaching that is older has died: none takes a day."""

declare("retention.leaving", "an attachment is leaving, and its uses are not looked through again")

Rows = Callable[[str, Key], AsyncIterable[tuple[Key, Any]]]
Commit = Callable[[Request], Awaitable[bool]]


class AttachmentPruner:
    """Deletes attachments of one store.

    Args:
        rows: The rows of a table below a prefix, a slice a step.
        commit: Stores a request; whether its guards held.
        room: Rows that one commit deletes.
    """

    def __init__(self, store: Store, rows: Rows, commit: Commit, room: int) -> None:
        self._store = store
        self._rows = rows
        self._commit = commit
        self._room = room

    async def run(self, now_ms: int, before_ms: int) -> None:
        """Delete what was attached before an instant and is named by nothing, and leftovers."""
        async for key, head in self._rows("attachments", ()):
            if not isinstance(head, Row):
                continue
            state, attached_ms = head.record.state, head.record.attached_ms
            if state == "writing":
                if attached_ms < now_ms - LEFTOVER_MS:
                    await self._delete(key, head)
            elif state == "leaving" or attached_ms < before_ms:
                await self._look(key, head)

    async def _look(self, key: Key, head: Row) -> None:
        if head.record.state == "whole":
            if await self._is_used(key):
                return
            head = await self._put(key, head, "leaving") or head
            if head.record.state == "whole":
                return
            crashpoint("retention.leaving")
        if await self._is_used(key):
            # It was named in between, or by what a pass that died had not seen.
            await self._put(key, head, "whole")
        else:
            await self._delete(key, head)

    async def _put(self, key: Key, head: Row, state: Any) -> Row | None:
        record = replace(head.record, state=state)
        guard = Guard("attachments", key, head.counter)
        put = Put("attachments", key, encode(record))
        if await self._commit(Request(guards=(guard,), puts=(put,))):
            return Row(head.counter + 1, record)
        return None

    async def _is_used(self, key: Key) -> bool:
        """Whether anything names it. Uses that name it no more are deleted."""
        gone: list[tuple[Key, int]] = []
        is_used = False
        async for use, row in self._rows("attachment_uses", key):
            if not isinstance(row, Row) or self._counts(use):
                is_used = True
                break
            gone.append((use, row.counter))
            if len(gone) >= self._room:
                await self._forget(gone)
                gone = []
        await self._forget(gone)
        return is_used

    async def _forget(self, uses: list[tuple[Key, int]]) -> None:
        if uses:
            table = "attachment_uses"
            guards = tuple(Guard(table, use, counter) for use, counter in uses)
            deletes = tuple(Delete(table, use) for use, _ in uses)
            await self._commit(Request(guards=guards, deletes=deletes))

    def _counts(self, use: Key) -> bool:
        """Whether what a use stands for is there and names it; what cannot be read may."""
        digest, kind, owner, number = use
        if kind == "entry":
            found = self._store.scan("bodies", (owner, number), limit=1)
        else:
            found = self._store.scan("tool_calls", (owner, number))
        return any(not isinstance(row, Row) or _names(row.record, digest) for _, row in found)

    async def _delete(self, key: Key, head: Row) -> None:
        guards = (Guard("attachments", key, head.counter),)
        pieces = [
            Delete("attachment_pieces", (*key, number)) for number in range(head.record.pieces)
        ]
        for start in range(0, len(pieces), self._room):
            deletes = tuple(pieces[start : start + self._room])
            if not await self._commit(Request(guards=guards, deletes=deletes)):
                return  # Somebody attaches it again.
        await self._commit(Request(guards=guards, deletes=(Delete("attachments", key),)))


def _names(record: Any, digest: Any) -> bool:
    """Whether a row of `bodies` or `tool_calls` names an attachment."""
    said = getattr(record, "blocks", None)
    blocks = (*(record.result or ()), *(record.late or ())) if said is None else said
    return any(block.digest == digest for _, block in attachments_in(blocks))
