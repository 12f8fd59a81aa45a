"""Items of runs, one at a time: recorded as started, executed or joined, recorded as they ended.

Invariants:
    I1  A function runs only after its item is recorded as started, and what it returned is given to
        the workflow only after it is recorded as done.
    I2  The k-th item a workflow asks for is the k-th that is recorded. Where another id stands
        there nothing is executed, and the run waits for an operator; so it does where a workflow
        returns and did not ask for all of them.
    I3  An item that was started and not done when its life ended is in doubt; its policy decides:
        run it again, ask a reconcile function, or wait for an operator. A thread of this process
        that still runs for it is joined instead; an agent's turn always is.
    I4  What was cut off by a stop or a quiesce is no outcome: the row stands, and a later life of
        the run goes on from it.

Runs in: the task of the run's life.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import trio
from msgspec.structs import replace

from abeyance.actors.core.asks import in_role
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row
from abeyance.storage.tables.runs import RunItem, Suspension

from .errors import QuiescedError, RunInterruptedError, RuntimeClosedError
from .foreign import failure_of, parted, told
from .run_errors import InvalidRunError, RunEndedError, StepFailedError
from .run_life import Life
from .run_rows import bounded, item_guard, item_of, item_put, not_kept, pack_plain, unpacked
from .run_steps import DidNotHappen, Happened, InDoubt, StepContext
from .run_steps import context as step_of
from .run_turns import Answered, Asked, Elsewhere, Holds, Unreachable
from .run_walls import Begun, Where, held_by, suspend, wall_of

PASSING_S: Final = 10.0
"""How long what ends the host is held up for the record of it."""

declare("run.after_started", "a run's item is recorded as started and has not run")
declare("run.after_body", "a run's item returned and its result is not recorded")
declare("run.after_done", "a run's item is recorded as done and its workflow does not know")


class Item(NamedTuple):
    """What a workflow asks for: by its place among the items, and its id with its steps'."""

    ordinal: int
    path: str
    place: int | None
    total: int | None
    """The how manieth item of its step it is, of how many, where the workflow said so."""
    agent: str | None = None
    """Whose turn it is, where it is one."""
    is_session: bool = False

    def __str__(self) -> str:
        if self.is_session:
            return f"{self.path!r}, a session"
        turn = "" if self.agent is None else f", a turn of {self.agent!r}"
        return f"{self.path!r}{turn}"


class Ended(NamedTuple):
    """What an item came to in an earlier life."""

    value: Any


