"""Who asked for an operator's act, as it is recorded: the door it came through, and a name.

The name is what the caller says; the door is what this process knows. So a requester cannot pass
for one of another door, nor write a line of a log.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from .errors import InvalidInputError
from .ingress import clean_text

Door: TypeAlias = Literal["api", "cli"]
"""`api`: the host's own code. `cli`: the control socket, whose mode of 0600 is its gate."""
REQUESTER_CHARS_MAX: Final = 200


def read_requester(requester: object, door: Door) -> str:
    """The requester in one bounded line, behind its door's name.

    Raises:
        InvalidInputError: It is not text, or says nothing; nothing was done.
    """
    if not isinstance(requester, str):
        kind = type(requester).__name__
        raise InvalidInputError("requester", f"must be text, not {kind}")
    name = clean_text(requester.removeprefix(f"{door}:"), REQUESTER_CHARS_MAX).strip()
    if not name:
        raise InvalidInputError("requester", "must say who asks")
    return f"{door}:{name}"
