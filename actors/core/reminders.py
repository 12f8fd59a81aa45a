"""Reminders: what an actor asked to be told at an instant of the wall clock.

A reminder belongs to an actor's name, not to an incarnation. It arrives by the internal lane, and
is over when its handler has returned; one that is periodic is then due again, at the first of its
instants that is not past, so that periods which were missed come once.

Invariants:
    I1. Of one (actor, name) there is at most one reminder, and at most one firing is outstanding.
    I2. A firing that was replaced or cancelled meanwhile changes nothing when it is over.

The book is plain data. `MemoryReminders` runs on the loop thread, and keeps them for the life of
the system; a port that stores them keeps them longer.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from .envelope import REMIND, Reminder

if TYPE_CHECKING:
    from .system import ActorSystem
    from .wheel import Timer

LOOK_EVERY_S: Final = 30.0
"""How often the wall clock is looked at, at least: it may step."""


REMINDER_MS_MAX = 8_640_000_000_000_000
"""The last instant a reminder may name, in epoch milliseconds."""


def check_reminder(
    actor: str | None, name: str, message: Any, at_ms: int, every_ms: int | None
) -> Reminder:
    """Make a reminder of what an actor asked for.

    Raises:
        ValueError: Names what is out of bounds.
    """
    if actor is None:
        raise ValueError("an actor without a name has no reminders; start it with a name")
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= 128:
        raise ValueError(f"name must be text of 1 to 128 bytes, not {name!r:.80}")
    if type(at_ms) is not int or not 0 <= at_ms <= REMINDER_MS_MAX:
        raise ValueError(f"at_ms must be 0 to {REMINDER_MS_MAX}, not {at_ms!r}")
    if every_ms is not None and (type(every_ms) is not int or not 1 <= every_ms <= REMINDER_MS_MAX):
        raise ValueError(f"every_ms must be 1 to {REMINDER_MS_MAX} or None, not {every_ms!r}")
    return Reminder(actor, name, at_ms, message, every_ms)


class ReminderBook:
    """Which reminders there are, and which of them are with their actor."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Reminder] = {}
        self._out: dict[tuple[str, str], Reminder] = {}
        self._order: list[tuple[int, tuple[str, str]]] = []

    def __len__(self) -> int:
        return len(self._known)

    def put(self, reminder: Reminder) -> None:
        """Add a reminder, in place of one of the same actor and name."""
        key = (reminder.actor, reminder.name)
        self._known[key] = reminder
        heapq.heappush(self._order, (reminder.due_ms, key))

    def get(self, actor: str, name: str) -> Reminder | None:
        """The reminder of that name."""
        return self._known.get((actor, name))

    def remove(self, actor: str, name: str) -> bool:
        """Forget a reminder. Whether there was one."""
        return self._known.pop((actor, name), None) is not None

    def earliest(self) -> int | None:
        """The next instant at which something is to be fired."""
        while self._order and not self._stands(*self._order[0]):
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def _stands(self, due_ms: int, key: tuple[str, str]) -> bool:
        reminder = self._known.get(key)
        return reminder is not None and reminder.due_ms == due_ms and key not in self._out

    def take_due(self, now_ms: int) -> list[Reminder]:
        """Take what is due, oldest first: it is outstanding until it is over or undelivered."""
        due = []
        while (instant := self.earliest()) is not None and instant <= now_ms:
            key = heapq.heappop(self._order)[1]
            reminder = self._known[key]
            self._out[key] = reminder
            due.append(reminder)
        return due

    def give_back(self, reminder: Reminder) -> bool:
        """Nobody took it: it stays due, and is fired when it is woken. Whether it still stands."""
        key = (reminder.actor, reminder.name)
        if self._out.get(key) == reminder:
            del self._out[key]
        return self._known.get(key) == reminder

    def wake(self, reminder: Reminder) -> None:
        """Let a reminder that was given back be fired again."""
        heapq.heappush(self._order, (reminder.due_ms, (reminder.actor, reminder.name)))

    def finish(self, reminder: Reminder, now_ms: int) -> Reminder | None:
        """A firing is over. Return what stands in its place: its next period, a newer one, or None.

        Where a newer one was set meanwhile, it stands.
        """
        key = (reminder.actor, reminder.name)
        if self._out.get(key) == reminder:
            del self._out[key]
        known = self._known.get(key)
        if known is not None and known != reminder:
            self.put(known)  # It may have come up while the old one was out.
            return known
        if known is None:
            return None
        if reminder.every_ms is None:
            del self._known[key]
            return None
        missed = max(0, now_ms - reminder.due_ms) // reminder.every_ms
        following = replace(reminder, due_ms=reminder.due_ms + (missed + 1) * reminder.every_ms)
        self.put(following)
        return following


class MemoryReminders:
    """Reminders for the life of the system. The kernel's default."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._book = ReminderBook()
        self._waiting: dict[str, list[Reminder]] = {}
        self._timer: Timer | None = None

    def set(self, reminder: Reminder) -> None:
        self._book.put(reminder)
        self._look()

    def cancel(self, actor: str, name: str) -> None:
        self._book.remove(actor, name)

    def handled(self, reminder: Reminder) -> None:
        if self._system.deliveries is not None:
            self._system.deliveries.end(reminder.actor, reminder.act_id, handled=True)
        self._book.finish(reminder, self._system.clock.now_ms())
        self._look()

    def undelivered(self, reminder: Reminder) -> None:
        if get_ident() != self._system.ident:
            self._system.on_loop(self.undelivered, reminder)
        elif self._book.give_back(reminder):
            self._waiting.setdefault(reminder.actor, []).append(reminder)

    def started(self, actor: str) -> None:
        for reminder in self._waiting.pop(actor, ()):
            self._book.wake(reminder)
        if len(self._book):
            self._look()

    def _look(self) -> None:
        """Fire what is due, and look again when the next is, or the clock may have stepped."""
        now_ms = self._system.clock.now_ms()
        for reminder in self._book.take_due(now_ms):
            fire(self._system, reminder)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        earliest = self._book.earliest()
        if earliest is not None:
            # The timer may be a moment early by the wall clock: it then looks again.
            pause_s = min(max((earliest - now_ms) / 1_000, 0.001), LOOK_EVERY_S)
            self._timer = self._system.wheel.at(pause_s, self._look)


def fire(system: ActorSystem, reminder: Reminder) -> None:
    """Put a reminder into its actor's mailbox; where there is no such actor, it is undelivered."""
    cell = system.names.find(reminder.actor)
    if cell is None or not cell.box.put_internal((REMIND, reminder, 0, 0)):
        system.reminders.undelivered(reminder)
