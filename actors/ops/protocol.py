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
from typing import Final, get_args

import msgspec

from abeyance.actors.domain.ingress import clean_text

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
_VERBS: Final = tuple(str(kind.__struct_config__.tag) for kind in get_args(Request))


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
    if envelope.verb is not msgspec.UNSET and envelope.verb not in _VERBS:
        raise UnknownVerbError(
            f"there is no verb {envelope.verb[:80]!r}; nothing was done; "
            f"the verbs are {', '.join(_VERBS)}",
            field="verb",
        )
    try:
        request = _requests.decode(line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(error) from None
    check_request(request)
    return request


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


def clean_requester(text: str) -> str:
    """The requester as it is recorded: `cli:` and a bounded name on one line."""
    name = clean_text(text.removeprefix("cli:"), REQUESTER_CHARS_MAX).strip()
    return f"cli:{name or 'unknown'}"


def ok_line(result: msgspec.Struct) -> bytes:
    """Encode a reply that carries a result."""
    return (
        msgspec.json.encode(Reply(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))) + b"\n"
    )


def error_line(code: str, text: str, field: str | None = None) -> bytes:
    """Encode a refusal."""
    report = ErrorReport(code=code, text=clean_text(text, ERROR_CHARS_MAX), field=field)
    return msgspec.json.encode(Reply(ok=False, error=report)) + b"\n"
