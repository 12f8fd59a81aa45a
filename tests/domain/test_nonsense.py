"""What a host makes is refused as it is made, by the name of its field: fields × nonsense."""

from __future__ import annotations

import dataclasses
import inspect
import os
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import abeyance.actors
from abeyance.actors import (
    ActorSystem,
    AgentSpec,
    Backoff,
    Budget,
    ChildSpec,
    CompactingContext,
    FallbackChain,
    HostedRuntime,
    HttpApi,
    ModelChoice,
    NeedsApproval,
    Pacing,
    Price,
    Prices,
    Retention,
    Retry,
    SupervisorSpec,
    Tool,
    TrioActor,
    Webhook,
    open_runtime,
)
from abeyance.actors.core import Backoff as RestartBackoff
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.run_workflow import check_workflow
from abeyance.actors.domain.timetable import check_timetable
from abeyance.actors.providers.anthropic import AnthropicProvider
from abeyance.actors.providers.openai import OpenAIProvider
from abeyance.actors.testing import ScriptedProvider

NONSENSE: dict[str, Any] = {
    "none": None,
    "an object": object(),
    "true": True,
    "zero": 0,
    "negative": -1,
    "one": 1,
    "a fraction": 1.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "past every bound": 10**400,
    "a decimal": Decimal("1.5"),
    "a decimal that is none": Decimal("NaN"),
    "bytes": b"bytes",
    "no text": "",
    "text": "text",
    "digits": "5",
    "control characters": "a\x1b[2Jb\nc",
    "half a character": "\ud800",
    "too long": "x" * 2_000_001,
    "objects": [object()],
    "no items": [],
    "objects by number": {1: object()},
    "no keys": {},
    "a class": int,
    "a function": lambda *_: None,
}
"""All of it is refused, but for what a field's entry below says is sense there."""

FUNCTION = {"a class", "a function"}
NUMBERS = {"one", "a fraction"}
TEXTS = {"text", "digits"}
ANY_TEXT = TEXTS | {"no text", "control characters"}


class Made(NamedTuple):
    """What a host makes: with what it is sound, and what else is sense in each of its fields."""

    make: Callable[..., Any]
    sound: dict[str, Any]
    fields: dict[str, set[str]]
    checked: frozenset[str] = frozenset()
    """Parameters that are no business of this grid."""


async def flow(run: Any, params: Any) -> None: ...


class Someone(TrioActor):
    pass


LIMIT = {"one"}
DAYS = {"one", "none"}
PROVIDER: dict[str, set[str]] = {
    "api_key": TEXTS | FUNCTION,
    "base_url": {"none"},
    "byte_idle_s": NUMBERS,
    "first_event_s": NUMBERS,
    "call_s": NUMBERS,
    "clock": {"none"},
    "account": TEXTS | {"none"},
    "context_tokens": {"none", "no keys"},
}
KEY = {"api_key": "key"}
SPEC = {"name": "ana", "provider": ScriptedProvider([]), "model": "m"}
TOOL = {"name": "look", "description": "", "input_schema": {"type": "object"}, "run": print}

