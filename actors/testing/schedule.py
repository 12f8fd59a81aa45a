"""The schedule of faults as text: a line each, which says where, at which hit, and what was done.

One line more, `task_order SEED`, says by which seed trio ordered tasks that were ready at once.

Errors are written by class and text, and made again from both; one that cannot be is an
`InjectedCrashError` of the same text.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_UNPRINTED: Final = re.compile(r"[\\\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ORDER_LINE: Final = re.compile(r"^\s*task_order (-?\d+)\s*$", re.M)
_ESCAPED: Final = re.compile(r"\\(?:\\|[nrt]|x[0-9a-f]{2}|u[0-9a-f]{4})")


@dataclass(frozen=True, slots=True)
class Action:
    """What is done at a point.

    Attributes:
        kind: `crash`, `kill`, `delay`, `drop`, `duplicate`, `exit` or `refuse`.
        value: The error, the seconds, or the exit code.
    """

    kind: str
    value: Any = None

    @property
    def words(self) -> list[str]:
        """It as words of a schedule's line."""
        value = self.value
        if isinstance(value, BaseException):
            kind = type(value)
            args = value.args
            # A KeyError's text is its key in quotes, which would be quoted again each time.
            plain = len(args) == 1 and type(args[0]) is str
            text = args[0] if plain else str(value)
            return [self.kind, f"{kind.__module__}:{kind.__qualname__}", text]
        return [self.kind] if value is None else [self.kind, str(value)]


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that was done.

    Attributes:
        point: Where.
        actor: At whom; `host` for a call that is no ask, `journal` for a commit.
        hit: At which hit of that point by that actor, from 1.
        action: What.
    """

    point: str
    actor: str
    hit: int
    action: Action

    def __str__(self) -> str:
        words = [self.point, self.actor, str(self.hit), *self.action.words]
        return shlex.join(_UNPRINTED.sub(_escape, word) for word in words)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


def _unescape(found: re.Match[str]) -> str:
    return found.group().encode("ascii").decode("unicode_escape")


def order_line(seed: int) -> str:
    """The line that says by which seed tasks were ordered."""
    return f"task_order {seed}"


def read_order(text: str) -> int | None:
    """Read by which seed tasks were ordered; None where no line says it."""
    found = _ORDER_LINE.search(text)
    return None if found is None else int(found[1])


def read_schedule(text: str) -> Iterator[tuple[str, str, int, list[str]]]:
    """Read point, actor, hit and the action's words of each fault; comments are skipped.

    Raises:
        ValueError: A line is neither a fault nor an order; the text says which.
    """
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or _ORDER_LINE.fullmatch(stripped):
            continue
        words = [_ESCAPED.sub(_unescape, word) for word in shlex.split(stripped)]
        if len(words) < 4 or not words[2].isdecimal():
            raise ValueError(f"a line of a schedule is: point actor hit action; not {line!r}")
        yield words[0], words[1], int(words[2]), words[3:]


def action_of(words: list[str], default: type[BaseException]) -> Action:
    """Make an action of the words that `Action.words` gave.

    Args:
        words: The action and what it takes.
        default: The class of an error whose own cannot be made of a text.
    Raises:
        ValueError: They are no action.
    """
    kind, *rest = words
    takes = {"crash": 2, "refuse": 2, "delay": 1, "exit": 1, "kill": 0, "drop": 0, "duplicate": 0}
    if takes.get(kind) != len(rest):
        raise ValueError(f"no fault is {shlex.join(words)!r}")
    if kind in ("crash", "refuse"):
        return Action(kind, _error(rest[0], rest[1], default))
    if kind == "delay":
        return Action(kind, float(rest[0]))
    return Action(kind, int(rest[0])) if rest else Action(kind)


def _error(path: str, text: str, default: type[BaseException]) -> BaseException:
    module, _, name = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
        error = kind(text)
    except (ImportError, AttributeError, TypeError, ValueError):
        return default(text)
    return error if isinstance(error, BaseException) else default(text)
