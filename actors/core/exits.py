"""What follows when an actor under a supervisor has ended an incarnation by itself.

| it | directive | what follows |
|---|---|---|
| stopped | – | it starts again if it is permanent, and has ended otherwise |
| crashed | restart | it starts again if it is permanent or transient: by the group's strategy |
| crashed | stop | it has ended |
| crashed | escalate | it is held, and its group fails with its error |

Runs on the loop thread, in the cell's task. Not a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .children import ActorChild
from .restarts import Fall, starts_again
from .settling import CRASHED, Exit
from .specs import Directive

if TYPE_CHECKING:
    from .supervisor import Supervisor


def child_exited(supervisor: Supervisor, child: ActorChild, outcome: Exit) -> float | None:
    """Say how long a child waits before its next incarnation; None ends it.

    One that is held waits, whatever is returned.
    """
    cell = child.cell
    directive = _directive(supervisor, child, outcome)
    escalates = directive == "escalate"
    if directive == "stop":
        return None
    if cell.held:
        if escalates and not supervisor._halted:
            supervisor._fall(Fall(child.id, outcome, escalates=True))
        return 0.0
    if not (escalates or starts_again(child.restart, outcome.kind == CRASHED)):
        return None
    if supervisor._halted or child.failed_to_start:
        cell.held = True  # Whoever launches it decides.
        return 0.0
    spent = False
    if supervisor.spec.strategy == "one_for_one" and not (outcome.poison or escalates):
        # At once, whatever else the group is about: a sibling's start may wait for it.
        delay_s = supervisor._next_wait_s(outcome.counts)
        if delay_s is not None:
            return delay_s
        spent = True
    cell.held = True
    supervisor._fall(Fall(child.id, outcome, spent, escalates))
    return 0.0


def _directive(supervisor: Supervisor, child: ActorChild, outcome: Exit) -> Directive:
    """What the exit means, `restart` where that is not the error's to say."""
    cell = child.cell
    if outcome.kind != CRASHED or outcome.error is None:
        return "restart"
    if cell.held and cell.killed_at is not None:
        return "restart"  # By its group, which halts it to start it again.
    directive = supervisor._directive_of(child, outcome.error)
    if directive == "stop" and child.failed_to_start:
        return "restart"  # Whoever launches it decides.
    return directive
