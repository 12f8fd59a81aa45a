"""A disk that fails, and one that loses what was not synced when the power goes.

A process runs behind `children/disk.c`, which lets its writes and syncs of the data file fail and
logs them in order. From the log, images are made of what a disk may hold after a power cut: of each
part of the file that was written and not synced since, any of its contents.

What a disk does with an error is modelled as Linux does it. A sync that failed leaves what it was
to write as if it had been written: a later sync does not try it again. So those parts stay
uncertain until they are written anew.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

DATA: Final = 1
SYNC: Final = 2
META: Final = 3
NOTE: Final = 4
CHILDREN: Final = Path(__file__).parent / "children"
COMPILER: Final = shutil.which("cc") or shutil.which("gcc")
_HEADER: Final = struct.Struct("=iiqq")
SECTOR: Final = 512
"""What a disk writes whole or not at all."""
PAGE: Final = 4096


class Entry(NamedTuple):
    """What reached the file, or was told (`NOTE`, its number in `offset`)."""

    kind: int
    failed: bool
    offset: int
    data: bytes


def build(directory: Path) -> Path:
    """Compile what stands between a process and its disk."""
    assert COMPILER is not None
    made = directory / "disk.so"
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(made), str(CHILDREN / "disk.c")]
    subprocess.run([*command, "-ldl"], check=True, timeout=60)
    return made


def run(shim: Path, state: Path, *args: int) -> tuple[dict[str, Any], list[Entry]]:
    """Run `children/disk.py` over that disk; what it says, and what it wrote."""
    log = state.with_name("log")
    found = subprocess.run(
        [sys.executable, str(CHILDREN / "disk.py"), str(state), *map(str, args)],
        env={**os.environ, "LD_PRELOAD": str(shim), "DISK_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout), list(_entries(log.read_bytes()))


def _entries(raw: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(raw):
        kind, failed, offset, size = _HEADER.unpack_from(raw, at)
        at += _HEADER.size
        yield Entry(kind, bool(failed), offset, raw[at : at + size])
        at += size


class Disk:
    """A file as a disk holds it: what is certain, and what may be there in its place."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._certain: dict[int, bytes] = {}
        self._written: dict[int, list[bytes]] = {}
        """What was written to a part since it was certain, oldest first."""
        self._given_up: set[int] = set()
        """Parts that a sync failed to write: the next one does not try them."""

    def take(self, entry: Entry) -> None:
        if entry.kind == SYNC:
            self._sync(entry.failed)
        elif entry.kind != NOTE:
            for number in self._write(entry):
                if entry.kind == META:
                    # Its descriptor syncs each write.
                    self._settle(number, entry.failed)

    def may_hold(self, rng: random.Random, under_way: Entry | None) -> bytes:
        """An image after a power cut, with a call that had not returned yet."""
        disk = Disk(self._unit)
        disk._certain = dict(self._certain)
        disk._written = {number: list(parts) for number, parts in self._written.items()}
        if under_way is not None and under_way.kind in (DATA, META):
            disk._write(under_way)
        # Mostly one way or the other, so that images with one page lost are among them.
        lost = rng.choice([0.0, 0.05, 0.5, 0.95, 1.0])
        image = dict(disk._certain)
        for number, parts in disk._written.items():
            if rng.random() >= lost:
                image[number] = rng.choice(parts) if rng.random() < 0.3 else parts[-1]
        whole = bytearray((max(image, default=-1) + 1) * self._unit)
        for number, part in image.items():
            whole[number * self._unit : number * self._unit + len(part)] = part
        return bytes(whole)

    def _now(self, number: int) -> bytes:
        written = self._written.get(number)
        return written[-1] if written else self._certain.get(number, bytes(self._unit))

    def _write(self, entry: Entry) -> list[int]:
        numbers = []
        at, end = entry.offset, entry.offset + len(entry.data)
        while at < end:
            number, within = divmod(at, self._unit)
            size = min(self._unit - within, end - at)
            part = bytearray(self._now(number))
            part[within : within + size] = entry.data[at - entry.offset :][:size]
            self._written.setdefault(number, []).append(bytes(part))
            self._given_up.discard(number)
            numbers.append(number)
            at += size
        return numbers

    def _sync(self, failed: bool) -> None:
        for number in [each for each in self._written if each not in self._given_up]:
            self._settle(number, failed)

    def _settle(self, number: int, failed: bool) -> None:
        if failed:
            self._given_up.add(number)
        else:
            self._certain[number] = self._written.pop(number)[-1]


class Image(NamedTuple):
    """What a disk may hold after a cut, and what had been acknowledged by then."""

    name: str
    data: bytes
    acknowledged: frozenset[int]


def images(log: Sequence[Entry], rng: random.Random, count: int) -> Iterator[Image]:
    """Images of cuts at drawn places of a log, once something was acknowledged."""
    first = next(place for place, entry in enumerate(log) if entry.kind == NOTE)
    cuts = sorted(rng.choices(range(first + 1, len(log) + 1), k=count))
    disks = [Disk(SECTOR), Disk(PAGE)]
    acknowledged: set[int] = set()
    done = 0
    for number, cut in enumerate(cuts):
        for entry in log[done:cut]:
            for disk in disks:
                disk.take(entry)
            if entry.kind == NOTE:
                acknowledged.add(entry.offset)
        done = cut
        under_way = log[cut] if cut < len(log) else None
        data = rng.choice(disks).may_hold(rng, under_way)
        yield Image(f"image {number} at {cut} of {len(log)}", data, frozenset(acknowledged))
