"""What can be asked through a control socket: each verb's fields, and what is malformed of them.

Invariants:
    I1  A request is checked whole, field by field, before anything is done for it.
    I2  Only an omitted model or `*` means every model; any other value that is not a proper name
        is refused, never read as "all".

Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from abeyance.actors.core.tree import DEPTH, DEPTH_MAX, NODES_MAX, WIDTH
from abeyance.actors.domain.alert_book import check_after
from abeyance.actors.domain.approvals import read_id, read_note
from abeyance.actors.domain.archive_book import check_number, check_page
from abeyance.actors.domain.ingress import check_name, read_blocks
from abeyance.actors.domain.mode import WITHIN_S, read_reason, read_window
from abeyance.actors.domain.run_acts import check_reason
from abeyance.actors.domain.schedule_acts import ScheduleVerb
from abeyance.actors.domain.slot_inbox import check_listing
from abeyance.actors.domain.spent_reading import Asked

from .errors import InvalidFieldError

PROTOCOL: Final = 1
"""Raised when the meaning of a verb or a field changes; new fields of a reply do not raise it."""
EVERY_MODEL: Final = "*"


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
    def scope(self) -> str:
        """The model, or `*` for every model."""
        return EVERY_MODEL if self.model is msgspec.UNSET else self.model


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
    """What was accepted and is in no transcript yet, of one agent, or slot by slot."""

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


class CancelTurnRequest(_Request, frozen=True, tag="cancel-turn"):
    """End an agent's open turn for good, or the one of a number."""

    agent: str
    turn: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    requester: str = ""


class SetModelRequest(_Request, frozen=True, tag="set-model"):
    """Have an agent ask another model; without one, what its specification says again."""

    agent: str
    provider: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    requester: str = ""


class ApprovalsRequest(_Request, frozen=True, tag="approvals"):
    """The tool calls that wait for a person, of one agent or of all."""

    agent: str | msgspec.UnsetType = msgspec.UNSET


class DecideRequest(_Request, frozen=True, tag="decide"):
    """Let a tool call that waits for a person be made, or have it not made."""

    approval: str
    verdict: Literal["approve", "deny"]
    note: str = ""
    requester: str = ""


class EditRequest(_Request, frozen=True, tag="edit"):
    """Give a stored message, named by its id or place, other words, or take it out; or undo."""

    agent: str
    message: str | Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    blocks: str | list[Any] | msgspec.UnsetType = msgspec.UNSET
    """What it says from now on."""
    remove: bool = False
    undo: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    """The number of the edit that is taken back."""
    requester: str = ""


class EditsRequest(_Request, frozen=True, tag="edits"):
    """The edits of an agent's transcript that are kept."""

    agent: str


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
    requester: str = ""


class UsageRequest(_Request, frozen=True, tag="usage"):
    """What agents used, of one or of all, since an instant in epoch milliseconds."""

    agent: str | msgspec.UnsetType = msgspec.UNSET
    since: int | msgspec.UnsetType = msgspec.UNSET
    by: str = "model"
    zone: str = "UTC"


class OutboxRequest(_Request, frozen=True, tag="outbox"):
    """The outboxes that bridges read, and how far behind each is."""


class RunsRequest(_Request, frozen=True, tag="runs"):
    """Runs: those in one state (`open`: that have not ended), or all where `state` is omitted."""

    state: str | msgspec.UnsetType = msgspec.UNSET
    workflow: str | msgspec.UnsetType = msgspec.UNSET
    after: str | msgspec.UnsetType = msgspec.UNSET
    limit: int = 100


class SchedulesRequest(_Request, frozen=True, tag="schedules"):
    """Schedules; with `schedule` that one and what became of its occurrences, the newest first."""

    schedule: str | msgspec.UnsetType = msgspec.UNSET
    before: int | msgspec.UnsetType = msgspec.UNSET
    limit: int = 100


class ScheduleActRequest(_Request, frozen=True, tag="schedule-act"):
    """Pause a schedule, have it due again, or end it."""

    schedule: str
    act: ScheduleVerb
    requester: str = ""


