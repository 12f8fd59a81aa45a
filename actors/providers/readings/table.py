"""How a reading is written down: two tables, and the one way to go through them.

The rows of `kinds` say what kind of refusal a response is. The first that matches decides; where
none does, the status does. The rows of `untils` say until when; all of them are read, and the
reader binds the longest. docs/providers.md is printed from these rows.

Invariants:
    I1  On a call that went through and carries no error nothing is read.
    I2  On any other response that is no limit only `standing` rows are read: a window's reset
        beside a bad request is telemetry, a Retry-After is a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..stated import WaitKind, WaitScope
from ..windows import UsageWindow
from .response import Response, Signal, Statement


@dataclass(frozen=True, slots=True)
class KindRow:
    where: str
    what: str
    kind: WaitKind
    matches: Callable[[Response], bool]
    scope: WaitScope | None = None
    window: str | None = None
    refined: Callable[[Response], tuple[WaitScope | None, str | None]] | None = None
    """Says whose window it is, and which, where the row alone does not."""


@dataclass(frozen=True, slots=True)
class UntilRow:
    where: str
    what: str
    how: str
    read: Signal
    standing: bool = False
    alone: bool = False
    """Read only where no row before it stated anything."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How one provider's responses are read."""

    name: str
    title: str
    kinds: tuple[KindRow, ...]
    untils: tuple[UntilRow, ...]
    recognises: Callable[[Response], bool] = lambda _response: False
    """Whether a response is this provider's beyond doubt, where the caller did not say."""
    aliases: tuple[str, ...] = ()
    notes: str = ""
    windows: Callable[[Response], Iterable[UsageWindow]] = lambda _response: ()
    """The usage windows that a response tells, full or not."""
    windows_how: str = ""
    """Where they stand, for people."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What kind of refusal a response is. `kind` OTHER: none, but what it states is kept."""

    kind: WaitKind
    scope: WaitScope | None
    window: str | None
    statements: tuple[Statement, ...]

    @property
    def limited(self) -> bool:
        return self.kind is not WaitKind.OTHER


KIND_BY_STATUS = {
    402: WaitKind.QUOTA_EXHAUSTED,
    429: WaitKind.RATE_LIMITED,
    503: WaitKind.OVERLOADED,
    529: WaitKind.OVERLOADED,
}

KIND_BY_NAME = {
    "insufficient_quota": WaitKind.QUOTA_EXHAUSTED,
    "overloaded_error": WaitKind.OVERLOADED,
    "rate_limit_error": WaitKind.RATE_LIMITED,
    "rate_limit_exceeded": WaitKind.RATE_LIMITED,
    "too_many_requests": WaitKind.RATE_LIMITED,
}
"""Where neither a row nor a status decides: what an error without a status calls itself."""


def judge(reading: Reading, response: Response) -> Verdict:
    """Go through a reading's tables."""
    kind, scope, window = _kind(reading, response)
    statements: list[Statement] = []
    if kind is not WaitKind.OTHER or not response.served:
        for row in reading.untils:
            counts = kind is not WaitKind.OTHER or row.standing
            if counts and not (row.alone and statements):
                statements += row.read(response)
    return Verdict(kind, scope, window, tuple(statements))


def _kind(reading: Reading, response: Response) -> tuple[WaitKind, WaitScope | None, str | None]:
    for row in reading.kinds:
        if row.matches(response):
            scope, window = (None, None) if row.refined is None else row.refined(response)
            return row.kind, scope or row.scope, window or row.window
    kind = KIND_BY_STATUS.get(response.failing or 0, WaitKind.OTHER)
    if kind is WaitKind.OTHER and response.failing is None:
        # One service hands on another's error in a stream, under the other's name for it.
        kind = next((KIND_BY_NAME[name] for name in sorted(response.names & KIND_BY_NAME.keys())),
                    kind)  # fmt: skip
    return kind, WaitScope.ACCOUNT if kind is WaitKind.QUOTA_EXHAUSTED else None, None


def named(
    *names: str,
    kind: WaitKind,
    scope: WaitScope | None = None,
    window: str | None = None,
) -> KindRow:
    """A row for an error's own type, code, status or reason."""
    known = frozenset(name.lower() for name in names)
    return KindRow(
        "error",
        ", ".join(f"`{name}`" for name in names),
        kind,
        lambda response: bool(known & response.names),
        scope,
        window,
    )


def worded(
    pattern: str,
    shown: str,
    *,
    kind: WaitKind,
    scope: WaitScope | None = None,
    window: str | None = None,
) -> KindRow:
    """A row for an error's words, by their shape."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return KindRow(
        "words",
        shown,
        kind,
        lambda response: compiled.search(response.words) is not None,
        scope,
        window,
    )


_LIMIT_REACHED = re.compile(
    r"""
      (?<!\bif\ )(?<!\bonce\ )(?<!\bwhen\ )\byou(?:'ve|\ have)?\ (?:just\ )?
      (?:hit|reached|exceeded|exhausted)\ (?:your|the|this|a|an)\ (?:[\w'.-]+\ ){0,4}
      (?:limits?|quota|capacity|allowance)\b
    | (?<!\bif\ )(?<!\bonce\ )(?<!\bwhen\ )(?<!\bif\ the\ )(?<!\bwhen\ the\ )
      \b(?:rate|usage|request|token|message|quota)\ (?:limit\ )?(?:has\ been\ )?
      (?:reached|exceeded|exhausted)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def says_reached(words: str) -> bool:
    """Whether words say that a limit was reached, and do not only speak of one."""
    return _LIMIT_REACHED.search(words) is not None


def line_of_a_limit(kind: WaitKind) -> KindRow:
    """A row for a line that says that a limit was reached, where no status and no error says so."""
    return KindRow(
        "words",
        "`You've hit the … limit`, `reached your … quota`, `rate limit exceeded`, in a text that "
        "comes with no status",
        kind,
        lambda response: (
            response.transport == "text"
            and response.failing is None
            and says_reached(response.words)
        ),
    )
