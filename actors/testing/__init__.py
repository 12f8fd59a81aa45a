"""The public kit for hosts that test their agents: a scripted provider, a simulator, a clock."""

from .clock import WallClock
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
from .simulator import (
    Answer,
    LogEntry,
    ProviderSimulator,
    Rule,
    SimulatedTool,
    When,
    WireRequest,
)

__all__ = [
    "Answer",
    "Gate",
    "LogEntry",
    "ProviderSimulator",
    "Rule",
    "ScriptEndedError",
    "ScriptedProvider",
    "SimulatedTool",
    "WallClock",
    "When",
    "WireRequest",
    "call_tool",
    "fail",
    "raise_",
    "reply",
    "stall",
]
