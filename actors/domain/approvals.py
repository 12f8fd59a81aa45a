"""Tool calls that wait for a person: which do, what is told of them, and how their rows are read.

Invariants:
    I1  A call that needs a person's word is begun only behind a row that says `approved`.
    I2  A row is asked for as long as its turn is open: what is left of turns that ended is history.
    I3  What cannot be found out needs a person; a row that cannot be read fails its turn.

Pure, but for reading rows on the loop thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from abeyance.actors.core.logs import Log
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.approvals import INPUT_CHARS_MAX, NOTE_CHARS_MAX, Approval
from abeyance.storage.tables.blocks import ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.fields import INSTANT_MS_MAX

from .errors import InvalidInputError, InvalidToolError
from .ingress import check_line, check_name, clean_text, escaped_text
from .tool_results import CANCELLED_TEXT, recorded_of, result_of

WITHIN_S: Final = 86_400.0
WITHIN_S_MAX: Final = 366 * 86_400.0
DEADLINE: Final = "deadline"
"""Who decided where nobody did in time."""
DENIED_TEXT: Final = "This call was not made: a person denied it."
EXPIRED_TEXT: Final = "This call was not made: nobody approved it in time."

ApprovalKey = tuple[str, int, int, int]
"""(agent, turn, round, position of the call in its reply), as of the call's own row."""

_logger = Log(__name__)


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """That a tool's calls wait for a person's word, and what becomes of one that nobody decides.

    Args:
        within_s: How long a call waits, from 1 s to 366 days; None: until somebody decides.
        otherwise: What counts as decided then: `deny` or `approve`.
        when: Which calls wait: called on the loop with the call's input, must not block, and
            answers whether a person is to be asked. What it raises asks one. None: all do.
    Raises:
        InvalidToolError: Names the field that is malformed.
    """

    within_s: float | None = WITHIN_S
    otherwise: Literal["deny", "approve"] = "deny"
    when: Callable[[dict[str, Any]], object] | None = None

    def __post_init__(self) -> None:
        within = self.within_s
        if within is not None and (
            isinstance(within, bool)
            or not isinstance(within, int | float)
            or not 1 <= within <= WITHIN_S_MAX
        ):
            bound = f"must be None or from 1 to {WITHIN_S_MAX:.0f} seconds"
            raise InvalidToolError("within_s", bound)
        if self.otherwise not in ("approve", "deny"):
            raise InvalidToolError("otherwise", "must be 'approve' or 'deny'")
        when: Any = self.when
        if when is not None and not callable(when):
            raise InvalidToolError("when", "must be None or a function")

    def asks(self, agent: str, call: ToolUseBlock) -> bool:
        """Whether this call of an agent waits for a person."""
        if self.when is None:
            return True
        try:
            return bool(self.when(dict(call.input)))
        except Exception as error:  # noqa: BLE001 - a host's; nothing is begun that it was to judge.
            _logger.error(
                "whether a call of tool %r needs approval is unknown: %s",
                call.name,
                type(error).__name__,
                agent=agent,
            )
            return True


def row_of(call: ToolUseBlock, policy: NeedsApproval, now_ms: int) -> Approval:
    """The row of a call that begins to wait."""
    within = policy.within_s
    deadline = None if within is None else min(now_ms + int(within * 1_000), INSTANT_MS_MAX)
    return Approval(
        id=call.id,
        tool=call.name,
        input=shown_input(call.input),
        otherwise=policy.otherwise,
        asked_ms=now_ms,
        deadline_ms=deadline,
    )


