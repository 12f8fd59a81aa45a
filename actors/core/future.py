"""The future: settled once from any thread, got from threads, awaited in trio.

Invariants:
    I1. Whoever deletes `_claim` settles; every other finds it gone, and lost. To delete a slot is
        one step of the interpreter, and so is the store of `_outcome` after it: no other thread
        and no signal handler comes between the two, as nothing is called there (a test looks).
    I2. A callback is called exactly once: it is appended, then `_watched` is set, then the outcome
        is looked at again; the settler publishes, then looks at `_watched`, then pops. Every order
        pops it, and a pop is atomic. A task that is about to wait takes its own back instead of
        calling it.
    I3. A callback does not raise: one that did in `run_sync_soon` would end the trio run.
    I4. The first task that awaits an ask on the loop of who is asked is kept in the future itself,
        and only that loop's thread touches `_task`: whoever settles elsewhere has it woken there.

Runs on whichever thread settles, gets or awaits.
"""

from __future__ import annotations

import functools
import sys
import threading
from _thread import allocate_lock
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar, cast

import outcome
import pykka
import trio
from trio.lowlevel import (
    Abort,
    checkpoint,
    current_task,
    current_trio_token,
    in_trio_run,
    reschedule,
    wait_task_rescheduled,
)

from .errors import AskCycleError, AskTimeoutError, FutureSettledError, WouldDeadlockError
from .timeouts import bounded_or_none
from .waits import begin

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from .asks import Link
    from .cell import Cell
    from .mailbox import Mailbox
    from .waits import Wait

Timeout = pykka.Timeout
"""What `get` raises when there was no outcome in time."""

T = TypeVar("T")
M = TypeVar("M")

Outcome: TypeAlias = Any
"""`PENDING`, or a `Failure`, or else the value itself: what is usual is not wrapped."""

PENDING: Final[Any] = object()

NO_DEADLINE: Final = float("inf")


class Failure:
    """The outcome of what failed: the error, and the traceback it was set with."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: BaseException, traceback: TracebackType | None) -> None:
        self.error = error
        self.traceback = traceback


class Target:
    """Who is to be answered: a future, or an actor that asked and goes on."""

    # What every ask sets and every answer looks at. A default of the class is found by a search
    # through all bases, which takes six times as long as a slot.
    __slots__ = ("__dict__", "_chain", "_claim", "_deadline", "_listed", "_outcome", "_watched")

    _claim: None  # There until somebody settles (I1).
    _outcome: Outcome
    _watched: bool  # Whether anything is to be done once there is an outcome.
    _listed: bool  # Whether a callback, or the wheel, is to be told: set before `_watched`.
    _chain: tuple[Link, ...]  # Who waits for this reply.
    _deadline: float  # By `Wheel.now`. NO_DEADLINE where the asker's thread keeps it, too.

    _given_up: bool = False  # Whether a handler waited for it, and does no more.
    _timeout_s: float | None = None  # None: the system's.
    _slot: dict[Any, None] | None = None  # The wheel's slot that holds this target.
    _cancels: bool = False  # Whether the handler ends with the deadline.
    _scope: trio.CancelScope | None = None  # Of the handler that ends with it, while it runs.

    def __init__(self) -> None:
        self._claim = None
        self._outcome = PENDING
        self._watched = False
        self._listed = False
        self._chain = ()
        self._deadline = NO_DEADLINE

    @property
    def settled(self) -> bool:
        """Whether there is an outcome."""
        return self._outcome is not PENDING

    @property
    def over(self) -> bool:
        """Whether no handler waits for it any more. One that has not begun to wait is about to."""
        return self._outcome is not PENDING or self._given_up

    @property
    def error(self) -> BaseException | None:
        """What it failed with; None where there is a value, or no outcome."""
        outcome = self._outcome
        return outcome.error if type(outcome) is Failure else None

    def _settle(self, outcome: Outcome) -> bool:
        """Publish the outcome, from any thread. Return whether it was the first.

        `serving` does the same in place, for the usual ask.
        """
        try:
            del self._claim
        except AttributeError:
            return False
        else:  # Not behind the handler: nothing is to come in between (I1).
            self._outcome = outcome
        if self._watched:
            self._settled()
        return True

    def _settled(self) -> None:
        """Tell whoever waits. Called once, after the outcome was published. Does not raise."""
        slot = self._slot
        if slot is not None:
            slot.pop(self, None)

    def _answer(self, value: Any) -> bool:
        return self._settle(value)

    def _fail(self, error: BaseException) -> bool:
        return self._settle(Failure(error, error.__traceback__))

    def _expire(self, default_s: float | None) -> bool:
        timeout_s = default_s if self._timeout_s is None else self._timeout_s
        return self._fail(
            AskTimeoutError(
                f"no reply within {timeout_s} s; whether it was handled is unknown; "
                "ask again only what may happen twice",
                timeout_s=timeout_s,
            )
        )


class Unasked(Target):
    """The target of a tell whose handler took a reply handle: it only has an end."""


def open_outcome(outcome: Outcome) -> Any:
    """Return the outcome's value, or raise its error with the traceback it was set with."""
    if type(outcome) is Failure:
        raise outcome.error.with_traceback(outcome.traceback)
    return outcome


