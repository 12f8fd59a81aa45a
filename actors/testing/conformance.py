"""What every provider adapter must do, as tests to inherit.

    class TestMyAdapter(WireConformance):
        def adapter(self, base_url, **deadlines):
            return MyProvider(api_key="any", base_url=base_url, **deadlines)

`ProviderConformance` holds for anything that implements `Provider`; `WireConformance` adds what
needs a socket, over `ProviderSimulator`. Run them by pytest under trio (pytest-trio's mode).

Nothing here sleeps. Where a deadline has to pass it is one of the adapter's own, set short; where
one must not pass it is far longer than what the simulator does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from abeyance.storage.tables.blocks import TextBlock, ThinkingBlock, ToolUseBlock

from ..providers.declaration import check_provider
from ..providers.port import (
    ModelReply,
    ModelRequest,
    Permit,
    PermitError,
    Provider,
    ProviderError,
    ProviderMessage,
    ProviderStalledError,
    ReplyDelta,
    StopReason,
    ToolSchema,
    permitted,
)
from ..providers.stated import StatedWait, WaitEnds, WaitKind
from .clock import WallClock
from .simulator import Answer, ProviderSimulator, SimulatedTool

TIMEOUT_S = 20.0
"""No test here takes a second; a loaded machine may."""


@dataclass(slots=True)
class Served:
    """A provider under test, and an independent count of the requests that reached the far side."""

    provider: Provider
    requests_made: Callable[[], int]
    clock: WallClock
    simulator: ProviderSimulator | None = None
    deltas: list[ReplyDelta] = field(default_factory=list)
    permits: list[Permit] = field(default_factory=list)

    async def call(self, text: str = "hello") -> ModelReply:
        """Make one call under a permit of its own."""
        self.permits.append(Permit(len(self.permits) + 1, "ana", "m", "turn"))
        with permitted(self.permits[-1]), trio.fail_after(TIMEOUT_S):
            return await self.provider.call(a_request(text), self.deltas.append)

    async def failed_call(self) -> ProviderError:
        """Make one call that must fail, and return its error."""
        try:
            answer = await self.call()
        except ProviderError as error:
            return error
        raise AssertionError(f"the call should have failed, and returned {answer}")

    def over(self) -> ProviderSimulator:
        """The simulator, for tests that look at the wire."""
        assert self.simulator is not None
        return self.simulator


def a_request(text: str = "hello") -> ModelRequest:
    """A small request with a tool."""
    return ModelRequest(
        "m",
        (ProviderMessage("user", (TextBlock(text=text),)),),
        system="You are Ana.",
        tools=(ToolSchema("look", "Look at something.", {"type": "object"}),),
    )


def _stated(error: ProviderError) -> StatedWait:
    assert error.stated is not None, f"no statement was read: {error}"
    return error.stated


class ProviderConformance(ABC):
    """What holds for every provider. Implement `serving`."""

    @abstractmethod
    def serving(self, *answers: Answer) -> AbstractAsyncContextManager[Served]:
        """Serve these answers, one a request."""

    async def test_it_declares_all_that_a_provider_must(self) -> None:
        async with self.serving() as served:
            assert check_provider(served.provider) is served.provider

    async def test_it_sends_nothing_without_a_permit(self) -> None:
        async with self.serving(Answer(text="never")) as served:
            with trio.fail_after(TIMEOUT_S):
                try:
                    await served.provider.call(a_request(), served.deltas.append)
                except PermitError:
                    pass
                else:
                    raise AssertionError("a call without a permit went through")
            assert served.requests_made() == 0

    async def test_one_permit_is_good_for_one_request(self) -> None:
        async with self.serving(Answer(text="one"), Answer(text="two")) as served:
            await served.call()
            assert [permit.used for permit in served.permits] == [True]
            with permitted(served.permits[0]), trio.fail_after(TIMEOUT_S):
                try:
                    await served.provider.call(a_request(), served.deltas.append)
                except PermitError:
                    pass
                else:
                    raise AssertionError("a used permit was good for a second request")
            assert served.requests_made() == 1

    async def test_concurrent_calls_use_a_permit_each(self) -> None:
        async with self.serving(*(Answer(text="yes") for _ in range(5))) as served:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(served.call)
            assert served.requests_made() == 5
            assert all(permit.used for permit in served.permits)

    async def test_a_reply_holds_what_was_sent_and_its_deltas_come_to_it(self) -> None:
        tool = SimulatedTool("look", {"at": "the sky", "times": [1, 2]}, id="call_7")
        spoken = Answer(text="Let me look at that, twice.", tools=(tool,))
        async with self.serving(spoken) as served:
            answer = await served.call()
        assert answer.blocks == (
            TextBlock(text="Let me look at that, twice."),
            ToolUseBlock(id="call_7", name="look", input={"at": "the sky", "times": [1, 2]}),
        )
        assert answer.stop is StopReason.TOOL_USE
        texts = [delta.text for delta in served.deltas if delta.kind == "text"]
        assert "".join(texts) == "Let me look at that, twice."

    async def test_usage_is_as_the_provider_counted(self) -> None:
        async with self.serving(Answer(text="three words here")) as served:
            usage = (await served.call()).usage
        assert usage.output_tokens == 3
        assert usage.input_tokens > 0

    async def test_a_limit_is_one_error_that_carries_what_was_stated(self) -> None:
        limit = Answer(status=429, headers={"retry-after": "7200"})
        async with self.serving(limit, Answer(text="never")) as served:
            error = await served.failed_call()
            assert served.requests_made() == 1, "it retried"
        stated = _stated(error)
        assert (error.status, error.retryable, error.sent) == (429, True, True)
        assert (stated.kind, stated.ends) == (WaitKind.RATE_LIMITED, WaitEnds.UNTIL)
        assert stated.deadline_ms == served.clock.now_ms() + 7_200_000

    async def test_a_server_fault_is_retryable_and_not_retried(self) -> None:
        async with self.serving(Answer(status=500), Answer(text="never")) as served:
            error = await served.failed_call()
            assert served.requests_made() == 1, "it retried"
        assert (error.status, error.retryable, error.stated) == (500, True, None)

    async def test_a_terminal_refusal_keeps_the_wait_it_states(self) -> None:
        async with self.serving(Answer(status=401, headers={"retry-after": "10"})) as served:
            error = await served.failed_call()
        assert (error.status, error.retryable) == (401, False)
        assert _stated(error).kind is WaitKind.OTHER

    async def test_a_refusal_that_states_nothing_states_nothing(self) -> None:
        async with self.serving(Answer(status=400)) as served:
            error = await served.failed_call()
        assert (error.status, error.retryable, error.stated) == (400, False, None)

    async def test_closing_is_idempotent(self) -> None:
        async with self.serving() as served:
            await served.provider.aclose()
            await served.provider.aclose()


class WireConformance(ProviderConformance):
    """What holds for an adapter on a socket. Implement `adapter`."""

    signs_reasoning = True
    """Whether the wire gives a signature for a model's reasoning, by which it can be sent again."""

    @abstractmethod
    def adapter(self, base_url: str, *, clock: WallClock, **deadlines: float) -> Any:
        """Make the adapter. `deadlines` are any of byte_idle_s, first_event_s and call_s."""

    @asynccontextmanager
    async def serving(self, *answers: Answer, **deadlines: float) -> AsyncIterator[Served]:
        """Serve these answers, one a request, over a real socket."""
        left = list(answers)
        clock = WallClock()
        async with ProviderSimulator(lambda _request: left.pop(0)) as simulator:
            provider = self.adapter(simulator.base_url, clock=clock, **deadlines)
            try:
                yield Served(provider, lambda: len(simulator.log), clock, simulator)
            finally:
                with trio.CancelScope(shield=True):
                    await provider.aclose()

    async def test_cached_tokens_are_counted_apart(self) -> None:
        usage = {"cache_read_input_tokens": 11, "cache_creation_input_tokens": 7}
        async with self.serving(Answer(text="ok", usage=usage)) as served:
            counted = (await served.call()).usage
        assert (counted.cache_read_tokens, counted.cache_write_tokens) == (11, 7)

    async def test_tokens_are_told_as_they_come(self) -> None:
        async with self.serving(Answer(text="ok")) as served:
            counted = (await served.call()).usage
            assert served.permits[-1].tokens == counted

    async def test_reasoning_keeps_its_signature(self) -> None:
        async with self.serving(Answer(text="ok", thinking="let me think")) as served:
            answer = await served.call()
        first = answer.blocks[0]
        assert isinstance(first, ThinkingBlock)
        assert first.thinking == "let me think"
        assert bool(first.signature) is self.signs_reasoning

    async def test_a_redirect_is_not_followed(self) -> None:
        elsewhere = Answer(status=307, headers={"location": "/v1/messages"})
        async with self.serving(elsewhere, Answer(text="never")) as served:
            error = await served.failed_call()
            assert served.requests_made() == 1
        assert error.status == 307

    async def test_an_unreachable_provider_is_an_unsent_retryable_failure(self) -> None:
        async with self.serving() as served:
            closed = served.over().base_url
        provider = self.adapter(closed, clock=WallClock())
        error = await Served(provider, lambda: 0, WallClock()).failed_call()
        await provider.aclose()
        assert (error.sent, error.retryable, error.status, error.stated) == (
            False,
            True,
            None,
            None,
        )

    async def test_the_end_of_the_message_completes_a_call_whose_socket_stays_open(self) -> None:
        async with self.serving(Answer(text="done", linger=True)) as served:
            assert (await served.call()).blocks == (TextBlock(text="done"),)

    async def test_a_cut_stream_is_no_reply(self) -> None:
        cut = Answer(text="a long enough text", chunk_chars=4, cut_after=4)
        async with self.serving(cut, Answer(text="never")) as served:
            error = await served.failed_call()
            assert served.requests_made() == 1
        assert (error.retryable, error.sent) == (True, True)

    async def test_a_stream_that_ends_before_its_message_is_no_reply(self) -> None:
        async with self.serving(Answer(text="a long text", end_after=2)) as served:
            error = await served.failed_call()
        assert (error.retryable, error.sent) == (True, True)

    async def test_an_error_within_a_stream_is_classified_by_its_body(self) -> None:
        limited = {"type": "rate_limit_error", "message": "slow down"}
        async with self.serving(
            Answer(text="a long text", chunk_chars=2, error_after=4),
            Answer(text="x", error_after=1, error=limited, headers={"retry-after": "60"}),
            Answer(text="x", error_after=0, error={"type": "invalid_request_error"}),
        ) as served:
            overloaded, rate, invalid = [await served.failed_call() for _ in range(3)]
        assert (_stated(overloaded).kind, overloaded.retryable) == (WaitKind.OVERLOADED, True)
        assert (_stated(rate).kind, _stated(rate).ends) == (WaitKind.RATE_LIMITED, WaitEnds.UNTIL)
        assert (invalid.stated, invalid.retryable) == (None, False)

    async def test_silence_within_a_stream_is_a_stall(self) -> None:
        silent = Answer(text="a long text", chunk_chars=2, stall_after=4)
        async with self.serving(silent, byte_idle_s=0.1) as served:
            error = await served.failed_call()
            assert isinstance(error, ProviderStalledError)
            await self._left(served)

    async def test_silence_before_a_response_is_a_stall(self) -> None:
        async with self.serving(Answer(text="never", hold="x"), byte_idle_s=0.1) as served:
            assert isinstance(await served.failed_call(), ProviderStalledError)
            await self._left(served)

    async def test_comments_feed_the_byte_deadline(self) -> None:
        slow = Answer(text="ab", chunk_chars=1, chunk_delay_ms=1_000, keep_alive_ms=20)
        async with self.serving(slow, byte_idle_s=0.6) as served:
            assert (await served.call()).blocks == (TextBlock(text="ab"),)

    async def test_pings_do_not_pass_for_the_first_event(self) -> None:
        pinging = Answer(text="x", stall_after=0, keep_alive_ms=20, keep_alive="ping")
        async with self.serving(pinging, byte_idle_s=TIMEOUT_S, first_event_s=0.2) as served:
            assert isinstance(await served.failed_call(), ProviderStalledError)

    async def test_a_whole_call_has_a_deadline_of_its_own(self) -> None:
        alive = Answer(text="xy", chunk_chars=1, stall_after=3, keep_alive_ms=20)
        async with self.serving(alive, byte_idle_s=TIMEOUT_S, call_s=0.2) as served:
            assert isinstance(await served.failed_call(), ProviderStalledError)

    async def test_a_cancelled_call_leaves_nothing_open(self) -> None:
        held = Answer(text="never finished", chunk_chars=2, hold_in_stream="mid")
        async with self.serving(held, Answer(text="next")) as served:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.call)
                await served.over().wait_held("mid")
                nursery.cancel_scope.cancel()
            await self._left(served)
            assert (await served.call()).blocks == (TextBlock(text="next"),)

    async def test_what_an_observer_raises_is_not_a_provider_failure(self) -> None:
        def observer(_delta: ReplyDelta) -> None:
            raise ZeroDivisionError

        async with self.serving(Answer(text="hello")) as served:
            with permitted(Permit(1, "ana", "m", "turn")), trio.fail_after(TIMEOUT_S):
                try:
                    await served.provider.call(a_request(), observer)
                except ZeroDivisionError:
                    return
        raise AssertionError("the observer's error was swallowed")

    @staticmethod
    async def _left(served: Served) -> None:
        """The far side saw the client leave: its response is over and was not finished."""
        with trio.fail_after(TIMEOUT_S):
            entry = await served.over().wait_replied(1)
        assert not entry.finished
