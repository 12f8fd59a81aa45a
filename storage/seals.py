"""What of a row's checksum does not depend on its key, so that it can be told of which key a row is
that stands under a damaged one.

A checksum covers the row's key. Where it fails and the value is whole, exactly the key that the row
was written under makes it right.

Runs in: any thread.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from typing import Final, NamedTuple

from .errors import UnreadableRecordError
from .keys import decode_key, encode_key
from .store import Key


def raw_key(error: UnreadableRecordError) -> bytes:
    """The key, as it is on disk, of a row that cannot be read."""
    key = error.key
    return key if isinstance(key, bytes) else encode_key(tuple(map(type, key)), key)


_SUM: Final = struct.Struct(">QI")


class Seal(NamedTuple):
    """A row's checksum, and what it was made of beside the key."""

    checksum: int
    start: int
    """The checksum as far as it covers the table, the kind and the version."""
    counter: int
    body_crc: int
    allotted: bytes

    def fits(self, key: bytes) -> bool:
        """Whether the row was written under this key: of any other, one in 2**32 says so."""
        covered = _SUM.pack(self.counter, self.body_crc) + key + self.allotted
        return zlib.crc32(covered, self.start) == self.checksum

    def home(self, key: bytes) -> Key | None:
        """The key that the row was written under, where one bit of it has flipped since; else None.

        No two keys that differ from this one in a bit each have the same checksum (CRC-32 tells all
        errors of two bits apart, at this length), so there is one at most.
        """
        if self.fits(key):
            return None
        flipped = bytearray(key)
        for place in range(8 * len(flipped)):
            flipped[place >> 3] ^= 1 << (place & 7)
            if self.fits(bytes(flipped)):
                with suppress(ValueError):
                    return decode_key(bytes(flipped))
                return None
            flipped[place >> 3] ^= 1 << (place & 7)
        return None
