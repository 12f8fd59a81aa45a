"""Read what a provider stated about when it may be called again. Pure; any thread.

Invariants:
    I1  Never raises, whatever the response holds.
    I2  Never invents an instant: what is not stated, or not readable, is `unknown`.
    I3  Of several statements of one response the longest binds; none is shortened. Where that is
        not of the whole account, the longest of those that are stands beside it.
    I4  None exactly where nothing is limited and nothing was stated.

A provider's own grammar is a module of `readings`; one that has none is read as generic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC

from abeyance.storage.tables.fields import INSTANT_MS_MAX, REASON_CHARS_MAX

from .clocks import zone_named
from .grammar import printable
from .instants import instant_ms
from .readings import (
    anthropic,
    azure_openai,
    bedrock,
    claude_code,
    cloudflare,
    cohere,
    confluence_like,
    deepseek,
    gemini,
    gemini_code_assist,
    generic,
    github_copilot,
    github_models,
    groq,
    mistral,
    moonshot,
    openai,
    openai_codex,
    opencode_go,
    openrouter,
    vertex,
    zai,
)
from .readings.response import Response, Statement, normalised
from .readings.table import Reading, Verdict, judge
from .stated import StatedWait, WaitEnds, WaitScope

READINGS: Mapping[str, Reading] = {
    module.READING.name: module.READING
    for module in (
        # Recognised in this order: a shape that only one service sends comes before one that
        # others took over.
        claude_code,
        zai,
        anthropic,
        openai_codex,
        azure_openai,
        groq,
        openrouter,
        github_copilot,
        github_models,
        gemini_code_assist,
        vertex,
        gemini,
        bedrock,
        moonshot,
        opencode_go,
        mistral,
        cohere,
        cloudflare,
        deepseek,
        confluence_like,
        openai,
        generic,
    )
}
_BY_NAME = {
    name: reading for reading in READINGS.values() for name in (reading.name, *reading.aliases)
}
_OF_THE_TERMINAL = frozenset({"statusline", "agent_sdk", "text"})
_WINDOW_CHARS_MAX = 128


def read_stated_wait(
    *,
    status: int | None,
    headers: Mapping[str, object] | Iterable[tuple[str, str]] | None,
    body: str | bytes | None,
    received_at: float,
    provider: str | None = None,
    transport: str = "http",
    zone: str | None = None,
) -> StatedWait | None:
    """Return what a response states, or None where nothing was stated and nothing is limited.

    Not a checkpoint; touches nothing. Raises nothing.

    Args:
        status: HTTP status, or None where the transport has none.
        headers: A mapping (a value may be a list of lines) or (name, value) pairs; names in any
            case. A list of pairs keeps repeated lines apart, which a joined mapping cannot.
        body: As received; only the first million characters are read.
        received_at: Epoch seconds of the arrival, by the wall clock. Where it is no instant,
            durations hold until released.
        provider: A name of docs/providers.md; others, and None, are recognised by what only one
            provider sends, or read as generic.
        transport: `http`, `sse`, `event_stream`, `statusline`, `agent_sdk` or `text`.
        zone: Of clock times that name no zone, as terminals print them: a name of the zone
            database. UTC where it is left out; one that does not exist makes them unreadable.
    """
    response = normalised(
        status=status,
        headers=headers,
        body=body,
        received_ms=instant_ms(received_at),
        transport=transport,
        zone=zone_named(zone) if isinstance(zone, str) else UTC,
    )
    verdict = judge(reading_of(provider, response), response)
    if not verdict.statements and not verdict.limited:
        return None
    return _wait(response, verdict, _binding(response, verdict))


def _binding(response: Response, verdict: Verdict) -> Statement | None:
    known = [one for one in verdict.statements if not one.unstated]
    # Of equally long ones the later row binds: windows stand behind what repeats them.
    longest = max(reversed(known), key=_length, default=None)
    if longest is None or len(known) == len(verdict.statements):
        return longest
    # A window that is used up and does not say until when outlasts one that is over.
    return None if _ends(longest, response.received_ms)[0] is WaitEnds.ALREADY_OVER else longest


def _length(one: Statement) -> tuple[float, bool]:
    # Without an end all are equally long, and the widest says the most.
    endless = one.at_ms > INSTANT_MS_MAX
    return (math.inf if endless else one.at_ms), endless and one.scope is WaitScope.ACCOUNT


def _account_ms(response: Response, verdict: Verdict, binding: Statement) -> int | None:
    """Until when the whole account waits, where what binds is not said to be its own."""
    if (binding.scope or verdict.scope) is WaitScope.ACCOUNT:
        return None
    deadlines = (
        _ends(one, response.received_ms)[1]
        for one in verdict.statements
        if one.scope is WaitScope.ACCOUNT and not one.unstated
    )
    return max((each for each in deadlines if each is not None), default=None)


def reading_of(provider: object, response: Response) -> Reading:
    """The reading of a named provider; of one that is not known, by what only one sends."""
    if isinstance(provider, str):
        name = provider[:64].strip().lower().replace("_", "-")
        if name == "anthropic" and response.transport in _OF_THE_TERMINAL:
            return claude_code.READING
        if name in _BY_NAME:
            return _BY_NAME[name]
    for reading in READINGS.values():
        if reading.recognises(response):
            return reading
    return generic.READING


def _wait(response: Response, verdict: Verdict, binding: Statement | None) -> StatedWait:
    if binding is None:
        return StatedWait(
            kind=verdict.kind,
            ends=WaitEnds.UNKNOWN,
            scope=verdict.scope,
            window=_bounded(verdict.window),
            raw=printable(response.text, chars_max=REASON_CHARS_MAX),
        )
    ends, deadline = _ends(binding, response.received_ms)
    return StatedWait(
        kind=verdict.kind,
        ends=ends,
        deadline_ms=deadline,
        scope=binding.scope or verdict.scope,
        account_deadline_ms=_account_ms(response, verdict, binding),
        window=_bounded(binding.window or verdict.window),
        source=binding.source,
        raw=printable(binding.raw, chars_max=REASON_CHARS_MAX),
    )


def _ends(binding: Statement, received_ms: int | None) -> tuple[WaitEnds, int | None]:
    if binding.over or (received_ms is not None and binding.at_ms <= received_ms):
        return WaitEnds.ALREADY_OVER, None
    if binding.at_ms == math.inf or binding.at_ms > INSTANT_MS_MAX:
        return WaitEnds.UNTIL_RELEASED, None
    return WaitEnds.UNTIL, int(binding.at_ms)


def _bounded(window: str | None) -> str | None:
    return None if window is None else printable(window, chars_max=_WINDOW_CHARS_MAX)
