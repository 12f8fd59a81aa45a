"""What a runtime shows of itself, and what it recorded for whoever looks. A part of `Runtime`.

Nothing here writes, and no actor is asked.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, cast

from .core.events import kinds_known
from .core.hub import CAPACITY, Subscription
from .core.tree import DEPTH, NODES, WIDTH, TreeNode
from .domain.alert_book import (
    Alert,
    check_after,
    read_alerts,
)
from .domain.errors import InvalidInputError
from .domain.slot_inbox import InboxRow, check_listing, read_inbox
from .domain.spent_reading import Asked, By, UsageReport, read_report
from .members import Member
from .providers.credentials import credential_of
from .providers.windows import UsageReading
from .status import AgentHealth, RuntimeStatistics, RuntimeStatus
from .wait_verbs import EVERY_MODEL

if TYPE_CHECKING:
    from .runtime import Runtime


class LookVerbs:
    """The part of a runtime that is looked at."""

    def status(self) -> RuntimeStatus:
        """A snapshot of every agent and every wait. Not a checkpoint; asks no actor."""
        runtime = cast("Runtime", self)
        runtime._check_open()
        return RuntimeStatus(
            directory=str(runtime.directory),
            store_id=runtime._store_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_ms=runtime._started_ms,
            now_ms=runtime.clock.now_ms(),
            agents=tuple(
                runtime._members[name].status(runtime._waits) for name in sorted(runtime._members)
            ),
            waits=runtime.provider_waits(),
            dead_letters=runtime._store.count("dead_letters"),
            quarantine=runtime._store.count("quarantine"),
            mode=runtime._quiescence.status(),
        )

    def health(self) -> dict[str, AgentHealth]:
        """How each agent stands with its providers, by name. Not a checkpoint; asks no actor.

        Agents that are gone and that a wait is still listed of are not in it: see
        `provider_waits`.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        return {name: _health(runtime, runtime._members[name]) for name in sorted(runtime._members)}

    def statistics(self) -> RuntimeStatistics:
        """Figures of every agent, wait and commit. Not a checkpoint; on the loop thread only.

        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        agents = [member.status(runtime._waits) for member in list(runtime._members.values())]
        return RuntimeStatistics(
            agents=Counter(agent.state for agent in agents),
            holds=Counter(agent.held.cause for agent in agents if agent.held is not None),
            waits=len(runtime._waits.listing(None)),
            inbox=sum(agent.inbox for agent in agents),
            wakes=sum(agent.wakes for agent in agents),
            requests=runtime._commits.requests,
            commits=runtime._commits.cumulated(),
            commits_s=runtime._commits.sum_s,
            alert_sinks=runtime._alerts._cell.kept.figures(),
            spent=runtime._spending.figures(),
            dead_letters=runtime._store.count("dead_letters"),
            quarantine=runtime._store.count("quarantine"),
        )

    def tree(
        self, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
    ) -> TreeNode:
        """The tree of supervisors and actors, bounded. As `ActorSystem.tree`; any thread."""
        runtime = cast("Runtime", self)
        runtime._check_open()
        return runtime._system.tree(depth_max=depth_max, width_max=width_max, nodes_max=nodes_max)

    def events(
        self, *, capacity: int = CAPACITY, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Look at what happens from now on: `async for event in runtime.events():`.

        For looking: lossy for a slow reader, who is told in place how many it missed. What must be
        acted on is read from its record. Not a checkpoint; any thread; ends with the system. As
        `ActorSystem.events`, with the events of agents beside those of actors; `abeyance.actors.
        events` has the classes.

        Args:
            capacity: How many unread events are held.
            kinds: Only events of these kinds; those of a host's own classes, too. None is all.
        Raises:
            InvalidInputError: No event has one of these kinds; its reader would wait for ever.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        if kinds is not None and not isinstance(kinds, str):
            kinds = frozenset(kinds)
            unknown = sorted(kinds - kinds_known())
            if unknown:
                raise InvalidInputError("kinds", f"no event is of the kind {unknown[0]!r}")
        return runtime._system.events(capacity=capacity, kinds=kinds)

    async def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRow, ...]:
        """What was accepted and is not in a transcript yet, in the order it lands, and why it
        waits; of one agent, or slot by slot, as it lands.

        A checkpoint a slice of rows. Reads rows; asks no actor. Agents that other processes run are
        told of, too.

        Args:
            after: Only those of a greater number, with an agent: the last one's of a page before.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument.
            UnknownAgentError: The store has no such agent.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        check_listing(agent, after, limit)
        return await read_inbox(runtime._store, agent, after=after, limit=limit)

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[Alert, ...]:
        """What operators were told of, oldest first; earlier runs' included.

        Not a checkpoint. One that the store could not take yet is not among them.

        Args:
            after: Only those with a greater number. None: the newest.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError: Names the argument that is out of its bounds.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        check_after(after, limit)
        return tuple(read_alerts(runtime._store, after=after, limit=limit))

    async def usage(
        self,
        agent: str | None = None,
        since: int | datetime | None = None,
        *,
        by: By = "model",
        zone: str = "UTC",
    ) -> UsageReport:
        """What agents used: tokens, and what they cost where the host gave a price.

        A checkpoint a slice of rows. Reads rows; asks no actor. Calls of every process count, once
        their round is recorded.

        Args:
            agent: Whose, also of one that has ended; the name of a specification is all ephemeral
                runs of it. None: everyone's.
            since: An aware datetime or epoch milliseconds; from the quarter of an hour it is in.
                None: from the beginning.
            by: What a line is: an `agent` and purpose, a provider's `model`, or a `day`.
            zone: Whose days they are, by its name in the time zone database.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument.
            UnknownAgentError: The store has no such agent, and no call of one.
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        return await read_report(runtime._store, Asked(agent, since, by, zone))

    def account_usage(self, provider: object) -> UsageReading | None:
        """The newest usage reading of the account that a provider calls with, from whatever call of
        whatever process brought it; None where none is known. Not a checkpoint.

        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        credential = credential_of(provider, runtime._store_id)
        return None if credential is None else runtime._usage.reading(credential)


def _health(runtime: Runtime, member: Member) -> AgentHealth:
    status = member.status(runtime._waits)
    binding = {wait.model for wait in status.admission.waits}
    return AgentHealth(
        state=status.state,
        model=status.model,
        can_call=status.held is None and not binding & {status.model, EVERY_MODEL},
        held=status.held,
        admission=status.admission,
        unrecorded=status.unrecorded,
    )
