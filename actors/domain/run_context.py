"""What a workflow is handed: steps that are executed once, and recorded.

Invariants:
    I1  A function runs only after its item is recorded as started, and what it returned is given to
        the workflow only after it is recorded as done.
    I2  The k-th item a workflow asks for is the k-th that is recorded. Where another id stands
        there nothing is executed, and the run waits for an operator.
    I3  An item that was started and not done when its process died is in doubt; its policy decides:
        run it again, ask a reconcile function, or wait for an operator.
    I4  Exhausted capacity is recorded, with where the run stands, before the workflow unwinds.
    I5  A life that was taken over, suspended or cancelled starts and records nothing any more.

Runs in: the task of the run's life.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import trio
from msgspec.structs import replace

from abeyance.actors.core.asks import in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.providers.capacity import (
    capacity_error_of,
    errors_within,
    exhaustion_of,
)
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Committed, Guard, Put, Refused, Request, Row, Store
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.runs import Choice, Run, RunItem, Suspension

from .errors import CallDeferredError, RunExhaustedError
from .fallback import ModelChoice
from .foreign import failure_of, told
from .ingress import clean_text
from .mode import HostMode
from .persistence import until_stored
from .run_errors import InvalidRunError, RunEndedError, StepFailedError, run_ended
from .run_rows import (
    RunId,
    bounded,
    change,
    check_path,
    check_step_id,
    item_guard,
    item_of,
    item_put,
    pack_plain,
    resume_after,
    suspended,
    unpacked,
)

declare("run.after_started", "a run's item is recorded as started and has not run")
declare("run.after_body", "a run's item returned and its result is not recorded")
declare("run.after_done", "a run's item is recorded as done and its workflow does not know")
declare("run.after_suspended", "a run is recorded as suspended and its workflow still runs")

THREADS: Final = 16
SUSPEND_MAX_S: Final = 60.0
"""How long a suspension is offered to a store that refuses it; then the run has failed."""


class StepContext(NamedTuple):
    """Which item a function runs for. `key` is the same whenever it is run again."""

    run: str
    path: str
    ordinal: int
    attempt: int

    @property
    def key(self) -> str:
        """The idempotency key to hand to whoever has the effect."""
        return f"{self.run}/{self.ordinal}"


Reconcile: TypeAlias = "Callable[[StepContext], Any | Awaitable[Any]]"
"""Told which item is in doubt; returns `Happened(result)`, `DidNotHappen`, or None: still unknown.
"""
InDoubt: TypeAlias = Literal["recover", "retry"] | Reconcile


class Happened(NamedTuple):
    """The item had its effect before the process died; this is its result."""

    result: Any = None


class DidNotHappen:
    """The item had no effect; it is run again. The class itself stands for it."""


_context: ContextVar[StepContext | None] = ContextVar("abeyance_step", default=None)


def step_context() -> StepContext:
    """The item this code runs for, in its function or a thread it started with its context.

    Raises:
        LookupError: Not inside an item's function.
    """
    found = _context.get()
    if found is None:
        raise LookupError("no step runs here; call this from the function of one")
    return found


class Outcome(NamedTuple):
    """What a life came to: the state its run is in now."""

    state: str


class Life:
    """One life of a run: what its items are guarded by, and whether it goes on."""

    def __init__(
        self,
        run: RunId,
        row: Row,
        owner: Guard,
        store: Store,
        journal: Any,
        clock: Clock,
        buffer_ms: int,
        limiter: trio.CapacityLimiter,
        mode: HostMode,
    ) -> None:
        self.run = run
        self.row = row
        self.owner = owner
        self.store = store
        self.journal = journal
        self.clock = clock
        self.buffer_ms = buffer_ms
        self.limiter = limiter
        self._mode = mode
        self.scope = trio.CancelScope()
        self.quiet = trio.Event()
        """Set while no item is between its start and what it came to, both recorded."""
        self.quiet.set()
        self._stopping = False
        self.outcome: Outcome | None = None
        """Set once this life is over; whatever of it still runs starts nothing more."""
        self.failure: str | None = None

    @property
    def record(self) -> Run:
        record: Run = self.row.record
        return record

    @property
    def stopping(self) -> bool:
        """Whether no item is to be begun: the runtime stops, or the host is quiesced."""
        return self._stopping or self._mode.is_quiesced

    def put_down(self) -> None:
        """Begin nothing more. The row says that the run is live, and somebody takes it up later."""
        self._stopping = True
        if self.quiet.is_set():
            self.scope.cancel()

    @property
    def is_put_down(self) -> bool:
        """Whether this life was cut off and its run goes on in another."""
        return self.outcome is None and self.scope.cancel_called

    def check_goes_on(self) -> None:
        if self.outcome is not None:
            raise run_ended(str(self.run))

    def end(self, state: str) -> None:
        """This life is over: cut its workflow off, wherever it is."""
        if self.outcome is None:
            self.outcome = Outcome(state)
        self.scope.cancel()

    def fail(self, reason: str) -> None:
        """This life is over and its run has failed, which is still to be recorded."""
        self.failure = reason
        self.end("failed")

    async def park(self) -> Any:
        """Wait for the cancellation that ends this life."""
        self.quiet.set()
        await trio.sleep_forever()

    async def commit(self, request: Request) -> bool:
        """Ask for a commit until it has an outcome; False where a guard refused it."""
        outcome = await until_stored(lambda: self.journal.ask(request))
        if isinstance(outcome, Refused):
            return False
        assert isinstance(outcome, Committed)
        return True

    async def move(
        self, record: Run, by: str, *, guards: tuple[Guard, ...] = (), puts: tuple[Put, ...] = ()
    ) -> bool:
        """Change the run's row; False where this life is not the one that may."""
        request = change(self.run, self.row, record, by, owner=self.owner, guards=guards, puts=puts)
        if not await self.commit(request):
            return False
        self.row = Row(self.row.counter + 1, record)
        return True


