"""Tool calls that wait for a person in a store that no host serves: read, and decided on.

What is decided here is the row that a host would have written; the agent goes on with it at its
next start.

Invariants:
    I1  The commit guards the row that was decided on, its turn's, and the agent's owner: what a
        host that starts meanwhile does with the call, it does once.

Blocking; the thread that made it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Literal

from abeyance.actors.domain.approvals import read_id, read_note, waiting_of
from abeyance.actors.domain.ingress import check_name
from abeyance.actors.domain.slot_approvals import (
    decided,
    decision,
    line_of,
    over,
    receipt_of,
    unknown,
)
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Append, Committed, Guard, NotStored, Put, Request

from .approval_reports import ApprovalReport, DecisionReport, report_approvals
from .connection import this_requester
from .errors import ControlError

ATTEMPTS_MAX: Final = 10


class ApprovalContestedError(ControlError):
    """A call kept changing while it was decided on. Nothing was done."""

    code = "approval_contested"


class StoppedApprovals(ABC):
    """The part of a stopped store that is about tool calls that wait for a person."""

    _store: LmdbStore
    _clock: Any

    @abstractmethod
    def _owner_guard(self, agent: str) -> Guard: ...

    @abstractmethod
    def _check_known(self, agent: str) -> None: ...

    def approvals(self, agent: str | None = None) -> tuple[ApprovalReport, ...]:
        """The calls that wait for a person, of one agent or of all.

        Raises:
            InvalidNameError: The filter is no name.
            UnknownAgentError: It is no agent's.
        """
        if agent is not None:
            check_name(agent, "agent")
            self._check_known(agent)
        names = [str(key[0]) for key, _ in self._store.scan("heads")] if agent is None else [agent]
        rows = [row for name in names for row in waiting_of(self._store, name)]
        return report_approvals(rows).approvals

    def decide(
        self, approval: str, verdict: Literal["approve", "deny"], note: str = ""
    ) -> DecisionReport:
        """Let a call that waits be made at its agent's next start, or not. As `Runtime.approve`.

        Durable: on return.

        Raises:
            InvalidInputError: Names the field; nothing was done.
            UnknownApprovalError: No such call waits; nothing was done.
            ApprovalDecidedError: It was decided otherwise, or its turn has ended.
            AgentOwnedElsewhereError: A live process owns its agent; nothing was done.
            ApprovalContestedError, StorageError: It was not recorded.
        """
        key, said, by = read_id(approval), read_note(note), this_requester()
        agent, turn, round_, _ = key
        state: Literal["approved", "denied"] = "approved" if verdict == "approve" else "denied"
        for _ in range(ATTEMPTS_MAX):
            row = self._store.get("approvals", key)
            if row is None:
                raise unknown(key)
            if row.record.state != "waiting":
                if row.record.state != state:
                    raise decided(key, row.record)
                return DecisionReport(**receipt_of(key, row.record)._asdict())
            head, of = self._store.get("heads", (agent,)), self._store.get("turns", (agent, turn))
            is_open = head is not None and head.record.open_turn == turn
            if of is None or not is_open or of.record.round != round_:
                raise over(key)
            ended = decision(row.record, state, f"cli:{by}", said, self._clock.now_ms())
            request = Request(
                guards=(
                    self._owner_guard(agent),
                    Guard("approvals", key, row.counter),
                    Guard("turns", (agent, turn), of.counter),
                ),
                puts=(Put("approvals", key, encode(ended)),),
                appends=(Append("log", encode(line_of(key, ended))),),
            )
            (outcome,) = self._store.commit(request)
            if isinstance(outcome, Committed):
                return DecisionReport(**receipt_of(key, ended)._asdict())
            if isinstance(outcome, NotStored):
                raise outcome.error
        raise ApprovalContestedError(
            f"call {approval!r} changed {ATTEMPTS_MAX} times while it was decided on; nothing was "
            "done; list the approvals, then try again"
        )
