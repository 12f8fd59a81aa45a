"""The public kit for hosts that test their agents: providers, faults, probes and clocks.

docs/testing.md shows how to use it.
"""

from . import invariant
from .clock import WallClock
from .faults import POINTS, Faults, InjectedCrashError
from .host_clock import HostClock
from .probe import Probe
from .schedule import Action, Fired
from .scripted import (
    Gate,
    ScriptedProvider,
    ScriptEndedError,
    call_tool,
    fail,
    raise_,
    reply,
    stall,
)
from .scripted_sessions import ScriptedSessions
from .settled import settled, wait_settled
from .simulator import (
    Answer,
    LogEntry,
    ProviderSimulator,
    Rule,
    SimulatedTool,
    When,
    WireRequest,
)
from .witness import Witness, witnessed

__all__ = [
    "POINTS",
    "Action",
    "Answer",
    "Faults",
    "Fired",
    "Gate",
    "HostClock",
    "InjectedCrashError",
    "LogEntry",
    "Probe",
    "ProviderSimulator",
    "Rule",
    "ScriptEndedError",
    "ScriptedProvider",
    "ScriptedSessions",
    "SimulatedTool",
    "WallClock",
    "When",
    "WireRequest",
    "Witness",
    "call_tool",
    "fail",
    "invariant",
    "raise_",
    "reply",
    "settled",
    "stall",
    "wait_settled",
    "witnessed",
]
