"""Telling credentials apart without keeping them. Pure."""

from __future__ import annotations

import hashlib


def fingerprint(secret: str, salt: str) -> str:
    """What tells a credential from others under one salt, and says nothing of it elsewhere.

    Args:
        secret: The key.
        salt: At most 64 bytes count.
    Returns:
        32 hexadecimal digits.
    """
    return hashlib.blake2b(secret.encode(), key=salt.encode()[:64], digest_size=16).hexdigest()
