"""The time of a batch as a test has it: it stands still, whatever the machine does meanwhile."""

from __future__ import annotations

from abeyance.actors.core import ActorSystem


class Stopwatch:
    """Reads `now`, which a test sets.

    On a busy machine a batch's millisecond may pass between two messages; what is to be in one
    batch then is in two.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def still(system: ActorSystem) -> ActorSystem:
    """Let no batch of a system that was not entered yet end by its time."""
    system.stopwatch = Stopwatch()
    return system
