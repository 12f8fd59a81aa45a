"""Write docs/errors.md from the error classes themselves: `./dev docs --write`.

The one thing kept here is which family an error belongs to: what is still true when it is raised
and who can do something about it. A class without a family, or a page that no longer equals what
this prints, fails a test.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import abeyance.actors
import abeyance.storage

PAGE = Path(__file__).with_name("errors.md")


class Family(NamedTuple):
    title: str
    happened: str
    acts: str
    members: frozenset[str]


def _family(title: str, happened: str, acts: str, members: str) -> Family:
    return Family(title, happened, acts, frozenset(members.split()))


FAMILIES = (
    _family("Bases", "", "", "AbeyanceError StorageError"),
    _family(
        "Refused",
        "no; what was handed over comes back on the error",
        "the caller",
        """
        SummaryRefusedError UnknownProviderError UnknownApprovalError ApprovalDecidedError
        UnknownOutboxError OutboxBusyError OutboxLostError
        ActorDeadError ActorUnavailableError MailboxFullError MessageCoalescedError AskCycleError StopCycleError UndeclaredAskError WouldDeadlockError
        FutureSettledError NameTakenError
        UnknownEntryError ReplaysExceededError MessageNotKeptError
        AgentExistsError AgentOwnedElsewhereError InboxFullError MessageTooLargeError BatchTooLargeError MessageConflictError MessageReadError
        NotPermittedError
        UnknownRunError UnknownWorkflowError UnknownScheduleError RunOpenError RunStateError RunOwnedElsewhereError RunsParkedError TurnFailedError SessionLostError RunEndedError StepFailedError SystemPromptError
        RuntimeClosedError
        QuiescedError ResumedError
        RewindRefusedError EditRefusedError UnknownMessageError CapacityExhaustedError AgentParkedError AgentEndedError AdmissionClosedError RunExhaustedError RunFailedError RunInterruptedError UnknownAgentError LeaseLostError OwnershipLostError
        AlreadyOpenError MissingStoreError NoFileLocksError OwnedElsewhereError ReaderSlotsFullError StoreBusyError StoreInUseError
        StoreClosedError
        ControlError HttpAddressError NoHostError
        ScriptEndedError ProviderNotInstalledError
        """,
    ),
    _family(
        "Too late",
        "unknown at the far side; a late reply is dropped",
        "the caller",
        "AskTimeoutError CompactionAbandonedError",
    ),
    _family(
        "Not stored",
        "no; the store is unchanged, and what was acknowledged before stands",
        "the caller or an operator",
        """
        NotStoredError CommitFailedError DiskFullError LockTimeoutError MapLimitError
        ReadOnlyStoreError RunContestedError ScheduleContestedError ApprovalContestedError StoreIOError StoreLostError
        """,
    ),
    _family(
        "Ambiguous",
        "unknown until it is reconciled",
        "the runtime reconciles what it asked itself; a caller looks, or asks again what may happen twice",
        "OutcomeUnknownError AlertNotDeliveredError HostSilentError ReleaseContestedError RefusedByHostError",
    ),
    _family(
        "Unreadable",
        "no; earlier data stands",
        "an operator; the domain fails closed for exactly what cannot be read",
        """
        DamagedStoreError ForeignDirectoryError NewerFormatError UnreadableRecordError
        RevisionPrunedError
        """,
    ),
    _family(
        "Supervision",
        "the child ended; siblings were stopped in order",
        "the parent",
        "ActorCrashError InjectedCrashError ActorKilledError ChildStartError IntensityExceededError LongAwaitError",
    ),
    _family(
        "Provider",
        "the call was refused, failed, or was never made",
        "the gate or the run",
        "ProviderError ContextTooLongError PermitError HeldError",
    ),
    _family(
        "Caller's mistake",
        "no; raised before any effect",
        "the caller",
        """
        InvalidInputError InvalidOptionError InvalidRecordError InvalidRequestError ProviderIncompleteError
        MalformedRequestError InvalidFieldError InvalidConfigError
        """,
    ),
    _family("Demo", "nothing outside the demo's own state was touched", "who runs it", "DemoError"),
)

INTERNAL = frozenset(
    {
        "EventTooLongError",
        "HttpRefusedError",
        "StatedError",
        "UnaddressedError",
        "UnreadableReplyError",
        "UnknownCrashpointError",
    }
)
"""Never leave the module group that raises them: an adapter or a command turns them into an error or
a line of its own, and `UnknownCrashpointError` is for whoever arms a crash point."""

_HEAD = """\
# Errors

Every error that Abeyance raises, sorted by what is still true when it is. Each has a stable `code` for programs, attributes named in its docstring, and a text that says what failed, what is still true and what to do. All survive pickling. Wrong types are a plain `TypeError`, raised before any effect.

This page is written by `./dev docs --write` from the classes; a test compares the two.
"""


def modules() -> list[ModuleType]:
    """Every module of both rooms, imported."""
    found: list[ModuleType] = []
    for room in (abeyance.actors, abeyance.storage):
        found.append(room)
        below = pkgutil.walk_packages(room.__path__, room.__name__ + ".")
        names = [info.name for info in below if not info.name.endswith("__main__")]
        found.extend(importlib.import_module(name) for name in names)
    return found


def errors() -> list[type[BaseException]]:
    """Every public exception class that is defined in one of the rooms."""
    found = {
        value
        for module in modules()
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and name not in INTERNAL
    }
    return sorted(found, key=lambda error: error.__name__)


def family_of(error: type[BaseException]) -> Family | None:
    """The family that names this class, else that of its nearest base which one names."""
    for base in error.__mro__:
        for family in FAMILIES:
            if base.__name__ in family.members and (base is error or family.title != "Bases"):
                return family
    return None


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    listed = errors()
    for family in FAMILIES:
        members = [error for error in listed if family_of(error) is family]
        if not members:
            continue
        parts.append(f"\n## {family.title}\n")
        if family.happened:
            parts.append(f"\nDid it happen? {family.happened[0].upper()}{family.happened[1:]}. ")
            parts.append(f"Who can act: {family.acts}.\n")
        parts.append("\n| error | code | raised in | what it says |\n|---|---|---|---|\n")
        for error in members:
            says = (inspect.getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
            parts.append(
                f"| `{error.__name__}` | `{getattr(error, 'code', '')}` "
                f"| `{error.__module__}` | {says.replace('|', chr(92) + '|')} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
