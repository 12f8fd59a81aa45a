"""Usage windows as data: what an account has used of each, and when it starts anew. Pure.

A reading arrives beside a reply or in a status line and is telemetry: it holds nobody. It is what
tells until when, once a wall was hit, and what a host looks at before it starts more work.

Invariants:
    I1  A reset is an instant, never a duration: a duration loses its origin when it is saved.
    I2  What was not stated is None: no share is 0, and no reset is 1970.
    I3  A reading tells whose account it is from, and is used for no other.
    I4  A reset that has passed is no time to go on at: what is known of its window is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from abeyance.storage.tables.fields import Instant, Name

from .stated import WaitScope

WINDOWS_MAX = 64
"""So many windows of one response are kept; no provider has a tenth of it."""
FULL_PERCENT = 100.0


_Percent: TypeAlias = Annotated[float, Meta(ge=0)]


class UsageWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window: what was used of it, and when it starts anew.

    `used_percent` may pass 100. `resets_ms` is an epoch instant in milliseconds, rounded up. Each
    is None where it was not stated or could not be read. `scope` is `model` where the window is
    one model's own.
    """

    name: Name
    used_percent: _Percent | None = None
    resets_ms: Instant | None = None
    scope: WaitScope | None = None

    def concerns(self, model: str) -> bool:
        """Whether calls to a model use it up: a model's own window only that model's do."""
        return self.scope is not WaitScope.MODEL or self.name.rpartition("_")[2] in model.lower()

    @property
    def is_full(self) -> bool:
        return self.used_percent is not None and self.used_percent >= FULL_PERCENT


class UsageReading(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one response, as they were at `read_ms`.

    `credential` is the fingerprint of the account that was asked (`Provider.credential`), or None
    where it is not known: then nothing may be concluded for another session.
    """

    windows: Annotated[tuple[UsageWindow, ...], Meta(max_length=WINDOWS_MAX)]
    read_ms: Instant
    credential: Name | None = None

    def of_account(self, credential: str | None) -> tuple[UsageWindow, ...]:
        """The windows, where they are this account's; otherwise none."""
        return self.windows if credential is not None and credential == self.credential else ()


def readable(reading: object) -> UsageReading | None:
    """What can be kept of a reading that a host's adapter made; None where nothing can.

    Telemetry stops nobody: what cannot be read of a window is not known of it, and one without a
    name is none.
    """
    read_ms = _read(Instant, getattr(reading, "read_ms", None))
    windows = getattr(reading, "windows", None)
    if read_ms is None or not isinstance(windows, tuple | list):
        return None
    found = [
        UsageWindow(
            name=name,
            used_percent=_read(_Percent, getattr(each, "used_percent", None)),
            resets_ms=_read(Instant, getattr(each, "resets_ms", None)),
            scope=_read(WaitScope, getattr(each, "scope", None)),
        )
        for each in windows[:WINDOWS_MAX]
        if (name := _read(Name, getattr(each, "name", None))) is not None
    ]
    credential = _read(Name, getattr(reading, "credential", None))
    return UsageReading(windows=tuple(found), read_ms=read_ms, credential=credential)


def _read(kind: Any, value: object) -> Any:
    try:
        if isinstance(value, str):
            value.encode()
        return msgspec.convert(value, kind)
    except ValueError:
        return None


def last_of_full(windows: Iterable[UsageWindow], now_ms: int) -> UsageWindow | None:
    """Of the windows that are used up the one that begins anew last: no call goes through before.

    None where none is full, or no full one has a reset that is still to come.
    """
    known = (
        each
        for each in windows
        if each.is_full and each.resets_ms is not None and each.resets_ms > now_ms
    )
    return max(known, key=lambda window: window.resets_ms or 0, default=None)


def most_used_of(windows: Iterable[UsageWindow], now_ms: int) -> UsageWindow | None:
    """The window that leaves least, for a wall that something else tells of; the first of equals.

    At the instant of the wall a status may still read 99.6. None where no share is known, or that
    window has no reset that is still to come: the next one's would be a guess.
    """
    known = (window for window in windows if window.used_percent is not None)
    window = max(known, key=lambda window: window.used_percent or 0.0, default=None)
    if window is None or window.resets_ms is None or window.resets_ms <= now_ms:
        return None
    return window
