"""How a row of a slot is told to a provider. One pure function, used by every compile and boundary.

A row is one message. What is injected mid-turn is rendered by the same function as a later compile
renders it, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from abeyance.actors.providers.port import ProviderMessage

from .slot_messages import PlacedRow


def render(row: PlacedRow) -> ProviderMessage | None:
    """One row as one message; None for a row that only readers of the transcript see."""
    match row.entry.role:
        case "marker":
            return None
        case "assistant":
            return ProviderMessage("assistant", row.blocks)
        case "user" | "results":
            return ProviderMessage("user", row.blocks)


def render_all(rows: Iterable[PlacedRow]) -> list[ProviderMessage]:
    return [message for row in rows if (message := render(row)) is not None]