MADE: dict[str, Made] = {
    "AgentSpec": Made(
        AgentSpec,
        SPEC,
        {
            "name": TEXTS,
            "provider": set(),
            "model": TEXTS,
            "slot": TEXTS | {"none"},
            "system": ANY_TEXT | FUNCTION | {"none"},
            "tools": {"no items"},
            "rounds_max": LIMIT,
            "output_tokens_max": LIMIT,
            "error_policy": {"none"},
            "provider_hold": {"none"} | FUNCTION,
            "pacing": set(),
            "context": {"none"},
            "budgets": {"no items"},
            "inbox_messages_max": LIMIT,
            "inbox_bytes_max": LIMIT,
            "message_bytes_max": LIMIT,
            "attachment_bytes_max": LIMIT,
            "turns_max": LIMIT | {"none"},
            "tool_threads_max": LIMIT,
        },
    ),
    "Tool": Made(
        Tool,
        TOOL,
        {
            "name": TEXTS,
            "description": ANY_TEXT,
            "input_schema": set(),
            "run": FUNCTION,
            "in_doubt": FUNCTION,
            "time_limit_s": NUMBERS,
            "approve": {"true"},
        },
    ),
    "NeedsApproval": Made(
        NeedsApproval,
        {},
        {"within_s": NUMBERS | {"none"}, "otherwise": set(), "when": FUNCTION | {"none"}},
    ),
    "Budget in tokens": Made(
        Budget,
        {"per": "day", "tokens": 1},
        {
            "per": set(),
            "tokens": LIMIT,
            "cost": {"none"},
            "zone": set(),
            "name": TEXTS | {"none"},
        },
    ),
    "Budget": Made(
        Budget,
        {"per": "day", "cost": Decimal(1)},
        {
            "per": set(),
            "cost": {"a decimal"},
            "tokens": {"none"},
            "zone": set(),
            "name": TEXTS | {"none"},
        },
    ),
    "Price": Made(
        Price,
        {"input": Decimal(1), "output": Decimal(1)},
        {
            "input": {"a decimal"},
            "output": {"a decimal"},
            "cache_read": {"a decimal", "none"},
            "cache_write": {"a decimal", "none"},
        },
    ),
    "Prices": Made(
        Prices, {"currency": "EUR", "table": {}}, {"currency": TEXTS, "table": {"no keys"}}
    ),
    "Retention": Made(Retention, {}, {each.name: DAYS for each in dataclasses.fields(Retention)}),
    "HttpApi": Made(
        HttpApi,
        {},
        {
            "host": set(),
            "port": {"zero", "one"},
            "admin_token": {"none"},
            "read_token": {"none"},
            "names": {"no items"},
        },
    ),
    "Webhook": Made(
        Webhook,
        {"url": "https://example.org/x"},
        {"url": set(), "headers": {"no keys"}, "timeout_s": NUMBERS},
    ),
    "Pacing": Made(
        Pacing,
        {},
        {"default_s": NUMBERS | {"zero"}, "jitter_s": NUMBERS | {"zero"}, "source": set()},
    ),
    "Backoff": Made(
        Backoff,
        {},
        {
            "attempts_max": LIMIT,
            "initial_s": NUMBERS | {"zero"},
            "max_s": NUMBERS | {"zero"},
            "jitter_s": NUMBERS | {"zero"},
            "source": {"none"},
        },
    ),
    "Retry": Made(Retry, {}, {"after_s": NUMBERS | {"zero", "inf", "past every bound"}}),
    "CompactingContext": Made(
        CompactingContext,
        {},
        {
            "past_chars": set(),
            "keep_chars": {"zero", "one"},
            "at_once_chars": set(),
            "model": TEXTS | {"none"},
            "summary_tokens_max": set(),
            "instructions": TEXTS | {"control characters"},
        },
    ),
    "ChildSpec": Made(
        ChildSpec,
        {"id": "x", "actor_class": Someone, "restart": "transient"},
        {
            "id": TEXTS | {"half a character", "too long"},
            "actor_class": set(),
            "args": FUNCTION,
            "kwargs": {"no keys"},
            "restart": set(),
            "shutdown_s": NUMBERS | {"zero", "inf", "past every bound"},
            "name": TEXTS | {"half a character", "too long", "none"},
            "register": {"true"},
            "directives": set(),
            "significant": {"true"},
        },
    ),
    "SupervisorSpec": Made(
        SupervisorSpec,
        {"id": "x"},
        {
            "id": TEXTS | {"half a character", "too long"},
            "children": set(),
            "strategy": set(),
            "intensity": {"zero", "one", "past every bound"},
            "period_s": NUMBERS | {"inf", "past every bound"},
            "backoff": set(),
            "on_exhausted": set(),
            "on_parked": FUNCTION | {"none"},
            "directives": set(),
            "auto_shutdown": set(),
        },
    ),
    "core.Backoff": Made(
        RestartBackoff,
        {},
        {
            "initial_s": NUMBERS | {"zero"},
            "max_s": NUMBERS | {"zero"},
            "factor": NUMBERS,
            "jitter": {"zero", "one"},
            "reset_after_s": NUMBERS | {"none", "inf", "past every bound"},
        },
    ),
    "AnthropicProvider": Made(AnthropicProvider, KEY, PROVIDER),
    "OpenAIProvider": Made(
        OpenAIProvider,
        KEY,
        PROVIDER | {"api": set(), "service": TEXTS, "output_limit": set()},
    ),
    "ModelChoice": Made(
        ModelChoice, {"provider": "p", "model": "m"}, {"provider": TEXTS, "model": TEXTS}
    ),
    "FallbackChain": Made(
        FallbackChain,
        {"choices": [ModelChoice("p", "m")]},
        {"choices": set(), "exhausted": {"no items"}},
    ),
    "a workflow": Made(
        check_workflow,
        {
            "name": "w",
            "function": flow,
            "version": 1,
            "finalisers": (),
            "buffer_s": 1,
            "fallbacks": (),
        },
        {
            "name": TEXTS,
            "function": set(),
            "version": LIMIT,
            "finalisers": {"no items"},
            "buffer_s": NUMBERS | {"zero"},
            "fallbacks": {"no items"},
        },
    ),
    "every so often": Made(
        check_timetable,
        {"every": 60, "cron": None, "zone": None, "now_ms": 0},
        {"every": NUMBERS, "cron": {"none"}, "zone": {"none"}},
        frozenset({"now_ms"}),
    ),
    "by an expression": Made(
        check_timetable,
        {"every": None, "cron": "* * * * *", "zone": "UTC", "now_ms": 0},
        {"every": {"none"}, "cron": set(), "zone": {"none"}},
        frozenset({"now_ms"}),
    ),
    "ActorSystem": Made(
        ActorSystem,
        {},
        {
            "name": TEXTS | ANY_TEXT | {"half a character", "too long"},
            "asks": {"none"},
            "clock": {"none"},
            "ask_timeout_s": NUMBERS | {"none", "zero", "inf", "past every bound"},
            "debug": {"true"},
            "seed": {"none", "zero", "one", "negative", "past every bound"},
            "on_dead_letter": FUNCTION | {"none"},
            "on_quarantine": FUNCTION | {"none"},
            "on_event": FUNCTION | {"none"},
            "directives": set(),
            "trace": {"true"},
        },
        frozenset({"faults"}),
    ),
}


