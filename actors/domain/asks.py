"""Who may ask whom. Asks go down only, so a chain of waiting ends; upwards there are only tells.

    host, runtime > agent > turn > slot, gate > ledger > journal
                    context > gate, journal
                                archive, reminders, alerts, runs, schedules > journal

A turn is its agent's task: what it asks counts as the agent's. A test walks this table and finds
no cycle; an ask that is not in it raises when it is sent.
"""

from __future__ import annotations

from typing import Final

ASKS: Final[dict[str, frozenset[str]]] = {
    "runtime": frozenset({"agent", "slot", "gate", "ledger", "runs", "journal"}),
    "agent": frozenset({"slot", "gate", "journal"}),
    "context": frozenset({"gate", "journal"}),
    "slot": frozenset({"journal"}),
    "gate": frozenset({"ledger"}),
    "ledger": frozenset({"journal"}),
    "archive": frozenset({"journal"}),
    "reminders": frozenset({"journal"}),
    "alerts": frozenset({"journal"}),
    "runs": frozenset({"journal"}),
    "schedules": frozenset({"journal"}),
    "alarm": frozenset(),
    "journal": frozenset(),
}
