"""Which system prompt a turn's requests carry, planned. No actor, no await.

Invariants:
    I1  A text is written before, or in the commit with, the turn's row that names it.
    I2  Only the newest `PROMPTS_KEPT` of an agent are kept; the open turn's is among them.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Delete
from abeyance.storage.tables.prompts import Prompt
from abeyance.storage.tables.slots import Turn

from .slot_book import SlotBook
from .slot_draft import Draft
from .slot_messages import StartTurn

PROMPTS_KEPT: Final = 100
"""Texts of an agent; a function that says another one each turn leaves no more behind."""
IN_START_BYTES_MAX: Final = 128 * 1024
"""A text up to this is written with its turn's start, in the room that a request keeps for what is
no message's content; a longer one has a commit of its own."""


def prompted(book: SlotBook, draft: Draft, turn: Turn, start: StartTurn) -> Turn:
    """A turn that is compiled anew, with its system prompt where that is known already."""
    number: int | None = None
    if not start.asks_system:
        number = 0
        if start.system is not None:
            number = _known(book, start.agent, start.system)
        if number is None and len(start.system or "") <= IN_START_BYTES_MAX // 4:
            number = write_prompt(book, draft, start.agent, start.system or "", start.at_ms)
    return replace(turn, prompt=number)


def _known(book: SlotBook, agent: str, text: str) -> int | None:
    """The number of the agent's newest prompt, where that has this text."""
    number = _newest(book, agent)
    if number == 0:
        return None
    try:
        row = book.store.get("prompts", (agent, number))
    except UnreadableRecordError:
        return None
    return number if row is not None and row.record.text == text else None


def _newest(book: SlotBook, agent: str) -> int:
    for key, _ in book.store.scan("prompts", (agent,), reverse=True, limit=1):
        return int(key[-1])
    return 0


def write_prompt(book: SlotBook, draft: Draft, agent: str, text: str, at_ms: int) -> int:
    """Have a draft write a text, unless the agent's newest prompt is the same; its number."""
    known = _known(book, agent, text)
    if known is not None:
        return known
    number = _newest(book, agent) + 1
    draft.put("prompts", (agent, number), Prompt(text=text, made_ms=at_ms))
    for key, _ in book.store.scan("prompts", (agent,), limit=1):
        if int(key[-1]) <= number - PROMPTS_KEPT:
            draft.deletes.append(Delete("prompts", (agent, int(key[-1]))))
    return number
