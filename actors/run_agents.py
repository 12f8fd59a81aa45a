"""What items of runs do with agents: send a message once, and join the turn that answers it.

The turn is the agent's own: whatever becomes of the run, it goes on, is held by the ledger where a
provider states a wait, and is found again by the message's id.

Invariants:
    I1  A message is sent under an id that its item has in every life, so it is accepted once.
    I2  Nothing of a turn that is over is asked for again: its rows tell.

Runs in: the task of the run's life, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from abeyance.storage.crashpoints import crashpoint, declare

from .choosing import choose_model
from .core.asks import in_role
from .core.errors import ActorDeadError, OutcomeUnknownError
from .domain.agent_acts import WaitIdle
from .domain.chosen_model import chosen_of
from .domain.errors import (
    AgentEndedError,
    CallDeferredError,
    OwnershipLostError,
    UnknownAgentError,
    UnknownProviderError,
)
from .domain.ingress import Content
from .domain.limits import RECHECK_MS
from .domain.persistence import until_stored
from .domain.preflight import refusal
from .domain.run_turns import (
    OVER,
    Answer,
    Asked,
    Elsewhere,
    Holds,
    Place,
    Unreachable,
    end_of,
    held_turn,
    place_of,
)
from .domain.spec import AgentSpec
from .domain.spending import Spender
from .domain.usage_book import AccountUsage
from .handle import AgentHandle
from .providers.credentials import credential_of
from .providers.port import name_of

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime

ARRIVES_S: Final = 30.0
"""How long an item waits for its agent to be added: a start adds workflows and agents in turn."""
LOOK_S: Final = 1.0

declare("run.after_sent", "an item's message is accepted and its run has recorded nothing since")


class RunAgents:
    """The agents of one runtime, for its runs. See `domain.run_turns.Agents`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._awaited: set[str] = set()
        self.look: Callable[[], object] = lambda: None
        """Has whoever executes runs look again."""

    def await_end(self, agent: str) -> None:
        self._awaited.add(agent)

    def turn_over(self, agent: str) -> None:
        """A turn of this agent has ended."""
        if agent in self._awaited:
            self._awaited.discard(agent)
            self.look()

    def is_over(self, agent: str, turn: int) -> bool:
        row = self._runtime._store.get("turns", (agent, turn))
        return row is None or row.record.state in OVER

    async def run_ephemeral(self, spec: AgentSpec, content: Content, author: str) -> str:
        return await self._runtime.run_ephemeral(spec, content, author=author)

    def elsewhere(self, agent: str) -> str | None:
        runtime = self._runtime
        owner = runtime._store.get("owners", ("agent", agent))
        nonce = None if owner is None else owner.record.nonce
        if nonce is None or nonce == runtime._ownership.nonce:
            return None
        if not runtime._ownership.is_alive(nonce):
            return None
        process = runtime._store.get("processes", (nonce,))
        where = "another process" if process is None else f"process {process.record.pid}"
        return f"agent {agent!r} is in {where}"

    def has_provider(self, name: str) -> bool:
        try:
            self._runtime._providers.find(name)
        except UnknownProviderError:
            return False
        return True

    async def choose(self, agent: str, provider: str, model: str, by: str) -> bool | None:
        runtime = self._runtime
        member = runtime._members.get(agent)
        if member is None or member.ending is not None:
            return None
        chosen = chosen_of(runtime._store, agent)
        if chosen is not None and (chosen.provider, chosen.model) == (provider, model):
            return False
        await choose_model(runtime, member, model, provider, by)
        return True

    def account_of(self, provider: object) -> AccountUsage:
        runtime = self._runtime
        return AccountUsage(runtime._usage, credential_of(provider, runtime._store_id))

    async def spender(self, run: str) -> Spender:
        return await self._runtime._spending.of_run(run)

    async def answer(self, asked: Asked) -> Answer:
        # The table of asks is for actors; this is the runtime's own.
        with in_role("runtime"):
            return await self._answer(asked)

    async def _answer(self, asked: Asked) -> Answer:
        runtime, name = self._runtime, asked.agent
        gives_up = trio.current_time() + ARRIVES_S
        while True:
            await trio.lowlevel.checkpoint()
            found = self._read(asked)
            if found is not None and not isinstance(found, Place):
                answer: Answer = found
                return answer
            member = runtime._members.get(name)
            if member is None or member.ending is not None:
                elsewhere = self.elsewhere(name)
                if elsewhere is not None:
                    return Elsewhere(elsewhere)
                if trio.current_time() >= gives_up:
                    return Unreachable(f"no agent {name!r} is in this runtime: add it")
                await trio.sleep(LOOK_S)
                continue
            if member.is_parked:
                return Unreachable(f"agent {name!r} is parked: resume_agent({name!r})")
            try:
                with member.parking.cut_off():
                    return await self._join(member, asked)
            except (ActorDeadError, AgentEndedError, UnknownAgentError, OutcomeUnknownError):
                # It ended, or was parked, meanwhile: what its rows say now is read again.
                await trio.sleep(LOOK_S)
            except OwnershipLostError:
                why = f"agent {name!r} was taken over by another process"
                return Unreachable(why) if self.elsewhere(name) is None else Elsewhere(why)

    def _read(self, asked: Asked) -> Any:
        """What the rows say: an answer, a `Place`, or None where nothing was sent."""
        store, name = self._runtime._store, asked.agent
        row = store.get("agents", (name,))
        slot = name if row is None else row.record.slot
        place = place_of(store, slot, name, asked.message)
        if isinstance(place, Place) and place.turn is not None and place.turn.state in OVER:
            assert place.number is not None
            return end_of(store, slot, name, place.number, place.turn)
        return place

    async def _join(self, member: Member, asked: Asked) -> Answer:
        view = member.slot_view
        while True:
            stirs = view.stirs
            found = self._read(asked)
            if found is None:
                self._check_capacity(member)
                await self._send(asked)
                continue
            if not isinstance(found, Place):
                answer: Answer = found
                return answer
            if view.ended:
                raise AgentEndedError(
                    f"agent {asked.agent!r} has ended; its turn is in its slot; add it again",
                    agent=asked.agent,
                )
            number = held_turn(self._runtime._store, asked.agent, found)
            if number is not None:
                looked = await self._look(member, stirs)
                # Once it was looked at, what holds the turn is what the gate said.
                deferral = member.agent_view.held
                if looked and member.agent_view.activity == "held" and deferral is not None:
                    return Holds(number, deferral, name_of(member.settings.provider))
            else:
                with trio.move_on_after(RECHECK_MS / 1_000):
                    await view.wait_stirred(stirs)

    def _check_capacity(self, member: Member) -> None:
        """Ask for no turn whose first call would be made against a wall that is known.

        Raises:
            CallDeferredError: The account's window is full; nothing was sent.
        """
        settings, now_ms = member.settings, self._runtime.clock.now_ms()
        known = None
        if member.usage is not None:
            known = refusal(member.usage, settings.name, settings.model)
        if known is not None:
            raise CallDeferredError(
                agent=known.agent,
                model=known.model,
                cause=known.cause,
                reason=known.reason,
                deadline_ms=known.deadline_ms,
                provider=name_of(settings.provider),
                window=known.window,
                of_quota=known.of_quota,
                now_ms=now_ms,
            )

    async def _send(self, asked: Asked) -> None:
        handle = AgentHandle(self._runtime, asked.agent)
        await until_stored(
            lambda: handle.send(
                asked.content, asked.author, id=asked.message, channel=asked.channel
            )
        )
        crashpoint("run.after_sent")

    async def _look(self, member: Member, stirs: int) -> bool:
        """Wait until the agent knows whether what held its turn still does; False where something
        moved first."""
        knows = False
        async with trio.open_nursery() as nursery:

            async def idle() -> None:
                nonlocal knows
                with suppress(ActorDeadError):
                    await member.agent.ask(WaitIdle())
                    knows = True
                nursery.cancel_scope.cancel()

            async def moved() -> None:
                await member.slot_view.wait_stirred(stirs)
                nursery.cancel_scope.cancel()

            nursery.start_soon(idle)
            nursery.start_soon(moved)
        return knows
