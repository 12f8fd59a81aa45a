"""Reads a queue of deferred messages that another system wrote, and repairs what can be: pure.

Each entry is read by itself. What cannot be told of it any more (for whom it is, who said it, what)
drops it; what can be mended is mended; what this store does not take is refused and stays in the
file. Everything but a sound entry is told of, by its place, its id and its participant.

Invariants:
    I1  The same file gives the same ids, so that reading it again accepts nothing twice.
    I2  Entries with a valid number are in its order, all others behind them in the file's.
    I3  One schema: what is let through here is what `send` takes.

Any thread.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from abeyance.storage.tables.fields import INSTANT_MS_MAX

from .drafts import Draft, read_message
from .errors import InvalidInputError
from .ingress import check_name, clean_text
from .slot_messages import Accept

FORMAT: Final = "abeyance-deferred"
VERSION: Final = 1
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
ENTRIES_MAX: Final = 100_000
NUMBER_MAX: Final = 2**53 - 1
"""The largest number that every system which may have written the file counts exactly."""
SHOWN_CHARS_MAX: Final = 200
PROBLEM_CHARS_MAX: Final = 300

Source: TypeAlias = str | os.PathLike[str] | IO[bytes] | IO[str]
RepairKind: TypeAlias = Literal[
    "dropped", "refused", "id", "number", "renumbered", "channel", "at_ms", "wake"
]


@dataclass(frozen=True, slots=True)
class ImportRepair:
    """What was done about an entry that is not sound.

    Attributes:
        kind: `dropped`: it is not imported, for it cannot be told what it was. `refused`: it is not
            imported, for this store does not take it; correct it, and import again. Else the field
            that was mended; `renumbered` is of the whole file.
        place: Where in the file, from 0; None where it is of the whole.
        id: As it is in the file, or as it was made; None where it is none.
        participant: As it is in the file; of one that is not text its type.
        text: What was wrong and what was done, on one line.
    """

    kind: RepairKind
    place: int | None
    id: str | None
    participant: str | None
    text: str


@dataclass(frozen=True, slots=True)
class ImportedEntry:
    """An entry that can be accepted.

    Attributes:
        place: Where in the file, from 0.
        number: Its number once invalid ones are mended; entries are in this order.
        accept: What its agent's slot is asked.
    """

    place: int
    number: int
    accept: Accept


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """A file as it was read."""

    entries: tuple[ImportedEntry, ...]
    repairs: tuple[ImportRepair, ...]
    total: int


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message of a file that is accepted now, or was before.

    Attributes:
        agent: Whose.
        place: Where in the file, from 0.
        number: Its number in the file, once invalid ones are mended.
        id: Its id here.
        seq: The inbox's number of it; None in a dry run.
    """

    agent: str
    place: int
    number: int
    id: str
    seq: int | None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of a file's entries.

    Attributes:
        total: How many it holds.
        messages: Those that were accepted, now or by an earlier import, in their order; in a dry
            run those that would be.
        repairs: What is not sound, in the file's order: dropped, refused, mended.
        dry_run: Whether nothing was accepted.
    """

    total: int
    messages: tuple[ImportedMessage, ...]
    repairs: tuple[ImportRepair, ...]
    dry_run: bool

    @property
    def refused(self) -> int:
        """How many entries are only in the file."""
        return sum(repair.kind == "refused" for repair in self.repairs)

    @property
    def dropped(self) -> int:
        """How many entries are gone."""
        return sum(repair.kind == "dropped" for repair in self.repairs)


def plan_import(
    source: Source, agent: str | None, now_ms: int, *, wake: bool, dry_run: bool
) -> ImportPlan:
    """Read a file and check what it is read with. Blocking; changes nothing.

    Raises:
        InvalidInputError, InvalidNameError: Names the argument or the place in the file.
    """
    if agent is not None:
        check_name(agent, "agent")
    for name, value in (("wake", wake), ("dry_run", dry_run)):
        if not isinstance(value, bool):
            raise InvalidInputError(name, f"must be True or False, not {type(value).__name__}")
    return read_import(read_source(source), agent=agent, wake=wake, now_ms=now_ms)


def report_dry(plan: ImportPlan) -> ImportReport:
    """What an import would come to, as far as the file tells."""
    messages = tuple(imported(entry, None) for entry in plan.entries)
    return ImportReport(plan.total, messages, plan.repairs, True)


def imported(entry: ImportedEntry, seq: int | None) -> ImportedMessage:
    return ImportedMessage(entry.accept.agent, entry.place, entry.number, entry.accept.message, seq)


def read_source(source: Source) -> bytes:
    """The bytes of a file or a stream; blocking.

    Raises:
        InvalidInputError: It is neither, cannot be read, or is over 256 MiB.
    """
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise InvalidInputError("source", "must name a file; it is empty")
        try:
            with Path(source).open("rb") as file:
                raw: object = file.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidInputError("source", f"cannot be read ({why})") from None
    elif callable(getattr(source, "read", None)):
        raw = source.read(FILE_BYTES_MAX + 1)
    else:
        kind = type(source).__name__
        raise InvalidInputError("source", f"must be a path or an open file, not {kind}")
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    if not isinstance(raw, bytes):
        raise InvalidInputError("source", f"must read as bytes or text, not {type(raw).__name__}")
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidInputError("source", f"must be at most {FILE_BYTES_MAX:,} bytes")
    return raw


def read_import(raw: bytes, *, agent: str | None, wake: bool, now_ms: int) -> ImportPlan:
    """Read a file's entries in the order in which they are to be accepted.

    Args:
        agent: For whom entries are that name no target; None: such a file is refused.
        wake: Whether entries that do not say ask for a turn.
        now_ms: When entries were accepted that do not say, in epoch milliseconds.
    Raises:
        InvalidInputError: It is no such file, or one of a later version; names the place.
    """
    entries = _entries(raw)
    reading = _Reading(agent, _Instant(now_ms), wake=wake)
    for place, entry in enumerate(entries):
        reading.take(place, entry)
    return ImportPlan(reading.numbered(), tuple(reading.repairs), len(entries))


def _entries(raw: bytes) -> list[Any]:
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        why = clean_text(str(error) or type(error).__name__, PROBLEM_CHARS_MAX)
        raise InvalidInputError("source", f"must be one JSON document ({why})") from None
    if not isinstance(document, dict):
        raise InvalidInputError("source", f"must be a JSON object, not {_kind(document)}")
    if document.get("format") != FORMAT:
        raise InvalidInputError("format", f"must be {FORMAT!r}, not {_shown(document, 'format')}")
    version = document.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise InvalidInputError("version", f"must be {VERSION}, not {_shown(document, 'version')}")
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise InvalidInputError("entries", f"must be a list, not {_kind(entries)}")
    if len(entries) > ENTRIES_MAX:
        raise InvalidInputError("entries", f"must be at most {ENTRIES_MAX:,}, not {len(entries):,}")
    return entries


class _Instant:
    """A clock that stands: the loop's is not for other threads."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


