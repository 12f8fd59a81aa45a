"""The class users derive from: pykka's actor, whose loop is a trio task.

Invariants:
    I1. An instance belongs to one incarnation of one cell, and handles one message at a time.
    I2. Every method here that sends or starts something returns without waiting.

An instance is made on the thread that starts the actor, and again on the loop thread after a crash.
Its hooks and handlers run on the loop thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Hashable, Iterator
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pykka

from .asks import STANCE, check_ring, check_table, untied
from .cell import BIRTHS, Cell
from .envelope import ANSWER, LATER, TIMER, Answer, Ended, Later
from .errors import REFUSALS, AskCycleError
from .future import TrioFuture
from .hand import owe, stash, unstash
from .logs import Log
from .ref import TrioActorRef
from .reminders import check_reminder
from .replies import Reply, Request
from .settling import drop_internal
from .taking import take_run
from .tasks import start_task
from .timeouts import bounded

if TYPE_CHECKING:
    import trio

    from .events import Event
    from .system import ActorSystem
    from .terms import Terms
    from .wheel import Timer

logger = Log("abeyance.core")

_FOREVER = float("inf")


class TrioActor(pykka.Actor):
    """An actor whose loop is a trio task.

    Subclass it; override `on_receive` for messages, or write methods and use `ref.proxy()`. Hooks,
    handlers and proxied methods may be plain or async. See docs/semantics.md for what is promised.
    """

    __slots__ = ("_cell",)

    role: ClassVar[str | None] = None
    """What the table of asks and debug mode know it as."""

    mailbox_capacity: ClassVar[int] = 10_000
    """The bound of the user lane and the stash together. Read when the class's first actor
    starts, with all else that is said of the mailbox here."""

    overflow: ClassVar[str] = "reject"
    """What happens to a message beyond it: `reject`, `block`, `drop_oldest`, `drop_newest`, or
    `coalesce`, which also lets a message take the place of a queued one of the same key."""

    block_timeout_s: ClassVar[float | None] = None
    """How long `block` blocks a host thread, at most. None is without a bound."""

    mailbox_high: ClassVar[int | None] = None
    """How many messages the mailbox holds when the event `MailboxHigh` is emitted. None is four
    fifths of the capacity, 0 is never. It is emitted again only after a `MailboxLow`."""

    mailbox_low: ClassVar[int | None] = None
    """To how many it falls, after that, when `MailboxLow` is. None is half of the capacity, or one
    less than `mailbox_high` where that is less."""

    while_suspended: ClassVar[str] = "queue"
    """What becomes of an ask sent while the actor is suspended: `queue`, or `fail` at once with
    `ActorUnavailableError`."""

    while_restarting: ClassVar[str] = "queue"
    """The same between two incarnations: from the end of one to the `on_start` of the next."""

    max_deliveries: ClassVar[int] = 1
    """1: at most once. n: at least once, up to n deliveries of a message whose handler crashes."""

    past_deliveries: ClassVar[str] = "quarantine"
    """After the last delivery: `quarantine` the message, or `park` the group and keep it."""

    counts_durably: ClassVar[bool] = False
    """Whether deliveries of messages with an `act_id` are counted past the end of the process."""

    crash_on_ask_error: ClassVar[bool] = False
    """Whether an error in the handler of an ask ends the incarnation, as one of a tell does."""

    _cell: Cell
    _terms: ClassVar[tuple[type[TrioActor], Terms] | None] = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        actor = super().__new__(cls)
        cell = BIRTHS.get(get_ident())
        if cell is None or cell.actor_class is not cls:
            raise RuntimeError(
                f"{cls.__name__} is made by starting it: system.start(), {cls.__name__}.start() "
                "or a child spec"
            )
        actor._cell = cell
        # A proxy to itself that the constructor makes looks at the instance.
        cell.actor = actor
        return actor

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Take the arguments of `start`. May be left out, unlike pykka's."""

    @classmethod
    def make_kept(cls) -> Any:
        """Return what the cell keeps over all incarnations, as `self.kept`. Called once a cell."""
        return None

    @staticmethod
    def coalesce_key(message: Any) -> Hashable | None:
        """Return the key by which a newer message replaces a queued one; None for neither.

        Only where `overflow` is `coalesce`. Called on each sender's thread with each message but
        those of pykka's proxies. What it raises is raised at the sender; nothing was sent.
        """
        return None

    # -- pykka's hooks for implementors of an actor type

    @classmethod
    def start(cls, *args: Any, **kwargs: Any) -> Any:
        """Start an actor in the running task's system, elsewhere in the one active HostedSystem.

        Not a checkpoint. Registers it with `pykka.ActorRegistry`, as pykka does.

        Raises:
            RuntimeError: There is no such system, or more than one.
        """
        return _find_system().start_as(cls, args, kwargs, None, True)

    @staticmethod
    def _create_actor_inbox() -> Any:
        raise TypeError("a TrioActor's mailbox belongs to its cell")

    @staticmethod
    def _create_future() -> TrioFuture[Any]:
        future: TrioFuture[Any] = TrioFuture()
        return future

    def _start_actor_loop(self) -> None:
        raise TypeError("a TrioActor is started by its system")

    @property
    def actor_ref(self) -> TrioActorRef[Any]:
        """The actor's ref."""
        return self._cell.ref

    @property
    def actor_urn(self) -> str:  # type: ignore[override]
        """The actor's universally unique name, the same in every incarnation."""
        return self._cell.urn

    @property
    def actor_inbox(self) -> Any:  # type: ignore[override]
        """The actor's mailbox."""
        return self._cell.box

    @property
    def actor_stopped(self) -> Any:  # type: ignore[override]
        """An event that is set when the actor is stopping for good."""
        return self._cell.ref.actor_stopped

    def __str__(self) -> str:
        return str(self._cell.ref)

    # -- what it knows of itself

    @property
    def kept(self) -> Any:
        """What `make_kept` returned: the same object in every incarnation."""
        return self._cell.kept

    @property
    def incarnation(self) -> int:
        """Which incarnation this is, from 1."""
        return self._cell.incarnation

    # -- hooks

    def on_start(self) -> Any:
        """Run before the first message of an incarnation. May be async."""

    def on_stop(self) -> Any:
        """Run after the last message when the incarnation was stopped. May be async.

        Not called after a crash or a kill.
        """

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        """Run after the incarnation crashed or was killed; its tasks have ended. May be async."""

    def on_receive(self, message: Any) -> Any:
        """Handle a message; what is returned is the reply to an ask. May be async."""
        logger.warning("Unexpected message received by %s: %r", self, message, actor=self._cell.key)

    def on_answer(self, answer: Answer) -> Any:
        """Handle what an ask or pipe of this actor came to. May be async."""
        logger.warning(
            "unexpected answer received by %s: %r", self, answer.tag, actor=self._cell.key
        )

    def on_ended(self, ended: Ended) -> Any:
        """Handle that a watched actor's incarnation ended. May be async."""
        logger.warning("unexpected end of %s received by %s", ended.ref, self, actor=self._cell.key)

    # -- what it does

    def stop(self) -> None:
        """Stop after the messages that are in the mailbox now. Not a checkpoint."""
        self.actor_ref.stop(block=False)

    def later(self) -> Reply:
        """Take the handle of the reply to the message being handled; then return `LATER`.

        Not a checkpoint. The envelope stays owed until the handle is settled: on a crash it comes
        back uncounted (at least once) or fails as outcome unknown (at most once); a stop serves
        the internal lane until nothing is owed.

        Raises:
            RuntimeError: Not on the loop thread, or no message is being handled.
        """
        target, over = owe(self._cell)
        return Reply(self._cell, target, over)

    def take_run(self, most: int) -> Iterator[tuple[Any, Reply]]:
        """Take the message being handled and those right behind it; then return `LATER`.

        Not a checkpoint. Yields each with the handle of its reply, as `later()` gives it: first the
        message being handled, then asks of just its class. One is taken as the next of the run is
        asked for, and from then on it is the message being handled: what the handler raises or
        returns is its outcome. For many small messages, whose handling costs less than taking them
        one by one. The run ends after `most`, when the batch's time is over, and where the mailbox
        is to look first: it is of one message behind a tell, an ask whose deadline ends its
        handler, and in a mailbox that drops the oldest or coalesces, from which its senders'
        threads take, too.

        Raises:
            RuntimeError: Not on the loop thread, or no message is being handled; nothing was taken.
        """
        return take_run(self._cell, most)

    def stash(self) -> Later:
        """Put the message being handled aside, to be handled again after `unstash_all()`.

        Not a checkpoint. It counts against `mailbox_capacity`, and an ask can still be answered and
        still expires. What the handler returns is not a reply: `return self.stash()`. If it raises
        after this, the message is out of the stash again, as the one that was being handled. A
        crash brings what is stashed back before the queue, uncounted; the end of the actor makes
        it dead letters.

        Raises:
            RuntimeError: Not on the loop thread, no message of the user lane is being handled, it
                was stashed already, or its reply handle was taken.
        """
        stash(self._cell)
        return LATER

    def unstash_all(self) -> int:
        """Put what was stashed before everything in the user lane, in the order it was stashed.

        Not a checkpoint. What the running handler stashed itself stays for the next time. Returns
        how many were put back.

        Raises:
            RuntimeError: Not on the loop thread; nothing was put back.
        """
        return unstash(self._cell)

    def ask(
        self,
        ref: TrioActorRef[Any],
        message: Any,
        *,
        tag: Any,
        timeout_s: float | None = None,
        cancel_on_timeout: bool = False,
        fact: bool = False,
    ) -> None:
        """Ask another actor and go on; the answer comes to `on_answer`.

        Not a checkpoint. A refusal by its mailbox comes as the answer's error.

        Args:
            ref: Whom to ask.
            message: What.
            tag: What the answer carries, to know it by.
            timeout_s: Until the ask has expired, from 0. None is the system's default; `math.inf`,
                or more than a thread can wait (`threading.TIMEOUT_MAX`), is none.
            cancel_on_timeout: Whether a handler that runs for it then is cancelled. See
                `TrioActorRef.ask`.
            fact: Deliver the answer to whichever incarnation is there; otherwise it is dropped
                when this one has ended.

        Raises:
            AskCycleError: It waits for this actor, or is this actor; nothing was sent.
            UndeclaredAskError: The table of asks does not hold the pair; nothing was sent.
            ValueError: The timeout is below 0, or no number; nothing was sent.
        """
        cell = self._cell
        asked = ref._cell
        system = cell.system
        stance = STANCE.get()
        chained = untied(stance[0])
        check_ring(chained, asked, message)
        check_table(stance, asked.role, system.asks, message)
        if asked is cell:
            raise AskCycleError(
                f"{cell} asks itself; nothing was sent; tell it",
                ring=(cell.key, cell.key),
                message=message,
            )
        timeout_s = system.ask_timeout_s if timeout_s is None else bounded("timeout_s", timeout_s)
        request = Request(cell, tag, message, fact, chained or (cell,))
        request._cancels = cancel_on_timeout
        deadline = _FOREVER
        if timeout_s is not None:
            request._timeout_s = timeout_s
            request._deadline = deadline = asked.system.wheel.now() + timeout_s
        if asked.system.tracing is not None:
            message = asked.system.tracing.carried(message)
        try:
            asked.box.offer((message, request, 0))
        except REFUSALS as exc:
            request._fail(exc)
        if deadline < asked.box.alarm:
            asked.system.wheel.arm(asked.box, deadline)

    def pipe(
        self,
        afn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        tag: Any,
        fact: bool = False,
    ) -> trio.CancelScope:
        """Run an async function as a task of the incarnation; its outcome comes to `on_answer`.

        Not a checkpoint. Cancelled when the incarnation ends. On the loop thread.

        Args:
            afn: What to run.
            args: Its arguments.
            tag: What the answer carries.
            fact: Deliver the answer to whichever incarnation is there; a task that was cancelled
                with its incarnation answers `OutcomeUnknownError`.
        """
        cell = self._cell
        incarnation = 0 if fact else cell.present
        names = untied(STANCE.get()[0])[:-1]
        tracing = cell.system.tracing
        kept = None if tracing is None else tracing.keeping()

        def finish(value: Any, error: BaseException | None) -> None:
            payload: Any = (names, Answer(tag, value, error, afn))
            if kept is not None:
                payload = kept(payload)
            if not cell.box.put_internal((ANSWER, payload, incarnation, 0)):
                drop_internal(cell, ANSWER, payload, incarnation)

        return start_task(cell, afn, args, None, finish)

    def spawn(
        self,
        afn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        name: str | None = None,
    ) -> trio.CancelScope:
        """Start a task of the incarnation. Its crash crashes the incarnation.

        Not a checkpoint. Cancelled when the incarnation ends, by whatever; the next one starts
        only after the task has ended. Returns the task's scope, to cancel it alone.

        Raises:
            RuntimeError: Not on the loop thread, or no incarnation runs; nothing was started.
        """
        return start_task(self._cell, afn, args, name, None)

    def after(self, delay_s: float, message: Any) -> Timer:
        """Send this incarnation a message, by the internal lane, in `delay_s` seconds.

        Not a checkpoint. Returns the timer, which can be cancelled.

        Args:
            delay_s: From now; what is not above 0 is at once, `math.inf` is never.
            message: What to send.

        Raises:
            ValueError: `delay_s` is no number; nothing was set.
        """
        if math.isnan(delay_s):
            raise ValueError(f"delay_s must be a number, not {delay_s!r}; nothing was set")
        cell = self._cell
        if cell.system.tracing is not None:
            message = cell.system.tracing.carried(message)
        item = (TIMER, message, cell.present, 0)
        return cell.system.wheel.at(delay_s, lambda: cell.box.put_internal(item))

    def remind(
        self, name: str, message: Any = None, *, at_ms: int, every_ms: int | None = None
    ) -> None:
        """Have a `Reminder` sent to this actor, in whichever incarnation, at an instant.

        Not a checkpoint. It comes to `on_receive`, by the internal lane, not before the wall clock
        reads the instant. It is over when its handler returned: a crash delivers it again, at least
        once, or quarantines it. Where reminders are stored it also survives the process, once its
        commit is in; one that came due meanwhile comes once, when an actor of this name starts.

        Args:
            name: One reminder a name: it takes the place of an earlier one.
            message: What the reminder carries. To be stored it must be plain data.
            at_ms: When, in epoch milliseconds; an instant that is past is due at once.
            every_ms: Of a periodic one the period, at least 1. Periods that were missed come once.

        Raises:
            ValueError: This actor has no name of its own, so nothing could find it again; or an
                argument is out of its bounds. Nothing was set.
            RuntimeError: Not on the loop thread, as in the constructor of an actor that a host
                thread starts. Nothing was set.
        """
        system = self._cell.system
        system.check_loop()
        system.reminders.set(check_reminder(self._cell.name, name, message, at_ms, every_ms))

    def forget_reminder(self, name: str) -> None:
        """Cancel a reminder of this actor. One that is in its mailbox already still arrives.

        Not a checkpoint.

        Raises:
            ValueError: This actor has no name of its own.
        """
        if self._cell.name is None:
            raise ValueError(f"{self._cell} has no name, so it has no reminders")
        self._cell.system.reminders.cancel(self._cell.name, name)

    def emit(self, kind: type[Event], **fields: Any) -> None:
        """Hand an event to whoever looks; where nobody does, none is made.

        Not a checkpoint; does not raise for what a reader does.

        Args:
            kind: The event's class.
            fields: Its fields but for `at_ms`.
        """
        self._cell.system.emit(kind, **fields)

    def watch(self, ref: TrioActorRef[Any]) -> None:
        """Get `Ended` in `on_ended` each time an incarnation of the actor ends, and at its end.

        Not a checkpoint. Ends with this incarnation.
        """
        watched, cell = ref._cell, self._cell
        # A constructor may run on a host thread. Of a system that has ended all have ended.
        if not watched.system.on_loop(watched.watch, cell, cell.present):
            watched.watch(cell, cell.present)


def _find_system() -> ActorSystem:
    """Be `hosted.find_system` from the first call on: that module stands above this one."""
    global _find_system
    from .hosted import find_system

    _find_system = find_system
    return find_system()