def shown_input(given: object) -> str:
    """What a tool is called with, as JSON for people, of a bounded length."""
    text = json.dumps(given, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= INPUT_CHARS_MAX else text[: INPUT_CHARS_MAX - 1] + "…"


def is_due(row: Approval, now_ms: int) -> bool:
    """Whether its deadline has passed."""
    return row.deadline_ms is not None and row.deadline_ms <= now_ms


def denial_of(store: Store, key: ApprovalKey, call: ToolUseBlock) -> ToolResultBlock | None:
    """What the model is told of a call that was denied; None where it was not, as far as that can
    be read."""
    try:
        row = store.get("approvals", key)
    except UnreadableRecordError:
        return None
    if row is None or row.record.state != "denied":
        return None
    approval: Approval = row.record
    text = EXPIRED_TEXT if approval.by == DEADLINE else DENIED_TEXT
    return result_of(call, f"{text} {approval.note}".strip(), is_error=True)


def known_of(store: Store, key: ApprovalKey, call: ToolUseBlock) -> ToolResultBlock | None:
    """What rows say that a call came to whose turn's task is gone; None where they do not."""
    try:
        row, asked = store.get("tool_calls", key), store.get("approvals", key)
    except UnreadableRecordError:
        return None
    if row is not None:
        return None if row.record.state == "started" else recorded_of(call, row.record)
    if asked is None or asked.record.state == "approved":
        return None  # It may have been about to begin.
    return denial_of(store, key, call) or result_of(call, CANCELLED_TEXT, is_error=True)


# -- what waits ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """A tool call that waits for a person.

    Attributes:
        id: What `approve` and `deny` take. The same as the call's `ToolContext.call_id`.
        agent: Whose call it is.
        turn: The number of its turn; `round` and `call` are its place in it.
        tool: The tool's name.
        input: What it is to be called with, as JSON, cut off past 2,000 characters.
        asked_ms: Since when it waits, in epoch milliseconds.
        deadline_ms: Until when; None: until somebody decides.
        otherwise: What counts as decided then, `approve` or `deny`.
    """

    id: str
    agent: str
    turn: int
    round: int
    call: int
    tool: str
    input: str
    asked_ms: int
    deadline_ms: int | None
    otherwise: str


class ApprovalReceipt(NamedTuple):
    """What was decided of a call. Durable."""

    id: str
    state: Literal["approved", "denied"]
    by: str
    """Who decided, behind the door they came by."""
    decided_ms: int


def name_of(key: ApprovalKey) -> str:
    """The id by which a call is decided on."""
    return "/".join(map(str, key))


def read_id(id_: object) -> ApprovalKey:
    """The call that an id names.

    Raises:
        InvalidInputError: It is none; nothing was done.
    """
    parts = id_.rsplit("/", 3) if isinstance(id_, str) else []
    numbers = [int(part) for part in parts[1:] if part.isascii() and part.isdigit()]
    if len(numbers) != 3 or max(numbers) >= 2**63 or len(parts[0]) > 128:
        raise InvalidInputError("id", f"must be AGENT/TURN/ROUND/CALL, not {id_!r:.80}")
    check_name(parts[0], "id")
    return parts[0], numbers[0], numbers[1], numbers[2]


def read_note(note: object) -> str:
    """A note as it is recorded: one line, cut off at 500 characters.

    Raises:
        InvalidInputError: It is no text, or holds control characters; nothing was done.
    """
    if not isinstance(note, str):
        raise InvalidInputError("note", f"must be text, not {type(note).__name__}")
    return clean_text(check_line(note, "note"), NOTE_CHARS_MAX)


def open_rows(store: Store, agent: str) -> Iterator[tuple[ApprovalKey, Row | Exception]]:
    """The rows of the round that the agent's open turn is in; none where no gap is open.

    What of them cannot be read is an error in its row's place.
    """
    head = store.get("heads", (agent,))
    number = None if head is None else head.record.open_turn
    turn = None if number is None else store.get("turns", (agent, number))
    if number is not None and turn is not None:
        for key, row in store.scan("approvals", (agent, number, turn.record.round)):
            yield (agent, number, turn.record.round, int(key[-1])), row


def waiting_of(store: Store, agent: str) -> list[ApprovalRow]:
    """What of an agent waits for a person now. A row that cannot be read is left out."""
    found = []
    for key, row in open_rows(store, agent):
        if not isinstance(row, Exception) and row.record.state == "waiting":
            found.append(shown(key, row.record))
    return found


def shown(key: ApprovalKey, record: Approval) -> ApprovalRow:
    """A row as whoever looks sees it."""
    return ApprovalRow(
        id=name_of(key),
        agent=key[0],
        turn=key[1],
        round=key[2],
        call=key[3],
        tool=clean_text(record.tool, 128),
        # What nobody sees is shown escaped, so that nothing else is approved than is read.
        input=escaped_text(record.input),
        asked_ms=record.asked_ms,
        deadline_ms=record.deadline_ms,
        otherwise=record.otherwise,
    )


class Standing(NamedTuple):
    """What an agent's held turn waits for."""

    goes_on: bool
    """Something was decided, or is due, that the turn can act on now."""
    deadline_ms: int | None
    """The earliest of what waits still."""
    tools: tuple[str, ...]


def standing(store: Store, agent: str, now_ms: int) -> Standing:
    """How the calls stand that an agent's held turn waits for."""
    waiting: list[Approval] = []
    may_begin = cannot_tell = False
    for key, row in open_rows(store, agent):
        if isinstance(row, Exception):
            cannot_tell = True  # The turn fails by the name of the row.
        elif row.record.state == "waiting":
            waiting.append(row.record)
        elif row.record.state == "approved":
            may_begin = may_begin or _has_no_record(store, key)
    due = any(is_due(row, now_ms) for row in waiting)
    instants = [row.deadline_ms for row in waiting if row.deadline_ms is not None]
    return Standing(
        not waiting or due or may_begin or cannot_tell,
        min(instants, default=None),
        tuple(clean_text(row.tool, 128) for row in waiting),
    )


def _has_no_record(store: Store, key: ApprovalKey) -> bool:
    try:
        return store.get("tool_calls", key) is None
    except UnreadableRecordError:
        return False
