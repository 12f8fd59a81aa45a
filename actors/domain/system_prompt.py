"""The system prompt of a turn: the specification's text, or what a host's function says of it.

Invariants:
    I1  It is decided once a compile, and stored before the first call that carries it; so every
        request of that compile carries the same text, whoever makes it.
    I2  A function that raises, is late, or returns no text to send fails its turn, by a
        `SystemPromptError`; whatever it does ends nothing else.

Runs in: the turn's task; a plain function in a thread of the tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import trio

from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.prompts import PROMPT_BYTES_MAX

from .foreign import failure_of, named, told
from .tools import ToolRunner

SYSTEM_S_MAX: Final = 30.0
"""How long a function may take to say a turn's system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInfo:
    """What a function that gives the system prompt is told of its turn.

    Attributes:
        agent: Whose turn it is; of a conversation, the fork's name.
        resident: Of a conversation: whose fork it is; None: the agent is no fork.
        slot: The transcript it speaks in.
        turn: Its number, of the agent's turns.
        round: Rounds that are recorded: 0, but where a turn that was held goes on.
        model: The model that is asked.
        channel: Where its reply belongs, as the messages that it answers say; None: they do not.
        at_ms: Now, in epoch milliseconds.
    """

    agent: str
    resident: str | None
    slot: str
    turn: int
    round: int
    model: str
    channel: str | None
    at_ms: int


System: TypeAlias = str | Callable[[TurnInfo], str | Awaitable[str]] | None
"""A system prompt: a text, a function of the turn (plain or async), or none."""


class SystemPromptError(AbeyanceError):
    """The function that gives an agent's system prompt gave none. Its turn failed, unsent.

    Attributes: `agent`, `turn`, `problem`.
    """

    code = "system_prompt_failed"
    agent: str
    turn: int
    problem: str


def unfit(text: object) -> str | None:
    """What is wrong with a text that is to be a system prompt; None: nothing."""
    if not isinstance(text, str):
        return f"must be text, not {named(text)}"
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return "must be valid Unicode (it holds a lone surrogate)"
    if size > PROMPT_BYTES_MAX:
        return f"must be at most {PROMPT_BYTES_MAX:,} bytes of UTF-8, not {size:,}"
    return None


async def decide(system: System, info: TurnInfo, runner: ToolRunner) -> str | None:
    """The text that a compile's requests carry, or None for none.

    A checkpoint where a function is asked. Cancelled: an async function is, a plain one runs on in
    its thread, and nobody takes what it returns.

    Raises:
        SystemPromptError: The function raised, was late, or returned no text that can be sent.
    """
    if system is None or isinstance(system, str):
        return system
    text: Any = None
    try:
        with trio.fail_after(SYSTEM_S_MAX):
            text = await runner.ask_host(info.agent, system, info, name="system prompt")
        problem = unfit(text)
        if problem is not None:
            problem = f"what it returned {problem}"
    except trio.TooSlowError:
        problem = f"it returned nothing within {SYSTEM_S_MAX:g} s"
    except BaseException as error:  # noqa: BLE001 - anybody may have written the function.
        problem = f"it raised {told(failure_of(error))}"
    if problem is None:
        return str.__str__(text)
    raise SystemPromptError(
        f"the function that gives the system prompt of agent {info.agent!r} failed: {problem}; "
        f"turn {info.turn} made no call with it and ends; mend it, then send again",
        agent=info.agent,
        turn=info.turn,
        problem=problem,
    )


def read_prompt(store: Store, agent: str, number: int) -> str | None:
    """The text that a turn's row names.

    Raises:
        UnreadableRecordError: It is damaged, or gone.
    """
    if number == 0:
        return None
    row = store.get("prompts", (agent, number))
    if row is None:
        raise UnreadableRecordError(
            f"row {(agent, number)!r} of table prompts is gone, and a turn is compiled with it; "
            "nothing was sent; the slot's own rows stand",
            table="prompts",
            key=(agent, number),
            cause="it is gone",
        )
    text: str = row.record.text
    return text
