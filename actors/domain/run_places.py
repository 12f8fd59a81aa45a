"""Places for runs that are taken up: a bound on how many get going at once, and none on the wait.

After a long pause any number of runs may be due, and whatever takes them all up at once has every
provider called at once. So each that is taken up has a place, of which there are `PLACES`. It gives
it back when its life ends; when it waits for what is not its own to do, as another run or an
agent's turn; and when it has had it for `PLACE_S`, whatever it does. So runs that are due move on
at a rate that nobody can stop, and a run that waits for one which has no place yet waits for no
place of its own.

Runs that somebody starts or resumes take none: whoever asks for them bounds them.

Invariants:
    I1  At most `PLACES` are held.
    I2  None is held for longer than `PLACE_S`.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import trio

PLACES: Final = 100
PLACE_S: Final = 300.0


class Place:
    """What one life of a run holds."""

    def __init__(self, places: Places | None = None) -> None:
        self._places = places
        self.taken_s = trio.current_time()

    def give_back(self) -> None:
        """Let another run have it. Idempotent."""
        places, self._places = self._places, None
        if places is not None:
            places.free(self)


place_here: ContextVar[Place | None] = ContextVar("abeyance_run_place", default=None)
"""The place of the run whose code runs here."""


class Places:
    """Those of one incarnation of what executes runs.

    Args:
        freed: Told when one has come free.
    """

    def __init__(self, freed: Callable[[], object]) -> None:
        self._freed = freed
        self._held: set[Place] = set()

    def is_free(self) -> bool:
        """Whether one can be taken; those that were held for long enough are free again."""
        ends_s = trio.current_time() - PLACE_S
        for place in [each for each in self._held if each.taken_s <= ends_s]:
            self._held.discard(place)
        return len(self._held) < PLACES

    def take(self) -> Place:
        place = Place(self)
        self._held.add(place)
        return place

    def free(self, place: Place) -> None:
        was_full = len(self._held) >= PLACES
        self._held.discard(place)
        if was_full:
            self._freed()


def wait_without_place() -> None:
    """Code that waits for another run: if a run does, its place is free meanwhile, and after."""
    place = place_here.get()
    if place is not None:
        place.give_back()
