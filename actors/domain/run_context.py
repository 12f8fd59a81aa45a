"""What a workflow is handed: steps whose items are executed once, and recorded.

Items run one at a time; `run_items` has what becomes of each.

Invariants:
    I1  What is malformed is refused before anything is recorded.
    I2  A life that is to begin nothing begins no item.

Runs in: the task of the run's life.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from abeyance.actors.providers.sessions import SessionProvider, has_sessions
from abeyance.storage.tables.runs import Choice

from .fallback import ModelChoice
from .ingress import Content, check_name, identity
from .run_errors import InvalidRunError
from .run_items import Item
from .run_life import Life
from .run_rows import check_path, check_step_id
from .run_sessions import RunSession, SessionItems
from .run_steps import InDoubt
from .run_turns import Asked, item_message
from .spec import AgentSpec


class Named(Protocol):
    """A handle of an agent."""

    @property
    def name(self) -> str: ...


class Count:
    """How many items a step has, where that was said, and how many of them were asked for."""

    __slots__ = ("begun", "total")

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.begun = 0


class RunContext:
    """What a workflow's function gets first. One task at a time uses it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._items = SessionItems(life)
        self._stack: list[str] = []
        self._counts: list[Count] = []
        self._busy: str | None = None

    @property
    def id(self) -> str:
        """The run's id: its key, an `@`, and the how manieth of that key it is."""
        return str(self._life.run)

    @property
    def key(self) -> str:
        return self._life.run.key

    @property
    def due_ms(self) -> int | None:
        """When the schedule that started the run was due; None where none did."""
        return self._life.record.due_ms

    @property
    def folder(self) -> Path:
        """A directory for what the run makes: the same in every life, and no other run's.

        Made when it is first asked for, inside the state directory; kept until the host deletes it.
        Not a checkpoint.

        Raises:
            OSError: It cannot be made.
        """
        return self._life.folders.make(self._life.run, self._life.record)

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
        self._counts.append(Count(total))
        try:
            yield
        finally:
            self._stack.pop()
            self._counts.pop()

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
            *args: Its arguments.
            **kwargs: Its arguments by name.
            in_doubt: What becomes of it where the process died while it ran: `retry` runs it again
                (for what is idempotent), a function is asked, `recover` waits for an operator.
        Raises:
            StepFailedError: It raised, now or in an earlier life.
            InvalidRunError, InvalidNameError: An argument is malformed; nothing was done.
            RunEndedError: This life of the run is over.
        """
        path = self._path(id)
        if not callable(function):
            raise InvalidRunError("function", "must be a function")
        if in_doubt not in ("recover", "retry") and not callable(in_doubt):
            raise InvalidRunError("in_doubt", "must be 'recover', 'retry' or a function")
        async with self._item(path, None) as item:
            return await self._items.do(item, partial(function, *args, **kwargs), in_doubt)

    async def ask(
        self,
        id: str,  # noqa: A002
        agent: str | AgentSpec | Named,
        content: Content,
        *,
        author: str = "user",
        channel: str | None = None,
        in_doubt: InDoubt = "recover",
    ) -> str:
        """Send an agent a message, once, and return the words of the turn that answers it.

        The turn is the agent's own. In later lives the message is not sent again: the turn is
        joined wherever it stands, and is never in doubt. A held turn suspends the run, which goes
        on when the turn has ended. Several messages that wait are answered by one turn, and each
        item has that turn's reply.

        With an `AgentSpec` it is `Runtime.run_ephemeral`, as an item: its turn is not taken up
        after a death, and `in_doubt` says what becomes of the item then.

        A checkpoint. Cancelled: the turn goes on. Durable: on return.

        Args:
            id: 1 to 128 bytes, without a slash; the same in every life.
            agent: The name or the handle of an agent, which may be added up to half a minute
                later; or the specification of one that is used once.
            content: As for `AgentHandle.send`; so are `author` and `channel`. In a later life it
                is not looked at.
            in_doubt: As for `do`; of an `AgentSpec` only.
        Raises:
            StepFailedError: The turn failed, was cancelled, or its message was taken back; its
                cause is a `TurnFailedError`, in this life. Or the message was refused.
            InvalidRunError, InvalidNameError: An argument is malformed; nothing was done.
            RunEndedError: This life of the run is over.
        """
        if isinstance(agent, AgentSpec):
            run_ephemeral = self._life.agents.run_ephemeral
            said = await self.do(id, run_ephemeral, agent, content, author, in_doubt=in_doubt)
            return str(said)
        path = self._path(id)
        name = check_name(agent if isinstance(agent, str) else agent.name, "agent")
        if identity(check_name(author, "author", reserved=False)) == identity(name):
            raise InvalidRunError("author", "must not be the agent itself, whose words wake nobody")
        async with self._item(path, name) as item:
            message = item_message(self._life.run, item.ordinal)
            said = await self._items.ask(item, Asked(name, message, content, author, channel))
        return str(said)

    @asynccontextmanager
    async def session(
        self,
        id: str,  # noqa: A002
        provider: SessionProvider,
        *,
        name: str | None = None,
    ) -> AsyncIterator[RunSession]:
        """Open a conversation that the provider keeps, for the block's items; or go on with it.

        `async with run.session("coder", provider) as coder:` and in it
        `await run.do("plan", plan, coder)`, where `plan` calls `coder.send`.

        It is opened once, and its handle recorded before anything is said in it. A later life
        resumes the session of that handle; where the provider lost it, or it has none, nothing is
        executed and the run waits for an operator (`recovery_required`): `in_doubt="retry"` opens
        another, `in_doubt="done"` with a handle as the result goes on with that one. One whose
        block is over is not resumed.

        Entering is a checkpoint; leaving is one, and closes what stands for the session here within
        10 s. A wall is recorded, with the handle, before that.

        Args:
            id: 1 to 128 bytes, without a slash; the same in every life.
            provider: One that has sessions (`providers.sessions.SessionProvider`).
            name: What it is called where the run waits for it; None is its class's name.
        Raises:
            StepFailedError: It could not be opened, now or in an earlier life.
            InvalidRunError, InvalidNameError: An argument is malformed; nothing was done.
            RunEndedError: This life of the run is over.
        """
        path = self._path(id)
        if not has_sessions(provider):
            raise InvalidRunError("provider", "must be one that keeps sessions")
        called = check_name(type(provider).__name__ if name is None else name, "name")
        async with self._item(path, None, is_session=True) as item:
            opened = await self._items.enter(item, provider, called)
        is_over = False
        try:
            yield opened.session
            is_over = True
        except Exception:
            is_over = True
            raise
        finally:
            await self._items.leave(opened, is_over=is_over)

    def _path(self, id_: str) -> str:
        return check_path("/".join((*self._stack, check_step_id(id_))))

    @asynccontextmanager
    async def _item(
        self, path: str, agent: str | None, *, is_session: bool = False
    ) -> AsyncIterator[Item]:
        """The next item: one at a time, and none in a life that is to begin nothing."""
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
                await life.lay_down()
            life.make_busy()
            ordinal = life.asked
            life.asked += 1
            for each in self._counts:
                each.begun += 1
            said = (each for each in reversed(self._counts) if each.total is not None)
            count = next(said, Count(None))
            place = None if count.total is None else count.begun
            yield Item(ordinal, path, place, count.total, agent, is_session)
        finally:
            self._busy = None
            life.quiet.set()
