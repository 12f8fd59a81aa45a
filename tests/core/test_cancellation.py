"""Every public operation that may wait, cancelled at its 1st, 2nd, ... n-th checkpoint.

And, since most of them wait but once for what other tasks do, cancelled after the 1st, 2nd, ...
n-th step of any task meanwhile. Each time in a run of its own: afterwards the accounts add up, the
operation can be done again or is done, other actors answer, a group takes a new child, and the
system comes to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    ChildStartError,
    Supervisor,
    SupervisorSpec,
    TrioActor,
)

CHECKPOINTS_MAX = 200
"""An operation that has more than these is not cancelled at each of them."""


class Works(TrioActor):
    """Takes a while to start, to handle and to stop, so that there are checkpoints to cancel at."""

    mailbox_capacity = 3

    @classmethod
    def make_kept(cls) -> list[Any]:
        return []

    async def on_start(self) -> None:
        await trio.sleep(0.1)

    async def on_stop(self) -> None:
        await trio.sleep(0.1)

    async def on_receive(self, message: Any) -> Any:
        await trio.sleep(0.1)
        self.kept.append(message)
        return message


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when its task waits for the n-th time, or after any task's n-th step."""

    def __init__(self, nth: int, scope: trio.CancelScope, *, any_task: bool) -> None:
        self._task = None if any_task else trio.lowlevel.current_task()
        self._left = nth
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._task is None or task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


class Stage:
    """A system with a group of three and whom the operations are done to."""

    def __init__(self, system: ActorSystem, group: Supervisor) -> None:
        self.system = system
        self.group = group
        self.refs = dict(group.refs)
        self.sent = dict.fromkeys(group.refs, 0)

    def tell(self, name: str, message: Any) -> None:
        self.refs[name].tell(message)
        self.sent[name] += 1

    async def ask(self) -> None:
        self.sent["a"] += 1
        assert await self.refs["a"].ask("asked") == "asked"

    async def tell_wait(self) -> None:
        for n in range(4):
            self.tell("a", n)
            if not n:
                await trio.sleep(0.01)  # It is taken; the next three fill the mailbox.
        self.sent["a"] += 1
        try:
            await self.refs["a"].tell_wait("waited")
        except trio.Cancelled:
            self.sent["a"] -= 1  # Cancelled: it was not sent.
            raise

    async def wait_for_future(self) -> None:
        self.sent["b"] += 1
        future = self.refs["b"].ask("later", block=False)
        await trio.sleep(0.01)
        await future

    async def start_child(self) -> None:
        await self.group.start_child(ChildSpec("new", Works))

    async def stop_child(self) -> None:
        self.tell("b", "before")
        await self.group.stop_child("b")

    async def stop_actor(self) -> None:
        self.tell("c", "before")
        await self.refs["c"].stop()

    async def wait_stopped(self) -> None:
        ref = self.system.start(Works)
        ref.stop(block=False)
        await ref.stopped()

    async def start_supervisor(self) -> None:
        await self.system.start_supervisor(SupervisorSpec("other", (ChildSpec("x", Works),)))

    async def stop_group(self) -> None:
        self.tell("a", "before")
        await self.group.stop()

    async def shutdown(self) -> None:
        self.tell("a", "before")
        await self.system.shutdown()


OPERATIONS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "ask": Stage.ask,
    "tell_wait": Stage.tell_wait,
    "await a future": Stage.wait_for_future,
    "start_child": Stage.start_child,
    "stop_child": Stage.stop_child,
    "stop an actor": Stage.stop_actor,
    "wait for an actor's end": Stage.wait_stopped,
    "start_supervisor": Stage.start_supervisor,
    "stop a group": Stage.stop_group,
    "shutdown": Stage.shutdown,
}


async def cancelled_at(
    nth: int, operation: Callable[[Stage], Awaitable[None]], any_task: bool
) -> bool:
    """Do the operation, cancelled at its nth checkpoint; return whether it had that many."""
    with trio.fail_after(600):
        async with ActorSystem(ask_timeout_s=None) as system:
            group = await system.start_supervisor(
                SupervisorSpec(
                    "group",
                    tuple(ChildSpec(name, Works) for name in "abc"),
                    strategy="rest_for_one",
                    intensity=100,
                    backoff=Backoff(0.0, 0.0),
                )
            )
            stage = Stage(system, group)
            bystander = system.start(Works)
            scope = trio.CancelScope()
            instrument = CancelAt(nth, scope, any_task=any_task)
            with scope:
                trio.lowlevel.add_instrument(instrument)
                try:
                    await operation(stage)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            await trio.sleep(50)
            await wait_all_tasks_blocked()
            check_accounts(stage)
            if operation is not Stage.shutdown:
                assert await bystander.ask("alive") == "alive"
                await check_group(stage, operation, scope.cancelled_caught)
        for ref in (*stage.refs.values(), bystander):
            assert not ref.is_alive()
            with pytest.raises(ActorDeadError):
                ref.tell("late")
        check_accounts(stage)
    return scope.cancelled_caught


def check_accounts(stage: Stage) -> None:
    for name, ref in stage.refs.items():
        counts = ref.statistics()
        assert counts.queued == counts.owed == 0, name
        assert not counts.in_flight
        assert counts.handled + counts.dead + counts.quarantined == stage.sent[name], name


async def check_group(stage: Stage, operation: Any, cancelled: bool) -> None:
    group = stage.group
    if operation is Stage.stop_group:
        assert not any(ref.is_alive() for ref in stage.refs.values())
        return
    if operation is Stage.stop_child:
        # A stop goes on though whoever asked for it was cancelled, unless it had not begun.
        assert cancelled or "b" not in group.refs
        if "b" in group.refs:
            await group.stop_child("b")
    if operation is Stage.start_child:
        assert ("new" in group.refs) is not cancelled, "cancelled, it leaves no child"
    if "new" in group.refs:
        await group.stop_child("new")
    try:
        ref = await group.start_child(ChildSpec("new", Works))
    except ChildStartError as error:
        raise AssertionError("the group takes no new child") from error
    assert await ref.ask("new") == "new"
    for name in {"a", "b", "c"} & set(group.refs):
        stage.sent[name] += 1
        assert await group.refs[name].ask("still") == "still"
    again = await stage.system.start_supervisor(SupervisorSpec("again", (ChildSpec("x", Works),)))
    assert await again.refs["x"].ask("x") == "x"


@pytest.mark.parametrize("any_task", [False, True], ids=["its checkpoints", "any task's steps"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operation_cancelled_at_any_checkpoint_leaves_a_system_that_adds_up_and_works(
    operation: Callable[[Stage], Awaitable[None]], any_task: bool
) -> None:
    nth = 1
    cancelled = 0
    late = 0
    # A cancellation in the operation's last step comes too late for it, and for those behind it.
    while late < 3:
        clock = MockClock(autojump_threshold=0)
        if trio.run(cancelled_at, nth, operation, any_task, clock=clock):
            cancelled += 1
            late = 0
        else:
            late += 1
        nth += 1
        assert nth < CHECKPOINTS_MAX
    assert cancelled > 0
