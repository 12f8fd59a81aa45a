"""Alerts as data: what each says, how it is read, and the door through which one is raised.

An alert tells an operator of a hold that is longer than an hour or does not end by itself, of a
record that cannot be read, or of an agent that is parked. It changes none of them.

Invariants:
    I1  Raising one neither waits nor raises: what cannot be told to the alerts actor is counted.

Runs in: the loop thread.
"""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from abeyance.actors.core import TrioActorRef
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.actors.providers.instants import render_instant
from abeyance.storage.store import Store
from abeyance.storage.tables.waits import ALERT_CHARS_MAX, Wait

from .archive_book import NUMBER_MAX, PAGE_MAX
from .errors import InvalidInputError, InvalidSpecError
from .ingress import clean_text
from .limits import ALERT_PAST_MS
from .wait_book import ACCOUNT

NAME: Final = "alerts"
EVERY: Final = "*"
FRAMEWORK: Final = "framework"
"""Whom an alert is addressed to that concerns every agent."""
DIRECTORY_CHARS_MAX: Final = 500
TIMEOUT_S_MAX: Final = 30.0
URL_CHARS_MAX: Final = 4_096
EPISODE_CHARS_MAX: Final = 200

FailingOf: TypeAlias = Literal["prompt", "transcript", "task"]
"""By what an agent's turns fail, until somebody mends it: what their requests cannot be made of, or
what their task dies of."""
_FAILING: Final[dict[FailingOf, str]] = {
    "prompt": "system_prompt",
    "transcript": "transcript_unreadable",
    "task": "turn_died",
}

_logger = Log(__name__)


@dataclass(frozen=True, slots=True)
class Alert:
    """Something an operator should know.

    Attributes:
        id: Its number, for ever; None where the store could not take it yet.
        kind: `provider_wait`, `approval`, `run_waiting`, `run_recovery`, `agent_parked`,
            `runs_parked`, `schedules_parked`, `context_unreadable`, `transcript_unreadable`,
            `turn_died` or `system_prompt`; `unreadable` for a row of the alerts that cannot be
            trusted.
        agent: Whom it concerns; `framework` where it concerns all, and a run's key for a run.
        model: Which model; `*` where it concerns all.
        text: What there is to know and what can be done, in one line.
        deadline_ms: When what it tells of ends, in epoch milliseconds; None: not by itself.
        episode: What tells this hold, or this time that something cannot be read, from the next.
            A receiver that is given an alert twice knows it again by this.
        at_ms: When it was raised, in epoch milliseconds; None where its row cannot be read.
    """

    id: int | None
    kind: str
    agent: str
    model: str
    text: str
    deadline_ms: int | None
    episode: str
    at_ms: int | None

    def as_json(self) -> dict[str, Any]:
        """Plain data, for a line of a log or a request's body."""
        return {name: getattr(self, name) for name in self.__slots__}


class AlertSink(Protocol):
    """Where alerts are taken to."""

    name: str
    """Names what the sink was given already, across restarts: up to 64 of a-z, 0-9, `-`, `_`."""

    async def deliver(self, alert: Alert) -> None:
        """Take an alert; at least once, in the order they were raised where none failed.

        Runs in a task of its own on the loop thread, which it must not block. Cancelled when its
        time is up, or the runtime ends. What it raises is counted and logged, and after a pause it
        is given the same alert again.

        Raises:
            AlertNotDeliveredError: With `final=True` it is not asked again.
        """


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alerts are posted to, as JSON.

    Args:
        url: `https://` or `http://`, with a host. May hold a user and a password, which are sent as
            basic authentication. Never printed.
        headers: Sent with each request, as a token may be. Never printed.
        timeout_s: For one request, whole; up to 30.
    Raises:
        InvalidSpecError: Names the field that is malformed, without its value.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not isinstance(self.headers, Mapping):
            raise InvalidSpecError("headers", "must be a mapping of names to text")
        for name, value in self.headers.items():
            plain = isinstance(name, str) and isinstance(value, str)
            if not (plain and name and (name + value).isascii() and (name + value).isprintable()):
                raise InvalidSpecError("headers", "must be printable ASCII text")
        timeout_s = self.timeout_s
        number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not number or not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise InvalidSpecError("timeout_s", f"must be above 0 and up to {TIMEOUT_S_MAX:g}")


