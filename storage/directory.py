"""The state directory: what lies where, how a store comes to be, and what is no store.

    STATE/                  0700; may be a mount point
        store/              0700; made under a temporary name, renamed when complete
            store.json      the store's id and format, beside the data so that emptied data shows
            data.mdb        0600; the tables
            lock.mdb        0600; the engine's reader table
            write.lock      held around each write batch, and while a store is opened or closed
            open.lock       held shared by every process that has the store open for writing
            data.mdb.unsettled  another name of the data, while its meta pages are unsettled
            closed.json     the state in which the last process closed the store (`closed.py`)
            owners/         0700; one locked file a live process
            flights/        0700; a file a live process: what its handlers have in hand
        control/            0700; the operator's side: a socket a live process, named PID-NONCE

Invariants:
    I1  A directory named `store` is complete: it is renamed into place, and its parent synced.
    I2  Nothing is changed in a directory that belongs to something else.

Runs in: the opening thread.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from .crashpoints import crashpoint
from .errors import (
    DamagedStoreError,
    ForeignDirectoryError,
    MissingStoreError,
    NewerFormatError,
    StoreEmptiedError,
)
from .locks import FILE_MODE, FileLock
from .tables import FORMAT, FORMATS

DIRECTORY_MODE: Final = 0o700
STORE: Final = "store"
_CREATING: Final = "store.creating-"
_NOT_OURS_BUT_HARMLESS: Final = frozenset({"lost+found"})


class Identity(NamedTuple):
    """What store.json says."""

    store_id: str
    format: int
    created_ms: int


def find_or_create(
    state: Path,
    *,
    create: bool,
    now_ms: int,
    timeout_s: float,
    fill: Callable[[Path, Identity], None],
) -> Path:
    """Return the store's directory inside `state`, made first where there is none.

    Durable: on return, if it was created.

    Args:
        fill: Makes the data file in the directory it is given.
    Raises:
        MissingStoreError: There is none and `create` is false.
        ForeignDirectoryError: `state` is a file, or holds something else and no store.
        LockTimeoutError: Another process was creating it for too long.
        OSError: The directory can't be made.
    """
    store = state / STORE
    if store.is_dir():
        return store
    if not create:
        refuse_missing(state)
    _refuse_foreign(state, "name an empty or a new directory")
    if not state.exists():
        # Another process may be faster by a moment; which of them fills it, the lock decides.
        state.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        sync_directory(state.parent)
    lock = FileLock(state)
    try:
        lock.acquire(timeout_s)
        if not store.is_dir():
            _refuse_foreign(state, "name an empty or a new directory")
            _create(state, store, now_ms, fill)
    finally:
        lock.close()
    return store


def refuse_missing(state: Path) -> NoReturn:
    """Say of a directory without a store why there is none to look at.

    Raises:
        MissingStoreError: There is nothing, or nothing yet.
        ForeignDirectoryError: `state` is a file, or holds something else.
    """
    _refuse_foreign(state, "name the state directory of a host")
    raise MissingStoreError(
        f"there is no store in {state}; nothing was created; start a host there first",
        path=str(state),
    )


def read_identity(store: Path) -> Identity:
    """Read store.json, and see that the data it belongs to is there.

    Raises:
        NewerFormatError: The store was written by a newer version.
        StoreEmptiedError: The data file is gone or empty.
        DamagedStoreError: store.json is missing or is none.
    """
    path = store / "store.json"
    try:
        found = json.loads(path.read_bytes())
        identity = Identity(found["store_id"], found["format"], found["created_ms"])
        if type(identity.store_id) is not str or type(identity.format) is not int:
            raise ValueError("a field of another type")
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise DamagedStoreError(
            f"{path} is missing or damaged ({error}); nothing was changed; restore a backup",
            path=str(store),
            findings=(f"store.json: {error}",),
        ) from error
    if identity.format > FORMAT:
        raise NewerFormatError(
            f"{store} has format {identity.format} and this version reads up to {FORMAT}; nothing "
            "was changed; use the version that wrote it, or a newer one",
            path=str(store),
            format=identity.format,
            supported=FORMAT,
        )
    data = store / "data.mdb"
    if not data.exists() or data.stat().st_size == 0:
        raise StoreEmptiedError(
            f"{data} is gone or empty, and store {identity.store_id} was there; nothing was "
            "created in its place; restore a backup, or remove the directory to begin anew",
            path=str(store),
            store_id=identity.store_id,
            findings=("data.mdb is gone or empty",),
        )
    return identity


def write_format(store: Path, number: int) -> None:
    """Have store.json say another format. Durable: on return."""
    path = store / "store.json"
    found = json.loads(path.read_bytes())
    write_json(path, {**found, "format": number})
    sync_directory(store)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_foreign(state: Path, advice: str) -> None:
    if not os.path.lexists(state):
        return
    if not state.is_dir():
        what = "a file" if state.exists() else "a link to nothing"
        raise ForeignDirectoryError(
            f"{state} is {what}, not a directory; nothing was changed; {advice}",
            path=str(state),
        )
    for entry in sorted(os.listdir(state)):
        if entry not in _NOT_OURS_BUT_HARMLESS and not entry.startswith(_CREATING):
            raise ForeignDirectoryError(
                f"{state} belongs to something else (it holds {entry!r} and no store); nothing was "
                f"changed; {advice}",
                path=str(state),
            )


def _create(state: Path, store: Path, now_ms: int, fill: Callable[[Path, Identity], None]) -> None:
    # Whoever began before us and holds no lock any more is dead: the directory is locked by us.
    for entry in state.glob(f"{_CREATING}*"):
        shutil.rmtree(entry)
    making = state / f"{_CREATING}{secrets.token_hex(8)}"
    try:
        prepare(making)
        identity = Identity(secrets.token_hex(16), FORMATS[0], now_ms)
        write_json(making / "store.json", identity._asdict())
        fill(making, identity)
        sync_directory(making)
        crashpoint("open.before_rename")
        making.rename(store)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    crashpoint("open.after_rename")
    sync_directory(state)


def prepare(making: Path) -> None:
    """Make a store's directory with what it has beside its data. Not synced."""
    making.mkdir(mode=DIRECTORY_MODE)
    for name in ("owners", "flights"):
        (making / name).mkdir(mode=DIRECTORY_MODE)
    for name in ("write.lock", "open.lock"):
        FileLock(making / name).close()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Put a file in the place of what is there. On return its content is durable, its name not."""
    temporary = path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
