"""The last usage reading of each account: what it has used of its windows, and when each resets."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name

USAGE_WINDOWS_MAX: Final = 64
USAGE_ROWS_MAX: Final = 1_000
"""Accounts whose readings are kept; the one that was read longest ago makes room."""


class Window(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One window; what was not stated is None."""

    name: Name
    used_percent: Annotated[float, Meta(ge=0)] | None = None
    resets_ms: Instant | None = None
    scope: Literal["model", "account"] | None = None


class Usage(Record, frozen=True, kw_only=True):
    """The newest reading of an account, whose fingerprint is the key. It only moves forward."""

    KIND = "usage"
    windows: Annotated[tuple[Window, ...], Meta(max_length=USAGE_WINDOWS_MAX)]
    read_ms: Instant
