"""A workflow as its host registered it. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from abeyance.storage.tables.runs import Run

from .fallback import ModelChoice
from .ingress import check_name
from .run_errors import InvalidRunError
from .run_rows import check_step_id
from .run_steps import InDoubt

Finaliser: TypeAlias = "tuple[str, Callable[..., Any]] | tuple[str, Callable[..., Any], InDoubt]"


class Workflow(NamedTuple):
    """A function that runs are executed by, as the host registered it."""

    name: str
    function: Callable[..., Awaitable[Any]]
    version: int
    finalisers: tuple[tuple[str, Callable[..., Any], InDoubt], ...]
    buffer_ms: int
    fallbacks: tuple[ModelChoice, ...] = ()
    """The models that an operator may have a run go on with; none: any of a known provider."""

    def may_use(self, provider: str, model: str) -> bool:
        return not self.fallbacks or ModelChoice(provider, model) in self.fallbacks


def other_version(record: Run, workflow: Workflow) -> str:
    return (
        f"it was begun by version {record.version} of {record.workflow!r}, and this host has "
        f"version {workflow.version}"
    )


def check_workflow(
    name: str,
    function: object,
    version: object,
    finalisers: Sequence[Finaliser],
    buffer_s: object,
    fallbacks: Sequence[ModelChoice] = (),
) -> Workflow:
    """Return a workflow, or refuse the first field that is malformed.

    Raises:
        InvalidRunError, InvalidNameError: Names the field; nothing was registered.
    """
    check_name(name, "name")
    if not (callable(function) and inspect.iscoroutinefunction(inspect.unwrap(function))):
        raise InvalidRunError("function", "must be an async function of a run and its parameters")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**63:
        raise InvalidRunError("version", "must be a whole number from 1")
    if (
        isinstance(buffer_s, bool)
        or not isinstance(buffer_s, int | float)
        or not 0 <= buffer_s <= 86_400
    ):
        raise InvalidRunError("buffer_s", "must be a number of seconds, at most a day")
    return Workflow(
        name,
        function,
        version,
        _finalisers(finalisers),
        round(buffer_s * 1_000),
        _fallbacks(fallbacks),
    )


def _finalisers(
    finalisers: Sequence[Finaliser],
) -> tuple[tuple[str, Callable[..., Any], InDoubt], ...]:
    found: dict[str, tuple[str, Callable[..., Any], InDoubt]] = {}
    _check_sequence(finalisers, "finalisers")
    for place, given in enumerate(finalisers):
        field = f"finalisers[{place}]"
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise InvalidRunError(field, "must be an id and a function, and what an `in_doubt` is")
        step, final = given[0], given[1]
        in_doubt: Any = given[2] if len(given) == 3 else "recover"
        check_step_id(step, f"{field}[0]")
        if step in found:
            raise InvalidRunError(f"{field}[0]", f"{step!r} is there already")
        if not callable(final):
            raise InvalidRunError(f"{field}[1]", "must be a function of the result")
        if in_doubt not in ("recover", "retry") and not callable(in_doubt):
            raise InvalidRunError(f"{field}[2]", "must be 'recover', 'retry' or a function")
        found[step] = (step, final, in_doubt)
    return tuple(found.values())


def _check_sequence(given: object, field: str) -> None:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidRunError(field, f"must be a sequence, not {type(given).__name__}")


def _fallbacks(fallbacks: Sequence[ModelChoice]) -> tuple[ModelChoice, ...]:
    _check_sequence(fallbacks, "fallbacks")
    for place, each in enumerate(fallbacks):
        if not isinstance(each, ModelChoice):
            raise InvalidRunError(f"fallbacks[{place}]", "must be a ModelChoice")
    return tuple(fallbacks)
