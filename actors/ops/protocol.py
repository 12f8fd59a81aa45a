"""The control protocol: JSON lines over a Unix socket, one reply a request, in order.

The server speaks first: one `Hello` line. Each request is one line, an object with `protocol`,
`verb` and the verb's fields; each reply is one line, `{"ok": true, "result": ...}` or
`{"ok": false, "error": {"code", "text", "field"}}`.

Invariants:
    I1  A request is checked whole, field by field, before anything is done for it.
    I2  Only an omitted model or `*` means every model; any other value that is not a proper name
        is refused, never read as "all".
    I3  Every line has a bound, in both directions.

Pure: no socket, no event loop.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import msgspec

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.tree import DEPTH, DEPTH_MAX, NODES_MAX, WIDTH
from abeyance.actors.domain.alert_book import check_after
from abeyance.actors.domain.archive_book import check_number, check_page
from abeyance.actors.domain.ingress import check_name, clean_text
from abeyance.actors.domain.mode import WITHIN_S, read_reason, read_window
from abeyance.actors.domain.slot_inbox import check_listing

PROTOCOL: Final = 1
"""Raised when the meaning of a verb or a field changes; new fields of a reply do not raise it."""
REQUEST_BYTES_MAX: Final = 65_536
REPLY_BYTES_MAX: Final = 67_108_864
REQUESTER_CHARS_MAX: Final = 200
ERROR_CHARS_MAX: Final = 4_000

EVERY_MODEL: Final = "*"

_FIELD = re.compile(r"(?:at `\$\.(\w+)|field `(\w+)`)")


class ControlError(AbeyanceError):
    """A control request or connection failed. Attribute `field`: what was wrong, or None."""

    code: ClassVar[str] = "control"
    field: str | None = None


class MalformedRequestError(ControlError):
    """The line is not one JSON object of a known shape; nothing was done."""

    code = "malformed_request"


class InvalidFieldError(ControlError):
    """A field is missing, of the wrong type or no proper name; nothing was done."""

    code = "invalid_field"


class UnknownVerbError(ControlError):
    """No such verb; nothing was done."""

    code = "unknown_verb"


class UnsupportedProtocolError(ControlError):
    """The two sides speak different versions of this protocol; nothing was done."""

    code = "unsupported_protocol"


class StateUnusableError(ControlError):
    """A directory that was named cannot be worked in. It was left as it is."""

    code = "state_unusable"


class RequestTooLargeError(ControlError):
    """The line is longer than the bound; nothing was done and the connection is closed."""

    code = "request_too_large"


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The server's first line."""

    abeyance: str
    """Version of the host's distribution."""
    protocol: int
    pid: int


class _Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="verb"
):
    protocol: int = PROTOCOL


class StatusRequest(_Request, frozen=True, tag="status"):
    """What the host runs and what waits."""


class WaitsRequest(_Request, frozen=True, tag="waits"):
    """The binding waits of one agent, or of all where `agent` is omitted."""

    agent: str | msgspec.UnsetType = msgspec.UNSET


class ReleaseRequest(_Request, frozen=True, tag="release"):
    """End the waits of one agent: one model's, or every model's."""

    agent: str
    model: str | msgspec.UnsetType = msgspec.UNSET
    requester: str = ""

    @property
    def scope(self) -> str | None:
        """The model, or None for every model."""
        if self.model is msgspec.UNSET or self.model == EVERY_MODEL:
            return None
        return self.model


class TreeRequest(_Request, frozen=True, tag="tree"):
    """The host's supervisors and actors: so many levels, and children of one supervisor."""

    depth: Annotated[int, msgspec.Meta(ge=1, le=DEPTH_MAX)] = DEPTH
    width: Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)] = WIDTH


class _ListRequest(_Request, frozen=True):
    before: int | msgspec.UnsetType = msgspec.UNSET
    """Only rows with a smaller number."""
    limit: int = 100


class DeadLettersRequest(_ListRequest, frozen=True, tag="dead-letters"):
    """Messages that were accepted and not handled, the newest first."""


class QuarantineRequest(_ListRequest, frozen=True, tag="quarantine"):
    """Messages whose handlers crashed past their last delivery, the newest first."""


