"""A provider on loopback, scripted, with a wire log. See `server` and `script`."""

from .script import Answer, Rule, Script, SimulatedTool, When, WireRequest, read_script
from .server import ProviderSimulator
from .wire_log import LogEntry

__all__ = [
    "Answer",
    "LogEntry",
    "ProviderSimulator",
    "Rule",
    "Script",
    "SimulatedTool",
    "When",
    "WireRequest",
    "read_script",
]
