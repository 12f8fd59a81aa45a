"""Errors of runs, sorted by what is still true when one is raised."""

from __future__ import annotations

from typing import ClassVar

from abeyance.actors.core.errors import AbeyanceError

from .errors import InvalidInputError


class InvalidRunError(InvalidInputError):
    """A key, a workflow, a parameter or a step's id is malformed. Nothing was done.

    Attributes: `field`.
    """

    code = "invalid_run"


class UnknownRunError(AbeyanceError):
    """There is no such run. Nothing was done. Attribute: `run`."""

    code: ClassVar[str] = "unknown_run"
    run: str


class UnknownWorkflowError(AbeyanceError):
    """No workflow of that name was added to this runtime. Nothing was done.

    Attributes: `workflow`.
    """

    code = "unknown_workflow"
    workflow: str


class RunOpenError(AbeyanceError):
    """A run of that key may still go on, so no other was started.

    Attributes: `key`; `run`, its id; `state`.
    """

    code = "run_open"
    key: str
    run: str
    state: str


class RunStateError(AbeyanceError):
    """The run is not in a state in which that can be done. Nothing was done.

    Attributes: `run`; `state`.
    """

    code = "run_state"
    run: str
    state: str


class RunOwnedElsewhereError(AbeyanceError):
    """A live process owns the run. Nothing was done. Attributes: `run`; `pid`; `host`."""

    code = "run_owned_elsewhere"
    run: str
    pid: int | None
    host: str | None


class RunsParkedError(AbeyanceError):
    """What executes runs crashed too often and is parked. Nothing was done.

    Every run is as its row says. `unpark('runs')` starts it again.
    """

    code: ClassVar[str] = "runs_parked"


class StepFailedError(AbeyanceError):
    """A step or an item raised, now or in an earlier life of the run; it is not run again.

    Attributes: `path`; `error`, the type and text of what it raised. In the life in which it was
    raised that is the cause.
    """

    code = "step_failed"
    path: str
    error: str


class TurnFailedError(AbeyanceError):
    """The agent's turn that an item of a run asked for came to no reply.

    Attributes: `agent`; `turn`, its number, or None where none began; `state`: `failed`,
    `cancelled`, `rewound`, or `lost` where its message is not in the slot any more;
    `failure`, the code of the error that a provider's call failed with (`provider_stalled`, say).
    """

    code = "turn_failed"
    agent: str
    turn: int | None
    state: str
    failure: str | None


class RunEndedError(AbeyanceError):
    """The run has been suspended, cancelled or taken over, and this is code of its that still runs.

    Nothing was started and nothing recorded. Attribute: `run`.
    """

    code = "run_ended"
    run: str


def run_ended(run: str) -> RunEndedError:
    return RunEndedError(
        f"run {run!r} does not go on in this life; nothing was started; let its function end",
        run=run,
    )
