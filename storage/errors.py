"""Errors of durable storage, sorted by what is still true when one is raised.

Each has a stable `code`, attributes, and a text of the form: what failed; what is still true; what
to do. All survive pickling. Families:

    refused     nothing was written: `StoreClosedError`, `StoreBusyError`, `InvalidRequestError`,
                `InvalidRecordError`, `RequestTooLargeError`, `OwnedElsewhereError`,
                `ReaderSlotsFullError` (nothing was read either)
    not stored  the commit failed and nothing of it is there: `DiskFullError`, `MapLimitError`,
                `LockTimeoutError`, `CommitFailedError`
    unreadable  earlier data stands, untouched: `UnreadableRecordError`, `NewerFormatError`,
                `ForeignDirectoryError`, `DamagedStoreError`, `StoreEmptiedError`,
                `MissingStoreError`, `StoreIOError`, `ReadOnlyStoreError`, `AlreadyOpenError`,
                `NoFileLocksError`, `RevisionPrunedError`
    ambiguous   whether the last batch is stored is known after the next open: `StoreLostError`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .seals import Seal


class StorageError(Exception):
    """Base of every error that `abeyance.storage` raises.

    Keyword arguments become attributes. `str()` is the text a person reads.
    """

    code: ClassVar[str] = "storage"

    def __init__(self, text: str, /, **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    kind: type[StorageError], args: tuple[Any, ...], state: dict[str, Any]
) -> StorageError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class StoreClosedError(StorageError):
    """The store is closed; nothing was taken."""

    code = "store_closed"


class StoreLostError(StoreClosedError):
    """The store can't be written in this process any more. What was acknowledged stands.

    Whether the batch that was out is stored shows when the store is opened again.
    """

    code = "store_lost"
    path: str


class ForkedStoreError(StoreClosedError):
    """The store was opened before a fork and is used in the child. The parent's is untouched."""

    code = "store_forked"
    path: str


class StoreBusyError(StorageError):
    """A batch is already out; nothing was taken."""

    code = "store_busy"


class InvalidRequestError(StorageError, ValueError):
    """A request that is no request; nothing of its batch was taken. `field` says where."""

    code = "invalid_request"
    field: str


class RequestTooLargeError(InvalidRequestError):
    """A request exceeds the store's limits; nothing of its batch was taken."""

    code = "store_request_too_large"
    field: str
    size: int
    limit: int


class InvalidRecordError(StorageError, ValueError):
    """A record that its schema refuses; it was not encoded. `field` is a path: `blocks[0].text`."""

    code = "invalid_record"
    kind: str
    field: str


class UnreadableRecordError(StorageError):
    """A row is there and can't be trusted. It and only it is refused; it was not changed.

    `ignorable`: a newer version wrote it and says that a reader who does not know its kind may take
    it for no row. `other_version`: it is sound, and another version of this program can read it.
    `seal`: where its checksum fails, what tells whether another key would make it right.
    """

    code = "unreadable_record"
    table: str
    key: Any
    cause: str
    ignorable: bool = False
    other_version: bool = False
    seal: Seal | None = None


class NewerFormatError(StorageError):
    """The store was written by a newer version. Nothing was changed."""

    code = "newer_format"
    path: str
    format: int
    supported: int


class ForeignDirectoryError(StorageError):
    """The directory belongs to something else. Nothing was changed."""

    code = "foreign_directory"
    path: str


class DamagedStoreError(StorageError):
    """The store's files contradict themselves; they were not handed to the engine nor changed."""

    code = "damaged_store"
    path: str
    findings: tuple[str, ...]


class StoreEmptiedError(DamagedStoreError):
    """The store was here before and its data is gone; it is not taken for a new one."""

    code = "store_emptied"
    path: str
    store_id: str


class MissingStoreError(StorageError):
    """There is no store here, and none was to be created."""

    code = "missing_store"
    path: str


class ReadOnlyStoreError(StorageError):
    """The directory can't be written, or the store was opened to look. Nothing was changed."""

    code = "read_only_store"
    path: str


class DiskFullError(StorageError):
    """No room. What was stored before stands; nothing of this commit is stored."""

    code = "disk_full"
    path: str


class MapLimitError(StorageError):
    """The store has reached `map_bytes_max`. Nothing of this commit is stored."""

    code = "map_limit"
    path: str
    map_bytes_max: int


class CommitFailedError(StorageError):
    """The operating system refused the commit, twice. Nothing of it is stored."""

    code = "commit_failed"
    path: str
    errno: int | None


class StoreIOError(StorageError):
    """The operating system or the engine refused an operation. What was stored before stands."""

    code = "store_io"
    path: str
    errno: int | None


class AlreadyOpenError(StorageError):
    """This process has the store open already, perhaps by another path."""

    code = "already_open"
    path: str


class ReaderSlotsFullError(StorageError):
    """Others hold all slots of the engine's reader table. Nothing was read; commits go on.

    `pids` are the live processes that hold them; at an opening, those that have the store open.
    """

    code = "reader_slots_full"
    path: str
    pids: tuple[int, ...]


class StoreInUseError(StorageError):
    """A process has the store open, and what was asked for needs it alone. Nothing was changed."""

    code = "store_in_use"
    path: str
    pids: tuple[int, ...]


class NoFileLocksError(StorageError):
    """The file system does not keep file locks apart, or is a network one. Nothing was changed."""

    code = "no_file_locks"
    path: str
    filesystem: str | None


class LockTimeoutError(StorageError):
    """Another process held the write lock too long. Nothing was written. `holder` is its pid."""

    code = "lock_timeout"
    path: str
    holder: int | None
    timeout_s: float


class RevisionPrunedError(StorageError):
    """Changes that old are no longer kept. Read the tables again."""

    code = "revision_pruned"
    after: int
    oldest: int


class OwnedElsewhereError(StorageError):
    """A live process owns what was asked for. Nothing was taken."""

    code = "owned_elsewhere"
    kind: str
    name: str
    pid: int | None
    host: str | None
