"""What a host says that tokens cost. Pure.

Money is `Decimal` where a host sees it, and an integer of 1e-9 of the currency's unit where it is
kept and summed: no float in between.

Invariants:
    I1  A cost is a provider's own count of tokens times the host's price, rounded once a call.
    I2  What the table does not name has no price; none is guessed.

Runs in: any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

from abeyance.actors.providers.port import Usage
from abeyance.storage.tables.spent import COST_MAX

from .errors import InvalidSpecError
from .ingress import check_model, check_name

NANO: Final = 10**9
PRICES_MAX: Final = 10_000
PRICE_MAX: Final = Decimal(1_000_000)
"""A million tokens for a million units."""
CURRENCY_CHARS_MAX: Final = 16
_EXACT: Final = Context(prec=60)
_A_TOKEN: Final = Decimal(NANO).scaleb(-6)
"""Of a price for a million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a million tokens of one model cost.

    Args:
        input: Tokens of requests that came from no cache.
        output: Tokens of replies.
        cache_read: Tokens that a cache had; None: as `input`.
        cache_write: Tokens that were put into a cache; None: as `input`.
    Raises:
        InvalidSpecError: Names the field that is no Decimal, or out of its bounds.
    """

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cache_read", "cache_write"):
            _check_amount(getattr(self, name), name, name.startswith("cache"))


@dataclass(frozen=True, slots=True)
class Prices:
    """What calls cost, by provider and model.

    Args:
        currency: What it is in, for people: `EUR`.
        table: (provider, model) to `Price`. A provider is named as its adapter is (`anthropic`,
            `openai`), or by its class; a model as the agent asks for it. At most 10,000.
    Raises:
        InvalidSpecError, InvalidNameError: Names the field that is malformed.
    """

    currency: str
    table: Mapping[tuple[str, str], Price]

    def __post_init__(self) -> None:
        check_name(self.currency, "currency")
        if len(self.currency) > CURRENCY_CHARS_MAX:
            raise InvalidSpecError("currency", f"must be at most {CURRENCY_CHARS_MAX} characters")
        # A copy: the prices stay as they are, whatever becomes of the mapping.
        object.__setattr__(self, "table", _table(self.table))

    def cost(self, provider: str, model: str, usage: Usage) -> int | None:
        """What a call cost, in 1e-9 of the currency's unit; None where the table has no price."""
        price = self.table.get((provider, model))
        if price is None:
            return None
        total = Decimal(0)
        for tokens, each in (
            (usage.input_tokens, price.input),
            (usage.output_tokens, price.output),
            (usage.cache_read_tokens, price.cache_read),
            (usage.cache_write_tokens, price.cache_write),
        ):
            of = price.input if each is None else each
            total = _EXACT.add(total, _EXACT.multiply(_EXACT.multiply(of, _A_TOKEN), tokens))
        return min(int(total.to_integral_value(ROUND_HALF_UP)), COST_MAX)


def money(nano: int) -> Decimal:
    """What is kept as an integer, in units of the currency."""
    return Decimal(nano).scaleb(-9, _EXACT)


def check_prices(prices: object) -> Prices | None:
    """Return a host's prices, or refuse what are none.

    Raises:
        InvalidSpecError: They are none.
    """
    if prices is None:
        return None
    if not isinstance(prices, Prices):
        raise InvalidSpecError("prices", f"must be Prices or None, not {type(prices).__name__}")
    return prices


def _table(given: object) -> dict[tuple[str, str], Price]:
    if not isinstance(given, Mapping):
        raise InvalidSpecError("table", "must be a mapping of (provider, model) to Price")
    if len(given) > PRICES_MAX:
        raise InvalidSpecError("table", f"must have at most {PRICES_MAX:,} prices")
    table: dict[tuple[str, str], Price] = {}
    for key, price in given.items():
        field = f"table[{key!r:.100}]"
        if not isinstance(key, tuple) or len(key) != 2:
            raise InvalidSpecError(field, "must be named by (provider, model)")
        provider, model = check_name(key[0], field), check_model(key[1], field)
        if not isinstance(price, Price):
            raise InvalidSpecError(field, f"must be a Price, not {type(price).__name__}")
        table[provider, model] = price
    return table


def _check_amount(amount: object, field: str, optional: bool) -> None:
    if amount is None and optional:
        return
    if not isinstance(amount, Decimal):
        text = "must be a Decimal: a float would not be what was written"
        raise InvalidSpecError(field, text)
    if not amount.is_finite() or not 0 <= amount <= PRICE_MAX:
        raise InvalidSpecError(field, f"must be from 0 to {PRICE_MAX:,} for a million tokens")
    if -int(amount.as_tuple().exponent) > 15:
        raise InvalidSpecError(field, "must have at most 15 places behind the point")
