"""What an object must declare to be taken as a provider. Pure."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, cast

from ..core.errors import AbeyanceError
from .port import Provider


class ProviderIncompleteError(AbeyanceError):
    """An object lacks what every provider has. Attribute: `field`, the first that is missing."""

    code: ClassVar[str] = "provider_incomplete"

    field: str


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
    return cast(Provider, candidate)


def _incomplete(candidate: object, field: str, advice: str) -> ProviderIncompleteError:
    return ProviderIncompleteError(
        f"{type(candidate).__name__} is no provider: {field} is missing; it was not registered; "
        f"{advice}",
        field=field,
    )
