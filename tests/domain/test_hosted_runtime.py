"""A runtime for hosts without trio: the same verbs from any thread but the loop's."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pykka
import pytest
import trio

from abeyance.actors import AgentSpec, Draft, HostedRuntime, Runtime, TrioActor
from abeyance.actors.conversations import Conversation
from abeyance.actors.core.errors import AskCycleError, StopCycleError, WouldDeadlockError
from abeyance.actors.domain.errors import (
    AgentExistsError,
    InvalidSpecError,
    RuntimeClosedError,
    UnknownAgentError,
)
from abeyance.actors.handle import AgentHandle
from abeyance.actors.hosted_agents import HostedAgent, HostedConversation
from abeyance.actors.hosted_runs import HostedRun
from abeyance.actors.providers.port import ModelRequest, ProviderMessage
from abeyance.actors.run_looking import RunHandle
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.errors import StorageError
from abeyance.storage.tables.blocks import TextBlock

from .world import tool

WAIT_S = 20.0
"""The longest that a test waits for a thread, in real time."""


def loop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "abeyance" in thread.name]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostedRuntime]:
    with HostedRuntime(tmp_path / "state", control=False) as opened:
        yield opened
    assert not loop_threads()


def spec(script: Any = (), name: str = "ana", **fields: Any) -> AgentSpec:
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
    return AgentSpec(name=name, provider=provider, model="m", **fields)


def echo() -> ScriptedProvider:
    return ScriptedProvider.echo()


def test_agents_that_end_and_runs_have_the_same_verbs_under_threads(host: HostedRuntime) -> None:
    said = [reply("hello"), reply("aside"), reply("in short"), reply("once")]
    ana = host.add_agent(spec(script := ScriptedProvider(said)))
    ana.send("hi")
    ana.wait_idle()
    fork = host.open_conversation("ana", channel="c1")
    assert (fork.agent, fork.channel) == ("ana", "c1")
    fork.send("and here")
    fork.wait_idle()
    assert [message.text for message in fork.transcript()] == ["hi", "hello", "and here", "aside"]
    words = ProviderMessage("user", (TextBlock(text="sum up"),))
    answer = ana.auxiliary_call(ModelRequest(model="m2", messages=(words,)))
    assert answer.blocks == (TextBlock(text="in short"),)
    assert (
        host.run_ephemeral(spec(script, name="sum"), "go", block=False).get(timeout=WAIT_S)
        == "once"
    )
    assert fork.close(block=False).get(timeout=WAIT_S) is None
    fork.close()
    with pytest.raises(UnknownAgentError):
        fork.send("late")
    host.remove_agent("ana", requester="ops")
    with pytest.raises(UnknownAgentError):
        host.agent("ana")


def test_replacing_taking_back_and_filling_in_have_the_same_verbs_under_threads(
    host: HostedRuntime,
) -> None:
    ana = host.add_agent(spec())
    first = ana.send("1", subject="n", wake=False)
    second = ana.send("2", subject="n", wake=False, joins=False)
    assert second.replaces == first.id
    assert ana.receipt(first.id).by == second.id
    past = [Draft("b", at_ms=2), Draft("a", at_ms=1)]
    filled = ana.backfill(past, channel="c", block=False).get(timeout=WAIT_S)
    assert [message.text for message in ana.transcript()] == ["2", "a", "b"]
    assert ana.retract(second).state == "retracted"
    assert ana.retract(filled[0].id, block=False).get(timeout=WAIT_S).state == "retracted"
    assert [message.channel for message in ana.transcript()] == ["c"]


def test_every_verb_blocks_until_it_is_done(host: HostedRuntime) -> None:
    ana = host.add_agent(spec([reply("hello"), fail(429, retry_after=3_600)]))
    receipt = ana.send("hi", id="m1")
    assert (receipt.id, receipt.state) == ("m1", "stored")
    ana.wait_idle()
    assert [message.text for message in ana.transcript()] == ["hi", "hello"]
    assert [message.text for message in ana.transcript(after=1, limit=1)] == ["hello"]
    assert host.agent("ana").name == "ana"
    assert not host.resume_agent("ana")
    ana.send("more")
    ana.wait_idle()
    (wait,) = host.provider_waits("ana")
    assert host.provider_waits() == (wait,)
    assert host.status().agents[0].state == "held"
    released = host.release_provider_wait("ana", requester="ops")
    assert [item.model for item in released.released] == ["m"]
    ana.wait_idle()
    assert host.provider_waits() == ()


def test_what_a_verb_raises_is_raised_in_the_calling_thread(host: HostedRuntime) -> None:
    with pytest.raises(InvalidSpecError):
        host.add_agent("ana")  # type: ignore[call-overload]
    with pytest.raises(UnknownAgentError):
        host.agent("ana")
    host.add_agent(spec())
    with pytest.raises(AgentExistsError):
        host.add_agent(spec())


def test_block_false_gives_a_pykka_future(host: HostedRuntime) -> None:
    gate = Gate()
    adding = host.add_agent(spec([gate]), block=False)
    assert isinstance(adding, pykka.Future)
    ana = adding.get(timeout=WAIT_S)
    receipt = ana.send("hi", block=False)
    assert receipt.get(timeout=WAIT_S).id
    idle = ana.wait_idle(block=False)
    release = host.release_provider_wait("ana", requester="ops", block=False)
    assert receipt.get(timeout=WAIT_S).state == "stored"
    assert release.get(timeout=WAIT_S).released == ()
    with pytest.raises(pykka.Timeout):
        idle.get(timeout=0)
    host._host.system.token.run_sync_soon(gate.release)  # type: ignore[union-attr]
    idle.get(timeout=WAIT_S)
    failing = host.add_agent(spec(), block=False)
    with pytest.raises(AgentExistsError):
        failing.get(timeout=WAIT_S)


def test_many_threads_send_at_once_and_each_thread_keeps_its_order(host: HostedRuntime) -> None:
    ana = host.add_agent(spec(echo()))
    threads, each = 8, 12

    def send(number: int) -> list[int]:
        return [ana.send(f"{number}:{count}").seq for count in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        numbers = list(pool.map(send, range(threads)))
    ana.wait_idle()
    assert len({seq for seqs in numbers for seq in seqs}) == threads * each
    said = [message.text for message in ana.transcript() if message.role == "user"]
    assert len(said) == threads * each
    for number in range(threads):
        mine = [text for text in said if text.startswith(f"{number}:")]
        assert mine == [f"{number}:{count}" for count in range(each)]


def test_what_one_thread_sends_without_waiting_is_accepted_in_its_order(
    host: HostedRuntime,
) -> None:
    ana = host.add_agent(spec())
    futures = [ana.send(str(number), wake=False, block=False) for number in range(200)]
    numbers = [future.get(timeout=WAIT_S).seq for future in futures]
    assert numbers == sorted(numbers)
    assert [message.text for message in ana.transcript()] == [str(n) for n in range(200)]


def on_the_loop(host: HostedRuntime, call: Callable[[], Any]) -> BaseException | None:
    async def run() -> BaseException | None:
        try:
            call()
        except BaseException as error:
            return error
        return None

    assert host._host is not None
    found: BaseException | None = host._host.run(run)
    return found


def test_a_blocking_verb_on_the_loops_thread_is_refused_and_does_nothing(
    host: HostedRuntime,
) -> None:
    ana = host.add_agent(spec(echo()))
    for call in (
        lambda: ana.send("hi"),
        ana.wait_idle,
        ana.transcript,
        host.status,
        host.provider_waits,
        lambda: host.agent("ana"),
        lambda: host.add_agent(spec(name="bo")),
        lambda: host.release_provider_wait("ana", requester="ops"),
        host.close,
        host.open,
    ):
        assert isinstance(on_the_loop(host, call), WouldDeadlockError)
    assert [agent.name for agent in host.status().agents] == ["ana"]
    # Accepted behind whatever a refused call had handed over.
    ana.send("last", wake=False)
    assert [message.text for message in ana.transcript()] == ["last"]


async def test_open_is_refused_where_trio_runs_and_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(WouldDeadlockError):
        HostedRuntime(tmp_path / "state").open()
    assert not loop_threads()
    assert not (tmp_path / "state").exists()


def test_after_close_every_verb_says_so_and_close_may_be_called_again(tmp_path: Path) -> None:
    host = HostedRuntime(tmp_path / "state", control=False)
    with pytest.raises(RuntimeClosedError):
        host.status()
    with host:
        ana = host.add_agent(spec(echo()))
        ana.send("hi")
    host.close()
    for call in (
        lambda: ana.send("hi"),
        lambda: ana.send("hi", block=False),
        ana.wait_idle,
        ana.transcript,
        host.status,
        host.provider_waits,
        lambda: host.agent("ana"),
        lambda: host.add_agent(spec(name="bo")),
        lambda: host.release_provider_wait("ana", requester="ops"),
    ):
        with pytest.raises(RuntimeClosedError):
            call()
    assert not loop_threads()


def test_one_that_was_closed_can_be_opened_again_and_goes_on(tmp_path: Path) -> None:
    host = HostedRuntime(tmp_path / "state", control=False)
    with host:
        ana = host.add_agent(spec(echo()))
        ana.send("one")
        ana.wait_idle()
        with pytest.raises(RuntimeError, match="is open"):
            host.open()
    with host:
        ana = host.add_agent(spec(echo()))
        ana.send("two")
        ana.wait_idle()
        assert [message.text for message in ana.transcript()] == ["one", "one", "two", "two"]


def test_an_opening_that_fails_raises_its_error_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "letters.txt").write_text("something else lives here")
    host = HostedRuntime(tmp_path / "state", control=False)
    with pytest.raises(StorageError):
        host.open()
    assert not loop_threads()
    with pytest.raises(RuntimeClosedError):
        host.status()
    (tmp_path / "state" / "letters.txt").unlink()
    with host:
        assert not host.status().agents


def test_a_thread_that_waits_at_the_end_is_told_so(tmp_path: Path) -> None:
    gate = Gate()
    outcomes: list[BaseException | None] = []
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec([gate]))
        ana.send("hi")

        def wait() -> None:
            try:
                ana.wait_idle()
                outcomes.append(None)
            except RuntimeClosedError as error:
                outcomes.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        host._host.run(gate.wait_entered)  # type: ignore[union-attr]
    thread.join(WAIT_S)
    assert not thread.is_alive()
    # The stop of its turn made the agent idle, or the end came first.
    assert len(outcomes) == 1


def test_a_sync_tool_uses_the_hosts_verbs_and_is_refused_a_wait_for_its_own_agent(
    host: HostedRuntime,
) -> None:
    def use_host() -> str:
        host.agent("bo").send("from a tool", author="ana")
        host.agent("bo").wait_idle()
        try:
            host.agent("ana").wait_idle()
        except AskCycleError:
            return "refused"
        return "waited"

    host.add_agent(spec(echo(), name="bo"))
    ana = host.add_agent(spec([call_tool("t"), reply("end")], tools=[tool("t", use_host)]))
    ana.send("go")
    ana.wait_idle(block=False).get(timeout=WAIT_S)
    (results,) = [message for message in ana.transcript() if message.role == "results"]
    assert results.blocks[0].content[0].text == "refused"  # type: ignore[union-attr]
    assert [message.text for message in host.agent("bo").transcript()] == ["from a tool"] * 2


def test_quiesce_from_a_tool_is_refused_before_any_effect_with_the_ring(
    host: HostedRuntime,
) -> None:
    """It would wait for the tool's own turn."""

    def quiesces() -> str:
        try:
            host.quiesce("from a tool")
        except AskCycleError as error:
            return " ".join(error.ring)
        return "quiesced"

    ana = host.add_agent(spec([call_tool("t"), reply("end")], tools=[tool("t", quiesces)]))
    ana.send("go")
    ana.wait_idle(block=False).get(timeout=WAIT_S)
    (results,) = [message for message in ana.transcript() if message.role == "results"]
    text = results.blocks[0].content[0].text  # type: ignore[union-attr]
    assert text == "agent:ana agent:ana"
    assert host.status().mode.state == "serving"


