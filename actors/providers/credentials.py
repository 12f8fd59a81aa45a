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


def credential_of(provider: object, salt: str) -> str | None:
    """What a provider says its credential is, as a fingerprint; None where it does not say."""
    declare = getattr(provider, "credential", None)
    if not callable(declare):
        return None
    name = declare(salt)
    return name if isinstance(name, str) and name else None
