"""What survives an incarnation, and the one task that runs incarnations in it.

A cell owns its ref, mailbox, in-flight slot, replies owed, counters, watchers and `kept` object.
An incarnation is an instance of the actor class, a cancel scope and the tasks it started; a crash
throws exactly that away.

Invariants:
    I1. One task runs the cell, and it alone takes from the mailbox while the cell is not ended.
    I2. `inflight` is the envelope whose handler runs, from before the handler is called until it
        returned and its target was settled; nothing destructive is raced or timed out.
    I3. `owed` holds, in the order they came, the envelopes whose handlers returned `LATER`.
    I4. Of two incarnations nothing runs at the same time: the tasks of the first have ended.
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
from dataclasses import dataclass
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import trio

from .asks import STANCE, Stance
from .directives import resumes
from .envelope import ENDED, SETTLED, STASHED, Ended, Envelope, Internal, StopPill
from .errors import ActorKilledError
from .events import ActorCrashed, ActorRestarted, ActorStarted, ActorStopped
from .future import Target, TrioFuture, Unasked
from .logs import Log
from .mailbox import HALT, KILL, STOP_NOW, Mailbox, MailboxStatistics
from .ref import TrioActorRef
from .registry import unregister
from .reporting import log_error
from .serving import serve, serve_owed
from .settling import CRASHED, HALTED, Exit, abandon, bury, bury_owed, cancels, settle_exit
from .specs import Failure
from .tasks import end_tasks

if TYPE_CHECKING:
    from .actor import TrioActor
    from .supervisor import Supervisor
    from .system import ActorSystem

logger = Log("abeyance.core")

_serials = itertools.count(1)

KILLED_S: Final = 1.0
"""How long a killed incarnation is waited for, at least. `on_failure` has the shutdown time."""

BIRTHS: Final[dict[int, Cell]] = {}
"""From a thread to the cell it makes an instance for: pykka's constructor leaves no room for an
argument. Not a context variable: a set of one copies a tree, and constructors never suspend."""


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """A snapshot of one actor.

    Attributes:
        name: Its key.
        state: `new`, `running`, `suspended` (while it would run), `held`, `waiting` (for a
            restart), `stopping` or `ended`.
        incarnation: Which incarnation, from 1.
        queued: Envelopes in the user lane and to be handled before it.
        stashed: Envelopes put aside by `stash()`.
        internal: Items in the internal lane.
        owed: Replies owed.
        in_flight: Whether a handler runs.
        oldest_s_max: The longest that a message of the user lane may have waited, in seconds: a
            bound, not a measurement. Messages carry no instant; it is counted from the last moment
            of which the actor knows that all it holds came later. That moment lags by the time in
            which it took what it held then, and by the time the loop took to get to an actor that
            slept. None where the lane is empty, or the actor was woken and has not run yet.
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
        "tasks",
        "watchers",
    )

    def __init__(
        self,
        system: ActorSystem,
        supervisor: Supervisor,
        actor_class: type[TrioActor],
        args: Any,
        kwargs: dict[str, Any],
        *,
        child_id: str | None = None,
        name: str | None = None,
        shutdown_s: float = 5.0,
    ) -> None:
        self.system = system
        self.supervisor = supervisor
        self.actor_class = actor_class
        self._args = args
        self._kwargs = kwargs or None
        self.name = name
        self.key = name or f"{actor_class.__name__}-{next(_serials)}"
        self.child_id = child_id or self.key
        self.role = actor_class.role
        self.base: Stance = ((self.key,), self.role)
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
        self.owed: dict[Target, Envelope] = {}
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
        self.tasks: dict[trio.CancelScope, None] | None = None
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
            actor = self.actor_class(*args, **(self._kwargs or {}))
        finally:
            if outer is None:
                del BIRTHS[thread]
            else:
                BIRTHS[thread] = outer
        self.actor = actor
        self.fresh = True
        return actor

    # -- the task

    async def run(self) -> None:
        """Run incarnations until the cell ends. The one task of the cell.

        One coroutine for both: another for each incarnation would be a tenth of an idle actor.
        """
        reason: BaseException | None = None
        try:
            while True:
                if self.held:
                    await self._wait_while_held()
                if self.ending:
                    break
                how: str | None = None
                left = False
                error: BaseException | None = None
                actor: TrioActor | None = None
                try:
                    # Errors are caught outside the scope: a handler's nursery that is killed while
                    # a child raises gives a BaseExceptionGroup inside, an ExceptionGroup outside.
                    with self._begin():
                        actor, served = self._appoint()
                        result: Any = served.on_start()
                        if result.__class__ is CoroutineType:
                            await result
                        self._begun()
                        while how is None:
                            try:
                                how = await serve(self, served)
                            except Exception as exc:
                                if not resumes(self, exc):
                                    raise
                                # A queue of failures must not hold all.
                                await trio.lowlevel.checkpoint()
                        await self._leave(served, how)
                        left = True
                except Exception as exc:  # noqa: BLE001 - the incarnation's end, and handed on.
                    error = exc
                except BaseException as exc:  # noqa: BLE001 - raised again where it ends the run.
                    error = self._abort(exc)
                outcome = await self._conclude(actor, how, left, error)
                reason = outcome.error
                error = None  # An idle actor is not to hold what crashed its last incarnation.
                delay_s = self.supervisor._child_exited(self, outcome)
                self.ending = self.ending or delay_s is None
                self._tell_watchers(reason, final=self.ending)
                if self.ending:
                    break
                self.settle_pills()
                if delay_s:
                    await self._pause(delay_s)
        except BaseException as exc:
            reason = reason or exc
            raise
        finally:
            self._end(reason)

    async def _wait_while_held(self) -> None:
        while self.held and not self.ending:
            self.state = "held"
            self.settle_idle()
            self._nudge = trio.Event()
            await self._nudge.wait()
        # What was to end an incarnation before it ran must not end the one that is to run.
        self.box.control &= ~(KILL | HALT)

    async def _pause(self, delay_s: float) -> None:
        self.state = "waiting"
        self.settle_idle()
        self._nudge = trio.Event()
        with trio.move_on_after(delay_s):
            await self._nudge.wait()

    def nudge(self) -> None:
        """End a pause, or look again at `held` and `ending`."""
        if self._nudge is not None:
            self._nudge.set()

    # -- one incarnation

    def _begin(self) -> trio.CancelScope:
        """Begin an incarnation; return the scope it is to run in."""
        STANCE.set(self.base)
        if self.system.tracing is not None:
            self.system.tracing.clear()
        self.incarnation += 1
        self.failure = None
        self.killed_at = None
        scope = self.scope = trio.CancelScope()
        return scope

    def _appoint(self) -> tuple[TrioActor, Any]:
        """Return the instance of the incarnation, and what is called in its place."""
        actor = self.actor if self.fresh and self.actor is not None else self.make()
        self.fresh = False
        self.state = "running"
        faults = self.system.faults
        return actor, actor if faults is None else faults.handlers(self, actor)

    def _begun(self) -> None:
        """Say that `on_start` has returned."""
        self._set_restarting(False)
        self.settle_started(None)
        self._announce()

    def _abort(self, exc: BaseException) -> BaseException:
        """Return what ended the incarnation, where that does not end the run; else raise it."""
        if cancels(exc) or not self.system.stop_all_on_base_exception:
            abandon(self, exc)
            raise exc
        logger.debug("%r in %s. Stopping all actors.", exc, self.ref, actor=self.key)
        self.system.stop_everything()
        return exc

    async def _conclude(
        self, actor: TrioActor | None, how: str | None, left: bool, error: BaseException | None
    ) -> Exit:
        """End the incarnation's tasks, settle what it had in hand, and say how it ended."""
        if error is None and not left:
            error = self.failure or ActorKilledError(
                f"an incarnation of {self} was killed; its supervisor decides whether another "
                "starts",
                actor=self.key,
                reason=self.kill_reason,
            )
        else:
            error = self._with_failure(error)
        self._set_restarting(True)
        await end_tasks(self)
        self.box.control &= ~(KILL | HALT)
        self.kill_reason = None
        outcome = settle_exit(self, how, error)
        if outcome.kind == CRASHED:
            await self._report_crash(actor, outcome)
        elif error is not None and not isinstance(error, ActorKilledError):
            log_error(logger, "Unhandled exception in %s:", self.ref, error)
        self.settle_started(outcome.error)
        self.scope = None
        return outcome

    def _set_restarting(self, on: bool) -> None:
        box = self.box
        if box.restarting is not on:
            box.restarting = on
            if box.terms.fails_restarting:
                box.set_room()

    def _with_failure(self, error: BaseException | None) -> BaseException | None:
        """Join what a task of the incarnation crashed with to the handler's own error."""
        failure = self.failure
        if error is None or failure is None or failure is error:
            return error
        return BaseExceptionGroup(f"{self} crashed", [error, failure])

    def _announce(self) -> None:
        if self.name is not None:
            self.system.reminders.started(self.name)
        system = self.system
        if system.hub.watched:
            kind = ActorStarted if self.incarnation == 1 else ActorRestarted
            system.emit(kind, subject=self.key, incarnation=self.incarnation)

    # -- leaving

    def is_pill(self, envelope: Envelope) -> bool:
        """Whether the envelope is a stop pill, which no overflow drops."""
        return envelope[0].__class__ is StopPill

    async def _leave(self, actor: TrioActor, how: str) -> None:
        """Serve what is owed, end the tasks, run `on_stop`. Only for a stop, not for a crash."""
        self.state = "stopping"
        if how != HALTED and self.supervisor._ends_with(self):
            self.stopping = True
            self.box.set_room()
            self.box.give_room()
        if how != HALTED:
            with trio.move_on_after(self.shutdown_s):
                await serve_owed(self, actor)
        await end_tasks(self)
        result: Any = actor.on_stop()
        if result.__class__ is CoroutineType:
            await result

    async def _report_crash(self, actor: TrioActor | None, outcome: Exit) -> None:
        """Log the crash and run `on_failure`, for at most `shutdown_s`."""
        error = outcome.error
        assert error is not None
        info = (type(error), error, error.__traceback__)
        killed = isinstance(error, ActorKilledError)
        if not killed:
            log_error(logger, "Unhandled exception in %s:", self.ref, error)
        self.system.emit(ActorCrashed, subject=self.key, incarnation=self.incarnation, error=error)
        if actor is None:
            return
        try:
            # Pykka's rule: what is no Exception stops the actor, it does not fail it.
            fails = isinstance(error, (Exception, BaseExceptionGroup))
            result: Any = actor.on_failure(*info) if fails else actor.on_stop()
            if result.__class__ is CoroutineType:
                with trio.move_on_after(self.shutdown_s):
                    await result
        except Exception:
            logger.exception(
                "on_failure of %s failed; the incarnation has ended all the same",
                self,
                actor=self.key,
            )

    # -- the end

    def _end(self, reason: BaseException | None) -> None:
        """Close the mailbox, bury what is left, and tell everyone who waits. Does not raise."""
        if self.state == "ended":
            return
        self.state = "ended"
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
        self.system.forget(self)
        if self.registered:
            unregister(self)
            logger.debug("Stopped %s", self.ref, actor=self.key)
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
            future = self._stopped_future
        if self.box.closed and self.state == "ended":
            future._answer(None)
        return future

    # -- reply handles

    def owe(self) -> tuple[Target, bool]:
        """Register the in-flight envelope as owed; return its target and whether it was settled.

        Raises:
            RuntimeError: No handler of a message runs.
        """
        envelope = self.inflight
        if envelope is None:
            raise RuntimeError("later() belongs in a handler of a message, before it returns")
        message, target, deliveries = envelope
        if deliveries == STASHED:
            raise RuntimeError("the message was stashed; its reply is for the next handler of it")
        if target is None:
            target = Unasked()
            self.inflight = envelope = (message, target, deliveries)
        if deliveries != SETTLED:
            self.owed[target] = envelope
        return target, deliveries == SETTLED

    def release(self, target: Target) -> bool:
        """Take an owed, queued-again or in-flight envelope as handled. False if it has ended."""
        found = self.owed.pop(target, None) is not None
        for lane in (self.box.returned, self.box.stashed):
            if found or not lane:
                continue
            for place, envelope in enumerate(lane):
                if envelope[1] is target:
                    del lane[place]
                    found = True
                    self.box.set_room()
                    if self.box.watched:
                        self.box.shrank()
                    break
        inflight = self.inflight
        if inflight is not None and inflight[1] is target and inflight[2] != SETTLED:
            self.inflight = (inflight[0], target, SETTLED)
            found = True
        if found:
            self.handled += 1
            # Those that have expired are owed to nobody who waits.
            if self.state == "stopping" and all(each.settled for each in self.owed):
                self.box.wake()
            if self.idle is not None:
                self.settle_idle()
        return found

    # -- the stash

    def stash(self) -> None:
        """Put the in-flight envelope aside.

        Raises:
            RuntimeError: No handler of a message runs, or its reply handle was taken.
        """
        envelope = self.inflight
        if envelope is None:
            raise RuntimeError("stash() belongs in a handler of a message, before it returns")
        message, target, deliveries = envelope
        if deliveries < 0 or target in self.owed:
            raise RuntimeError("the message was stashed already, or its reply handle was taken")
        if self.box.closed:
            raise RuntimeError(f"{self} has ended; nothing is handled again")
        before = self._in_hand()
        self.box.put_aside(envelope)
        self.inflight = (message, target, STASHED)
        assert self._in_hand() == before  # I5

    def unstash(self) -> int:
        """Put back first in line what was stashed, but for what its running handler stashed."""
        inflight = self.inflight
        before = self._in_hand()
        count = self.box.put_back(int(inflight is not None and inflight[2] == STASHED))
        assert self._in_hand() == before  # I5
        return count

    def take_back(self) -> None:
        """Take the in-flight envelope out of the stash where its handler, which failed, put it."""
        inflight = self.inflight
        if inflight is None or inflight[2] != STASHED:
            return
        stashed = self.box.stashed
        if stashed:
            assert stashed[-1][0] is inflight[0]
            self.inflight = stashed.pop()
            self.box.set_room()
        else:  # The cell ended while the handler was shielded: it is a dead letter.
            self.inflight = (inflight[0], inflight[1], SETTLED)

    def _in_hand(self) -> int:
        """How many envelopes are where only the loop thread moves them (I5)."""
        box, inflight = self.box, self.inflight
        return (
            len(box.returned or ())
            + len(box.stashed or ())
            + len(self.owed)
            + int(inflight is not None and inflight[2] >= 0 and inflight[1] not in self.owed)
        )

    def accounted(self) -> int:
        """How many envelopes have ended or are held: the right side of I5, between two handlers."""
        return self.handled + self.dead + self.quarantined + len(self.box.user) + self._in_hand()

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
        self.box.signal(STOP_NOW)

    def take_pills(self) -> None:
        """Stop a suspended actor whose stop pills wait in the lane that is not served."""
        if not self.box.suspended or self.state != "running":
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

    def watch(self, watcher: Cell) -> None:
        """Send `Ended` to the watcher's present incarnation from now on."""
        if self.state == "ended":
            item = Ended(self.ref, self.incarnation, self.last_error, True)
            watcher.box.put_internal((ENDED, item, watcher.incarnation, 0))
            return
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = watcher.incarnation

    def _tell_watchers(self, reason: BaseException | None, *, final: bool) -> None:
        watchers = self.watchers
        if not watchers:
            return
        ended = Ended(self.ref, self.incarnation, reason, final)
        for watcher, incarnation in list(watchers.items()):
            if incarnation != watcher.incarnation or watcher.state == "ended":
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
    def in_flight(self) -> bool:
        """Whether a handler runs."""
        return self.inflight is not None or self.inflight_internal is not None

    def statistics(self) -> ActorStatistics:
        """Return a snapshot. Any thread."""
        box = self.box
        in_flight = self.in_flight
        return ActorStatistics(
            name=self.key,
            state=self.state_shown,
            incarnation=self.incarnation,
            queued=box.depth,
            stashed=len(box.stashed or ()),
            internal=len(box.internal) if box.internal else 0,
            owed=len(self.owed),
            in_flight=in_flight,
            oldest_s_max=box.oldest_s_max(),
            in_flight_s_max=(max(0.0, self.system.stopwatch() - box.looked) if in_flight else None),
            restarts=max(0, self.incarnation - 1),
            handled=self.handled,
            dead=self.dead,
            quarantined=self.quarantined,
            late=self.late,
            dropped=self.dropped,
            last_error=self.last_error,
            last_failure=Failure.of(self.last_error, self.failed_ms),
            mailbox=box.statistics(),
        )
