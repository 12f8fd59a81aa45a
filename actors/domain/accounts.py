"""Walls of a whole credential: what one agent's limit says of others that call with its key.

Off unless the host switches it on. A credential is known here by a salted fingerprint, never by the
key. A limit that its provider states of the account holds every model of the credential; any other
holds the model it was stated of.

Invariants:
    I1  While a wall is in force no call that it holds is admitted, whichever agent's.
    I2  After a wall those that it held go one by one (`account_line`). An auxiliary call and an
        ephemeral run, whom nobody can call, stand in no line: they are told when to ask again, and
        go once nobody stands in it.
    I3  Who stands in the line of a wall that is over is listed, and a release lets go whom it
        names, or, of the account, everyone: that is recorded nowhere, as the line is not.
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
from abeyance.storage.errors import StorageError, StoreClosedError
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait, WaitReleased

from .account_line import Line
from .overrides import EVERY, UNTIL_READ
from .wait_book import ACCOUNT, ProviderWait, WaitBook, outlasts

ASK_AGAIN_MS: Final = 5_000
"""When to ask again, for whoever nobody calls while others go first."""


def _in_line(account: str) -> str:
    return (
        "waits for the first call of its account since the limit to succeed "
        f"(release {ACCOUNT}{account})"
    )


class Wall:
    """Why a credential's call may not be made now."""

    __slots__ = ("deadline_ms", "is_unread", "of_quota", "reason", "window")

    def __init__(
        self,
        deadline_ms: int | None,
        reason: str,
        *,
        is_unread: bool = False,
        window: str | None = None,
        of_quota: bool = False,
    ) -> None:
        self.deadline_ms = deadline_ms
        self.reason = reason
        self.is_unread = is_unread
        self.window = window
        self.of_quota = of_quota


class Accounts:
    """The walls of credentials, and the lines before them."""

    def __init__(self, book: WaitBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._lines: dict[tuple[str, str], Line] = {}
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
            line = self._lines.setdefault((account, scope), Line(self._clock))
            line.close()
            if stands:
                line.stand(agent, ref, model)
            if longest is None or outlasts(wall.deadline_ms, longest.deadline_ms):
                longest = wall
        if longest is not None:
            for scope, (wall, _) in walls.items():
                passed_by = self._lines.get((account, scope))
                if wall is None and stands and passed_by is not None:
                    # Whom another wall holds does not keep up the line of one that is over.
                    passed_by.leave(agent)
            return longest
        for scope, (_, has_ended) in walls.items():
            if has_ended:
                self._lines.setdefault((account, scope), Line(self._clock))
            behind = self._lines.get((account, scope))
            if behind is None or not behind.keeps(agent, has_wall=has_ended):
                continue
            if stands:
                behind.stand(agent, ref, model)
            if not behind.is_next(agent):
                # Without a place it is never called, and a wall without an end would be for good.
                again_ms = None if stands else self._clock.now_ms() + ASK_AGAIN_MS
                return Wall(again_ms, _in_line(account))
        return None

    def standing(self, name: str | None = None) -> list[ProviderWait]:
        """Who stands in the line of a wall that is over, in its order: of one agent, of one
        credential by the name its waits are listed under, or of all."""
        now_ms = self._clock.now_ms()
        shown: dict[tuple[str, str], ProviderWait] = {}
        for account, line in self._lines_after(None):
            for agent, place in line.places:
                if name in (None, agent, f"{ACCOUNT}{account}"):
                    since_ms = min(place.since_ms, now_ms)
                    wait = ProviderWait(agent, place.model, None, _in_line(account), since_ms)
                    shown.setdefault((agent, place.model), wait)
        return list(shown.values())

    def let_go(self, name: str, model: str | None) -> list[ProviderWait]:
        """Let who stands in line call without waiting for others: an agent, or all of a credential
        by the name its waits are listed under; of one model, or (None) of all."""
        gone = [wait for wait in self.standing(name) if model in (None, wait.model)]
        for _, line in self._lines_after(None if not name.startswith(ACCOUNT) else name):
            line.let_go(wait.agent for wait in gone)
        return gone

    def _lines_after(self, name: str | None) -> list[tuple[str, Line]]:
        """The lines of walls that are over, of one credential or of all, each with whose it is."""
        found = []
        for (account, scope), line in self._lines.items():
            if line.places and name in (None, f"{ACCOUNT}{account}"):
                with suppress(StorageError):
                    wall, _ = self._wall(account, scope, is_told=True)
                    if wall is None:
                        found.append((account, line))
        return found

    def taken(self, account: str, agent: str, model: str, permit: int, gate: Any) -> None:
        """A call was admitted by this gate."""
        for line in self._lines_of(account, model):
            line.taken(agent, permit, gate)

    def settled(
        self, account: str, agent: str, model: str, permit: int, *, succeeded: bool
    ) -> None:
        """A call is over, and what it stated binds."""
        for line in self._lines_of(account, model):
            line.settled(agent, permit, succeeded=succeeded)

    def lifted(self, account: str, model: str | None) -> None:
        """The wall of a model, or (None) every wall, was released: call who is first. Of the
        credential `*`, what nobody knows whose it was."""
        for (name, scope), line in self._lines.items():
            if account in (name, EVERY) and model in (None, scope):
                line.call_next()

    def _lines_of(self, account: str, model: str) -> list[Line]:
        """The lines that a call to this model stood in, or would."""
        found = (self._lines.get((account, scope)) for scope in (EVERY, model))
        return [line for line in found if line is not None]

    def _walls(self, account: str, model: str) -> dict[str, tuple[Wall | None, bool]]:
        for scope in (EVERY, model):
            self._book.account_keys.claim((account, scope))
        every = self._wall(account, EVERY)
        # Whoever was told that nothing of an account can be read is not told of each model.
        is_told = every[0] is not None and every[0].is_unread
        return {EVERY: every, model: self._wall(account, model, is_told=is_told)}

    def _wall(self, account: str, scope: str, *, is_told: bool = False) -> tuple[Wall | None, bool]:
        """What is in force, and whether something was and has ended."""
        damage = self._book.account_keys.damage(account) if scope == EVERY else None
        if damage is not None:
            self._book.episodes.begin(f"{ACCOUNT}{damage.of}", scope, damage.reason)
            return Wall(None, damage.reason, is_unread=True), False
        try:
            record = self._book.account_record((account, scope))
        except StoreClosedError:
            raise
        except StorageError as error:
            reason = f"the account's wait cannot be read; {UNTIL_READ}: {error}"[:REASON_CHARS_MAX]
            if not is_told:
                self._book.episodes.begin(f"{ACCOUNT}{account}", scope, reason)
            return Wall(None, reason, is_unread=True), False
        self._book.episodes.end(f"{ACCOUNT}{account}", scope)
        if scope == EVERY and not self._book.account_keys.names_nobody:
            self._book.episodes.end(f"{ACCOUNT}{EVERY}", EVERY)
        if isinstance(record, Wait) and (
            record.deadline_ms is None or record.deadline_ms > self._clock.now_ms()
        ):
            reason = f"{record.reason} (release {ACCOUNT}{account})"[:REASON_CHARS_MAX]
            return Wall(
                record.deadline_ms, reason, window=record.window, of_quota=record.of_quota
            ), False
        return None, isinstance(record, Wait | WaitReleased)


class Account(NamedTuple):
    """The credential of an agent's provider, where its walls are kept."""

    name: str
    book: Accounts
