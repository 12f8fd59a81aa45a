"""Walls of a whole credential: what one agent's limit says of others that call with its key.

Off unless the host switches it on. A credential is known here by a salted fingerprint, never by the
key. A limit that its provider states of the account holds every model of the credential; any other
holds the model it was stated of.

Invariants:
    I1  While a wall is in force no call that it holds is admitted, whichever agent's.
    I2  After a wall one of the calls that it held is out at a time, by who was turned away first,
        until one has succeeded; then those who were turned away start one by one, each when the
        call before it has succeeded.
    I3  Whoever does not come when it is called loses its place after 30 s; a call that fails, or
        whose caller dies, lets the next one try. So does one whose gate has ended, or that has been
        out for 10 min: a call that nobody will settle keeps nobody.
        Who has ended has no place. An auxiliary call and an ephemeral run, whom nobody can call,
        take none: they are told when to ask again, and go once nobody stands in line.
    I4  A wall has a line of its own, whether it holds one model or all: whoever waits for one model
        keeps nobody from another.

What is in the rows outlasts the process; who stands in line does not: after a restart everyone asks
anew, and the first success of the credential ends the caution. Processes that share a store share
the walls and have a line each.

Runs in: the loop thread. Rows are written by the ledger; the line is kept by gates.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError
from abeyance.storage.errors import StorageError, StoreClosedError
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait, WaitReleased

from .limits import RECHECK_MS
from .overrides import EVERY
from .protocol import Due
from .wait_book import ACCOUNT, WaitBook, outlasts

PROBE_MS: Final = 600_000
"""How long others wait for one call after a wall. It may take longer, but not alone."""

ASK_AGAIN_MS: Final = 5_000
"""When to ask again, for whoever nobody calls while others go first."""


class _Probe(NamedTuple):
    """The call that the next one waits for."""

    agent: str
    permit: int
    gate: Any
    since_ms: int


class _Line:
    """Who was turned away by the walls of one credential and model, or of all its models."""

    def __init__(self) -> None:
        self.waiting: dict[str, Any] = {}
        """Agents in the order of their coming, with whom to call."""
        self.passed: set[str] = set()
        """Agents whose turn has come since the wall; their further calls go on."""
        self.probe: _Probe | None = None
        self.proved = False
        """A call has succeeded since the wall."""
        self.called_ms: int | None = None
        """Since when the first in line could have come."""


class Wall:
    """Why a credential's call may not be made now."""

    __slots__ = ("deadline_ms", "is_unread", "reason")

    def __init__(self, deadline_ms: int | None, reason: str, *, is_unread: bool = False) -> None:
        self.deadline_ms = deadline_ms
        self.reason = reason
        self.is_unread = is_unread


