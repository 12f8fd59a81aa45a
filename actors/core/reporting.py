"""Logging what went wrong with an actor, where anybody listens.

A record costs a fifth of a restart, whether or not a handler takes it: the caller is searched for,
and some twenty attributes are set. So it is made only where some handler could see it.

No thread of its own; every function here may be called on any thread.
"""

from __future__ import annotations

import logging
from typing import Protocol

from .logs import Log


class Named(Protocol):
    """What an error is of: a ref."""

    @property
    def name(self) -> str: ...


def heard(logger: logging.Logger) -> bool:
    """Whether an error that is logged could reach anybody: a handler, or a filter on the way."""
    at: logging.Logger | None = logger
    while at is not None:
        if at.filters:
            return True
        for handler in at.handlers:
            if handler.__class__ is not logging.NullHandler:
                return True
        if not at.propagate:
            return False
        at = at.parent
    return False


def log_returned(logger: Log, subject: Named, error: BaseException) -> None:
    """Log an error that answers an ask: if nobody looks at the answer, it is the only trace."""
    if logger.logger.isEnabledFor(logging.INFO) and heard(logger.logger):
        info = (type(error), error, error.__traceback__)
        text = "Exception returned from %s to caller:"
        logger.info(text, subject, exc_info=info, stacklevel=2, actor=subject.name)


def log_error(logger: Log, text: str, subject: Named, error: BaseException) -> None:
    """Log an error with its traceback, under the subject's name in the text."""
    if heard(logger.logger):
        info = (type(error), error, error.__traceback__)
        logger.error(text, subject, exc_info=info, stacklevel=2, actor=subject.name)
