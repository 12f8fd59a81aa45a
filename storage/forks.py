"""What a fork must not share: open stores and lock descriptors, forgotten in the child.

A child inherits every open file description. Were it to unlock one, the parent would lose its lock
without a word; so the child closes its copies and never unlocks. A child forked by native code,
without Python's hooks, keeps its parent's locks alive until it ends.

Invariants:
    I1  Whatever is open is remembered until it is closed, also when its owner has dropped it:
        a descriptor that nobody refers to is inherited all the same.

Runs in: the child, between fork and its first Python code.
"""

from __future__ import annotations

import os
from typing import Final, Protocol


class Forkable(Protocol):
    def forget(self) -> None:
        """In a forked child: close descriptors, refuse every later use, touch nothing shared."""


_open: Final[dict[int, Forkable]] = {}


def remember(holder: Forkable) -> None:
    """Have `holder.forget()` called in every child forked before `dismiss`."""
    _open[id(holder)] = holder


def dismiss(holder: Forkable) -> None:
    """It is closed. Idempotent."""
    _open.pop(id(holder), None)


def _in_child() -> None:
    for holder in list(_open.values()):
        holder.forget()


os.register_at_fork(after_in_child=_in_child)
