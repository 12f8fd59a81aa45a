"""The directory of a run for what it makes: the same one in each of its lives, and no other run's.

Its name has the run's key, number and the instant it was started at, so that neither an earlier run
of the key, nor one of the same number in a store that is gone or was put back, left anything in it.
Nothing of the run's state is in there: the record of a run is its row.

Runs in: the loop thread.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import quote

from abeyance.storage.tables.runs import Run

from .run_rows import RunId

FOLDER: Final = "runs"
KEY_CHARS_MAX: Final = 120


class RunFolders:
    """Those of one state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self, run: RunId, record: Run) -> Path:
        """The directory of a run, made where it is not there yet.

        Raises:
            OSError: It cannot be made.
        """
        path = self._directory / name_of_folder(run, record)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def known(self, run: RunId, record: Run) -> str | None:
        """Its name inside the state directory, where it was made."""
        name = name_of_folder(run, record)
        return name if (self._directory / name).is_dir() else None


def name_of_folder(run: RunId, record: Run) -> str:
    key = quote(run.key, safe=" ")
    if len(key) > KEY_CHARS_MAX:
        digest = hashlib.sha256(run.key.encode()).hexdigest()[:16]
        key = f"{key[:KEY_CHARS_MAX]}~{digest}"
    return f"{FOLDER}/{key}@{run.generation}-{record.started_ms}"
