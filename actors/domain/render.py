"""How a row of a slot is told to a provider. One pure function, used by every compile and boundary.

A row is one message. What is injected mid-turn is rendered by the same function as a later compile
renders it, so the two cannot differ. In a slot that several agents share each is told its own words
as its own, and another's as what somebody else said: a provider knows one assistant, and what that
one called and reasoned must be its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from abeyance.actors.providers.port import ProviderMessage
from abeyance.storage.tables.blocks import (
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

from .ingress import identity
from .slot_messages import PlacedRow


class Voices(NamedTuple):
    """In whose words an agent speaks: its own, and those that a fork's resident had spoken in."""

    name: str
    resident: str | None = None

    @classmethod
    def of(cls, agent: str, resident: str | None = None) -> Voices:
        return cls(identity(agent), None if resident is None else identity(resident))

    def has(self, author: str) -> bool:
        return identity(author) in self


def render(row: PlacedRow, voices: Voices | None = None) -> ProviderMessage | None:
    """One row as one message; None for a row that only readers of the transcript see.

    Args:
        voices: Of whom it is told to; None: nobody else speaks there.
    """
    entry = row.entry
    match entry.role:
        case "marker":
            return None
        case "user":
            own = voices is not None and identity(entry.author) == voices.name
            return ProviderMessage("assistant" if own else "user", row.blocks)
        case "assistant" | "results" if voices is not None and not voices.has(entry.author):
            return ProviderMessage("user", _of_another(entry.author, row.blocks))
        case "assistant":
            return ProviderMessage("assistant", row.blocks)
        case "results":
            return ProviderMessage("user", row.blocks)


def render_all(rows: Iterable[PlacedRow], voices: Voices | None = None) -> list[ProviderMessage]:
    return [message for row in rows if (message := render(row, voices)) is not None]


def _of_another(author: str, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """What another agent said and did, in words, each with its name."""
    told: list[Block] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                told.append(TextBlock(text=f"[{author}] {text}"))
            case ToolUseBlock(name=name, input=arguments):
                given = json.dumps(arguments, ensure_ascii=False)
                told.append(TextBlock(text=f"[{author} called {name}] {given}"))
            case ToolResultBlock(content=content, is_error=is_error):
                said = " ".join(part.text for part in content if isinstance(part, TextBlock))
                what = f"[{author} was told{' of an error' if is_error else ''}] {said}"
                told.append(TextBlock(text=what))
                told += (part for part in content if not isinstance(part, TextBlock))
            case ImageBlock() | AudioBlock() | DocumentBlock():
                told.append(block)
            case ThinkingBlock():
                pass
    return tuple(told or [TextBlock(text=f"[{author}] said nothing")])
