"""Durable records for Abeyance: the store port and its embedded default on LMDB.

Synchronous. Knows no event loop and no actor. `docs/format.md` describes what is on disk.
"""

if (
    __name__ != "abeyance.storage"
):  # A second import under a bare name would make two of every class.
    raise ImportError("import abeyance.storage, not the folder 'storage' by its bare name")
