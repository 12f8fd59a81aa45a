"""Every recorded refusal that HTTP can carry, served on loopback to the vendors' own SDKs.

What an SDK does to a response on its way (joins lines of a header, parses the body, raises by
status) must lose nothing of what is stated. What the failed call states is what its permit is
settled with.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from abeyance.actors.providers import AnthropicProvider, OpenAIProvider, StatedWait
from abeyance.actors.providers.port import ModelRequest, Permit, ProviderError, permitted
from abeyance.actors.testing import Answer, ProviderSimulator, WireRequest

from .test_anthropic import request
from .test_reader import CAPTURED, rows

ROWS = [
    row
    for row in CAPTURED + rows("unseen_waits.jsonl")
    if row["transport"] == "http"
    and row["status"] is not None
    and row["status"] >= 400
    and isinstance(row["body"], str)
    and not {"content-length", "transfer-encoding"} & {name.lower() for name in row["headers"]}
    and all(str(value).isascii() and str(value).isprintable() for value in row["headers"].values())
]


class Then:
    """The clock of a row: its response arrives at the instant that it was recorded at."""

    now_s = 0

    def now_ms(self) -> int:
        return self.now_s * 1_000


def expected_of(row: dict[str, Any]) -> tuple[str, ...] | None:
    if row["expected_hold"] == "none":
        return None
    kind = {"not_a_limit": "other"}.get(row["expected_kind"], row["expected_kind"])
    return row["expected_hold"], kind, row["expected_scope"]


def stated_of(stated: StatedWait | None) -> tuple[str | None, ...] | None:
    return None if stated is None else (stated.ends, stated.kind, stated.scope)


@pytest.mark.parametrize("sdk", ["anthropic", "openai"])
async def test_what_an_sdk_hands_over_reads_as_the_response_that_it_got(sdk: str):
    served = [row for row in ROWS if (row["provider"] == "anthropic") == (sdk == "anthropic")]
    left = list(served)

    def script(_request: WireRequest) -> Answer:
        row = left.pop(0)
        headers = {
            name: [str(each) for each in value] if isinstance(value, list) else str(value)
            for name, value in row["headers"].items()
        }
        return Answer(status=row["status"], headers=headers, body=row["body"])

    clock, wrong = Then(), []
    asked: ModelRequest = request()
    async with ProviderSimulator(script) as simulator:
        providers: dict[tuple[str, str], Any] = {}
        for number, row in enumerate(served, start=1):
            name = row["provider"]
            api = ("responses", "chat")[len(name) % 2]
            if (name, api) not in providers:
                providers[name, api] = (
                    AnthropicProvider(api_key="k", base_url=simulator.base_url, clock=clock)
                    if sdk == "anthropic"
                    else OpenAIProvider(
                        api=api,  # type: ignore[arg-type]
                        api_key="k",
                        base_url=f"{simulator.base_url}/v1",
                        service=name,
                        clock=clock,
                    )
                )
            clock.now_s = row["received_at"]
            with (
                permitted(Permit(number, "ana", "m", "turn")),
                trio.fail_after(60),
                pytest.raises(ProviderError) as caught,
            ):
                await providers[name, api].call(asked, lambda _delta: None)
            stated = caught.value.stated
            due_ms = row["expected_reset_at"] and row["expected_reset_at"] * 1_000
            late = stated is not None and abs((stated.deadline_ms or 0) - (due_ms or 0)) > 1
            if stated_of(stated) != expected_of(row) or (row["expected_hold"] == "until" and late):
                wrong.append((row["id"], expected_of(row), stated))
        for provider in providers.values():
            await provider.aclose()
    assert not wrong
    assert not left
    assert len(served) > 10