class _Woken(outcome.Outcome[None]):
    """What wakes a task and brings nothing: one for all, as it can be unwrapped more than once.

    The `Value(None)` that trio makes where it is given none is a third of what a wake costs.
    """

    __slots__ = ()

    def unwrap(self) -> None:
        return None

    def send(self, gen: Generator[T, None, object]) -> T:
        return gen.send(None)

    async def asend(self, agen: AsyncGenerator[T, None]) -> T:
        return await agen.asend(None)


WOKEN: Final = _Woken()


class _TaskWaiter:
    """A trio task that waits for a future."""

    __slots__ = ("callbacks", "ident", "task", "token")

    callbacks: list[Callable[[], object]]
    """Those of the future it waits for, with itself among them."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task: trio.lowlevel.Task | None = task
        self.ident = get_ident()
        self.token = current_trio_token()

    @trio.lowlevel.enable_ki_protection
    def __call__(self) -> None:
        if get_ident() == self.ident:
            # As `wake`, without the call.
            task, self.task = self.task, None
            if task is not None:
                reschedule(task, WOKEN)
            return
        try:
            self.token.run_sync_soon(self.wake)
        except trio.RunFinishedError:
            self.task = None  # The waiting task ended with its run.

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            reschedule(task, WOKEN)

    def withdrawn(self) -> bool:
        """Take it back before its task sleeps; False where the settler has it, and will wake it.

        Calling it here instead would reschedule a task that runs, which ends the whole run.
        """
        try:
            self.callbacks.remove(self)
        except ValueError:
            return False
        return True

    def abort(self, _raise_cancel: object) -> Abort:
        self.task = None
        with suppress(ValueError):  # Settled meanwhile: it is popped already.
            self.callbacks.remove(self)
        return Abort.SUCCEEDED


class TrioFuture(Target, pykka.Future[T]):
    """Hold a value that is available now or later, as `pykka.Future` documents it.

    `get()` blocks a host thread; on a thread that runs trio it raises `WouldDeadlockError` unless
    the value is there. In trio code the future is awaited: a checkpoint; cancelled, the future is
    as it was. Awaited in a program of asyncio, that one's loop goes on meanwhile, and the same
    holds; only there `get()` would hold it up. May be settled from any thread.
    """

    # Defaults of the class: what few futures have is not to be paid for by each.
    _get_hook: Any = None
    _get_hook_result: Any = None
    _hook_lock: Any = None
    _sources: tuple[pykka.Future[Any], ...] = ()
    _asked: tuple[Cell, Any] | None = None  # Who was asked inside a handler, and what.
    _no_result: ClassVar[object] = object()

    # -- settling

    def set(self, value: Any = None) -> None:
        """Set the value.

        Raises:
            FutureSettledError: There is an outcome or a get hook already; it stands.
        """
        if self._get_hook is not None or not self._answer(value):
            raise _settled_already()

    def set_exception(self, exc_info: Any = None) -> None:
        """Set an exception: an `exc_info` triple, or the exception being handled.

        Raises:
            FutureSettledError: There is an outcome or a get hook already; it stands.
        """
        kind, error, traceback = exc_info if exc_info is not None else sys.exc_info()
        if error is None:
            # As pykka's, one that is given nothing is settled all the same, and tells who gets it.
            error = kind() if kind is not None else AssertionError(_NO_EXCEPTION)
        if self._get_hook is not None or not self._settle(Failure(error, traceback)):
            raise _settled_already()

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Set a function that yields the value when it is first asked for.

        In trio code an awaited future runs it in a worker thread, as it may block.

        Raises:
            FutureSettledError: There is an outcome already; it stands.
        """
        if self._get_hook is None:
            try:
                del self._claim  # A reply that comes yet is dropped: the hook stands.
            except AttributeError:
                raise _settled_already() from None
            self._hook_lock = threading.RLock()
            self._get_hook_result = self._no_result
        self._get_hook = func  # What an earlier one yielded stands, as pykka's does.

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, when there is an outcome, on the thread that settles.

        Called at once where there is one. It must not raise and must not block.
        """
        self.__dict__.setdefault("_callbacks", []).append(callback)
        self._listed = self._watched = True
        if self.settled:
            self._settled()

    def _settled(self) -> None:
        # As the base, without the call and its search for what is mostly the class's default.
        state = self.__dict__
        slot = state.get("_slot")
        if slot is not None:
            slot.pop(self, None)
        callbacks = state.get("_callbacks")
        while callbacks:
            try:
                callback = callbacks.pop()
            except IndexError:
                return
            callback()

    # -- getting

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value, or raise the exception. Blocks the calling thread until there is one.

        Args:
            timeout: Seconds to wait, from 0; None, `math.inf` or more than a thread can wait is
                for ever.

        Raises:
            pykka.Timeout: There was no outcome in time.
            ValueError: The timeout is below 0, or no number; nothing was waited for.
            WouldDeadlockError: Called on a thread that runs trio, and there is no outcome.
            AskCycleError: The asked actor waits for the caller; nothing was waited for.
        """
        outcome = self._outcome
        if outcome is PENDING:
            timeout = bounded_or_none("timeout", timeout)
            if self._get_hook is not None:
                return self._get_by_hook(timeout)
            self._block(timeout)
            outcome = self._outcome
        # As `open_outcome`, without the call.
        if type(outcome) is Failure:
            raise outcome.error.with_traceback(outcome.traceback)
        value: T = outcome
        return value

    def _get_by_hook(self, timeout: float | None) -> T:
        with self._hook_lock:
            if self._get_hook_result is self._no_result:
                self._get_hook_result = self._get_hook(timeout)
        return cast("T", self._get_hook_result)

    def _block(self, timeout: float | None) -> None:
        if in_trio_run():
            raise WouldDeadlockError(
                "get() would block a thread that runs trio; nothing was waited for; await it"
            )
        asked = self._asked
        wait = None if asked is None else self._enter(asked)
        try:
            lock = allocate_lock()
            lock.acquire()
            self.on_done(lock.release)
            try:
                if not lock.acquire(timeout=-1 if timeout is None else timeout):
                    raise pykka.Timeout(f"{timeout} seconds")
            except BaseException:
                # Whoever asks again and again would leave a lock behind each time.
                with suppress(ValueError):
                    self.__dict__["_callbacks"].remove(lock.release)
                raise
        finally:
            self._leave(wait)

    def _enter(self, asked: tuple[Cell, Any]) -> Wait | None:
        """Begin to wait inside a handler, or raise AskCycleError."""
        wait = begin(asked[0], self, asked[1])
        self._given_up = False
        return wait

    def _leave(self, wait: Wait | None) -> None:
        if wait is not None:
            wait.end()
            if self._outcome is PENDING:
                self._given_up = True

    def __await__(self) -> Generator[Any, Any, T]:
        if self._get_hook is not None:
            return (yield from self._await_hook().__await__())
        try:
            task: trio.lowlevel.Task | None = current_task()
        except RuntimeError:
            task = None
        if task is None:  # Not in the handler: what is raised there would be shown as its cause.
            return (yield from self._await_elsewhere())
        if self._outcome is PENDING:
            asked = self._asked
            wait = None if asked is None else self._enter(asked)
            try:
                waiter = _TaskWaiter(task)
                alone: list[Callable[[], object]] = [waiter]
                waiter.callbacks = callbacks = self.__dict__.setdefault("_callbacks", alone)
                if callbacks is not alone:
                    callbacks.append(waiter)
                self._listed = self._watched = True
                if self.settled and waiter.withdrawn():
                    yield from checkpoint().__await__()  # noqa: ASYNC105
                else:
                    yield from wait_task_rescheduled(waiter.abort).__await__()  # noqa: ASYNC105
            finally:
                self._leave(wait)
        else:
            yield from checkpoint().__await__()  # noqa: ASYNC105
        # As `open_outcome`, without the call.
        outcome = self._outcome
        if type(outcome) is Failure:
            raise outcome.error.with_traceback(outcome.traceback)
        value: T = outcome
        return value

    __iter__ = __await__

    def _await_elsewhere(self) -> Generator[Any, Any, T]:
        """Wait on asyncio's loop, which goes on; on another in pykka's own way, which blocks."""
        loop = _asyncio_loop()
        if loop is None:
            yield
        elif self._outcome is PENDING:
            done = loop.create_future()

            def settle() -> None:
                if not done.done():
                    done.set_result(None)

            def wake() -> None:
                with suppress(RuntimeError):  # The loop was closed, and nobody waits.
                    loop.call_soon_threadsafe(settle)

            self.on_done(wake)
            try:
                yield from done
            finally:
                with suppress(ValueError):  # Taken back where the wait was cancelled.
                    self.__dict__["_callbacks"].remove(wake)
        return self.get()

    async def _await_hook(self) -> T:
        if not in_trio_run():
            if _asyncio_loop() is None:
                return self.get()
            value: T = await sys.modules["asyncio"].to_thread(self.get)
            return value
        for source in self._sources:
            try:
                await wait_future(source)
            except AskCycleError:
                if isinstance(source, TrioFuture) and not source.settled:
                    raise  # It was not waited for: get() would have nothing to raise.
            except Exception:  # noqa: BLE001, S110 - get() raises it again, in the hook's order.
                pass
        if self._sources or self._get_hook_result is not self._no_result:
            await checkpoint()
            return self.get()
        # Cancelled, the thread is left to the hook: it may block for as long as it likes.
        return await trio.to_thread.run_sync(self.get, abandon_on_cancel=True)

    # -- combining, on pykka's get hooks, with the sources known so that they can be awaited

    def _derived(self, hook: Callable[[float | None], Any], *more: pykka.Future[Any]) -> Any:
        future: TrioFuture[Any] = TrioFuture()
        future.set_get_hook(hook)
        future._sources = (self, *more)
        return future

    def filter(self, func: Callable[[Any], bool]) -> Any:
        """Return a future of the items for which `func(item)` is true."""
        return self._derived(
            lambda timeout: list(filter(func, cast("Any", self.get(timeout=timeout))))
        )

    def join(self, *futures: pykka.Future[Any]) -> Any:
        """Return a future of the list of all results, in order."""
        return self._derived(
            lambda timeout: [future.get(timeout=timeout) for future in (self, *futures)], *futures
        )

    def map(self, func: Callable[[T], M]) -> Any:
        """Return a future of `func(value)`."""
        return self._derived(lambda timeout: func(self.get(timeout=timeout)))

    def reduce(self, func: Callable[[Any, Any], Any], *args: Any) -> Any:
        """Return a future of the items combined from left to right."""
        return self._derived(
            lambda timeout: functools.reduce(
                func, cast("Iterable[Any]", self.get(timeout=timeout)), *args
            )
        )


