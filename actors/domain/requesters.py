"""Who asks for an operator's act: the door it comes through, a name, and whether it may.

The name is what the caller says; the door is what this process knows: whoever calls a verb comes by
the API, but where a surface of the runtime's own passes on a request, and vouches for whose. No
public argument says so. So a requester cannot pass for one of another door, nor write a line of a
log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from abeyance.actors.core.logs import Log

from .errors import InvalidInputError, NotPermittedError
from .ingress import clean_text

Door: TypeAlias = Literal["api", "cli", "http"]
"""`api`: the host's own code. `cli`: the control socket, whose mode of 0600 is its gate. `http`:
the HTTP API, which has its admin token, and behind that the host's gate."""
REQUESTER_CHARS_MAX: Final = 200

_logger = Log(__name__)


class OperatorAct(NamedTuple):
    """What a host's admin gate is asked about."""

    verb: str
    """The method's name: `release_provider_wait`, `rewind`, `undo_rewind`, `edit`, `undo_edit`,
    `run_tool`, `import_deferred`, `remove_agent`, `close` (a conversation's), `resume_agent`,
    `replay_dead_letter`, `replay_quarantined`, `start_run`, `resume_run`, `use_fallback`,
    `cancel_run`, `take_over_run`, `add_schedule`, `pause_schedule`, `resume_schedule`,
    `remove_schedule`, `unpark`, `quiesce`, `resume`."""
    agent: str
    """Whom it concerns; of a replay the name of the actor whose message it was, of a run the key or
    id that was given, of a schedule its name, of an unpark the group."""
    requester: str
    """As it would be recorded."""


Admin: TypeAlias = Callable[[OperatorAct], bool]
"""A host's admin gate. Called on the loop thread; must not block. Only True lets an act pass."""


class Vouched(str):
    """Who asks, as a surface heard it, with the door of that surface. For surfaces alone: it is how
    they call the same verbs that a host calls with plain text."""

    __slots__ = ("door",)
    door: Door

    def __new__(cls, name: str, door: Door) -> Vouched:
        vouched = super().__new__(cls, name)
        vouched.door = door
        return vouched


def read_requester(requester: object) -> tuple[str, Door]:
    """The requester in one bounded line, behind its door's name; and the door.

    Raises:
        InvalidInputError: It is not text, or says nothing; nothing was done.
    """
    if not isinstance(requester, str):
        kind = type(requester).__name__
        raise InvalidInputError("requester", f"must be text, not {kind}")
    door: Door = requester.door if isinstance(requester, Vouched) else "api"
    name = clean_text(requester.removeprefix(f"{door}:"), REQUESTER_CHARS_MAX).strip()
    if not name:
        raise InvalidInputError("requester", "must say who asks")
    return f"{door}:{name}", door


def check_permitted(admin: Admin | None, act: OperatorAct, door: Door) -> None:
    """Ask the host's gate about an act that comes through its API or by HTTP; one that fails lets
    nobody by.

    Raises:
        NotPermittedError: It did not say yes; nothing was done.
    """
    if admin is None or door == "cli":
        return
    cause: Exception | None = None
    try:
        if admin(act) is True:
            return
    except Exception as error:
        _logger.exception(
            "the host's admin gate failed, so %s is refused", act.verb, agent=act.agent
        )
        cause = error
    raise NotPermittedError(
        f"{act.requester!r} may not {act.verb} of {act.agent!r}: the host's admin gate "
        f"{'failed' if cause is not None else 'refused'}; nothing was done; ask an admin",
        verb=act.verb,
        agent=act.agent,
    ) from cause
