"""Counting the deliveries of a message past the end of the process.

The envelope counts crashes of its handler while the process lives. A message that ends the process
itself leaves nothing behind in memory; so one that declares an act (a text attribute `act_id`) is
noted with the port before its handler runs, in an actor whose class says `counts_durably`, and
every reminder is. The next life's deliveries of that act begin where the last one's ended.

Invariants:
    I1. A handler of a counted message runs only after `begin` returned, and only while the
        deliveries before it are fewer than the actor's `max_deliveries`.
    I2. What is counted is taken back (`end`) when the handler returned or the message is buried or
        quarantined; what crashed and is to come back stays counted. So does, at most once, a
        reminder that was handled, until its port has stored that.

Runs in the cell's task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from .envelope import LATER, Envelope, Reminder
from .errors import ActorCrashError, DeliveriesSpentError
from .future import Unasked
from .settling import quarantine

if TYPE_CHECKING:
    from .actor import TrioActor
    from .cell import Cell
    from .ports import DeliveryCounts


def counted(cell: Cell, receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what the hot loop calls with a message: the handler itself where nothing counts."""
    counts = cell.system.deliveries
    if counts is None or not cell.actor_class.counts_durably:
        return receive

    def deliver(message: Any) -> Any:
        act_id = getattr(message, "act_id", None)
        if act_id is None:
            return receive(message)
        envelope = cell.inflight
        assert envelope is not None
        earlier = counts.begin(cell.key, act_id, int(envelope[2]))
        if earlier >= cell.actor_class.max_deliveries:
            return _spend(cell, envelope, act_id, earlier)
        try:
            result = receive(message)
        except Exception as error:
            _failed(cell, counts, envelope, act_id, error)
            raise
        if result.__class__ is CoroutineType:
            return _finish(cell, counts, envelope, act_id, result)
        counts.end(cell.key, act_id, handled=True)
        return result

    return deliver


async def _finish(
    cell: Cell,
    counts: DeliveryCounts,
    envelope: Envelope,
    act_id: str,
    result: Coroutine[Any, Any, Any],
) -> Any:
    try:
        value = await result
    except Exception as error:
        _failed(cell, counts, envelope, act_id, error)
        raise
    counts.end(cell.key, act_id, handled=True)
    return value


def _failed(
    cell: Cell, counts: DeliveryCounts, envelope: Envelope, act_id: str, error: Exception
) -> None:
    """An ask whose error is its answer is over; anything else crashes, and settling decides."""
    crashes = cell.actor_class.crash_on_ask_error or isinstance(error, ActorCrashError)
    if envelope[1] is not None and envelope[1].__class__ is not Unasked and not crashes:
        counts.end(cell.key, act_id, handled=True)


def _spend(cell: Cell, envelope: Envelope, act_id: str, earlier: int) -> Any:
    """Keep a spent message from its handler: park with it, or quarantine it and go on."""
    assert cell.system.deliveries is not None
    cell.system.deliveries.end(cell.key, act_id, handled=False)
    error = spent(cell, act_id, earlier)
    if cell.actor_class.past_deliveries == "park" and cell.actor_class.max_deliveries > 1:
        raise error
    cell.inflight = None
    quarantine(cell, envelope[0], envelope[1], earlier, error)
    return LATER


def spent(cell: Cell, act_id: str, earlier: int) -> DeliveriesSpentError:
    return DeliveriesSpentError(
        f"{cell} was given {act_id!r} {earlier} times and each time a crash or the end of the "
        "process came before it was over; it was not delivered again; mend the cause, then "
        "replay it",
        actor=cell.key,
        act=act_id,
        deliveries=earlier,
    )


def deliver_reminder(cell: Cell, actor: TrioActor, reminder: Reminder, deliveries: int) -> Any:
    """Hand a reminder to its actor, counted. A spent one goes to quarantine, or parks the group.

    Its port takes the count back once it is over for good: see `reminder_returned`.
    """
    counts = cell.system.deliveries
    if counts is None:
        return actor.on_receive(reminder)
    act_id = reminder.act_id
    earlier = counts.begin(cell.key, act_id, deliveries)
    if earlier >= cell.actor_class.max_deliveries:
        counts.end(cell.key, act_id, handled=False)
        error = spent(cell, act_id, earlier)
        if cell.actor_class.past_deliveries == "park" and cell.actor_class.max_deliveries > 1:
            raise error
        quarantine(cell, reminder, None, earlier, error)
        return None
    return actor.on_receive(reminder)


def reminder_returned(cell: Cell, reminder: Reminder) -> None:
    """Say that the handler of a reminder has returned: this firing is over, once that is stored.

    Where that is a commit and the process dies before it, the reminder comes again at least once,
    and that death is no delivery of it: it was handled. At most once it is one, so that it does not
    come again.
    """
    counts = cell.system.deliveries
    if counts is not None and cell.actor_class.max_deliveries > 1:
        counts.end(cell.key, reminder.act_id, handled=False)
    cell.system.reminders.handled(reminder)
