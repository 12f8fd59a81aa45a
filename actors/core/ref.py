"""The handle that outlives incarnations: what senders hold.

Invariants:
    I1. One ref per cell: refs compare by identity, and supervisors hand out the same one for ever.
    I2. A blocking call on a thread that runs trio raises; it never blocks.

Any thread, except where a method is async.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pykka
import trio
from trio.lowlevel import in_trio_run

from .asks import ENDING, IDLE, STANCE, Stance, check_table
from .envelope import TELL, Envelope
from .errors import REFUSALS, ActorDeadError, AskTimeoutError, WouldDeadlockError
from .expiry import end_handler
from .future import NO_DEADLINE, PENDING, AskFuture, TrioFuture
from .timeouts import LONGEST_S, bounded, bounded_or_none
from .waits import chain_here, check_asked, check_room

if TYPE_CHECKING:
    from .cell import Cell
    from .mailbox import Mailbox
    from .snapshots import ActorStatistics

A = TypeVar("A", bound=pykka.Actor)


class StoppedFlag:
    """What pykka calls `actor_stopped`: an event that is set when the actor has stopped."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def is_set(self) -> bool:
        """Whether the actor is stopping for good, or has ended."""
        return self._cell.stopping

    def wait(self, timeout: float | None = None) -> bool:
        """Block a host thread until the actor has ended. Return whether it has.

        Args:
            timeout: Seconds to wait, from 0; None, `math.inf` or more than a thread can wait is
                for ever.

        Raises:
            StopCycleError: It waits for who would wait here, and is not being killed.
            ValueError: The timeout is below 0, or no number; nothing was waited for.
        """
        try:
            self._cell.ended_future().get(timeout=timeout)
        except pykka.Timeout:
            return False
        return True


