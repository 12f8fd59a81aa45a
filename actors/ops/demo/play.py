"""The demo's play: who says what, which tools there are, and how the simulated models answer.

Two agents plan a picnic. The simulated models answer from the request alone, never from a count of
calls, so a request that is made again after a crash gets the same answer.

Pure. The host, the simulator and the audit read the same names from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ANA: Final = "ana"
BO: Final = "bo"
MODELS: Final = {ANA: "sim-large", BO: "sim-small"}
WAIT_S: Final = 7_200
"""What the simulated 429 states."""

SYSTEM: Final = {
    ANA: (
        "You are Ana and plan a picnic. When asked to plan it, first call `weather` once; then, "
        "in one reply, call `tell` once to ask Bo to bring bread and call `book` once; then say in "
        "one sentence what you did. To anything else answer in one sentence, without tools."
    ),
    BO: (
        "You are Bo. When Ana asks you to bring something, call `tell` once to answer Ana that you "
        "will, then say in one sentence that you did. To anything else answer in one sentence."
    ),
}

WEATHER: Final = "weather"
TELL: Final = "tell"
BOOK: Final = "book"


@dataclass(frozen=True, slots=True)
class Line:
    """One message that the audience sends."""

    id: str
    agent: str
    text: str
    author: str = "user"
    wake: bool = True


PLAN: Final = Line("plan", ANA, "Please plan a picnic for Saturday, and ask Bo to bring something.")
ASIDE: Final = Line("aside", ANA, "We will be six people.")
NOTE: Final = Line("note", ANA, "Note to myself: Saturday, at noon.", author=ANA, wake=False)
LIMITED: Final = Line("forgotten", ANA, "Did we forget anything?")
MEANWHILE: Final = Line("salad", ANA, "And who brings the salad?")
LINES: Final = (PLAN, ASIDE, NOTE, LIMITED, MEANWHILE)

BREAD: Final = "Ana here: can you bring bread on Saturday?"
YES: Final = "Bo here: yes, I will bring bread."


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a simulated reply."""

    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One simulated reply. Without calls it ends the turn."""

    text: str
    calls: tuple[Call, ...] = ()


def answer(body: Mapping[str, Any]) -> Answer:
    """What the simulated model answers to a request body of the Anthropic wire.

    Only what came after the last reply that called no tool counts: the turn in progress.
    """
    texts, rounds = _turn_in_progress(body["messages"])
    heard = "\n".join(texts)
    if PLAN.text in heard:
        if rounds == 0:
            return Answer(
                "Let me look at the weather first.", (Call(WEATHER, {"place": "the lake"}),)
            )
        if rounds == 1:
            calls = (Call(TELL, {"to": BO, "text": BREAD}), Call(BOOK, {"what": "a table"}))
            return Answer("Sunny. I ask Bo and book a table.", calls)
        return Answer("It will be sunny, a table is booked, and Bo is asked to bring bread.")
    if BREAD in heard and rounds == 0:
        return Answer("Bread it is.", (Call(TELL, {"to": ANA, "text": YES}),))
    return Answer(f"Noted: {' / '.join(texts)}" if texts else "Noted.")


def is_limited(body: Mapping[str, Any]) -> bool:
    """Whether this request asks what the simulated provider has no capacity for."""
    texts, _ = _turn_in_progress(body["messages"])
    return LIMITED.text in "\n".join(texts)


def _turn_in_progress(messages: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """The user texts since the last final reply, oldest first, and the rounds made since."""
    texts: list[str] = []
    rounds = 0
    for message in reversed(messages):
        blocks = blocks_of(message)
        if message["role"] == "assistant":
            if not any(block["type"] == "tool_use" for block in blocks):
                break
            rounds += 1
        else:
            texts[:0] = [block["text"] for block in blocks if block["type"] == "text"]
    return texts, rounds


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A wire message's content as blocks; plain text is one text block."""
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [dict(block) for block in content]
