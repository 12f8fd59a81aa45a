"""What a supervisor and its children are to be, and how one is.

Specs are values: they are checked when they are made, and nothing changes them.

Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from .actor import TrioActor
    from .ref import TrioActorRef
    from .supervisor import Supervisor

RESTARTS = ("permanent", "transient", "temporary")
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
AUTO_SHUTDOWNS = ("never", "any_significant", "all_significant")
DIRECTIVES = ("resume", "restart", "stop", "escalate")
"""By severity: of the members of an exception group the last of these decides."""
PAUSE_S_MAX = 1e9
"""Some thirty years: a pause that is longer has an end that no clock can be asked for."""
FACTOR_MAX = 1e6

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Directive: TypeAlias = Literal["resume", "restart", "stop", "escalate"]
Directives: TypeAlias = tuple[tuple[type[BaseException], Directive], ...]
"""Pairs of an error's type and what it means; the first that matches decides."""


def check_directives(directives: Directives) -> None:
    """Refuse what would never match, or says nothing that is known.

    Raises:
        TypeError: They are no pairs, or a pair's type is no exception class.
        ValueError: Its directive is none, or its type is an exception group's.
    """
    if not isinstance(directives, tuple) or any(
        not isinstance(pair, tuple) or len(pair) != 2 for pair in directives
    ):
        raise TypeError(
            f"directives must be a tuple of pairs (error class, directive), not {directives!r:.80}"
        )
    for kind, directive in directives:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"directives must be keyed by exception classes, not {kind!r}")
        if issubclass(kind, BaseExceptionGroup):
            raise ValueError(
                f"directives must not be keyed by {kind.__name__}: a group's members decide"
            )
        if directive not in DIRECTIVES:
            raise ValueError(f"directives must be among {', '.join(DIRECTIVES)}, not {directive!r}")


def check_type(field: str, value: object, kind: type) -> None:
    """Refuse what is not of a type, by the name of its field.

    Raises:
        TypeError: It is not, or it is a truth value in the place of a number.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{field} must be of {kind.__name__}, and is {value!r:.80}")


def check_name(field: str, value: object) -> None:
    """Refuse what is no name, by the name of its field.

    Raises:
        TypeError: It is no text.
        ValueError: It is empty, or has a control character in it, the end of a line for one.
    """
    check_type(field, value, str)
    if not value or _CONTROL.search(str(value)):
        raise ValueError(
            f"{field} must be text without control characters, not empty, and is {value!r:.80}"
        )


def check_number(field: str, value: object) -> None:
    """Refuse what is no number, by the name of its field.

    Raises:
        TypeError: It is none, or a truth value in the place of one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number, and is {value!r:.80}")


