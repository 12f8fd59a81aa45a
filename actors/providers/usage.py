"""Read the usage windows that a response tells, whether or not it was refused. Pure; any thread.

Each provider's signals are in its module of `readings`; docs/providers.md lists them.

Invariants:
    I1  Raises nothing. Of a malformed window only what is readable is kept.
    I2  Nothing is made up: a share or a reset that is not there is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .instants import instant_ms
from .reader import READINGS, reading_of
from .readings.response import normalised
from .windows import WINDOWS_MAX, UsageReading, UsageWindow


def read_usage(
    *,
    status: int | None,
    headers: Mapping[str, object] | Iterable[tuple[str, str]] | None,
    body: str | bytes | None,
    received_at: float,
    provider: str | None = None,
    transport: str = "http",
    credential: str | None = None,
) -> UsageReading | None:
    """Return the usage windows that a response tells, whether or not it was refused.

    Not a checkpoint; touches nothing. Raises nothing. Limits per minute are no usage windows: they
    are read where they refuse a call (`read_stated_wait`).

    Args:
        received_at: Epoch seconds of the arrival, by the wall clock.
        credential: Whose account was asked.
        status, headers, body, provider, transport: As for `read_stated_wait`.
    Returns:
        None where the response tells of no window, or `received_at` is no instant.
    """
    read_ms = instant_ms(received_at)
    if read_ms is None:
        return None
    response = normalised(
        status=status, headers=headers, body=body, received_ms=read_ms, transport=transport
    )
    # A response that was served may carry nothing else that tells whose it is.
    readings = [reading_of(provider, response), *(READINGS.values() if provider is None else ())]
    for reading in readings:
        windows: dict[str, UsageWindow] = {}
        for window in reading.windows(response):
            if len(windows) < WINDOWS_MAX or window.name in windows:
                windows[window.name] = window
        if windows:
            return UsageReading(
                windows=tuple(windows.values()), read_ms=read_ms, credential=credential
            )
    return None
