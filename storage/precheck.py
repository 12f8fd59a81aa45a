"""Looks at a data file before the engine does, because the engine dies of what it maps.

A truncated file or a zeroed page ends the whole process with SIGBUS or SIGABRT when LMDB touches
it. So the file is read here as plain bytes, and refused by name.

Invariants:
    I1  The file is only read, never mapped and never given to the engine.
    I2  A sound file is never refused: what the engine may leave behind legally passes.

Runs in: the opening thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from .errors import DamagedStoreError

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
VERIFY_BYTES_MAX: Final = 64 * 2**20
"""Files up to here are verified whole after an unclean end (about 10 ms a MiB); these and larger
ones are walked, no more than `WALK_PAGES_MAX` pages, from the roots down."""
WALK_PAGES_MAX: Final = 20_000
_FINDINGS_MAX: Final = 20

PAGE_HEADER: Final = 16
_META: Final = struct.Struct("=QHHHH I I Q Q 48s 48s Q Q")
META_BYTES: Final = _META.size
TXN: Final = META_BYTES - 8
"""Where in a meta page the number of its transaction is."""
_DB: Final = struct.Struct("=IHHQQQQQ")
_P_BRANCH, _P_LEAF, _P_OVERFLOW, _P_META = 1, 2, 4, 8
_BIGDATA, _SUBDATA = 1, 2
_NO_PAGE: Final = 2**64 - 1


class Meta(NamedTuple):
    """The newest meta page: what the engine would start from."""

    page_bytes: int
    last_page: int
    txn: int
    roots: tuple[int, int]


def read_meta(path: Path) -> Meta:
    """Read the newest of the two meta pages.

    Raises:
        DamagedStoreError: Neither can be read, or this is no data file of our engine.
    """
    found = read_metas(path)
    if len(found) < 2:
        raise _damaged(path, ["a meta page is damaged, or this is not an LMDB 0.9 data file"])
    return max(found, key=lambda meta: meta.txn)


def read_metas(path: Path) -> list[Meta]:
    """Both meta pages in their order; fewer where one cannot be read."""
    with path.open("rb") as file:
        first = _meta_at(file, 0)
        found = [first] if first else []
        if first is not None:
            second = _meta_at(file, first.page_bytes)
            if second is not None and second.page_bytes == first.page_bytes:
                found.append(second)
    return found


def precheck(path: Path, *, clean: bool, verify: Callable[[str], list[str]]) -> Meta:
    """Look at the file as far as its last end asks for.

    Args:
        clean: The store was closed cleanly in the very state the meta pages tell.
        verify: A full structural verifier that takes the file's path.
    Raises:
        DamagedStoreError: `findings` says what contradicts what.
    """
    meta = read_meta(path)
    size = path.stat().st_size
    # A page that was freed in the transaction that took it is never written, so a sound file may
    # be a little shorter than its last page says; only then must more be looked at.
    if clean and size >= (meta.last_page + 1) * meta.page_bytes:
        return meta
    if size <= VERIFY_BYTES_MAX:
        try:
            findings = verify(str(path))
        except Exception as error:  # noqa: BLE001 - a verifier that fails on a file has found damage.
            findings = [f"{type(error).__name__}: {error}"]
    else:
        findings = []
    # The verifier takes long values that the file ends in the middle of for sound.
    findings = findings or _walk(path, meta, size)
    if findings:
        raise _damaged(path, findings)
    return meta


def _meta_at(file: BinaryIO, offset: int) -> Meta | None:
    file.seek(offset)
    raw = file.read(_META.size)
    if len(raw) < _META.size:
        return None
    _, _, flags, _, _, magic, version, _, _, free, main, last_page, txn = _META.unpack(raw)
    page_bytes = _DB.unpack(free)[0]
    if flags != _P_META or magic != MAGIC or version != DATA_VERSION:
        return None
    if page_bytes < 512 or page_bytes > 32768 or page_bytes & (page_bytes - 1):
        return None
    return Meta(page_bytes, last_page, txn, (_DB.unpack(free)[7], _DB.unpack(main)[7]))


def _walk(path: Path, meta: Meta, size: int) -> list[str]:
    """Follow the trees from their roots through at most `WALK_PAGES_MAX` pages, widest first."""
    findings: list[str] = []
    seen: set[int] = set()
    level = [root for root in meta.roots if root != _NO_PAGE]
    with path.open("rb") as file:
        while level and len(findings) < _FINDINGS_MAX and len(seen) < WALK_PAGES_MAX:
            below: list[int] = []
            for number in level:
                if number in seen:
                    findings.append(f"page {number} is reached twice")
                    continue
                if len(seen) >= WALK_PAGES_MAX:
                    break
                seen.add(number)
                finding = _look(file, meta, size, number, below)
                if finding is not None:
                    findings.append(f"page {number} {finding}")
            level = below
    return findings


def _look(file: BinaryIO, meta: Meta, size: int, number: int, below: list[int]) -> str | None:
    page = meta.page_bytes
    if number > meta.last_page or (number + 1) * page > size:
        return "is past the end of the file"
    raw = os.pread(file.fileno(), page, number * page)
    own, _, flags, lower, upper = struct.unpack_from("=QHHHH", raw)
    if own != number:
        return f"says it is page {own}"
    if flags not in (_P_BRANCH, _P_LEAF):
        return f"is no tree page (flags {flags})"
    if not PAGE_HEADER <= lower <= upper <= page or (lower - PAGE_HEADER) % 2:
        return "has impossible bounds"
    for index in range((lower - PAGE_HEADER) // 2):
        (at,) = struct.unpack_from("=H", raw, PAGE_HEADER + 2 * index)
        if not upper <= at <= page - 8:
            return f"has node {index} outside itself"
        low, high, node_flags, key_bytes = struct.unpack_from("=HHHH", raw, at)
        data = at + 8 + key_bytes
        if flags == _P_BRANCH:
            below.append(low | high << 16 | node_flags << 32)
            continue
        length = low | high << 16
        if data + (8 if node_flags & _BIGDATA else length) > page:
            return f"has node {index} outside itself"
        if node_flags & _BIGDATA:
            (start,) = struct.unpack_from("=Q", raw, data)
            if start * page + PAGE_HEADER + length > size:
                return f"has node {index} past the end of the file"
        elif node_flags & _SUBDATA and length == _DB.size:
            root = _DB.unpack_from(raw, data)[7]
            if root != _NO_PAGE:
                below.append(root)
    return None


def _damaged(path: Path, findings: list[str]) -> DamagedStoreError:
    return DamagedStoreError(
        f"{path} is damaged: {findings[0]}{' and more' if len(findings) > 1 else ''}; it was not "
        "opened nor changed; restore a backup",
        path=str(path),
        findings=tuple(findings[:_FINDINGS_MAX]),
    )
