"""The actor that most rows talk to: it counts, answers, and says when a number is reached."""

from __future__ import annotations

import math
import threading
from typing import Any

from abeyance.actors.core import TrioActor


class Counter(TrioActor):
    """Counts what it handles, and answers asks with what was asked."""

    def __init__(self, made: list[Counter] | None = None) -> None:
        super().__init__()
        self.handled = 0
        if made is not None:
            made.append(self)

    def on_receive(self, message: Any) -> Any:
        self.handled += 1
        return message


class HostCounter(TrioActor):
    """The counter that `bench.peers.PykkaCounter` is, so that both handlers cost the same."""

    mailbox_capacity = 10_000_000

    def __init__(self) -> None:
        super().__init__()
        self.handled = 0
        self.until = math.inf
        self.reached = threading.Event()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, int):
            self.handled += 1
            if self.handled >= self.until:
                self.reached.set()
            return message
        until, reached = message
        self.handled, self.until, self.reached = 0, until, reached
        return None
