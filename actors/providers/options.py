"""What a host gives an adapter, refused as the adapter is made. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final, TypeAlias

import httpx2

from ..core.clock import Clock
from ..core.errors import AbeyanceError

DEADLINE_S_MAX: Final = 1e9
KEY_CHARS_MAX: Final = 16_384
NAME_CHARS_MAX: Final = 256

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]] | None


class InvalidOptionError(AbeyanceError, ValueError):
    """An adapter was given what it cannot work with. Nothing was made.

    Attributes: `field`, the option; `problem`, without the value of a key.
    """

    code: ClassVar[str] = "invalid_option"
    field: str
    problem: str

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}; nothing was made", field=field, problem=problem)


def checked(
    api_key: ApiKey,
    variable: str,
    value: str | None,
    *,
    deadlines_s: Mapping[str, float],
    account: str | None,
    base_url: str | None,
    clock: Clock | None,
) -> ApiKey:
    """Return the key that an adapter is to use: its own, or an environment variable's value.

    Raises:
        InvalidOptionError: Names what is malformed, without a key's value: there is no key, or it
            is none that a header can carry; a deadline is no positive number; `account` is no name,
            `base_url` no URL, `clock` no clock.
    """
    if account is not None:
        check_text("account", account, "the name of an account")
    for field, seconds in deadlines_s.items():
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 < seconds <= DEADLINE_S_MAX:
            raise InvalidOptionError(
                field,
                f"is a deadline, a positive number of seconds of at most {DEADLINE_S_MAX:,.0f}, "
                f"not {seconds!r:.80}",
            )
    if clock is not None and (
        isinstance(clock, type) or not callable(getattr(clock, "now_ms", None))
    ):
        raise InvalidOptionError("clock", f"has a method now_ms, and is {clock!r:.80}")
    _check_url(base_url)
    key = value if api_key is None else api_key
    if callable(key):
        return key
    if key is None or key == "":
        raise InvalidOptionError("api_key", f"is missing: pass it, or set {variable}")
    if not isinstance(key, str) or len(key) > KEY_CHARS_MAX or not key.isascii():
        problem = f"is ASCII text of at most {KEY_CHARS_MAX:,} characters, or a function"
        raise InvalidOptionError("api_key", problem)
    if not key.isprintable():
        problem = "holds a character that no header can carry, as a line's end is"
        raise InvalidOptionError("api_key", problem)
    return key


def check_text(field: str, text: object, what: str) -> None:
    """Refuse what is no name.

    Raises:
        InvalidOptionError: Names the field.
    """
    sound = isinstance(text, str) and text.strip() and len(text) <= NAME_CHARS_MAX
    if not sound or not str(text).isprintable():
        raise InvalidOptionError(
            field,
            f"is {what}, of at most {NAME_CHARS_MAX} printable characters, not {text!r:.80}",
        )


def _check_url(base_url: object) -> None:
    if base_url is None:
        return
    problem = "is an http or https URL with a host, or None"
    if not isinstance(base_url, str) or not base_url.isprintable():
        raise InvalidOptionError("base_url", problem)
    try:
        url = httpx2.URL(base_url)
        sound = url.scheme in ("http", "https") and bool(url.host)
    except Exception:  # noqa: BLE001 - the parser's error may hold what the URL holds.
        sound = False
    if not sound:
        raise InvalidOptionError("base_url", problem)