class _Reading:
    """The entries of one file so far."""

    def __init__(self, agent: str | None, clock: _Instant, *, wake: bool) -> None:
        self._agent = agent
        self._clock = clock
        self._wake = wake
        self.repairs: list[ImportRepair] = []
        self._sound: list[tuple[int, Any, Accept]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._made: dict[str, int] = {}

    def take(self, place: int, entry: object) -> None:
        """Read one entry, or say why it is not imported."""
        problem = _malformed(entry)
        if problem is not None:
            self._say("dropped", place, entry, problem)
            return
        assert isinstance(entry, dict)
        target = entry.get("target", self._agent)
        if target is None:
            raise InvalidInputError(
                "agent", f"must be named, for entries[{place}] has no target of its own"
            )
        id_ = self._id_of(place, entry)
        earlier = self._ids.get((target, id_))
        if earlier is not None:
            self._say("dropped", place, entry, f"entries[{earlier}] has this id already")
            return
        mend = self._mending(place, entry, id_)
        draft = Draft(
            entry["content"],
            author=entry["participant"],
            id=id_,
            wake=mend("wake", _flag, self._wake),
            channel=mend("channel", _name, None),
        )
        at_ms = mend("at_ms", _instant, None)
        try:
            check_name(target, "target")
            accept = read_message(self._clock, target, draft)
        except InvalidInputError as error:
            field = error.field.replace("message", "content", 1).replace("author", "participant")
            self._say("refused", place, entry, f"{field} {error.problem}", id_)
            return
        self._ids[target, id_] = place
        if at_ms is not None:
            accept = replace(accept, at_ms=at_ms)
        self._sound.append((place, entry, accept))

    def numbered(self) -> tuple[ImportedEntry, ...]:
        """The sound entries in their order, each with its number."""
        valid = [item for item in self._sound if _is_number(item[1].get("seq"))]
        others = [item for item in self._sound if not _is_number(item[1].get("seq"))]
        valid.sort(key=lambda item: item[1]["seq"])
        numbers = [item[1]["seq"] for item in valid]
        last = numbers[-1] if numbers else 0
        if last + len(others) > NUMBER_MAX:
            text = f"numbers behind {last} are not exact; all entries are numbered from 1 on"
            self.repairs.append(ImportRepair("renumbered", None, None, None, text))
            numbers = list(range(1, len(valid) + 1))
            last = len(valid)
        numbers += range(last + 1, last + 1 + len(others))
        ordered = [*valid, *others]
        for (place, entry, accept), number in zip(ordered, numbers, strict=True):
            if "seq" in entry and not _is_number(entry["seq"]):
                text = f"seq {_shown(entry, 'seq')} is no number from 1 to 2^53-1; it is {number}"
                self._say("number", place, entry, text, accept.message)
        return tuple(
            ImportedEntry(place, number, accept)
            for (place, _, accept), number in zip(ordered, numbers, strict=True)
        )

    def _id_of(self, place: int, entry: dict[str, Any]) -> str:
        given = entry.get("id")
        try:
            return check_name(given, "id", reserved=False)
        except InvalidInputError as error:
            made = _made_id(entry)
            count = self._made[made] = self._made.get(made, 0) + 1
            made = made if count == 1 else f"{made}-{count}"
            why = "has no id" if "id" not in entry else f"its id {error.problem}"
            self._say("id", place, entry, f"{why}; it is {made}", made)
            return made

    def _mending(
        self, place: int, entry: dict[str, Any], id_: str
    ) -> Callable[[str, Callable[[Any], bool], Any], Any]:
        def mend(field: Any, is_sound: Callable[[Any], bool], default: Any) -> Any:
            value = entry.get(field)
            if value is None:
                return default
            if is_sound(value):
                return value
            text = f"{field} {_shown(entry, field)} is none; it is left out"
            self._say(field, place, entry, text, id_)
            return default

        return mend

    def _say(
        self, kind: RepairKind, place: int, entry: object, text: str, id_: str | None = None
    ) -> None:
        fields = entry if isinstance(entry, dict) else {}
        given, participant = fields.get("id"), fields.get("participant")
        if id_ is None and isinstance(given, str):
            id_ = given
        if participant is not None and not isinstance(participant, str):
            participant = _kind(participant)
        self.repairs.append(
            ImportRepair(
                kind,
                place,
                None if id_ is None else clean_text(id_, SHOWN_CHARS_MAX),
                None if participant is None else clean_text(participant, SHOWN_CHARS_MAX),
                clean_text(text, PROBLEM_CHARS_MAX),
            )
        )


def _malformed(entry: object) -> str | None:
    """Why it cannot be told what an entry was; None where it can."""
    if not isinstance(entry, dict):
        return f"an entry must be an object, not {_kind(entry)}"
    if not isinstance(entry.get("participant"), str):
        return f"participant must be text, not {_kind(entry.get('participant'))}"
    content = entry.get("content")
    if not isinstance(content, list):
        return f"content must be a list, not {_kind(content)}"
    for place, block in enumerate(content):
        if not isinstance(block, Mapping):
            return f"content[{place}] must be an object, not {_kind(block)}"
    if "target" in entry and not (isinstance(entry["target"], str) and entry["target"]):
        return f"target must be an agent's name, not {_shown(entry, 'target')}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= NUMBER_MAX


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _name(value: object) -> bool:
    try:
        check_name(value, "channel", reserved=False)
    except InvalidInputError:
        return False
    return True


def _instant(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INSTANT_MS_MAX


def _made_id(entry: dict[str, Any]) -> str:
    """An id that the same entry always gets."""
    said = {key: value for key, value in entry.items() if key not in ("id", "seq")}
    plain = json.dumps(said, sort_keys=True, ensure_ascii=True, default=str)
    return f"import-{hashlib.sha256(plain.encode()).hexdigest()[:32]}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _shown(fields: Mapping[str, Any], field: str) -> str:
    return clean_text(json.dumps(fields.get(field), default=str), 60)


__all__ = [
    "ImportPlan",
    "ImportRepair",
    "ImportReport",
    "ImportedEntry",
    "ImportedMessage",
    "Source",
    "imported",
    "plan_import",
    "read_import",
    "read_source",
    "report_dry",
]
