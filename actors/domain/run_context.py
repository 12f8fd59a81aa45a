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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio
from msgspec.structs import replace

from abeyance.actors.core.asks import in_role
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Guard, Put, Request, Row
from abeyance.storage.tables.runs import Choice, RunItem, Suspension

from .fallback import ModelChoice
from .foreign import failure_of, told
from .run_errors import InvalidRunError, RunEndedError, StepFailedError
from .run_life import Life
from .run_rows import (
    bounded,
    check_path,
    check_step_id,
    item_guard,
    item_of,
    item_put,
    pack_plain,
    unpacked,
)
from .run_steps import DidNotHappen, Happened, InDoubt, StepContext
from .run_steps import context as step_of
from .run_walls import suspend, wall_of

declare("run.after_started", "a run's item is recorded as started and has not run")
declare("run.after_body", "a run's item returned and its result is not recorded")
declare("run.after_done", "a run's item is recorded as done and its workflow does not know")


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
        if self._life.threads.find(self._life.run, ordinal) is not None:
            # The thread that an earlier life of this process left behind: what it comes to counts.
            return await self._execute(path, ordinal, row, function)
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
        return await self._execute(path, ordinal, row, function)

    async def _execute(self, path: str, ordinal: int, row: Row, function: Callable[[], Any]) -> Any:
        """Call the function of an item that is recorded as started, and record what it came to."""
        context = StepContext(self.id, path, ordinal, row.record.attempts)
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
        life, token = self._life, step_of.set(context)
        try:
            # The host's code: the table of asks is for the runtime's own actors.
            with in_role(None):
                if _is_async(function) and life.threads.find(life.run, context.ordinal) is None:
                    return await function()
                value = await life.threads.call(
                    life.run, context.ordinal, function, f"step {context.path}"
                )
                return await value if inspect.isawaitable(value) else value
        finally:
            step_of.reset(token)

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


def _is_async(function: Callable[[], Any]) -> bool:
    inner = function.func if isinstance(function, partial) else function
    inner = inspect.unwrap(inner)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - asks what it is, not whether it is there.
    )
