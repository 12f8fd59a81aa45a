"""What provider calls used, one row a call, and its sums by the quarter of an hour."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name

TOKENS_MAX: Final = 2**53
COST_MAX: Final = 2**63 - 1
SPENT_PARTS_MAX: Final = 64
"""Models of one quarter; what comes past it is summed as that of `*`."""
QUARTER_MS: Final = 900_000
"""Every zone's hours, days and months begin with a quarter."""

Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
Cost: TypeAlias = Annotated[int, Meta(ge=0, le=COST_MAX)]
"""In 1e-9 of the currency's unit."""
Count: TypeAlias = Annotated[int, Meta(ge=0)]
SpentFor: TypeAlias = Literal["turn", "auxiliary", "ephemeral", "run"]


class Spent(Record, frozen=True, kw_only=True):
    """What one provider call used. Written once, with the round that it was made for; without a
    round, as unknown before it is made, and once more when it is over."""

    KIND = "spent"
    purpose: SpentFor
    provider: Name | None
    """How its adapter is called; None: nobody is left to say."""
    model: Name
    outcome: Literal["replied", "failed", "cut_off", "unknown"]
    """`unknown`: it is out, or its process died, and it may have been made."""
    input_tokens: Tokens | None = None
    """None, here and below: nobody knows. Of a call that did not reply: at least so many."""
    output_tokens: Tokens | None = None
    cache_read_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None
    cost: Cost | None = None
    """None: the tokens are not known, or the host gave no price."""
    currency: Name | None = None
    run: Name | None = None
    """The run whose item made the call."""
    at_ms: Instant


class Budgeted(Record, frozen=True, kw_only=True):
    """How an agent stands with a budget in the period that begins at an instant.

    A row of another period than it is now says nothing.
    """

    KIND = "budgeted"
    period_ms: Instant
    allowances: Annotated[int, Meta(ge=1)] = 1
    """How often the whole amount may be used: once, and once more a release."""
    used_up_ms: Instant | None = None
    """Since when they are used up, and waits until the period's end are stated."""


class SpentPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sum of one provider and model."""

    provider: Name | None
    model: Name
    currency: Name | None = None
    calls: Count = 0
    unknown: Count = 0
    """Calls of which nobody knows what they used."""
    unpriced: Count = 0
    """Calls whose tokens are known and whose price is not."""
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    cost: Cost = 0


class SpentQuarter(Record, frozen=True, kw_only=True):
    """The sums of one agent's calls, of one purpose, in a quarter of an hour.

    It is put by the commit that puts the rows it sums, and by no other, so that each counts once.
    """

    KIND = "spent_quarter"
    parts: Annotated[tuple[SpentPart, ...], Meta(max_length=2 * SPENT_PARTS_MAX)]
