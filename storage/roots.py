"""The two meta pages of a data file: which state the engine begins from.

The engine commits by writing a meta page, the two in turn, and a commit may write over each page
that the state before the last one has. Where a write of a meta page fails, the disk may have kept
it: after a power cut the file would begin from a commit that nobody was told of. That state is
whole until the next commit writes over its pages. So before there is one, both meta pages are made
to tell of the same state, and are on the disk.

Invariants:
    I1  Between any two of the writes here, whatever the disk keeps of them, the newer of the two
        meta pages is of a state that is whole.

Runs in: any thread, under the write lock.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

from .errors import DamagedStoreError
from .precheck import META_BYTES, PAGE_HEADER, TXN, read_metas

UNSETTLED: Final = "data.mdb.unsettled"
"""Another name of the data file, for as long as what the disk has of its meta pages is not known.
That a file has two names shows in a look that each commit takes anyway, in every process."""


def settle(data: Path, txn: int) -> None:
    """Have both meta pages tell of the state that transaction `txn` made. Durable: on return.

    Raises:
        DamagedStoreError: Neither tells of it. Nothing was changed.
        OSError: A write failed, and what the disk has is not known.
    """
    metas = read_metas(data)
    kept = txn % 2
    if len(metas) < 2 or metas[kept].txn != txn:
        raise DamagedStoreError(
            f"{data} begins from no state {txn}; it was not changed; restore a backup",
            path=str(data),
            findings=(f"no meta page of transaction {txn}",),
        )
    page = metas[0].page_bytes
    # Each write is on the disk when it returns.
    fd = os.open(data, os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC)
    try:
        raw = os.pread(fd, META_BYTES - PAGE_HEADER, kept * page + PAGE_HEADER)
        _write(fd, raw, kept * page + PAGE_HEADER)
        other = (1 - kept) * page
        # Older first: half of what follows must not be half of a newer state. Each of the pages
        # has every other number, and the engine takes the larger.
        older = max(txn - 1, 0).to_bytes(8, sys.byteorder)
        _write(fd, older, other + TXN)
        _write(fd, raw[: -len(older)] + older, other + PAGE_HEADER)
    finally:
        os.close(fd)


def mark(data: Path) -> None:
    """Have every process that writes next see that the meta pages are to be settled first.

    Raises:
        OSError: The file can have no other name.
    """
    try:
        os.link(data, data.with_name(UNSETTLED))
    except FileExistsError:
        return


def is_marked(data: Path) -> bool:
    return os.path.lexists(data.with_name(UNSETTLED))


def unmark(data: Path) -> None:
    data.with_name(UNSETTLED).unlink(missing_ok=True)


def _write(fd: int, raw: bytes, offset: int) -> None:
    if os.pwrite(fd, raw, offset) != len(raw):
        raise OSError(errno.EIO, "a write of a meta page was cut short")
