"""The waits that providers stated: listed, and released. A part of `Runtime`.

Runs in: whichever task calls; nothing here outlives its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from .domain.errors import (
    AgentOwnedElsewhereError,
    UnknownAgentError,
)
from .domain.ingress import check_model, check_name
from .domain.protocol import ReleaseReceipt, ReleaseWaits
from .domain.wait_book import ProviderWait
from .domain.wait_releases import check_known, was_stated_of

if TYPE_CHECKING:
    from .runtime import Runtime

EVERY_MODEL: Final = "*"


class WaitVerbs:
    """The part of a runtime that is about what providers stated."""

    def provider_waits(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force, of one agent or of all, those of agents that are gone included. Last,
        with no end of their own, the agents that stand in line after a wall of their account.

        Not a checkpoint.

        Raises:
            InvalidNameError: The filter is no name; it is not read as all.
            UnknownAgentError: It is no agent's, here or in the store, and no wait's.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        if agent is not None:
            check_name(agent, "agent")
        found = self._waits_of(agent)
        if agent is not None and not found and agent not in runtime._members:
            check_known(runtime._store, runtime._waits, agent)
        return found

    def _waits_of(self, agent: str | None) -> tuple[ProviderWait, ...]:
        runtime = cast("Runtime", self)
        accounts = runtime._accounts
        standing = () if accounts is None else accounts.standing(agent)
        return (*runtime._waits.listing(agent), *standing)

    async def release_provider_wait(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str
    ) -> ReleaseReceipt:
        """End an agent's waits: of one model, or (no model, or `*`) of all. One that stands in line
        after a wall of its account is let go, by its own name or, with all others, the account's.

        A checkpoint. Cancelled: the release may have been recorded; `provider_waits` tells.
        Durable: where the receipt says `recorded`; `pending` binds in this process already, and
        `in_process` has no record: a place in line.

        Args:
            agent: Whose waits; an agent of this runtime, or one that a wait is on record of, in
                force or not: to release it again lifts nothing, and is no error.
            model: A model's name. Anything else but `*`, None included, is refused.
            requester: Who asks, as it is recorded behind the door's name; one line, cut off at
                200 characters.
        Raises:
            InvalidNameError: Agent or model is malformed; nothing was released.
            InvalidInputError: The requester is malformed; nothing was released.
            NotPermittedError: The host's admin gate did not let it pass; nothing was released.
            UnknownAgentError: No such agent here and no wait on record of one; nothing was
                released.
            AgentOwnedElsewhereError: A live process owns the agent; release it there, so that
                its held turn learns of it. Nothing was released.
        """
        runtime = cast("Runtime", self)
        runtime._check_open()
        check_name(agent, "agent")
        if model != EVERY_MODEL:
            check_model(model, "model")
        by = runtime._permitted("release_provider_wait", agent, requester)
        known = agent in runtime._members or was_stated_of(runtime._store, runtime._waits, agent)
        if not known and not self._waits_of(agent):
            raise UnknownAgentError(
                f"no agent {agent!r} here and no wait of one; nothing was released; "
                "list the waits for the names there are",
                agent=agent,
            )
        self._check_not_owned_elsewhere(agent)
        scope = None if model == EVERY_MODEL else model
        with runtime._lifetime.answers():
            receipt: ReleaseReceipt = await runtime._ledger.ask(ReleaseWaits(agent, scope, by))
        return receipt

    def _check_not_owned_elsewhere(self, agent: str) -> None:
        runtime = cast("Runtime", self)
        row = runtime._store.get("owners", ("agent", agent))
        if row is None or row.record.nonce == runtime._ownership.nonce:
            return
        nonce = row.record.nonce
        if runtime._ownership.is_alive(nonce):
            process = runtime._store.get("processes", (nonce,))
            pid, host = (0, "?") if process is None else (process.record.pid, process.record.host)
            raise AgentOwnedElsewhereError(
                f"agent {agent!r} is owned by process {pid} on {host}, which lives; nothing was "
                "released; only that process may: the command line asks it, where it answers",
                agent=agent,
                pid=pid,
                host=host,
            )