class Accounts:
    """The walls of credentials, and the lines before them."""

    def __init__(self, book: WaitBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._lines: dict[tuple[str, str], _Line] = {}
        """By credential and what its wall holds: a model, or `*`."""

    def look(self, account: str) -> None:
        """Read every wall of a credential, so that one that cannot be read, or that lasts, is told
        of when its first agent starts, and not only when a call meets it. A process may have died
        between a wall and the alert of it."""
        try:
            models = self._book.account_models(account)
        except StoreClosedError:
            raise
        except StorageError:
            models = [EVERY]
        for model in models or [EVERY]:
            walls = self._walls(account, model)
            watcher, (wall, _) = self._book.episodes.watcher, walls[model]
            if watcher is not None and wall is not None and not wall.is_unread:
                record = self._book.account_record((account, model))
                if isinstance(record, Wait):
                    watcher.bound((f"{ACCOUNT}{account}", model), record)

    def check(
        self, account: str, agent: str, model: str, ref: Any, *, stands: bool = True
    ) -> Wall | None:
        """Why this agent's call may not be made now. One that may not stands in line from then and
        is called; one that takes no place (`stands`) is given an instant to ask again."""
        walls = self._walls(account, model)
        longest: Wall | None = None
        for scope, (wall, _) in walls.items():
            if wall is None:
                continue
            line = self._lines.setdefault((account, scope), _Line())
            line.proved, line.probe, line.called_ms = False, None, None
            line.passed.clear()
            if stands:
                line.waiting.setdefault(agent, ref)
            if longest is None or outlasts(wall.deadline_ms, longest.deadline_ms):
                longest = wall
        if longest is not None:
            for scope, (wall, _) in walls.items():
                if wall is None and stands:
                    self._leave((account, scope), agent)
            return longest
        for scope, (_, has_ended) in walls.items():
            if has_ended:
                self._lines.setdefault((account, scope), _Line())
            line_ = self._lines.get((account, scope))
            if line_ is None or self._may_go(line_, agent, has_ended):
                continue
            if stands:
                line_.waiting[agent] = ref if ref is not None else line_.waiting.get(agent)
            if not self._is_next(line_, agent):
                # Without a place it is never called, and a wall without an end would be for good.
                again_ms = None if stands else self._clock.now_ms() + ASK_AGAIN_MS
                return Wall(
                    again_ms, "waits for the first call of its account since the limit to succeed"
                )
        return None

    def taken(self, account: str, agent: str, model: str, permit: int, gate: Any) -> None:
        """A call was admitted by this gate."""
        for line in self._lines_of(account, model):
            stood = line.waiting.pop(agent, self) is not self
            is_first = line.probe is None and not line.proved and agent not in line.passed
            if stood or is_first:
                line.probe = _Probe(agent, permit, gate, self._clock.now_ms())
                line.called_ms = None
                line.passed.add(agent)

    def settled(
        self, account: str, agent: str, model: str, permit: int, *, succeeded: bool
    ) -> None:
        """A call is over, and what it stated binds."""
        for line in self._lines_of(account, model):
            line.proved = line.proved or succeeded
            if line.probe is not None and line.probe[:2] == (agent, permit):
                line.probe = None
                if not succeeded:
                    line.passed.discard(agent)
                self._call_next(line)
            if not line.waiting and line.proved and line.probe is None:
                line.passed.clear()

    def lifted(self, account: str, model: str | None) -> None:
        """The wall of a model, or (None) every wall, was released: call who is first. Of the
        credential `*`, what nobody knows whose it was."""
        for (name, scope), line in self._lines.items():
            if account in (name, EVERY) and model in (None, scope):
                self._call_next(line)

    def _leave(self, place: tuple[str, str], agent: str) -> None:
        """Whom another wall holds does not keep up the line of one that has ended."""
        line = self._lines.get(place)
        if line is not None and agent in line.waiting:
            was_first = next(iter(line.waiting)) == agent
            del line.waiting[agent]
            if was_first and line.probe is None:
                self._call_next(line)

    def _lines_of(self, account: str, model: str) -> list[_Line]:
        """The lines that a call to this model stood in, or would."""
        found = (self._lines.get((account, scope)) for scope in (EVERY, model))
        return [line for line in found if line is not None]

    def _walls(self, account: str, model: str) -> dict[str, tuple[Wall | None, bool]]:
        every = self._wall(account, EVERY)
        # Whoever was told that nothing of an account can be read is not told of each model.
        is_told = every[0] is not None and every[0].is_unread
        return {EVERY: every, model: self._wall(account, model, is_told=is_told)}

    def _wall(self, account: str, scope: str, *, is_told: bool = False) -> tuple[Wall | None, bool]:
        """What is in force, and whether something was and has ended."""
        damage = self._book.account_keys.damage(account) if scope == EVERY else None
        if damage is not None:
            self._book.episodes.begin(f"{ACCOUNT}{account}", scope, damage.reason)
            return Wall(None, damage.reason, is_unread=True), False
        try:
            record = self._book.account_record((account, scope))
        except StoreClosedError:
            raise
        except StorageError as error:
            reason = f"the account's wait cannot be read: {error}"[:REASON_CHARS_MAX]
            if not is_told:
                self._book.episodes.begin(f"{ACCOUNT}{account}", scope, reason)
            return Wall(None, reason, is_unread=True), False
        self._book.episodes.end(f"{ACCOUNT}{account}", scope)
        if isinstance(record, Wait) and (
            record.deadline_ms is None or record.deadline_ms > self._clock.now_ms()
        ):
            reason = f"{record.reason} (release {ACCOUNT}{account})"[:REASON_CHARS_MAX]
            return Wall(record.deadline_ms, reason), False
        return None, isinstance(record, Wait | WaitReleased)

    def _may_go(self, line: _Line, agent: str, has_ended: bool) -> bool:
        """Whether a line keeps nobody any more, or this agent's turn has come already."""
        return agent in line.passed or (not line.waiting and (line.proved or not has_ended))

    def _is_next(self, line: _Line, agent: str) -> bool:
        """Whether a call may be made behind a wall that has ended."""
        self._drop_lost(line)
        self._drop_late(line, agent)
        return line.probe is None and next(iter(line.waiting), agent) == agent

    def _drop_lost(self, line: _Line) -> None:
        """A call whose gate has ended is settled by nobody; one that takes long keeps nobody."""
        probe = line.probe
        if probe is None:
            return
        has_ended = probe.gate is not None and not probe.gate.is_alive()
        if has_ended or not 0 <= self._clock.now_ms() - probe.since_ms < PROBE_MS:
            line.probe = None
            line.passed.discard(probe.agent)
            self._call_next(line)

    def _drop_late(self, line: _Line, asks: str) -> None:
        now_ms = self._clock.now_ms()
        if line.probe is not None or not line.waiting:
            return
        first, ref = next(iter(line.waiting.items()))
        if ref is not None and not ref.is_alive():
            self._call_next(line)
        elif line.called_ms is None or now_ms < line.called_ms:
            line.called_ms = now_ms
        elif now_ms - line.called_ms >= RECHECK_MS and first != asks:
            del line.waiting[first]
            self._call_next(line)

    def _call_next(self, line: _Line) -> None:
        while line.waiting:
            agent, ref = next(iter(line.waiting.items()))
            line.called_ms = self._clock.now_ms()
            if ref is None:
                return
            if ref.is_alive():
                with suppress(ActorDeadError):
                    ref.tell_internal(Due(agent))
                    return
            del line.waiting[agent]


class Account(NamedTuple):
    """The credential of an agent's provider, where its walls are kept."""

    name: str
    book: Accounts
