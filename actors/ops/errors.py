"""Errors of the operator's side: its protocol, its connections, and what it is pointed at."""

from __future__ import annotations

from typing import ClassVar

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.errors import InvalidInputError


class ControlError(AbeyanceError):
    """A control request or connection failed. Attribute `field`: what was wrong, or None."""

    code: ClassVar[str] = "control"
    field: str | None = None


class MalformedRequestError(ControlError):
    """The line is not one JSON object of a known shape; nothing was done."""

    code = "malformed_request"


class InvalidFieldError(ControlError):
    """A field is missing, of the wrong type or no proper name; nothing was done."""

    code = "invalid_field"


class UnknownVerbError(ControlError):
    """No such verb; nothing was done."""

    code = "unknown_verb"


class UnsupportedProtocolError(ControlError):
    """The two sides speak different versions of this protocol; nothing was done."""

    code = "unsupported_protocol"


class StateUnusableError(ControlError):
    """A directory that was named cannot be worked in. It was left as it is."""

    code = "state_unusable"


class RequestTooLargeError(ControlError):
    """The line is longer than the bound; nothing was done and the connection is closed."""

    code = "request_too_large"


class InvalidConfigError(InvalidInputError):
    """A file that declares a host is malformed; nothing was begun. `field`: the path of the key."""

    code: ClassVar[str] = "invalid_config"


class NeedsHostError(ControlError):
    """What was asked for is done by a host that runs, and none does here. Nothing was done."""

    code = "needs_host"


def look_at(*pids: int) -> str:
    """What to type where a host does not answer: whether it is stopped, and how it goes on."""
    separated, listed = " ".join(map(str, pids)), ",".join(map(str, pids))
    return (
        f"look at that process with `ps -o pid,stat,etime,args -p {listed}` (a T in STAT: it is "
        f"stopped, and `kill -CONT {separated}` lets it go on)"
    )
