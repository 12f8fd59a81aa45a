"""What every provider that keeps conversations must do beside its calls, as tests to inherit.

    class TestMySessions(SessionConformance):
        def serving(self, *answers): ...

        async def lose(self, served, handle): ...

`SessionConformance` is for a provider that has `session` (`NativeSession`), beside
`ProviderConformance` for its calls. Run it by pytest under trio (pytest-trio's mode).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from abeyance.storage.tables.blocks import TextBlock

from ..providers.port import ModelReply, Permit, PermitError, ProviderError, permitted
from ..providers.sessions import NativeSession, SessionLostError, has_sessions
from ..providers.stated import WaitKind
from .conformance import TIMEOUT_S, Served, a_request
from .simulator import Answer

HANDLE_BYTES_MAX = 128


class SessionConformance(ABC):
    """What holds for every provider's sessions. Implement `serving` and `lose`."""

    resumes = True
    """Whether sessions have a handle by which they are resumed."""

    @abstractmethod
    def serving(self, *answers: Answer) -> AbstractAsyncContextManager[Served]:
        """Serve these answers, one a thing said. As of `ProviderConformance`."""

    @abstractmethod
    async def lose(self, served: Served, handle: str) -> None:
        """Have the far side forget a conversation."""

    async def test_it_has_sessions(self) -> None:
        async with self.serving() as served:
            assert has_sessions(served.provider)

    async def test_each_thing_said_is_one_request_under_a_permit_of_its_own(self) -> None:
        async with self.serving(Answer(text="one"), Answer(text="two")) as served:
            async with _session(served) as session:
                for text in ("one", "two"):
                    before = served.requests_made()
                    assert (await _say(served, session)).blocks == (TextBlock(text=text),)
                    assert served.requests_made() == before + 1
            assert [permit.used for permit in served.permits] == [True, True]

    async def test_nothing_is_said_without_a_permit_or_twice_by_one(self) -> None:
        async with (
            self.serving(Answer(text="one"), Answer(text="never")) as served,
            _session(served) as session,
        ):
            before = served.requests_made()
            await _refused(session)
            await _say(served, session)
            with permitted(served.permits[0]):
                await _refused(session)
            assert served.requests_made() == before + 1

    async def test_a_handle_stays_what_it_is(self) -> None:
        async with (
            self.serving(Answer(text="one"), Answer(text="two")) as served,
            _session(served) as session,
        ):
            handle = session.handle
            if not self.resumes:
                assert handle is None
            else:
                assert handle is not None
                assert 1 <= len(handle.encode()) <= HANDLE_BYTES_MAX
            for _ in range(2):
                await _say(served, session)
                assert session.handle == handle

    async def test_a_conversation_goes_on_by_its_handle_also_after_a_failure(self) -> None:
        if not self.resumes:
            return
        answers = (Answer(text="one"), Answer(status=500), Answer(text="two"))
        async with self.serving(*answers) as served:
            async with _session(served) as session:
                handle = session.handle
                await _say(served, session)
                await _failed(served, session)
            async with _session(served, handle) as session:
                assert session.handle == handle
                assert (await _say(served, session)).blocks == (TextBlock(text="two"),)

    async def test_what_was_lost_is_told_and_no_other_opened_in_its_place(self) -> None:
        if not self.resumes:
            return
        async with self.serving(Answer(text="one"), Answer(text="never")) as served:
            async with _session(served) as session:
                handle = session.handle
                await _say(served, session)
            assert handle is not None
            await self.lose(served, handle)
            for each in (handle, "nobodys-session"):
                assert (await _lost(served, each)).handle == each

    async def test_a_limit_is_one_error_that_carries_what_was_stated(self) -> None:
        limit = Answer(status=429, headers={"retry-after": "7200"})
        async with self.serving(limit, Answer(text="later")) as served, _session(served) as session:
            before = served.requests_made()
            error = await _failed(served, session)
            assert served.requests_made() == before + 1, "it retried"
            stated = error.stated
            assert stated is not None
            assert stated.kind is WaitKind.RATE_LIMITED
            assert stated.deadline_ms == served.clock.now_ms() + 7_200_000
            # The conversation goes on with what was refused.
            assert (await _say(served, session)).blocks == (TextBlock(text="later"),)


def _session(served: Served, handle: str | None = None) -> AbstractAsyncContextManager[Any]:
    provider: Any = served.provider
    opened: AbstractAsyncContextManager[Any] = provider.session(handle)
    return opened


async def _say(served: Served, session: NativeSession) -> ModelReply:
    served.permits.append(Permit(len(served.permits) + 1, "run", "m", "run"))
    with permitted(served.permits[-1]), trio.fail_after(TIMEOUT_S):
        return await session.send(a_request(), served.deltas.append)


async def _failed(served: Served, session: NativeSession) -> ProviderError:
    try:
        reply = await _say(served, session)
    except ProviderError as error:
        return error
    raise AssertionError(f"it should have failed, and returned {reply}")


async def _lost(served: Served, handle: str) -> SessionLostError:
    try:
        async with _session(served, handle):
            pass
    except SessionLostError as error:
        return error
    raise AssertionError(f"session {handle!r} is gone, and was opened")


async def _refused(session: NativeSession) -> None:
    try:
        with trio.fail_after(TIMEOUT_S):
            await session.send(a_request(), lambda _: None)
    except PermitError:
        return
    raise AssertionError("something was said without an unused permit")
