"""The tree of a system, as a bounded structure and as text.

A system may have 100,000 actors under one supervisor: a tree shows at most so many levels, children
of one supervisor and nodes in all, the levels nearest to the root first, and says of each
supervisor how many of its children it leaves out.

Invariants:
    I1. A tree has at most `nodes_max` nodes, and costs as much to take, whatever the system holds.
    I2. The text of a tree holds no character that a terminal would act on.

Any thread. A snapshot of each node, not one of all of them: the system runs on meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from .children import ActorChild
from .specs import Failure

if TYPE_CHECKING:
    from .supervisor import Child, Supervisor

DEPTH: Final = 16
WIDTH: Final = 100
NODES: Final = 2_000
DEPTH_MAX: Final = 64
NODES_MAX: Final = 100_000
TEXT_CHARS_MAX: Final = 200
"""How much of a name or of an error's text is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A supervisor, or an actor.

    Attributes:
        kind: `supervisor` or `actor`.
        id: What its supervisor knows it as.
        name: An actor's key; a supervisor's id.
        state: As in its statistics.
        strategy: A supervisor's; None for an actor.
        restart: Its restart type under its supervisor.
        incarnation: An actor's, from 1; 0 for a supervisor.
        restarts: How often an actor was started again; of a supervisor, how often its children.
        recent_restarts: How many of a supervisor's count towards its intensity now.
        queued: Messages that wait for an actor.
        oldest_s_max: The bound on the age of the oldest; see `ActorStatistics`.
        in_flight_s_max: The bound on the age of what an actor handles; see `ActorStatistics`.
        handled: Messages an actor handled.
        last_failure: What it last failed with.
        children: A supervisor's, in start order.
        left_out: How many more children it has than are shown.
    """

    kind: str
    id: str
    name: str
    state: str
    strategy: str | None = None
    restart: str = "permanent"
    incarnation: int = 0
    restarts: int = 0
    recent_restarts: int = 0
    queued: int = 0
    oldest_s_max: float | None = None
    in_flight_s_max: float | None = None
    handled: int = 0
    last_failure: Failure | None = None
    children: tuple[TreeNode, ...] = ()
    left_out: int = 0


class _Shown(Protocol):
    """What `format_tree` reads: a `TreeNode`, or what mirrors one."""

    @property
    def children(self) -> Sequence[Any]: ...


class _Branch:
    """A supervisor that is being looked at."""

    __slots__ = ("children", "depth", "left_out", "supervisor")

    def __init__(self, supervisor: Supervisor, depth: int) -> None:
        self.supervisor = supervisor
        self.depth = depth
        self.children: list[TreeNode | _Branch] = []
        self.left_out = 0

    def freeze(self) -> TreeNode:
        supervisor = self.supervisor
        stats = supervisor.statistics()
        return TreeNode(
            kind="supervisor",
            id=stats.id,
            name=stats.id,
            state=stats.state,
            strategy=supervisor.spec.strategy,
            restart=supervisor.restart,
            restarts=stats.restarts,
            recent_restarts=stats.recent_restarts,
            last_failure=stats.last_failure,
            children=tuple(
                child.freeze() if isinstance(child, _Branch) else child for child in self.children
            ),
            left_out=self.left_out,
        )


def take_tree(
    root: Supervisor, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
) -> TreeNode:
    """Look at a supervisor and what is below it. See `ActorSystem.tree`."""
    for name, value, most in (
        ("depth_max", depth_max, DEPTH_MAX),
        ("width_max", width_max, NODES_MAX),
        ("nodes_max", nodes_max, NODES_MAX),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} must be an integer from 1 to {most}, and is {value!r}")
    top = _Branch(root, 1)
    room = nodes_max - 1
    level = deque([top])
    while level:  # Breadth first: where there is no room for all, the upper levels are whole.
        branch = level.popleft()
        wanted = 0 if branch.depth >= depth_max else min(width_max, room)
        total, children = _first_children(branch.supervisor, wanted)
        branch.left_out = max(0, total - len(children))
        room -= len(children)
        for child in children:
            if isinstance(child, ActorChild):
                branch.children.append(_actor_node(child))
            else:
                below = _Branch(child, branch.depth + 1)
                branch.children.append(below)
                level.append(below)
    return top.freeze()


def _first_children(supervisor: Supervisor, count: int) -> tuple[int, list[Child]]:
    children = supervisor._children
    while True:
        try:
            return len(children), list(islice(children.values(), count))
        except RuntimeError:  # From another thread: it changed meanwhile.
            continue


def _actor_node(child: ActorChild) -> TreeNode:
    stats = child.cell.statistics()
    return TreeNode(
        kind="actor",
        id=child.id,
        name=stats.name,
        state=stats.state,
        restart=child.restart,
        incarnation=stats.incarnation,
        restarts=stats.restarts,
        queued=stats.queued,
        oldest_s_max=stats.oldest_s_max,
        in_flight_s_max=stats.in_flight_s_max,
        handled=stats.handled,
        last_failure=stats.last_failure,
    )


def format_tree(tree: _Shown) -> str:
    """Return a tree as text, a line a node, in which control characters are escaped.

    Args:
        tree: A `TreeNode`, or anything with its attributes.
    """
    return "\n".join(_lines(tree, "", ""))


def _lines(node: Any, first: str, rest: str) -> Iterator[str]:
    yield first + _line(node)
    below = list(node.children)
    for place, child in enumerate(below, start=1):
        last = place == len(below) and not node.left_out
        yield from _lines(
            child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   ")
        )
    if node.left_out:
        yield f"{rest}└── … {node.left_out} more"


def _line(node: Any) -> str:
    parts = [visible(node.id if node.kind == "supervisor" else node.name)]
    if node.kind == "supervisor":
        parts += [node.strategy, node.state]
    else:
        parts.append(node.state)
        if node.queued:
            parts.append(f"{node.queued} queued" + _age(node.oldest_s_max))
        if node.in_flight_s_max is not None:
            parts.append("handling" + _age(node.in_flight_s_max))
        if node.handled:
            parts.append(f"{node.handled} handled")
    if node.restart != "permanent":
        parts.append(node.restart)
    if node.restarts:
        recent = f" ({node.recent_restarts} recent)" if node.recent_restarts else ""
        parts.append(f"{node.restarts} restart{'s' * (node.restarts > 1)}{recent}")
    if node.last_failure is not None:
        failure = node.last_failure
        parts.append(f"last failure {visible(failure.type)}: {visible(failure.text)}")
    return "  ".join(parts)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f" (at most {seconds:.3g} s)"


def visible(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return a text as one line that a terminal prints as it is: escaped, and cut off."""
    cut = text[:chars_max]
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    return shown + "…" * (len(text) > chars_max)
