"""Lives of one state directory, which may kill themselves; a life is a function below."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import trio

from abeyance.actors import AgentSpec, Runtime, TrioActor, open_runtime
from abeyance.actors.core import ChildSpec, Reminder, SupervisorSpec
from abeyance.actors.domain.slot import Slot
from abeyance.actors.testing import ScriptedProvider, WallClock
from abeyance.storage.store import Request

FAR_MS = 4_000_000_000_000


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Act(NamedTuple):
    """A message that a host sends again under the same id after each death."""

    act_id: str
    does: str


class Host(TrioActor):
    """A host's actor: it dies, crashes or works as it is told, and says so in a file."""

    max_deliveries = 3
    counts_durably = True
    directory: Path

    def on_receive(self, message: Any) -> Any:
        does = message.does if isinstance(message, Act) else message
        if isinstance(message, Reminder):
            does = message.message["does"]
        with (self.directory / "seen").open("a") as seen:
            seen.write(f"{does}\n")
        match does:
            case "die":
                die()
            case "crash":
                raise ValueError("crash\x1b[31m")
            case ["remind", at_ms, what, *name]:
                self.remind(*name or "n", {"does": what}, at_ms=at_ms)
        return None


class Once(Host):
    max_deliveries = 1


async def start(runtime: Runtime, actor_class: type[TrioActor] = Host) -> Any:
    spec = SupervisorSpec(
        id="hosts", children=(ChildSpec("host", actor_class, name="host"),), intensity=50
    )
    return (await runtime._system.start_supervisor(spec)).refs["host"]


async def settled(runtime: Runtime) -> None:
    """What was handed over so far is stored."""
    for name in ("archive", "reminders"):
        ref = runtime._system.find(name)
        while ref.statistics().queued or ref.statistics().owed:  # type: ignore[union-attr]
            await trio.lowlevel.checkpoint()
    await runtime._journal.ask(Request())


async def poison(runtime: Runtime) -> None:
    host = await start(runtime)
    await host.ask(Act("order-1", "die"), timeout=30)


async def crash_then_poison(runtime: Runtime) -> None:
    """The first delivery of this life crashes, the second dies."""
    done = []

    class Both(Host):
        def on_receive(self, message: Any) -> Any:
            does = "die" if done else "crash"
            done.append(1)
            return super().on_receive(Act("", does))

    host = await start(runtime, Both)
    host.tell(Act("order-1", "crash"))
    await trio.sleep_forever()


async def work(runtime: Runtime) -> None:
    host = await start(runtime)
    await host.ask(Act("order-1", "work"))
    await settled(runtime)
    die()


async def poison_accept(runtime: Runtime) -> None:
    accept = Slot._accept

    def dying(self: Slot, message: Any, reply: Any) -> Any:
        if message.message == "poison":
            die()
        return accept(self, message, reply)

    Slot._accept = dying  # type: ignore[method-assign]
    spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
    ana = await runtime.add_agent(spec)
    await ana.send("x", id="poison", wake=False)


async def bury(runtime: Runtime) -> None:
    """Two in quarantine and two dead letters, one of each no plain data; stored, then killed."""
    host = await start(runtime, Once)
    host.tell("crash")
    host.tell(Act("order-2", "crash"))
    await host.ask("sync")
    gone = runtime._system.start(Host, name="gone")
    gone.tell({"left": [1, 2.5, None, b"x"]})
    gone.tell(("a", "tuple"))
    gone.stop(now=True)
    await gone.stopped()
    await settled(runtime)
    die()


async def remind_far(runtime: Runtime) -> None:
    host = await start(runtime)
    await host.ask(["remind", FAR_MS, "work"])
    await settled(runtime)
    die()


async def remind_poison(runtime: Runtime) -> None:
    host = await start(runtime)
    await host.ask(["remind", FAR_MS, "die"])
    await settled(runtime)
    die()


async def remind_beside_poison(runtime: Runtime) -> None:
    host = await start(runtime)
    await host.ask(["remind", FAR_MS, "work"])
    await host.ask(["remind", FAR_MS, "die", "poison"])
    await rows(runtime, 2)
    die()


async def rows(runtime: Runtime, count: int) -> None:
    """So many rows of reminders and of their deliveries are stored."""
    store = runtime._store
    while len([*store.scan("reminders"), *store.scan("deliveries")]) != count:
        await trio.lowlevel.checkpoint()


async def wait_late_once(runtime: Runtime) -> None:
    await start(runtime, Once)
    await trio.sleep_forever()


async def wait_late_once_settled(runtime: Runtime) -> None:
    """What is due is over, and stored, before this life ends."""
    await start(runtime, Once)
    await rows(runtime, 0)
    await settled(runtime)
    die()


async def wait_late(runtime: Runtime) -> None:
    """Played after the reminders' instant."""
    await start(runtime)
    await trio.sleep_forever()


async def play(directory: Path, life: str) -> None:
    Host.directory = directory
    clock = WallClock(FAR_MS + 1) if life.startswith("wait_late") else None
    async with open_runtime(directory / "state", clock=clock, control=False) as runtime:
        await globals()[life](runtime)


def live(directory: Path, life: str) -> None:
    """Play a life; say the code of the error that ended it, if one did."""
    try:
        trio.run(play, directory, life)
    except BaseException as error:
        print(getattr(error, "code", type(error).__name__))
