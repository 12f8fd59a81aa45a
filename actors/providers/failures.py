"""Turn a refusal, as it arrived, into the one `ProviderError` that a call raises. Pure.

An error is known by its structure, never by its class alone: a vendored or reloaded copy of a
provider's library raises classes of the same names that are not the same.

Invariants:
    I1  Looking at an error raises nothing, whatever its attributes do.
    I2  Only a number states a wait in a typed error: not text, not None, not a truth value.
    I3  Of several errors in a group the one that states the longest wait is the one that counts.
        An adapter's own error counts as it is, but for a longer wait that what it was made from
        states: no wait is lost on its way up.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard

from .context_limit import is_too_long
from .grammar import number, printable
from .instants import deadline_ms, instant_ms
from .port import ContextTooLongError, ProviderError
from .reader import read_stated_wait
from .stated import StatedWait, WaitEnds, WaitKind, WaitScope, longer

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_LIMITS = frozenset({WaitKind.RATE_LIMITED, WaitKind.QUOTA_EXHAUSTED, WaitKind.OVERLOADED})
_TYPED_WAITS_MS = {
    "retry_after_ms": 1,
    "retryAfterMs": 1,
    "retry_after": 1_000,
    "retryAfter": 1_000,
    "retry_after_seconds": 1_000,
    "next_retry_delay": 1_000,
}
"""The attributes a typed error states a wait in, and their unit."""
_ACCELERATION = re.compile(
    r"\b(?:maximum[ ]usage[ ]increase[ ]rate|acceleration[ ](?:rate[ ])?limits?)\b",
    re.IGNORECASE | re.VERBOSE,
)
"""What is said of an organisation whose usage grows too fast, whichever model it asked."""
_ACCELERATION_CHARS_MAX = 4_000
_ERRORS_MAX = 200
_DEPTH_MAX = 20
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
    error = _failure(provider, status, stated, message, retryable, is_too_long(body))
    error.is_whole = headers is not None
    error.provider = provider
    return error


def understood(
    error: BaseException, *, received_at: float, provider: str | None = None
) -> ProviderError | None:
    """Return an error, or the error within a group or behind a cause, as a `ProviderError`.

    Not a checkpoint. Raises nothing. Known are: `ProviderError` itself; a class of that shape from
    another module; what provider libraries raise for a response (a status with headers and body);
    and any error with a numeric `retry_after_ms` or `retry_after` (seconds). What was being handled
    when an error was raised counts as its cause, unless that was cut off by `from None`.

    Args:
        received_at: Epoch seconds that a stated duration is counted from.
        provider: A name of docs/providers.md, where the caller knows it.
    Returns:
        None where nothing about the error says that a provider refused or failed a call.
    """
    if isinstance(error, ProviderError):
        return _own(error, received_at, provider)
    found = [
        known
        for each in _every(error)
        if (known := _known(each, received_at, provider)) is not None
    ]
    # The first of equally long ones: a group's own order, and an error before its cause.
    counts = max(found, key=_length, default=None)
    if len(found) > 1 and counts is not None:
        _restate(counts, [one.stated for one in found])
    return counts


def understood_alone(
    error: BaseException, *, received_at: float, provider: str | None = None
) -> ProviderError | None:
    """As `understood`, of the error itself: no member of a group, and nothing behind it."""
    return _known(error, received_at, provider)


def transient(status: int | None) -> bool:
    """Whether a status says that the same request may succeed later."""
    return status is not None and (status in _TRANSIENT_STATUSES or status >= 500)


def _failure(
    provider: str,
    status: int | None,
    stated: StatedWait | None,
    message: str,
    retryable: bool | None,
    too_long: bool = False,
) -> ProviderError:
    if too_long:
        words = printable(message, chars_max=MESSAGE_CHARS_MAX).strip()
        return ContextTooLongError(
            f"{provider} refused the request as too long{': ' + words if words else ''}; it was "
            "not processed; shorten the transcript (docs/context.md), or choose a model that "
            "takes more",
            retryable=False,
            status=status,
            stated=stated,
            sent=True,
            said=words,
        )
    if retryable is None:
        retryable = transient(status) or (stated is not None and stated.kind in _LIMITS)
    words = printable(message, chars_max=MESSAGE_CHARS_MAX).strip()
    return ProviderError(
        f"{provider} refused the call with {_named(status, stated)}"
        f"{': ' + words if words else ''}; no reply was taken from it; "
        + (
            "the call may be made again once nothing holds it"
            if retryable
            else "change the request or the credentials"
        ),
        retryable=retryable,
        status=status,
        stated=stated,
        sent=True,
        said=words,
        acceleration=_is_acceleration(status, stated, message),
    )


def _is_acceleration(status: int | None, stated: StatedWait | None, message: str) -> bool:
    """Whether a limit is on how fast usage grows. Words count only where something is limited."""
    limited = status == 429 or (stated is not None and stated.kind is WaitKind.RATE_LIMITED)
    return limited and _ACCELERATION.search(message[:_ACCELERATION_CHARS_MAX]) is not None


def _named(status: int | None, stated: StatedWait | None) -> str:
    kind = stated.kind.value if stated is not None else ""
    code = f"status {status}" if status is not None else "an error"
    return f"{code} ({kind})" if kind and kind != WaitKind.OTHER else code


def _length(error: ProviderError) -> tuple[bool, float]:
    # An adapter that a host wrote may have put anything there.
    stated = _attribute(error, "stated")
    if not isinstance(stated, StatedWait):
        return False, -1.0
    if stated.ends is WaitEnds.UNTIL_RELEASED:
        return True, math.inf
    deadline = stated.deadline_ms
    known = None if isinstance(deadline, str) else number(deadline, unit_ms=1)
    return True, float(known or 0)


def _every(error: BaseException, *, through: bool = False) -> Iterator[BaseException]:
    """An error, the members of a group, and what stands behind each as its cause.

    Args:
        through: Whether what an adapter's own error was made from is told as well.
    """
    waiting: list[tuple[BaseException, int]] = [(error, 0)]
    seen = set[int]()
    while waiting and len(seen) < _ERRORS_MAX:
        each, depth = waiting.pop(0)
        if id(each) in seen or depth > _DEPTH_MAX:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, ProviderError) and not through:
            continue  # What it was made from is looked at with it.
        inner = list(each.exceptions) if isinstance(each, BaseExceptionGroup) else []
        cause = each.__cause__
        if cause is None and not each.__suppress_context__:
            cause = each.__context__
            if isinstance(each, ProviderError) and isinstance(cause, ProviderError):
                cause = None  # The failure of another call, such as a fallback's first.
        waiting += [(one, depth + 1) for one in (*inner, cause) if one is not None]


def _known(error: BaseException, received_at: float, provider: str | None) -> ProviderError | None:
    if isinstance(error, ProviderError):
        return _own(error, received_at, provider)
    name = provider or "the provider"
    message = _attribute(error, "said") or _attribute(error, "message")
    words = message if isinstance(message, str) else _text_of(error)
    told = _attribute(error, "retryable")
    retryable = told if isinstance(told, bool) else None
    copied = _copied(_attribute(error, "stated"))
    status, headers, body = _response(error)
    if body is None:
        # A library that keeps no body quotes it, or what it says of the wait, in its own words.
        body = words
    typed = _typed(error, received_at)
    if copied is None and status is None and typed is None:
        # A class of the port's shape, whatever module it is from.
        if retryable is not None and any(kind.__name__ == "ProviderError" for kind in
                                         type(error).__mro__):  # fmt: skip
            return _failure(name, None, None, words, retryable)
        return None
    read = (
        read_stated_wait(
            status=status, headers=headers, body=body, received_at=received_at, provider=provider
        )
        if status is not None
        else None
    )
    stated = longer(longer(copied, read), typed)
    return _failure(name, status, stated, words, retryable, is_too_long(body))


def _own(error: ProviderError, received_at: float, provider: str | None) -> ProviderError:
    """An adapter's own error, with what else it carries, or was made from, states of waits."""
    if _attribute(error, "is_whole") is True:
        return error
    states: list[StatedWait | None] = []
    for each in _every(error, through=True):
        if isinstance(each, ProviderError):
            states += [_attribute(each, "stated"), _typed(each, received_at)]
        elif (known := _known(each, received_at, provider)) is not None:
            states.append(known.stated)
    _restate(error, states)
    return error


