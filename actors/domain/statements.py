"""What a settlement says for the ledger: which wait, of whom, and of which of an account's models.

A gate hands it over with the settlement; who settles when the gate has ended, by itself.

Pure; on the loop thread.
"""

from __future__ import annotations

from .accounts import Account
from .overrides import EVERY
from .protocol import RecordWait, Settle


def statement_of(agent: str, settlement: Settle, account: Account | None) -> RecordWait | None:
    """What of a settlement is for the ledger; None where nothing is."""
    permit = settlement.permit
    if settlement.outcome == "succeeded":
        # A budget's word, no provider's: it is of the agent, and of none that shares its account.
        account = None
    own = permit.purpose != "ephemeral"
    if settlement.states is None or permit.model == EVERY or not (own or account):
        return None
    deadline_ms, reason = settlement.states
    is_narrow = account is not None and settlement.scope != "account"
    return RecordWait(
        agent,
        permit.model,
        deadline_ms,
        reason,
        account=None if account is None else account.name,
        account_model=permit.model if is_narrow else EVERY,
        own=own,
        account_ms=None if account is None else settlement.account_ms,
        window=settlement.window,
        of_quota=settlement.of_quota,
    )
