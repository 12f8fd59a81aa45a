"""The play up to the hold, written so that it can go on from wherever a dead host left it.

What was acknowledged is not sent again; what was not is sent again under the same id. So the same
function plays it for an audience and for a harness that kills the host in it.

Runs in the director's trio thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from .children import Child, ChildDiedError, Event
from .play import ANA, ASIDE, BO, LIMITED, MEANWHILE, NOTE, PLAN, WEATHER, Line

POLL_S = 0.02


class Acks:
    """Receipts in the order they came, each synced to a file before the next message is sent."""

    def __init__(self, path: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self.on_ack: Callable[[Line, Mapping[str, Any]], None] | None = None
        self._file = path.open("ab")

    def has(self, line: Line) -> bool:
        return any(row["id"] == line.id for row in self.rows)

    async def send(self, host: Child, line: Line) -> None:
        """Send a message, unless it has a receipt, and keep the receipt.

        Raises:
            ChildDiedError: The host died first; the message may be stored or not.
        """
        if self.has(line):
            return
        receipt = await host.ask(
            "send",
            agent=line.agent,
            text=line.text,
            author=line.author,
            id=line.id,
            wake=line.wake,
        )
        row = {"agent": line.agent, "wake": line.wake, **receipt}
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows.append(row)
        if self.on_ack is not None:
            self.on_ack(line, receipt)

    def close(self) -> None:
        self._file.close()


async def play_first_half(host: Child, acks: Acks, *, limited: bool = True) -> None:
    """Play from where the receipts say it stands, to the hold (or without one, to rest).

    Raises:
        ChildDiedError: The host died; start it again and call this again.
    """
    await acks.send(host, PLAN)
    if not (acks.has(ASIDE) and acks.has(NOTE)):
        await _until_tool_or_rest(host)
        await acks.send(host, ASIDE)
        await acks.send(host, NOTE)
    if not acks.has(LIMITED):
        await until_rest(host)
    await acks.send(host, LIMITED)
    if limited:
        await until_held(host)
    await acks.send(host, MEANWHILE)


async def _until_tool_or_rest(host: Child) -> None:
    """Until the first tool runs; or, where a restart found it done, until everything rests."""

    async def tool() -> None:
        await host.wait_event(_is_weather)
        found.cancel()

    async def rest() -> None:
        await until_rest(host)
        found.cancel()

    died: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            found = nursery.cancel_scope
            nursery.start_soon(tool)
            nursery.start_soon(rest)
    except* ChildDiedError as group:
        died = group
    if died is not None:
        # Both tasks saw it; the caller gets it as every other step would raise it.
        raise ChildDiedError("the host died while its first tool was awaited; start it again")


def _is_weather(event: Event) -> bool:
    return bool(event["event"] == "tool" and event["tool"] == WEATHER)


async def until_rest(host: Child) -> None:
    """Until neither agent has anything to do: they may wake each other a few times first.

    Raises:
        ChildDiedError: As it says.
    """
    while True:
        for agent in (ANA, BO):
            await host.ask("idle", agent=agent)
        status = await host.ask("status")
        if not any(agent["wakes"] or agent["state"] in _AT_WORK for agent in status["agents"]):
            return
        await trio.sleep(POLL_S)


_AT_WORK = frozenset({"starting", "running"})


async def until_held(host: Child) -> dict[str, Any]:
    """Until the wait binds; returns it as listed.

    Raises:
        ChildDiedError: As it says.
    """
    while True:
        status = await host.ask("status")
        held = any(agent["name"] == ANA and agent["held"] for agent in status["agents"])
        for wait in status["waits"]:
            if held and wait["agent"] == ANA:
                return dict(wait)
        await trio.sleep(POLL_S)
