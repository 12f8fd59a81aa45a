"""docs/format.md says what is on disk: its tables, its example and its limits are compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from abeyance.storage import directory, lmdb_store, precheck, transaction
from abeyance.storage.environment import LOCK_FILE_BYTES
from abeyance.storage.keys import KEY_BYTES_MAX, encode_key
from abeyance.storage.tables import FORMAT, TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def test_every_table_is_documented_with_its_key_and_its_kinds() -> None:
    found = {}
    for name, key, kinds in re.findall(
        r"^\| `(\w+)` \| \(([^)]*)\)(?:, append)? \| (.*) \|$", PAGE, re.M
    ):
        found[name] = (len(key.split(",")), re.findall(r"`(\w+)`", kinds))
    wanted = {
        table.name: (len(table.key), [kind.KIND for kind in table.kinds])
        for table in TABLES.values()
    }
    assert found == wanted
    appends = set(re.findall(r"^\| `(\w+)` \| \([^)]*\), append", PAGE, re.M))
    assert appends == {table.name for table in TABLES.values() if table.append}


def test_the_example_key_is_encoded_as_documented() -> None:
    shown = re.search(r"`\(\"ana\", 7\)` is `([0-9a-f ]+)`", PAGE)
    assert shown is not None
    assert encode_key((str, int), ("ana", 7)) == bytes.fromhex(shown.group(1))


def test_documented_numbers_are_the_programs() -> None:
    assert f"version {FORMAT} of the format" in PAGE
    for number in (
        KEY_BYTES_MAX,
        LOCK_FILE_BYTES,
        precheck.WALK_PAGES_MAX,
        transaction.CHANGES_BYTES_MAX,
        transaction.PRUNED_ROWS_MAX,
        lmdb_store.CHANGES_KEPT,
    ):
        assert f"{number:,}" in PAGE, number
    assert f"Every {transaction.PRUNE_EVERY}th revision" in PAGE
    assert f"up to {precheck.VERIFY_BYTES_MAX // 2**20} MiB" in PAGE


def test_the_documented_files_are_the_stores(lmdb_opener: Any) -> None:
    store = lmdb_opener.open()
    store.close()
    there = {path.name for path in store.directory.iterdir()}
    assert there == set(re.findall(r"^        (\w+\.?\w*)/? ", PAGE, re.M))
    assert store.directory.name == directory.STORE
