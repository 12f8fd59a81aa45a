"""The control protocol: JSON lines over a Unix socket, one reply a request, in order.

The server speaks first: one `Hello` line. Each request is one line, an object with `protocol`,
`verb` and the verb's fields; each reply is one line, `{"ok": true, "result": ...}` or
`{"ok": false, "error": {"code", "text", "field"}}`.

`requests` has the verbs, `reports` what answers carry, `errors` what is refused.

Invariants:
    I1  A line is decoded and checked whole before anything is done for it.
    I2  Every line has a bound, in both directions.

Pure: no socket, no event loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from abeyance.actors.domain.ingress import clean_text
from abeyance.actors.domain.requesters import Door

from .errors import (
    ControlError,
    InvalidFieldError,
    MalformedRequestError,
    UnknownVerbError,
    UnsupportedProtocolError,
)
from .requests import PROTOCOL, Request, check_request

REQUEST_BYTES_MAX: Final = 65_536
REPLY_BYTES_MAX: Final = 67_108_864
REQUESTER_CHARS_MAX: Final = 200
ERROR_CHARS_MAX: Final = 4_000

_FIELD = re.compile(r"(?:at `\$\.(\w+)|field `(\w+)`)")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The server's first line."""

    abeyance: str
    """Version of the host's distribution."""
    protocol: int
    pid: int


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused or failed. `text` is one line."""

    code: str
    text: str
    field: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reply line."""

    ok: bool
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorReport | msgspec.UnsetType = msgspec.UNSET


_requests = msgspec.json.Decoder(Request)


class _Envelope(msgspec.Struct, frozen=True):
    """The two fields that decide how the rest is read; the rest is ignored here."""

    protocol: int | msgspec.UnsetType = msgspec.UNSET
    verb: str | msgspec.UnsetType = msgspec.UNSET


_envelopes = msgspec.json.Decoder(_Envelope)
VERBS: Final[Mapping[str, type[msgspec.Struct]]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Request)
}


def read_request(line: bytes) -> Request:
    """Decode and check one request line.

    Args:
        line: Without its newline, at most `REQUEST_BYTES_MAX` bytes.
    Raises:
        MalformedRequestError, UnknownVerbError, UnsupportedProtocolError: As they say.
        InvalidFieldError, InvalidNameError: The field they name is wrong. The caller does nothing
            for this line.
    """
    try:
        envelope = _envelopes.decode(line)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedRequestError(
            f"the request is not a JSON object ({error}); nothing was done; send one object a line"
        ) from None
    if envelope.protocol is not msgspec.UNSET and envelope.protocol != PROTOCOL:
        raise UnsupportedProtocolError(
            f"this host speaks control protocol {PROTOCOL}, not {envelope.protocol}; nothing was "
            "done; use the command line of the host's own version",
            field="protocol",
        )
    if envelope.verb is not msgspec.UNSET and envelope.verb not in VERBS:
        raise _unknown(envelope.verb)
    try:
        request = _requests.decode(line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(error) from None
    check_request(request)
    return request


def read_fields(verb: str, fields: Mapping[str, Any], *, strict: bool) -> Request:
    """Check a verb and its fields, where they do not come as a line.

    Args:
        strict: Whether a number must be one, and not its digits.
    Raises:
        UnknownVerbError, InvalidFieldError, InvalidInputError, InvalidNameError: As `read_request`.
    """
    if verb not in VERBS:
        raise _unknown(verb)
    if "verb" in fields:
        raise InvalidFieldError(
            "the verb is named by the path; nothing was done; leave that field out", field="verb"
        )
    try:
        request: Request = msgspec.convert({"verb": verb, **fields}, Request, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(error) from None
    check_request(request)
    return request


def _unknown(verb: str) -> UnknownVerbError:
    return UnknownVerbError(
        f"there is no verb {verb[:80]!r}; nothing was done; the verbs are {', '.join(VERBS)}",
        field="verb",
    )


def _invalid(error: Exception) -> ControlError:
    found = _FIELD.search(str(error))
    if found is None:
        return MalformedRequestError(
            f"the request has the wrong shape ({error}); nothing was done; send one object a line"
        )
    return InvalidFieldError(
        f"the request is not valid: {error}; nothing was done; correct that field",
        field=found[1] or found[2],
    )


def clean_requester(text: str, door: Door) -> str:
    """The requester as it is recorded: the door's name and a bounded name on one line."""
    name = clean_text(text.removeprefix(f"{door}:"), REQUESTER_CHARS_MAX).strip()
    return f"{door}:{name or 'unknown'}"


def ok_line(result: msgspec.Struct) -> bytes:
    """Encode a reply that carries a result."""
    return (
        msgspec.json.encode(Reply(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))) + b"\n"
    )


def error_line(code: str, text: str, field: str | None = None) -> bytes:
    """Encode a refusal."""
    report = ErrorReport(code=code, text=clean_text(text, ERROR_CHARS_MAX), field=field)
    return msgspec.json.encode(Reply(ok=False, error=report)) + b"\n"
