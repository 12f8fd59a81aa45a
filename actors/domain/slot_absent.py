"""A turn that holds a slot while its agent is not here, ended for those who wait. No actor.

A death leaves the lease with its turn, which goes on when its agent is added again. Where others
share the slot they wait for that; but an agent that nobody adds, or that is parked, is not waited
for. Its turn ends as by a stop: the open tool gap is closed with what is known, and its wakes are
given back as one, so that it has a fresh turn when it comes.
"""

from __future__ import annotations

from typing import Final

from abeyance.storage.store import Chain

from .slot_book import SlotBook
from .slot_messages import EndPair, EndTurn
from .slot_pairs import plan_pair_end
from .slot_turns import Plan, plan_end

ABSENT_S: Final = 10.0
"""For how long whoever waits for a slot waits for an agent that is not here."""
ABSENT_MARKER: Final = (
    "this turn was ended because its agent was not here and another waited; its wakes go on when "
    "it is added"
)


def plan_absent_end(book: SlotBook, now_ms: int, chain: Chain) -> Plan:
    """Plan the end of the turn, or the operator's pair, that holds the slot."""
    lease = book.lease
    assert lease.agent is not None
    assert lease.turn is not None
    book.attach(lease.agent)
    if lease.agent in book.pairs:
        pair = EndPair(lease.agent, lease.turn, lease.token, "cancelled", (), now_ms)
        return plan_pair_end(book, pair, chain)
    end = EndTurn(
        agent=lease.agent,
        turn=lease.turn,
        token=lease.token,
        state="cancelled",
        marker=ABSENT_MARKER,
        results=(),
        failures=book.turns[lease.agent].record.failures,
        sent=None,
        at_ms=now_ms,
        give_back=True,
    )
    return plan_end(book, end, chain)
