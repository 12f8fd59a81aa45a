"""What a slot may be asked, what it answers, and what it tells its agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from abeyance.storage.store import Value
from abeyance.storage.tables.blocks import Block, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.slots import Entry, Held, Inboxed, Wake

from .agent_limits import DEFAULT_LIMITS, AgentLimits
from .attachment_rows import Named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spent_rows import SpentCall
    from .usage_book import AccountUsage


class Accept(msgspec.Struct, frozen=True, gc=False):
    """Ask: take a message durably. Answers a `Receipt`.

    Whoever makes one has checked each field: its rows are made of them without another look.
    `drafts` makes those of hosts, `slot_again` those of replays.
    """

    message: str
    body: Value
    body_crc: int
    author: str
    agent: str
    channel: str | None
    wake: bool
    own: bool
    """Named as the agent itself; cannot join a live stream."""
    at_ms: int
    known: bool
    """The id came from the caller: it may have been used before."""
    subject: str | None = None
    joins: bool = True
    """Whether it may join a live turn; one that is `own` never does."""
    named: tuple[Named, ...] = ()
    """The attachments that its content names."""

    @property
    def act_id(self) -> str | None:
        """What deliveries are counted by, past a death: only a caller's own id comes again."""
        return f"accept:{self.message}" if self.known else None


class AcceptMany(msgspec.Struct, frozen=True, gc=False):
    """Ask: take messages durably, all in one commit or none. Answers a `Receipt` each.

    They are for one agent; an id is there once.
    """

    accepts: tuple[Accept, ...]
    forms: tuple[tuple[Inboxed, Wake | None], ...] | None = None
    """Each as the inbox has it, and its wake; None: not made yet."""
    looked: bool = False
    """None of its ids was found in the store before it was asked for, so none is looked up again:
    what came meanwhile its guards tell, and then all are."""

    @property
    def act_id(self) -> str | None:
        """As of an `Accept`, by the first id that came from the caller."""
        return next((accept.act_id for accept in self.accepts if accept.known), None)


class Receipt(NamedTuple):
    """A message that is durable.

    To read on from it, `transcript(after=receipt)` or `transcript(after=receipt.id)`; never
    `after=receipt.seq`, which is a number of another kind.
    """

    id: str
    """The message's id: given to `send`, or made by it. `TranscriptMessage.id` is the same."""
    seq: int
    """The inbox's number of the message, its own for ever: `TranscriptMessage.entry`. It is not
    its place in the transcript, `TranscriptMessage.seq`, which is known once it is there."""
    state: Literal[
        "accepted", "held", "stored", "dead", "rewound", "removed", "replaced", "retracted"
    ]
    """`accepted`: in the inbox, waiting for a boundary or a turn's end. `held`: the same, and it
    cannot join the live turn; `send` does not tell the two apart. `stored`: in the slot. `dead`: a
    dead letter. `rewound`: an operator's rewind took it out of the slot, `removed`: an
    operator's edit did. `replaced`: a newer message of its subject has its number and its place.
    `retracted`: it was taken back."""
    cause: str | None = None
    """Why it waits, as `InboxRow.cause`, or why it is dead; None where there is nothing to say."""
    replaces: str | None = None
    """The message whose place this one took, in what `send` returns; a retry is not told."""
    by: str | None = None
    """The message that replaced it."""
    read: bool = False
    """Of a stored message: a request that carried it was sent, or may have been. What `send`
    returns does not say so yet."""


_new: Final = tuple.__new__


def taken(id_: str, entry: int, seq: int | None) -> Receipt:
    """The receipt of a message that is accepted; made as it is often, without the defaults' turn.

    Args:
        seq: Its place in the slot, where it is there.
    """
    state = "accepted" if seq is None else "stored"
    return _new(Receipt, (id_, entry, state, None, None, None, False))


class Retract(NamedTuple):
    """Ask: take back a message that was not read. Answers a `Receipt`."""

    message: str
    at_ms: int


class TurnWithdrawn(NamedTuple):
    """Told to an agent when its held turn has ended: it was cancelled, or all that it was to answer
    was taken back."""

    turn: int


class StartTurn(NamedTuple):
    """Ask: a turn for this agent: its open one, or a fresh one if wakes ask for it.

    Answers a `TurnStart` once the slot's lease is free, or `NothingToDo`.
    """

    agent: str
    provider: str
    model: str
    carries_injections: bool
    at_ms: int
    context: int | None = None
    """Up to which place a summary is to stand in the requests of a fresh compile."""
    seen: int | None = None
    """The turn whose calls this process has seen: of any other's that is taken up, one may have
    been made of which nobody knows."""
    system: str | None = None
    """The system prompt, where it is a text."""
    asks_system: bool = False
    """It is what a function says of the turn, and the turn's task asks it."""
    trace: str | None = None
    """Where the span of this life of it is: the turn's row says so to the next one."""


