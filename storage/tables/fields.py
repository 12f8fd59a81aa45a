"""Field types that several records share, with their bounds."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

NAME_BYTES_MAX = 128
"""Names are bounded in UTF-8 bytes; the schema bounds characters, ingress bounds bytes."""
INSTANT_MS_MAX = 8_640_000_000_000_000
"""The last instant a deadline may name, in epoch milliseconds; anything past it has no end."""
REASON_CHARS_MAX = 300

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Instant: TypeAlias = Annotated[int, Meta(ge=0, le=INSTANT_MS_MAX)]
"""Epoch milliseconds."""
Seq: TypeAlias = Annotated[int, Meta(ge=0)]
Reason: TypeAlias = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
