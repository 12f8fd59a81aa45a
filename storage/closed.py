"""The note of a clean close: in which state the last process left the data file.

A file that is still in that state need not be looked at before the engine gets it. Whether it is,
its bytes tell where they are few, and else what the file system says of it.

Invariants:
    I1  A file of up to `SUMMED_BYTES_MAX` bytes in which anything was changed since is not in it.
    I2  Of a larger one that is so for whatever was changed through the file system; what the disk
        lost by itself is not told.
    I3  A note that is not there, cannot be read, or says less, as an earlier version's does, says
        that nothing is known.

Runs in: the opening or closing thread.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from .directory import write_json
from .precheck import Meta

NOTE: Final = "closed.json"
SUMMED_BYTES_MAX: Final = 2**20
"""Reading so many takes half a millisecond, at a close and at an opening, which are to take as long
for a million records as for a thousand: of a larger file the file system's clock is asked."""
_SLICE: Final = 2**20


def was_closed_cleanly(store: Path, meta: Meta) -> bool:
    """Whether the last process closed the store, and its data is in exactly the state it left."""
    try:
        found = json.loads((store / NOTE).read_bytes())
        if found["txn"] != meta.txn or found["last_page"] != meta.last_page:
            return False
        return bool(found["data"] == _told(store / "data.mdb"))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def note_clean_close(store: Path, meta: Meta) -> None:
    """Note the state the store was closed in. Without the note, the next open looks longer."""
    with suppress(OSError):
        told = _told(store / "data.mdb")
        write_json(store / NOTE, {"txn": meta.txn, "last_page": meta.last_page, "data": told})


def _told(data: Path) -> dict[str, Any]:
    """What tells the file from one in which something was changed.

    Nobody can set back when a file was changed, but the machine's clock; a copy is another file.
    """
    with data.open("rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if found.st_size > SUMMED_BYTES_MAX:
            return {
                "bytes": found.st_size,
                "written_ns": found.st_mtime_ns,
                "changed_ns": found.st_ctime_ns,
            }
        crc = 0
        while part := file.read(_SLICE):
            crc = zlib.crc32(part, crc)
    return {"bytes": found.st_size, "crc": crc}