class RunContext:
    """What a workflow's function gets first. One task at a time uses it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._next = 0
        self._stack: list[str] = []
        self._totals: list[int | None] = []
        self._busy: str | None = None

    @property
    def id(self) -> str:
        """The run's id: its key, an `@`, and the how manieth of that key it is."""
        return str(self._life.run)

    @property
    def key(self) -> str:
        return self._life.run.key

    @property
    def choice(self) -> ModelChoice | None:
        """The model that an operator chose to go on with, where one did."""
        chosen: Choice | None = self._life.record.choice
        return None if chosen is None else ModelChoice(chosen.provider, chosen.model)

    @contextmanager
    def step(self, id: str, *, total: int | None = None) -> Iterator[None]:  # noqa: A002
        """Name a step whose items follow: `with run.step("publish", total=5):`.

        Not a checkpoint; records nothing by itself.

        Args:
            id: 1 to 128 bytes, without a slash.
            total: How many items it has, where that is known; for whoever looks.
        Raises:
            InvalidRunError, InvalidNameError: The id or the total is malformed.
        """
        name = check_step_id(id)
        whole = isinstance(total, int) and not isinstance(total, bool)
        if total is not None and not (whole and 0 <= total < 2**63):
            raise InvalidRunError("total", "must be a whole number from 0, or None")
        self._stack.append(name)
        self._totals.append(total)
        try:
            yield
        finally:
            self._stack.pop()
            self._totals.pop()

    async def do(
        self,
        id: str,  # noqa: A002
        function: Callable[..., Any],
        *args: Any,
        in_doubt: InDoubt = "recover",
        **kwargs: Any,
    ) -> Any:
        """Run a function once, and return what it returned; in later lives without running it.

        A checkpoint. Cancelled: the function is; whether it had its effect is then in doubt.
        Durable: on return. What is returned is what is recorded: plain data, so that a tuple is a
        list and a date is text, in the first life as in the later ones.

        Args:
            id: 1 to 128 bytes, without a slash; the same in every life.
            function: Async, or sync (it runs in a thread). `step_context().key` in it is an
                idempotency key that no other item has.
            args, kwargs: Its arguments.
            in_doubt: What becomes of it where the process died while it ran: `retry` runs it again
                (for what is idempotent), a function is asked, `recover` waits for an operator.
        Raises:
            StepFailedError: It raised, now or in an earlier life.
            InvalidRunError, InvalidNameError: An argument is malformed; nothing was done.
            RunEndedError: This life of the run is over.
        """
        path = check_path("/".join((*self._stack, check_step_id(id))))
        if not callable(function):
            raise InvalidRunError("function", "must be a function")
        if in_doubt not in ("recover", "retry") and not callable(in_doubt):
            raise InvalidRunError("in_doubt", "must be 'recover', 'retry' or a function")
        if self._busy is not None:
            raise InvalidRunError(
                "id", f"{path!r} was asked for while {self._busy!r} runs: items are one at a time"
            )
        life = self._life
        self._busy = path
        try:
            await trio.lowlevel.checkpoint()
            life.check_goes_on()
            if life.stopping:
                life.scope.cancel()
                return await life.park()
            life.quiet = trio.Event()
            return await self._do(path, partial(function, *args, **kwargs), in_doubt)
        finally:
            self._busy = None
            life.quiet.set()

    async def _do(self, path: str, function: Callable[[], Any], in_doubt: InDoubt) -> Any:
        life = self._life
        ordinal, self._next = self._next, self._next + 1
        try:
            row = item_of(life.store, life.run, ordinal)
        except UnreadableRecordError as error:
            return await self._recover(f"what was recorded of {path!r} cannot be read: {error}")
        if row is None:
            return await self._run(path, ordinal, None, function)
        item: RunItem = row.record
        if item.path != path:
            return await self._recover(
                f"item {ordinal} is recorded as {item.path!r}, and the workflow asks for {path!r}"
            )
        match item.state:
            case "done":
                return unpacked(item.result)
            case "failed":
                raise StepFailedError(
                    f"step {path!r} of {self.id} failed in an earlier life: {item.error}; it was "
                    "not run again",
                    path=path,
                    error=item.error,
                )
            case "blocked":
                return await self._run(path, ordinal, row, function)
        return await self._settle_doubt(path, ordinal, row, function, in_doubt)

    async def _settle_doubt(
        self, path: str, ordinal: int, row: Row, function: Callable[[], Any], in_doubt: InDoubt
    ) -> Any:
        if in_doubt == "retry":
            return await self._run(path, ordinal, row, function)
        if callable(in_doubt):
            item: RunItem = row.record
            context = StepContext(self.id, path, ordinal, item.attempts)
            try:
                found = in_doubt(context)
                if inspect.isawaitable(found):
                    found = await found
            except BaseException as error:  # noqa: BLE001 - what cannot be found out is unknown.
                return await self._recover(
                    f"{path!r} was running when its process died, and asking what became of it "
                    f"failed: {told(failure_of(error))}"
                )
            if isinstance(found, Happened):
                return await self._finish(path, ordinal, row, found.result)
            if found is DidNotHappen or isinstance(found, DidNotHappen):
                return await self._run(path, ordinal, row, function)
        return await self._recover(
            f"{path!r} was running when its process died, and may have had its effect"
        )

    async def _run(
        self, path: str, ordinal: int, row: Row | None, function: Callable[[], Any]
    ) -> Any:
        life = self._life
        attempts = 1 if row is None else row.record.attempts + 1
        started = RunItem(
            path=path, state="started", attempts=attempts, started_ms=life.clock.now_ms()
        )
        if not await self._write(ordinal, row, started):
            return await self._lose()
        row = Row(1 if row is None else row.counter + 1, started)
        crashpoint("run.after_started")
        life.check_goes_on()
        context = StepContext(self.id, path, ordinal, attempts)
        try:
            value = await self._call(context, function)
        except BaseException as error:
            failure = failure_of(error)
            if isinstance(failure, RunEndedError):
                raise
            return await self._failed(path, ordinal, row, failure)
        crashpoint("run.after_body")
        return await self._finish(path, ordinal, row, value)

    async def _call(self, context: StepContext, function: Callable[[], Any]) -> Any:
        token = _context.set(context)
        try:
            # The host's code: the table of asks is for the runtime's own actors.
            with in_role(None):
                if _is_async(function):
                    return await function()
                # In a tuple: trio takes a coroutine that comes out of a thread for a mistake.
                (value,) = await trio.to_thread.run_sync(
                    lambda: (function(),),
                    limiter=self._life.limiter,
                    thread_name=f"step {context.path}",
                    abandon_on_cancel=True,
                )
                return await value if inspect.isawaitable(value) else value
        finally:
            _context.reset(token)

    async def _finish(self, path: str, ordinal: int, row: Row, value: Any) -> Any:
        item: RunItem = row.record
        now_ms = self._life.clock.now_ms()
        try:
            packed = pack_plain(value, "result")
        except InvalidRunError as error:
            # It had its effect, so it is not run again; what it returned cannot be kept.
            return await self._failed(path, ordinal, row, error)
        done = replace(item, state="done", result=packed, ended_ms=now_ms)
        if not await self._write(ordinal, row, done):
            return await self._lose()
        crashpoint("run.after_done")
        return unpacked(packed)

    async def _failed(self, path: str, ordinal: int, row: Row, failure: BaseException) -> Any:
        life = self._life
        if life.is_put_down:
            # What it raised as it was cut off is no outcome: it stays in doubt.
            return await life.park()
        item: RunItem = row.record
        now_ms = life.clock.now_ms()
        suspension = wall_of(failure, life, path, ordinal, self._total())
        if suspension is not None:
            blocked = replace(item, state="blocked", error=suspension.failure, ended_ms=now_ms)
            return await self._suspend(
                suspension,
                (item_guard(life.run, ordinal, row),),
                (item_put(life.run, ordinal, blocked),),
            )
        text = bounded(told(failure))
        failed = replace(item, state="failed", error=text, ended_ms=now_ms)
        if not await self._write(ordinal, row, failed):
            return await self._lose()
        raise StepFailedError(
            f"step {path!r} of {self.id} failed: {text}; it is not run again",
            path=path,
            error=text,
        ) from failure

    def _total(self) -> int | None:
        return next((total for total in reversed(self._totals) if total is not None), None)

    async def _suspend(
        self, suspension: Suspension, guards: tuple[Guard, ...], puts: tuple[Put, ...]
    ) -> Any:
        await suspend(self._life, suspension, guards, puts)
        return await self._life.park()

    async def _recover(self, why: str) -> Any:
        """Wait for an operator: nothing of this run goes on by itself."""
        life = self._life
        record = replace(
            life.record,
            state="recovery_required",
            reason=bounded(why),
            changed_ms=life.clock.now_ms(),
        )
        if not await life.move(record, "runtime"):
            return await self._lose()
        life.end("recovery_required")
        return await life.park()

    async def _lose(self) -> Any:
        """Another has the run, or an operator ended it: nothing of this life counts any more."""
        self._life.end("lost")
        return await self._life.park()

    async def _write(self, ordinal: int, row: Row | None, item: RunItem) -> bool:
        """Record an item under this life's guards; its own row's among them."""
        life = self._life
        return await life.commit(
            Request(
                guards=(
                    life.owner,
                    Guard("runs", life.run.row, life.row.counter),
                    item_guard(life.run, ordinal, row),
                ),
                puts=(item_put(life.run, ordinal, item),),
            )
        )