def fit(made: Made, field: str, name: str) -> str | None:
    """What is wrong with how a value was taken or refused; None where nothing is."""
    is_sense = name in made.fields[field]
    try:
        made.make(**made.sound | {field: NONSENSE[name]})
    except (InvalidInputError, TypeError, ValueError) as error:
        if is_sense:
            return f"{name}: refused, {error!s:.100}"
        if isinstance(error, InvalidInputError) and not error.field.startswith(field):
            # Of two fields that need one another either may be named, if the other is, too.
            return None if f"`{field}`" in str(error) else f"{name}: refused by {error.field}"
        if field not in str(error):
            return f"{name}: its field is not named, {error!s:.100}"
        return f"{name}: told at length, {len(str(error))}" if len(str(error)) > 600 else None
    except Exception as error:
        return f"{name}: {error!r:.100}"
    return None if is_sense else f"{name}: taken"


@pytest.mark.parametrize(
    ("made", "field"), [(made, field) for made, of in MADE.items() for field in of.fields]
)
def test_nonsense_is_refused_as_it_is_made_by_the_name_of_its_field(
    made: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    of = MADE[made]
    assert [problem for name in NONSENSE if (problem := fit(of, field, name)) is not None] == []


@pytest.mark.parametrize("made", MADE)
def test_every_field_is_in_the_grid(made: str) -> None:
    of = MADE[made]
    taken = {
        each.name
        for each in inspect.signature(of.make).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    assert taken - of.checked == set(of.fields)


TOLD = {
    "AgentStatus", "Alert", "ApprovalRow", "ArchivedMessage", "CallFailure", "GiveUp",
    "ImportRepair", "ImportReport", "ImportedMessage", "InboxRow", "OutboxBehind", "OutboxReply",
    "OutboxStatus", "RunReceipt", "RunStatus", "RunStep", "RunStepped", "RuntimeStatus",
    "ScheduleOccurrence", "ScheduleReceipt", "ScheduleStatus", "StreamDelta", "StreamSkipped",
    "StreamStored", "StreamSuperseded", "Summary", "TranscriptMessage", "TurnInfo", "UsageLine",
    "UsageReport", "WaitCard",
}  # fmt: skip
"""What the runtime makes, for a host to read."""
SENT = {"Draft"}
"""Messages: `send_many` refuses them by their place, and hands all of them back."""


def test_every_public_data_class_is_in_the_grid_or_is_the_runtimes_to_make() -> None:
    public = {
        name
        for name in abeyance.actors.__all__
        if dataclasses.is_dataclass(getattr(abeyance.actors, name))
    }
    assert public - {name.split()[0] for name in MADE} == TOLD | SENT


OPTIONS: dict[str, set[str]] = {
    "directory": set(),
    "clock": {"none"},
    "control": {"true"},
    "system": {"none"},
    "faults": {"none"},
    "webhook": {"none"},
    "alert_sinks": {"no items"},
    "trace": {"true"},
    "account_waits": {"true"},
    "admin": FUNCTION | {"none"},
    "prices": {"none"},
    "budgets": {"no items"},
    "retention": {"none"},
    "http": {"none"},
}


@pytest.mark.parametrize("option", OPTIONS)
async def test_nonsense_among_a_runtimes_options_is_refused_before_anything_is_opened(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(OPTIONS) == set(inspect.signature(open_runtime).parameters)
    monkeypatch.chdir(tmp_path)
    skipped = TEXTS | {"control characters"} if option == "directory" else OPTIONS[option]
    for name in NONSENSE.keys() - skipped:
        options = {"directory": tmp_path / "state", option: NONSENSE[name]}
        with pytest.raises(InvalidInputError) as refused:
            async with open_runtime(**options):
                pytest.fail(f"{name} was taken")
        assert refused.value.field.startswith(option), name
        assert os.listdir(tmp_path) == [], name


@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - {"system"} | {"trio_clock"}))
def test_nonsense_among_a_hosted_runtimes_options_is_refused_as_it_is_made(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {*OPTIONS, "trio_clock"} - {"system"}
    assert taken == set(inspect.signature(HostedRuntime).parameters)
    monkeypatch.chdir(tmp_path)
    skipped = OPTIONS.get(option, {"none"})
    skipped = TEXTS | {"control characters"} if option == "directory" else skipped
    for name in NONSENSE.keys() - skipped:
        options = {"directory": tmp_path / "state", option: NONSENSE[name]}
        with pytest.raises(InvalidInputError) as refused:
            HostedRuntime(**options)
        assert refused.value.field.startswith(option), name
    assert os.listdir(tmp_path) == []


def test_a_random_number_generator_is_taken_where_jitter_comes_from_one() -> None:
    source = random.Random(7)
    assert Pacing(source=source).source is source
