"""What an item's function is told, and what its author says of it when its process has died.

Runs in: the item's task, or its thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias


class StepContext(NamedTuple):
    """Which item a function runs for. `key` is the same whenever it is run again."""

    run: str
    path: str
    ordinal: int
    attempt: int

    @property
    def key(self) -> str:
        """The idempotency key to hand to whoever has the effect."""
        return f"{self.run}/{self.ordinal}"


Reconcile: TypeAlias = "Callable[[StepContext], Any | Awaitable[Any]]"
"""Told which item is in doubt; returns `Happened(result)`, `DidNotHappen`, or None: still unknown.
"""
InDoubt: TypeAlias = Literal["recover", "retry"] | Reconcile


class Happened(NamedTuple):
    """The item had its effect before the process died; this is its result."""

    result: Any = None


class DidNotHappen:
    """The item had no effect; it is run again. The class itself stands for it."""


context: ContextVar[StepContext | None] = ContextVar("abeyance_step", default=None)


def step_context() -> StepContext:
    """The item this code runs for, in its function or a thread it started with its context.

    Raises:
        LookupError: Not inside an item's function.
    """
    found = context.get()
    if found is None:
        raise LookupError("no step runs here; call this from the function of one")
    return found
