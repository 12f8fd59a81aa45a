"""Tracing: the sender's span is the current one in the handler, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.lowlevel
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import wait_all_tasks_blocked

from abeyance.actors import ActorSystem, ChildSpec, HostedSystem, SupervisorSpec, TrioActor
from abeyance.actors.core import ActorDeadError, Answer, MailboxFullError
from abeyance.actors.core.carried import Traced
from abeyance.actors.core.ref import TrioActorRef
from abeyance.actors.testing import Faults

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))
TRACER = PROVIDER.get_tracer("tests")


def current() -> int:
    """The id of the span that is current here; 0 is none."""
    return trace.get_current_span().get_span_context().span_id


class Seer(TrioActor):
    """Notes what it is told and the span it sees."""

    def __init__(self, seen: list[tuple[Any, int]], other: Any = None) -> None:
        super().__init__()
        self.seen = seen
        self.other = other

    def note(self, what: Any) -> int:
        self.seen.append((what, current()))
        return current()

    def on_start(self) -> None:
        self.note("start")

    async def slowly(self, message: Any) -> int:
        await trio.lowlevel.checkpoint()
        return self.note(message)

    def on_receive(self, message: Any) -> Any:
        match message:
            case "slow":
                return self.slowly(message)
            case "ask":
                self.ask(self.other, "asked", tag="answer")
            case "pipe":
                self.pipe(self.slowly, "piped", tag="piped answer")
            case "after":
                self.after(1.0, "timer")
            case "crash":
                raise ValueError(message)
            case _:
                return self.note(message)
        return None

    def on_answer(self, answer: Answer) -> None:
        self.note(answer.tag)


async def tell(ref: Any, message: str) -> None:
    ref.tell(message)


async def tell_wait(ref: Any, message: str) -> None:
    await ref.tell_wait(message)


async def tell_internal(ref: Any, message: str) -> None:
    ref.tell_internal(message)


async def ask(ref: Any, message: str) -> None:
    await ref.ask(message)


async def proxy(ref: Any, message: str) -> None:
    await ref.proxy().note(message)


@pytest.mark.parametrize("faults", [False, True], ids=["", "with faults"])
@pytest.mark.parametrize(
    ("send", "message", "noted"),
    [
        (tell, "plain", "plain"),
        (tell, "slow", "slow"),
        (tell_wait, "plain", "plain"),
        (tell_internal, "plain", "plain"),
        (tell_internal, "slow", "slow"),
        (ask, "plain", "plain"),
        (ask, "slow", "slow"),
        (proxy, "plain", "plain"),
        (tell, "ask", "asked, answer"),
        (tell, "pipe", "piped, piped answer"),
        (tell, "after", "timer"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_span_of_a_sender_is_current_in_the_handler(
    send: Any, message: str, noted: str, faults: bool, autojump_clock: Any
) -> None:
    seen: list[tuple[Any, int]] = []
    EXPORTER.clear()
    async with ActorSystem(trace=True, faults=Faults() if faults else None) as system:
        ref = system.start(Seer, seen, system.start(Seer, seen))
        with TRACER.start_as_current_span("sender") as span:
            await send(ref, message)
        await trio.sleep(2)
        assert await ref.ask("later") == 0
    (finished,) = EXPORTER.get_finished_spans()
    assert finished.context is not None
    assert finished.context.span_id == span.get_span_context().span_id
    wanted = noted.split(", ")
    seen_by = {what: span_id for what, span_id in seen if what in wanted}
    assert seen_by == dict.fromkeys(wanted, span.get_span_context().span_id)
    assert {span_id for what, span_id in seen if what not in wanted} == {0}


def test_span_of_a_host_thread_is_current_in_the_handler() -> None:
    seen: list[tuple[Any, int]] = []
    with HostedSystem(trace=True) as host:
        ref = host.system.start(Seer, seen)
        with TRACER.start_as_current_span("sender") as span:
            ref.tell("told")
            assert ref.ask("asked") == span.get_span_context().span_id
            assert ref.ask("asked", block=False).get() == span.get_span_context().span_id
        assert ref.ask("plain") == 0
    assert ("told", span.get_span_context().span_id) in seen


async def test_context_of_a_message_ends_with_its_handler() -> None:
    seen: list[tuple[Any, int]] = []
    async with ActorSystem(trace=True) as system:
        ref = system.start(Seer, seen)
        with TRACER.start_as_current_span("one"):
            ref.tell("slow")
        with TRACER.start_as_current_span("two"):
            ref.tell("plain")
        ref.tell("none")
        await ref.ask("none")
    one, two, *none = [span_id for what, span_id in seen if what != "start"]
    assert one
    assert two
    assert one != two
    assert none == [0, 0]


async def test_incarnation_starts_in_no_context() -> None:
    seen: list[tuple[Any, int]] = []
    async with ActorSystem(trace=True) as system:
        with TRACER.start_as_current_span("starter"):
            room = await system.start_supervisor(
                SupervisorSpec("room", children=(ChildSpec("a", Seer, (seen,)),))
            )
            room.refs["a"].tell("crash")
            await wait_all_tasks_blocked(0.01)
        assert await room.refs["a"].ask("now") == 0
    assert seen == [("start", 0), ("start", 0), ("now", 0)]


class Again(Seer):
    max_deliveries = 2

    def on_receive(self, message: Any) -> Any:
        self.note(message)
        if len(self.seen) == 2:
            raise ValueError("once")


@pytest.mark.parametrize("lane", ["user", "internal"])
async def test_message_that_is_delivered_again_brings_its_context(lane: str) -> None:
    seen: list[tuple[Any, int]] = []
    async with ActorSystem(trace=True) as system:
        room = await system.start_supervisor(
            SupervisorSpec("room", children=(ChildSpec("a", Again, (seen,)),))
        )
        with TRACER.start_as_current_span("sender") as span:
            room.refs["a"].tell("x") if lane == "user" else room.refs["a"].tell_internal("x")
        await room.refs["a"].ask("after")
    wanted = span.get_span_context().span_id
    assert [each for each in seen if each[0] == "x"] == [("x", wanted)] * 2


class Small(TrioActor):
    mailbox_capacity = 1

    def on_receive(self, message: Any) -> Any:
        raise ValueError("never")


class Coalescing(Seer):
    overflow = "coalesce"

    @classmethod
    def coalesce_key(cls, message: Any) -> Any:
        assert not isinstance(message, Traced)
        return message[0]


async def test_nobody_sees_how_a_message_carries_its_context(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[Any, int]] = []
    async with ActorSystem(trace=True) as system:
        ref, keyed = system.start(Small), system.start(Coalescing, seen)
        with TRACER.start_as_current_span("sender"):
            keyed.tell(("k", 1))
            keyed.tell(("k", 2))
            ref.tell({"n": 1})
            with pytest.raises(MailboxFullError) as full:
                ref.tell({"n": 2})
            await ref.stopped()
            with pytest.raises(ActorDeadError) as dead:
                ref.tell({"n": 3})
            with pytest.raises(ActorDeadError) as asked:
                await ref.ask({"n": 4})
            gone = system.start(Seer, seen)
            gone.tell({"n": 5})
            gone.stop(now=True)
            await gone.stopped()
        assert [caught.value.message for caught in (full, dead, asked)] == [
            {"n": 2},
            {"n": 3},
            {"n": 4},
        ]
        assert [entry.message for entry in system.quarantine.entries] == [{"n": 1}]
        assert {"n": 5} in [entry.message for entry in system.dead_letters.entries]
        assert await keyed.ask(("other", 0)) is not None
        assert [what for what, _ in seen if what == ("k", 2)]
    assert "Traced" not in caplog.text


def test_system_that_does_not_trace_has_plain_refs_and_needs_no_library() -> None:
    assert ActorSystem().ref_class is TrioActorRef
    program = """
import sys
sys.modules["opentelemetry"] = None
from abeyance.actors import ActorSystem
ActorSystem()
try:
    ActorSystem(trace=True)
except ModuleNotFoundError:
    print("needs it")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "needs it\n", done.stderr
