"""Which messages are with their handlers, for whoever looks after this process has died.

A message that ends the process leaves nothing in memory, and a commit before each handler would
cost a sync a message. So they are noted in a file, without a sync: what was written survives the
process, and a message does not end the machine. `docs/format.md` has the layout.

Invariants:
    I1  What `note` returned True for is read by `read_flights` if the process is killed the
        instant after.
    I2  A slot that was half written reads as free.
    I3  The file of a process that lives is left alone; that of a dead one goes only after what it
        says was taken over.

Notes are written by any thread, one at a time.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from .errors import InvalidRequestError
from .forks import dismiss, remember
from .keys import decode_key, encode_key

SLOT_BYTES: Final = 512
SLOTS_MAX: Final = 4_096
"""Messages noted at once; more are not noted. Two megabytes."""
_HEAD: Final = struct.Struct(">IHI")
_COUNTED: Final = struct.Struct(">HI")
_SHAPE: Final = (str, str)
_FREE: Final = bytes(_HEAD.size)
DELIVERIES_MAX: Final = 2**32 - 1


class Flight(NamedTuple):
    """A message that was with its handler."""

    actor: str
    act: str
    deliveries: int
    """Which delivery it was, from 1."""


class Flights:
    """What this opening has in flight.

    Args:
        directory: Where `flights/` is: `LmdbStore.directory`. Made where it is missing.
        nonce: This opening's.
    Raises:
        OSError: The file can't be made.
    """

    def __init__(self, directory: Path, nonce: str) -> None:
        folder = directory / "flights"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._path = folder / nonce
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd: int | None = os.open(self._path, flags, 0o600)
        self._slots: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._made = 0
        self._lock = threading.Lock()
        remember(self)

    def note(self, actor: str, act: str, deliveries: int) -> bool:
        """Note a message before its handler runs. Whether it is noted.

        It is not where its key is too long or no text, too many are noted, or the file takes no
        more.
        """
        key = (actor, act)
        try:
            raw = encode_key(_SHAPE, key)
        except InvalidRequestError:
            return False
        if len(raw) > SLOT_BYTES - _HEAD.size:
            return False
        counted = _COUNTED.pack(len(raw), min(deliveries, DELIVERIES_MAX)) + raw
        with self._lock:
            if self._fd is None:
                return False
            slot = self._slots.get(key)
            if slot is None:
                slot = self._free.pop() if self._free else self._made
                if slot >= SLOTS_MAX:
                    return False
                self._made = max(self._made, slot + 1)
                self._slots[key] = slot
            content = zlib.crc32(counted).to_bytes(4, "big") + counted
            try:
                return os.pwrite(self._fd, content, slot * SLOT_BYTES) == len(content)
            except OSError:
                return False

    def clear(self, actor: str, act: str) -> bool:
        """Take a note back. Whether there was one."""
        with self._lock:
            slot = self._slots.pop((actor, act), None)
            if slot is None or self._fd is None:
                return False
            self._free.append(slot)
            # In place, so it needs no room; a note that stays counts a delivery too many.
            with suppress(OSError):
                os.pwrite(self._fd, _FREE, slot * SLOT_BYTES)
            return True

    def close(self) -> None:
        """Nothing is in flight any more: delete the file. Idempotent."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is None:
                return
            dismiss(self)
            self._path.unlink(missing_ok=True)
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: close, and leave the parent's file alone."""
        fd, self._fd = self._fd, None
        dismiss(self)
        if fd is not None:
            os.close(fd)


def read_flights(path: Path) -> tuple[Flight, ...]:
    """What a process noted and did not take back.

    Raises:
        OSError: The file can't be read.
    """
    raw = path.read_bytes()
    found = []
    for at in range(0, min(len(raw), SLOTS_MAX * SLOT_BYTES), SLOT_BYTES):
        slot = raw[at : at + SLOT_BYTES]
        if len(slot) < _HEAD.size:
            continue
        crc, length, deliveries = _HEAD.unpack_from(slot)
        if not length or zlib.crc32(slot[4 : _HEAD.size + length]) != crc:
            continue
        try:
            key = decode_key(slot[_HEAD.size : _HEAD.size + length])
        except ValueError:
            continue
        if len(key) == 2 and deliveries:
            found.append(Flight(str(key[0]), str(key[1]), deliveries))
    return tuple(found)


def dead_flights(
    directory: Path, is_alive: Callable[[str], bool]
) -> Iterator[tuple[Path, tuple[Flight, ...]]]:
    """The files of dead openings, and what each had in flight. The caller deletes them."""
    folder = directory / "flights"
    for nonce in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if not is_alive(nonce):
            with suppress(FileNotFoundError):  # Another process was faster.
                yield folder / nonce, read_flights(folder / nonce)
