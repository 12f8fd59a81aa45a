"""Errors of schedules, sorted by what is still true when one is raised."""

from __future__ import annotations

from abeyance.actors.core.errors import AbeyanceError

from .errors import InvalidInputError


class InvalidScheduleError(InvalidInputError):
    """A schedule's name, interval, expression, zone or bound is malformed. Nothing was done.

    Attributes: `field`.
    """

    code = "invalid_schedule"


class UnknownScheduleError(AbeyanceError):
    """There is no such schedule. Nothing was done. Attribute: `schedule`."""

    code = "unknown_schedule"
    schedule: str
