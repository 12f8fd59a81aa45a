"""Envelopes that a crash brings back, known again by what the cell kept of them.

An actor that owes a reply keeps the work behind it in its cell. After a crash the envelope comes
back although that work is still queued or out, and must not be begun a second time.

Invariants:
    I1  Each kept piece of work claims at most one envelope, and none once its reply is settled, so
        a message that is sent again later is work of its own.

Runs in: the loop thread, in one incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abeyance.actors.core import Reply


class Redelivered:
    """What an incarnation found in its cell, by message."""

    def __init__(self, kept: Iterable[tuple[Any, Reply]]) -> None:
        self._kept: dict[int, list[tuple[Any, Reply]]] = {}
        for message, reply in kept:
            # By identity: equal messages of two senders are two messages. The message is held, so
            # its identity is not given to another meanwhile.
            self._kept.setdefault(id(message), []).append((message, reply))

    def claims(self, message: Any) -> bool:
        """Whether this envelope came back and its work is kept. Claims it once."""
        kept = self._kept.get(id(message))
        while kept:
            _, reply = kept.pop()
            if not reply.settled:
                return True
        return False

    def forget(self, message: Any) -> None:
        """Let go of a message whose reply was settled."""
        if self._kept:
            self._kept.pop(id(message), None)
