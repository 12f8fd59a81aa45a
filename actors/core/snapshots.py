"""Snapshots: what an actor, a mailbox and a system say of themselves.

Invariants:
    I1. Nobody is asked: a snapshot reads what its subject writes anyway, and costs it nothing.
    I2. What is read together need not be of one instant: other threads and tasks go on.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .hand import in_hand
from .specs import Failure
from .watermarks import BELOW

if TYPE_CHECKING:
    from .cell import Cell
    from .mailbox import Mailbox
    from .system import ActorSystem

_FLAGS: Final = ("stop_now", "halt", "kill")  # From the lowest bit up.


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """A snapshot of one mailbox.

    Attributes:
        control: The control flags that are raised: `stop_now`, `halt`, `kill`.
        internal: Items in the internal lane.
        returned: Envelopes to be handled before the user lane: redelivered and unstashed ones.
        user: Messages in the user lane. Stops are none.
        stashed: Envelopes put aside by `stash()`.
        capacity: The bound of user and stashed together.
        peak: The most that the user lane held at once, at least 1. Short by what the actor took
            since it last looked, at most: eight messages.
        waiting: Senders that wait for room.
        suspended: Whether the user lane is suspended.
        above_high: Whether its high mark was reached, and its low mark has not been since.
        dead: How many of its envelopes became dead letters, by reason.
    """

    control: tuple[str, ...]
    internal: int
    returned: int
    user: int
    stashed: int
    capacity: int
    peak: int
    waiting: int
    suspended: bool
    above_high: bool
    dead: dict[str, int]


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """A snapshot of one actor.

    Attributes:
        name: Its key.
        state: `new`, `running`, `suspended` (while it would run), `held`, `waiting` (for a
            restart), `stopping` or `ended`.
        incarnation: Which incarnation, from 1.
        queued: Messages in the user lane and to be handled before it. Stops are none.
        stashed: Envelopes put aside by `stash()`.
        internal: Items in the internal lane.
        owed: Replies owed.
        in_flight: Whether a handler runs.
        oldest_s_max: The longest that a message may have waited that is still to be handled, in
            seconds: one of the user lane, of the stash, or one that is to be handled again. A
            bound, not a measurement. Messages carry no instant; it is counted from the last moment
            of which the actor knows that all it holds came later. That moment lags by the time in
            which it took what it held then, and by the time the loop took to get to an actor that
            slept. None where none is to be handled, or the actor was woken for the first one and
            has not run yet. One whose reply is owed was handled, and is not in it.
        in_flight_s_max: The longest that the running handler may have run: counted from the
            actor's last look at the time, which is at most eight messages old. None where none
            runs.
        restarts: How many incarnations there were before this one.
        handled: Envelopes handled.
        dead: Dead letters.
        quarantined: Messages quarantined.
        late: Replies that came after their ask had ended.
        dropped: Answers and timers of incarnations that had ended.
        last_error: What the last crash was.
        last_failure: The same as text, with its instant.
        mailbox: A snapshot of its mailbox.
    """

    name: str
    state: str
    incarnation: int
    queued: int
    stashed: int
    internal: int
    owed: int
    in_flight: bool
    oldest_s_max: float | None
    in_flight_s_max: float | None
    restarts: int
    handled: int
    dead: int
    quarantined: int
    late: int
    dropped: int
    last_error: BaseException | None
    last_failure: Failure | None
    mailbox: MailboxStatistics


@dataclass(frozen=True, slots=True)
class SystemStatistics:
    """A snapshot of a system.

    Attributes:
        name: Its name.
        actors: How many actors live.
        states: How many of them, by state.
        queued: How many messages wait in their mailboxes.
        internal: How many items wait in their internal lanes.
        owed: How many replies they owe.
        in_flight: How many of them handle something, and of those that the end of the system could
            not cut short.
        oldest_s_max: The largest of their bounds on the age of the oldest message, in seconds; see
            `ActorStatistics`. None where none has any.
        restarts: How often those that live were started again.
        accepted: How many were accepted, by the same: what was handled, ended as a dead letter or
            in quarantine, or is still there. Actors count what they handle a batch at a time, so it
            lags by what their batches have handled so far.
        handled: How many were handled, by actors that live and by those that ended.
        dead_letters: How many dead letters there were, by reason.
        quarantined: How many messages were quarantined, by error.
        sink_failures: How often a host's sink raised.
        subscribers: How many subscriptions to its events there are.
    """

    name: str
    actors: int
    states: dict[str, int]
    queued: int
    internal: int
    owed: int
    in_flight: int
    oldest_s_max: float | None
    restarts: int
    accepted: int
    handled: int
    dead_letters: dict[str, int]
    quarantined: dict[str, int]
    sink_failures: int
    subscribers: int


def of_mailbox(box: Mailbox) -> MailboxStatistics:
    """Return a snapshot. Any thread."""
    box.measure()
    control = box.control
    with box.cell.system.lock:
        dead = dict(box.dead or ())
    return MailboxStatistics(
        control=tuple(name for bit, name in enumerate(_FLAGS) if control >> bit & 1),
        internal=len(box.internal or ()),
        returned=len(box.returned or ()),
        user=box.queued,
        stashed=len(box.stashed or ()),
        capacity=box.capacity,
        peak=box.peak,
        waiting=len(box.waiting or ()),
        suspended=bool(box.suspended),
        above_high=box.level != BELOW,
        dead=dead,
    )


def of_actor(cell: Cell) -> ActorStatistics:
    """Return a snapshot. Any thread."""
    box = cell.box
    in_flight = cell.in_flight
    return ActorStatistics(
        name=cell.key,
        state=cell.state_shown,
        incarnation=cell.incarnation,
        queued=box.depth,
        stashed=len(box.stashed or ()),
        internal=len(box.internal) if box.internal else 0,
        owed=len(cell.owed),
        in_flight=in_flight,
        oldest_s_max=box.oldest_s_max(),
        in_flight_s_max=(max(0.0, cell.system.ages() - box.looked) if in_flight else None),
        restarts=max(0, cell.incarnation - 1),
        handled=cell.handled,
        dead=cell.dead,
        quarantined=cell.quarantined,
        late=cell.late,
        dropped=cell.dropped,
        last_error=cell.last_error,
        last_failure=Failure.of(cell.last_error, cell.failed_ms),
        mailbox=box.statistics(),
    )


def of_system(system: ActorSystem) -> SystemStatistics:
    """Return a snapshot. Any thread; costs about a microsecond an actor."""
    cells = list(system.cells)
    states: dict[str, int] = {}
    oldest: float | None = None
    queued = internal = owed = in_flight = restarts = handled = there = 0
    for cell in cells:
        box = cell.box
        states[cell.state_shown] = states.get(cell.state_shown, 0) + 1
        queued += box.held
        internal += len(box.internal or ())
        owed += len(cell.owed)
        in_flight += cell.in_flight
        restarts += max(0, cell.incarnation - 1)
        handled += cell.handled
        there += in_hand(cell)
        age = box.oldest_s_max()
        if age is not None and (oldest is None or age > oldest):
            oldest = age
    for cell in list(system.outlasting):
        in_flight += cell.in_flight
        owed += len(cell.owed)
        handled += cell.handled
        there += in_hand(cell)
    dead_letters, quarantined = system.dead_letters.counts, system.quarantine.counts
    ended = system._handled + handled + sum(dead_letters.values()) + sum(quarantined.values())
    return SystemStatistics(
        name=system.name,
        actors=len(cells),
        states=states,
        queued=queued,
        internal=internal,
        owed=owed,
        in_flight=in_flight,
        oldest_s_max=oldest,
        restarts=restarts,
        accepted=there + ended,
        handled=system._handled + handled,
        dead_letters=dead_letters,
        quarantined=quarantined,
        sink_failures=(
            system.dead_letters.sink_failures
            + system.quarantine.sink_failures
            + system.hub.sink_failures
        ),
        subscribers=system.hub.subscribers,
    )