class AlertsRequest(_Request, frozen=True, tag="alerts"):
    """What operators were told of, oldest first: the newest, or those behind a number."""

    after: int | msgspec.UnsetType = msgspec.UNSET
    limit: int = 100


class InboxRequest(_Request, frozen=True, tag="inbox"):
    """What was accepted and is in no transcript yet, of one agent, or agent by agent."""

    agent: str | msgspec.UnsetType = msgspec.UNSET
    after: int | msgspec.UnsetType = msgspec.UNSET
    """Only rows with a greater number; with an agent."""
    limit: int = 100


class ReplayRequest(_Request, frozen=True, tag="replay"):
    """Send the message of a row to its actor again."""

    kind: Literal["dead_letter", "quarantine"]
    id: int
    requester: str = ""


class RewindRequest(_Request, frozen=True, tag="rewind"):
    """Rewind an agent's transcript to a message, by its id or place, or undo the last rewind."""

    agent: str
    to: str | Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    undo: bool = False
    requester: str = ""


class QuiesceRequest(_Request, frozen=True, tag="quiesce"):
    """Start no more turns, live ones drained within a window; or, with `end`, start them again."""

    reason: str = ""
    within_s: float = WITHIN_S
    end: bool = False
    requester: str = ""


class ImportRequest(_Request, frozen=True, tag="import"):
    """Accept the deferred messages of an older queue, from a file that the host can read."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
    agent: str | msgspec.UnsetType = msgspec.UNSET
    wake: bool = False
    dry_run: bool = False


Request: TypeAlias = (
    StatusRequest
    | WaitsRequest
    | ReleaseRequest
    | TreeRequest
    | DeadLettersRequest
    | QuarantineRequest
    | AlertsRequest
    | InboxRequest
    | ReplayRequest
    | RewindRequest
    | QuiesceRequest
    | ImportRequest
)


class HeldReport(msgspec.Struct, frozen=True, kw_only=True):
    """What stops a held turn."""

    model: str
    cause: str
    deadline_ms: int | None
    reason: str


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """One binding wait. `deadline_ms` is None where only a release ends it."""

    agent: str
    model: str
    deadline_ms: int | None
    reason: str
    set_ms: int


class AdmissionReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent stands with its providers: what binds it, and how much of that is not stored
    yet (of a stopped store: nothing) and how many calls are out."""

    waits: tuple[WaitReport, ...]
    pending: int
    calls: int


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. `turn`, `round` and `attempts` describe its open turn, or are None."""

    name: str
    state: str
    model: str
    turn: int | None
    round: int | None
    attempts: int | None
    held: HeldReport | None
    inbox: int
    wakes: int
    admission: AdmissionReport | None = None
    """None: the host is of a version that does not say."""
    pid: int | None = None
    """The process that runs it; None for what a store says."""


class ModeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether turns start: `serving`, `draining` or `quiesced`; why not, and since when."""

    state: str
    reason: str
    by: str
    since_ms: int | None


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process that hosts agents of the directory."""

    pid: int
    started_ms: int | None


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a directory, or a store whose host serves no socket (`pid` and `started_ms` are
    None). Of several hosts, both are the first's."""

    directory: str
    store_id: str
    pid: int | None
    started_ms: int | None
    agents: tuple[AgentReport, ...]
    waits: tuple[WaitReport, ...]
    dead_letters: int
    quarantine: int
    open_pids: tuple[int, ...] = ()
    """Of a store whose host serves no socket: the live processes that have it open all the same; 0
    for one whose pid cannot be read."""
    hosts: tuple[HostReport, ...] = ()
    """Those that answered; the agents are theirs."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer: what they run is not here."""
    mode: ModeReport | None = None
    """None: the host is of a version that does not say."""