async def suspend(
    life: Life,
    suspension: Suspension,
    guards: tuple[Guard, ...] = (),
    puts: tuple[Put, ...] = (),
) -> None:
    """Record that a run waits for capacity, and end its life. One that cannot be recorded failed.

    A checkpoint. Durable: on return, where the life's outcome is the waiting state.
    """
    now_ms = life.clock.now_ms()
    record = suspended(life.record, suspension, now_ms)
    moved = None
    with trio.move_on_after(SUSPEND_MAX_S):
        moved = await life.move(record, "runtime", guards=guards, puts=puts)
    if moved:
        crashpoint("run.after_suspended")
        life.end(record.state)
    elif moved is None and (row := life.store.get("runs", life.run.row)) and row.record == record:
        # The last of the asks was stored as the time ran out.
        life.end(record.state)
    elif moved is None:
        life.fail(
            f"it met exhausted capacity ({suspension.failure}), and that could not be recorded "
            f"within {SUSPEND_MAX_S:.0f} s"
        )
    else:
        life.end("lost")


def named(text: str | None) -> str | None:
    """A name as a row holds it: a host makes the fact, and nothing has looked at it yet."""
    return clean_text(text, NAME_BYTES_MAX) or None if text else None


def _is_async(function: Callable[[], Any]) -> bool:
    inner = function.func if isinstance(function, partial) else function
    inner = inspect.unwrap(inner)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - asks what it is, not whether it is there.
    )


