"""A provider's call that comes to an end, whatever its adapter does.

The adapters here have deadlines of their own, fed by the bytes that arrive; a host's may have none,
and one that waits on a stream nobody closes would hold its turn, its permit and its run for ever.

Invariants:
    I1  A call past its bound is a `ProviderStalledError`, with its reason; what ends it from
        without is a cancellation, and is never told as a stall.

Runs in: the task that makes the call.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from abeyance.actors.providers.port import ModelRequest, OnDelta, Provider, ProviderStalledError

CALL_S: Final = 3_600.0
"""How long a call may take, where its adapter does not say: as the adapters' own default."""
GRACE_S: Final = 60.0
"""Behind an adapter's own deadline, whose error says more than this one."""
CALL_S_MAX: Final = 7 * 86_400.0


async def bounded_call(provider: Provider, request: ModelRequest, on_delta: OnDelta) -> Any:
    """Make a call under the permit in the context. See `Provider.call`.

    A checkpoint. Cancelled: as the provider's.

    Raises:
        ProviderStalledError: It took longer than its bound; it may have been processed.
        Exception: Whatever the provider raises.
    """
    limit_s = _limit_s(provider)
    with trio.move_on_after(limit_s):
        return await provider.call(request, on_delta)
    raise ProviderStalledError(
        f"the provider neither answered nor failed within {limit_s:g} s; the request may have been "
        "processed, no reply was taken; the call may be made again once nothing holds it",
        retryable=True,
    )


def _limit_s(provider: Provider) -> float:
    """The adapter's own bound of a whole call (`call_s`), and some grace."""
    stated = getattr(provider, "call_s", None)
    is_number = isinstance(stated, int | float) and not isinstance(stated, bool)
    if not is_number or not 0 < stated <= CALL_S_MAX:  # type: ignore[operator]
        stated = CALL_S
    return float(stated) + GRACE_S  # type: ignore[arg-type]
