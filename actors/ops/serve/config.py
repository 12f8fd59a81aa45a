"""The file that declares a host: its providers and its agents. Pure but for reading it.

Invariants:
    I1  Every key that is wrong is named by its path, and nothing was begun.
    I2  No key of an account stands in the file: it names the environment variable that has it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from abeyance.actors.domain.agent_limits import BOUNDS, DEFAULT_LIMITS
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.spec import AgentSpec
from abeyance.actors.domain.tools import Tool
from abeyance.actors.providers.options import InvalidOptionError
from abeyance.actors.providers.port import Provider

from ..errors import InvalidConfigError
from ..http.options import HttpApi
from ..webhook import check_webhook

BYTES_MAX: Final = 1_000_000
"""A file that is longer declares no host."""

_KEY: Final = re.compile(
    r"Object (?:contains )?(?P<how>unknown|missing required) field `(?P<key>.*)`"
)
"""What the schema says of a key that is there, or is not."""

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Name: TypeAlias = Annotated[str, Meta(pattern=r"\S")]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
_Wait: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]


class _Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class _Sdk(_Config, frozen=True):
    account: _Name | None = None
    byte_idle_s: _Seconds = 120.0
    first_event_s: _Seconds = 900.0
    call_s: _Seconds = 3_600.0

    def common(self) -> dict[str, Any]:
        return {
            "account": self.account,
            "byte_idle_s": self.byte_idle_s,
            "first_event_s": self.first_event_s,
            "call_s": self.call_s,
        }


class AnthropicConfig(_Sdk, frozen=True, tag="anthropic"):
    """`abeyance.actors.providers.AnthropicProvider`."""

    api_key_env: _Text = "ANTHROPIC_API_KEY"
    base_url: _Text | None = None

    def make(self, environment: Mapping[str, str]) -> Provider:
        from abeyance.actors.providers import AnthropicProvider

        return AnthropicProvider(
            api_key=_key(self.api_key_env, environment),
            base_url=self.base_url,
            **self.common(),
        )


class OpenAIConfig(_Sdk, frozen=True, tag="openai"):
    """`abeyance.actors.providers.OpenAIProvider`."""

    api_key_env: _Text = "OPENAI_API_KEY"
    base_url: _Text | None = None
    api: Literal["responses", "chat"] = "responses"
    service: _Text = "openai"
    output_limit: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"

    def make(self, environment: Mapping[str, str]) -> Provider:
        from abeyance.actors.providers import OpenAIProvider

        return OpenAIProvider(
            api=self.api,
            api_key=_key(self.api_key_env, environment),
            base_url=self.base_url,
            service=self.service,
            output_limit=self.output_limit,
            **self.common(),
        )


class EchoConfig(_Config, frozen=True, tag="echo"):
    """Answers with what it was told. No network, no key, no SDK."""

    first_wait_s: _Wait | None = None
    """For rehearsals: the first call after a start is refused, to be made again in so long."""

    def make(self, environment: Mapping[str, str]) -> Provider:
        from abeyance.actors.testing import ScriptedProvider, fail, reply
        from abeyance.actors.testing.scripted import given_text

        if self.first_wait_s is None:
            return ScriptedProvider.echo()
        refusals = [fail(429, retry_after=self.first_wait_s)]
        return ScriptedProvider(
            lambda request: refusals.pop() if refusals else reply(given_text(request))
        )


class HttpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`abeyance.actors.HttpApi`; its tokens stand in the environment."""

    host: _Text = "127.0.0.1"
    port: int = 8_321
    admin_token_env: _Text | None = None
    read_token_env: _Text | None = None
    names: tuple[_Text, ...] = ()

    def make(self, environment: Mapping[str, str]) -> HttpApi:
        admin = _variable("http.admin_token_env", self.admin_token_env, environment)
        read = _variable("http.read_token_env", self.read_token_env, environment)
        try:
            return HttpApi(self.host, self.port, admin, read, self.names)
        except InvalidInputError as error:
            # What is wrong with a token is said of the key that names its variable.
            field = f"{error.field}_env" if error.field.endswith("_token") else error.field
            raise InvalidConfigError(f"http.{field}", error.problem) from error


ProviderConfig: TypeAlias = AnthropicConfig | OpenAIConfig | EchoConfig


class AgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent. What is left out is as `AgentSpec` has it."""

    provider: _Text
    model: _Text
    system: str | None = None
    slot: _Text | None = None
    tools: tuple[_Text, ...] = ()
    """Each a `Tool`, as `package.module:name`; the working directory is looked in first."""
    rounds_max: _Count = 100
    output_tokens_max: _Count = 4_096
    inbox_messages_max: _Count = DEFAULT_LIMITS.inbox_messages_max
    inbox_bytes_max: _Count = DEFAULT_LIMITS.inbox_bytes_max
    message_bytes_max: _Count = DEFAULT_LIMITS.message_bytes_max
    attachment_bytes_max: _Count = DEFAULT_LIMITS.attachment_bytes_max
    turns_max: _Count | None = None
    tool_threads_max: _Count = DEFAULT_LIMITS.tool_threads_max


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: _Text
    providers: dict[str, Any]
    agents: dict[str, Any]
    account_waits: bool = False
    webhook_env: _Text | None = None
    http: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """A host as a file declares it.

    Attributes:
        state: The state directory; a relative one is beside the file.
        agents: In the file's order.
        providers: One for each that the file names, used by the agents that name it.
    """

    state: Path
    agents: tuple[AgentSpec, ...]
    providers: tuple[Provider, ...]
    account_waits: bool = False
    webhook: str | None = None
    http: HttpApi | None = None


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> ServeConfig:
    """Read and check a file, and make its providers, which does no I/O.

    Raises:
        InvalidConfigError: Names the key; nothing was begun.
        ProviderNotInstalledError: A provider's SDK is an extra that is not installed.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise InvalidConfigError(path.name, f"is longer than {BYTES_MAX:,} bytes")
    try:
        parsed = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConfigError(path.name, f"is no TOML ({error})") from error
    file_ = _converted(parsed, _File, "")
    if not file_.agents:
        raise InvalidConfigError("agents", "declares nobody")
    providers = {
        name: _provider(name, value, environment) for name, value in file_.providers.items()
    }
    agents = tuple(_agent(name, value, providers) for name, value in file_.agents.items())
    return ServeConfig(
        state=path.parent / file_.state,
        agents=agents,
        providers=tuple(providers.values()),
        account_waits=file_.account_waits,
        webhook=_webhook(file_.webhook_env, environment),
        http=_http(file_.http, environment),
    )


def _webhook(name: str | None, environment: Mapping[str, str]) -> str | None:
    url = _variable("webhook_env", name, environment)
    try:
        if url is not None:
            check_webhook(url)
    except InvalidInputError as error:
        raise InvalidConfigError("webhook_env", error.problem) from None
    return url


def _http(value: Any, environment: Mapping[str, str]) -> HttpApi | None:
    if value is None:
        return None
    config: HttpConfig = _converted(value, HttpConfig, "http")
    return config.make(environment)


def _provider(name: str, value: Any, environment: Mapping[str, str]) -> Provider:
    place = f"providers.{name}"
    config: ProviderConfig = _converted(value, ProviderConfig, place)
    try:
        return config.make(environment)
    except InvalidConfigError as error:
        raise error.within(place) from None
    except InvalidOptionError as error:
        # What is wrong with a key is said of the one that names its variable.
        field = f"{error.field}_env" if error.field == "api_key" else error.field
        raise InvalidConfigError(f"{place}.{field}", error.problem) from error


def _agent(name: str, value: Any, providers: Mapping[str, Provider]) -> AgentSpec:
    place = f"agents.{name}"
    config = _converted(value, AgentConfig, place)
    provider = providers.get(config.provider)
    if provider is None:
        known = ", ".join(sorted(providers)) or "none"
        problem = f"no provider {config.provider!r} is declared; there are: {known}"
        raise InvalidConfigError(f"{place}.provider", problem)
    tools = [_tool(f"{place}.tools", text) for text in config.tools]
    try:
        return AgentSpec(
            name=name,
            provider=provider,
            model=config.model,
            system=config.system,
            slot=config.slot,
            tools=tools,
            rounds_max=config.rounds_max,
            output_tokens_max=config.output_tokens_max,
            **{name: getattr(config, name) for name in BOUNDS},
        )
    except InvalidInputError as error:
        raise InvalidConfigError(f"{place}.{error.field}", error.problem) from error


def _tool(field: str, text: str) -> Tool:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise InvalidConfigError(field, f"{text!r} is not of the form package.module:name")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigError(field, f"{text!r} cannot be imported ({error})") from error
    except Exception as error:
        problem = f"{text!r} cannot be imported ({type(error).__name__}: {error})"
        raise InvalidConfigError(field, problem) from error
    if not isinstance(found, Tool):
        raise InvalidConfigError(field, f"{text!r} is no Tool, but {type(found).__name__}")
    return found


def _key(variable: str, environment: Mapping[str, str]) -> str:
    found = _variable("api_key_env", variable, environment)
    assert found is not None
    return found


def _variable(field: str, name: str | None, environment: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    value = environment.get(name)
    if not value:
        raise InvalidConfigError(field, f"the environment has no {name}")
    return value


def _converted(value: Any, kind: Any, place: str) -> Any:
    """A table as its schema has it, or the refusal of the key that is wrong."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        keys = path.rstrip("`").lstrip(".")
        named = _KEY.fullmatch(problem)
        field = ".".join(part for part in (place, keys, named["key"] if named else "") if part)
        if named:
            problem = "is missing" if named["how"] == "missing required" else "is no key here"
        raise InvalidConfigError(field or "the file", problem[:1].lower() + problem[1:]) from error
