"""What a host says of a runtime, refused by name before anything of it is opened. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from .core import ActorSystem
from .domain.alert_book import AlertSink, Webhook
from .domain.budgets import Budget, check_budgets
from .domain.errors import InvalidSpecError
from .domain.prices import Prices, check_prices
from .domain.retention import Retention, check_retention
from .ops.failures_log import FailuresLog
from .ops.http.options import check_http

PATH_BYTES_MAX = 4_096
TAKEN = frozenset({FailuresLog.name, "webhook"})
"""Names of sinks that a runtime has of its own."""


class Options(NamedTuple):
    """What a host said, as it is kept."""

    prices: Prices | None
    budgets: tuple[Budget, ...]
    retention: Retention
    sinks: tuple[AlertSink, ...]


def check_options(
    directory: object,
    clock: object,
    control: object,
    system: object,
    faults: object,
    webhook: Webhook | str | None,
    alert_sinks: object,
    trace: object,
    account_waits: object,
    admin: object,
    prices: object,
    budgets: object,
    retention: object,
    http: object,
) -> Options:
    """Return the options of a runtime, or refuse the first that is malformed. Opens nothing.

    Raises:
        InvalidSpecError: Names the option.
    """
    check_directory(directory)
    check_system(system, faults)
    check_switches(clock, admin, control=control, trace=trace, account_waits=account_waits)
    read, kept = check_prices(prices), check_retention(retention)
    each = check_host_budgets(budgets, read)
    check_api(http)
    return Options(read, each, kept, tuple(sinks_of(webhook, alert_sinks)))


def check_directory(directory: object) -> None:
    """Refuse what is no path.

    Raises:
        InvalidSpecError: It is none, or empty: as a path it would be the working directory, which a
            host whose setting is empty did not mean.
    """
    if not isinstance(directory, str | os.PathLike):
        kind = type(directory).__name__
        raise InvalidSpecError("directory", f"must be a path, as text or as a Path, not {kind}")
    path = os.fspath(directory)
    if not isinstance(path, str):
        raise InvalidSpecError("directory", "must be a path of text, not of bytes")
    if not path:
        raise InvalidSpecError("directory", "must name a directory; it is empty")
    if "\0" in path:
        raise InvalidSpecError("directory", "must not hold a zero character")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        problem = "must be valid Unicode (it holds a lone surrogate)"
        raise InvalidSpecError("directory", problem) from None
    if size > PATH_BYTES_MAX:
        raise InvalidSpecError("directory", f"must be at most {PATH_BYTES_MAX:,} bytes")


def check_system(system: object, faults: object) -> None:
    """Refuse a system that a runtime cannot live in, and faults that are none.

    Raises:
        InvalidSpecError: Names the field.
    """
    if faults is not None and (
        isinstance(faults, type) or not callable(getattr(faults, "store", None))
    ):
        raise InvalidSpecError("faults", "must be a Faults of the test kit, or None")
    if system is None:
        return
    if not isinstance(system, ActorSystem):
        raise InvalidSpecError("system", f"must be an ActorSystem, not {type(system).__name__}")
    if system.ask_timeout_s is not None:
        raise InvalidSpecError(
            "system.ask_timeout_s",
            "must be None: what was handed over always gets an outcome",
        )
    if system.faults is not faults:
        raise InvalidSpecError("system.faults", "must be the faults that open_runtime gets")


def check_switches(clock: object, admin: object, **switches: object) -> None:
    """Refuse what is no clock, no gate, or neither True nor False.

    Raises:
        InvalidSpecError: Names the field.
    """
    if clock is not None and (
        isinstance(clock, type) or not callable(getattr(clock, "now_ms", None))
    ):
        raise InvalidSpecError("clock", "must have a method now_ms, or be None")
    if admin is not None and not callable(admin):
        raise InvalidSpecError("admin", "must be a function of an OperatorAct, or None")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InvalidSpecError(name, f"must be True or False, not {type(value).__name__}")


def check_host_budgets(budgets: object, prices: Prices | None) -> tuple[Budget, ...]:
    """Return the budgets of all agents together, or refuse them.

    Raises:
        InvalidSpecError: Names the field: they are none, or one is in cost and nothing has a price.
    """
    read = check_budgets(budgets)
    for place, budget in enumerate(read):
        if budget.cost is not None and prices is None:
            raise InvalidSpecError(f"budgets[{place}].cost", "needs `prices`")
    return read


def check_api(http: object) -> None:
    """Refuse an HTTP API that cannot be served.

    Raises:
        InvalidSpecError: It is malformed, or what serves it is not installed.
    """
    if http is None:
        return
    check_http(http)
    if find_spec("starlette") is None or find_spec("hypercorn") is None:
        raise InvalidSpecError(
            "http", 'needs the libraries of the extra: pip install "path/to/clone[http]"'
        )


def sinks_of(webhook: Webhook | str | None, others: object) -> list[AlertSink]:
    """The sinks that a host names, or the refusal of one.

    Raises:
        InvalidSpecError: Names the field, without a URL.
    """
    sinks: list[AlertSink] = []
    if webhook is not None:
        from .ops.webhook import WebhookSink  # Who posts nothing need not load what would.

        sinks.append(WebhookSink(webhook))
    if isinstance(others, str | bytes) or not isinstance(others, Sequence):
        raise InvalidSpecError("alert_sinks", "must be a sequence of sinks")
    names = set(TAKEN)
    for place, sink in enumerate(others):
        name: Any = getattr(sink, "name", None)
        if not isinstance(name, str) or not re.fullmatch("[a-z0-9_-]{1,64}", name) or name in names:
            raise InvalidSpecError(
                f"alert_sinks[{place}].name",
                "must be 1 to 64 of a-z, 0-9, - and _, and no other sink's",
            )
        if not callable(getattr(sink, "deliver", None)):
            raise InvalidSpecError(f"alert_sinks[{place}].deliver", "must be an async function")
        names.add(name)
        sinks.append(sink)
    return sinks