class TrioActorRef(pykka.ActorRef[A]):
    """Reference to an actor, over all its incarnations. Got from starting one; not constructed."""

    __slots__ = ("_box", "_cell", "_lane")  # An instance dict would be a third of the ref.

    _box: Mailbox
    _cell: Cell
    _lane: deque[Envelope]

    def __init__(self, actor: A) -> None:
        raise TypeError("refs come from starting an actor, or from actor.actor_ref")

    @classmethod
    def _of(cls, cell: Cell) -> TrioActorRef[Any]:
        ref = cls.__new__(cls)
        ref._cell = cell
        ref._box = cell.box
        ref._lane = cell.box.user
        return ref

    # -- what pykka's ref keeps as attributes

    @property
    def actor_class(self) -> type[A]:  # type: ignore[override]
        """The class of the actor."""
        return self._cell.actor_class  # type: ignore[return-value]

    @property
    def actor_urn(self) -> str:  # type: ignore[override]
        """The actor's universally unique name."""
        return self._cell.urn

    @property
    def actor_inbox(self) -> Any:  # type: ignore[override]
        """The actor's mailbox."""
        return self._cell.box

    @property
    def actor_stopped(self) -> Any:  # type: ignore[override]
        """An event that is set when the actor is stopping for good."""
        return StoppedFlag(self._cell)

    @property
    def _actor_weakref(self) -> Callable[[], Any]:  # type: ignore[override]
        # Pykka's proxies introspect the instance; after a restart that is the new one.
        return lambda: self._cell.actor

    @property
    def name(self) -> str:
        """The actor's name, or a key of its own where it has none."""
        return self._cell.key

    def __repr__(self) -> str:
        return f"<TrioActorRef for {self}>"

    def __str__(self) -> str:
        cell = self._cell
        if cell.registered is None:  # Pykka's registry asks, for a line that nobody reads.
            return cell.key
        return f"{cell.actor_class.__name__} ({cell.key}, {cell.urn})"

    def is_alive(self) -> bool:
        """Whether it is neither stopping for good nor ended. Parked and restarting are alive."""
        return not self._cell.stopping

    # -- telling

    def tell(self, message: Any) -> None:
        """Send a message without a reply.

        Not a checkpoint. Blocks only a host thread, and only where the overflow policy is `block`:
        for at most the class's `block_timeout_s`.

        Raises:
            MailboxFullError: The mailbox is at its bound, and stayed there where this blocked; not
                accepted.
            AskCycleError: It is, and this would block a thread that the actor waits for; not
                accepted.
            ActorDeadError: The actor has ended; not accepted.
            MailboxClosedError: The actor is stopping, or the system refuses hosts; not accepted.
        """
        box = self._box
        lane = self._lane
        if len(lane) < box.room:
            lane.append((message, None, 0))
            if box.attention:
                box.attend()
        else:
            box.offer_slowly((message, None, 0))

    async def tell_wait(self, message: Any, timeout: float | None = None) -> None:
        """Send a message without a reply; wait while the mailbox is full, whatever its policy.

        A checkpoint only where it has to wait. Cancelled: the message was not sent.

        Args:
            message: What to send.
            timeout: Seconds to wait for room, from 0; None is without a bound.

        Raises:
            ValueError: The timeout is below 0, or no number; nothing was sent.
            MailboxFullError: There was no room in time; not accepted.
            AskCycleError: It has no room, and waits for who would wait here; not accepted.
            ActorDeadError, MailboxClosedError: Not accepted.
        """
        timeout = bounded_or_none("timeout", timeout)
        box = self._cell.box
        until: float | None = None
        while True:
            box.check_open(message)
            if box.put_where_room((message, None, 0)):
                return
            check_room(self._cell, message)
            waiter = box.wait_for_room()
            if waiter is None:
                continue
            if until is None:
                until = NO_DEADLINE if timeout is None else trio.current_time() + timeout
            with trio.move_on_at(until) as scope:
                try:
                    await waiter
                except BaseException:
                    box.leave_queue(waiter)
                    raise
            if scope.cancelled_caught:
                raise box.full(message, timeout)

    def tell_internal(self, message: Any) -> None:
        """Send by the internal lane, which has no bound: the runtime's own traffic only.

        Not a checkpoint. Each sender has at most one such message outstanding.

        Raises:
            ActorDeadError: The actor has ended; not accepted.
        """
        if not self._cell.box.put_internal((TELL, message, 0, 0)):
            raise self._dead(message)

    # -- asking

    def ask(
        self,
        message: Any,
        *,
        block: bool | None = None,
        timeout: float | None = None,
        cancel_on_timeout: bool = False,
    ) -> Any:
        """Send a message and get its reply: at once a future, or blocking the reply itself.

        Not a checkpoint. On a host thread it blocks, unless `block=False`; on a thread that runs
        trio it returns a future to await. Cancelling that await leaves the ask in the mailbox; its
        reply is then dropped. A refusal by the mailbox is the future's exception.

        Args:
            message: What to ask.
            block: True blocks, False returns a future, None is True except where trio runs.
            timeout: Seconds until the ask has expired, from 0: it is then no longer handled, and
                its reply is `AskTimeoutError`. None is the system's default; `math.inf`, or more
                than a thread can wait (`threading.TIMEOUT_MAX`), is none.
            cancel_on_timeout: Whether a handler that runs for it then is cancelled, at its next
                checkpoint. That is no crash: the incarnation goes on with the next message. A
                handler that never awaits, and a reply that is owed, are not ended by it.

        Raises:
            WouldDeadlockError: `block=True` where trio runs; nothing was sent.
            AskCycleError: The actor waits for the asker; nothing was sent. With `block=False`, or
                where it waits only by the time that the reply is waited for, it is sent, and
                awaiting the future raises.
            UndeclaredAskError: The table of asks does not hold the pair; nothing was sent.
            ValueError: The timeout is below 0, or no number; nothing was sent.
            AskTimeoutError: Blocking, and there was no reply in time.
        """
        box = self._box
        system = self._cell.system
        # As `Target.__init__`, without the call. The usual ask of a host with many in flight, and
        # of a task, takes no turn below: every step of it is counted.
        future: AskFuture[Any] = AskFuture()
        future._claim = future._task = future._asked = None
        future._outcome = PENDING
        future._watched = future._listed = False
        future._chain = ()
        future._box = box
        stance = STANCE.get()
        blocks = block is not False and (block or get_ident() != box.ident)
        if blocks or stance is not IDLE:
            blocks = self._judge(future, stance, message, block)
        if timeout is None:
            timeout = system.ask_timeout_s
        elif 1 < timeout < LONGEST_S:  # 0 and 1 may be truth values, which are no times.
            future._timeout_s = timeout
        else:
            timeout = bounded("timeout", timeout)
            future._timeout_s = timeout
        if cancel_on_timeout:
            future._cancels = True
        if timeout is None or blocks:
            deadline = NO_DEADLINE
        else:
            now = system.wheel.now  # Called as a method, it would be searched for in bases first.
            deadline = now() + timeout
        future._deadline = deadline
        lane = self._lane
        try:
            if len(lane) < box.room:
                lane.append((message, future, 0))
                if box.attention:
                    box.attend()
            else:
                began = time.monotonic()
                future._timeout_s = timeout  # It bounds a wait for room, too.
                box.offer_slowly((message, future, 0))
                if blocks and timeout is not None:
                    timeout = max(0.0, timeout - (time.monotonic() - began))
        except REFUSALS as exc:
            future._fail(exc)
            # After its end: idents are given anew, and the loop's own thread is a host's again.
            blocks = blocks or (block is not False and not in_trio_run())
        if deadline < box.alarm:
            system.wheel.arm(box, deadline)
        if not blocks:
            return future
        try:
            return future.get(timeout=timeout)
        except AskTimeoutError:
            raise
        except pykka.Timeout:
            # The deadline is kept by this thread, not by the wheel: it holds when the loop stalls.
            if future._expire(timeout) and cancel_on_timeout:
                system.on_loop(end_handler, future)
            return future.get()

    def _judge(
        self, future: TrioFuture[Any], stance: Stance, message: Any, block: bool | None
    ) -> bool:
        """Refuse an ask that may not be sent; return whether it blocks."""
        cell = self._cell
        if stance is not IDLE:
            check_table(stance, cell.role, cell.system.asks, message)
            names = chain_here()
            if names:
                # Pykka's proxies to oneself are asks that nobody waits for, with `block=False`. One
                # that is waited for is refused then, and so is one that closes a ring only then.
                future._asked = (cell, message)
                future._chain = names
                if block is not False:
                    check_asked(names, cell, message)
                elif cell in names:
                    future._chain = ()  # I1 of `asks`.
        if block is False:
            return False
        box = cell.box
        if (get_ident() != box.ident or box.closed) and not in_trio_run():
            if cell.system.faults is not None:
                cell.system.faults.bridge(cell.system, cell, message)
            return True
        if block:
            raise WouldDeadlockError(
                "a blocking ask on a thread that runs trio; nothing was sent; await it"
            )
        return False

    # -- ending

    def stop(
        self, *, now: bool = False, block: bool | None = None, timeout: float | None = None
    ) -> Any:
        """Stop the actor: after what was sent before, or after its current message.

        A suspended actor stops after its current message, and one of a parked group at once,
        whatever was sent before.

        Not a checkpoint. Returns, or gives a future of, True if the actor was stopped by now, and
        False if it had ended before. A permanent child is started again by its supervisor, in
        which case True means that the incarnation ended.

        Args:
            now: Leave the messages in the mailbox unhandled; they become dead letters.
            block: As for `ask`.
            timeout: Seconds to wait for it, from 0, when blocking; None, `math.inf` or more than a
                thread can wait is for ever.

        Raises:
            WouldDeadlockError: `block=True` where trio runs; nothing was done.
            StopCycleError: The actor waits for who would wait here; nothing was done. With
                `block=False`, or where it waits only by the time that its end is waited for, it is
                told to stop, and awaiting the future raises.
            ValueError: The timeout is below 0, or no number; nothing was done.
            pykka.Timeout: Blocking, and it had not stopped in time. It still will.
        """
        timeout = bounded_or_none("timeout", timeout)
        cell = self._cell
        running_trio = in_trio_run()
        if running_trio and block:
            raise WouldDeadlockError(
                "a blocking stop on a thread that runs trio; nothing was done; await it"
            )
        result: TrioFuture[bool] = TrioFuture()
        if cell.box.closed:
            result._answer(False)
        else:
            names = chain_here()
            if names:
                if block is not False:
                    check_asked(names, cell, ENDING)
                result._asked = (cell, ENDING)
            done: TrioFuture[None] = TrioFuture()
            done.on_done(lambda: result._answer(True))
            if now:
                if not cell.system.on_loop(cell.stop_now, done):
                    result._answer(False)
            else:
                cell.box.put_pill(done)
                cell.look_for_pills()
        if running_trio or block is False:
            return result
        return result.get(timeout=timeout)

    def __enter__(self) -> Self:
        """Stop the actor when the block is left: `with Worker.start() as ref:`, on host threads.

        Leaving it blocks as `stop()` does, behind what was sent before; what the block raises
        leaves it.

        Raises:
            WouldDeadlockError: This thread runs trio; the block is not entered, the actor runs.
        """
        if in_trio_run():
            raise WouldDeadlockError(
                "leaving the block would block a thread that runs trio; it is not entered and the "
                "actor runs; await ref.stop()"
            )
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def kill(self, reason: str | None = None) -> None:
        """Cancel what the actor does, at its next checkpoint; counts as a crash.

        Not a checkpoint; returns before it happens. A handler that never awaits cannot be killed.
        """
        self._cell.system.on_loop(self._cell.kill, reason)

    # -- suspending

    def suspend(self) -> bool:
        """Let the actor handle no messages from now on; they accumulate up to the bound.

        Not a checkpoint. Takes effect after the current message; from a host thread, one that is
        being taken at that moment is still handled. Stops, kills, answers, timers and the ends of
        watched actors are served meanwhile. Outlives incarnations. The class's `while_suspended`
        says what becomes of asks.

        Returns:
            Whether it was not suspended before. False, too, where it has ended.
        """
        return self._cell.box.suspend(True)

    def resume(self) -> bool:
        """Let a suspended actor handle messages again. Not a checkpoint.

        Returns:
            Whether it was suspended. False, too, where it has ended.
        """
        return self._cell.box.suspend(False)

    async def stopped(self) -> None:
        """Wait until the actor has ended for good. A checkpoint.

        Raises:
            StopCycleError: It waits for who would wait here, and is not being killed.
        """
        await self._cell.ended_future()

    def statistics(self) -> ActorStatistics:
        """Return a snapshot of the actor."""
        return self._cell.statistics()

    def _dead(self, message: Any) -> ActorDeadError:
        return ActorDeadError(
            f"{self} has ended; the message was not accepted; send it elsewhere",
            actor=self._cell.key,
            message=message,
        )