def _check_url(url: object) -> None:
    """What can be told of a URL without the library that posts to it, which reads it again."""
    if not isinstance(url, str) or not 0 < len(url) <= URL_CHARS_MAX or not url.isprintable():
        raise InvalidSpecError(
            "url", f"must be printable text of at most {URL_CHARS_MAX:,} characters"
        )
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment
        sound = sound and parts.port != 0
    except ValueError:
        sound = False
    if not sound:  # Outside of the block: the parser's error holds the URL.
        raise InvalidSpecError(
            "url", "must be an http or https URL with a host and without a fragment"
        )


class AlertNotDeliveredError(AbeyanceError):
    """A sink did not take an alert. The alert stands in the store; the hold is as it was.

    Attributes: `final`, whether asking again would be of no use.
    """

    code = "alert_not_delivered"
    final: bool = False


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """What a sink was given.

    Attributes:
        name: The sink's.
        delivered: Alerts it took.
        failures: Times it failed.
        given_up: Alerts that it never took.
        unread: Alerts it was not offered, because too many waited for it.
    """

    name: str
    delivered: int
    failures: int
    given_up: int
    unread: int


class RaiseAlert(NamedTuple):
    """Tell: raise an alert, unless one was raised for the same episode."""

    kind: str
    agent: str
    model: str
    cause: str
    reason: str
    deadline_ms: int | None
    episode: str
    window: str | None = None
    """The account's usage window that is used up, where its provider named it."""


class LookAtAgent(NamedTuple):
    """Tell: raise what the records of an agent say should have been raised."""

    agent: str


def is_long(wait: Wait) -> bool:
    """Whether a wait carries its hold past the line: strictly more than an hour, or without end."""
    since_ms = wait.set_ms if wait.since_ms is None else wait.since_ms
    return wait.deadline_ms is None or wait.deadline_ms - since_ms > ALERT_PAST_MS


def of_wait(key: tuple[str, str], wait: Wait) -> RaiseAlert:
    """The alert of a wait that is long."""
    episode = wait.hold or wait.act
    ends_ms, window = wait.deadline_ms, wait.window
    return RaiseAlert("provider_wait", *key, "wait", wait.reason, ends_ms, episode, window)


def of_quota(key: tuple[str, str, int], reason: str, at_ms: int, window: str | None) -> RaiseAlert:
    """The alert of a quota that states no end and holds a turn (agent, model, turn)."""
    agent, model, turn = key
    episode = f"{quota_prefix(agent, turn)}{at_ms}"
    return RaiseAlert("provider_wait", agent, model, "quota", reason, None, episode, window)


def quota_prefix(agent: str, turn: int) -> str:
    """What the episodes of one turn's quota holds begin with."""
    return f"quota:{agent}:{turn}:"


def of_approval(key: tuple[str, int, int], tools: str, deadline_ms: int | None) -> RaiseAlert:
    """The alert of calls of one round (agent, turn, round) that wait for a person."""
    agent, turn, round_ = key
    episode = f"approval:{turn}:{round_}:{agent}"[:EPISODE_CHARS_MAX]
    return RaiseAlert("approval", agent, EVERY, "approval", tools, deadline_ms, episode)


def where_of(directory: str) -> str:
    """The state directory, as a command line names it."""
    return shlex.quote(directory) if len(directory) <= DIRECTORY_CHARS_MAX else "STATE"


