"""The rows of messages that one request accepts. No actor, no await.

Each message has four: its id, which must be new, its body, its place, and its wake. They are kept
in columns, packed as they come, so that nothing is left to be refused.
"""

from __future__ import annotations

from typing import Any, Final

from abeyance.storage.codec import pack_sound
from abeyance.storage.store import Chain, Guard, Key, KeyPart, Limits, Put, Request, Rows
from abeyance.storage.tables.slots import Body, Entry, Inboxed, MessageId, Wake

from .attachment_rows import NO_USES, Uses
from .slot_forms import placed
from .slot_messages import Accept

OPS_AN_ACCEPT: Final = 5
"""Its id's guard, its id, body and place, and its wake; one with a subject may write another's id
besides."""
TOGETHER_MAX: Final = 32
"""Messages that share a request: as many as are answered before the loop gets a turn."""
TOGETHER_BYTES_MAX: Final = 256 * 1024
"""Content of messages that share a request."""


class Accepts:
    """What one request accepts, in the order in which it came: messages for one agent."""

    __slots__ = (
        "_agent",
        "_bodies",
        "_entries",
        "_guards",
        "_ids",
        "_inbox",
        "_known",
        "_landed",
        "_messages_max",
        "_puts",
        "_seqs",
        "_slot",
        "_waiting",
        "_wakes",
        "_waking",
        "count",
        "size",
    )

    def __init__(self, slot: str, agent: str, limits: Limits) -> None:
        self._slot = slot
        self._agent = agent
        # The owner's guard is one more.
        self._messages_max = min(TOGETHER_MAX, (limits.ops_max - 1) // OPS_AN_ACCEPT)
        # Last parts of keys, and the bodies beside them.
        self._ids: list[KeyPart] = []
        self._known: list[bytes] = []
        self._entries: list[KeyPart] = []
        self._bodies: list[bytes] = []
        self._waiting: list[KeyPart] = []
        self._inbox: list[bytes] = []
        self._seqs: list[KeyPart] = []
        self._landed: list[bytes] = []
        self._waking: list[KeyPart] = []
        self._wakes: list[bytes] = []
        self._guards: dict[Key, Guard] = {}
        self._puts: list[Put] = []
        self.count = 0
        self.size = 0
        """Bytes of content."""

    def has_room(self, accept: Accept) -> bool:
        """Whether one more message may share the request."""
        return (
            self.count < self._messages_max
            and self.size + len(accept.body.body) <= TOGETHER_BYTES_MAX
            and self._agent == accept.agent
        )

    def add(
        self,
        accept: Accept,
        row: Inboxed,
        entry: int,
        seq: int | None,
        wake: Wake | None,
        uses: Uses = NO_USES,
    ) -> None:
        """Add a message.

        Args:
            row: As it is in the inbox.
            seq: Its place in the slot; None: it waits in the inbox.
            wake: None: it asks for no turn.
            uses: Of the attachments that it names.
        """
        pack = pack_sound
        state: Any = "inbox" if seq is None else "slot"
        self.count += 1
        self.size += row.body_bytes
        self._ids.append(accept.message)
        self._known.append(
            pack(MessageId(entry=entry, state=state, seq=seq, body_crc=accept.body_crc))
        )
        self._entries.append(entry)
        self._bodies.append(accept.body.body)
        if seq is None:
            self._waiting.append(entry)
            self._inbox.append(pack(row))
        else:
            self._seqs.append(seq)
            self._landed.append(pack(placed(self._slot, entry, row)))
        if wake is not None:
            self._waking.append(entry)
            self._wakes.append(pack(wake))
        if uses is not NO_USES:
            self._guards.update((guard.key, guard) for guard in uses.guards)
            self._puts += uses.puts

    def request(self, owner: Guard, chain: Chain) -> Request:
        """What accepts them. Nothing is added any more."""
        slot, entries = (self._slot,), self._entries
        # Lists of numbers that are the same are encoded once.
        waiting = entries if self._waiting == entries else self._waiting
        waking = entries if self._waking == entries else self._waking
        rows = [
            Rows("ids", MessageId.KIND, MessageId.VERSION, slot, self._ids, self._known, True),
            Rows("bodies", Body.KIND, Body.VERSION, slot, entries, self._bodies),
        ]
        if waiting:
            rows.append(Rows("inbox", Inboxed.KIND, Inboxed.VERSION, slot, waiting, self._inbox))
        if self._seqs:
            rows.append(Rows("slots", Entry.KIND, Entry.VERSION, slot, self._seqs, self._landed))
        if waking:
            agent = (self._agent,)
            rows.append(Rows("wakes", Wake.KIND, Wake.VERSION, agent, waking, self._wakes))
        guards = (owner, *self._guards.values())
        return Request(guards, tuple(self._puts), (), (), chain, tuple(rows))
