"""The metrics of a runtime as a scrape reads them. Needs the `metrics` extra."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..metrics import RuntimeCollector, exposition


def scrape_of(runtime: Any) -> Callable[[], bytes]:
    """A function that reads a runtime's figures, on a thread other than the loop's."""
    return partial(exposition, RuntimeCollector(runtime))
