"""Commits that must land: asked for again while they are surely not stored.

A disk that is full, or a store that is briefly out of reach, is no reason to crash an actor or to
throw away what a turn has in hand: the refusal is definite, so the same commit is asked for again
after a pause. What can never be stored is raised at once, and what may be stored already is not
asked for twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from abeyance.actors.core.logs import Log
from abeyance.storage.errors import (
    InvalidRequestError,
    RequestTooLargeError,
    StoreClosedError,
    UnreadableRecordError,
)

from .errors import NotStoredError

T = TypeVar("T")

PAUSE_INITIAL_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
_FINAL: Final = (
    InvalidRequestError,
    RequestTooLargeError,
    StoreClosedError,
    UnreadableRecordError,
)
_logger = Log(__name__)


def may_land_later(error: BaseException | None) -> bool:
    """Whether a commit that failed so is surely not stored, and may be stored later."""
    return isinstance(error, NotStoredError) and not isinstance(error.__cause__, _FINAL)


async def until_stored(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask for a commit until it has an outcome.

    A checkpoint. Cancelled: an ask that is out is waited for; the pauses between asks are not.

    Raises:
        NotStoredError: It can never be stored; nothing of it is.
        Exception: Whatever else the ask raises.
    """
    pause_s = PAUSE_INITIAL_S
    while True:
        # Once it was asked, its answer decides what is true.
        with trio.CancelScope(shield=True):
            try:
                return await ask()
            except NotStoredError as error:
                if not may_land_later(error):
                    raise
                if pause_s == PAUSE_INITIAL_S:
                    _logger.warning("a commit waits until it can be stored: %s", error)
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)
