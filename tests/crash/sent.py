"""What is sent to the matrix's host, and when: stages of messages, told by a variant's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from abeyance.actors.domain.drafts import Draft

ANA, BO = "ana", "bo"
BIG = 2_101
SINGLES = 150
BO_PREFIX = "bo:"


@dataclass(frozen=True)
class Retraction:
    """A message is taken back, if nobody read it yet."""

    id: str


Part = tuple[Draft, ...] | Retraction
"""What one commit does: takes a message or a batch, or gives a message back."""
Stages = tuple[tuple[Part, ...], ...]

CHANGED = {"s1": "replaced", "r1": "retracted"}
"""What becomes of them where they were not read."""


def one(name: str, author: str = "user", **how: Any) -> tuple[Draft, ...]:
    return (Draft(f"says {name}", author, id=name, **how),)


def batch(name: str, size: int) -> tuple[Draft, ...]:
    return tuple(Draft(f"says {name}{n}", id=f"{name}{n}", wake=n % 100 == 0) for n in range(size))


_CHANGES: tuple[Part, ...] = (
    one("s1", subject="weather"),
    one("r1"),
    one("s2", subject="weather"),
    Retraction("r1"),
    one("j1", joins=False),
)
"""One that a newer message replaces, and one that is taken back, unless they were read by then."""


@dataclass(frozen=True)
class Act:
    """What an operator does to a message, once; asked again it changes nothing more."""

    message: str
    words: str | None
    """None: it is taken out."""
    undone: bool = False


ACTS = (
    Act("go", "says go, mended"),
    Act("x1", None),
    Act("x2", None, undone=True),
)
"""Of the variant `edited`."""


def addressee(name: str) -> str:
    """Whom a message is for, told from its id."""
    return BO if name.startswith(BO_PREFIX) else ANA


def stages(variant: str) -> Stages:
    """What arrives when: idle, in call 1, its tools, call 2, its tool, call 3, and at rest."""
    many: tuple[Part, ...] = (batch("b", 3),)
    if variant == "big":
        many = (batch("b", BIG),)
    elif variant == "small":
        many = tuple((draft,) for draft in batch("b", SINGLES))
    found: Stages = (
        (one("go"),),
        (one("p1"), one("f1", "bot", wake=False)),
        many,
        (one("p2"), batch("c", 2)),
        (one("own1", "ANA"), one("p3"), one("own2", "ana"), *_many_behind(variant), *_CHANGES),
        (one("p4"), one("f2", "bot", wake=False)),
        (one("last"),),
    )
    if variant == "edited":
        found = (
            (*found[0], one("x1", "bot", wake=False), one("x2", "bot", wake=False)),
            *found[1:],
        )
    if variant == "decided":
        found = (*found, (one("after"),))
    if variant in ("shared", "leaving"):
        found = tuple(map(_mixed, found, _FOR_BO))
    return found


_FOR_BO: Stages = (
    (),
    (one("bo:p1"),),
    (batch("bo:b", 2),),
    (one("bo:own1", "BO"),),
    (one("bo:p2"), one("bo:ana1", "ana"), one("bo:f1", "bot", wake=False)),
    (one("bo:p3"),),
    (one("bo:last"),),
)
"""What arrives beside for the other agent of the slot; some of it in the words of either."""


def _mixed(ours: tuple[Part, ...], others: tuple[Part, ...]) -> tuple[Part, ...]:
    """The other's messages between ours, so that neither stand together."""
    head = tuple(part for pair in zip(ours, others, strict=False) for part in pair)
    shorter = min(len(ours), len(others))
    return (*head, *ours[shorter:], *others[shorter:])


def _many_behind(variant: str) -> tuple[Part, ...]:
    if variant == "small":
        return tuple((draft,) for draft in batch("d", SINGLES))
    return (batch("d", 4), one("f3", "bot", wake=False))


def drafts_of(variant: str) -> list[Draft]:
    """Everything that is sent, in order."""
    return list(_drafts(stages(variant)))


def _drafts(found: Stages) -> Iterator[Draft]:
    for parts in found:
        for part in parts:
            if not isinstance(part, Retraction):
                yield from part
