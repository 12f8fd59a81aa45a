"""Where a turn's reply belongs: the channels of the messages it answers, in the order they came.

Noted in the commit that has the turn answer a message, and taken out with a message that is taken
back; so the order is that of the slot's numbers, whatever else becomes of the turn. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from abeyance.storage.tables.slots import Arrival, Turn


def arrived(
    arrivals: tuple[Arrival, ...], came: Iterable[tuple[int, str | None]]
) -> tuple[Arrival, ...]:
    """What came before, and entries with their channels behind it; neighbours of one are one."""
    found = list(arrivals)
    for entry, channel in came:
        if found and found[-1].channel == channel:
            found[-1] = Arrival(channel=channel, first=found[-1].first, last=entry)
        else:
            found.append(Arrival(channel=channel, first=entry, last=entry))
    return tuple(found)


def remaining(arrivals: tuple[Arrival, ...], answers: tuple[int, ...]) -> tuple[Arrival, ...]:
    """Those of which the turn still answers an entry."""
    return tuple(
        each for each in arrivals if any(each.first <= entry <= each.last for entry in answers)
    )


def reply_channel(turn: Turn) -> str | None:
    """Where the turn's reply belongs: the channel of the latest message that names one."""
    return next((each.channel for each in reversed(turn.arrivals) if each.channel), None)
