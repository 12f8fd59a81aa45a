"""The rows of messages that one request accepts. No actor, no await.

Each message has four: its id, which must be new, its body, its place, and its wake. They are kept
in columns, packed as they come, so that nothing is left to be refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from abeyance.storage.codec import pack_sound
from abeyance.storage.store import Chain, Guard, Key, Limits, Request, Rows
from abeyance.storage.tables.slots import Body, Entry, Inboxed, MessageId, Wake

from .slot_forms import placed
from .slot_messages import Accept

OPS_AN_ACCEPT: Final = 5
"""Its id's guard, its id, body and place, and its wake; one with a subject may write another's id
besides."""
TOGETHER_MAX: Final = 32
"""Messages that share a request: as many as are answered before the loop gets a turn."""
TOGETHER_BYTES_MAX: Final = 256 * 1024
"""Content of messages that share a request."""


class _Column(NamedTuple):
    keys: list[Key]
    bodies: list[bytes]


class Accepts:
    """What one request accepts, in the order in which it came."""

    __slots__ = ("_bodies", "_ids", "_inbox", "_slots", "_wakes", "size")

    def __init__(self) -> None:
        self._ids = _Column([], [])
        self._bodies = _Column([], [])
        self._inbox = _Column([], [])
        self._slots = _Column([], [])
        self._wakes = _Column([], [])
        self.size = 0
        """Bytes of content."""

    def __len__(self) -> int:
        return len(self._ids.keys)

    def has_room(self, size: int, limits: Limits) -> bool:
        """Whether one more message, of so many bytes, may share the request."""
        count = len(self._ids.keys)
        return (
            count < TOGETHER_MAX
            and self.size + size <= TOGETHER_BYTES_MAX
            and (count + 1) * OPS_AN_ACCEPT < limits.ops_max
        )

    def add(
        self,
        slot: str,
        accept: Accept,
        row: Inboxed,
        entry: int,
        seq: int | None,
        wake: Wake | None,
    ) -> None:
        """Add a message.

        Args:
            row: As it is in the inbox.
            seq: Its place in the slot; None: it waits in the inbox.
            wake: None: it asks for no turn.
        """
        place, pack = (slot, entry), pack_sound
        known = MessageId(
            entry=entry,
            state="inbox" if seq is None else "slot",
            seq=seq,
            body_crc=accept.body_crc,
        )
        keys, bodies = self._ids
        keys.append((slot, accept.message))
        bodies.append(pack(known))
        keys, bodies = self._bodies
        keys.append(place)
        bodies.append(accept.body.body)
        self.size += row.body_bytes
        if seq is None:
            keys, bodies = self._inbox
            keys.append(place)
            bodies.append(pack(row))
        else:
            keys, bodies = self._slots
            keys.append((slot, seq))
            bodies.append(pack(placed(slot, entry, row)))
        if wake is not None:
            keys, bodies = self._wakes
            keys.append(place if accept.agent == slot else (accept.agent, entry))
            bodies.append(pack(wake))

    def request(self, owner: Guard, chain: Chain) -> Request:
        """What accepts them. Nothing is added any more."""
        places = self._bodies.keys
        rows = [
            Rows("ids", MessageId.KIND, MessageId.VERSION, *self._ids, True),
            Rows("bodies", Body.KIND, Body.VERSION, *self._bodies),
        ]
        for table, record, (keys, bodies) in (
            ("inbox", Inboxed, self._inbox),
            ("slots", Entry, self._slots),
            ("wakes", Wake, self._wakes),
        ):
            if keys:
                # Lists of keys that are the same are encoded once.
                shared = places if keys == places else keys
                rows.append(Rows(table, record.KIND, record.VERSION, shared, bodies))
        return Request((owner,), (), (), (), chain, tuple(rows))
