"""The blocking client of the hosts of a state directory, for the command line and for scripts.

Several processes may host agents of one directory, each with a control socket of its own. What
only one of them knows (what it runs) is asked of all; what the store holds, of the first that
answers; what changes something, of whoever it belongs to (`hosts`).

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from abeyance.actors.core.tree import DEPTH, WIDTH
from abeyance.actors.domain.archive_book import Kind

from .approval_client import ApprovalAsks
from .connection import (
    HostClient,
    HostForbiddenError,
    HostSilentError,
    NoHostError,
    RefusedByHostError,
    this_requester,
)
from .outbox_client import OutboxAsks
from .reports import (
    AlertReport,
    CancelTurnReport,
    EditReport,
    EditRowReport,
    EntryReport,
    HostTreeReport,
    ImportReport,
    InboxRowReport,
    ModelReport,
    NodeReport,
    QuiesceReport,
    ReleaseReport,
    ReplayReport,
    RewindReport,
    StatusReport,
    TreeReport,
    UnparkReport,
    WaitReport,
)
from .requests import EVERY_MODEL, SetModelRequest, UnparkRequest
from .run_client import RunAsks
from .usage_client import UsageAsks


class ControlClient(RunAsks, ApprovalAsks, UsageAsks, OutboxAsks):
    """A connection to each live host of a state directory.

    Args:
        directory: The state directory.
        timeout_s: Bounds the greetings of all hosts together, and each reply.
    Raises:
        NoHostError: No live host serves the directory, or each that did is ending.
        RefusedByHostError: The only host takes no more connections.
        HostForbiddenError: The sockets are another user's.
        HostSilentError: No host says hello; the text names each.
        UnsupportedProtocolError: The only host speaks another version of the protocol.
        OSError: The path cannot be followed; `filename` is the one that could not.
    """

    silent_pids: Final[tuple[int, ...]] = ()
    """No store is read beside these hosts. A report names those of them that did not answer."""

    def status(self) -> StatusReport:
        """What the hosts run and what waits. Every host is asked.

        Raises:
            RefusedByHostError, HostSilentError: None answered; nothing changed.
        """
        reports = [report for _, report in self._of_every(HostClient.status)]
        first = reports[0]
        # Every host reads the same rows; what is not recorded yet only one of them knows.
        told = (wait for report in reports for wait in report.waits)
        waits = {
            (wait.agent, wait.model): wait for wait in sorted(told, key=lambda wait: wait.pending)
        }
        return msgspec.structs.replace(
            first,
            agents=tuple(agent for report in reports for agent in report.agents),
            waits=tuple(waits.values()),
            hosts=tuple(host for report in reports for host in report.hosts),
            silent_pids=tuple(sorted(self._failures)),
        )

    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]:
        """The binding waits of one agent, or of all, as the first host that answers reads them.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_any(lambda host: host.waits(agent))

    def tree(self, *, depth: int = DEPTH, width: int = WIDTH) -> TreeReport:
        """The supervisors and actors of every host.

        Raises:
            RefusedByHostError, HostSilentError: None answered; nothing changed.
        """

        def ask(host: HostClient) -> NodeReport:
            return host.tree(depth=depth, width=width)

        (first, tree), *others = self._of_every(ask)
        return TreeReport(
            tree=tree,
            pid=first.at.pid,
            others=tuple(HostTreeReport(pid=host.at.pid, tree=node) for host, node in others),
            silent_pids=tuple(sorted(self._failures)),
        )

    def release(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str | None = None
    ) -> ReleaseReport:
        """End the waits of one agent: one model's, or with `*` every model's.

        The host that owns the agent does it; of an agent that none owns, any.
        Durable for each wait that the receipt calls `recorded`.

        Raises:
            RefusedByHostError: The host refused it; `remote_code` says whether anything changed.
            HostSilentError: The host that was asked did not answer: whether it was done is
                unknown, and releasing again is harmless. Or those that answered do not own the
                agent: nothing was done.
        """
        return self._of_owner(lambda host: host.release(agent, model, requester=requester))

    def rewind(
        self, agent: str, to: str | int | None, *, requester: str | None = None
    ) -> RewindReport:
        """Rewind an agent's transcript to a message, or with None undo the last rewind.

        The host that owns the agent does it. Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was done.
            HostSilentError: Whether it was done is unknown, and the transcript tells; or those
                that answered do not own the agent, and nothing was done.
        """
        return self._of_owner(lambda host: host.rewind(agent, to, requester=requester))

    def cancel_turn(
        self, agent: str, turn: int | None = None, *, requester: str | None = None
    ) -> CancelTurnReport:
        """End an agent's open turn for good, or the one of a number.

        The host that owns the agent does it. Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; `remote_code` says whether anything changed.
            HostSilentError: Whether it was done is unknown, and the status tells; or those that
                answered do not own the agent, and nothing was done.
        """
        return self._of_owner(lambda host: host.cancel_turn(agent, turn, requester=requester))

    def set_model(
        self,
        agent: str,
        model: str | None,
        provider: str | None = None,
        *,
        requester: str | None = None,
    ) -> ModelReport:
        """Have an agent ask another model; None: what its specification says again.

        The host that owns the agent does it. Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was changed.
            HostSilentError: Whether it was done is unknown, and doing it again is harmless; or
                those that answered do not own the agent, and nothing was done.
        """
        request = SetModelRequest(
            agent=agent,
            model=msgspec.UNSET if model is None else model,
            provider=msgspec.UNSET if provider is None else provider,
            requester=this_requester() if requester is None else requester,
        )
        return self._of_owner(lambda host: host.ask(request, ModelReport))

    def edit(
        self,
        agent: str,
        message: str | int,
        blocks: str | list[Any] | None,
        *,
        requester: str | None = None,
    ) -> EditReport:
        """Give a stored message other words, or with None take it out.

        The host that owns the agent does it. Durable: on return.

        Raises:
            RefusedByHostError: The host refused it; nothing was changed.
            HostSilentError: Whether it was done is unknown, and the transcript tells; or those
                that answered do not own the agent, and nothing was changed.
        """
        return self._of_owner(lambda host: host.edit(agent, message, blocks, requester=requester))

    def undo_edit(self, agent: str, edit: int, *, requester: str | None = None) -> EditReport:
        """Put a message back as it was before an edit. As `edit`."""
        return self._of_owner(lambda host: host.undo_edit(agent, edit, requester=requester))

    def edits(self, agent: str) -> tuple[EditRowReport, ...]:
        """The edits of an agent's transcript that are kept, from the host that owns the agent.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_owner(lambda host: host.edits(agent))

    def quiesce(
        self, reason: str, within_s: float, *, requester: str | None = None
    ) -> QuiesceReport:
        """Have every host of the directory start no more turns, one after the other.

        Durable: on return. No host starts a turn from the first one's commit on.

        Raises:
            RefusedByHostError, HostSilentError: None answered; the status tells what was done.
        """
        return self._mode_of_every(lambda host: host.quiesce(reason, within_s, requester=requester))

    def resume(self, *, requester: str | None = None) -> QuiesceReport:
        """Have every host of the directory start turns again. As `quiesce`."""
        return self._mode_of_every(lambda host: host.resume(requester=requester))

    def _mode_of_every(self, ask: Callable[[HostClient], QuiesceReport]) -> QuiesceReport:
        reports = [report for _, report in self._of_every(ask)]
        was = (report.was for report in reports if report.was != "serving")
        return msgspec.structs.replace(
            reports[0],
            was=next(was, "serving"),
            reason=next((report.reason for report in reports if report.reason), ""),
            abandoned=tuple(name for report in reports for name in report.abandoned),
            held=tuple(name for report in reports for name in report.held),
            runs_ended=tuple(name for report in reports for name in report.runs_ended),
            bodies_running=sum(report.bodies_running for report in reports),
            landed=sum(report.landed for report in reports),
            silent_pids=tuple(sorted(self._failures)),
        )

    def unpark(
        self, group: str | None = None, *, agent: str | None = None, requester: str | None = None
    ) -> UnparkReport:
        """Start a parked group of the hosts' own again, in every host where it is parked, or a
        parked agent, in the host that runs it. As `Runtime.unpark` and `Runtime.resume_agent`.

        Nothing is recorded: parked is a group in its process only. Safe to ask twice.

        Raises:
            RefusedByHostError: A host refused it, and it went on in no other.
            HostSilentError: None answered; asking again is harmless.
        """
        request = UnparkRequest(
            group=msgspec.UNSET if group is None else group,
            agent=msgspec.UNSET if agent is None else agent,
            requester=this_requester() if requester is None else requester,
        )

        def ask(host: HostClient) -> UnparkReport:
            return host.ask(request, UnparkReport)

        if agent is not None:
            return self._of_owner(ask)
        pids = tuple(pid for _, report in self._of_every(ask) for pid in report.pids)
        for error in self._failures.values():
            if isinstance(error, RefusedByHostError) and not pids:
                raise error
        return UnparkReport(pids=pids, silent_pids=tuple(sorted(self._failures)))

    def entries(
        self, kind: Kind, *, before: int | None = None, limit: int = 100
    ) -> tuple[EntryReport, ...]:
        """Rows of the dead letters or of the quarantine, the newest first, from any host.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_any(lambda host: host.entries(kind, before=before, limit=limit))

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[AlertReport, ...]:
        """What operators were told of, oldest first, from any host.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_any(lambda host: host.alerts(after=after, limit=limit))

    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRowReport, ...]:
        """What waits in an agent's inbox, or slot by slot, from any host.

        Raises:
            RefusedByHostError, HostSilentError: As they say; nothing changed.
        """
        return self._of_any(lambda host: host.inbox(agent, after=after, limit=limit))

    def import_deferred(
        self, path: str, *, agent: str | None = None, wake: bool = False, dry_run: bool = False
    ) -> ImportReport:
        """Have the hosts accept a file's deferred messages, each those of its own agents.

        Durable: on return, unless `dry_run`.

        Raises:
            RefusedByHostError: None accepted any; the error is the first's.
            HostSilentError: How far it got is unknown; import it again.
        """

        def ask(host: HostClient) -> ImportReport:
            return host.import_deferred(path, agent=agent, wake=wake, dry_run=dry_run)

        reports = [report for _, report in self._of_every(ask)]
        messages = sorted(
            (message for report in reports for message in report.messages),
            key=lambda message: message.number,
        )
        taken = {message.place for message in messages}
        repairs = (
            repair
            for repair in reports[0].repairs
            if repair.kind != "refused" or repair.place not in taken
        )
        return msgspec.structs.replace(reports[0], messages=tuple(messages), repairs=tuple(repairs))

    def replay(self, kind: Kind, number: int, *, requester: str | None = None) -> ReplayReport:
        """Have the message of a row sent to its actor again, by the host that runs the actor.

        Durable: that it was, before it is sent.

        Raises:
            RefusedByHostError: The host refused it, and nothing was sent.
            HostSilentError: Whether it was sent is unknown, and the row's count tells; or those
                that answered do not run the actor, and nothing was sent.
        """
        return self._of_owner(lambda host: host.replay(kind, number, requester=requester))

    # -- whom to ask -------------------------------------------------------------------------


__all__ = [
    "ControlClient",
    "HostForbiddenError",
    "HostSilentError",
    "NoHostError",
    "RefusedByHostError",
    "this_requester",
]
