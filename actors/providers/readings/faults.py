"""What went wrong, in whatever shape a body tells it: names, words, and the object around them.

Invariants:
    I1  Of a call that went through only what says itself to be an error is one. A reply that
        talks about limits is a reply.
    I2  An error may be a JSON text within another's message; it is unfolded, a few levels deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .documents import Document, json_value

_DEPTH_MAX = 4
_FAULTS_MAX = 1_000
_NAME_CHARS_MAX = 128
_NAMING = (
    "type", "code", "status", "reason", "error_code", "errorCode", "__type", "Code", "name",
    "limit_source", "error_type", "errorType", "codexErrorInfo", "codex_error_info", "error",
)  # fmt: skip
_NAMED_IN_TEXT = re.compile(
    r"""['"](?:type|code|status|reason|errorType|errorCode)['"]:[ ]?['"]([\w.-]{1,128})['"]"""
    # What botocore says of an error.
    r"""|\bAn error occurred \(([\w.-]{1,128})\) when calling the """
)
_MESSAGES = ("message", "Message", "msg", "error_description", "detail", "details", "title")


@dataclass(frozen=True, slots=True)
class Fault:
    """One error of a response."""

    names: frozenset[str]
    """Its type, code, status and reason, in lower case."""
    message: str
    status: int | None
    """The HTTP status that the error itself names."""
    objects: tuple[Mapping[str, Any], ...]
    """The error's object, what stands directly in it, and what it stands in."""


def faults_of(documents: tuple[Document, ...], text: str, *, served: bool) -> Iterator[Fault]:
    """Yield the errors of a response's documents; of a bare text, the text itself."""
    count = 0
    for event, document in documents:
        for fault in _errors(document, served=served and event != "error", depth=0):
            yield fault
            count += 1
            if count == _FAULTS_MAX:
                return
    if not documents and not served and text:
        found = _NAMED_IN_TEXT.findall(text)
        names = frozenset(name.lower() for pair in found for name in pair if name)
        yield Fault(names, text, None, ())


def _errors(document: Mapping[str, Any], *, served: bool, depth: int) -> Iterator[Fault]:
    found = False
    for error in _within(document):
        found = True
        yield from _fault(error, (document,), depth)
    if not found and (not served or document.get("type") == "error"):
        yield from _fault(document, (), depth)


def _within(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The error objects that stand in a document."""
    for key in ("error", "Error"):
        error = document.get(key)
        if isinstance(error, dict):
            yield error
        elif isinstance(error, str) and error:
            # `{"error": "rate_limit_exceeded", "message": "..."}`, or the words themselves.
            yield {**document, "error": error} if " " not in error else {"message": error}
    response = document.get("response")
    if isinstance(response, dict) and isinstance(response.get("error"), dict):
        yield response["error"]
    errors = document.get("errors")
    for error in errors[:16] if isinstance(errors, list) else ():
        if isinstance(error, dict):
            yield error
    if isinstance(document.get("detail"), dict):
        yield document["detail"]
    for key, value in document.items():
        if key.endswith(("Exception", "exception")) and isinstance(value, dict):
            yield {"type": key, **value}


def _fault(
    error: Mapping[str, Any], around: tuple[Mapping[str, Any], ...], depth: int
) -> Iterator[Fault]:
    message = next((error[key] for key in _MESSAGES if isinstance(error.get(key), str)), "")
    names, status = set[str](), None
    for key in _NAMING:
        value = error.get(key)
        if isinstance(value, str):
            names.add(value.rpartition("#")[2][:_NAME_CHARS_MAX].lower())
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
            names.add(str(value))
    for each in (error, *around):
        for key in ("code", "status", "status_code", "statusCode", "raw_status_code"):
            status = status or _http_status(each.get(key))
    inner = tuple(value for value in error.values() if isinstance(value, dict))
    details = error.get("details")
    if isinstance(details, list):
        inner += tuple(value for value in details[:32] if isinstance(value, dict))
    yield Fault(frozenset(names), message, status, (error, *inner, *around))
    if depth < _DEPTH_MAX:
        for value in (message, *(each.get("raw") for each in inner)):
            if not isinstance(value, str) or not 0 <= (start := value.find("{")) < 200:
                continue
            nested = json_value(value[start:])
            if isinstance(nested, dict):
                yield from _errors(nested, served=False, depth=depth + 1)


def _http_status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    usable = isinstance(value, int) and not isinstance(value, bool)
    return value if usable and 400 <= value < 600 else None  # type: ignore[operator,return-value]
