"""Pauses of a whole agent: cooldowns, which are guesses, and its host's own holds.

Neither is a provider's wait and neither is recorded: a restart is a new attempt, at which provider
and host may say so again. They live with the gate, so they outlive a crash of gate or agent.

Invariants:
    I1  A pause binds every model of its agent, and every purpose.
    I2  Of several with one cause and model the latest end counts. A release never moves an end
        later, and moves it no earlier than the agent's own pacing; a host's pause it leaves alone.
    I3  A clock that is turned back makes no pause last longer than it was meant to from then on.

Pure; the gate actor calls it on the loop thread.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from abeyance.storage.tables.fields import INSTANT_MS_MAX

from .wait_book import Deferral, outlasts

PauseCause: TypeAlias = Literal["cooldown", "host"]


class Pause(NamedTuple):
    """No call of this agent before `ends_ms`."""

    cause: PauseCause
    model: str
    """Whose failed call led to it."""
    began_ms: int
    ends_ms: int | None
    """None is for as long as the process lives."""
    own_ms: int | None
    """The end that is left when the waits of `model` are released: the agent's own part of it."""
    reason: str


def pause_of(
    cause: PauseCause,
    model: str,
    began_ms: int,
    length_ms: float,
    reason: str,
    own_ms: float | None = None,
) -> Pause:
    """Make a pause from its length; what cannot be an instant has no end."""
    ends = _end(began_ms, length_ms)
    return Pause(
        cause, model, began_ms, ends, ends if own_ms is None else _end(began_ms, own_ms), reason
    )


class Pauses:
    """The pauses of one agent."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[str, str], Pause] = {}

    def begin(self, pause: Pause) -> None:
        """Bind a pause. Beginning one twice changes nothing."""
        key = (pause.cause, pause.model)
        standing = self._pauses.get(key)
        if standing is not None:
            latest = pause if outlasts(pause.ends_ms, standing.ends_ms) else standing
            own = pause if outlasts(pause.own_ms, standing.own_ms) else standing
            pause = latest._replace(own_ms=own.own_ms)
        self._pauses[key] = pause

    def binding(self, now_ms: int) -> Pause | None:
        """The pause that ends last, or None."""
        if not self._pauses:
            return None
        for key, pause in list(self._pauses.items()):
            if now_ms < pause.began_ms:
                pause = self._pauses[key] = _moved(pause, now_ms - pause.began_ms)
            if pause.ends_ms is not None and pause.ends_ms <= now_ms:
                del self._pauses[key]
        last: Pause | None = None
        for pause in self._pauses.values():
            if last is None or outlasts(pause.ends_ms, last.ends_ms):
                last = pause
        return last

    def release(self, model: str | None) -> None:
        """Shorten what the released waits of a model (None: of every model) had lengthened."""
        for key, pause in self._pauses.items():
            mine = pause.cause == "cooldown" and model in (None, pause.model)
            if mine and outlasts(pause.ends_ms, pause.own_ms):
                self._pauses[key] = pause._replace(ends_ms=pause.own_ms)


def longest(agent: str, model: str, wait: Deferral | None, pause: Pause | None) -> Deferral | None:
    """Which of a recorded wait and a pause holds a call: the one that ends last."""
    if pause is None or (wait is not None and not outlasts(pause.ends_ms, wait.deadline_ms)):
        return wait
    return Deferral(agent, model, pause.ends_ms, pause.reason, pause.cause)


def _moved(pause: Pause, by_ms: int) -> Pause:
    def moved(at_ms: int | None) -> int | None:
        return None if at_ms is None else at_ms + by_ms

    return pause._replace(
        began_ms=pause.began_ms + by_ms, ends_ms=moved(pause.ends_ms), own_ms=moved(pause.own_ms)
    )


def _end(began_ms: int, length_ms: float) -> int | None:
    # Infinity is larger than every bound, and is compared before it is turned into a number.
    if length_ms > INSTANT_MS_MAX - began_ms:
        return None
    return began_ms + -int(-length_ms // 1)
