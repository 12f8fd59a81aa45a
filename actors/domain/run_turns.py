"""The turn that answers an item's message, read from rows: where it stands, and what it said.

Invariants:
    I1  Which turn it is, is recorded: by the message's entry among those that a turn answers.
    I2  A turn that was ended with its wakes given back is no end: the turn behind it answers.

Pure; on the loop thread.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Turn

from .errors import InvalidNameError
from .ingress import Content
from .run_errors import InvalidRunError, TurnFailedError
from .run_rows import RunId, parse_run_id
from .slot_rows import read_content, read_cuts, read_rows
from .spec import AgentSpec
from .spending import Spender
from .usage_book import AccountUsage
from .wait_book import Deferral

_ITEM_MESSAGE: Final = "run:"
OVER: Final = frozenset({"done", "failed", "cancelled"})


def item_message(run: RunId, ordinal: int) -> str:
    """The id of the message that an item of a run sends to an agent: in every life the same."""
    return f"{_ITEM_MESSAGE}{run}/{ordinal}"


def run_of(message: str) -> RunId | None:
    """The run whose item sends a message of that id, if one does."""
    if not message.startswith(_ITEM_MESSAGE):
        return None
    try:
        return parse_run_id(message.removeprefix(_ITEM_MESSAGE).rpartition("/")[0], "run")
    except (InvalidRunError, InvalidNameError):
        return None


class Asked(NamedTuple):
    """An item's message: for whom, under which id, and what it says."""

    agent: str
    message: str
    content: Content
    author: str
    channel: str | None


class Answered(NamedTuple):
    """The turn ended with a reply; these are its words."""

    text: str


class Holds(NamedTuple):
    """The turn is held."""

    turn: int
    deferral: Deferral
    provider: str


class Unreachable(NamedTuple):
    """The turn's agent is not here, or is parked: nobody here can bring the turn to its end."""

    why: str


class Elsewhere(NamedTuple):
    """The turn's agent is another live process's, which can bring it to its end."""

    why: str


Answer: TypeAlias = "Answered | Holds | Unreachable | Elsewhere | TurnFailedError"


class Agents(Protocol):
    """What a run's items may do with the agents of their runtime."""

    async def answer(self, asked: Asked) -> Answer:
        """Send a message, unless it was sent before, and wait for what its turn comes to.

        A checkpoint. Cancelled: the turn goes on, and is joined by the next who asks.
        """

    def is_over(self, agent: str, turn: int) -> bool:
        """Whether a turn has ended, or is not known. Not a checkpoint."""

    def await_end(self, agent: str) -> None:
        """Have whoever executes runs look again when a turn of this agent has ended."""

    async def run_ephemeral(self, spec: AgentSpec, content: Content, author: str) -> str:
        """As `Runtime.run_ephemeral`."""

    def elsewhere(self, agent: str) -> str | None:
        """Which other live process an agent is in, in words; None where it is in none."""

    def has_provider(self, name: str) -> bool:
        """Whether the host added a provider under that name."""

    async def choose(self, agent: str, provider: str, model: str, by: str) -> bool | None:
        """Have an agent go on with another model; whether that changed anything, None where it is
        not here. A checkpoint. Durable: on return.

        Raises:
            UnknownProviderError: No provider was added under that name; nothing was done.
        """

    def account_of(self, provider: object) -> AccountUsage:
        """The account that a provider calls with, and what is known of its usage."""

    async def spender(self, run: str) -> Spender:
        """Where what a run says in sessions is counted. A checkpoint."""


class Place(NamedTuple):
    """Where a message that was sent, and its turn, stand now."""

    number: int | None
    """The turn that answers it; None: none has begun."""
    turn: Turn | None


def place_of(store: Store, slot: str, agent: str, message: str) -> Place | TurnFailedError | None:
    """Where a message and its turn stand; None where it was never sent.

    Raises:
        UnreadableRecordError: A row cannot be read; it names the row.
    """
    known = store.get("ids", (slot, message))
    if known is None:
        return None
    if known.record.state in ("dead", "replaced", "retracted"):
        why = known.record.cause or known.record.state
        return _failed(agent, None, "lost", f"its message is {known.record.state} ({why})")
    # A commit may land between two reads: what looks lost is read once more.
    found = _find(store, agent, known.record.entry)
    return found if isinstance(found, Place) else _find(store, agent, known.record.entry)


def _find(store: Store, agent: str, entry: int) -> Place | TurnFailedError:
    """The turn that answers an entry, or the wake that will bring one; or that there is neither."""
    is_wanted = next(iter(store.scan("wakes", (agent,), limit=1)), None) is not None
    head = store.get("heads", (agent,))
    last = 0 if head is None else head.record.last_turn
    number, given_back = _answering(store, agent, entry, last), None
    while number is not None:
        row = store.get("turns", (agent, number))
        turn: Turn | None = None if row is None else row.record
        if turn is None or not (turn.state == "cancelled" and turn.given_back):
            return Place(number, turn)
        given_back, number = number, _behind(store, agent, number, last)
    if is_wanted:
        return Place(None, None)
    why = "nobody asks for its turn any more: its agent was removed"
    return _failed(agent, given_back, "lost" if given_back is None else "cancelled", why)


def held_turn(store: Store, agent: str, place: Place) -> int | None:
    """The turn for whose hold a message waits: its own, or the one that stands before it.

    One that waits for a person, or for a summary, is joined as one that runs: no capacity is
    waited for.
    """
    number, turn = place
    if turn is None:
        head = store.get("heads", (agent,))
        number = None if head is None else head.record.open_turn
        row = None if number is None else store.get("turns", (agent, number))
        turn = None if row is None else row.record
    if turn is None or turn.held is None or turn.held.cause in ("approval", "context"):
        return None
    return number


def _behind(store: Store, agent: str, number: int, last: int) -> int | None:
    """The turn behind one; an operator's tool pair is none."""
    for later in range(number + 1, last + 1):
        row = store.get("turns", (agent, later))
        if row is not None and row.record.pair is None:
            return later
    return None


def _answering(store: Store, agent: str, entry: int, last: int) -> int | None:
    for number in range(last, 0, -1):
        row = store.get("turns", (agent, number))
        if row is None:
            return None
        answers = row.record.answers
        if entry in answers:
            return number
        if answers and max(answers) < entry:
            return None  # It began before the message came; so did those before it.
    return None


def end_of(store: Store, slot: str, agent: str, number: int, turn: Turn) -> Any:
    """What a turn that is over came to: `Answered`, or why there is no answer."""
    if turn.state != "done":
        return _failed(agent, number, turn.state, turn.error or turn.state, turn.failure)
    for key, entry in read_rows(store, "slots", (slot,), reverse=True):
        if (entry.turn, entry.role, entry.author) != (number, "assistant", agent):
            continue
        if any(cut.first <= int(key[-1]) <= cut.last for cut in read_cuts(store, slot)):
            return _failed(agent, number, "rewound", "its reply was rewound")
        blocks = read_content(store, slot, entry)
        return Answered("\n".join(each.text for each in blocks if isinstance(each, TextBlock)))
    return _failed(agent, number, "rewound", "its reply is not in the slot any more")


def _failed(
    agent: str, turn: int | None, state: str, why: str, failure: str | None = None
) -> TurnFailedError:
    which = "the turn" if turn is None else f"turn {turn}"
    why = why if failure is None else f"{failure}: {why}"
    return TurnFailedError(
        f"{which} of agent {agent!r} that was to answer came to nothing: {why}; what it said is in "
        "its slot; mend the cause and ask again by another item",
        agent=agent,
        turn=turn,
        state=state,
        failure=failure,
    )
