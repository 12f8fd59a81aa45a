"""Every table: its name, the types of its key parts, and the kinds of record it may hold."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..store import Record
from .agents import Agent, Conversation, Ephemeral, Sharer
from .approvals import Approval
from .attachments import Attachment, AttachmentPiece, AttachmentUse
from .contexts import Context
from .edits import Edit, Revision
from .kept import DeadLetter, Delivery, Quarantined, Reminder
from .outboxes import Cursor, Outbox
from .ownership import Changes, Mode, Owner, Process, Sequence, StoreMeta
from .prompts import Prompt
from .repairs import SetAside
from .runs import Run, RunIndexed, RunItem, RunKey, RunTransition
from .schedules import Occurrence, Schedule, ScheduleIndexed
from .slots import Body, Carried, Entry, Head, Inboxed, Lease, MessageId, ToolCall, Turn, Wake
from .spent import Budgeted, Spent, SpentQuarter
from .usage import Usage
from .waits import Alert, Alerted, AlertOwed, LogLine, Override, Wait, WaitReleased


class Table(NamedTuple):
    name: str
    key: tuple[type, ...]
    kinds: tuple[type[Record], ...]
    append: bool = False
    """The store allots the key, one integer, in commit order."""


TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        Table("meta", (str,), (StoreMeta,)),
        Table("processes", (str,), (Process,)),
        Table("owners", (str, str), (Owner,)),
        Table("modes", (str,), (Mode,)),
        Table("sequences", (str,), (Sequence,)),
        Table("agents", (str,), (Agent,)),
        Table("sharers", (str, str), (Sharer,)),
        Table("conversations", (str, str), (Conversation,)),
        Table("ephemerals", (str,), (Ephemeral,)),
        Table("ids", (str, str), (MessageId,)),
        Table("bodies", (str, int), (Body,)),
        Table("attachments", (str,), (Attachment,)),
        Table("attachment_pieces", (str, int), (AttachmentPiece,)),
        Table("attachment_uses", (str, str, str, int), (AttachmentUse,)),
        Table("inbox", (str, int), (Inboxed,)),
        Table("slots", (str, int), (Entry,)),
        Table("leases", (str,), (Lease,)),
        Table("carried", (str, int), (Carried,)),
        Table("contexts", (str, str, int), (Context,)),
        Table("prompts", (str, int), (Prompt,)),
        Table("edits", (str, int), (Edit,)),
        Table("revisions", (str,), (Revision,)),
        Table("wakes", (str, int), (Wake,)),
        Table("heads", (str,), (Head,)),
        Table("turns", (str, int), (Turn,)),
        Table("tool_calls", (str, int, int, int), (ToolCall,)),
        Table("approvals", (str, int, int, int), (Approval,)),
        Table("waits", (str, str), (Wait, WaitReleased)),
        Table("account_waits", (str, str), (Wait, WaitReleased)),
        Table("overrides", (str, str, str), (Override,)),
        Table("usage", (str,), (Usage,)),
        Table("spent", (str, int, int, int), (Spent,)),
        Table("budgets", (str, str, str), (Budgeted,)),
        Table("spent_quarters", (str, int, str), (SpentQuarter,)),
        Table("run_keys", (str,), (RunKey,)),
        Table("runs", (str, int), (Run,)),
        Table("run_items", (str, int, int), (RunItem,)),
        Table("run_transitions", (str, int, int), (RunTransition,)),
        Table("run_index", (str, int, str, int), (RunIndexed,)),
        Table("schedules", (str,), (Schedule,)),
        Table("schedule_index", (int, str), (ScheduleIndexed,)),
        Table("occurrences", (str, int), (Occurrence,)),
        Table("outboxes", (str,), (Outbox,)),
        Table("cursors", (str, str, str), (Cursor,)),
        Table("reminders", (str, str), (Reminder,)),
        Table("deliveries", (str, str), (Delivery,)),
        Table("alerts", (int,), (Alert,), append=True),
        Table("alerted", (str, str, str), (Alerted,)),
        Table("alerts_owed", (str, str, str), (AlertOwed,)),
        Table("dead_letters", (int,), (DeadLetter,), append=True),
        Table("quarantine", (int,), (Quarantined,), append=True),
        Table("log", (int,), (LogLine,), append=True),
        Table("set_aside", (int,), (SetAside,), append=True),
        Table("changes", (int, int), (Changes,)),
    )
}

FORMATS: Final = (1, 2)
"""The formats of a store that this version knows, oldest first. New stores are of the first, which
the version before reads; a store goes from one to the next when an operator says so (`migrate`)."""
FORMAT: Final = FORMATS[-1]
"""The newest of them. A store of a newer format is refused whole."""

__all__ = ["FORMAT", "FORMATS", "TABLES", "Table"]
