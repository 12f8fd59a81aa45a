"""The suite for context strategies: the built-in one passes, and each planted fault fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors.context import CompactingContext, ContextDesk, ContextStrategy, Summary
from abeyance.actors.domain.errors import CallDeferredError
from abeyance.actors.providers.port import ModelRequest, ProviderError, ProviderMessage
from abeyance.actors.testing import context_conformance
from abeyance.actors.testing.context_conformance import ContextConformance
from abeyance.storage.tables.blocks import TextBlock


@pytest.mark.behaviour("R-33")
class TestCompactingContext(ContextConformance):
    def strategy(self) -> ContextStrategy:
        return CompactingContext(past_chars=4_000, keep_chars=1_000)


class Window:
    """Leaves out all but the newest rows; asks nobody. A host's own, as the page shows it."""

    def view(self, summaries: Any) -> Any:
        return next(iter(summaries), None)

    async def compact(self, desk: ContextDesk) -> None:
        kept = next(desk.summaries(), None)
        rows = [row async for row in desk.rows(after=kept.last if kept else 0)]
        if len(rows) <= 16:
            return
        last = min(rows[-8].seq, desk.coverable())
        ends = [row.seq for row in rows if row.seq <= last and _ends(row)]
        if ends:
            await desk.keep("", last=ends[-1])

    async def on_wait_recorded(self, event: Any) -> None:
        pass

    async def on_wait_released(self, event: Any) -> None:
        pass

    async def on_call_deferred(self, event: Any) -> None:
        pass


def _ends(row: Any) -> bool:
    return row.role == "assistant" and all(isinstance(block, TextBlock) for block in row.blocks)


class TestWindow(ContextConformance):
    calls = False

    def strategy(self) -> ContextStrategy:
        return Window()


# -- planted faults ------------------------------------------------------------------------------


class Simple(Window):
    """A strategy that passes, for faults to be planted in."""

    past_chars = 4_000

    async def compact(self, desk: ContextDesk) -> None:
        if (desk.size or 0) <= self.past_chars:
            return
        base = next(desk.summaries(), None)
        rows = [row async for row in desk.rows(after=base.last if base else 0)]
        last = self.last_of(rows, desk)
        if last is None or len(rows) < 6:
            return
        text = await self.sum_up(desk)
        await desk.keep(text, last=last)

    def last_of(self, rows: Any, desk: ContextDesk) -> int | None:
        ends = [row.seq for row in rows[:-4] if row.seq <= desk.coverable() and _ends(row)]
        return ends[-1] if ends else None

    async def sum_up(self, desk: ContextDesk) -> str:
        answer = await desk.call(self.request(desk))
        text = "".join(block.text for block in answer.blocks if isinstance(block, TextBlock))
        if not text.strip():
            raise ValueError("no summary")
        return text

    def request(self, desk: ContextDesk) -> ModelRequest:
        said = ProviderMessage("user", (TextBlock(text="sum up"),))
        return ModelRequest(model=desk.model, messages=(said,))


class TestSimple(ContextConformance):
    def strategy(self) -> ContextStrategy:
        return Simple()


class LacksAMethod(Simple):
    on_call_deferred = None  # type: ignore[assignment]


class MakesUpAView(Simple):
    def view(self, summaries: Any) -> Any:
        return Summary(1, 1, "made up", "MakesUpAView", 0)


class ForgetsItsView(Simple):
    def __init__(self) -> None:
        self.chosen: Any = None

    def view(self, summaries: Any) -> Any:
        self.chosen = None if self.chosen else next(iter(summaries), None)
        return self.chosen


class RaisesAtAnEvent(Simple):
    async def on_wait_released(self, event: Any) -> None:
        event.model.upper()


class HangsAtAnEvent(Simple):
    async def on_wait_recorded(self, event: Any) -> None:
        await trio.sleep_forever()


class CompactsWhatIsShort(Simple):
    async def compact(self, desk: ContextDesk) -> None:
        if desk.coverable():
            await desk.keep("short as it is", last=desk.coverable())


class NeverCompacts(Simple):
    async def compact(self, desk: ContextDesk) -> None:
        pass


class NeverUsesIt(Simple):
    def view(self, summaries: Any) -> Any:
        return None


class PartsACall(Simple):
    def last_of(self, rows: Any, desk: ContextDesk) -> int | None:
        calls = [row.seq for row in rows if row.role == "assistant" and not _ends(row)]
        return calls[0] if calls else super().last_of(rows, desk)


class CompactsAgain(Simple):
    async def compact(self, desk: ContextDesk) -> None:
        await super().compact(desk)
        if next(desk.summaries(), None):
            await self.sum_up(desk)


