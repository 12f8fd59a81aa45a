"""Who runs on this store, and who owns what in it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name, Reason, Seq


class StoreMeta(Record, frozen=True, kw_only=True):
    """The store itself; one row."""

    KIND = "store"
    format: Annotated[int, Meta(ge=1)]
    store_id: Name
    created_ms: Instant
    boots: Seq
    clean: bool
    """True between a clean close and the next open; false while open and after a death."""


class Process(Record, frozen=True, kw_only=True):
    """One process that opened the store. `last_batch` rises with each of its commits."""

    KIND = "process"
    pid: Seq
    host: Annotated[str, Meta(max_length=255)]
    started_ms: Instant
    last_batch: Seq


class Owner(Record, frozen=True, kw_only=True):
    """Who may write an agent, slot or run. Written by take-over, and by whoever gives a run
    up for another process (`nobody` is its nonce then); never deleted."""

    KIND = "owner"
    nonce: Name
    fence: Annotated[int, Meta(ge=1)]


class Mode(Record, frozen=True, kw_only=True):
    """Whether the hosts of this store start turns. One row, under `host`; never deleted."""

    KIND = "mode"
    state: Literal["serving", "quiesced"]
    reason: Reason
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant
    act: Name


class Sequence(Record, frozen=True, kw_only=True):
    """The next key of a table that the store allots keys in."""

    KIND = "sequence"
    next: Seq


class Changes(Record, frozen=True, kw_only=True):
    """Which rows one commit wrote or deleted: encoded keys by table. Large commits take several."""

    KIND = "changes"
    keys: dict[str, tuple[bytes, ...]]