class AskFuture(TrioFuture[T]):
    """The future of an ask. `ref.ask` makes it, and fills in what an `__init__` would.

    One without: in Python it would be a tenth of what an ask costs its sender.
    """

    __slots__ = ("_asked", "_box", "_task")

    _asked: tuple[Cell, Any] | None
    _box: Mailbox  # Of who is asked: it knows its loop.
    _task: trio.lowlevel.Task | None  # The first that waits (I4).

    __init__ = object.__init__

    def __await__(self) -> Generator[Any, Any, T]:
        # Nearly every ask of a task is awaited at once, by it alone.
        if (
            self._outcome is not PENDING
            or self._task is not None
            or self._asked is not None
            or get_ident() != self._box.ident
            or self._get_hook is not None
        ):
            return (yield from super().__await__())
        try:
            self._task = current_task()
        except RuntimeError:
            return (yield from super().__await__())
        self._watched = True
        if self._outcome is PENDING:
            yield from wait_task_rescheduled(self._abort).__await__()  # noqa: ASYNC105
        else:
            self._task = None
            yield from checkpoint().__await__()  # noqa: ASYNC105
        # As `open_outcome`, without the call.
        outcome = self._outcome
        if type(outcome) is Failure:
            raise outcome.error.with_traceback(outcome.traceback)
        value: T = outcome
        return value

    __iter__ = __await__

    def _abort(self, _raise_cancel: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED

    @trio.lowlevel.enable_ki_protection
    def _settled(self) -> None:
        if get_ident() == self._box.ident:
            # As `_wake`, without the call.
            task, self._task = self._task, None
            if task is not None:
                reschedule(task, WOKEN)
        elif self._task is not None:
            # Where its run has ended, so has the task.
            with suppress(trio.RunFinishedError):
                self._box._token.run_sync_soon(self._wake)
        if self._listed:
            super()._settled()

    @trio.lowlevel.enable_ki_protection
    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            reschedule(task, WOKEN)


async def wait_future(future: pykka.Future[Any]) -> Any:
    """Await any pykka future: in a worker thread where it is not one of ours. A checkpoint."""
    if isinstance(future, TrioFuture):
        return await future
    return await trio.to_thread.run_sync(future.get, abandon_on_cancel=True)


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of asyncio that runs on this thread. Nothing is imported for it."""
    module = sys.modules.get("asyncio")
    return None if module is None else module._get_running_loop()


_NO_EXCEPTION: Final = (
    "set_exception() was called without an exception, outside an except block; "
    "the future keeps this in its place; give it one"
)


def _settled_already() -> FutureSettledError:
    return FutureSettledError(
        "the future is settled already; it keeps what it has; make a new one for a new value"
    )
