"""What the actors of this room say to one another, but for the slot's part (`slot_messages`).

An actor's module is imported by the composition root only; the others know its messages.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from abeyance.actors.providers.port import Permit
from abeyance.storage.store import Request

from .pauses import Pause
from .wait_book import ProviderWait

# -- to the journal --------------------------------------------------------------------------


class Requests(tuple[Request, ...]):
    """Ask: several requests of one sender, in order. Answers an outcome each.

    A sender that plans many at a time hands them over together: one message for all of them.
    """

    weight = 0
    """What they come to, in messages whose senders wait; 0: one each."""
    taken = False
    """Whether the store took them. Until then none of them is stored, nor will be by itself."""


# -- to and from the ledger ------------------------------------------------------------------

Reach: TypeAlias = Literal["recorded", "pending", "in_process", "unbound"]
"""`in_process`: there is no record of it, and none to make; it holds until this process ends."""


class WaitReceipt(NamedTuple):
    """What a statement came to. `reach` is `unbound` where nothing binds."""

    changed: bool
    binding: ProviderWait | None
    reach: Reach


class ReleasedWait(NamedTuple):
    agent: str
    model: str
    reach: Reach


class ReleaseReceipt(NamedTuple):
    """The runtime's own waits that a release lifted; empty where nothing bound."""

    released: tuple[ReleasedWait, ...]


class CheckWait(NamedTuple):
    """Ask: does a wait bind this key? Answers a `Deferral` or None.

    `exempt`: what cannot be read holds nothing.
    """

    agent: str
    model: str | None
    exempt: bool = False


class RecordWait(NamedTuple):
    """Ask: record a provider's statement, its deadline computed already. Answers a receipt.

    `account` is the fingerprint of the credential that it binds as well, for `account_model` or for
    `*`. `own` is whether it binds the agent itself. `account_ms` is a second statement of the same
    response: until when, and no longer than the first, the credential is bound for `*`.
    """

    agent: str
    model: str
    deadline_ms: int | None
    reason: str
    account: str | None = None
    account_model: str = "*"
    own: bool = True
    account_ms: int | None = None
    window: str | None = None
    of_quota: bool = False
    """As in `Settle`."""


class ReleaseWaits(NamedTuple):
    """Ask: end the waits of an agent, of one model or (None) of all. Answers a receipt."""

    agent: str
    model: str | None
    by: str


class OfferPending(NamedTuple):
    """Ask: offer what is not recorded yet to storage now. Answered when that is over, whatever came
    of it."""


class AttachToWaits(NamedTuple):
    """Tell: whom to tell of releases that concern this agent."""

    agent: str
    ref: Any


class WaitBound(NamedTuple):
    """Told upwards to an agent of which a stated wait began to bind a model."""

    model: str
    deadline_ms: int | None
    reason: str


class WaitLifted(NamedTuple):
    """Told upwards to an agent whose waits were released; None is every model."""

    model: str | None


# -- to the gate -----------------------------------------------------------------------------


Purpose: TypeAlias = Literal["turn", "auxiliary", "ephemeral"]
"""What a call is for. One for an ephemeral run is held by no record that cannot be read, and what
it states is not recorded under the agent's name."""


class Admit(NamedTuple):
    """Ask: a permit for one call to this model. Answers a `Permit` or a `Deferral`.

    A model of None is a call that names none: it is held by what cannot be read of any model, and
    what it states can be recorded for none.
    """

    model: str | None
    purpose: Purpose
    careful: bool = False
    """Made for a run, which waits where the account's last usage reading is full."""


class Peek(NamedTuple):
    """Ask: would a call to this model be admitted now? Answers a `Deferral` or None."""

    model: str | None
    purpose: Purpose = "turn"


class Settle(NamedTuple):
    """Ask: return a permit with the call's outcome.

    `states` is a (deadline_ms or None, reason) to record, or None; `pauses` bind the whole agent at
    once. Answers a `WaitReceipt` or None.
    """

    permit: Permit
    outcome: Literal["succeeded", "failed", "unknown"]
    states: tuple[int | None, str] | None = None
    pauses: tuple[Pause, ...] = ()
    scope: str | None = None
    """What the provider stated it of."""
    account_ms: int | None = None
    """Until when it stated of the account, beside a longer wait of less."""
    quota: str | None = None
    """Why the turn is about to be held by a quota that states no end."""
    window: str | None = None
    """The account's window that is used up, where the provider named it."""
    of_quota: bool = False
    """Whether it stated an exhausted quota."""


class BeginPause(NamedTuple):
    """Tell: no call of this agent before the pause's end."""

    pause: Pause


class HoldByQuota(NamedTuple):
    """Tell: a quota that states no end holds the agent's turn on this model, so no auxiliary call
    goes to it; with None none does any more."""

    model: str | None
    reason: str = ""
    window: str | None = None


class CloseAdmission(NamedTuple):
    """Tell: give no permit any more, and refuse whoever waits for one."""


class LiftPauses(NamedTuple):
    """Tell: waits of a model (None: of every model) were released; shorten what they lengthened."""

    model: str | None


class WatchHolder(NamedTuple):
    """Tell: whose death returns the permits that are out."""

    ref: Any


# -- to the keeper of a context ----------------------------------------------------------------


class TurnBegan(NamedTuple):
    """Tell: a turn is at work, and may wait for a call that is out."""


class TurnOver(NamedTuple):
    """Tell: no turn is at work."""

    size: int | None = None
    """How many characters its last request came to; None where no turn was."""


class Shrink(NamedTuple):
    """Tell: a request was too long and its turn waits. Have the strategy look now, whatever its
    own measure says, and tell `ref` `Shrunk` when that is over."""

    ref: Any


class Shrunk(NamedTuple):
    """Told upwards to an agent: its strategy has looked; a turn may be compiled anew."""


# -- to and from the alarm -------------------------------------------------------------------


class WatchInstant(NamedTuple):
    """Tell: send `Due(key)` to `ref` once the instant has come; one registration a key."""

    key: str
    deadline_ms: int
    ref: Any


class ForgetInstant(NamedTuple):
    """Tell: drop a registration."""

    key: str


class Due(NamedTuple):
    """Told when an instant has come."""

    key: str
