"""What a chat or a page shows in place of a working indicator where something waits.

One shape for an agent's held turn, for what the store refuses of it, and for a run, so that a host
renders them alike: a line for people, the instant where one was stated, and which verbs end the
wait.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from .domain.events import HoldBegan, RecordingRefused, RunRecordingRefused
from .run_status import RunStatus, local_minute
from .status import UnrecordedStatus

_RUN_ACTIONS: Final = {
    "waiting_for_capacity": ("resume_run", "use_fallback", "cancel_run"),
    "waiting_for_capacity_unknown": ("resume_run", "use_fallback", "cancel_run"),
    "recovery_required": ("resume_run", "cancel_run"),
}
_ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "host": (),
    "cooldown": (),
    "approval": ("approve", "deny"),
    "context": (),
}
_HOLDS: Final = {
    "unreadable": "Waiting: whether {model} may be called cannot be read",
    "host": "Waiting for the host's word on {model}",
    "cooldown": "Waiting for {model} after a failure",
    "approval": "Waiting for a person",
    "context": "Waiting for a summary: the request was too long for {model}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCard:
    """What waits, until when, and what can be done. Nothing is being worked on meanwhile.

    `resume_after_ms` is the instant that was stated, as it was stated, or None where none was: then
    the text has none either. `actions` are verbs of `Runtime`, to offer as buttons.
    """

    agent: str | None
    run: str | None
    title: str
    resume_after_ms: int | None
    reason: str
    actions: tuple[str, ...]

    def text(self, zone: tzinfo | None = None) -> str:
        """One line; the instant in a zone, or in this machine's own."""
        if self.resume_after_ms is None:
            return self.title
        verb = "goes on" if self.run is None else "resumes"
        return f"{self.title} \u00b7 {verb} after {local_minute(self.resume_after_ms, zone)}"


def wait_card(
    of: HoldBegan | RecordingRefused | RunRecordingRefused | RunStatus,
) -> WaitCard | None:
    """The card of a hold that began, of what the store refuses, or of a run; None for a run that
    waits for nobody.

    Not a checkpoint.
    """
    if isinstance(of, HoldBegan):
        title = _HOLDS.get(of.cause, "Waiting for {model} capacity").format(model=of.model)
        title = f"{title} ({of.window})" if of.window else title
        return WaitCard(
            agent=of.agent,
            run=None,
            title=title,
            resume_after_ms=of.deadline_ms,
            reason=of.reason,
            actions=_ACTIONS.get(of.cause, ("release_provider_wait",)),
        )
    if isinstance(of, RecordingRefused):
        return _for_the_store(of, of.agent, None)
    if isinstance(of, RunRecordingRefused):
        return _for_the_store(of, None, of.run)
    if of.unrecorded is not None:
        return _for_the_store(of.unrecorded, None, of.id)
    actions = _RUN_ACTIONS.get(of.state)
    if actions is None:
        return None
    return WaitCard(
        agent=None,
        run=of.id,
        title=of.title,
        resume_after_ms=of.resume_after_ms,
        reason=of.reason,
        actions=actions,
    )


def _for_the_store(
    refused: RecordingRefused | RunRecordingRefused | UnrecordedStatus,
    agent: str | None,
    run: str | None,
) -> WaitCard:
    return WaitCard(
        agent=agent,
        run=run,
        title=f"Waiting for the store: {refused.what} cannot be recorded",
        resume_after_ms=None,
        reason=refused.reason,
        actions=(),
    )