def test_an_actor_is_started_in_the_hosts_system_from_any_thread(host: HostedRuntime) -> None:
    class Adder(TrioActor):
        def on_receive(self, message: int) -> int:
            return message + 1

    ref = Adder.start()
    assert ref.ask(1) == 2
    ref.stop()


def test_a_turn_that_was_stopped_by_close_goes_on_at_the_next_open(tmp_path: Path) -> None:
    gate = Gate()
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec([gate]))
        ana.send("hi")
        host._host.run(gate.wait_entered)  # type: ignore[union-attr]
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec([reply("fresh")]))
        ana.wait_idle()
        assert [message.text for message in ana.transcript()][-1] == "fresh"


ELSEWHERE = {
    "system": "`host.runtime.system`: what of it may be called from any thread is",
    "hand_over": "`send(..., block=False)`",
    "hand_over_many": "`send_many(..., block=False)`",
    "id": "an attribute of each",
}
"""What a threaded host has by another name."""


@pytest.mark.parametrize(
    ("trio_side", "hosted"),
    [
        (Runtime, HostedRuntime),
        (AgentHandle, HostedAgent),
        (Conversation, HostedConversation),
        (RunHandle, HostedRun),
    ],
    ids=["runtime", "agent", "conversation", "run"],
)
def test_every_public_verb_is_there_under_threads_with_the_same_arguments(
    trio_side: type, hosted: type
) -> None:
    names = {name for name in dir(trio_side) if not name.startswith("_")}
    here = {name for name in dir(hosted) if not name.startswith("_")}
    assert names - here <= set(ELSEWHERE)
    for name in sorted(names & here):
        verb = getattr(trio_side, name)
        if not callable(verb):
            continue
        arguments = inspect.signature(verb).parameters
        under_threads = dict(inspect.signature(getattr(hosted, name)).parameters)
        blocks = under_threads.pop("block", None)
        assert blocks is None or blocks.default is True, name
        assert [(each.name, each.kind, each.default) for each in under_threads.values()] == [
            (each.name, each.kind, each.default) for each in arguments.values()
        ], name


def test_figures_are_read_under_threads(host: HostedRuntime) -> None:
    host.add_agent(spec()).wait_idle()
    found = host.statistics()
    assert (found.agents, found.waits) == ({"idle": 1}, 0)
    assert host.unpark("runs", requester="ops") is False


class Runs(TrioActor):
    """Runs what it is asked in a thread, and waits for it."""

    async def on_receive(self, message: Any) -> Any:
        return await trio.to_thread.run_sync(message)


def test_close_that_a_handler_would_wait_for_is_refused_and_leaves_all_as_it_was(
    host: HostedRuntime,
) -> None:
    ana = host.add_agent(spec(echo()))
    actor = Runs.start()
    with pytest.raises(StopCycleError):
        actor.ask(host.close, timeout=WAIT_S)
    ana.send("go")
    ana.wait_idle()
    assert actor.ask(lambda: 1, timeout=WAIT_S) == 1
    host.close()
    with pytest.raises(RuntimeClosedError):
        ana.send("more")
