"""Whose reasoning a block holds: a signature is good only on the wire that gave it. Pure.

A signature that is not Anthropic's is kept behind the name of its wire and a colon, which no
signature of Anthropic's holds (they are base64). Reasoning of another wire is left out of a
request, so that an agent can change its provider in the middle of a transcript.
"""

from __future__ import annotations

from abeyance.storage.tables.blocks import ThinkingBlock


def signed(wire: str, data: str) -> str:
    """A signature to keep: what a wire gave for its reasoning, behind the wire's name."""
    return f"{wire}:{data}"


def signature_for(wire: str | None, block: ThinkingBlock) -> str | None:
    """What was given for a block's reasoning on this wire; None where another gave it, or none.

    Args:
        wire: As in `signed`; None is Anthropic's.
    """
    name, colon, data = block.signature.partition(":")
    if wire is None:
        return None if colon else block.signature or None
    return data if colon and name == wire else None
