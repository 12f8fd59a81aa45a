"""What a supervisor and its children are to be, and how one is.

Specs are values: they are checked when they are made, and nothing changes them.

Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .actor import TrioActor
    from .ref import TrioActorRef
    from .supervisor import Supervisor

RESTARTS = ("permanent", "transient", "temporary")
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long restarts after the first in a period wait.

    Attributes:
        initial_s: The second restart's wait.
        max_s: The longest wait.
        factor: From one wait to the next.
        jitter: Up to which part of itself a wait is shortened or lengthened, by the system's
            seeded random numbers.
    """

    initial_s: float = 0.05
    max_s: float = 5.0
    factor: float = 2.0
    jitter: float = 0.1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a supervisor starts, and when again.

    Attributes:
        id: What the supervisor knows it as.
        actor_class: The class.
        args: The arguments, or a function from the refs of the children so far, by id, to them.
        kwargs: The keyword arguments.
        restart: `permanent` always, `transient` after a crash, `temporary` never.
        shutdown_s: How long a stop may take before it is a kill.
        name: Its name in the system, unique among the living. None has none.
        register: Whether it enters `pykka.ActorRegistry`.
    """

    id: str
    actor_class: type[TrioActor]
    args: tuple[Any, ...] | Callable[[Mapping[str, TrioActorRef[Any]]], tuple[Any, ...]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    shutdown_s: float = 5.0
    name: str | None = None
    register: bool = False

    def __post_init__(self) -> None:
        if self.restart not in RESTARTS:
            raise ValueError(f"restart must be one of {', '.join(RESTARTS)}, not {self.restart!r}")
        if not self.shutdown_s >= 0:
            raise ValueError(f"shutdown_s must not be negative, and is {self.shutdown_s!r}")


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
    """

    id: str
    children: tuple[ChildSpec, ...] = ()
    strategy: Literal["one_for_one", "one_for_all", "rest_for_one"] = "one_for_one"
    intensity: int = 5
    period_s: float = 30.0
    backoff: Backoff = Backoff()
    on_exhausted: Literal["escalate", "park"] = "escalate"
    on_parked: Callable[[Supervisor, BaseException], object] | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}"
            )
        if self.on_exhausted not in ("escalate", "park"):
            raise ValueError(f"on_exhausted must be escalate or park, not {self.on_exhausted!r}")
        if self.intensity < 0 or not self.period_s > 0:
            raise ValueError("intensity must not be negative, and period_s must be positive")


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
    """

    id: str
    state: str
    children: int
    restarts: int
    recent_restarts: int
    last_error: BaseException | None