def alert_text(raised: RaiseAlert, directory: str) -> str:
    """What an operator reads: what is held, until when, and what ends it. One bounded line."""
    where = where_of(directory)
    agent, model = raised.agent, raised.model
    reason = clean_text(raised.reason, 400)
    if raised.kind == "agent_parked":
        text = (
            f"Agent {agent} crashed too often and is parked: {reason}. It does nothing until it is "
            f"resumed; what was sent to it stays. Mend the cause, then resume_agent({agent!r}), "
            f"or: abeyance unpark {where} --agent {shlex.quote(agent)}."
        )
    elif raised.kind == "runs_parked":
        text = (
            f"What executes runs crashed too often and is parked: {reason}. No run of this process "
            "goes on until it is unparked; all that is recorded of them stays. Mend the cause, "
            f"then unpark('runs'), or: abeyance unpark {where} runs."
        )
    elif raised.kind == "schedules_parked":
        text = (
            f"What starts runs by schedules crashed too often and is parked: {reason}. No schedule "
            "starts a run in this process until it is unparked; what is due stays due. Mend the "
            f"cause, then unpark('schedules'), or: abeyance unpark {where} schedules."
        )
    elif raised.kind == "approval":
        end = "It waits until somebody decides."
        if raised.deadline_ms is not None:
            end = f"What nobody decides by {render_instant(raised.deadline_ms)} is decided then."
        text = (
            f"Agent {agent} waits for a person to decide on {reason}. {end} To see what it is, and "
            f"to decide: abeyance approve {where}."
        )
    elif raised.kind == "system_prompt":
        text = (
            f"The function that gives agent {agent}'s system prompt failed: {reason}. Its turn "
            "made no call with it and has ended; no message is lost: the next turn carries them "
            "all. Mend the function; the agent asks it again with its next turn."
        )
    elif raised.kind == "transcript_unreadable":
        text = (
            f"The transcript of agent {agent} cannot be read: {reason}. Its turn sent nothing and "
            "has ended, and so will each that is to carry that row. A rewind to before it goes on "
            f"without it: abeyance rewind {where} {shlex.quote(agent)} --place N. See "
            f"abeyance check {where}."
        )
    elif raised.kind == "turn_died":
        text = (
            f"A turn of agent {agent} has failed: {reason}. What it was to answer is in the "
            "transcript and is not asked again by itself; the next message begins another turn. "
            "What a host dies of is in its own log; a rewind takes out a message that kills it: "
            f"abeyance rewind {where} {shlex.quote(agent)} --place N."
        )
    elif raised.kind == "context_unreadable":
        text = (
            f"The summary of agent {agent}'s older messages cannot be read: {reason}. No message "
            "is lost: its turns are sent an older summary, or the whole transcript, "
            f"until the next one is made; see abeyance check {where}."
        )
    elif raised.cause == "unreadable":
        if agent == FRAMEWORK:
            whom = "No agent calls"
        elif agent.startswith(ACCOUNT):
            whom = f"No agent of {agent} calls"
        else:
            whom = f"Agent {agent} does not call"
        what = "any model" if model == EVERY else f"model {model}"
        text = (
            f"{whom} {what}: {reason}. This ends when the records can be read again, and not by "
            f"the clock; see abeyance check {where}. {_release(raised, where)}"
        )
    else:
        if raised.deadline_ms is None:
            end = "until released: this does not end by itself"
        else:
            end = f"until {render_instant(raised.deadline_ms)}"
        cause = "an exhausted quota of" if raised.cause == "quota" else "a stated wait of"
        whom = f"Every agent of {agent}" if agent.startswith(ACCOUNT) else f"Agent {agent}"
        what = "every model" if model == EVERY else f"model {model}"
        window = clean_text(raised.window or "", 128)
        used_up = f"The window that is used up: {window}. " if window else ""
        text = (
            f"{whom} is held by {cause} {what} {end}. Reason: {reason}. {used_up}The wait is "
            f"honoured in full. {_release(raised, where)}"
        )
    return clean_text(text, ALERT_CHARS_MAX)


def _release(raised: RaiseAlert, where: str) -> str:
    agent = "AGENT" if raised.agent in (EVERY, FRAMEWORK) else shlex.quote(raised.agent)
    if raised.agent.startswith("-"):
        agent = f"-- {agent}"  # What begins like an option is none behind the two dashes.
    model = "" if raised.model == EVERY else f"--model={shlex.quote(raised.model)} "
    return f"To end it by hand (release-provider-wait): abeyance release {model}{where} {agent}"


EARLY_MAX: Final = 1_000
"""Alerts kept until there is an actor to tell."""


