"""What the HTTP API answers to a request that was let in: the control socket's verbs, by path.

`GET /v1/VERB` looks, with the verb's fields as a query; `POST /v1/VERB` changes something, with the
fields as a JSON object. The fields, their checks and the reports are the control socket's.

Invariants:
    I1  A request is checked whole before anything is done for it.
    I2  What a person or a program reads of an error is its code, one line, and the field.

Runs in: the loop thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.actors.domain.errors import NotPermittedError
from abeyance.actors.domain.ingress import clean_text
from abeyance.storage.errors import StorageError

from ..answers import READING, Controlled, answer
from ..errors import ControlError, InvalidFieldError, MalformedRequestError, UnknownVerbError
from ..protocol import ERROR_CHARS_MAX, REPLY_BYTES_MAX, VERBS, ErrorReport, read_fields
from ..requests import ImportRequest
from .gate import HttpRefusedError

VERBS_HERE: Final = {verb: kind for verb, kind in VERBS.items() if kind is not ImportRequest}
"""Without `import`: a path names a file that the host can read, and that is for who has a shell."""
_ENDED: Final = frozenset({"runtime_closed", "runtime_ending", "actor_dead", "system_ended"})

_log = Log(__name__)


def method_of(verb: str) -> str:
    """`GET` of a verb that looks, `POST` of one that changes something.

    Raises:
        UnknownVerbError: There is no such verb here.
    """
    kind = VERBS_HERE.get(verb)
    if kind is None:
        raise UnknownVerbError(
            f"there is no verb {verb[:80]!r} here; nothing was done; the verbs are "
            f"{', '.join(VERBS_HERE)}",
            field="verb",
        )
    return "GET" if kind in READING else "POST"


def query_fields(items: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The fields of a query.

    Raises:
        InvalidFieldError: One is given twice.
    """
    return _each_once(items, "query")


def _each_once(items: Sequence[tuple[str, Any]], where: str) -> dict[str, Any]:
    """The fields, where none is given twice: of two, the wider might be taken."""
    fields = dict(items)
    if len(fields) < len(items):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidFieldError(
            f"the {where} has {twice[:80]!r} twice; nothing was done; give it once",
            field=clean_text(twice, 80),
        )
    return fields


def body_fields(body: bytes) -> dict[str, Any]:
    """The fields of a JSON body.

    Raises:
        MalformedRequestError: It is no JSON object.
        InvalidFieldError: One is given twice.
    """
    try:
        fields = msgspec.json.decode(body or b"{}")
        json.loads(body or b"{}", object_pairs_hook=lambda pairs: _each_once(pairs, "body"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedRequestError(
            f"the body is not JSON ({error}); nothing was done; send one object"
        ) from None
    if not isinstance(fields, dict):
        raise MalformedRequestError("the body is no JSON object; nothing was done; send one object")
    return fields


async def reply_of(
    runtime: Controlled, verb: str, fields: Mapping[str, Any], *, strict: bool
) -> bytes:
    """Do what is asked for, and return the report as JSON.

    A checkpoint where the verb is.

    Raises:
        AbeyanceError: As the control socket's verb.
    """
    request = read_fields(verb, fields, strict=strict)
    reply = msgspec.json.encode(await answer(runtime, request, "http"))
    if len(reply) > REPLY_BYTES_MAX:
        raise HttpRefusedError(
            507, "reply_too_large", "the answer is too large to send; ask for one agent"
        )
    return reply


def refusal_of(error: Exception) -> tuple[int, ErrorReport, dict[str, str]]:
    """The status, report and headers of an error's answer. One that is nobody's own is logged."""
    if isinstance(error, HttpRefusedError):
        return error.status, _report(error.code, str(error)), error.headers
    field = getattr(error, "field", None)
    if isinstance(error, AbeyanceError):
        return _status_of(error, field), _report(error.code, str(error), field), {}
    # Storage errors arrive here too, with their code; the traceback is in the host's log.
    _log.error("an HTTP request failed", exc_info=error)
    code = getattr(error, "code", "internal")
    status = 503 if isinstance(error, StorageError) else 500
    return status, _report(str(code), str(error) or repr(error)), {}


def _status_of(error: AbeyanceError, field: object) -> int:
    if isinstance(error, UnknownVerbError) or error.code.startswith("unknown_"):
        return 404
    if isinstance(error, NotPermittedError):
        return 403
    if error.code in _ENDED:
        return 503
    if field is not None:
        return 422
    return 400 if isinstance(error, ControlError) else 409


def _report(code: str, text: str, field: object = None) -> ErrorReport:
    return ErrorReport(
        code=code,
        text=clean_text(text, ERROR_CHARS_MAX),
        field=field if isinstance(field, str) else None,
    )
