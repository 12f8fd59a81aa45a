"""Turn a refusal, as it arrived, into the one `ProviderError` that a call raises. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .grammar import printable
from .port import ProviderError
from .reader import read_stated_wait
from .stated import StatedWait, WaitKind

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_LIMITS = frozenset({WaitKind.RATE_LIMITED, WaitKind.QUOTA_EXHAUSTED, WaitKind.OVERLOADED})
MESSAGE_CHARS_MAX = 300


def refusal(
    *,
    provider: str,
    status: int | None,
    headers: Mapping[str, object] | Iterable[tuple[str, str]] | None,
    body: str | bytes | None,
    message: str,
    received_at: float,
    transport: str = "http",
    retryable: bool | None = None,
) -> ProviderError:
    """Return the error for a response that refused or failed a call.

    A limit is retryable whatever its status: when it ends, the same request may go through.

    Args:
        message: The provider's own words, if it gave any; cleaned and bounded here.
        retryable: Overrules what status and statement say.
    """
    stated = read_stated_wait(
        status=status,
        headers=headers,
        body=body,
        received_at=received_at,
        provider=provider,
        transport=transport,
    )
    if retryable is None:
        retryable = transient(status) or (stated is not None and stated.kind in _LIMITS)
    words = printable(message, chars_max=MESSAGE_CHARS_MAX).strip()
    return ProviderError(
        f"{provider} refused the call with {_named(status, stated)}"
        f"{': ' + words if words else ''}; no reply was taken from it; "
        + ("ask the gate again" if retryable else "change the request or the credentials"),
        retryable=retryable,
        status=status,
        stated=stated,
        sent=True,
        said=words,
    )


def transient(status: int | None) -> bool:
    """Whether a status says that the same request may succeed later."""
    return status is not None and (status in _TRANSIENT_STATUSES or status >= 500)


def _named(status: int | None, stated: StatedWait | None) -> str:
    kind = stated.kind.value if stated is not None else ""
    code = f"status {status}" if status is not None else "an error"
    return f"{code} ({kind})" if kind and kind != WaitKind.OTHER else code
