"""The scripted provider: permits, steps, failures made from responses, the echo."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    PermitError,
    ProviderError,
    ProviderMessage,
    ProviderStalledError,
    ReplyDelta,
    StopReason,
    permitted,
)
from abeyance.actors.providers.stated import WaitEnds, WaitKind
from abeyance.actors.testing import (
    Gate,
    ScriptedProvider,
    ScriptEndedError,
    WallClock,
    call_tool,
    fail,
    raise_,
    reply,
    stall,
)
from abeyance.storage.tables.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock


def said(*blocks: Block | str) -> ProviderMessage:
    return ProviderMessage(
        "user", tuple(TextBlock(text=b) if isinstance(b, str) else b for b in blocks)
    )


def answered(answer: ModelReply) -> ProviderMessage:
    return ProviderMessage("assistant", answer.blocks)


async def ask(provider: ScriptedProvider, *messages: ProviderMessage) -> ModelReply:
    request = ModelRequest("m", messages or (said("hello"),))
    with permitted(Permit(1, "ana", "m", "turn")):
        return await provider.call(request, lambda _delta: None)


async def test_a_call_without_a_permit_fails_and_leaves_no_trace():
    provider = ScriptedProvider([reply("hi")])
    with pytest.raises(PermitError):
        await provider.call(ModelRequest("m", (said("hello"),)), lambda _delta: None)
    assert (provider.requests, provider.steps_left) == ([], 1)


async def test_a_permit_is_good_for_one_call():
    provider = ScriptedProvider([reply("one"), reply("two")])
    request = ModelRequest("m", (said("hello"),))
    with permitted(Permit(1, "ana", "m", "turn")):
        await provider.call(request, lambda _delta: None)
        with pytest.raises(PermitError):
            await provider.call(request, lambda _delta: None)
    assert provider.requests == [request]


async def test_steps_answer_one_call_each_in_order():
    provider = ScriptedProvider([reply("one", "two"), call_tool("look", {"at": 1}, text="let me")])
    first, second = await ask(provider), await ask(provider)
    assert first.blocks == (TextBlock(text="one"), TextBlock(text="two"))
    assert first.stop is StopReason.END_TURN
    assert second.blocks == (
        TextBlock(text="let me"),
        ToolUseBlock(id="call_1", name="look", input={"at": 1}),
    )
    assert second.stop is StopReason.TOOL_USE


async def test_deltas_arrive_before_the_reply():
    seen: list[ReplyDelta] = []
    provider = ScriptedProvider([reply("a", ToolUseBlock(id="c", name="look", input={"x": 1}))])
    with permitted(Permit(1, "ana", "m", "turn")):
        await provider.call(ModelRequest("m", (said("hello"),)), seen.append)
    assert seen == [ReplyDelta("text", 0, "a"), ReplyDelta("tool_input", 1, '{"x": 1}')]


async def test_a_call_past_the_script_fails_loudly():
    provider = ScriptedProvider([])
    with pytest.raises(ScriptEndedError) as caught:
        await ask(provider)
    assert isinstance(caught.value, AbeyanceError)
    assert caught.value.code == "script_ended"


async def test_a_function_chooses_the_step_from_the_request():
    provider = ScriptedProvider(lambda request: reply(request.model.upper()))
    assert (await ask(provider)).blocks == (TextBlock(text="M"),)


async def test_a_failure_states_what_its_response_states():
    clock = WallClock(1_000_000_000_000)
    provider = ScriptedProvider([fail(retry_after=7200, body="slow down")], clock=clock)
    with pytest.raises(ProviderError, match="slow down") as caught:
        await ask(provider)
    error = caught.value
    assert (error.status, error.retryable, error.sent) == (429, True, True)
    assert error.stated is not None
    assert (error.stated.kind, error.stated.ends) == (WaitKind.RATE_LIMITED, WaitEnds.UNTIL)
    assert error.stated.deadline_ms == 1_000_007_200_000


async def test_a_terminal_failure_keeps_the_wait_it_states():
    provider = ScriptedProvider([fail(401, retry_after=10)])
    with pytest.raises(ProviderError) as caught:
        await ask(provider)
    assert not caught.value.retryable
    assert caught.value.stated is not None
    assert caught.value.stated.kind is WaitKind.OTHER


async def test_raise_raises_exactly_the_given_error():
    boom = RuntimeError("boom")
    with pytest.raises(RuntimeError) as caught:
        await ask(ScriptedProvider([raise_(boom)]))
    assert caught.value is boom


async def test_a_stall_fails_when_its_idle_time_has_passed(autojump_clock: trio.testing.MockClock):
    started = trio.current_time()
    with pytest.raises(ProviderStalledError):
        await ask(ScriptedProvider([stall()]))
    assert trio.current_time() - started == 120


async def test_an_endless_stall_ends_only_by_cancellation(autojump_clock: trio.testing.MockClock):
    with trio.move_on_after(1e6) as scope:
        await ask(ScriptedProvider([stall(None)]))
    assert scope.cancelled_caught


async def test_a_gate_blocks_its_call_until_it_is_released():
    gate = Gate(reply("after"))
    provider = ScriptedProvider([gate])
    answers: list[ModelReply] = []

    async def one_call() -> None:
        answers.append(await ask(provider))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_call)
        await gate.wait_entered()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        gate.release()
    assert answers[0].blocks == (TextBlock(text="after"),)


async def test_echo_answers_with_the_text_it_was_given():
    provider = ScriptedProvider.echo()
    assert (await ask(provider, said("one"))).blocks == (TextBlock(text="one"),)
    assert (await ask(provider, said("two"))).blocks == (TextBlock(text="two"),)


async def test_echo_calls_its_tool_in_every_round_but_the_last():
    messages = [said("hello")]
    for expected in ("call_1", "call_2", None, "call_3"):
        provider = ScriptedProvider.echo(tool="look", rounds=3)  # Made anew: nothing is kept in it.
        answer = await ask(provider, *messages)
        calls = [block for block in answer.blocks if isinstance(block, ToolUseBlock)]
        assert [call.id for call in calls] == ([expected] if expected else [])
        assert all(call.input == {"text": "hello"} for call in calls)
        messages.append(answered(answer))
        results = [ToolResultBlock(tool_use_id=call.id) for call in calls]
        messages.append(said(*results) if results else said("hello"))


def test_an_echo_of_several_rounds_needs_a_tool():
    with pytest.raises(ValueError, match="tool"):
        ScriptedProvider.echo(rounds=2)


async def test_close_is_idempotent():
    provider = ScriptedProvider([])
    await provider.aclose()
    await provider.aclose()
    assert provider.closed


async def test_a_wall_clock_follows_a_clock_that_jumps(autojump_clock: trio.testing.MockClock):
    clock = WallClock(1_000, follow_trio=True)
    await trio.sleep(0.3)
    await trio.sleep(0.4)
    assert clock.now_ms() == 1_700
    clock.advance(-500)
    await trio.sleep(1)
    assert clock.now_ms() == 2_200
    clock.set(5)
    assert clock.now_ms() == 5


def test_a_wall_clock_stands_still_unless_told():
    clock = WallClock(1_000)
    clock.advance(250)
    assert clock.now_ms() == 1_250
