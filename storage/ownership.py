"""Who may write what: owner rows taken by compare-and-set, and a file that proves its owner lives.

Any number of processes may open a store. What is owned (agents, slots, runs) has an owner row with
the nonce of the opening that took it and a fence that rises with each take-over. Every write guards
that row, so a process that was taken over is refused.

    row absent                        take it, fence 1
    its owner is this opening         keep it
    its owner is dead                 take it over, fence + 1
    its owner lives                   OwnedElsewhereError (an operator may force it)

A process proves that it lives by an exclusive lock on `owners/NONCE`, which the kernel drops at its
death. A stopped process still owns. A child forked by native code, past Python's hooks, keeps its
parent's proof alive until it ends.

Invariants:
    I1  `owners/NONCE` is never seen unlocked while its process lives: it is locked under a
        temporary name, then renamed.
    I2  A file that was once unlocked is never locked again; so a dead owner stays dead.
    I3  Fences only rise, and owner rows are never deleted.

Runs in: the reading thread.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from . import codec
from .crashpoints import crashpoint
from .errors import NoFileLocksError, OwnedElsewhereError, StoreBusyError
from .locks import FileLock, is_locked
from .store import Committed, Delete, Guard, NotStored, Put, Request, Row, Store
from .tables.ownership import Owner

Owned: TypeAlias = tuple[str, str]
"""Kind (agent, slot, run) and name."""

ATTEMPTS_MAX: Final = 10
DEAD_PRUNED_MAX: Final = 50
_PENDING: Final = ".pending-"


class Taking(NamedTuple):
    """How to take some owner rows, and the counters they have once every request is committed."""

    requests: tuple[Request, ...]
    """None where everything is owned already."""
    counters: dict[Owned, int]


class Ownership:
    """This opening's proof of life, and its claims.

    Args:
        store: The open store; its `nonce` names this opening.
        directory: Where `owners/` is: `LmdbStore.directory`. Made where it is missing.
        host: This machine's name, for messages.
        pid: This process.
    Raises:
        NoFileLocksError: The file system lets two descriptors hold one lock. Nothing was taken.
        OSError: The proof can't be written.
    """

    def __init__(self, store: Store, directory: Path, *, host: str, pid: int) -> None:
        self._store = store
        self._owners = directory / "owners"
        self.nonce = store.nonce
        self.host = host
        self.pid = pid
        self._owners.mkdir(mode=0o700, exist_ok=True)
        self._proof: FileLock | None = self._prove()

    def is_alive(self, nonce: str) -> bool:
        """Whether the opening of that nonce still has its process. A probe; blocks for no one."""
        return nonce == self.nonce or is_locked(self._owners / nonce)

    def plan(self, *names: Owned, force: bool = False) -> Taking:
        """Read the owner rows and say how to take them, all or nothing as far as one request holds.

        Nothing is written. If any request comes back refused, another process was faster: plan
        again. If all are committed, `counters` are what the rows' guards must say.

        Args:
            force: Take over from the living too; an operator's decision.
        Raises:
            OwnedElsewhereError: A live process owns one; it has its pid and host.
        """
        rows = {name: self._store.get("owners", name) for name in names}
        return plan_take(
            rows,
            nonce=self.nonce,
            is_alive=self._is_dead if force else self.is_alive,
            whereabouts=self._whereabouts,
            ops_max=self._store.limits.ops_max,
        )

    def take(self, *names: Owned, force: bool = False) -> dict[Owned, int]:
        """Take owner rows; blocks for the commit. For code without an event loop.

        Durable: on return.

        Returns:
            The counter of each row, for guards.
        Raises:
            OwnedElsewhereError: A live process owns one, or won the race for it.
            StorageError: The commit failed; nothing more was taken.
        """
        for _ in range(ATTEMPTS_MAX):
            taking = self.plan(*names, force=force)
            outcomes = self._store.commit(*taking.requests) if taking.requests else []
            for outcome in outcomes:
                if isinstance(outcome, NotStored):
                    raise outcome.error
            if all(isinstance(outcome, Committed) for outcome in outcomes):
                return taking.counters
        raise StoreBusyError(
            f"{len(names)} owner rows changed {ATTEMPTS_MAX} times while they were taken; what was "
            "taken stays; try again"
        )

    def forget_dead(self) -> int:
        """Delete what the dead left: their files, and their `processes` rows. How many rows.

        Bounded: at most 50 rows a call.
        """
        self._unlink_dead()
        requests = []
        for key, row in self._store.scan("processes"):
            if isinstance(row, Exception) or self.is_alive(str(key[0])):
                continue
            guard = Guard("processes", key, row.counter)
            requests.append(Request(guards=(guard,), deletes=(Delete("processes", key),)))
            if len(requests) == DEAD_PRUNED_MAX:
                break
        outcomes = self._store.commit(*requests) if requests else []
        return sum(isinstance(outcome, Committed) for outcome in outcomes)

    def close(self) -> None:
        """Give the proof up: from here on this opening is dead to others. Idempotent."""
        proof, self._proof = self._proof, None
        if proof is not None:
            # Unlinked while it is still locked: no one sees it unlocked and wonders.
            with suppress(FileNotFoundError):
                (self._owners / self.nonce).unlink()
            proof.close()

    def _prove(self) -> FileLock:
        path = self._owners / self.nonce
        for _ in range(ATTEMPTS_MAX):
            pending = self._owners / f"{_PENDING}{secrets.token_hex(8)}"
            proof = FileLock(pending)
            try:
                if proof.acquire_nowait():
                    crashpoint("ownership.before_rename")
                    pending.rename(path)
                    crashpoint("ownership.after_rename")
                    self._check_locks(path)
                    return proof
            except FileNotFoundError:
                # Somebody swept it away in the instant between its creation and its lock.
                pass
            except BaseException:
                proof.close()
                raise
            proof.close()
        raise NoFileLocksError(
            f"no lock could be had in {self._owners}; nothing was taken; use a local disk",
            path=str(self._owners),
            filesystem=None,
        )

    def _check_locks(self, path: Path) -> None:
        if not is_locked(path):
            path.unlink()
            raise NoFileLocksError(
                f"the file system of {self._owners} lets two descriptors hold one lock, so that no "
                "one can tell who lives; nothing was taken; keep the state on a local disk",
                path=str(self._owners),
                filesystem=None,
            )

    def _unlink_dead(self) -> None:
        for entry in os.listdir(self._owners):
            path = self._owners / entry
            if entry != self.nonce and not is_locked(path):
                path.unlink(missing_ok=True)

    def _is_dead(self, nonce: str) -> bool:
        """Under force, nobody but this opening counts as alive."""
        return nonce == self.nonce

    def _whereabouts(self, nonce: str) -> tuple[int | None, str | None]:
        row = self._store.get("processes", (nonce,))
        return (None, None) if row is None else (row.record.pid, row.record.host)


def plan_take(
    rows: Mapping[Owned, Row | None],
    *,
    nonce: str,
    is_alive: Callable[[str], bool],
    whereabouts: Callable[[str], tuple[int | None, str | None]],
    ops_max: int,
) -> Taking:
    """How to take these owner rows; see the module's table. Pure.

    Args:
        rows: Each owner row as it was read; None where there is none.
        whereabouts: Pid and host of a nonce, where they are known.
        ops_max: What one request may hold; more names are cut into several requests.
    Raises:
        OwnedElsewhereError: A live opening other than `nonce` owns one.
    """
    steps: list[tuple[Guard, Put | None]] = []
    counters: dict[Owned, int] = {}
    changes = False
    for name, row in rows.items():
        counter = 0 if row is None else row.counter
        guard = Guard("owners", name, counter)
        if row is not None and row.record.nonce == nonce:
            steps.append((guard, None))
            counters[name] = counter
            continue
        if row is not None and is_alive(row.record.nonce):
            raise _elsewhere(name, *whereabouts(row.record.nonce))
        fence = 1 if row is None else row.record.fence + 1
        owner = codec.encode(Owner(nonce=nonce, fence=fence))
        steps.append((guard, Put("owners", name, owner)))
        counters[name] = counter + 1
        changes = True
    return Taking(tuple(_cut(steps, ops_max)) if changes else (), counters)


def _cut(steps: Sequence[tuple[Guard, Put | None]], ops_max: int) -> list[Request]:
    size = max(1, ops_max // 2)
    return [
        Request(
            guards=tuple(guard for guard, _ in part),
            puts=tuple(put for _, put in part if put is not None),
        )
        for part in (steps[at : at + size] for at in range(0, len(steps), size))
    ]


def _elsewhere(name: Owned, pid: int | None, host: str | None) -> OwnedElsewhereError:
    kind, what = name
    where = f"process {pid} on {host}" if pid is not None else "another live process"
    return OwnedElsewhereError(
        f"{kind} {what!r} is owned by {where}; nothing was taken; stop that process",
        kind=kind,
        name=what,
        pid=pid,
        host=host,
    )