class FindingReport(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a store. `key` is the row's, as text."""

    problem: str
    table: str
    key: str
    text: str


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What reading every row of a store came to."""

    directory: str
    rows: int
    findings: tuple[FindingReport, ...]
    open_pids: tuple[int, ...]
    """Processes that may have written meanwhile: then a dangling row may be none. Look again."""


class WaitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `waits`."""

    waits: tuple[WaitReport, ...]


class ReleasedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One lifted wait. `recorded` survives a restart; `pending` binds here and is not in yet."""

    agent: str
    model: str
    reach: str


class ReleaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a release lifted; empty where nothing of that scope was binding."""

    released: tuple[ReleasedReport, ...]


class RewindReport(msgspec.Struct, frozen=True, kw_only=True):
    """The places between which lay what a rewind took out, or an undo put back; None: nothing."""

    first: int | None
    last: int | None


class QuiesceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a quiesce, or its end, came to in every host that answered."""

    state: str
    """`quiesced` or `serving`, durably."""
    was: str
    """What it was before; of a quiesce `serving` unless it was quiesced already."""
    reason: str
    abandoned: tuple[str, ...] = ()
    """Agents whose live turn was ended at the window's end; one fresh turn each comes later."""
    held: tuple[str, ...] = ()
    runs_ended: tuple[str, ...] = ()
    bodies_running: int = 0
    """Tool bodies that run on though nobody waits for them."""
    landed: int = 0
    """Messages that had waited and are in their slots."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer: they start no turn either, and drain within 30 s."""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What something last failed with."""

    type: str
    text: str
    at_ms: int


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor, or an actor, and what is below it. Mirrors `core.tree.TreeNode`."""

    kind: str
    id: str
    name: str
    state: str
    strategy: str | None
    restart: str
    incarnation: int
    restarts: int
    recent_restarts: int
    queued: int
    oldest_s_max: float | None
    in_flight_s_max: float | None
    handled: int
    last_failure: FailureReport | None
    children: tuple[NodeReport, ...]
    left_out: int


class HostTreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The tree of one of several hosts."""

    pid: int
    tree: NodeReport


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `tree`. A host fills in `tree`, its own."""

    tree: NodeReport
    pid: int | None = None
    """Whose `tree` is, where a client asked several."""
    others: tuple[HostTreeReport, ...] = ()
    """Of the directory's other hosts."""
    silent_pids: tuple[int, ...] = ()
    """Live hosts that gave no answer."""


class EntryReport(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the dead letters or of the quarantine; what only the other has is empty or None.

    `replayable` says whether the message itself is there: in the row, or in the host.
    """

    id: int
    kind: str
    actor: str
    reason: str
    message: str
    replayable: bool
    error: str
    incarnation: int | None
    deliveries: int | None
    origin_kind: str | None
    origin: int | None
    replays: int
    at_ms: int


class EntriesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `dead-letters` and `quarantine`."""

    entries: tuple[EntryReport, ...]


class AlertReport(msgspec.Struct, frozen=True, kw_only=True):
    """One alert. `deadline_ms` is None where what it tells of does not end by itself."""

    id: int
    kind: str
    agent: str
    model: str
    text: str
    deadline_ms: int | None
    episode: str
    at_ms: int


class AlertsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `alerts`."""

    alerts: tuple[AlertReport, ...]


class InboxRowReport(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits. Mirrors `domain.slot_inbox.InboxRow`."""

    id: str
    seq: int
    author: str
    agent: str
    channel: str | None
    state: str
    cause: str
    behind: str | None
    wake: bool
    size: int
    at_ms: int


class InboxReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `inbox`."""

    inbox: tuple[InboxRowReport, ...]


class ImportedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a file that is accepted. Mirrors `importing.ImportedMessage`."""

    agent: str
    place: int
    number: int
    id: str
    seq: int | None


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about an entry that is not sound. Mirrors `domain.imports.ImportRepair`."""

    kind: str
    place: int | None
    id: str | None
    participant: str | None
    text: str


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a file's entries: of those that were accepted, dropped, refused, mended."""

    total: int
    dry_run: bool
    messages: tuple[ImportedReport, ...]
    repairs: tuple[RepairReport, ...]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay sent: the row, counted."""

    replayed: EntryReport


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused or failed. `text` is one line."""

    code: str
    text: str
    field: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reply line."""

    ok: bool
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorReport | msgspec.UnsetType = msgspec.UNSET


_requests = msgspec.json.Decoder(Request)


class _Envelope(msgspec.Struct, frozen=True):
    """The two fields that decide how the rest is read; the rest is ignored here."""

    protocol: int | msgspec.UnsetType = msgspec.UNSET
    verb: str | msgspec.UnsetType = msgspec.UNSET


_envelopes = msgspec.json.Decoder(_Envelope)
_VERBS: Final = (
    "status",
    "waits",
    "release",
    "tree",
    "dead-letters",
    "quarantine",
    "alerts",
    "inbox",
    "replay",
    "rewind",
    "quiesce",
    "import",
)


def read_request(line: bytes) -> Request:
    """Decode and check one request line.

    Args:
        line: Without its newline, at most `REQUEST_BYTES_MAX` bytes.
    Raises:
        MalformedRequestError, UnknownVerbError, UnsupportedProtocolError: As they say.
        InvalidFieldError, InvalidNameError: The field they name is wrong. The caller does nothing
            for this line.
    """
    try:
        envelope = _envelopes.decode(line)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedRequestError(
            f"the request is not a JSON object ({error}); nothing was done; send one object a line"
        ) from None
    if envelope.protocol is not msgspec.UNSET and envelope.protocol != PROTOCOL:
        raise UnsupportedProtocolError(
            f"this host speaks control protocol {PROTOCOL}, not {envelope.protocol}; nothing was "
            "done; use the command line of the host's own version",
            field="protocol",
        )
    if envelope.verb is not msgspec.UNSET and envelope.verb not in _VERBS:
        raise UnknownVerbError(
            f"there is no verb {envelope.verb[:80]!r}; nothing was done; "
            f"the verbs are {', '.join(_VERBS)}",
            field="verb",
        )
    try:
        request = _requests.decode(line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid(error) from None
    _check_names(request)
    return request


def _invalid(error: Exception) -> ControlError:
    found = _FIELD.search(str(error))
    if found is None:
        return MalformedRequestError(
            f"the request has the wrong shape ({error}); nothing was done; send one object a line"
        )
    return InvalidFieldError(
        f"the request is not valid: {error}; nothing was done; correct that field",
        field=found[1] or found[2],
    )


def _check_names(request: Request) -> None:
    named = WaitsRequest | ReleaseRequest | RewindRequest | ImportRequest
    if isinstance(request, named) and request.agent is not msgspec.UNSET:
        check_name(request.agent, "agent")
    if isinstance(request, RewindRequest):
        if isinstance(request.to, str):
            check_name(request.to, "to", reserved=False)
        if request.undo == (request.to is not msgspec.UNSET):
            raise InvalidFieldError(
                "a rewind names what it goes back to, or is an undo, and not both; nothing was "
                "done; correct that field",
                field="to",
            )
    if isinstance(request, ReleaseRequest) and request.scope is not None:
        check_name(request.scope, "model", reserved=False)
    if isinstance(request, _ListRequest):
        check_page(None if request.before is msgspec.UNSET else request.before, request.limit)
    if isinstance(request, InboxRequest):
        agent = None if request.agent is msgspec.UNSET else request.agent
        behind = None if request.after is msgspec.UNSET else request.after
        check_listing(agent, behind, request.limit)
    if isinstance(request, AlertsRequest):
        check_after(None if request.after is msgspec.UNSET else request.after, request.limit)
    if isinstance(request, ReplayRequest):
        check_number(request.id, "id")
    if isinstance(request, QuiesceRequest) and not request.end:
        read_reason(request.reason)
        read_window(request.within_s)


def clean_requester(text: str) -> str:
    """The requester as it is recorded: `cli:` and a bounded name on one line."""
    name = clean_text(text.removeprefix("cli:"), REQUESTER_CHARS_MAX).strip()
    return f"cli:{name or 'unknown'}"


def ok_line(result: msgspec.Struct) -> bytes:
    """Encode a reply that carries a result."""
    return (
        msgspec.json.encode(Reply(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))) + b"\n"
    )


def error_line(code: str, text: str, field: str | None = None) -> bytes:
    """Encode a refusal."""
    report = ErrorReport(code=code, text=clean_text(text, ERROR_CHARS_MAX), field=field)
    return msgspec.json.encode(Reply(ok=False, error=report)) + b"\n"
