"""Adapters at the wire, and one reader of what providers state about waiting."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from abeyance.storage.tables.blocks import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

from .capacity import CapacityExhaustedError, Exhaustion, capacity_error_of, exhaustion_of
from .declaration import ProviderIncompleteError, check_provider
from .instants import deadline_ms, render_instant
from .options import InvalidOptionError
from .port import (
    ContextTooLongError,
    ModelReply,
    ModelRequest,
    PermitError,
    Provider,
    ProviderError,
    ProviderMessage,
    ProviderStalledError,
    ReplyDelta,
    StopReason,
    ToolSchema,
    Usage,
    note_tokens,
    use_permit,
)
from .reader import read_stated_wait
from .sessions import NativeSession, SessionLostError, SessionProvider
from .stated import StatedWait, WaitEnds, WaitKind, WaitScope
from .usage import read_usage
from .windows import UsageReading, UsageWindow

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider
    from .openai import OpenAIProvider
    from .sdk import ProviderNotInstalledError

__all__ = [
    "AnthropicProvider",
    "CapacityExhaustedError",
    "ContextTooLongError",
    "Exhaustion",
    "InvalidOptionError",
    "ModelReply",
    "ModelRequest",
    "NativeSession",
    "OpenAIProvider",
    "PermitError",
    "Provider",
    "ProviderError",
    "ProviderIncompleteError",
    "ProviderMessage",
    "ProviderNotInstalledError",
    "ProviderStalledError",
    "ReplyDelta",
    "SessionLostError",
    "SessionProvider",
    "StatedWait",
    "StopReason",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolSchema",
    "ToolUseBlock",
    "Usage",
    "UsageReading",
    "UsageWindow",
    "WaitEnds",
    "WaitKind",
    "WaitScope",
    "capacity_error_of",
    "check_provider",
    "deadline_ms",
    "exhaustion_of",
    "note_tokens",
    "read_stated_wait",
    "read_usage",
    "render_instant",
    "use_permit",
]


_ADAPTERS = {
    "AnthropicProvider": "anthropic",
    "OpenAIProvider": "openai",
    "ProviderNotInstalledError": "sdk",
}


def __getattr__(name: str) -> Any:
    # An adapter brings an HTTP client; a command that only asks a running host should not pay it.
    if name in _ADAPTERS:
        return getattr(import_module(f".{_ADAPTERS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
