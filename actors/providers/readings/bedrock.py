"""Amazon Bedrock: exception names in a header, in the body or in a stream's frames; no waits."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from .generic import EXPLICIT, SAID, objects_of
from .response import Response
from .table import KindRow, Reading, named

_PER_DAY = re.compile(r"\bper (?:day|month)\b|\bdaily\b", re.IGNORECASE)
_TOKENS = re.compile(r"\btoo many tokens\b", re.IGNORECASE)
_THROTTLED = {
    "throttlingexception", "throttledexception", "toomanyrequestsexception", "throttling",
    "requestlimitexceeded", "slowdown",
}  # fmt: skip
_BUSY = {
    "serviceunavailableexception", "modelnotreadyexception", "serviceunavailable",
    "modeltimeoutexception",
}  # fmt: skip
_QUOTA = {"servicequotaexceededexception", "limitexceededexception"}


def _names(response: Response) -> set[str]:
    header = response.value("x-amzn-errortype").partition(":")[0].rpartition("#")[2].lower()
    return {*response.names, header}


def _throttled(response: Response) -> bool:
    names = _names(response)
    return (
        bool(_THROTTLED & names)
        or (response.failing == 429 and not names & (_BUSY | _QUOTA))
        or any(each.get("originalStatusCode") == 429 for each in objects_of(response))
    )


def recognises(response: Response) -> bool:
    return "x-amzn-errortype" in response.headers or bool(
        (_THROTTLED | _BUSY | _QUOTA | {"modelstreamerrorexception"}) & response.names
    )


READING = Reading(
    "bedrock",
    "Amazon Bedrock",
    (
        KindRow(
            "error",
            "`ServiceQuotaExceededException`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: bool(_QUOTA & _names(response)),
            WaitScope.ACCOUNT,
        ),
        KindRow(
            "words",
            "`ThrottlingException` with `per day`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: _throttled(response) and bool(_PER_DAY.search(response.words)),
            WaitScope.MODEL,
        ),
        KindRow(
            "words",
            "`ThrottlingException` with `too many tokens`",
            WaitKind.RATE_LIMITED,
            lambda response: _throttled(response) and bool(_TOKENS.search(response.words)),
            WaitScope.MODEL,
        ),
        KindRow(
            "error",
            "`ServiceUnavailableException`, `ModelNotReadyException`, `ModelTimeoutException`",
            WaitKind.OVERLOADED,
            lambda response: bool(_BUSY & _names(response)),
        ),
        KindRow(
            "error",
            "`ThrottlingException`, `TooManyRequestsException`, `originalStatusCode` 429",
            WaitKind.RATE_LIMITED,
            _throttled,
        ),
        named("overloaded_error", kind=WaitKind.OVERLOADED),
    ),
    (SAID, *EXPLICIT),
    recognises,
    aliases=("aws", "aws-bedrock", "amazon-bedrock"),
    notes="`x-amzn-errortype`, `__type`, `Error.Code`, and the exceptions of an event stream "
    "(decoded frames or the frames as they arrived) name the exception.",
)
