"""What a slot was asked and has not answered, and what it remembers past a crash. No actor.

Runs in: the loop thread; written by the slot actor only.
"""

from __future__ import annotations

from typing import Any, Final

from abeyance.actors.core import Reply

from .agent_limits import AgentLimits
from .slot_messages import RewindReceipt, StartPair, TurnStart
from .slot_pairs import Begun

UNDOS_MAX: Final = 16
"""Undos of rewinds that are remembered, in case who asked for one dies."""
PAIRS_MAX: Final = 64
"""Operators' tool pairs that are remembered, in case who asked for one dies."""


class Act:
    """One message on its way: what was asked, who waits, and what of it is still out."""

    __slots__ = ("alone", "answer", "due", "message", "replies")

    def __init__(self, message: Any, reply: Reply) -> None:
        self.message = message
        self.replies = [reply]
        self.due = 0
        """So many requests must come in before the answer is true."""
        self.answer: Any = None
        self.alone = False
        """Whether it shares no request: it was in one with others that was refused."""

    def set(self, value: Any) -> None:
        for reply in self.replies:
            reply.set(value)

    def set_exception(self, error: BaseException) -> None:
        for reply in self.replies:
            reply.set_exception(error)


class SlotKept:
    """Who is told of wakes, and which leases were granted and not answered; survives a crash."""

    def __init__(self) -> None:
        self.agents: dict[str, Any] = {}
        self.limits: dict[str, AgentLimits] = {}
        """Of the agents whose inbox takes less than a slot's may."""
        self.injects: dict[str, bool] = {}
        self.granted: dict[str, TurnStart] = {}
        self.forked = 0
        """The last place that a conversation may have begun with, whether or not it did yet."""
        self.refusals: dict[int, int] = {}
        """How often a message in the inbox was refused by name."""
        self.ended: set[str] = set()
        """The agents that were disposed of; what is sent to them now would wait for nobody."""
        self.undoing: dict[str, tuple[str, RewindReceipt]] = {}
        """The last undos that were planned, by their acts: of which rewind, and what they come to.
        An asker that died asks again, and must not put back the rewind before it."""
        self.pairs: Begun = {}
        """The last pairs that were planned to begin. An asker that died asks again, at a time when
        its pair may be over, and a turn behind it, too: its tool must not be run again."""

    def limit(self, agent: str, limits: AgentLimits) -> None:
        """Take this agent's limits from now on."""
        self.limits.pop(agent, None)
        if limits.binds_slot:
            self.limits[agent] = limits

    def begin_undo(self, act: str, cut: str, receipt: RewindReceipt) -> None:
        """Note what an undo is of, the first time it is planned."""
        self.undoing.setdefault(act, (cut, receipt))
        if len(self.undoing) > UNDOS_MAX:
            del self.undoing[next(iter(self.undoing))]

    def begin_pair(self, start: StartPair, turn: int) -> None:
        """Note under which number a pair is planned to begin."""
        self.pairs[start.message] = turn, start.call
        if len(self.pairs) > PAIRS_MAX:
            del self.pairs[next(iter(self.pairs))]