def _restate(error: ProviderError, others: Iterable[StatedWait | None]) -> None:
    """Have an error state the longest of its own wait and others that bind."""
    own = _attribute(error, "stated")
    stated = own if _binds(own) else None
    for other in others:
        # The same words, read again and later, would say the same with a later instant.
        if _binds(other) and (own is None or not _is_same(own, other)):
            stated = longer(stated, other)
    if stated is not None and stated is not own:
        with suppress(Exception):  # A class that a host wrote may not let it be set.
            error.stated = stated


def _binds(stated: object) -> TypeGuard[StatedWait]:
    """Whether a statement is of a wait that is not over, and holds what it should."""
    if not isinstance(stated, StatedWait) or isinstance(stated.deadline_ms, str | bool):
        return False
    if stated.ends is WaitEnds.UNTIL_RELEASED:
        return True
    return stated.ends is WaitEnds.UNTIL and number(stated.deadline_ms, unit_ms=1) is not None


def _is_same(one: object, other: StatedWait) -> bool:
    read = (_attribute(one, "source"), _attribute(one, "raw"))
    return other.source is not None and read == (other.source, other.raw)


def _typed(error: BaseException, received_at: float) -> StatedWait | None:
    """The wait that an error states in an attribute of its own."""
    now_ms = instant_ms(received_at)
    longest: StatedWait | None = None
    for name, unit_ms in _TYPED_WAITS_MS.items():
        value = _attribute(error, name)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        elif isinstance(value, Decimal | Fraction):
            value = _as_float(value)
        wait_ms = None if isinstance(value, str) else number(value, unit_ms=unit_ms)
        if wait_ms is None:
            continue
        ends_ms = None if now_ms is None else deadline_ms(now_ms, wait_ms)
        ends = WaitEnds.UNTIL_RELEASED if ends_ms is None else WaitEnds.UNTIL
        if wait_ms == 0:
            ends, ends_ms = WaitEnds.ALREADY_OVER, None
        longest = longer(
            longest,
            StatedWait(
                kind=WaitKind.RATE_LIMITED,
                ends=ends,
                deadline_ms=ends_ms,
                source=f"error:{name}",
                raw=printable(f"{name}: {value!r}"[:200], chars_max=200)
                if isinstance(value, float)
                else name,
            ),
        )
    return longest


