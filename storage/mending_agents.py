"""What a repair puts in the place of rows of agents, their turns and their calls. See `mending`."""

from __future__ import annotations

import json

from .mending import BY, GAP, Answer, Change, Look, Mending
from .mending_slots import UNKNOWN, calls_of
from .store import Key
from .tables.agents import Agent, Ephemeral, Sharer
from .tables.approvals import INPUT_CHARS_MAX, Approval
from .tables.blocks import ToolUseBlock
from .tables.ownership import Owner
from .tables.slots import Head, Held, ToolCall, Turn, Wake


def owner(look: Look, key: Key) -> Answer:
    record = Owner(nonce="nobody", fence=GAP)
    return Mending((Change("owners", key, record),), "nobody's, until a host takes it")


def agent(look: Look, key: Key) -> Answer:
    name = str(key[0])
    turn = next((row for _, row in look.rows("turns", (name,), reverse=True)), None)
    forked = next((at for at, row in look.rows("conversations") if row.agent == name), None)
    shared = next((str(at[0]) for at, _ in look.rows("sharers") if at[1] == name), name)
    record = Agent(
        kind="resident" if forked is None else "conversation",
        slot=shared,
        provider=UNKNOWN if turn is None else turn.provider,
        model=UNKNOWN if turn is None else turn.model,
        parent=None if forked is None else str(forked[0]),
        created_ms=look.now_ms,
    )
    then = (
        "as other rows say; one that was removed counts as there, and a model that an operator "
        "chose is to be chosen again"
    )
    return Mending((Change("agents", key, record),), then)


def sharer(look: Look, key: Key) -> Answer:
    return Mending((Change("sharers", key, Sharer(since_ms=look.now_ms)),), "as its key says")


def ephemeral(look: Look, key: Key) -> Answer:
    record = Ephemeral(started_ms=look.now_ms)
    return Mending((Change("ephemerals", key, record),), "as its key says; the next host ends it")


def head(look: Look, key: Key) -> Answer:
    name = str(key[0])
    last = max(look.last("turns", (name,)), *(number for number in _numbers(look, name)), 0)
    open_turn = open_pair = None
    for at, turn in look.rows("turns", (name,), reverse=True):
        if turn.state in ("running", "held"):
            if turn.pair is None:
                open_turn = open_turn or int(at[1])
            else:
                open_pair = open_pair or int(at[1])
    record = Head(last_turn=last, open_turn=open_turn, open_pair=open_pair)
    return Mending((Change("heads", key, record),), "as the agent's turns say")


def turn(look: Look, key: Key) -> Answer:
    """One that is over is history. An open one is cancelled by whoever adds the agent: then what
    its calls came to is written, and the slot is free."""
    name, number = str(key[0]), int(key[1])
    stands = look.get("heads", (name,))
    if stands is None or number not in (stands.open_turn, stands.open_pair):
        return Mending((Change("turns", key, None),), "it is over; who joins it is told of none")
    known = look.get("agents", (name,))
    slot = name if known is None else known.slot
    held = look.get("leases", (slot,))
    runs = held is not None and (held.agent, held.turn) == (name, number)
    model = UNKNOWN if known is None else known.model
    mine = [row for _, row in look.rows("slots", (slot,)) if row.turn == number]
    mine = [row for row in mine if row.author == name]
    record = Turn(
        slot=slot,
        state="running" if runs else "held",
        round=max([row.round or 0 for row in mine], default=0),
        attempts=1,
        held=None if runs else Held(agent=name, model=model, cause="host"),
        provider=UNKNOWN if known is None else known.provider,
        model=model,
        pair=mine[0].message if number == stands.open_pair and mine else None,
        started_ms=look.now_ms,
        cancelled_by=BY,
    )
    return Mending((Change("turns", key, record),), "that turn is cancelled once its agent runs")


def wake(look: Look, key: Key) -> Answer:
    record = Wake(reason="operator", author=BY, at_ms=look.now_ms)
    then = "a turn is asked for all the same; who asked, nobody knows"
    return Mending((Change("wakes", key, record),), then)


def tool_call(look: Look, key: Key) -> Answer:
    found = _call_of(look, key)
    if found is None:
        return Mending((Change("tool_calls", key, None),), "what it came to is in the transcript")
    record = ToolCall(id=found.id, name=found.name, state="started", started_ms=look.now_ms)
    then = "whether that call had an effect is in doubt: its tool's policy decides"
    return Mending((Change("tool_calls", key, record),), then)


def approval(look: Look, key: Key) -> Answer:
    found = _call_of(look, key)
    if found is None:
        return Mending((Change("approvals", key, None),), "it was decided, and its turn went on")
    record = Approval(
        id=found.id,
        tool=found.name,
        input=json.dumps(found.input, ensure_ascii=True)[:INPUT_CHARS_MAX],
        otherwise="deny",
        asked_ms=look.now_ms,
    )
    return Mending((Change("approvals", key, record),), "that call waits for a person, from now on")


def _numbers(look: Look, name: str) -> list[int]:
    """The numbers of turns that other rows of an agent name."""
    tables = ("spent", "tool_calls", "approvals")
    return [int(at[1]) for table in tables for at, _ in look.rows(table, (name,))]


def _call_of(look: Look, key: Key) -> ToolUseBlock | None:
    """The call in the reply, where its turn is open and has no result of it; else None."""
    name, number, round_, place = str(key[0]), int(key[1]), int(key[2]), int(key[3])
    stands = look.get("heads", (name,))
    if stands is None or number not in (stands.open_turn, stands.open_pair):
        return None
    known = look.get("agents", (name,))
    slot = name if known is None else known.slot
    calls: list[ToolUseBlock] = []
    for _, entry in look.rows("slots", (slot,)):
        if (entry.author, entry.turn, entry.round) == (name, number, round_):
            if entry.role == "results":
                return None
            calls = calls_of(look, slot, entry)
    return calls[place] if place < len(calls) else None
