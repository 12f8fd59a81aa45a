"""What a person can type to end what a status shows: a line a state that waits.

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from .reports import AgentReport, StatusReport

RELEASE: Final = "To end a wait by hand: abeyance release DIR AGENT [--model MODEL]"


def ways_out(report: StatusReport) -> tuple[str, ...]:
    """What each state that waits for somebody is ended by; none where nothing waits."""
    return tuple(_lines(report))


def _lines(report: StatusReport) -> Iterator[str]:
    state = shlex.quote(report.directory)
    for agent in report.agents:
        yield from _of_agent(state, agent)
    if any(agent.held is not None and agent.held.cause == "approval" for agent in report.agents):
        yield f"To list what a person decides on: abeyance approve {state}"
    if report.mode is not None and report.mode.state != "serving":
        yield f"To start turns again: abeyance quiesce {state} --end"


def _of_agent(state: str, agent: AgentReport) -> Iterator[str]:
    if agent.state == "parked":
        why = "" if agent.parked is None else f" ({agent.parked})"
        yield (
            f"{agent.name} is parked: it crashed too often{why}; see the host's log and mend the "
            f"cause, then: abeyance unpark {state} --agent {shlex.quote(agent.name)}"
        )
    elif agent.state == "lost":
        yield f"{agent.name} is lost here: another process took it, and goes on with it"
    elif agent.state == "interrupted":
        yield f"{agent.name} goes on with its turn once its host starts"
    elif agent.state == "unreadable":
        yield f"{agent.name} has a row that cannot be read: abeyance check {state}"