class WithdrawStart(NamedTuple):
    """Tell: the agent's start that waits for the lease is not wanted any more."""

    agent: str


class NothingToDo(NamedTuple):
    """No open turn and no wake."""


class TurnStart(NamedTuple):
    """A granted lease."""

    agent: str
    turn: int
    token: int
    round: int
    """Rounds already recorded; the next reply is round + 1."""
    attempts: int
    failures: int
    gap: int | None
    """The round whose tool calls still owe results, when the turn is taken up inside a gap."""
    rewound: bool = False
    """A rewind took out what this turn was to answer, and nothing came since."""
    context: int | None = None
    """Up to which place a summary stands in its requests."""
    compiled_round: int = 0
    """The round that this compile began behind; those up to it may be of another view."""
    unreadable: int | None = None
    """The summary that it was compiled behind and that cannot be read any more."""
    cancelled_by: str | None = None
    """Who asked for its end before this life of it: it makes no call, and ends."""
    prompt: int | None = None
    """The number of its system prompt; 0: none. None: that is to be decided."""
    channel: str | None = None
    """Where its reply belongs."""
    outgrown: bool = False
    """It was restarted once because its request was too long."""
    trace: str | None = None
    """Where the span of its life before this one is."""


class SetPrompt(NamedTuple):
    """Ask: name the system prompt of the live turn, before a call. Answers its number."""

    agent: str
    turn: int
    token: int
    text: str | None
    at_ms: int


class RecordRound(NamedTuple):
    """Ask: a reply. Opens the tool gap where it calls tools, ends the turn where it does not."""

    agent: str
    turn: int
    token: int
    round: int
    message: str
    blocks: tuple[Block, ...]
    at_ms: int
    final: bool
    failures: int = 0
    """Calls of the turn that failed so far."""
    usage: AccountUsage | None = None
    """Where a reading is that came with the reply, and goes into its commit."""
    spent: Sequence[SpentCall] = ()
    """What its calls used, and is not stored yet."""


class Places(NamedTuple):
    """Places of a slot, both inclusive; while the turn holds the lease nobody else changes them."""

    first: int
    last: int


class CloseGap(NamedTuple):
    """Ask: the boundary. Results, then the injectable prefix of the inbox, in one commit.

    Answers the `Places` of what it put into the slot, results first.
    """

    agent: str
    turn: int
    token: int
    round: int
    message: str
    results: tuple[ToolResultBlock, ...]
    at_ms: int
    last: bool = False
    """No call of this turn follows: nothing is injected, and no wake is taken for answered."""


class PlacedRow(NamedTuple):
    """A row of the slot with its content, as every compile renders it."""

    seq: int
    entry: Entry
    blocks: tuple[Block, ...]


class BeginFork(NamedTuple):
    """Ask: a conversation is about to begin with this slot's rows: they count as read from now on.

    Answered with None once everything that took one of them out is in.
    """


class HoldTurn(NamedTuple):
    """Ask: put the turn down. It keeps a row and nothing else; the inbox lands in the slot."""

    agent: str
    turn: int
    token: int
    held: Held
    failures: int
    sent: bool | None
    """Whether the request that led here reached the wire; None where nobody can tell."""
    spent: Sequence[SpentCall] = ()
    """As of `RecordRound`."""


class CheckRewind(NamedTuple):
    """Ask: may the slot be rewound to this place? Answers whether something is left to answer."""

    to: int
    """The place of the last row that stays; 0 leaves none."""
    agent: str | None = None
    """Whose words nobody is left to answer; None: any agent's."""


class RewindSlot(NamedTuple):
    """Ask: take every row behind a place out of the transcript. Answers a `RewindReceipt`.

    Refused while a turn lives. The inbox, wakes and waits are not touched.
    """

    to: int
    act: str
    """Tells one that was done before its asker died from one that is to be done."""
    by: str
    at_ms: int
    agent: str | None = None


class UndoRewind(NamedTuple):
    """Ask: put back what the last rewind took out. Answers a `RewindReceipt`."""

    act: str
    """Tells one that was done before its asker died from one that is to be done: done again, it
    would put back what the rewind before took out."""
    by: str
    at_ms: int


