"""What an object must declare to be taken as a provider. Pure."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Final, cast

from ..core.errors import AbeyanceError
from .port import Provider


class ProviderIncompleteError(AbeyanceError):
    """An object lacks what every provider has. Attribute: `field`, the first that is missing."""

    code: ClassVar[str] = "provider_incomplete"

    field: str


OPTIONAL: Final = ("credential", "context_tokens")
"""Methods that a provider may have. One that is there and is none would be taken for not there."""


def no_method(candidate: Any) -> str | None:
    """The first of the optional methods that is there and cannot be called."""
    members = ((name, getattr(candidate, name, None)) for name in OPTIONAL)
    return next((name for name, it in members if it is not None and not callable(it)), None)


def check_provider(candidate: Any) -> Provider:
    """Return the object as a provider.

    `carries_injections` has no default: a wrong guess either loses messages or marks as read what
    no model was shown.

    Raises:
        ProviderIncompleteError: A field is missing or of the wrong kind; nothing was registered.
    """
    if not isinstance(getattr(candidate, "carries_injections", None), bool):
        raise _incomplete(candidate, "carries_injections", "declare it as True or False")
    for method in ("call", "aclose"):
        function = getattr(candidate, method, None)
        if not callable(function) or not inspect.iscoroutinefunction(
            inspect.unwrap(getattr(function, "__func__", function))
        ):
            raise _incomplete(candidate, method, "it is an async function of every provider")
    wrong = no_method(candidate)
    if wrong is not None:
        raise _incomplete(candidate, wrong, "as a method, or leave it out")
    return cast(Provider, candidate)


def _incomplete(candidate: object, field: str, advice: str) -> ProviderIncompleteError:
    return ProviderIncompleteError(
        f"{type(candidate).__name__} is no provider: {field} is missing or of the wrong kind; it "
        f"was not registered; {advice}",
        field=field,
    )
