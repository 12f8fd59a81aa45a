"""Tool calls that wait for a person: held by a row, decided once, begun once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    AgentSpec,
    ApprovalReceipt,
    CancelReceipt,
    NeedsApproval,
    RunContext,
    Tool,
)
from abeyance.actors.domain.approvals import DENIED_TEXT, EXPIRED_TEXT
from abeyance.actors.domain.errors import (
    ApprovalDecidedError,
    InvalidInputError,
    InvalidSpecError,
    InvalidToolError,
    RewindRefusedError,
    UnknownAgentError,
    UnknownApprovalError,
)
from abeyance.actors.domain.tool_results import CANCELLED_TEXT
from abeyance.actors.testing import call_tool, reply
from abeyance.storage.check import check
from abeyance.storage.tables.blocks import ToolUseBlock

from ..lives import KILLED, lived
from .children import approving
from .damage import DAMAGES, damage
from .world import SCHEMA, Stop, World, shown, texts, tool, until, wait_all_tasks_blocked

HOUR = 3_600.0
FIRST = "ana/1/1/0"


def use(name: str, id_: str, **fields: object) -> ToolUseBlock:
    return ToolUseBlock(id=id_, name=name, input=fields)


class Pay:
    """A tool that needs approval, and counts its effects."""

    def __init__(self, **policy: Any) -> None:
        self.effects: list[int] = []
        self._policy = NeedsApproval(**policy)

    def tool(self, name: str = "pay", **options: Any) -> Tool:
        async def pay(amount: int = 1) -> str:
            self.effects.append(amount)
            return f"paid {amount}"

        return tool(name, pay, approve=self._policy, **options)


async def held(world: World) -> None:
    await until(lambda: world.state().state == "held")


# -- one call ------------------------------------------------------------------------------------


async def test_a_call_that_needs_approval_waits_as_a_row_and_is_made_once_it_is_approved(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        script = [call_tool("pay", {"amount": 7}), reply("thanks")]
        ana = await world.add(script, tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        state = world.state()
        assert (state.state, state.held.cause) == ("held", "approval")
        assert state.held.reason == "a person decides on pay"
        (row,) = runtime.approvals()
        assert (row.id, row.agent, row.tool, row.input) == (FIRST, "ana", "pay", '{"amount": 7}')
        assert row.deadline_ms == row.asked_ms + 86_400_000
        assert runtime.approvals("ana") == (row,)
        with pytest.raises(UnknownAgentError):
            runtime.approvals("bo")
        assert (pay.effects, world.tool_calls()) == ([], [])
        receipt = await runtime.approve(FIRST, requester="ops", note="go on")
        assert (receipt.id, receipt.state, receipt.by) == (FIRST, "approved", "api:ops")
        await ana.wait_idle()
        assert pay.effects == [7]
        assert runtime.approvals() == ()
        assert await shown(ana) == [
            "user: a",
            "assistant: <pay>",
            "results: =paid 7",
            "assistant: thanks",
        ]
        assert texts(world.providers[0].requests[1]) == [
            "user: a",
            "agent: <pay>",
            "user: =paid 7",
        ]
        (turn,) = world.turns()
        assert (turn.state, turn.attempts) == ("done", 1)
        lines = [line for line in world.rows("log") if line.event == "tool_approved"]
        assert [line.text for line in lines] == [f"pay ({FIRST}) by api:ops"]
        assert check(runtime._store).findings == ()


async def test_a_call_that_is_denied_is_not_made_and_its_model_is_told_why(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("pity")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        await runtime.deny(FIRST, requester="ops", note="too much")
        await ana.wait_idle()
        assert (await shown(ana))[2:] == [
            f"results: =!{DENIED_TEXT} too much",
            "assistant: pity",
        ]
        assert (pay.effects, world.tool_calls()) == ([], [])


@pytest.mark.parametrize("otherwise", ["deny", "approve"])
@pytest.mark.parametrize("where", ["held", "over a restart"])
async def test_what_nobody_decides_in_time_is_decided_by_default(
    world: World, virtual_time: MockClock, otherwise: str, where: str
) -> None:
    pay = Pay(within_s=HOUR, otherwise=otherwise)
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        if where == "held":
            await trio.sleep(HOUR - 60)
            assert world.state().state == "held"
            await trio.sleep(120)
            await ana.wait_idle()
    if where != "held":
        world.clock.advance(int(HOUR * 1_000))
        async with world.open() as runtime:
            ana = await world.add([reply("on")], tools=[pay.tool()])
            await ana.wait_idle()
    async with world.open() as runtime:
        ana = await world.add([], tools=[pay.tool()])
        denied = otherwise == "deny"
        result = f"!{EXPIRED_TEXT}" if denied else "paid 1"
        assert (await shown(ana))[2:] == [f"results: ={result}", "assistant: on"]
        assert len(pay.effects) == (0 if denied else 1)
        (row,) = world.rows("approvals")
        assert (row.by, row.state) == ("deadline", "denied" if denied else "approved")
        verb = runtime.approve if denied else runtime.deny
        with pytest.raises(ApprovalDecidedError) as caught:
            await verb(FIRST, requester="ops")
        assert (caught.value.state, caught.value.by) == (row.state, "deadline")


async def test_a_call_without_a_deadline_waits_for_as_long_as_nobody_decides(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay(within_s=None)
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        world.clock.advance(400 * 86_400_000)
        await trio.sleep(120)
        assert world.state().state == "held"
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        assert pay.effects == [1]


async def test_which_calls_wait_is_up_to_the_tool_and_what_cannot_be_told_waits(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay(when=lambda fields: fields["amount"] > 10)
    async with world.open() as runtime:
        calls = [use("pay", "c1", amount=1), use("pay", "c2", amount=50), use("pay", "c3")]
        ana = await world.add([reply(*calls), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        assert [row.call for row in runtime.approvals()] == [1, 2]
        assert pay.effects == [1]
        for row in runtime.approvals():
            await runtime.approve(row.id, requester="ops")
        await ana.wait_idle()
        assert sorted(pay.effects) == [1, 1, 50]


# -- calls beside it -----------------------------------------------------------------------------


async def test_other_calls_of_the_round_run_at_once_and_one_approved_meanwhile_beside_them(
    world: World, virtual_time: MockClock
) -> None:
    pay, stop = Pay(), Stop("slow")
    async with world.open() as runtime:
        calls = [use("pay", "c1"), use("wait", "c2"), use("pay", "c3")]
        ana = await world.add([reply(*calls), reply("on")], tools=[pay.tool(), stop.tool()])
        await ana.send("a")
        await stop.entered.wait()
        assert [row.call for row in runtime.approvals()] == [0, 2]
        await runtime.approve("ana/1/1/2", requester="ops")
        await until(lambda: pay.effects == [1])
        assert world.state().state == "running"
        stop.go.set()
        await ana.wait_idle()
        # One waits still: the results of the others stand, and are not asked for again.
        assert world.state().held.cause == "approval"
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        assert (pay.effects, stop.effects) == ([1, 1], 1)
        assert (await shown(ana))[2] == "results: =paid 1 =slow =paid 1"


async def test_one_of_two_that_wait_is_made_when_it_is_approved_and_the_other_waits_on(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        calls = [use("pay", "c1", amount=1), use("pay", "c2", amount=2)]
        ana = await world.add([reply(*calls), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        await runtime.approve("ana/1/1/1", requester="ops")
        await ana.wait_idle()
        assert pay.effects == [2]
        assert world.state().held.cause == "approval"
        await runtime.deny(FIRST, requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[2] == f"results: =!{DENIED_TEXT} =paid 2"
        assert pay.effects == [2]


async def test_messages_that_come_while_it_waits_land_behind_the_results(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on"), reply("b?")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        assert (await ana.send("b")).state == "accepted"
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: <pay>"
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[2:5] == ["results: =paid 1", "user: b", "assistant: on"]
        assert check(runtime._store).findings == ()


async def test_agents_that_share_the_slot_wait_for_the_decision(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()], slot="room")
        bo = await world.add([reply("bo")], "bo", slot="room")
        await ana.send("a")
        await ana.wait_idle()
        await bo.send("b")
        await wait_all_tasks_blocked()
        assert world.providers[1].requests == []
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        await bo.wait_idle()
        assert (await shown(ana))[2] == "results: =paid 1"
        assert len(world.providers[1].requests) == 1


# -- whatever else happens while it waits --------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_it_waits_over_restarts_and_is_told_of_once(
    world: World, virtual_time: MockClock, times: int
) -> None:
    pay = Pay()
    async with world.open():
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        (lease,) = world.rows("leases", "ana")
    for _ in range(times):
        async with world.open() as runtime:
            ana = await world.add([], tools=[pay.tool()])
            await ana.wait_idle()
            assert world.state().held.cause == "approval"
            await trio.sleep(120)
            assert [row.id for row in runtime.approvals()] == [FIRST]
            # It costs no start of its turn.
            assert world.rows("leases", "ana") == [lease]
    async with world.open() as runtime:
        # Decided on before its agent is here: it is refused, and nothing is lost by it.
        with pytest.raises(UnknownAgentError):
            await runtime.approve(FIRST, requester="ops")
        ana = await world.add([reply("on")], tools=[pay.tool()])
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        assert pay.effects == [1]
        assert [alert.kind for alert in runtime.alerts()] == ["approval"]
        assert "abeyance approve" in runtime.alerts()[0].text


async def test_a_turn_that_waits_is_cancelled_and_its_call_never_made(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        calls = [use("look", "c1"), use("pay", "c2")]
        ana = await world.add(
            [reply(*calls), reply("next")], tools=[tool("look", lambda: "seen"), pay.tool()]
        )
        await ana.send("a")
        await ana.wait_idle()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        assert runtime.approvals() == ()
        assert (await shown(ana))[2:] == [
            f"results: =seen =!{CANCELLED_TEXT}",
            "marker: this turn was cancelled by api:ops",
        ]
        with pytest.raises(ApprovalDecidedError) as caught:
            await runtime.approve("ana/1/1/1", requester="ops")
        assert caught.value.state == "over"
        await ana.send("b")
        await ana.wait_idle()
        assert pay.effects == []
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]
        assert check(runtime._store).findings == ()


async def test_a_turn_that_waits_in_a_quiesced_host_is_cancelled_there(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("b?")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        await runtime.quiesce("upgrade")
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        assert (await shown(ana))[-1] == "marker: this turn was cancelled by api:ops"
        assert len(world.providers[0].requests) == 1


async def test_a_quiesced_host_takes_decisions_and_acts_on_them_once_it_resumes(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        receipt = await runtime.quiesce("upgrade")
        assert receipt.held == ("ana",)
        await runtime.approve(FIRST, requester="ops")
        await wait_all_tasks_blocked()
        assert pay.effects == []
    async with world.open() as runtime:
        ana = await world.add([reply("on")], tools=[pay.tool()])
        await wait_all_tasks_blocked()
        assert pay.effects == []
        await runtime.resume()
        await ana.wait_idle()
        assert pay.effects == [1]
        assert (await shown(ana))[-1] == "assistant: on"


async def test_an_agent_that_is_removed_while_it_waits_closes_its_gap_with_what_is_known(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        calls = [use("look", "c1"), use("pay", "c2"), use("pay", "c3")]
        ana = await world.add([reply(*calls)], tools=[tool("look", lambda: "seen"), pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        await runtime.deny("ana/1/1/1", requester="ops")
        await ana.wait_idle()
        await runtime.remove_agent("ana", requester="ops")
        assert runtime.approvals() == ()
        ana = await world.add([reply("on")])
        assert (await shown(ana))[2] == f"results: =seen =!{DENIED_TEXT} =!{CANCELLED_TEXT}"
        assert pay.effects == []
        assert check(runtime._store).findings == ()


async def test_a_rewind_is_refused_while_a_call_waits(
    world: World, virtual_time: MockClock
) -> None:
    """Its results have a place to stand: the turn is cancelled first, or decided."""
    pay = Pay()
    async with world.open():
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        with pytest.raises(RewindRefusedError):
            await ana.rewind(to=1, requester="ops")
        assert world.state().held.cause == "approval"
        await ana.cancel_turn(requester="ops")
        await ana.rewind(to=1, requester="ops")
        assert await shown(ana) == ["user: a"]


async def test_a_run_that_asks_the_agent_waits_for_the_decision_and_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()

    async def workflow(run: RunContext, _params: Any) -> str:
        return await run.ask("first", "ana", "pay?")

    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()])
        runtime.add_workflow("asks", workflow)
        run = await runtime.start_run("k", "asks")
        await held(world)
        await ana.wait_idle()
        await trio.sleep(60)
        # It waits for no capacity.
        assert run.status().state == "running"
        await runtime.approve(FIRST, requester="ops")
        assert (await run.wait()).result == "on"


async def test_a_call_that_waited_is_decided_by_its_row_whatever_its_tool_says_by_then(
    world: World, virtual_time: MockClock
) -> None:
    effects: list[int] = []
    async with world.open():
        ana = await world.add([call_tool("pay")], tools=[Pay().tool()])
        await ana.send("a")
        await ana.wait_idle()
    async with world.open() as runtime:
        free = tool("pay", lambda: effects.append(1))
        ana = await world.add([reply("on")], tools=[free])
        await ana.wait_idle()
        assert effects == []
        await runtime.deny(FIRST, requester="ops")
        await ana.wait_idle()
        assert effects == []
        assert (await shown(ana))[-1] == "assistant: on"


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_row_that_cannot_be_read_fails_its_turn_by_name_and_begins_nothing(
    world: World, virtual_time: MockClock, how: str
) -> None:
    pay = Pay()
    async with world.open():
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
    damage(world.directory, world.clock, "approvals", ("ana", 1, 1, 0), how)
    async with world.open() as runtime:
        ana = await world.add([reply("next")], tools=[pay.tool()])
        await ana.wait_idle()
        (turn,) = world.turns()
        assert turn.state == "failed"
        assert "approvals" in (turn.error or "")
        assert runtime.approvals() == ()
        await ana.send("b")
        await ana.wait_idle()
        assert pay.effects == []
        assert (await shown(ana))[-1] == "assistant: next"


# -- twice, and what is malformed ----------------------------------------------------------------


async def test_whoever_decides_twice_is_told_of_one_decision_and_nobody_changes_it(
    world: World, virtual_time: MockClock
) -> None:
    pay, came = Pay(), []
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()

        async def decide(verb: Any, by: str) -> None:
            try:
                came.append(await verb(FIRST, requester=by))
            except ApprovalDecidedError as error:
                came.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, runtime.approve, "one")
            nursery.start_soon(decide, runtime.approve, "two")
            nursery.start_soon(decide, runtime.deny, "three")
        await ana.wait_idle()
        (row,) = world.rows("approvals")
        receipts = {each for each in came if isinstance(each, ApprovalReceipt)}
        assert receipts == {ApprovalReceipt(FIRST, row.state, row.by, row.decided_ms)}
        refused = [each for each in came if isinstance(each, ApprovalDecidedError)]
        assert [(each.state, each.by) for each in refused] == [(row.state, row.by)] * len(refused)
        assert len(refused) == (1 if row.state == "approved" else 2)
        assert len(pay.effects) == (1 if row.state == "approved" else 0)
        # Once its turn is over, too.
        verb = runtime.approve if row.state == "approved" else runtime.deny
        assert await verb(FIRST, requester="late") in receipts


@pytest.mark.parametrize(
    "wrong",
    ["", "ana", "ana/1/1", "ana/1/1/x", "ana/1/1/-1", "/1/1/0", "a\nb/1/1/0", None, 7, "x" * 600],
    ids=repr,
)
async def test_a_malformed_id_note_or_requester_decides_nothing(
    world: World, virtual_time: MockClock, wrong: Any
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()
        for verb in (runtime.approve, runtime.deny):
            with pytest.raises(InvalidInputError) as caught:
                await verb(wrong, requester="ops")
            assert caught.value.field == "id"
            with pytest.raises(InvalidInputError, match="requester"):
                await verb(FIRST, requester="")
            with pytest.raises(InvalidInputError, match="note"):
                await verb(FIRST, requester="ops", note=7)  # type: ignore[arg-type]
            for unknown in ("ana/1/1/1", "ana/9/1/0"):
                with pytest.raises(UnknownApprovalError):
                    await verb(unknown, requester="ops")
            with pytest.raises(UnknownApprovalError):
                await verb("cy/1/1/0", requester="ops")
        assert [row.id for row in runtime.approvals()] == [FIRST]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Tool("pay", "", SCHEMA, print, approve=None), "approve"),  # type: ignore[arg-type]
        (lambda: Tool("pay", "", SCHEMA, print, approve=1), "approve"),  # type: ignore[arg-type]
        (lambda: NeedsApproval(within_s=0), "within_s"),
        (lambda: NeedsApproval(within_s=float("nan")), "within_s"),
        (lambda: NeedsApproval(within_s=367 * 86_400), "within_s"),
        (lambda: NeedsApproval(within_s=True), "within_s"),
        (lambda: NeedsApproval(otherwise="maybe"), "otherwise"),  # type: ignore[arg-type]
        (lambda: NeedsApproval(when=3), "when"),  # type: ignore[arg-type]
    ],
)
def test_a_tools_malformed_policy_is_refused_by_its_field_as_it_is_made(
    make: Callable[[], object], field: str
) -> None:
    with pytest.raises(InvalidToolError) as caught:
        make()
    assert caught.value.field == field


async def test_an_ephemeral_run_has_no_tool_that_waits_for_a_person(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = world.provider([])
        spec = AgentSpec(name="sum", provider=provider, model="m", tools=[Pay().tool()])
        with pytest.raises(InvalidSpecError) as caught:
            await runtime.run_ephemeral(spec, "go")
        assert caught.value.field == "tools[0].approve"


# -- deaths --------------------------------------------------------------------------------------


@pytest.mark.drawn(16)
@pytest.mark.parametrize("victim", ["agent", "slot", "gate", "journal", "alerts"])
@pytest.mark.parametrize("after", range(0, 40, 4))
async def test_a_decision_is_acted_on_once_when_an_actor_dies_under_it(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        ana = await world.add([call_tool("pay"), reply("on")], tools=[pay.tool()])
        await ana.send("a")
        await ana.wait_idle()

        async def kill() -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            assert (await runtime.approve(FIRST, requester="ops")).state == "approved"
        await ana.wait_idle()
        assert pay.effects == [1]
        assert (await shown(ana))[2:] == ["results: =paid 1", "assistant: on"]
        assert check(runtime._store).findings == ()


@pytest.mark.drawn(10)
@pytest.mark.parametrize("victim", ["agent", "slot", "journal"])
@pytest.mark.parametrize("after", range(0, 60, 6))
async def test_a_turn_comes_to_wait_when_an_actor_dies_on_the_way(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    pay = Pay()
    async with world.open() as runtime:
        script = [call_tool("pay"), *[reply("on")] * 2]
        ana = await world.add(script, tools=[pay.tool()])

        async def kill() -> None:
            await until(lambda: bool(world.providers[0].requests))
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            await ana.send("a")
            await ana.wait_idle()
        await ana.wait_idle()
        rows = runtime.approvals()
        if not rows:
            # Its first reply died with the agent before it was recorded, and was asked for anew.
            assert (await shown(ana))[-1] == "assistant: on"
            return
        assert [row.id for row in rows] == [FIRST]
        await runtime.approve(FIRST, requester="ops")
        await ana.wait_idle()
        assert pay.effects == [1]
        assert [alert.kind for alert in runtime.alerts()] == ["approval"]


def paid(directory: Path) -> int:
    """How often the tool's effect was had in the host that died."""
    effects = Path(f"{directory}.effects")
    return effects.read_text().count("paid") if effects.exists() else 0


