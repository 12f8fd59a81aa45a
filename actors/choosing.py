"""Choosing an agent's model while it is here: the row, then what goes by it.

Runs in: the task of whoever chooses, on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Append, Committed, Guard, NotStored, Put, Request
from abeyance.storage.tables.agents import Chosen
from abeyance.storage.tables.waits import LogLine

from .domain.chosen_model import LookAtModel, ModelReceipt, with_choice
from .domain.errors import OwnershipLostError, not_stored

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime

declare("model.after_chosen", "a model is chosen, and nobody of this process goes by it yet")


async def choose_model(
    runtime: Runtime, member: Member, model: str | None, provider: str | None, by: str
) -> ModelReceipt:
    """Choose a model for an agent. See `AgentHandle.set_model`; its arguments are checked."""
    name, now_ms = member.spec.name, runtime.clock.now_ms()
    chosen = None
    if model is not None:
        chosen = Chosen(model=model, provider=provider, by=by, at_ms=now_ms)
    async with member.choosing:
        was = member.settings.model
        settings = with_choice(member.spec, chosen, runtime._providers)
        runtime._spending.check_priced(settings)
        await _record(runtime, name, chosen, settings.model, by, now_ms)
        crashpoint("model.after_chosen")
        runtime._groups.choose(member, settings)
        member.agent.tell(LookAtModel())
    return ModelReceipt(settings.model, provider if model is not None else None, was)


async def _record(
    runtime: Runtime, name: str, chosen: Chosen | None, model: str, by: str, now_ms: int
) -> None:
    line = LogLine(event="model_chosen", agent=name, model=model, text=f"by {by}", at_ms=now_ms)
    while True:
        owner = runtime._store.get("owners", ("agent", name))
        row = runtime._store.get("agents", (name,))
        if owner is None or row is None or owner.record.nonce != runtime._ownership.nonce:
            raise OwnershipLostError(
                f"agent {name!r} is owned by another process now; nothing was chosen; choose there",
                slot=name,
            )
        request = Request(
            guards=(
                Guard("owners", ("agent", name), owner.counter),
                Guard("agents", (name,), row.counter),
            ),
            puts=(Put("agents", (name,), encode(replace(row.record, chosen=chosen))),),
            appends=(Append("log", encode(line)),),
        )
        outcome = await runtime._journal.ask(request)
        if isinstance(outcome, NotStored):
            raise not_stored(outcome)
        if isinstance(outcome, Committed):
            return
