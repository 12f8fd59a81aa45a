"""Stops itself between writing a batch and committing it, and says so once it goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading

from abeyance.storage import writer
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership


def stop_inside(point: str) -> None:
    if point == "writer.before_commit":
        # To this thread: of a signal to the process another one may take notice first, and this
        # one commits meanwhile.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def main(path: str) -> None:
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    ownership = Ownership(store, store.directory, host="here", pid=os.getpid())
    writer.crashpoint = stop_inside
    print("open", flush=True)
    ownership.take(("agent", "ana"))
    print("took", flush=True)
    ownership.close()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