class AlertDesk:
    """Where the rest of the runtime says what an operator should know.

    Args:
        process: Names this opening.
    """

    def __init__(self, process: str) -> None:
        self._ref: TrioActorRef[Any] | None = None
        self._process = process
        self._parked = 0
        self._early: list[RaiseAlert | LookAtAgent] = []
        """What was said while the runtime starts: the ledger reads before there is an actor."""
        self.lost = 0
        """Alerts that could not be told to the actor."""

    def attach(self, ref: TrioActorRef[Any]) -> None:
        """From now on what is said here is told to this actor; first what was said before."""
        self._ref = ref
        early, self._early = self._early, []
        for message in early:
            self.tell(message)

    def bound(self, key: tuple[str, str], wait: Wait) -> None:
        """A wait began to bind a key."""
        if is_long(wait):
            self.tell(of_wait(key, wait))

    def unreadable(self, agent: str, model: str, reason: str, episode: str) -> None:
        """Whether waits bind this agent and model cannot be known any more."""
        agent = FRAMEWORK if agent == EVERY else agent
        self.tell(RaiseAlert("provider_wait", agent, model, "unreadable", reason, None, episode))

    def quota(self, key: tuple[str, str, int], reason: str, at_ms: int, window: str | None) -> None:
        """A quota without an end holds a turn (agent, model, turn)."""
        self.tell(of_quota(key, reason, at_ms, window))

    def approval(self, key: tuple[str, int, int], tools: str, deadline_ms: int | None) -> None:
        """Calls of one round of an agent wait for a person."""
        self.tell(of_approval(key, tools, deadline_ms))

    def context(self, agent: str, slot: str, last: int, cause: str) -> None:
        """What stands for an agent's older rows cannot be read."""
        episode = f"context:{slot}:{agent}:{last}"[:EPISODE_CHARS_MAX]
        reason = f"row ({slot!r}, {agent!r}, {last}) of table contexts: {cause}"
        self.tell(RaiseAlert("context_unreadable", agent, EVERY, "context", reason, None, episode))

    def failing(self, agent: str, of: FailingOf, since: int, problem: str) -> None:
        """Every turn of an agent has failed by the same thing since one."""
        episode = f"{of}:{since}:{agent}"[:EPISODE_CHARS_MAX]
        self.tell(RaiseAlert(_FAILING[of], agent, EVERY, of, problem, None, episode))

    def parked(self, agent: str, error: BaseException) -> None:
        """One of an agent's groups crashed too often."""
        self._parked += 1
        episode = f"parked:{self._process}:{self._parked}"
        reason = f"{type(error).__name__}: {error}"
        self.tell(RaiseAlert("agent_parked", agent, EVERY, "parked", reason, None, episode))

    def parked_runs(self, error: BaseException) -> None:
        """What executes runs crashed too often."""
        self._parked += 1
        episode = f"parked:{self._process}:{self._parked}"
        reason = f"{type(error).__name__}: {error}"
        self.tell(RaiseAlert("runs_parked", FRAMEWORK, EVERY, "parked", reason, None, episode))

    def parked_schedules(self, error: BaseException) -> None:
        """What starts runs by schedules crashed too often."""
        self._parked += 1
        episode = f"parked:{self._process}:{self._parked}"
        reason = f"{type(error).__name__}: {error}"
        self.tell(RaiseAlert("schedules_parked", FRAMEWORK, EVERY, "parked", reason, None, episode))

    def tell(self, message: RaiseAlert | LookAtAgent) -> None:
        """Tell the actor. Neither waits nor raises."""
        try:
            if self._ref is not None:
                self._ref.tell(message)
                return
            if len(self._early) < EARLY_MAX:
                self._early.append(message)
                return
            error: Exception | str = "too many before the runtime is open"
        except AbeyanceError as refused:
            error = type(refused).__name__
        self.lost += 1
        _logger.error("an alert is lost with this process: %s", error)


def read_alerts(store: Store, *, after: int | None, limit: int) -> Iterator[Alert]:
    """Rows of the alerts, oldest first: those behind `after`, or else the newest `limit`."""
    if after is None:
        newest = list(store.scan("alerts", limit=limit, reverse=True))
        for key, row in reversed(newest):
            yield alert_of(key, row)
    else:
        for key, row in store.scan("alerts", after=(after,), limit=limit):
            yield alert_of(key, row)


def check_after(after: object, limit: object) -> None:
    """Refuse what is no page of the alerts.

    Raises:
        InvalidInputError: Names the argument.
    """
    if after is not None and (type(after) is not int or not 0 <= after <= NUMBER_MAX):
        raise InvalidInputError("after", f"must be a number from 0, not {after!r:.40}")
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise InvalidInputError("limit", f"must be 1 to {PAGE_MAX}, not {limit!r:.40}")


def alert_of(key: tuple[Any, ...], row: Any) -> Alert:
    """A row as whoever looks sees it; one that cannot be trusted says so."""
    number = key[0] if key and isinstance(key[0], int) else None
    if row is None or isinstance(row, Exception):
        text = clean_text(f"this alert cannot be read: {row}", ALERT_CHARS_MAX)
        return Alert(number, "unreadable", FRAMEWORK, EVERY, text, None, "unreadable", None)
    record = row.record
    return Alert(
        id=number,
        kind=clean_text(record.kind, 128),
        agent=clean_text(record.agent, 128),
        model=clean_text(record.model, 128),
        text=clean_text(record.text, ALERT_CHARS_MAX),
        deadline_ms=record.deadline_ms,
        episode=clean_text(record.episode, EPISODE_CHARS_MAX),
        at_ms=record.at_ms,
    )
