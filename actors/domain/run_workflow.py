"""A workflow as its host registered it. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from abeyance.storage.tables.runs import Run

from .ingress import check_name
from .run_errors import InvalidRunError
from .run_rows import check_step_id


class Workflow(NamedTuple):
    """A function that runs are executed by, as the host registered it."""

    name: str
    function: Callable[..., Awaitable[Any]]
    version: int
    finalisers: tuple[tuple[str, Callable[..., Any]], ...]
    buffer_ms: int


def other_version(record: Run, workflow: Workflow) -> str:
    return (
        f"it was begun by version {record.version} of {record.workflow!r}, and this host has "
        f"version {workflow.version}"
    )


def check_workflow(
    name: str,
    function: object,
    version: object,
    finalisers: Sequence[tuple[str, Callable[..., Any]]],
    buffer_s: object,
) -> Workflow:
    """Return a workflow, or refuse the first field that is malformed.

    Raises:
        InvalidRunError, InvalidNameError: Names the field; nothing was registered.
    """
    check_name(name, "name")
    if not (callable(function) and inspect.iscoroutinefunction(inspect.unwrap(function))):
        raise InvalidRunError("function", "must be an async function of a run and its parameters")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidRunError("version", "must be a whole number from 1")
    if (
        isinstance(buffer_s, bool)
        or not isinstance(buffer_s, int | float)
        or not 0 <= buffer_s <= 86_400
    ):
        raise InvalidRunError("buffer_s", "must be a number of seconds, at most a day")
    seen = set[str]()
    for place, (step, final) in enumerate(finalisers):
        check_step_id(step, f"finalisers[{place}][0]")
        if step in seen:
            raise InvalidRunError(f"finalisers[{place}][0]", f"{step!r} is there already")
        if not callable(final):
            raise InvalidRunError(f"finalisers[{place}][1]", "must be a function of the result")
        seen.add(step)
    return Workflow(
        name,
        function,
        version,
        tuple(finalisers),
        round(buffer_s * 1_000),
    )
