"""Whether a host starts turns: the mode row, what this process knows of it, and who is told.

The row is the store's, so a quiesce outlives the process and binds every process that shares the
directory: a turn's start guards the row. What a process holds of it here may be older; whoever
acts on the newer row says so by `notice`, and whoever keeps the mode looks again.

Invariants:
    I1  A turn starts only in a commit that guards a row which does not say `quiesced`.
    I2  A row that cannot be read says `quiesced`: nothing is started on what is unknown.

Runs in: the loop thread.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import trio

from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Append, Delete, Guard, Put, Request, Store
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.ownership import Mode
from abeyance.storage.tables.waits import LogLine

from .errors import InvalidInputError
from .ingress import check_line, clean_text, is_blank, new_message_id

MODE_KEY: Final = ("host",)
UNREADABLE_REASON: Final = "the record of the host's mode cannot be read"
_NONE: Final = Mode(state="serving", reason="", by="", at_ms=0, act="none")
_UNKNOWN: Final = Mode(state="quiesced", reason=UNREADABLE_REASON, by="", at_ms=0, act="unreadable")
WITHIN_S: Final = 30.0
"""How long live turns may run on, where a quiesce does not say."""
WITHIN_S_MAX: Final = 86_400.0


def read_reason(reason: object) -> str:
    """Why a host is quiesced, in one bounded line.

    Raises:
        InvalidInputError: It is not text, says nothing, or holds control characters; nothing was
            done.
    """
    if not isinstance(reason, str):
        raise InvalidInputError("reason", f"must be text, not {type(reason).__name__}")
    if is_blank(reason):
        raise InvalidInputError("reason", "must say why")
    return clean_text(check_line(reason, "reason"), REASON_CHARS_MAX).strip()


def read_window(within_s: object) -> float:
    """How long live turns may run on.

    Raises:
        InvalidInputError: It is no number from 0 to 86,400; nothing was done.
    """
    if isinstance(within_s, bool) or not isinstance(within_s, (int, float)):
        raise InvalidInputError("within_s", f"must be a number, not {type(within_s).__name__}")
    if not (math.isfinite(within_s) and 0 <= within_s <= WITHIN_S_MAX):
        raise InvalidInputError("within_s", f"must be from 0 to {WITHIN_S_MAX:,.0f} seconds")
    return float(within_s)


class StoredMode(NamedTuple):
    """The mode as the store has it, and the guard under which that still holds."""

    record: Mode
    counter: int

    @property
    def is_quiesced(self) -> bool:
        return self.record.state == "quiesced"

    @property
    def is_readable(self) -> bool:
        return self.record is not _UNKNOWN

    @property
    def guard(self) -> Guard:
        return Guard("modes", MODE_KEY, self.counter)


def read_mode(store: Store) -> StoredMode:
    """Read the mode row. Absent, it says `serving`; unreadable, `quiesced`."""
    try:
        row = store.get("modes", MODE_KEY)
    except UnreadableRecordError:
        return StoredMode(_UNKNOWN, 0)
    return StoredMode(_NONE, 0) if row is None else StoredMode(row.record, row.counter)


def plan_mode(
    stored: StoredMode, state: Literal["serving", "quiesced"], reason: str, by: str, now_ms: int
) -> list[Request]:
    """What writes a mode over the stored one, with a line in the log; the last one decides."""
    act = new_message_id(now_ms)
    record = Mode(state=state, reason=reason, by=by, at_ms=now_ms, act=act)
    event = "host_quiesced" if state == "quiesced" else "host_resumed"
    line = LogLine(event=event, text=f"by {by}: {reason}", at_ms=now_ms)
    request = Request(
        guards=(stored.guard,),
        puts=(Put("modes", MODE_KEY, encode(record)),),
        appends=(Append("log", encode(line)),),
    )
    if stored.is_readable:
        return [request]
    # Nothing can be put over a row that cannot be read, and it has no counter to guard.
    return [Request(deletes=(Delete("modes", MODE_KEY),)), request]


class HostMode:
    """What this process knows of the mode; its agents read it, the runtime writes it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stored = read_mode(store)
        self._noticed = trio.Event()

    @property
    def is_quiesced(self) -> bool:
        return self.stored.is_quiesced

    @property
    def record(self) -> Mode:
        return self.stored.record

    def look(self) -> bool:
        """Read the row again. Whether another act stands there than before."""
        before, self.stored = self.stored, read_mode(self._store)
        return before.record.act != self.stored.record.act

    def notice(self) -> bool:
        """Somebody was told that the row says `quiesced`. Whether this process knew.

        One that did not has whoever keeps the mode look at once.
        """
        if self.is_quiesced:
            return True
        self._noticed.set()
        return False

    async def noticed(self) -> None:
        """Wait until somebody acted on a row that this process does not know."""
        await self._noticed.wait()
        self._noticed = trio.Event()


class DeferWrites(NamedTuple):
    """Ask a slot: put messages into the inbox and nothing from there into the slot; or no more.

    Answers how many messages landed where it ends.
    """

    on: bool


class Quiesce(NamedTuple):
    """Ask an agent: start no more turns. Answered when no turn of it lives; one may be held."""


class EndTurns(NamedTuple):
    """Ask an agent that is quiesced: end the live turn, its wakes given back; answered then."""


class Resume(NamedTuple):
    """Tell an agent: turns start again."""


class Quiesced(NamedTuple):
    """A slot's answer to whoever asks for a turn while the host is quiesced."""


class ModeStatus(NamedTuple):
    """Whether a host starts turns, why not, and since when."""

    state: str
    """`serving`; `draining`: live turns run to their end; `quiesced`: none lives."""
    reason: str
    by: str
    since_ms: int | None


class QuiesceReceipt(NamedTuple):
    """What a quiesce came to. The host is quiesced, durably."""

    reason: str
    by: str
    at_ms: int
    abandoned: tuple[str, ...]
    """The agents whose live turn was ended at the window's end; each runs one fresh turn when the
    host resumes."""
    held: tuple[str, ...]
    """The agents whose turn is held: a row, which goes on after the resume."""
    runs_ended: tuple[str, ...]
    """The ephemeral runs that were ended at the window's end."""
    bodies_running: int
    """Tool bodies that run on though nobody waits for them; what they return is recorded."""


class ResumeReceipt(NamedTuple):
    """What a resume came to. The host serves, durably."""

    was_quiesced: bool
    reason: str
    """Why it had been quiesced."""
    landed: int
    """Messages that had waited and are in their slots."""
