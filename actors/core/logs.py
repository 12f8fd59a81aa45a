"""The project's loggers: a message is one line, and carries the ids it is about.

Nothing is configured here or at any import: no handler, no level. Loggers are below `abeyance`.

Invariants:
    I1  What is put into a message cannot begin a line of its own, nor steer a terminal, whoever
        wrote it: control and line-breaking characters are escaped. Tracebacks are formatted by the
        host's formatter, and are of several lines as ever.
    I2  Each record has `actor`, `agent` and `turn`, None where it is about none, so that a format
        may name them.

Any thread.
"""

from __future__ import annotations

import logging
import unicodedata
from typing import Any, Final

ROOT: Final = "abeyance"
_UNPRINTABLE: Final = frozenset({"Cc", "Zl", "Zp", "Cs"})


class Log:
    """A logger of this project.

    Args:
        name: `abeyance`, or a name below it.
    """

    __slots__ = ("logger",)

    def __init__(self, name: str) -> None:
        if name.partition(".")[0] != ROOT:
            raise ValueError(f"a logger of this project is below {ROOT!r}, not {name!r}")
        self.logger = logging.getLogger(name)

    def debug(self, text: str, *values: object, **about: Any) -> None:
        """Log at DEBUG. As `error`."""
        if self.logger.isEnabledFor(logging.DEBUG):  # Each start of an actor comes by here.
            self._log(logging.DEBUG, text, values, **about)

    def info(self, text: str, *values: object, **about: Any) -> None:
        """Log at INFO. As `error`."""
        self._log(logging.INFO, text, values, **about)

    def warning(self, text: str, *values: object, **about: Any) -> None:
        """Log at WARNING. As `error`."""
        self._log(logging.WARNING, text, values, **about)

    def error(self, text: str, *values: object, **about: Any) -> None:
        """Log at ERROR.

        Args:
            text: The message, with a placeholder for each value.
            values: Anything: what they print as is made one line.
            about: `actor`, `agent`, `run` and `turn`, where known; `exc_info`; `stacklevel`.
        """
        self._log(logging.ERROR, text, values, **about)

    def exception(self, text: str, *values: object, **about: Any) -> None:
        """Log at ERROR, with the traceback of the error being handled."""
        self._log(logging.ERROR, text, values, exc_info=True, **about)

    def _log(
        self,
        level: int,
        text: str,
        values: tuple[object, ...],
        *,
        actor: str | None = None,
        agent: str | None = None,
        run: str | None = None,
        turn: int | None = None,
        exc_info: Any = None,
        stacklevel: int = 1,
    ) -> None:
        if self.logger.isEnabledFor(level):
            about = {
                "actor": None if actor is None else one_line(actor),
                "agent": None if agent is None else one_line(agent),
                "run": None if run is None else one_line(run),
                "turn": turn,
            }
            lines = [value if isinstance(value, int) else _Line(value) for value in values]
            self.logger.log(
                level, text, *lines, extra=about, exc_info=exc_info, stacklevel=stacklevel + 2
            )


class _Line:
    """A value that prints as one line, made when a handler formats the record."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(str(self._value))

    def __repr__(self) -> str:
        return one_line(repr(self._value))


def one_line(text: str) -> str:
    """A text with its control and line-breaking characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) in _UNPRINTABLE else char for char in text
    )
