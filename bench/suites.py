"""The list of suites: what each measures, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .accepting import accepts, admission, saturated
from .asking import ask_from_host, ask_from_trio
from .attaching import pictures
from .boundary import boundaries
from .compiling import batches, compiles
from .crowd import crash_to_reply, crowd, lives, spawn
from .keeping import opening_each, pruning, sizes
from .measure import Result, Scale
from .opening import opening, opening_waits
from .others import with_queues, with_thespian, with_xoscar
from .runs import starts, steps, wakes, with_dbos
from .stressing import stressed
from .telling import tell_from_host, tell_from_trio


class Suite(NamedTuple):
    name: str
    rows: tuple[str, ...]
    run: Callable[[Scale], list[Result]]
    timeout_s: float = 120.0
    is_long: bool = False
    """Run where it is named, and by no run of everything."""


SUITES = (
    Suite("tell-trio", ("tell-trio-1", "tell-trio-16", "tell-trio-1000"), tell_from_trio),
    Suite("tell-host", ("tell-host",), tell_from_host),
    Suite("ask-trio", ("ask-trio",), ask_from_trio),
    Suite("ask-host", ("ask-host-1", "ask-host-1000"), ask_from_host),
    Suite("spawn", ("spawn", "memory"), spawn),
    Suite("lives", ("lives",), lives, 900.0),
    Suite("crash", ("crash",), crash_to_reply),
    Suite("crowd", ("crowd",), crowd, 240.0),
    Suite("stress", ("stress",), stressed, 900.0),
    Suite(
        "accepts",
        (
            "accepts-1",
            "accepts-16",
            "accepts-256",
            "stall",
            "accept-cpu",
            "accepts-4096",
            "accepts-256-2ms",
        ),
        accepts,
        300.0,
    ),
    Suite("saturated", ("accepts-saturated", "starvation"), saturated, 300.0),
    Suite("admission", ("admission", "admission-100000-waits"), admission),
    Suite("boundary", ("boundary", "boundary-inbox"), boundaries, 600.0),
    Suite("batches", ("stall-2101",), batches),
    Suite("attachments", ("stall-attach", "stall-picture"), pictures),
    Suite("compile", ("compile",), compiles, 300.0),
    Suite("open", ("open",), opening, 300.0),
    Suite("open-waits", ("open-waits",), opening_waits, 300.0),
    Suite("open-each", ("open-each-100000", "open-each-1000000"), opening_each, 7_200.0, True),
    Suite("prune", ("prune",), pruning, 300.0),
    Suite("sizes", ("size-inbox", "size-message", "size-wait"), sizes, 300.0),
    Suite("run-step", ("run-step",), steps),
    Suite("run-wake", ("run-wake-1000", "run-wake-100000"), wakes, 600.0),
    Suite("run-start", ("run-start",), starts, 600.0),
    Suite("dbos", ("run-step-dbos",), with_dbos),
    Suite("thespian", ("thespian-ask", "thespian-tell"), with_thespian),
    Suite(
        "xoscar",
        ("xoscar-local-ask", "xoscar-local-tell", "xoscar-ref-ask", "xoscar-ref-tell"),
        with_xoscar,
    ),
    Suite("queue", ("queue-asyncio", "queue-deque"), with_queues),
)