def wall_of(
    error: BaseException, life: Life, path: str, ordinal: int, total: int | None
) -> Suspension | None:
    """What a failure says about capacity, as the record of a suspension; None where it is another.

    Understood are a chain that is out, a provider's quota, and the wait that ended an ephemeral
    run; alone, in groups and behind causes.
    """
    now_ms = life.clock.now_ms()
    common: dict[str, Any] = {
        "path": path,
        "ordinal": ordinal,
        "total": total,
        "attempt": life.record.walls + 1,
        "since_ms": now_ms,
        "failure": bounded(told(error)),
    }
    exhausted = capacity_error_of(error)
    if exhausted is not None:
        first = exhausted.first
        return Suspension(
            provider=named(first.provider),
            model=named(first.model),
            window=named(first.window),
            retry_at_ms=exhausted.retry_at_ms,
            resume_after_ms=resume_after(exhausted.retry_at_ms, life.buffer_ms),
            told_by=first.told_by,
            **common,
        )
    # A call that was refused unmade has the same instant, from the record that refused it.
    ended = next(
        (e for e in errors_within(error) if isinstance(e, RunExhaustedError | CallDeferredError)),
        None,
    )
    if ended is not None:
        # Stated to the millisecond, and the gate asks again: no boundary to stay clear of.
        quota = ended.cause == "quota"
        return Suspension(
            model=named(ended.model),
            retry_at_ms=ended.deadline_ms,
            resume_after_ms=resume_after(ended.deadline_ms, life.buffer_ms if quota else 0),
            told_by=None if ended.deadline_ms is None else "wait",
            **common,
        )
    fact = exhaustion_of(error, provider="provider", model="model", now_ms=now_ms)
    if fact is None or fact.missing:
        return None
    return Suspension(
        window=named(fact.window),
        retry_at_ms=fact.retry_at_ms,
        resume_after_ms=resume_after(fact.retry_at_ms, life.buffer_ms),
        told_by=fact.told_by,
        **common,
    )
