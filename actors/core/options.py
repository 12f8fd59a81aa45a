"""What a host says of a system, refused before anything of it is made. Pure."""

from __future__ import annotations

from .asks import AskTable
from .specs import Directives, check_directives, check_type

SINKS = ("on_dead_letter", "on_quarantine", "on_event")


def check_options(
    name: object,
    asks: object,
    clock: object,
    debug: object,
    seed: object,
    directives: Directives,
    trace: object,
    sinks: tuple[object, object, object],
) -> None:
    """Refuse what is no option of a system, by its name.

    Raises:
        TypeError, ValueError: It is of another type, or says nothing that is known.
    """
    check_directives(directives)
    check_type("name", name, str)
    if asks is not None:
        check_type("asks", asks, AskTable)
    if clock is not None and (
        isinstance(clock, type) or not callable(getattr(clock, "now_ms", None))
    ):
        raise TypeError(f"clock must have a method now_ms, and is {clock!r:.80}")
    if seed is not None:
        check_type("seed", seed, int)
    for field, value in (("debug", debug), ("trace", trace)):
        if not isinstance(value, bool):
            raise TypeError(f"{field} must be True or False, not {value!r:.80}")
    for field, sink in zip(SINKS, sinks, strict=True):
        if sink is not None and not callable(sink):
            raise TypeError(f"{field} must be a function, or None, and is {sink!r:.80}")
