"""The writer thread: takes one batch at a time, commits it, and knows afterwards whether it did.

A commit that fails is ambiguous, and the environment may be unusable after it. So each commit also
writes this process's last batch number; after a failure the store is reopened, and that row says
whether the whole batch is in. If so its outcomes hold, as they were computed; if not, the batch is
decided again, once.

Invariants:
    I1  Only this thread writes, one transaction at a time, under the write lock.
    I2  `done` gets outcomes once a batch; `Committed` only after the commit returned, or after the
        last batch number was read back.
    I3  While the writer waits for service it holds neither the lock nor a transaction.
    I4  A batch is decided anew in each transaction: nothing of an aborted one is used again.

Runs in: its own thread; `submit`, `service` and `close` in the reading thread.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import lmdb
from msgspec.structs import replace

from . import codec
from .batch import Batch
from .crashpoints import crashpoint
from .environment import Environment, typed
from .errors import (
    CommitFailedError,
    MapLimitError,
    StorageError,
    StoreBusyError,
    StoreIOError,
    StoreLostError,
)
from .keys import encode_key
from .locks import FileLock
from .plain import Plain
from .store import Done, NeedsService, NotStored, Outcome
from .tables.ownership import Process
from .transaction import BatchTransaction

FAILURES_MAX: Final = 2
"""A batch is tried so often; a writer that dies so often in a row is not started again."""


class Settings(NamedTuple):
    """How the writer behaves."""

    lock_timeout_s: float
    changes_kept: int
    """Revisions whose changes are kept; older ones are pruned a few at a time."""


class _CommitError(Exception):
    """A commit raised, and may be on disk all the same."""


class _Job:
    """The batch that is out."""

    def __init__(self, number: int, batch: Batch | Plain, done: Done) -> None:
        self.number = number
        self.batch = batch
        self.done = done
        self.failures = 0
        self.error: BaseException | None = None
        self.refused: dict[str, int] = {}
        self.computed: list[Outcome] = []
        """What the batch comes to, if a commit that failed is on disk after all."""


class Writer:
    """The one writer of a store in this process. Starts its thread at once."""

    def __init__(
        self,
        environment: Environment,
        lock: FileLock,
        process: Process,
        nonce: str,
        settings: Settings,
    ) -> None:
        self._environment = environment
        self._path = str(environment.directory)
        self._lock = lock
        self._process = process
        self._process_key = encode_key((str,), (nonce,))
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._job: _Job | None = None
        self._wanted: str | None = None
        self._serviced = threading.Event()
        self._lost: StoreLostError | None = None
        self.has_failed = False
        """Whether a batch was not stored, or needed a second try. Stays true."""
        self._deaths = 0
        self._batches = process.last_batch
        self._refused: dict[str, int] = {}
        self._thread = self._start(None)

    def submit(self, batch: Batch | Plain, done: Done) -> None:
        """Take one batch.

        Raises:
            StoreBusyError: One is out.
            StoreLostError: The writer died twice, or the store could not be opened again.
        """
        with self._state:
            if self._lost is not None:
                raise StoreLostError(str(self._lost), path=self._path) from self._lost
            if self._job is not None:
                raise StoreBusyError("a batch is out; nothing was taken; wait for its outcomes")
            self._batches += 1
            self._job = job = _Job(self._batches, batch, done)
        self._jobs.put(job)

    def service(self) -> None:
        """Do what the writer waits for: grow, adopt a size, reopen. Else do nothing."""
        with self._state:
            wanted, self._wanted = self._wanted, None
            job = self._job
        if wanted is None:
            return
        try:
            if wanted == "grow":
                self._environment.grow()
            elif wanted == "resized":
                self._environment.adopt_size()
            else:
                self._reopen()
        except (StorageError, lmdb.Error, OSError) as error:
            self._lose(error)
        if wanted != "died":
            self._serviced.set()
        elif self._lost is None:
            self._thread = self._start(job)
        else:
            self._abandon()

    def wait_idle(self) -> None:
        """Block until no batch is out, servicing the one that is."""
        while True:
            with self._state:
                while self._job is not None and self._wanted is None:
                    self._state.wait()
                if self._job is None:
                    return
            self.service()

    def close(self) -> None:
        """Wait for the batch that is out, servicing it, and end the thread. Idempotent."""
        self.wait_idle()
        self._jobs.put(None)
        self._thread.join()

    def _start(self, unsettled: _Job | None) -> threading.Thread:
        # A daemon: a host that ends without closing must not hang in the interpreter's shutdown.
        thread = threading.Thread(
            target=self._run, args=(unsettled,), name="abeyance-writer", daemon=True
        )
        thread.start()
        return thread

    def _run(self, unsettled: _Job | None) -> None:
        job = unsettled
        try:
            self._environment.claim_writing()
            if job is not None:
                self._settle(job)
            while True:
                job = self._jobs.get()
                if job is None:
                    return
                self._settle(job)
        except BaseException as error:  # noqa: BLE001 - whatever it was, requesters must hear.
            self._mourn(job, error)

    def _mourn(self, job: _Job | None, error: BaseException) -> None:
        """In the dying thread: have another one started, or, the second time, give up."""
        self.has_failed = True
        self._deaths += 1
        if job is None or self._deaths >= FAILURES_MAX:
            self._lose(error)
            self._abandon()
        else:
            job.failures += 1
            job.error = error
            self._ask("died", job)

    def _settle(self, job: _Job) -> None:
        outcomes = self._commit(job)
        self._deaths = 0
        self._answer(job, outcomes)

    def _commit(self, job: _Job) -> list[Outcome]:
        """Commit the batch, whatever it takes, or say why nothing of it is stored."""
        while self._lost is None:
            try:
                if job.failures == 0:
                    return self._attempt(job)
                stored = self._was_stored(job)
                if stored:
                    return job.computed
                if stored is None:
                    continue
                if job.failures >= FAILURES_MAX:
                    return self._not_stored(job, self._reason(job))
                return self._attempt(job)
            except lmdb.MapFullError:
                if not self._environment.can_grow:
                    return self._not_stored(job, self._map_limit())
                self._wait_for("grow", job)
            except lmdb.MapResizedError:
                self._wait_for("resized", job)
            except (_CommitError, lmdb.Error) as error:
                self.has_failed = True
                job.failures += 1
                job.error = error.__cause__ if isinstance(error, _CommitError) else error
                self._wait_for("reopen", job)
            except StorageError as error:
                return self._not_stored(job, error)
        return self._not_stored(job, self._lost)

    def _attempt(self, job: _Job) -> list[Outcome]:
        """One write transaction under the lock, from reading to commit."""
        if isinstance(job.batch, Plain):
            outcomes = self._transact(job, job.batch)
            if outcomes is not None:
                return outcomes
            job.batch = job.batch.weighed()
        outcomes = self._transact(job, job.batch)
        assert outcomes is not None
        return outcomes

    def _transact(self, job: _Job, batch: Batch | Plain) -> list[Outcome] | None:
        """As `_attempt`; None: nothing was written, and the batch is to be weighed."""
        environment = self._environment
        self._lock.acquire(self._settings.lock_timeout_s)
        try:
            crashpoint("writer.after_flock")
            environment.check_reachable()
            with environment.writing() as transaction:
                work = BatchTransaction(transaction, environment.tables, self._path)
                if isinstance(batch, Plain):
                    outcomes = work.make(batch, self._refused, self._settings.changes_kept)
                    if outcomes is None:
                        return None
                else:
                    decision = work.decide(batch, self._refused)
                    job.refused = decision.refused
                    if not decision.writes:
                        outcomes = work.outcomes(decision, work.revision())
                        self._refused.update(job.refused)
                        return outcomes
                    revision = work.write(decision, self._settings.changes_kept)
                    outcomes = work.outcomes(decision, revision)
                work.put_own(
                    "processes", self._process_key, replace(self._process, last_batch=job.number)
                )
                job.computed = outcomes
                crashpoint("writer.before_commit")
                self._commit_transaction(transaction)
                crashpoint("writer.after_commit")
        finally:
            self._lock.release()
        self._refused.update(job.refused)
        return outcomes

    def _commit_transaction(self, transaction: lmdb.Transaction[bytes]) -> None:
        try:
            self._environment.commit(transaction)
        except lmdb.MapFullError:
            # Commits take pages for the free list too. Nothing was written.
            raise
        except lmdb.Error as error:
            raise _CommitError from error

    def _was_stored(self, job: _Job) -> bool | None:
        """Whether a failed commit is on disk after all. None: nobody can tell, and we are lost."""
        try:
            is_in = self._is_in(job)
            if is_in:
                self._confirm()
        except StorageError as error:
            self._lose(error)
            return None
        if is_in:
            self._refused.update(job.refused)
        return is_in

    def _confirm(self) -> None:
        """Have on disk what reads as if it had not failed: it may be in memory only."""
        self._lock.acquire(self._settings.lock_timeout_s)
        try:
            self._environment.settle()
        finally:
            self._lock.release()

    def _is_in(self, job: _Job) -> bool:
        raw = self._environment.get("processes", self._process_key)
        if raw is None:
            return False
        row = codec.decode("processes", self._process_key, raw)
        return bool(row.record.last_batch >= job.number)

    def _not_stored(self, job: _Job, error: Exception) -> list[Outcome]:
        self.has_failed = True
        for request in job.batch.requests:
            if request.chain is not None:
                sender, epoch = request.chain.sender, request.chain.epoch
                self._refused[sender] = max(epoch, self._refused.get(sender, epoch))
        return [NotStored(error)] * len(job.batch.requests)

    def _reason(self, job: _Job) -> StorageError:
        if isinstance(job.error, lmdb.Error | OSError):
            error = typed(job.error, self._environment.directory, "the commit")
            if not isinstance(error, StoreIOError):
                return error
        failed = CommitFailedError(
            f"the commit failed {job.failures} times ({job.error}); nothing of it is stored and "
            "what was stored before stands; see the cause",
            path=self._path,
            errno=getattr(job.error, "code", None),
        )
        failed.__cause__ = job.error
        return failed

    def _map_limit(self) -> MapLimitError:
        limit = self._environment.map_bytes_max
        return MapLimitError(
            f"the store has reached its limit of {limit} bytes; nothing of this commit is stored "
            "and what was stored before stands; open it with a larger map_bytes_max, or delete",
            path=self._path,
            map_bytes_max=limit,
        )

    def _wait_for(self, reason: str, job: _Job) -> None:
        self._serviced.clear()
        self._ask(reason, job)
        self._serviced.wait()

    def _ask(self, reason: str, job: _Job) -> None:
        with self._state:
            self._wanted = reason
            self._state.notify_all()
        self._tell(job, NeedsService(reason))

    def _answer(self, job: _Job, outcomes: list[Outcome]) -> None:
        with self._state:
            self._job = None
            self._state.notify_all()
        self._tell(job, outcomes)

    def _tell(self, job: _Job, result: Sequence[Outcome] | NeedsService) -> None:
        try:
            job.done(result)
        except Exception:  # noqa: BLE001
            # The requester's fault must not end the writer; it is reported as any thread's is.
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )

    def _lose(self, error: BaseException) -> None:
        lost = StoreLostError(
            f"{self._path} can't be written any more ({type(error).__name__}: {error}); what was "
            "acknowledged stands, and whether the last batch is stored shows when it is opened "
            "again; end this process and start anew",
            path=self._path,
        )
        lost.__cause__ = error
        self.has_failed = True
        with self._state:
            self._lost = lost

    def _abandon(self) -> None:
        job = self._job
        if job is not None:
            assert self._lost is not None
            self._answer(job, self._not_stored(job, self._lost))

    def _reopen(self) -> None:
        crashpoint("service.before_reopen")
        self._lock.acquire(self._settings.lock_timeout_s)
        try:
            self._environment.reopen()
        finally:
            self._lock.release()
