"""What an account's last usage reading says of a run's next call, before there is any traffic.

A reading holds nobody by itself: an agent's own turn finds the wall by its call, and is held by
what the provider states then. A run gives up nothing by waiting as a row, so an item of one asks
first. Nothing is guessed about whether work would fit.

Invariants:
    I1  Only an account that is known to be out, until an instant that is known, refuses (`spent`).

Runs in: the loop thread.
"""

from __future__ import annotations

from .run_steps import context
from .usage_book import AccountUsage
from .wait_book import Deferral


def refusal(usage: AccountUsage, agent: str, model: str) -> Deferral | None:
    """Why a call of a run is not to be made now; None where nothing is known against it."""
    if usage.credential is None:
        return None
    spent = usage.book.spent(usage.credential, model)
    if spent is None:
        return None
    reason = f"the account's window {spent.window} is used up, as it was read last"
    return Deferral(agent, model, spent.until_ms, reason, "quota", spent.window, True)


def in_item() -> bool:
    """Whether an item of a run makes the call."""
    return context.get() is not None