class RewindReceipt(NamedTuple):
    """What a rewind took out of a transcript, or an undo put back. Durable."""

    first: int | None
    """The places between which it lay; None where there was nothing to take out."""
    last: int | None


class EditSlot(NamedTuple):
    """Ask: give a row of the transcript other words, or take it out. Answers an `EditReceipt`.

    Refused while a turn lives. The inbox, wakes and waits are not touched.
    """

    seq: int
    message: str | None
    """The id of the message that is expected at that place; None: whichever it is."""
    blocks: tuple[Block, ...] | None
    """None: it is taken out."""
    act: str
    """Tells one that was done before its asker was told from one that is to be done."""
    by: str
    at_ms: int


class UndoEdit(NamedTuple):
    """Ask: put a row back as it was before an edit. Answers an `EditReceipt`."""

    edit: int
    act: str
    by: str
    at_ms: int


class EditReceipt(NamedTuple):
    """An edit that is durable, or that was undone."""

    edit: int
    """Its number, which `undo_edit` takes."""
    id: str
    """The message that it is of."""
    seq: int
    """The message's place in the transcript."""


class EndTurn(NamedTuple):
    """Ask: end the turn without a last reply. Closes an open gap with `results` first."""

    agent: str
    turn: int
    token: int
    state: Literal["failed", "cancelled"]
    marker: str
    """What a reader of the transcript is told; never sent to a provider."""
    results: tuple[ToolResultBlock, ...]
    failures: int
    sent: bool | None
    """As of `HoldTurn`."""
    at_ms: int
    give_back: bool
    """Stop and quiesce give the turn's wakes back as one; the next start runs one fresh turn."""
    rewind: RewindSlot | None = None
    """Rewind the slot in the same commit, before the inbox lands. Answers its receipt."""
    failure: str | None = None
    """The code of the error that ended it."""
    spent: Sequence[SpentCall] = ()
    """As of `RecordRound`."""


class StartPair(NamedTuple):
    """Ask: the lease for an operator's tool pair, and its call's row. Answers a `PairStart` once
    the lease is free, `NothingToDo` where it was withdrawn, or `Quiesced`.

    The same for one that is open: it is taken up again.
    """

    agent: str
    call: ToolUseBlock
    message: str
    """The id of the call's row, which tells the pair."""
    by: str
    model: str
    at_ms: int


class PairStart(NamedTuple):
    """A granted lease for a pair; or what is known of one that is over."""

    agent: str
    turn: int
    token: int
    call: ToolUseBlock
    attempts: int
    is_over: bool = False


class WithdrawPair(NamedTuple):
    """Tell: a pair that waits for the lease is not wanted any more."""

    agent: str
    message: str


class EndPair(NamedTuple):
    """Ask: the result beside its call, and the end of the lease."""

    agent: str
    turn: int
    token: int
    state: Literal["done", "cancelled"]
    results: tuple[ToolResultBlock, ...]
    at_ms: int


class ReadOpenPair(NamedTuple):
    """Ask: the agent's open pair. Answers the id of its call's row with the call, or None."""

    agent: str


AgentKind: TypeAlias = Literal["resident", "conversation", "ephemeral"]


class Dispose(NamedTuple):
    """Ask: end an agent for good, with its live turn if it has one. Answers a `Disposed`."""

    agent: str
    kind: AgentKind
    parent: str | None
    """Of a conversation agent; it takes what is replayed."""
    channel: str | None
    by: str
    at_ms: int
    land: bool = True
    """False: what is in the inbox becomes dead letters; landing it could not be stored."""
    parent_slot: str | None = None
    """Which slot that is."""


class Disposed(NamedTuple):
    """What an end came to."""

    turn: int | None
    """The open turn it ended."""
    dropped: tuple[str, ...]
    """What became of each wake and message that nobody answers: a dead letter, a line each."""


class Rewake(NamedTuple):
    """Ask or tell: a wake again, for a message that is in the slot, or for none."""

    agent: str
    author: str
    message: str | None
    channel: str | None
    at_ms: int


class AttachAgent(NamedTuple):
    """Tell: whom to tell of wakes for this agent, and how much its inbox takes."""

    agent: str
    ref: Any
    limits: AgentLimits = DEFAULT_LIMITS


class Woken(NamedTuple):
    """Told to an agent when a wake for it is durable."""

    entry: int


class ReadOpenTurn(NamedTuple):
    """Ask: the agent's open turn as planned so far. Answers a `Turn` record or None."""

    agent: str