class RemembersByItself(Simple):
    """Its view is what it kept in this life."""

    def __init__(self) -> None:
        self.mine: set[int] = set()

    def view(self, summaries: Any) -> Any:
        return next((each for each in summaries if each.last in self.mine), None)

    async def compact(self, desk: ContextDesk) -> None:
        before = {each.last for each in desk.summaries()}
        await super().compact(desk)
        self.mine |= {each.last for each in desk.summaries()} - before


class MixesAgentsUp(Simple):
    """Its view is the last that it saw, of whichever agent."""

    def __init__(self) -> None:
        self.seen: Any = None

    async def compact(self, desk: ContextDesk) -> None:
        await super().compact(desk)
        self.seen = self.seen or next(desk.summaries(), None)

    def view(self, summaries: Any) -> Any:
        offered = list(summaries)
        return self.seen if offered and self.seen else next(iter(offered), None)


class RetriesWhileItIsHeld(Simple):
    async def sum_up(self, desk: ContextDesk) -> str:
        while True:
            try:
                return await super().sum_up(desk)
            except CallDeferredError:
                await trio.lowlevel.checkpoint()


class RetriesByItself(Simple):
    async def sum_up(self, desk: ContextDesk) -> str:
        try:
            return await super().sum_up(desk)
        except ProviderError:
            return await super().sum_up(desk)


class KeepsAnError(Simple):
    async def sum_up(self, desk: ContextDesk) -> str:
        try:
            return await super().sum_up(desk)
        except ProviderError as error:
            return str(error)


class KeepsNothingAsSummary(Simple):
    async def sum_up(self, desk: ContextDesk) -> str:
        answer = await desk.call(self.request(desk))
        return "".join(block.text for block in answer.blocks if isinstance(block, TextBlock))


class KeepsWhenItIsCancelled(Simple):
    async def sum_up(self, desk: ContextDesk) -> str:
        try:
            return await super().sum_up(desk)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await desk.keep("cut off", last=2)
            raise


PLANTED: dict[type[Simple], str] = {
    LacksAMethod: "test_it_has_every_method",
    MakesUpAView: "test_its_view_is_one_of_what_it_is_offered_or_none_and_stays_the_same",
    ForgetsItsView: "test_its_view_is_one_of_what_it_is_offered_or_none_and_stays_the_same",
    RaisesAtAnEvent: "test_it_takes_every_event",
    HangsAtAnEvent: "test_it_takes_every_event",
    CompactsWhatIsShort: "test_it_leaves_a_short_transcript_alone",
    NeverCompacts: "test_it_compacts_a_long_transcript_and_later_turns_carry_less",
    NeverUsesIt: "test_it_compacts_a_long_transcript_and_later_turns_carry_less",
    PartsACall: "test_it_compacts_a_transcript_of_tool_calls_and_parts_none_from_its_result",
    CompactsAgain: "test_it_compacts_nothing_twice",
    RemembersByItself: "test_it_goes_on_with_what_is_kept_after_a_restart",
    MixesAgentsUp: "test_one_instance_serves_several_agents",
    RetriesWhileItIsHeld: "test_a_call_that_is_deferred_is_made_once_when_the_wait_is_over",
    RetriesByItself: "test_a_call_that_fails_keeps_nothing",
    KeepsAnError: "test_a_call_that_fails_keeps_nothing",
    KeepsNothingAsSummary: "test_a_reply_without_text_keeps_nothing",
    KeepsWhenItIsCancelled: "test_one_that_is_cancelled_leaves_nothing_out",
}


def names_of(suite: type[ContextConformance]) -> set[str]:
    return {name for name in vars(suite) if name.startswith("test_")}


def test_every_test_of_the_suite_fails_on_a_fault_that_is_planted() -> None:
    assert set(PLANTED.values()) == names_of(ContextConformance)


@pytest.mark.drawn(5)
@pytest.mark.behaviour("R-33")
@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.__name__)
async def test_the_suite_fails_on_a_fault_that_is_planted(
    planted: type[Simple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suite(ContextConformance):
        def strategy(self) -> ContextStrategy:
            return planted()

    monkeypatch.setattr(context_conformance, "TIMEOUT_S", 2.0)
    test = getattr(Suite(), PLANTED[planted])
    arguments = {"tmp_path": tmp_path} if "tmp_path" in test.__code__.co_varnames else {}

    async def run() -> None:
        result = test(**arguments)
        if result is not None:
            await result

    with pytest.raises(BaseException):  # noqa: B017 - whatever the suite raises.
        await run()
