"""Which model an agent asks, once an operator has chosen one: kept beside its specification.

The row of the agent says what was chosen; it wins over the host's specification until it is taken
back, also after a restart. In a process it is this object, which outlives the agent's actors.

Invariants:
    I1  A choice is a row before anything of this process goes by it.
    I2  A turn that lives keeps the model it began with; its next life, and the next turn, have the
        chosen one.

Runs in: the loop thread; written by the runtime, read by the agent's actors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from abeyance.actors.providers.declaration import no_method
from abeyance.actors.providers.port import Provider
from abeyance.storage.store import Store
from abeyance.storage.tables.agents import Chosen

from .accounts import Account
from .errors import InvalidInputError, UnknownProviderError
from .ingress import check_name
from .usage_book import AccountUsage
from .wait_book import Deferral

if TYPE_CHECKING:
    from .turn import TurnSettings

OF_A_MODEL: Final = frozenset({"wait", "unreadable", "quota", "account"})
"""What holds one model, and not the agent whatever it asks."""
EVERY: Final = "*"


class LookAtModel(NamedTuple):
    """Tell an agent: another model was chosen for it."""


class UseAccount(NamedTuple):
    """Tell a gate: the agent's calls are of another credential from now on."""

    account: Account | None
    usage: AccountUsage | None


class ModelReceipt(NamedTuple):
    """What an agent asks from its next turn on. Durable."""

    model: str
    provider: str | None
    """The name under which its provider was added; None: the specification's."""
    was: str
    """The model it asked before."""


class ChosenModel:
    """One agent's."""

    def __init__(
        self, settings: TurnSettings, account: Account | None, usage: AccountUsage | None
    ) -> None:
        self.settings = settings
        self.account = account
        self.usage = usage
        self.is_new = False
        """It is another than the agent was added with."""
        self._told: list[Callable[[ChosenModel], object]] = []

    def tell(self, told: Callable[[ChosenModel], object]) -> None:
        """Have somebody told once the agent goes by a choice. Neither blocks nor raises."""
        self._told.append(told)

    def apply(self) -> None:
        """The agent goes by it."""
        for told in self._told:
            told(self)

    def choose(
        self, settings: TurnSettings, account: Account | None, usage: AccountUsage | None
    ) -> None:
        """Have the agent go by other settings from its next turn on."""
        self.is_new = True
        self.settings, self.account, self.usage = settings, account, usage

    def leaves(self, held: Deferral) -> bool:
        """Whether what holds the turn is of a model that is not asked any more."""
        return held.cause in OF_A_MODEL and held.model not in (EVERY, self.settings.model)


class Providers:
    """The providers that a host added by name, for whoever names one."""

    def __init__(self) -> None:
        self._by_name: dict[str, Provider] = {}

    def add(self, name: str, provider: Provider) -> None:
        """Add one, or put another in its place for those who name it from now on.

        Raises:
            InvalidNameError, InvalidInputError: Names the argument; nothing was done.
        """
        check_name(name, "name")
        if not isinstance(getattr(provider, "carries_injections", None), bool):
            raise InvalidInputError("provider", "must declare carries_injections as True or False")
        if not callable(getattr(provider, "call", None)):
            raise InvalidInputError("provider", "must have an async function `call`")
        wrong = no_method(provider)
        if wrong is not None:
            raise InvalidInputError("provider", f"must have `{wrong}` as a method, or not have it")
        self._by_name[name] = provider

    def find(self, name: str) -> Provider:
        """The provider of a name.

        Raises:
            UnknownProviderError: None was added under it; nothing was done.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UnknownProviderError(
                f"no provider {name!r} was added to this runtime; nothing was done; "
                f"add_provider({name!r}, ...) first",
                provider=name,
            )
        return found


def chosen_of(store: Store, agent: str) -> Chosen | None:
    """What was chosen for an agent and stands."""
    row = store.get("agents", (agent,))
    if row is None or row.record.ended_ms is not None:
        return None
    chosen: Chosen | None = row.record.chosen
    return chosen


def with_choice(
    settings: TurnSettings, chosen: Chosen | None, providers: Providers
) -> TurnSettings:
    """The settings of a specification, with what was chosen over it.

    Raises:
        UnknownProviderError: It names a provider that was not added; nothing was done.
    """
    if chosen is None:
        return settings
    if chosen.provider is None:
        return replace(settings, model=chosen.model)
    return replace(settings, model=chosen.model, provider=providers.find(chosen.provider))