def is_actor_class(value: object) -> bool:
    """Whether actors of it can be started."""
    from .actor import TrioActor  # It starts actors itself, by what stands on these.

    return isinstance(value, type) and issubclass(value, TrioActor)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long restarts after the first in a period wait.

    Attributes:
        initial_s: The second restart's wait.
        max_s: The longest wait.
        factor: From one wait to the next.
        jitter: Up to which part of itself a wait is shortened or lengthened, by the system's
            seeded random numbers; never past `max_s`.
        reset_after_s: How long no restart must have been needed, from the end of the last one's
            wait, for the next to be immediate again. None: the restarts that the period still
            holds are what counts.
    """

    initial_s: float = 0.05
    max_s: float = 5.0
    factor: float = 2.0
    jitter: float = 0.1
    reset_after_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("initial_s", "max_s", "factor", "jitter"):
            check_number(name, getattr(self, name))
        for name in ("initial_s", "max_s"):
            if not 0 <= getattr(self, name) <= PAUSE_S_MAX:
                raise ValueError(f"{name} must be from 0 to {PAUSE_S_MAX:,.0f} seconds")
        if not 1 <= self.factor <= FACTOR_MAX:
            raise ValueError(f"factor must be from 1 to {FACTOR_MAX:,.0f}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, and is {self.jitter!r:.80}")
        if self.reset_after_s is not None:
            check_number("reset_after_s", self.reset_after_s)
            if not self.reset_after_s > 0:
                raise ValueError("reset_after_s must be positive, or None")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a supervisor starts, and when again.

    Attributes:
        id: What the supervisor knows it as.
        actor_class: The class.
        args: The arguments, or a function from the refs of the children so far, by id, to them.
        kwargs: The keyword arguments.
        restart: `permanent` always, `transient` after a crash, `temporary` never.
        shutdown_s: How long a stop may take before it is a kill: its `on_stop`, and replies owed
            before that; with the message it handles, where the supervisor ends it.
        name: Its name in the system, unique among the living. None has none.
        register: Whether it enters `pykka.ActorRegistry`.
        directives: What its errors mean, before the supervisor's directives are asked.
        significant: Whether its end may end its supervisor, by `auto_shutdown`. Not for a
            permanent child, which does not end by itself.
    """

    id: str
    actor_class: type[TrioActor]
    args: tuple[Any, ...] | Callable[[Mapping[str, TrioActorRef[Any]]], tuple[Any, ...]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    shutdown_s: float = 5.0
    name: str | None = None
    register: bool = False
    directives: Directives = ()
    significant: bool = False

    def __post_init__(self) -> None:
        check_name("id", self.id)
        if not is_actor_class(self.actor_class):
            raise TypeError(
                f"actor_class of child {self.id!r} must be a class of TrioActor's, "
                f"not {self.actor_class!r:.80}"
            )
        if not callable(self.args):
            check_type("args", self.args, tuple)
        check_type("kwargs", self.kwargs, Mapping)
        for key in self.kwargs:
            check_type("a key of kwargs", key, str)
        if self.name is not None:
            check_name("name", self.name)
        if self.restart not in RESTARTS:
            raise ValueError(
                f"restart must be one of {', '.join(RESTARTS)}, not {self.restart!r:.80}"
            )
        check_number("shutdown_s", self.shutdown_s)
        if not self.shutdown_s >= 0:
            raise ValueError(
                f"shutdown_s must be seconds, and not negative, and is {self.shutdown_s!r}"
            )
        for name in ("register", "significant"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r:.80}")
        check_directives(self.directives)
        if self.significant and self.restart == "permanent":
            raise ValueError("significant must not be set for a permanent child")


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """What a supervisor is.

    Attributes:
        id: What its parent knows it as.
        children: In start order.
        strategy: `one_for_one`, `one_for_all` or `rest_for_one`.
        intensity: How many restarts a period may see.
        period_s: The period.
        backoff: How restarts wait.
        on_exhausted: `escalate` or `park` when the intensity is exceeded.
        on_parked: Called with the supervisor and the error when it parks.
        directives: What errors mean: those of its children, and those that the supervisors under
            it escalate with. See `core/directives.py`.
        auto_shutdown: Whether it stops itself, for good, when significant children have ended by
            themselves: `never`, with `any_significant` the first that does, with
            `all_significant` the last there is.
    """

    id: str
    children: tuple[ChildSpec, ...] = ()
    strategy: Literal["one_for_one", "one_for_all", "rest_for_one"] = "one_for_one"
    intensity: int = 5
    period_s: float = 30.0
    backoff: Backoff = Backoff()
    on_exhausted: Literal["escalate", "park"] = "escalate"
    on_parked: Callable[[Supervisor, BaseException], object] | None = None
    directives: Directives = ()
    auto_shutdown: Literal["never", "any_significant", "all_significant"] = "never"

    def __post_init__(self) -> None:
        check_name("id", self.id)
        check_type("children", self.children, tuple)
        check_type("backoff", self.backoff, Backoff)
        check_type("intensity", self.intensity, int)
        if self.on_parked is not None and not callable(self.on_parked):
            raise TypeError(f"on_parked must be a function, and is {self.on_parked!r:.80}")
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r:.80}"
            )
        if self.on_exhausted not in ("escalate", "park"):
            raise ValueError(
                f"on_exhausted must be escalate or park, not {self.on_exhausted!r:.80}"
            )
        check_number("period_s", self.period_s)
        if self.intensity < 0 or not self.period_s > 0:
            raise ValueError("intensity must not be negative, and period_s must be positive")
        check_directives(self.directives)
        if self.auto_shutdown not in AUTO_SHUTDOWNS:
            raise ValueError(
                f"auto_shutdown must be one of {', '.join(AUTO_SHUTDOWNS)}, "
                f"not {self.auto_shutdown!r:.80}"
            )
        for child in self.children:
            check_type("children", child, ChildSpec)
            self.check_child(child)
        for field_name in ("id", "name"):
            taken: set[str] = set()
            for child in self.children:
                said = getattr(child, field_name)
                if said in taken:
                    raise ValueError(
                        f"children of {self.id!r} must each have {field_name} of its own, "
                        f"and two have {said!r}"
                    )
                if said is not None:
                    taken.add(said)

    def check_child(self, child: ChildSpec) -> None:
        """Raise ValueError for a significant child where no child's end ends the supervisor."""
        if child.significant and self.auto_shutdown == "never":
            raise ValueError(
                f"child {child.id!r} must not be significant: auto_shutdown of {self.id!r} is never"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """What something last failed with.

    Attributes:
        type: The error's class name.
        text: Its text.
        at_ms: When, in epoch milliseconds.
    """

    type: str
    text: str
    at_ms: int

    @classmethod
    def of(cls, error: BaseException | None, at_ms: int) -> Failure | None:
        """Return an error's, or None where there is none. Does not raise."""
        if error is None:
            return None
        try:
            text = str(error)
        except Exception as exc:  # noqa: BLE001 - a host's error class, whose text is not to be had.
            text = f"(its text cannot be had: {type(exc).__name__})"
        return cls(type(error).__name__, text, at_ms)


@dataclass(frozen=True, slots=True)
class SupervisorStatistics:
    """A snapshot of one supervisor.

    Attributes:
        id: Its id.
        state: `running`, `parked` or `stopped`.
        children: How many children it has.
        restarts: How many restarts there were, in its life.
        recent_restarts: How many of them count towards the intensity now.
        last_error: What it last parked or escalated with.
        last_failure: The same as text, with its instant.
        depth: How many messages wait in the mailboxes of the actors below it that live, at any
            depth of the tree.
        handled: How many messages those have handled.
        dropped: How many answers and timers of earlier incarnations they dropped.
        dead: How many of their messages became dead letters.
    """

    id: str
    state: str
    children: int
    restarts: int
    recent_restarts: int
    last_error: BaseException | None
    last_failure: Failure | None
    depth: int
    handled: int
    dropped: int
    dead: int
