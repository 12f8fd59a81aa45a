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


class StatedWait(msgspec.Struct, frozen=True, kw_only=True):
    """One response's statement. Never a guess: what was not stated is `unknown`.

    `deadline_ms` is set exactly when `ends` is `until` (epoch milliseconds, rounded up). `raw` is
    the text it was read from, bounded and free of control characters.
    """

    kind: WaitKind
    ends: WaitEnds
    deadline_ms: int | None = None
    scope: WaitScope | None = None
    window: str | None = None
    source: str | None = None
    raw: str = ""