class UnparkRequest(_Request, frozen=True, tag="unpark"):
    """Start a parked group of the host's own again, or a parked agent."""

    group: str | msgspec.UnsetType = msgspec.UNSET
    agent: str | msgspec.UnsetType = msgspec.UNSET
    requester: str = ""


class RunRequest(_Request, frozen=True, tag="run"):
    """One run, its items, and the states it went through."""

    run: str


class ResumeRunRequest(_Request, frozen=True, tag="resume-run"):
    """Take a waiting run up now, or with a decision one whose item is in doubt."""

    run: str
    in_doubt: Literal["retry", "done"] | msgspec.UnsetType = msgspec.UNSET
    result: Any = None
    requester: str = ""


class UseFallbackRequest(_Request, frozen=True, tag="use-fallback"):
    """Go on with a waiting run on another model."""

    run: str
    provider: str
    model: str
    requester: str = ""


class TakeOverRunRequest(_Request, frozen=True, tag="take-over-run"):
    """Take a run from the live process that owns it."""

    run: str
    requester: str = ""


class CancelRunRequest(_Request, frozen=True, tag="cancel-run"):
    """End a run for good."""

    run: str
    reason: str = ""
    requester: str = ""


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
    | CancelTurnRequest
    | SetModelRequest
    | ApprovalsRequest
    | DecideRequest
    | EditRequest
    | EditsRequest
    | QuiesceRequest
    | ImportRequest
    | UsageRequest
    | OutboxRequest
    | RunsRequest
    | SchedulesRequest
    | ScheduleActRequest
    | UnparkRequest
    | RunRequest
    | ResumeRunRequest
    | UseFallbackRequest
    | CancelRunRequest
    | TakeOverRunRequest
)


def check_request(request: Request) -> None:
    """Refuse the first field whose value is malformed though its type is right.

    Raises:
        InvalidFieldError, InvalidInputError, InvalidNameError: Names the field; nothing was done.
    """
    named = (
        WaitsRequest
        | ReleaseRequest
        | RewindRequest
        | CancelTurnRequest
        | SetModelRequest
        | ApprovalsRequest
        | EditRequest
        | EditsRequest
        | ImportRequest
        | UnparkRequest
    )
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
    if isinstance(request, SetModelRequest):
        for field in ("model", "provider"):
            if getattr(request, field) is not msgspec.UNSET:
                check_name(getattr(request, field), field)
    if isinstance(request, UsageRequest):
        agent_, since = (
            None if value is msgspec.UNSET else value for value in (request.agent, request.since)
        )
        Asked(agent_, since, request.by, request.zone)  # type: ignore[arg-type]
    if isinstance(request, DecideRequest):
        read_id(request.approval)
        read_note(request.note)
    if isinstance(request, CancelRunRequest):
        check_reason(request.reason)
    if isinstance(request, EditRequest):
        _check_edit(request)
    if isinstance(request, UnparkRequest) and (
        (request.group is msgspec.UNSET) == (request.agent is msgspec.UNSET)
    ):
        raise InvalidFieldError(
            "an unpark names a group of the host's own, or an agent, and not both; nothing was "
            "done; correct that field",
            field="group",
        )
    if isinstance(request, ReleaseRequest):
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


def _check_edit(request: EditRequest) -> None:
    if isinstance(request.message, str):
        check_name(request.message, "message", reserved=False)
    said = request.blocks is not msgspec.UNSET
    undoes = request.undo is not msgspec.UNSET
    names = request.message is not msgspec.UNSET
    if undoes == names or (said + request.remove) != names:
        raise InvalidFieldError(
            "an edit names a message, and what it says from now on or that it is taken out; or it "
            "is the undo of one; nothing was done; correct that field",
            field="undo" if undoes else "message" if not names else "blocks",
        )
    if not isinstance(request.blocks, msgspec.UnsetType):
        read_blocks(request.blocks, "blocks")
