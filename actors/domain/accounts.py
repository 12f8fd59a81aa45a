"""Walls of a whole credential: what one agent's limit says of others that call with its key.

Off unless the host switches it on. A credential is known here by a salted fingerprint, never by the
key. A limit that its provider states of the account holds every model of the credential; any other
holds the model it was stated of.

Invariants:
    I1  While a wall is in force no call of its credential is admitted, whichever agent's.
    I2  After a wall one call is out at a time, by who was turned away first, until a call of the
        credential has succeeded; then those who were turned away start one by one, each when the
        call before it has succeeded.
    I3  Whoever does not come when it is called loses its place after 30 s; a call that fails, or
        whose caller dies, lets the next one try.

What is in the rows outlasts the process; who stands in line does not: after a restart everyone asks
anew, and the first success of the credential ends the caution. Processes that share a store share
the walls and have a line each.

Runs in: the loop thread. Rows are written by the ledger; the line is kept by gates.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError
from abeyance.storage.errors import StorageError, StoreClosedError
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait, WaitReleased

from .limits import RECHECK_MS
from .protocol import Due
from .unreadable import EVERY
from .wait_book import ACCOUNT, WaitBook, outlasts


class _Line:
    """Who of one credential was turned away."""

    def __init__(self) -> None:
        self.waiting: dict[str, Any] = {}
        """Agents in the order of their coming, with whom to call."""
        self.passed: set[str] = set()
        """Agents whose turn has come since the wall; their further calls go on."""
        self.probe: tuple[str, int] | None = None
        """The call that the next one waits for: agent, permit."""
        self.proved = False
        """A call has succeeded since the wall."""
        self.called_ms: int | None = None
        """Since when the first in line could have come."""


class Wall:
    """Why a credential's call may not be made now."""

    __slots__ = ("deadline_ms", "reason")

    def __init__(self, deadline_ms: int | None, reason: str) -> None:
        self.deadline_ms = deadline_ms
        self.reason = reason


class Accounts:
    """The walls of credentials, and the lines before them."""

    def __init__(self, book: WaitBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def check(self, account: str, agent: str, model: str, ref: Any) -> Wall | None:
        """Why this agent's call may not be made now; one that may not stands in line from then."""
        line = self._lines.get(account)
        wall, has_ended = self._wall(account, model)
        if line is None:
            if wall is None and not has_ended:
                return None
            line = self._lines[account] = _Line()
        if wall is not None:
            line.proved, line.probe, line.called_ms = False, None, None
            line.passed.clear()
            line.waiting.setdefault(agent, ref)
            return wall
        if agent in line.passed or (not line.waiting and (line.proved or not has_ended)):
            return None
        line.waiting[agent] = ref if ref is not None else line.waiting.get(agent)
        self._drop_late(line)
        if line.probe is None and next(iter(line.waiting)) == agent:
            return None
        return Wall(None, "waits for the first call of its account since the limit to succeed")

    def taken(self, account: str, agent: str, permit: int) -> None:
        """A call was admitted."""
        line = self._lines.get(account)
        if line is not None and line.waiting.pop(agent, self) is not self:
            line.probe, line.called_ms = (agent, permit), None
            line.passed.add(agent)

    def settled(self, account: str, agent: str, permit: int, *, succeeded: bool) -> None:
        """A call is over, and what it stated binds."""
        line = self._lines.get(account)
        if line is None:
            return
        line.proved = line.proved or succeeded
        if line.probe == (agent, permit):
            line.probe = None
            if not succeeded:
                line.passed.discard(agent)
            self._call_next(line)
        if not line.waiting and line.proved and line.probe is None:
            line.passed.clear()

    def lifted(self, account: str) -> None:
        """A wall was released: call who is first."""
        line = self._lines.get(account)
        if line is not None:
            self._call_next(line)

    def _wall(self, account: str, model: str) -> tuple[Wall | None, bool]:
        """What is in force, and whether something was and has ended."""
        wall: Wall | None = None
        has_ended = False
        for scope in (EVERY, model):
            try:
                record = self._book.account_record((account, scope))
            except StoreClosedError:
                raise
            except StorageError as error:
                return Wall(None, f"the account's wait cannot be read: {error}"), has_ended
            if isinstance(record, Wait) and (
                record.deadline_ms is None or record.deadline_ms > self._clock.now_ms()
            ):
                if wall is None or outlasts(record.deadline_ms, wall.deadline_ms):
                    wall = Wall(record.deadline_ms, record.reason)
            elif isinstance(record, Wait | WaitReleased):
                has_ended = True
        if wall is not None:
            wall.reason = f"{wall.reason} (release {ACCOUNT}{account})"[:REASON_CHARS_MAX]
        return wall, has_ended

    def _drop_late(self, line: _Line) -> None:
        now_ms = self._clock.now_ms()
        if line.probe is not None:
            return
        if line.called_ms is None or now_ms < line.called_ms:
            line.called_ms = now_ms
        elif now_ms - line.called_ms >= RECHECK_MS and len(line.waiting) > 1:
            del line.waiting[next(iter(line.waiting))]
            self._call_next(line)

    def _call_next(self, line: _Line) -> None:
        while line.waiting:
            agent, ref = next(iter(line.waiting.items()))
            line.called_ms = self._clock.now_ms()
            if ref is None:
                return
            with suppress(ActorDeadError):
                ref.tell_internal(Due(agent))
                return
            del line.waiting[agent]
