"""The public kit for hosts that test their agents: a scripted provider and a settable clock."""

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

__all__ = [
    "Gate",
    "ScriptEndedError",
    "ScriptedProvider",
    "WallClock",
    "call_tool",
    "fail",
    "raise_",
    "reply",
    "stall",
]