class Items:
    """The items of one life of a run."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def do(self, item: Item, function: Callable[[], Any], in_doubt: InDoubt) -> Any:
        """See `RunContext.do`."""
        row, ended = await self._recorded(item)
        if ended is not None:
            return ended.value
        if row is None or row.record.state == "blocked":
            return await self._run(item, row, function)
        if self._life.threads.find(self._life.run, item.ordinal) is not None:
            # The thread that an earlier life of this process left behind: what it comes to counts.
            return await self._execute(item, row, function)
        return await self._settle_doubt(item, row, function, in_doubt)

    async def ask(self, item: Item, asked: Asked) -> Any:
        """See `RunContext.ask`."""
        life = self._life
        row, ended = await self._recorded(item)
        if ended is not None:
            return ended.value
        if row is None or row.record.state == "blocked":
            row = await self._start(item, row)
        try:
            # Nothing of the turn is this life's to bring to its end: it may be put down at once.
            life.quiet.set()
            life.place.give_back()
            answer = await life.agents.answer(asked)
        except UnreadableRecordError as error:
            await self._recover(f"the turn of {item.path!r} cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - what a message is refused by is its item's end.
            return await self._failed(item, row, error)
        except trio.Cancelled:
            life.note_cut_off(item.ordinal, row)
            raise
        finally:
            life.make_busy()
        life.check_goes_on()
        match answer:
            case Answered(text):
                return await self._finish(item, row, text)
            case Holds():
                wait = held_by(answer, life, self._where(item))
                await self._block(item, row, wait)
            case Elsewhere(why):
                await life.hand_over(asked.agent, f"{item} cannot go on here: {why}")
            case Unreachable(why):
                await self._recover(f"{item} cannot go on: {why}")
        return await self._failed(item, row, answer)

    async def _recorded(self, item: Item) -> tuple[Row | None, Ended | None]:
        """An item's row, and what it came to where it has ended (I2)."""
        life = self._life
        await self.settle_cut_off()
        try:
            row = item_of(life.store, life.run, item.ordinal)
        except UnreadableRecordError as error:
            await self._recover(f"what was recorded of {item.path!r} cannot be read: {error}")
        if row is None:
            return None, None
        known: RunItem = row.record
        recorded = item._replace(
            path=known.path, agent=known.agent, is_session=known.session is not None
        )
        if recorded != item:
            await self._recover(
                f"item {item.ordinal} is recorded as {recorded}, and the workflow asks for {item}"
            )
        if known.state == "failed":
            raise StepFailedError(
                f"step {item.path!r} of {life.run} failed in an earlier life: {known.error}; it "
                "was not run again",
                path=item.path,
                error=known.error,
            )
        if known.state != "done":
            return row, None
        try:
            return row, Ended(unpacked(known.result))
        except ValueError as error:
            await self._recover(f"what {item.path!r} returned cannot be read: {error}")

    async def check_whole(self) -> None:
        """Once the workflow has returned: that it asked for every item that is recorded (I2).

        A checkpoint where it did not: the run waits for an operator, and this does not return.
        """
        life, asked = self._life, self._life.asked
        await self.settle_cut_off()
        try:
            row = item_of(life.store, life.run, asked)
        except UnreadableRecordError as error:
            await self._recover(f"what was recorded of item {asked} cannot be read: {error}")
        if row is not None:
            known: RunItem = row.record
            await self._recover(
                f"item {asked} is recorded as {known.path!r} ({known.state}), and the workflow "
                "returned without asking for it"
            )

    async def _settle_doubt(
        self, item: Item, row: Row, function: Callable[[], Any], in_doubt: InDoubt
    ) -> Any:
        if in_doubt == "retry":
            return await self._run(item, row, function)
        if callable(in_doubt):
            context = StepContext(str(self._life.run), item.path, item.ordinal, row.record.attempts)
            try:
                found = in_doubt(context)
                if inspect.isawaitable(found):
                    found = await found
            except BaseException as error:  # noqa: BLE001 - what cannot be found out is unknown.
                await self._recover(
                    f"{item.path!r} was begun and its end is not recorded, and asking what became "
                    f"of it failed: {told(failure_of(error))}",
                    item.ordinal,
                )
            if isinstance(found, Happened):
                return await self._finish(item, row, found.result)
            if found is DidNotHappen or isinstance(found, DidNotHappen):
                return await self._run(item, row, function)
        what = "was begun and its end is not recorded"
        if row.record.state == "cut_off":
            what = "was cut off by its workflow, which did not wait for its end"
        return await self._recover(
            f"{item.path!r} {what}: it may have had its effect", item.ordinal
        )

    async def _run(self, item: Item, row: Row | None, function: Callable[[], Any]) -> Any:
        row = await self._start(item, row)
        return await self._execute(item, row, function)

    async def _start(self, item: Item, row: Row | None) -> Row:
        """Record an item as started."""
        life = self._life
        started = RunItem(
            path=item.path,
            state="started",
            attempts=1 if row is None else row.record.attempts + 1,
            place=item.place,
            total=item.total,
            agent=item.agent,
            session="opening" if item.is_session else None,
            started_ms=life.clock.now_ms(),
        )
        if not await self._write(item, row, started):
            await self._lose()
        crashpoint("run.after_started")
        life.check_goes_on()
        return Row(1 if row is None else row.counter + 1, started)

    async def _execute(self, item: Item, row: Row, function: Callable[[], Any]) -> Any:
        """Call the function of an item that is recorded as started, and record what it came to."""
        context = StepContext(str(self._life.run), item.path, item.ordinal, row.record.attempts)
        try:
            value = await self._call(context, function)
        except BaseException as error:
            failure, passing = parted(error)
            if failure is None:
                self._life.note_cut_off(item.ordinal, row)
            elif isinstance(failure, RunEndedError):
                raise
            elif passing is None:
                return await self._failed(item, row, failure)
            else:
                await self._record_ahead(item, row, failure)
            assert passing is not None
            raise passing  # noqa: B904 - as it came, or what of its group is to pass on.
        crashpoint("run.after_body")
        return await self._finish(item, row, value)

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

    # -- what it came to

    async def _finish(self, item: Item, row: Row, value: Any) -> Any:
        try:
            packed = pack_plain(value, "result")
        except InvalidRunError as error:
            # It had its effect, so it is not run again; what it returned cannot be kept.
            return await self._failed(item, row, not_kept(error))
        now_ms = self._life.clock.now_ms()
        done = replace(row.record, state="done", result=packed, ended_ms=now_ms)
        if not await self._write(item, row, done):
            await self._lose()
        crashpoint("run.after_done")
        return unpacked(packed)

    async def _failed(self, item: Item, row: Row, failure: BaseException) -> Any:
        life = self._life
        if life.is_put_down:
            # What it raised as it was cut off is no outcome: it stays in doubt.
            await life.park()
        if isinstance(failure, RunInterruptedError):
            # The runtime stops, or the host was quiesced: what it did before that is in doubt.
            await life.lay_down()
        if isinstance(failure, QuiescedError | RuntimeClosedError):
            # Refused before anything was done: it is run when a host serves again.
            if not await self._write(item, row, replace(row.record, state="blocked")):
                await self._lose()
            await life.lay_down()
        begun = Begun(row.record.started_ms, row.record.attempts)
        suspension = wall_of(failure, life, self._where(item), begun)
        if suspension is not None:
            await self._block(item, row, suspension)
        text = bounded(told(failure))
        failed = replace(row.record, state="failed", error=text, ended_ms=life.clock.now_ms())
        if not await self._write(item, row, failed):
            await self._lose()
        raise StepFailedError(
            f"step {item.path!r} of {life.run} failed: {text}; it is not run again",
            path=item.path,
            error=text,
        ) from failure

    async def _record_ahead(self, item: Item, row: Row, failure: BaseException) -> None:
        """Record what an item failed by ahead of its passing on, which ends the host: the next one
        is not to run into it again. Bounded; shielded."""
        life = self._life
        text = bounded(told(failure))
        failed = replace(row.record, state="failed", error=text, ended_ms=life.clock.now_ms())
        with trio.move_on_after(PASSING_S, shield=True):
            if not life.is_over():
                await self._write(item, row, failed)

    async def settle_cut_off(self) -> None:
        """Record which items the workflow gave up: it has gone on since."""
        life = self._life
        while life.cut_off:
            ordinal, row = life.cut_off[0]
            gone = replace(row.record, state="cut_off", ended_ms=life.clock.now_ms())
            if not await life.commit_item(ordinal, row, gone):
                await self._lose()
            del life.cut_off[0]

    def _where(self, item: Item) -> Where:
        phase: Any = "session" if item.is_session else "final" if self._life.is_final else "item"
        return Where(item.path, item.ordinal, item.place, item.total, phase)

    async def _block(self, item: Item, row: Row, suspension: Suspension) -> NoReturn:
        """Suspend the run at an item, which is run again."""
        life = self._life
        blocked = replace(
            row.record, state="blocked", error=suspension.failure, ended_ms=life.clock.now_ms()
        )
        await suspend(
            life,
            suspension,
            (item_guard(life.run, item.ordinal, row),),
            (item_put(life.run, item.ordinal, blocked),),
        )
        await life.park()

    async def _recover(self, why: str, doubt: int | None = None) -> NoReturn:
        """Wait for an operator: nothing of this run goes on by itself.

        Args:
            doubt: The item whose policy leaves it to an operator.
        """
        life = self._life
        record = replace(
            life.record,
            state="recovery_required",
            reason=bounded(why),
            doubt=doubt,
            changed_ms=life.clock.now_ms(),
        )
        if not await life.move(record, "runtime"):
            await self._lose()
        life.end("recovery_required")
        await life.park()

    async def _lose(self) -> NoReturn:
        """Another has the run, or an operator ended it: nothing of this life counts any more."""
        self._life.end("lost")
        await self._life.park()

    async def _write(self, item: Item, row: Row | None, record: RunItem) -> bool:
        return await self._life.commit_item(item.ordinal, row, record)


def _is_async(function: Callable[[], Any]) -> bool:
    inner = function.func if isinstance(function, partial) else function
    inner = inspect.unwrap(inner)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - asks what it is, not whether it is there.
    )
