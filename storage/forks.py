"""What a fork must not share: open stores and lock descriptors, forgotten in the child.

A child inherits every open file description. Were it to unlock one, the parent would lose its lock
without a word; so the child closes its copies and never unlocks. A child forked by native code,
without Python's hooks, keeps its parent's locks alive until it ends.

Runs in: the child, between fork and its first Python code.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def forget(self) -> None:
        """In a forked child: close descriptors, refuse every later use, touch nothing shared."""


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def remember(holder: Forkable) -> None:
    """Have `holder.forget()` called in every forked child, for as long as it lives."""
    _open.add(holder)


def _in_child() -> None:
    for holder in list(_open):
        holder.forget()


os.register_at_fork(after_in_child=_in_child)
