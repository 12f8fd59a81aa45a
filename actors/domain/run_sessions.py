"""Native sessions in runs: conversations that a provider keeps, opened once and resumed by handle.

Invariants:
    I1  A session's handle is recorded before anything is said in it, and a later life resumes that
        session or executes nothing: where it is lost, or has no handle, the run waits for an
        operator. Another is opened in its place only by an operator's decision.
    I2  A wall is recorded, with the handle, before what stands for the session here is closed.
    I3  Opening is no effect: where the process died in it, a session is opened again, and the one
        that may be there already is nobody's.
    I4  Each request has a permit of its own, and none while the account is known to be out.

Runs in: the task of the run's life.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NoReturn

import trio
from msgspec.structs import replace

from abeyance.actors.core.logs import Log
from abeyance.actors.providers.capacity import (
    CapacityExhaustedError,
    Exhaustion,
    errors_within,
    exhaustion_of,
)
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    ProviderError,
    permitted,
)
from abeyance.actors.providers.sessions import NativeSession, SessionLostError, SessionProvider
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Row
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.runs import RunItem

from .foreign import failure_of, reply_of, told
from .run_errors import InvalidRunError
from .run_items import Item, Items
from .run_life import Life
from .run_rows import bounded, item_guard, item_put, pack_plain, unpacked
from .run_steps import context as step_of
from .run_walls import suspend, wall_of
from .spending import Outcome, Spender
from .streaming import unshown
from .usage_book import AccountUsage

declare("run.after_session", "a run's session is open and recorded, and nothing was said in it")

CLOSE_S: Final = 10.0
"""How long what stands for a session here may take to close."""
_ids: Final = itertools.count(1)
_logger = Log(__name__)


class RunSession:
    """A provider's conversation, for the functions of a run's items."""

    def __init__(
        self,
        life: Life,
        name: str,
        account: AccountUsage,
        handle: str | None,
        provider: object = None,
    ) -> None:
        self._life = life
        self._name = name
        self._account = account
        self._provider = provider
        self._native: NativeSession | None = None
        self.handle = handle
        """What resumes it; None: nothing does."""

    async def send(self, request: ModelRequest) -> ModelReply:
        """Say something in the conversation, in the function of an item, and return the reply.

        A checkpoint. Cancelled: whether the provider heard it is unknown. Durable: what the
        function returns, as of any item.

        Args:
            request: Its messages are what is new; the provider has the others.
        Raises:
            CapacityExhaustedError: The account is out, as its last usage reading says (then nothing
                was sent) or the provider did. Let it pass: the run waits.
            SessionLostError: The conversation is gone. Let it pass: the run waits for an operator.
            ProviderError: As `Provider.call`.
            InvalidRunError: Not in the function of an item, or the session is closed.
        """
        step, life = step_of.get(), self._life
        if step is None or step.run != str(life.run):
            raise InvalidRunError("session", "is spoken in by the functions of its run's items")
        if self._native is None:
            raise InvalidRunError("session", "is closed; nothing was sent")
        life.check_goes_on()
        book, credential = self._account
        spent = None if credential is None else book.spent(credential, request.model)
        if spent is not None:
            fact = Exhaustion(
                provider=self._name,
                model=request.model,
                window=spent.window,
                retry_at_ms=spent.until_ms,
                told_by="windows",
            )
            raise CapacityExhaustedError((fact,))
        spender = await self._spender_of(life)
        used_up = spender.states(request.model)
        if used_up is not None:
            until_ms, why = used_up
            fact = Exhaustion(
                provider=self._name,
                model=request.model,
                window=why[:NAME_BYTES_MAX],
                retry_at_ms=until_ms,
                told_by="words",
            )
            raise CapacityExhaustedError((fact,))
        permit = Permit(next(_ids), f"run:{life.run}", request.model, "run")
        try:
            await spender.begin(permit, self._provider)
            with permitted(permit):
                returned = await self._native.send(request, unshown)
            reply = reply_of(returned, permit)
        except BaseException as error:
            self._account.take(permit)
            await self._count(spender, permit, error=error)
            exhausted = exhaustion_of(
                failure_of(error),
                provider=self._name,
                model=request.model,
                now_ms=life.clock.now_ms(),
                reading=None if credential is None else book.reading(credential),
                credential=credential,
            )
            if exhausted is None or exhausted.missing:
                raise
            raise CapacityExhaustedError((exhausted,)) from error
        self._account.take(permit)
        await self._count(spender, permit, reply=reply)
        return reply

    async def _spender_of(self, life: Life) -> Spender:
        if life.spender is None:
            life.spender = await life.agents.spender(str(life.run))
        return life.spender

    async def _count(
        self,
        spender: Spender,
        permit: Permit,
        *,
        reply: ModelReply | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Have what it used stored before the item goes on, also where it was cut off."""
        if reply is not None:
            spender.note(permit, self._provider, permit.model, "replied", usage=reply.usage)
        else:
            status = getattr(error, "status", None)
            refused = isinstance(error, ProviderError) and (
                not error.sent or (isinstance(status, int) and status >= 400)
            )
            outcome: Outcome = "failed" if isinstance(error, Exception) else "cut_off"
            spender.note(permit, self._provider, permit.model, outcome, refused=refused)
        with trio.CancelScope(shield=True):
            await spender.store_owed()


