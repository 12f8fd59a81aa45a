"""Durable records for Abeyance: the store port and its embedded default on LMDB.

Synchronous. Knows no event loop and no actor. `docs/format.md` describes what is on disk.
"""

# A second import under a bare name would make two of every class.
if __name__ != "abeyance.storage":
    raise ImportError("import abeyance.storage, not the folder 'storage' by its bare name")
