"""Import of a queue that another system wrote: accepts what a file holds, commit by commit.

Invariants:
    I1  Entries are accepted in their order, each agent's in commits that are each all or none; an
        import that was cut off goes on where it was when the file is imported again.
    I2  Nothing is accepted before the whole file was read.

Runs in: the caller's task; the file is read in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, NotStored, Request
from abeyance.storage.tables.waits import LogLine

from .core.errors import ActorDeadError, OutcomeUnknownError
from .domain.attachment_rows import check_named, check_sizes
from .domain.errors import InvalidInputError, not_stored
from .domain.imports import (
    ImportedEntry,
    ImportedMessage,
    ImportPlan,
    ImportRepair,
    ImportReport,
    Source,
    imported,
    plan_import,
    report_dry,
)
from .domain.slot_accepts import OPS_AN_ACCEPT
from .domain.slot_batches import ROWS_BYTES_MAX
from .domain.slot_messages import Accept, AcceptMany, Receipt

if TYPE_CHECKING:
    from .members import Member
    from .runtime import Runtime

READ_SLICE: Final = 64
"""Entries that are looked up before the loop gets a turn."""
COMMIT_MESSAGES_MAX: Final = 500
"""So many at once, whatever a commit may hold: others wait for it meanwhile."""


async def import_file(
    runtime: Runtime, source: Source, agent: str | None, *, by: str, wake: bool, dry_run: bool
) -> ImportReport:
    """See `Runtime.import_deferred`."""
    now_ms = runtime.clock.now_ms()
    plan = await trio.to_thread.run_sync(
        partial(plan_import, source, agent, now_ms, wake=wake, dry_run=dry_run)
    )
    plan = await _takeable(runtime, plan)
    if dry_run:
        return report_dry(plan)
    if plan.entries:
        await _record(runtime, f"{len(plan.entries)} messages by {by}", now_ms)
    messages: list[ImportedMessage] = []
    for part in _parts(runtime, plan.entries):
        receipts = await _accept(runtime, part)
        messages += map(imported, part, [receipt.seq for receipt in receipts])
    messages.sort(key=lambda message: message.number)
    return ImportReport(plan.total, tuple(messages), plan.repairs, False)


async def _record(runtime: Runtime, text: str, now_ms: int) -> None:
    """Say who imports, ahead of the first message: an import may be cut off anywhere behind it."""
    line = LogLine(event="deferred_imported", text=text, at_ms=now_ms)
    outcome = await runtime._journal.ask(Request(appends=(Append("log", encode(line)),)))
    if isinstance(outcome, NotStored):
        raise not_stored(outcome)


async def _takeable(runtime: Runtime, plan: ImportPlan) -> ImportPlan:
    """What of a plan can be accepted here; the rest is refused, before anything is accepted."""
    entries, repairs = list[ImportedEntry](), list(plan.repairs)
    taken: dict[tuple[str, str], str] = {}
    """Whose each id of a slot is: agents that share one have their ids in common."""
    for count, entry in enumerate(plan.entries):
        if count % READ_SLICE == 0:
            await trio.lowlevel.checkpoint()
        accept, problem = entry.accept, None
        member = runtime._members.get(accept.agent)
        if member is None:
            problem = f"agent {accept.agent!r} was not added to this runtime"
        elif len(accept.body.body) > (most := member.settings.limits.message_bytes_max):
            problem = f"it has {len(accept.body.body)} bytes, and the agent takes {most} a message"
        elif (unfit := _unfit(runtime, member, accept)) is not None:
            problem = unfit
        else:
            known = runtime._store.get("ids", (member.slot_name, accept.message))
            if known is not None and known.record.body_crc != accept.body_crc:
                problem = "its id is used for other content here"
            elif taken.setdefault((member.slot_name, accept.message), accept.agent) != accept.agent:
                problem = "its id is used by an entry for another agent of the same slot"
        if problem is None:
            entries.append(entry)
        else:
            named = (entry.place, accept.message, accept.author)
            repairs.append(ImportRepair("refused", *named, problem))
    repairs.sort(key=lambda repair: -1 if repair.place is None else repair.place)
    return ImportPlan(tuple(entries), tuple(repairs), plan.total)


def _unfit(runtime: Runtime, member: Member, accept: Accept) -> str | None:
    """Why an entry's attachments are not to be taken; None where they are."""
    try:
        check_sizes(accept.named, member.settings.limits.attachment_bytes_max)
        check_named(runtime._store, accept.named)
    except InvalidInputError as error:
        return f"{error.field.replace('message', 'content', 1)} {error.problem}"
    return None


def _parts(
    runtime: Runtime, entries: tuple[ImportedEntry, ...]
) -> Iterator[tuple[ImportedEntry, ...]]:
    """The entries slot by slot, cut into what one commit holds, each slot's in order."""
    limits = runtime._store.limits
    room = min(COMMIT_MESSAGES_MAX, max(1, (limits.ops_max - 1) // OPS_AN_ACCEPT))
    slots: dict[str, list[ImportedEntry]] = {}
    for entry in entries:
        slot = runtime._member(entry.accept.agent).slot_name
        slots.setdefault(slot, []).append(entry)
    for waiting in slots.values():
        part, size = list[ImportedEntry](), 0
        for entry in waiting:
            taken = len(entry.accept.body.body) + ROWS_BYTES_MAX
            if part and (len(part) >= room or size + taken > limits.payload_bytes_max // 2):
                yield tuple(part)
                part, size = [], 0
            part.append(entry)
            size += taken
        yield tuple(part)


async def _accept(runtime: Runtime, part: tuple[ImportedEntry, ...]) -> tuple[Receipt, ...]:
    member = runtime._member(part[0].accept.agent)
    member.check_accepts()
    message = AcceptMany(tuple(entry.accept for entry in part))
    sends, asked = member.parking.sends, member.slot.ask(message)
    sends.add(asked)
    try:
        receipts: tuple[Receipt, ...] = await asked
    except ActorDeadError as error:
        raise OutcomeUnknownError(
            "the agent ended before it answered; whether the last messages were accepted is "
            "unknown, earlier ones stand; import the file again",
            actor=error.actor,
        ) from error
    finally:
        sends.discard(asked)
    return receipts
