"""What a provider stated about when it may be called again."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class WaitKind(StrEnum):
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    OTHER = "other"


class WaitEnds(StrEnum):
    UNTIL = "until"
    UNTIL_RELEASED = "until_released"
    ALREADY_OVER = "already_over"
    UNKNOWN = "unknown"


class WaitScope(StrEnum):
    MODEL = "model"
    ACCOUNT = "account"


_LENGTHS = (WaitEnds.UNKNOWN, WaitEnds.ALREADY_OVER, WaitEnds.UNTIL, WaitEnds.UNTIL_RELEASED)


class StatedWait(msgspec.Struct, frozen=True, kw_only=True):
    """One response's statement. Never a guess: what was not stated is `unknown`.

    `deadline_ms` is set exactly when `ends` is `until` (epoch milliseconds, rounded up). `raw` is
    the text it was read from, bounded and free of control characters.

    `account_deadline_ms` is a second wait of the same response: where what binds longest is not
    said to be the whole account's, until when the account as a whole waits as well, which is never
    longer. A model's week and the account's five hours may both be used up.
    """

    kind: WaitKind
    ends: WaitEnds
    deadline_ms: int | None = None
    scope: WaitScope | None = None
    account_deadline_ms: int | None = None
    window: str | None = None
    source: str | None = None
    raw: str = ""

    @property
    def length(self) -> tuple[int, int]:
        """What orders statements by how long they bind; what states no end is the shortest."""
        return _LENGTHS.index(self.ends), self.deadline_ms or 0


def longer(one: StatedWait | None, other: StatedWait | None) -> StatedWait | None:
    """Of two statements about one failed call the longer, with what either says of the account.

    The first is the nearer to the failure: what kind it is is known from there, and whose, where
    the other does not say.
    """
    if one is None or other is None:
        return one or other
    binding = one
    of_account = other.scope is WaitScope.ACCOUNT
    if other.length > one.length or (of_account and other.length == one.length):
        binding = msgspec.structs.replace(
            other,
            kind=one.kind,
            scope=other.scope or one.scope,
            window=other.window or one.window,
            account_deadline_ms=None,
        )
    ends = [each for each in map(account_ms, (one, other)) if each is not None]
    latest = max(ends, default=None)
    if binding.scope is WaitScope.ACCOUNT or latest == binding.account_deadline_ms:
        return binding
    return msgspec.structs.replace(binding, account_deadline_ms=latest)


def account_ms(stated: StatedWait) -> int | None:
    """Until when the account as a whole waits; None where that is not stated, or has no end."""
    if stated.scope is WaitScope.ACCOUNT:
        return stated.deadline_ms
    return stated.account_deadline_ms
