"""A store that this process has alone: nobody has it open for writing, and nobody opens it.

Runs in: the thread that calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .errors import StoreInUseError
from .locks import FileLock, is_locked


@contextmanager
def alone(store: Path, done: str, lock_timeout_s: float) -> Iterator[None]:
    """Hold both locks of a store that no process has open.

    Whoever opens it meanwhile waits for the write lock; whoever looks at it goes on.

    Args:
        store: The directory `store` inside the state directory.
        done: What would have been done with it, as a participle: `compacted`.
        lock_timeout_s: Seconds to wait for a process that opens or closes it.
    Raises:
        StoreInUseError: A process has it open; its pid is named. Nothing was changed.
        LockTimeoutError: Another process kept the write lock.
    """
    with ExitStack() as held:
        for name in ("write.lock", "open.lock"):
            lock = FileLock(store / name)
            held.callback(lock.close)
            if name == "write.lock":
                lock.acquire(lock_timeout_s)
            elif not lock.acquire_nowait():
                raise in_use(store, "has it open", done)
        yield


def in_use(store: Path, doing: str, done: str) -> StoreInUseError:
    """The error for a store that a process has open, or looks at."""
    pids = _open_pids(store)
    who = " and ".join(f"process {pid}" for pid in pids) or "a process"
    return StoreInUseError(
        f"{who} {doing}: {store} was not {done} and is as it was; stop that process, and try again",
        path=str(store),
        pids=pids,
    )


def _open_pids(store: Path) -> tuple[int, ...]:
    """The live processes that have the store open, as they noted themselves; see `Ownership`."""
    owners = store / "owners"
    found = []
    for proof in sorted(owners.iterdir()) if owners.is_dir() else ():
        if is_locked(proof):
            noted = proof.read_bytes()[:20].strip()
            found += [int(noted)] if noted.isdigit() else []
    return tuple(found)
