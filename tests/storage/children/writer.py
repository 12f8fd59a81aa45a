"""Commits batch after batch and says which were acknowledged. What it says survives its death."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lmdb

from abeyance.storage import codec
from abeyance.storage.environment import Environment
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Append, Committed, Guard, Put, Request
from abeyance.storage.tables.slots import Wake
from abeyance.storage.tables.waits import LogLine

PER_BATCH = 5


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def fail_third_commit_after_it_is_on_disk() -> None:
    commit, calls = Environment.commit, [0]

    def failing(self: Environment, transaction: Any) -> None:
        commit(self, transaction)
        calls[0] += 1
        if calls[0] == 6:
            raise lmdb.DiskError("told to fail")

    Environment.commit = failing  # type: ignore[method-assign]


def main(path: str, batches: int, mode: str) -> None:
    if mode == "failing":
        fail_third_commit_after_it_is_on_disk()
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    say("open")
    if mode == "owning":
        Ownership(store, store.directory, host="h", pid=os.getpid())
        say("owning")
    wake = codec.encode(Wake(reason="message", author="ana", at_ms=1))
    line = codec.encode(LogLine(event="line", at_ms=1))
    for batch in range(batches):
        requests = [
            Request(
                guards=(Guard("wakes", (f"p{os.getpid()}", number), 0),),
                puts=(Put("wakes", (f"p{os.getpid()}", number), wake),),
                appends=(Append("log", line),),
            )
            for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH)
        ]
        outcomes = store.commit(*requests)
        assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
        say(f"acknowledged {batch}")
    store.close()
    say("closed")


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