def _as_float(value: Decimal | Fraction) -> float:
    """The nearest float that is no less; NaN for what is not a number at all."""
    try:
        near = float(value)
        return math.nextafter(near, math.inf) if near < value else near
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (ArithmeticError, ValueError):  # A signalling NaN.
        return math.nan


def _response(error: BaseException) -> tuple[int | None, Any, str | bytes | None]:
    """Status, headers and body of the response that an error was raised for."""
    response = _attribute(error, "response")
    if isinstance(response, dict):  # botocore's
        meta = response.get("ResponseMetadata")
        meta = meta if isinstance(meta, dict) else {}
        return _status(meta.get("HTTPStatusCode")), meta.get("HTTPHeaders"), _json(response)
    status = _status(
        *(_attribute(error, name) for name in ("status_code", "status", "http_status", "code")),
        *(_attribute(response, name) for name in ("status_code", "status")),
    )
    headers = _attribute(error, "headers")
    if headers is None:
        headers = _attribute(response, "headers")
    for source, name in (
        (response, "text"), (response, "content"),
        (error, "body"), (error, "details"), (error, "response_body"),
    ):  # fmt: skip
        body = _attribute(source, name)
        if isinstance(body, str | bytes) and body:
            return status, headers, body
        if isinstance(body, dict | list) and body:
            return status, headers, _json(body)
    return status, headers, None


def _status(*values: object) -> int | None:
    for value in values:
        usable = isinstance(value, int) and not isinstance(value, bool)
        if usable and 400 <= value < 600:  # type: ignore[operator]
            return value  # type: ignore[return-value]
    return None


def _json(value: object) -> str | None:
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        return None


def _copied(stated: object) -> StatedWait | None:
    """A statement as another copy of this library holds it, by its values."""
    if stated is None or isinstance(stated, StatedWait):
        return stated
    try:
        kind = WaitKind(str(_attribute(stated, "kind")))
        ends = WaitEnds(str(_attribute(stated, "ends")))
    except ValueError:
        return None
    scope, deadline = _attribute(stated, "scope"), _attribute(stated, "deadline_ms")
    account = _attribute(stated, "account_deadline_ms")
    account_ms = None if isinstance(account, str) else number(account, unit_ms=1)
    until = number(deadline, unit_ms=1) if not isinstance(deadline, str) else None
    if ends is WaitEnds.UNTIL and (until is None or not math.isfinite(until)):
        return None
    known = {str(one.value) for one in WaitScope}
    return StatedWait(
        kind=kind,
        ends=ends,
        deadline_ms=int(until) if ends is WaitEnds.UNTIL and until is not None else None,
        scope=WaitScope(str(scope)) if str(scope) in known else None,
        account_deadline_ms=int(account_ms)
        if account_ms is not None and math.isfinite(account_ms)
        else None,
        source="error:stated",
    )


def _attribute(thing: object, name: str) -> Any:
    """An attribute, or None: one of a foreign error may be a property that raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - what cannot be looked at says nothing.
        return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a foreign error's text is not worth another error.
        return type(error).__name__
