"""Commits that must land: asked for again while they are surely not stored.

A disk that is full, or a store that is briefly out of reach, is no reason to crash an actor or to
throw away what a turn has in hand: the refusal is definite, so the same commit is asked for again
after a pause. What can never be stored is raised at once, and what may be stored already is not
asked for twice. Whoever looks at the agent sees meanwhile what cannot be recorded, why, and since
when: `Recording`.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import trio

from abeyance.actors.core.logs import Log
from abeyance.storage.errors import (
    InvalidRequestError,
    RequestTooLargeError,
    StoreClosedError,
    UnreadableRecordError,
)

from .errors import NotStoredError
from .ingress import clean_text

T = TypeVar("T")

PAUSE_INITIAL_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
REASON_CHARS_MAX: Final = 500
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


async def until_stored(
    ask: Callable[[], Awaitable[T]],
    refused: Callable[[NotStoredError], object] = lambda _: None,
) -> T:
    """Ask for a commit until it has an outcome.

    A checkpoint. Cancelled: an ask that is out is waited for; the pauses between asks are not.

    Args:
        refused: Told each time that the store refused it, and it is to be asked for again.
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
                refused(error)
        await trio.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)


class Unrecorded(NamedTuple):
    """What of an agent the store refuses for now. Nothing goes on behind it until it is stored."""

    what: str
    reason: str
    since_ms: int


class Recording:
    """Commits of one agent that must land, and which of them the store refuses for now.

    Args:
        now_ms: The wall clock.
        told: Called when the first of them is refused, and with None when none is any more. It
            neither blocks nor raises.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        told: Callable[[Unrecorded | None], object] = lambda _: None,
    ) -> None:
        self._now_ms = now_ms
        self._told = told
        self._refused: dict[object, Unrecorded] = {}

    @property
    def refused(self) -> Unrecorded | None:
        """What has been refused for longest, with why it was the last time; None: nothing is."""
        return next(iter(self._refused.values()), None)

    def refuse(self, of: object, what: str, error: BaseException) -> None:
        """The store refused a commit, and it will be asked for again. Known again by `of`."""
        is_first, known = not self._refused, self._refused.get(of)
        reason = clean_text(str(error.__cause__ or error), REASON_CHARS_MAX)
        since_ms = self._now_ms() if known is None else known.since_ms
        self._refused[of] = Unrecorded(what, reason, since_ms)
        if is_first:
            self._told(self._refused[of])

    def settle(self, of: object) -> None:
        """The store took it, or nobody asks for it any more."""
        if self._refused.pop(of, None) is not None and not self._refused:
            self._told(None)

    async def until_stored(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask for a commit until it has an outcome, as `until_stored`."""
        of = object()
        try:
            return await until_stored(ask, lambda error: self.refuse(of, what, error))
        finally:
            self.settle(of)
