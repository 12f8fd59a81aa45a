"""Z.AI and BigModel (GLM): a business code beside the status, and a reset without a zone."""

from __future__ import annotations

import re
from datetime import UTC

from ..clocks import zone_named
from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS, said
from .opencode_go import window_in
from .response import Response
from .table import KindRow, Reading, named, worded

_WINDOWED = {"1308", "1310"}
_LIMIT = re.compile(r"usage limit reached|limit exhausted|使用上限", re.IGNORECASE)
_RESETS = re.compile(r"limit will reset at [0-9]{4}-|重置", re.IGNORECASE)
_FIVE_HOURS = re.compile(r"\b5 hours?\b|5 ?小时", re.IGNORECASE)


def _used_up(response: Response) -> bool:
    return bool(_WINDOWED & response.names or _LIMIT.search(response.words))


def _window(response: Response) -> tuple[None, str | None]:
    five = _FIVE_HOURS.search(response.words)
    if re.search(r"weekly/monthly", response.words, re.IGNORECASE):
        return None, None
    return None, "five_hour" if five else window_in(response.words)


def recognises(response: Response) -> bool:
    return bool(_RESETS.search(response.words)) and _used_up(response)


READING = Reading(
    "zai",
    "Z.AI, BigModel",
    (
        KindRow(
            "error",
            "`1308`, `1310`; usage limit reached, limit exhausted, 使用上限",
            WaitKind.QUOTA_EXHAUSTED,
            _used_up,
            WaitScope.ACCOUNT,
            refined=_window,
        ),
        named("1113", "1309", kind=WaitKind.QUOTA_EXHAUSTED, scope=WaitScope.ACCOUNT),
        named("1304", kind=WaitKind.QUOTA_EXHAUSTED, scope=WaitScope.MODEL, window="daily"),
        worded(
            r"insufficient balance|in arrears|余额不足|欠费",
            "insufficient balance, in arrears, 余额不足",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
        ),
        named("1110", "1111", "1112", "1121", "1211", "1311", kind=WaitKind.OTHER),
        named("1305", "1312", kind=WaitKind.OVERLOADED, scope=WaitScope.MODEL),
        named("1302", "1303", "1313", kind=WaitKind.RATE_LIMITED),
        *openai.KINDS,
    ),
    (
        said(
            "`will reset at 2026-09-04 19:01:25`, `将在 2026-09-04 19:01:25 重置`",
            "A moment without a zone is taken as Asia/Shanghai; a zone that is named is used",
            zone=lambda _response: zone_named("Asia/Shanghai") or UTC,
        ),
        *UNTILS[1:],
    ),
    recognises,
    aliases=("z.ai", "zhipu", "zhipuai", "bigmodel", "glm"),
)
