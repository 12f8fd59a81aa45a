"""Holds slots of the engine's reader table until its input ends, as processes that look do."""

from __future__ import annotations

import sys

import lmdb


def main(path: str, slots: int) -> None:
    engine = lmdb.open(path, readonly=True, create=False, map_size=2**32, max_dbs=128)
    held = [engine.begin() for _ in range(slots)]
    print("holding", len(held), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
