"""What an object must declare to be registered as a provider."""

from __future__ import annotations

from typing import Any

import pytest

from abeyance.actors.providers import ProviderIncompleteError, check_provider
from abeyance.actors.testing import ScriptedProvider


class Whole:
    carries_injections = False

    async def call(self, request: Any, on_delta: Any) -> Any: ...

    async def aclose(self) -> None: ...


class Silent(Whole):
    carries_injections = None  # type: ignore[assignment]


class Truthy(Whole):
    carries_injections = "yes"  # type: ignore[assignment]


class Sync(Whole):
    def call(self, request: Any, on_delta: Any) -> Any: ...  # type: ignore[override]


class Unclosable(Whole):
    aclose = None  # type: ignore[assignment]


class Named(Whole):
    credential = "sk-a-key"


class Bounded(Whole):
    context_tokens = 200_000


def test_a_whole_provider_is_returned_as_it_is():
    for provider in (Whole(), ScriptedProvider([])):
        assert check_provider(provider) is provider


@pytest.mark.behaviour("R-13")
@pytest.mark.parametrize(
    ("candidate", "field"),
    [
        (object(), "carries_injections"),
        (Silent(), "carries_injections"),
        (Truthy(), "carries_injections"),
        (Sync(), "call"),
        (Unclosable(), "aclose"),
        (Named(), "credential"),
        (Bounded(), "context_tokens"),
    ],
)
def test_an_incomplete_provider_is_refused_by_the_field_it_lacks(candidate: object, field: str):
    with pytest.raises(ProviderIncompleteError, match=field) as caught:
        check_provider(candidate)
    assert (caught.value.field, caught.value.code) == (field, "provider_incomplete")