def live(directory: Path, act: str, point: str) -> tuple[int, list[str]]:
    ended = lived(approving.live, directory, act, point)
    return ended.status, ended.out.split("\n")[:-1]


@pytest.mark.drawn(12)
@pytest.mark.parametrize("act", ["approve", "deny"])
@pytest.mark.parametrize(
    "point",
    [
        "approval.after_asked:1",
        "turn.after_hold:1",
        *(f"writer.{side}_commit:{nth}" for side in ("before", "after") for nth in range(1, 9)),
        "tool.after_started:1",
        "tool.after_body:1",
        "tool.after_done:1",
    ],
)
async def test_a_call_is_decided_and_begun_once_wherever_its_host_is_killed(
    world: World, virtual_time: MockClock, act: str, point: str
) -> None:
    directory = world.directory
    code, told = live(directory, act, point)
    assert code == KILLED or (act == "deny" and point.startswith("tool"))
    done = paid(directory)
    pay = Pay(within_s=None)

    async def reconcile(_context: Any, _fields: Any) -> str | None:
        return "paid before" if done else None

    async with world.open() as runtime:
        tools = [pay.tool(in_doubt=reconcile)]
        ana = await world.add(
            lambda request: reply("on") if len(request.messages) > 1 else call_tool("pay"),
            tools=tools,
        )
        await ana.wait_idle()
        for row in runtime.approvals():
            assert act not in told, "what was acknowledged stands"
            verb = runtime.approve if act == "approve" else runtime.deny
            await verb(row.id, requester="ops")
            await ana.wait_idle()
        said = await shown(ana)
        if said:
            assert said[-1] == "assistant: on"
            expected = 1 if act == "approve" else 0
            begun = bool(world.tool_calls())
            if act == "deny":
                assert not begun
            in_doubt = any("unknown" in row for row in said)
            assert done + len(pay.effects) == (0 if in_doubt else expected)
        assert len([a for a in runtime.alerts() if a.kind == "approval"]) <= 1
        assert check(runtime._store).findings == ()
