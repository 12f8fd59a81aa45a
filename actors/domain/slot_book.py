"""What moves messages through a slot, planned on its predicted state. No actor, no await.

The mirror (`slot_mirror`) is what the store will hold once every request planned so far is in.
Planning changes it at once, so that the next request can be planned and sent before the last is
committed; a refusal throws the mirror away and a new book is read. `slot_turns` plans a turn's
life on it.

Invariants:
    I1  inbox order = entry order; every drain takes a prefix, never skips.
    I2  lease.turn is set => messages go to the inbox; otherwise, with an empty inbox, to the slot.
    I3  A number is never used twice. Its body and slot row tell that it was used; a request that
        takes one without them, or moves rows, writes the lease, whose `entry_next` and `seq_next`
        then exceed every number used.
    I4  `ranges` is what the next request carries: all rows but markers and what a rewind cut off.
    I5  A wake that an agent's open turn answers is no wake any more, whether or not its row is
        deleted yet; those whose rows are left are in `answered`.
    I6  What refuses to be planned (an error of this package) leaves the mirror as it was.
    I7  While `is_deferring`, the slot takes a live turn's own rows and nothing else; only an agent
        that ends for good lands what is left for it.
    I8  `unread` are the messages from hosts that are in the slot and were not read, those that a
        rewind cut off included; `subjects` names, of those and the inbox, the newest of each
        subject, and may name one that is gone.
    I9  What moves out of the inbox is content that can be read: each move guards its row.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.errors import RequestTooLargeError
from abeyance.storage.store import Chain, Delete, Guard, Put, Request, Store, Value
from abeyance.storage.tables.blocks import Block
from abeyance.storage.tables.slots import (
    Body,
    Entry,
    Inboxed,
    Wake,
)

from .agent_limits import INBOX_BYTES_MAX, INBOX_ROWS_MAX
from .attachment_rows import NO_USES, Uses, check_sizes, read_named, uses_of
from .errors import InboxFullError
from .slot_accepts import Accepts
from .slot_draft import Draft
from .slot_forms import Moved, inboxed, moving_rows, wake_of
from .slot_long import LONG_ROWS, LongRequest, Planned
from .slot_messages import Accept, Rewake
from .slot_mirror import SlotMirror
from .slot_reading import joined
from .slot_rows import may_join

OPS_RESERVE: Final = 16
"""Operations of a request kept free for what is not a moved message."""
OPS_A_MESSAGE: Final = 5
"""Moving one message: its content is there; out of the inbox, into the slot, its id row, its
wake."""
PAYLOAD_RESERVE: Final = 256 * 1024
"""Bytes of a request kept free for what is not the content of a message."""


class SlotBook(SlotMirror):
    """What is planned on the mirror of one slot. See the module's invariants."""

    def __init__(self, store: Store, slot: str, owner_counter: int, *, read: bool = True) -> None:
        super().__init__(store, slot, owner_counter, read=read)
        self._content_bytes_max = store.limits.payload_bytes_max - PAYLOAD_RESERVE

    # -- acceptance --------------------------------------------------------------------------

    def accept(self, accept: Accept, into: Accepts) -> tuple[int, int | None]:
        """Plan an acceptance: its entry number, and its place where it is in the slot at once.

        Args:
            into: Takes its rows; what they become a request with is planned next.
        Raises:
            InboxFullError, RequestTooLargeError: No room for it; nothing is planned.
            UnknownAttachmentError, MessageTooLargeError: As `uses`; nothing is planned.
        """
        lands, size = self.lands_at_once, len(accept.body.body)
        full = len(self.inbox) >= INBOX_ROWS_MAX or self.inbox_bytes + size > INBOX_BYTES_MAX
        if (full or accept.agent in self.limits) and not lands:
            self.check_room(1, size, accept.agent)
        if size > self._content_bytes_max:
            self.check_size(accept.body)
        if accept.wake and accept.agent not in self.wakes:
            self.attach(accept.agent)
        uses = self.uses(accept) if accept.named else NO_USES
        row, wake = inboxed(accept), wake_of(accept)
        # Nothing from here on refuses: what is packed was checked where the message came in.
        entry, seq = self.take_in(row, wake, lands=lands)
        into.add(accept, row, entry, seq, wake, uses)
        return entry, seq

    def uses(self, accept: Accept, entry: int | None = None) -> Uses:
        """What the acceptance of a message has besides, for the attachments that it names.

        Args:
            entry: Under which its content is; None: under the next one.
        Raises:
            UnknownAttachmentError, MessageTooLargeError: Nothing is planned.
        """
        limits = self.limits.get(accept.agent)
        if limits is not None:
            check_sizes(accept.named, limits.attachment_bytes_max)
        number = self._entry_next if entry is None else entry
        return uses_of(self.store, accept.named, "entry", self.slot, number, accept.at_ms)

    def accepts(self, agent: str) -> Accepts:
        """What takes the rows of messages for an agent that are accepted together."""
        return Accepts(self.slot, agent, self.store.limits)

    def take_in(self, row: Inboxed, wake: Wake | None, *, lands: bool) -> tuple[int, int | None]:
        """Take a message that there is room for: its number, and its place if it lands in the slot
        at once. Its rows are the caller's to write, and its agent's wakes are mirrored."""
        entry = self._entry_next
        self._entry_next = entry + 1
        seq = None
        if not lands:
            self.inbox[entry] = row
            self.inbox_bytes += row.body_bytes
        else:
            seq = self._seq_next
            self._seq_next = seq + 1
            self.next_rows.carries(seq, seq)
            self.unread[entry] = (seq, row)
        if row.subject is not None:
            self.remember(entry, row)
        if wake is not None:
            self.wakes[row.agent][entry] = wake
        return entry, seq

    def rewake(self, rewake: Rewake, chain: Chain) -> Planned:
        """Plan a wake for a message that is in the slot already, or for none."""
        self.attach(rewake.agent)
        draft, entry = Draft(), self.take_entry()
        wake = Wake(
            reason="message" if rewake.message is not None else "operator",
            author=rewake.author,
            message=rewake.message,
            channel=rewake.channel,
            at_ms=rewake.at_ms,
        )
        draft.put("wakes", (rewake.agent, entry), wake)
        self.wakes[rewake.agent][entry] = wake
        self.write_lease(draft)
        return self.request(draft, chain)

    def check_size(self, body: Value) -> None:
        """Refuse content that no request of this store could hold.

        Raises:
            RequestTooLargeError: Nothing is planned.
        """
        size_max = self._content_bytes_max
        if len(body.body) > size_max:
            raise RequestTooLargeError(
                f"{len(body.body)} bytes of content exceed the {size_max} that one request of this "
                "store holds; nothing was stored; send less at a time",
                field="body",
                size=len(body.body),
                limit=size_max,
            )

    def encode_content(self, blocks: tuple[Block, ...]) -> Value:
        """Make the body of a live turn's row, before anything is planned on it.

        Raises:
            InvalidRecordError, RequestTooLargeError: It cannot be stored; nothing is planned.
        """
        value = encode(Body(blocks=blocks))
        self.check_size(value)
        return value

    def content_uses(self, blocks: tuple[Block, ...], at_ms: int) -> Uses:
        """What a row of these blocks has besides, that is placed next; before anything is planned.

        Raises:
            UnknownAttachmentError: Nothing is planned.
        """
        named = read_named(blocks, "results")
        return uses_of(self.store, named, "entry", self.slot, self._entry_next, at_ms)

    def check_room(self, count: int, size: int, agent: str) -> None:
        """Refuse messages that the inbox, or what of it is an agent's, has no room for; one that
        goes into the slot needs none.

        Raises:
            InboxFullError: Nothing is planned.
        """
        if not (self.is_leased or self.inbox or self.is_deferring):
            return
        rows, bytes_ = len(self.inbox), self.inbox_bytes
        if rows + count > INBOX_ROWS_MAX or bytes_ + size > INBOX_BYTES_MAX:
            raise self._full(count, size)
        self._check_own_room(count, size, agent)

    def _check_own_room(self, count: int, size: int, agent: str) -> None:
        limits = self.limits.get(agent)
        if limits is None:
            return
        rows_max, bytes_max = limits.inbox_messages_max, limits.inbox_bytes_max
        rows, bytes_ = len(self.inbox), self.inbox_bytes
        if rows + count > rows_max or bytes_ + size > bytes_max:
            # Counted only where all of the inbox would be too much: it may be another agent's.
            rows, bytes_ = self.waiting(agent)
        if (count and rows + count > rows_max) or bytes_ + size > bytes_max:
            raise InboxFullError(
                f"the inbox of {agent!r} has no room for {count or 1} more ({rows} of {rows_max} "
                f"messages, {bytes_} and {size} more of {bytes_max} bytes, by its own limits); "
                "nothing was accepted, and what was to be sent is handed back; send it again after "
                "the live turn's end",
                rows=rows,
                rows_max=rows_max,
                bytes=bytes_,
                bytes_max=bytes_max,
                agent=agent,
            )

    def waiting(self, agent: str) -> tuple[int, int]:
        """How many messages wait in the inbox for an agent, and their bytes."""
        sizes = [row.body_bytes for row in self.inbox.values() if row.agent == agent]
        return len(sizes), sum(sizes)

    def check_replaces(self, older: Inboxed, size: int) -> None:
        """Refuse content that the inbox has no room for in the place of an older message.

        Raises:
            InboxFullError: Nothing is planned.
        """
        more = size - older.body_bytes
        if self.inbox_bytes + more > INBOX_BYTES_MAX:
            raise self._full(1, size)
        self._check_own_room(0, more, older.agent)

    def _full(self, count: int, size: int) -> InboxFullError:
        return InboxFullError(
            f"the inbox of {self.slot!r} has no room for {count} more ({len(self.inbox)} of "
            f"{INBOX_ROWS_MAX} messages, {self.inbox_bytes} and {size} more of {INBOX_BYTES_MAX} "
            "bytes); nothing was accepted, and what was to be sent is handed back; send it again "
            "after the live turn's end",
            rows=len(self.inbox),
            rows_max=INBOX_ROWS_MAX,
            bytes=self.inbox_bytes,
            bytes_max=INBOX_BYTES_MAX,
            agent=None,
        )

    # -- moving ------------------------------------------------------------------------------

    def drain_idle(self, chain: Chain) -> list[Planned]:
        """Plan what lands everything in an idle slot. Empty where nothing waits or a turn lives."""
        return [] if self.is_leased else self.drain_all(chain)

    def drain_all(self, chain: Chain) -> list[Planned]:
        """Plan what lands the whole inbox, in as many requests as it takes, each a valid prefix."""
        requests: list[Planned] = []
        while self.inbox and not self.is_deferring:
            requests.append(self._drain_once(chain))
        return requests

    def forget_answered(self, chain: Chain) -> list[Planned]:
        """Plan what deletes the rows of wakes that an open turn answers already (I5)."""
        answered, self.answered = self.answered, []
        room = self.store.limits.ops_max - OPS_RESERVE
        return [
            Request(
                guards=(self.owner,),
                deletes=tuple(Delete("wakes", key) for key in answered[at : at + room]),
                chain=chain,
            )
            for at in range(0, len(answered), room)
        ]

    def drain_until_rest_fits(self, chain: Chain) -> list[Planned]:
        """Plan drains until what is left fits one request that does something else besides."""
        requests = []
        while len(self.inbox) > len(self.prefix()):
            requests.append(self._drain_once(chain))
        return requests

    def _drain_once(self, chain: Chain) -> Planned:
        draft = Draft()
        self.move(draft, self.prefix())
        self.write_lease(draft)
        return self.request(draft, chain)

    def prefix(self, *, injectable: bool = False, reserve: int = 0) -> list[int]:
        """The inbox's prefix that one request can move; for injection it ends at the first message
        that cannot be injected. It cuts, it never skips."""
        if self.is_deferring:
            return []
        room = max(1, (self.store.limits.ops_max - OPS_RESERVE - reserve) // OPS_A_MESSAGE)
        taken: list[int] = []
        # In entry order (I1): rows are read in it, and each acceptance adds the largest.
        agent = self.lease.agent
        for entry, row in self.inbox.items():
            if len(taken) >= room or (injectable and not may_join(row, agent)):
                break
            taken.append(entry)
        return taken

    def move(self, draft: Draft, entries: list[int]) -> None:
        """Move messages from the inbox to the slot's end, in order."""
        if not entries:
            return
        inbox, unread, first, size = self.inbox, self.unread, self._seq_next, 0
        words = self.reworded
        moved = [
            Moved(entry, seq, inbox.pop(entry), words.pop(entry, 1) if words else 1)
            for seq, entry in enumerate(entries, first)
        ]
        for entry, seq, row, _ in moved:
            unread[entry] = (seq, row)
            size += row.body_bytes
        self.inbox_bytes -= size
        self._seq_next = first + len(moved)
        self.next_rows.carries(first, self._seq_next - 1)
        if len(moved) > LONG_ROWS:
            draft.moved += moved
            return
        for op in moving_rows(self.slot, moved):
            if isinstance(op, Put):
                draft.put_value(op.table, op.key, op.value)
            elif isinstance(op, Delete):
                draft.deletes.append(op)
            else:
                draft.guards = (*draft.guards, op)

    def place(
        self,
        draft: Draft,
        message: str,
        author: str,
        role: Any,
        content: Value,
        *,
        at_ms: int,
        round_: int | None = None,
        channel: str | None = None,
    ) -> None:
        """Put a row of the live turn at the slot's end: a reply, results, a marker."""
        entry, seq = self._entry_next, self._seq_next
        row = Entry(
            entry=entry,
            message=message,
            author=author,
            role=role,
            channel=channel,
            turn=self.lease.turn,
            round=round_,
            at_ms=at_ms,
        )
        draft.put("slots", (self.slot, seq), row)
        draft.put_value("bodies", (self.slot, entry), content)
        self.take_entry()
        self._take_seq()
        if role != "marker":
            self.next_rows.carries(seq, seq)
        else:
            self.next_rows.skips(seq)

    def sent(self, draft: Draft, sent: bool | None) -> None:
        """The call that the last `carried` was written for was made (None: it may have been)."""
        carried = self.carried
        if sent is False or carried is None or carried.sent or carried.sent is sent:
            return
        self.carried = replace(carried, sent=sent)
        draft.put("carried", (self.slot, self.lease.request_next - 1), self.carried)
        self.write_lease(draft, read=joined(self.lease.read, carried.rows))
        for first, last in carried.rows:
            # One range nearly always: a look at each message that was read, and no more.
            read = [entry for entry, (seq, _) in self.unread.items() if first <= seq <= last]
            for entry in read:
                _, row = self.unread.pop(entry)
                if row.subject is not None:
                    self.forget_subject(entry, row)

    # -- parts of a request ------------------------------------------------------------------

    def take_entry(self) -> int:
        self._entry_next += 1
        return self._entry_next - 1

    def _take_seq(self) -> int:
        self._seq_next += 1
        return self._seq_next - 1

    def write_lease(self, draft: Draft, **changes: Any) -> None:
        """Write the lease with the draft, as it stands when the draft becomes a request."""
        self._lease.record = replace(self.lease, **changes)
        draft.writes_lease = True

    def request(self, draft: Draft, chain: Chain) -> Planned:
        """Finish a draft: every request guards the owner; one that writes the lease guards it."""
        guards: tuple[Guard, ...] = (self.owner,)
        if draft.writes_lease:
            key = (self.slot,)
            guards = (self.owner, Guard("leases", key, self._lease.counter))
            lease = replace(self.lease, entry_next=self._entry_next, seq_next=self._seq_next)
            draft.put_counted("leases", key, self._lease, lease)
        if draft.moved:
            rows, limits = functools.partial(draft.rows, self.slot), self.store.limits
            every = (*guards, *draft.guards)
            return LongRequest(chain, limits, every, rows, tuple(draft.appends))
        return Request(
            guards=(*guards, *draft.guards) if draft.guards else guards,
            puts=tuple(draft.puts.values()),
            deletes=tuple(draft.deletes),
            appends=tuple(draft.appends),
            chain=chain,
        )