class OpenSession:
    """A session of this life: its item and row, and what stands for it here."""

    def __init__(
        self,
        item: Item,
        row: Row,
        session: RunSession,
        native: AbstractAsyncContextManager[NativeSession] | None,
    ) -> None:
        self.item = item
        self.row = row
        self.session = session
        self.native = native


class SessionItems(Items):
    """The items of one life of a run, sessions among them."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self._open: list[OpenSession] = []

    async def enter(self, item: Item, provider: SessionProvider, name: str) -> OpenSession:
        """Open a session, or resume the one that is recorded. See `RunContext.session`."""
        life = self._life
        row, _ended = await self._recorded(item)
        account = life.agents.account_of(provider)
        known: RunItem | None = None if row is None else row.record
        anew = known is None or known.state == "blocked" or known.session == "opening"
        if anew:
            opened = await self._open_anew(item, row, provider, name, account)
        else:
            assert row is not None
            assert known is not None
            if known.session == "closed":
                # Everything that was said in it is recorded: nobody needs it again.
                session = RunSession(life, name, account, unpacked(known.result))
                return OpenSession(item, row, session, None)
            if known.state == "started":
                why = "was lost" if known.session == "lost" else "has no handle"
                await self._lost(item, row, f"it {why}, so nothing shows where it stands")
            opened = await self._resume(item, row, provider, name, account)
        self._open.append(opened)
        life.sessions.append(opened.session.handle)
        return opened

    async def _open_anew(
        self,
        item: Item,
        row: Row | None,
        provider: SessionProvider,
        name: str,
        account: AccountUsage,
    ) -> OpenSession:
        life = self._life
        row = await self._start(item, row)
        session = RunSession(life, name, account, None, provider)
        try:
            native = provider.session(None)
            entered = session._native = await native.__aenter__()
        except BaseException as error:
            await self._failed(item, row, failure_of(error))
            raise  # Not reached: that raises.
        opened = OpenSession(item, row, session, native)
        try:
            handle = session.handle = _handle(entered)
            # One that nothing resumes stays in doubt until it is closed.
            record = replace(row.record, session="open")
            if handle is not None:
                record = replace(record, state="done", result=pack_plain(handle, "handle"))
            if not await self._write(item, row, record):
                await self._lose()
        except BaseException:
            await self._close(opened)
            raise
        opened.row = Row(row.counter + 1, record)
        crashpoint("run.after_session")
        return opened

    async def _resume(
        self, item: Item, row: Row, provider: SessionProvider, name: str, account: AccountUsage
    ) -> OpenSession:
        life, handle = self._life, unpacked(row.record.result)
        if not isinstance(handle, str):
            await self._lost(item, row, "it has no handle, so nothing shows where it stands")
        session = RunSession(life, name, account, handle, provider)
        try:
            native = provider.session(handle)
            entered = session._native = await native.__aenter__()
        except BaseException as error:
            failure = failure_of(error)
            if any(isinstance(each, SessionLostError) for each in errors_within(failure)):
                await self._lost(item, row, told(failure))
            wall = wall_of(failure, life, self._where(item))
            if wall is None:
                await self._recover(
                    f"session {handle!r} of {item.path!r} cannot be resumed: {told(failure)}"
                )
            await suspend(life, replace(wall, session=handle))
            await life.park()
            raise  # Not reached: that ends with the life.
        opened = OpenSession(item, row, session, native)
        if entered.handle != handle:
            await self._close(opened)
            await self._lost(item, row, "the provider opened another in its place")
        return opened

    async def leave(self, opened: OpenSession, *, is_over: bool) -> None:
        """Close what stands for a session here; where its block is over, the session is, too."""
        if opened.native is None:
            return
        life = self._life
        self._open.remove(opened)
        life.sessions.remove(opened.session.handle)
        await self._close(opened)
        if not is_over or life.outcome is not None or life.is_put_down:
            return
        now_ms = life.clock.now_ms()
        closed = replace(opened.row.record, state="done", session="closed", ended_ms=now_ms)
        if not await self._write(opened.item, opened.row, closed):
            await self._lose()

    async def _close(self, opened: OpenSession) -> None:
        assert opened.native is not None
        opened.session._native = None
        deadline = trio.current_time() + CLOSE_S
        try:
            with trio.CancelScope(shield=True, deadline=deadline) as scope:
                await opened.native.__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - what is recorded stands, whatever it leaves.
            _logger.warning(
                "a session of run %s did not close: %s", self._life.run, error,
                run=str(self._life.run),
            )  # fmt: skip
        else:
            if scope.cancelled_caught:
                _logger.warning(
                    "a session of run %s did not close within %s s", self._life.run, CLOSE_S,
                    run=str(self._life.run),
                )  # fmt: skip

    async def _failed(self, item: Item, row: Row, failure: BaseException) -> Any:
        lost = next((e for e in errors_within(failure) if isinstance(e, SessionLostError)), None)
        opened = next(
            (
                each
                for each in self._open
                if lost is not None and each.session.handle == lost.handle
            ),
            None,
        )
        if opened is None or self._life.is_put_down:
            return await super()._failed(item, row, failure)
        # What the item did beside it is in doubt, as it is where a process dies.
        return await self._lost(opened.item, opened.row, told(failure))

    async def _lost(self, item: Item, row: Row, why: str) -> NoReturn:
        """Wait for an operator: what was said in a session is not there to go on from."""
        life = self._life
        reason = bounded(f"the session of {item.path!r} cannot go on: {why}")
        record = replace(
            life.record,
            state="recovery_required",
            reason=reason,
            doubt=item.ordinal,
            changed_ms=life.clock.now_ms(),
        )
        lost = replace(row.record, state="started", session="lost")
        moved = await life.move(
            record,
            "runtime",
            guards=(item_guard(life.run, item.ordinal, row),),
            puts=(item_put(life.run, item.ordinal, lost),),
        )
        if not moved:
            await self._lose()
        life.end("recovery_required")
        await life.park()


def _handle(native: NativeSession) -> str | None:
    """A session's handle, as a row holds it.

    Raises:
        InvalidRunError: It is none.
    """
    handle = native.handle
    if handle is None:
        return None
    if not isinstance(handle, str) or not 1 <= len(handle.encode()) <= NAME_BYTES_MAX:
        raise InvalidRunError("handle", f"of a session must be text of 1 to {NAME_BYTES_MAX} bytes")
    return handle
