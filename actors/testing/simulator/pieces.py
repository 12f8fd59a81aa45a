"""What the simulated wires share: texts in pieces, and counted words. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from .script import Answer


def cut(text: str, chars: int) -> Iterator[str]:
    """A text in pieces of so many characters."""
    for start in range(0, len(text), chars):
        yield text[start : start + chars]


def spoken_words(answer: Answer) -> int:
    """The tokens of a reply, as a simulator counts them: its words, and one a tool call."""
    return len(f"{answer.thinking or ''} {answer.text or ''}".split()) + len(answer.tools)
