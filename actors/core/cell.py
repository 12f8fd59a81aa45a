"""What survives an incarnation: `life` runs incarnations in it, `hand` moves what they hold.

A cell owns its ref, mailbox, in-flight slot, replies owed, counters, watchers and `kept` object.
An incarnation is an instance of the actor class, a cancel scope and the tasks it started; a crash
throws exactly that away.

Invariants:
    I1. One task runs the cell, and it alone takes from the mailbox while the cell is not ended.
    I2. `inflight` is the envelope whose handler runs, from before the handler is called until it
        returned and its target was settled; nothing destructive is raced or timed out.
    I3. `owed` holds, in the order they came, the envelopes whose handlers returned `LATER`.
    I4. Of two incarnations nothing runs at the same time (`life`).
    I5. accepted = handled + dead letters + quarantined + queued + stashed + owed + in flight, where
        one that its running handler stashed counts as stashed. `accounted()` is the right side.
    I6. `halt` and `end` return within twice the shutdown time and `KILLED_S`. An incarnation that
        has not ended by then, because what it waits for is shielded, ends when that has come, and
        no other starts before.

Runs on the loop thread. `bury`, `drop` and the counters they touch are also safe elsewhere.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio

from .asks import ENDING, Stance
from .envelope import ENDED, Ended, Envelope, Internal, StopPill
from .events import ActorStopped
from .future import Target, TrioFuture
from .hand import NOTHING_OWED, accounted
from .logs import Log
from .mailbox import HALT, KILL, STOP_NOW, Mailbox
from .ref import TrioActorRef
from .registry import unregister
from .settling import bury, bury_owed
from .snapshots import ActorStatistics, of_actor

if TYPE_CHECKING:
    from .actor import TrioActor
    from .supervisor import Supervisor
    from .system import ActorSystem
    from .waits import Wait

logger = Log("abeyance.core")

_serials = itertools.count(1)


def unnamed(actor_class: type[TrioActor], supervisor: Supervisor) -> str:
    """Return what an actor that nobody named is known as: nothing that is taken."""
    supervisor.system.unnamed.add(actor_class.__name__)
    while True:
        key = f"{actor_class.__name__}-{next(_serials)}"
        if key not in supervisor._children and supervisor.system.names.find(key) is None:
            return key


KILLED_S: Final = 1.0
"""How long a killed incarnation is waited for, at least. `on_failure` has the shutdown time."""

_WATCHERS: Final = 64
"""So few watchers are not looked through for those that have ended."""

BIRTHS: Final[dict[int, Cell]] = {}
"""From a thread to the cell it makes an instance for: pykka's constructor leaves no room for an
argument. Not a context variable: a set of one copies a tree, and constructors never suspend."""


class Cell:
    """One actor, over all its incarnations."""

    __slots__ = (
        "__weakref__",
        "_args",
        "_kwargs",
        "_nudge",
        "_started",
        "_stopped_future",
        "_urn",
        "actor",
        "actor_class",
        "base",
        "box",
        "child_id",
        "dead",
        "dropped",
        "ending",
        "failed_ms",
        "failure",
        "fresh",
        "handled",
        "held",
        "idle",
        "incarnation",
        "inflight",
        "inflight_internal",
        "kept",
        "key",
        "kill_reason",
        "killed_at",
        "last_error",
        "late",
        "name",
        "owed",
        "owed_since",
        "pills",
        "quarantined",
        "quiet",
        "ref",
        "registered",
        "role",
        "scope",
        "shutdown_s",
        "state",
        "stopping",
        "supervisor",
        "system",
        "task",
        "tasks",
        "waits",
        "watchers",
    )

    def __init__(
        self,
        system: ActorSystem,
        supervisor: Supervisor,
        actor_class: type[TrioActor],
        args: Any,
        kwargs: dict[str, Any],
        # By place where an actor is started: by keyword it would be as dear as half the rest.
        name: str | None = None,
        child_id: str | None = None,
        shutdown_s: float = 5.0,
    ) -> None:
        self.system = system
        self.supervisor = supervisor
        self.actor_class = actor_class
        self._args = args
        self._kwargs = kwargs or None
        self.name = name
        self.key = name or unnamed(actor_class, supervisor)
        self.child_id = child_id or self.key
        self.role = actor_class.role
        self.base: Stance = ((self,), self.role)
        self.shutdown_s = shutdown_s
        if system.faults is None:
            self.box = Mailbox(self, system.ident, system.token)
        else:
            self.box = system.faults.mailbox(self)
        self.ref: TrioActorRef[Any] = system.ref_class._of(self)
        self.kept = actor_class.make_kept()
        # Strong: pykka's ref holds the instance weakly, and nothing else does.
        self.actor: TrioActor | None = None
        self.fresh = False  # Whether `actor` was made and has not started.
        self.incarnation = 0
        self.scope: trio.CancelScope | None = None
        self.failure: BaseException | None = None
        self.kill_reason: str | None = None
        self.killed_at: float | None = None  # When the incarnation was killed first.
        self.inflight: Envelope | None = None
        self.inflight_internal: Internal | None = None
        self.owed = NOTHING_OWED
        self.owed_since = 0.0  # What is owed came after it.
        self.watchers: dict[Cell, int] | None = None
        self.state = "new"
        self.held = False
        self.ending = False
        self.stopping = False
        self.registered: bool | None = False  # With pykka; None while that goes on.
        self.handled = 0
        self.dead = 0
        self.quarantined = 0
        self.late = 0
        self.dropped = 0
        self.last_error: BaseException | None = None
        self.failed_ms = 0  # When that was.
        self._urn: str | None = None
        self.task: trio.lowlevel.Task | None = None  # The one that runs it, once it does.
        self.tasks: dict[trio.CancelScope, None] | None = None
        self.waits: dict[Wait, None] | None = None  # Those that keep it, or a reply it owes.
        self.quiet: trio.Event | None = None
        self._nudge: trio.Event | None = None
        self._started: TrioFuture[None] | None = None
        self._stopped_future: TrioFuture[None] | None = None
        self.idle: TrioFuture[None] | None = None
        self.pills: list[Target] | None = None

    def __str__(self) -> str:
        return self.key

    @property
    def urn(self) -> str:
        """The universally unique name pykka knows it by. Made when first asked for."""
        if self._urn is None:
            with self.system.lock:
                self._urn = self._urn or uuid.uuid4().urn
        return self._urn

    # -- birth

    def make(self) -> TrioActor:
        """Make an instance, on the calling thread. What its constructor raises is raised."""
        args = self._args
        if callable(args):
            args = args(self.supervisor.refs)
        thread = get_ident()
        outer = BIRTHS.get(thread)  # Whose constructor starts this one.
        BIRTHS[thread] = self
        try:
            kwargs = self._kwargs
            actor = self.actor_class(*args) if kwargs is None else self.actor_class(*args, **kwargs)
        finally:
            if outer is None:
                del BIRTHS[thread]
            else:
                BIRTHS[thread] = outer
        self.actor = actor
        self.fresh = True
        return actor

    def nudge(self) -> None:
        """End a pause, or look again at `held` and `ending`."""
        if self._nudge is not None:
            self._nudge.set()

    def is_pill(self, envelope: Envelope) -> bool:
        """Whether the envelope is a stop pill, which no overflow drops."""
        return envelope[0].__class__ is StopPill

    # -- the end

    @trio.lowlevel.enable_ki_protection  # Cut off half way, it would leave asks unsettled.
    def _end(self, reason: BaseException | None) -> None:
        """Close the mailbox, bury what is left, and tell everyone who waits. Does not raise."""
        if self.state == "ended":
            return
        self.state = "ended"
        outlasts = self.task is not None
        self.task = None
        self.stopping = True
        self.ending = True
        self.scope = None
        self.box.close()
        bury_owed(self)
        bury(self)
        self.system.wheel.disarm(self.box)
        # I5: what a shielded handler holds is settled when that ends, and what a host thread puts
        # right now is buried by that thread.
        assert not self.owed
        assert not self.box.returned
        assert not self.box.stashed
        self.supervisor._child_ended(self)
        if self.name is not None:
            self.system.names.release(self.name, self)
        self.system.forget(self, outlasts=outlasts)
        if self.registered:
            self.strike()
        if self.watchers:
            self._tell_watchers(reason, final=True)
        self.settle_idle()
        self.settle_started(reason)
        self.settle_pills()
        with self.system.lock:
            stopped = self._stopped_future
        if stopped is not None:
            stopped._answer(None)
        system = self.system
        if system.hub.watched:
            system.emit(ActorStopped, subject=self.key, incarnation=self.incarnation, error=reason)

    def strike(self) -> None:
        """Take it out of pykka's registry."""
        unregister(self)
        logger.debug("Stopped %s", self.ref, actor=self.key)

    def settle_pills(self) -> None:
        """Tell those who sent stop pills that the incarnation ended. Another may start."""
        pills, self.pills = self.pills, None
        for pill in pills or ():
            pill._answer(None)

    def ended_future(self) -> TrioFuture[None]:
        """Return a future that is settled when the cell has ended. Any thread."""
        with self.system.lock:
            if self._stopped_future is None:
                self._stopped_future = TrioFuture()
                self._stopped_future._asked = (self, ENDING)  # Looked at inside handlers only.
            future = self._stopped_future
        if self.box.closed and self.state == "ended":
            future._answer(None)
        return future

    def accounted(self) -> int:
        """How many envelopes have ended or are held: the right side of I5, between two handlers."""
        return accounted(self)

    # -- what others do to the cell, loop thread

    def kill(self, reason: str | None) -> None:
        """Cancel the incarnation at its next checkpoint. Nothing happens where none runs."""
        if self.scope is None and self.state != "new":
            return
        self.kill_reason = reason
        if self.killed_at is None:
            self.killed_at = trio.current_time()
        self.box.signal(KILL)
        if self.scope is not None:
            self.scope.cancel(reason=reason or "killed")

    def stop_now(self, done: Target | None = None) -> None:
        """Stop after the current message; what is queued becomes dead letters."""
        if done is not None:
            if self.pills is None:
                self.pills = []
            self.pills.append(done)
        if self.state in ("held", "waiting", "ended"):
            if self.supervisor._ends_with(self):
                self.ending = True
                self.nudge()
            else:
                self.settle_pills()
            if self.state == "ended":
                self.settle_pills()
            return
        if self.supervisor.never_started(self):
            # It was added to a group at rest: no task is there to end it.
            if self.supervisor._ends_with(self):
                self._end(None)
            self.settle_pills()
            return
        self.box.signal(STOP_NOW)

    def look_for_pills(self) -> None:
        """Look for stop pills that were just put into the user lane. Any thread.

        Where nothing is handled for now nobody takes them. Whoever makes it so looks for pills
        after that, as this looks after they were put in.
        """
        if self.box.suspended or self.supervisor.rests:
            self.system.on_loop(self.take_pills)

    def take_pills(self) -> None:
        """Stop an actor whose stop pills wait in a lane that is not served: it is suspended, or
        its group is parked."""
        if not (self.box.suspended and self.state == "running") and not (
            self.supervisor.rests and self.state in ("held", "new")
        ):
            return
        for message, target, _ in list(self.box.user):
            if message.__class__ is StopPill and target is not None and not target.settled:
                self.stop_now(target)

    async def halt(self) -> None:
        """End the incarnation, if one runs, and start no other until released. A checkpoint.

        On return it has ended, or its time is over and it ends as soon as it can (I6).
        """
        self.held = True
        self.nudge()
        await self._finish(HALT, lambda: self.state in ("held", "ended"))

    def release_hold(self) -> TrioFuture[None]:
        """Let incarnations start again. The future is settled when `on_start` returned."""
        started: TrioFuture[None] = TrioFuture()
        self._started = started
        self.held = False
        self.nudge()
        return started

    async def end(self) -> None:
        """Stop for good: gracefully within `shutdown_s`, then by a kill. A checkpoint.

        On return it has ended, or its time is over and it ends as soon as it can (I6).
        """
        self.ending = True
        self.nudge()
        await self._finish(STOP_NOW, lambda: self.state == "ended")

    async def _finish(self, flag: int, done: Callable[[], bool]) -> None:
        if self.state == "new" and self.system.ended:
            return
        if self.scope is not None or self.state == "new":
            self.box.signal(flag)
        if self.killed_at is None:
            with trio.move_on_after(self.shutdown_s):
                await self._until(done)
            if done():
                return
            self.kill("its stop took longer than its shutdown time")
        # A shielded handler may wait for a sibling that the caller starts or ends only after this
        # one: waiting on would wait for ever.
        killed_at = trio.current_time() if self.killed_at is None else self.killed_at
        with trio.move_on_at(killed_at + max(self.shutdown_s, KILLED_S)):
            await self._until(done)

    async def wait_unoccupied(self) -> None:
        """Wait until no incarnation runs. A checkpoint where one does."""
        await self._until(lambda: self.scope is None)

    async def wait_ended(self) -> None:
        """Wait until the cell has ended. A checkpoint where it has not."""
        await self._until(lambda: self.state == "ended")

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.idle = self.idle if self.idle is not None else TrioFuture()
            await self.idle

    # -- waiting for it

    def settle_started(self, error: BaseException | None) -> None:
        started, self._started = self._started, None
        if started is not None:
            if error is None:
                started._answer(None)
            else:
                started._fail(error)

    def settle_idle(self) -> None:
        idle, self.idle = self.idle, None
        if idle is not None:
            idle._answer(None)

    @property
    def busy(self) -> bool:
        """Whether it runs and has something to handle."""
        if self.state not in ("running", "new") or (self.held and self.scope is None):
            return False
        box = self.box
        if box.suspended:  # What waits in it goes nowhere.
            return bool(box.urgent or self.inflight or self.inflight_internal)
        return bool(
            box.user or box.urgent or box.returned or self.inflight or self.inflight_internal
        )

    async def wait_change(self) -> None:
        """Wait until it idles, is held or ends, or a reply was settled. A checkpoint."""
        if self.idle is None:
            self.idle = TrioFuture()
        await self.idle

    # -- watchers

    @property
    def present(self) -> int:
        """Which incarnation the instance is of: the first, while its constructor runs."""
        return self.incarnation or 1

    def watch(self, watcher: Cell, incarnation: int) -> None:
        """Send `Ended` to this incarnation of the watcher from now on."""
        if self.state == "ended":
            item = Ended(self.ref, self.incarnation, self.last_error, True)
            watcher.box.put_internal((ENDED, item, incarnation, 0))
            return
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = incarnation
        count = len(self.watchers)
        if count >= _WATCHERS and count & (count - 1) == 0:
            # Those that ended are told nothing. Looked for at each doubling, they cost each watch
            # a step or two, and all are never more than twice as many as ever lived at once.
            self.watchers = {
                cell: own
                for cell, own in self.watchers.items()
                if cell.present == own and cell.state != "ended"
            }

    def _tell_watchers(self, reason: BaseException | None, *, final: bool) -> None:
        watchers = self.watchers
        if not watchers:
            return
        ended = Ended(self.ref, self.incarnation, reason, final)
        for watcher, incarnation in list(watchers.items()):
            if incarnation != watcher.present or watcher.state == "ended":
                del watchers[watcher]
            else:
                watcher.box.put_internal((ENDED, ended, incarnation, 0))
        if final:
            self.watchers = None

    @property
    def state_shown(self) -> str:
        """Its state, with `suspended` in the place of `running` where it is."""
        return "suspended" if self.box.suspended and self.state == "running" else self.state

    @property
    def handling(self) -> object | None:
        """What tells one run of a handler from another: what it handles, or the life of a hook."""
        envelope = self.inflight
        if envelope is not None:
            return envelope if envelope[1] is None else envelope[1]
        return self.inflight_internal or self.scope

    @property
    def being_killed(self) -> bool:
        """Whether an incarnation runs that was killed: nothing keeps it but what is shielded."""
        return self.killed_at is not None and self.scope is not None

    @property
    def starting(self) -> bool:
        """Whether somebody waits for its `on_start` to return."""
        return self._started is not None

    @property
    def in_flight(self) -> bool:
        """Whether a handler runs."""
        return self.inflight is not None or self.inflight_internal is not None

    def statistics(self) -> ActorStatistics:
        """Return a snapshot. Any thread."""
        return of_actor(self)
