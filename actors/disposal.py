"""Ending an agent for good: its turns, its rows, its actors, in this order.

Invariants:
    I1  Its actors are stopped only after the commit that ends it; one that fails leaves it as it
        was, but for turns: it starts none until it is ended, or added again.
    I2  An agent is ended once, however many ask for it.

Runs in: the task of whoever ends the agent, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from abeyance.storage.crashpoints import crashpoint, declare

from .core.errors import ActorDeadError
from .core.logs import Log
from .domain.agent_acts import FinishTurns, StopTurns, WaitIdle
from .domain.errors import NotStoredError
from .domain.protocol import ForgetInstant
from .domain.slot_messages import AgentKind, Dispose, Disposed

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime

NAMED_MAX: Final = 20
"""What was dropped is logged line by line up to here; all of it is among the dead letters."""
_logger = Log(__name__)

declare("disposal.after_commit", "an agent's end is committed and its actors still run")


async def end_agent(runtime: Runtime, name: str, by: str, *, finish: bool) -> None:
    """End an agent that was added here. See `Runtime.remove_agent` and `Conversation.close`.

    Args:
        finish: Whether the turns that are asked for run, to their end or to a hold; else the live
            one is cancelled.
    """
    member = runtime._member(name)
    member.check_accepts()
    if member.ending is not None:
        await member.ending.wait()
        if runtime._members.get(name) is not member:
            return
        # Whoever tried before could not store it.
    member.ending = trio.Event()
    try:
        with runtime._rings.waiting(name):
            await _finish(member, lambda: _check_done(runtime, member), finish=finish)
        # Shielded: once asked for, an end is committed, and then nothing of it may go on.
        with trio.CancelScope(shield=True):
            await dispose(
                member.slot, name, member.kind, member.parent, member.channel, by, runtime
            )
            crashpoint("disposal.after_commit")
            del runtime._members[name]
            await member.group.stop()
            await runtime._groups.leave(member)
            runtime._alarm.tell(ForgetInstant(name))
            runtime._runner.disown(name)
    finally:
        member.ending.set()
        member.ending = None


async def _finish(member: Member, check_done: Callable[[], None], *, finish: bool) -> None:
    if member.group.state == "parked":
        # Nobody answers there. A turn that lives is ended with its rows.
        await member.group.stop()
        return
    # An agent that has ended before did so with its turn.
    with member.parking.cut_off() as parked, suppress(ActorDeadError):
        if finish:
            await member.agent.ask(WaitIdle())
            check_done()
        await member.agent.ask(FinishTurns() if finish else StopTurns())
    if parked.cancelled_caught:
        member.check_accepts()
        await member.group.stop()


def _check_done(runtime: Runtime, member: Member) -> None:
    """A host that is quiesced, or stops, runs none of the turns that were asked for: then no end,
    either; what was asked for is done after the resume, or the next start."""
    runtime._check_open()
    book, name = member.slot_view.book, member.settings.name
    if book is not None and book.has_work(name) and member.agent_view.activity != "held":
        runtime._quiescence.check_serving()


async def dispose(
    slot: Any,
    name: str,
    kind: AgentKind,
    parent: str | None,
    channel: str | None,
    by: str,
    runtime: Runtime,
) -> Disposed:
    """Commit an agent's end, and log what nobody answers any more.

    Raises:
        NotStoredError: Neither landing its inbox nor giving it up could be stored; it goes on.
    """
    row = None if parent is None else runtime._store.get("agents", (parent,))
    ending = Dispose(
        name,
        kind,
        parent,
        channel,
        by,
        runtime.clock.now_ms(),
        parent_slot=None if row is None else row.record.slot,
    )
    try:
        disposed: Disposed = await slot.ask(ending)
    except NotStoredError as error:
        _logger.warning(
            "what is left for agent %r cannot be stored and becomes dead letters: %s",
            name,
            error,
            agent=name,
        )
        disposed = await slot.ask(ending._replace(land=False))
    for line in disposed.dropped[:NAMED_MAX]:
        _logger.warning(
            "agent %r was disposed of by %s; dead letter: %s", name, by, line, agent=name
        )
    if len(disposed.dropped) > NAMED_MAX:
        _logger.warning(
            "agent %r was disposed of by %s; %d dead letters in all",
            name,
            by,
            len(disposed.dropped),
            agent=name,
        )
    return disposed
