"""What of a slot one compile renders: what stands for its older rows, and the rows behind.

Invariants:
    I1  One compile reads what it renders: of the rows that a summary stands for, none.
    I2  Signed reasoning is rendered only where it was produced behind the same beginning: a
        provider takes it behind no other. A row that was edited since is another beginning.

Runs in: whichever task compiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from abeyance.actors.providers.context_limit import BYTES_A_TOKEN, attachment_tokens
from abeyance.actors.providers.port import ProviderMessage
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import (
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from abeyance.storage.tables.slots import Entry

from .context import Summary
from .context_rows import read_summary
from .render import Voices, render
from .slot_edit_book import is_recast, read_recast
from .slot_messages import PlacedRow


class View:
    """The view of one compile.

    Args:
        summary: What stands for the rows up to its place; None: the whole slot is rendered.
        compiled_round: The round of the agent's turn that this compile began behind.
        voices: Of the agent; None: nobody else speaks in this slot.
    """

    def __init__(
        self,
        store: Store,
        slot: str,
        agent: str,
        turn: int,
        summary: Summary | None = None,
        compiled_round: int = 0,
        voices: Voices | None = None,
    ) -> None:
        self._voices = voices
        self._recast = read_recast(store, slot)
        self._store = store
        self._slot = slot
        self._own = (agent, turn)
        self._compiled_round = compiled_round
        self._summary = summary
        self._same: dict[tuple[str, int], bool] = {}
        self._unsummarised: dict[str, bool] = {}

    @property
    def first(self) -> int:
        """The first place of the slot that is rendered as it is."""
        return 1 if self._summary is None else self._summary.last + 1

    def opening(self) -> list[ProviderMessage]:
        """What is rendered ahead of the slot's rows."""
        if self._summary is None or not self._summary.text:
            return []
        return [ProviderMessage("user", (TextBlock(text=self._summary.text),))]

    def render(self, rows: Iterable[PlacedRow]) -> list[ProviderMessage]:
        """Rows as messages, in order."""
        messages = []
        for row in rows:
            message = render(row, self._voices)
            if message is None:
                continue
            if message.role == "assistant" and ThinkingBlock in map(type, message.blocks):
                fitted = self._fitted(row, message)
                if fitted is None:
                    continue
                message = fitted
            messages.append(message)
        return messages

    def _fitted(self, row: PlacedRow, message: ProviderMessage) -> ProviderMessage | None:
        """A reply without reasoning that another view led to; None where nothing else is in it."""
        if self._fits(row.seq, row.entry):
            return message
        blocks = tuple(block for block in message.blocks if not isinstance(block, ThinkingBlock))
        return ProviderMessage(message.role, blocks) if blocks else None

    def _fits(self, seq: int, entry: Entry) -> bool:
        if entry.recast or is_recast(self._recast, seq, entry):
            return False
        if entry.turn is None or entry.round is None:
            # A fork took it over: from which view, its resident's turns would say.
            origin = entry.origin or self._slot
            return self._summary is None and self._is_unsummarised(origin)
        key = (entry.author, entry.turn)
        if key == self._own:
            return entry.round > self._compiled_round or self._compiled_whole()
        return self._was_same(key, entry.round)

    def _compiled_whole(self) -> bool:
        """Whether no turn here was ever compiled behind a summary, so that all rounds fit."""
        return self._summary is None and self._is_unsummarised(self._slot)

    def _was_same(self, key: tuple[str, int], round_: int) -> bool:
        if self._compiled_whole():
            return True
        try:
            row = self._store.get("turns", key)
        except UnreadableRecordError:
            row = None
        if row is None:
            return False
        last = None if self._summary is None else self._summary.last
        return bool(row.record.context == last and round_ > row.record.compiled_round)

    def _is_unsummarised(self, slot: str) -> bool:
        known = self._unsummarised.get(slot)
        if known is None:
            known = not any(self._store.scan("contexts", (slot,), limit=1))
            self._unsummarised[slot] = known
        return known


def read_view(
    store: Store,
    slot: str,
    agent: str,
    turn: int,
    context: int | None,
    compiled_round: int = 0,
    chosen: Summary | None = None,
    voices: Voices | None = None,
) -> View:
    """The view that a turn's row names.

    Raises:
        UnreadableRecordError: What stands for the older rows cannot be read.
    """
    summary = None
    if context is not None:
        is_chosen = chosen is not None and chosen.last == context
        summary = chosen if is_chosen else read_summary(store, slot, agent, context)
        if summary is None:
            raise UnreadableRecordError(
                f"row {(slot, agent, context)!r} of table contexts is gone, and a turn is compiled "
                "behind it; nothing was sent; the slot's own rows stand",
                table="contexts",
                key=(slot, agent, context),
                cause="gone",
            )
    return View(store, slot, agent, turn, summary, compiled_round, voices)


def size_of(messages: Iterable[ProviderMessage]) -> int:
    """About how many characters messages come to. Total over whatever a slot holds."""
    return sum(block_size(block) for message in messages for block in message.blocks)


def block_size(block: Block) -> int:
    match block:
        case TextBlock():
            return len(block.text)
        case ThinkingBlock():
            return len(block.thinking) + len(block.signature)
        case ToolResultBlock():
            return sum(map(block_size, block.content))
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return attachment_tokens(block) * BYTES_A_TOKEN
        case _:
            return len(block.name) + len(str(block.input))
