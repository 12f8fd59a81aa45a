"""What a client asks about approvals, of whichever host of a directory can answer.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from .approval_reports import ApprovalReport, ApprovalsReport, DecisionReport
from .connection import this_requester
from .hosts import Hosts
from .requests import ApprovalsRequest, DecideRequest

_T = TypeVar("_T")


class ApprovalAsks(Hosts):
    """The part of the client of a directory's hosts that is about tool calls that wait."""

    def approvals(self, agent: str | None = None) -> tuple[ApprovalReport, ...]:
        """The calls that wait for a person, as the first host that answers reads them.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        request = ApprovalsRequest(agent=msgspec.UNSET if agent is None else agent)
        return self._of_any(lambda host: host.ask(request, ApprovalsReport)).approvals

    def decide(
        self,
        approval: str,
        verdict: Literal["approve", "deny"],
        note: str = "",
        *,
        requester: str | None = None,
    ) -> DecisionReport:
        """Let a call that waits be made, or not. The host that owns its agent does it.

        Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was changed.
            HostSilentError: Whether it was done is unknown, and deciding the same again is
                harmless; or those that answered do not own the agent, and nothing was done.
        """
        request = DecideRequest(
            approval=approval,
            verdict=verdict,
            note=note,
            requester=this_requester() if requester is None else requester,
        )
        return self._of_owner(lambda host: host.ask(request, DecisionReport))
