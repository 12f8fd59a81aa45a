"""What was a dead letter and comes back: wakes and messages as plain data. No actor, no await."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import convert, to_builtins

from abeyance.storage.codec import encode
from abeyance.storage.tables.blocks import AttachmentBlock, Block, TextBlock

from .attachment_rows import read_named
from .ingress import body_crc, encode_body, new_message_id
from .slot_forms import inboxed
from .slot_messages import Accept, Rewake


def again_wake(
    agent: str, author: str, message: str | None, channel: str | None, at_ms: int
) -> dict[str, Any]:
    """A wake as plain data, which a dead letter can hold and a slot takes when it is replayed."""
    return {
        "again": "wake",
        "agent": agent,
        "author": author,
        "message": message,
        "channel": channel,
        "at_ms": at_ms,
    }


def again_message(
    agent: str,
    author: str,
    channel: str | None,
    blocks: Iterable[Block],
    at_ms: int,
    *,
    wake: bool,
) -> dict[str, Any]:
    """A message as plain data; as `again_wake`."""
    said = list(blocks)
    return {
        "again": "message",
        "agent": agent,
        "author": author,
        "channel": channel,
        "wake": wake,
        "texts": [block.text for block in said if isinstance(block, TextBlock)],
        "attached": [to_builtins(block) for block in said if isinstance(block, AttachmentBlock)],
        "at_ms": at_ms,
    }


def read_again(again: dict[str, Any], slot: str) -> Accept | Rewake:
    """What such data asks a slot for, for the agent that it names."""
    agent, at_ms = again.get("agent", slot), again["at_ms"]
    if again["again"] == "wake":
        return Rewake(agent, again["author"], again["message"], again["channel"], at_ms)
    # One that was stored by an earlier version knows of no attachments.
    attached = convert(again.get("attached", []), tuple[AttachmentBlock, ...])
    blocks = (*(TextBlock(text=text) for text in again["texts"]), *attached)
    body = encode_body(blocks)
    accept = Accept(
        message=new_message_id(at_ms),
        body=body,
        body_crc=body_crc(body),
        author=again["author"],
        agent=agent,
        channel=again["channel"],
        wake=again["wake"],
        own=False,
        at_ms=at_ms,
        known=False,
        named=read_named(blocks, "message"),
    )
    # What a dead letter held is data: its fields are checked here, as `drafts` does for hosts.
    encode(inboxed(accept))
    return accept
