"""What a part of the runtime takes as long as it takes: spans, for whoever traces.

The kernel's port for them, and what stands in where nobody traces. `tracing` is the door to the
library that makes them.

Invariants:
    I1  A span says names, numbers and codes; never what a message, a tool's input or a reply holds.
    I2  Nothing depends on a span: what makes them may lose them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Protocol, Self

Attributes = Mapping[str, str | int | float | bool | None]
SpanKind = Literal["internal", "client"]


class Span(Protocol):
    """One stretch of work. Entered, it is current in its task; left, it ends.

    Left by an exception it has failed, and says of which class; a cancellation is no failure.
    """

    @property
    def place(self) -> str | None:
        """Where it is, as a W3C traceparent, for links of later spans; None where it is nowhere."""

    def say(self, attributes: Attributes) -> None:
        """Say more of it; what is None is not said."""

    def fail(self, code: str) -> None:
        """It came to nothing, for a reason that has a code."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: Any) -> None: ...


class Spans(Protocol):
    """Makes spans."""

    def __call__(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind = "internal",
        root: bool = False,
    ) -> Span:
        """Begin a span, within the one that is current here.

        Args:
            name: What is done.
            attributes: As for `Span.say`.
            kind: `client` where another service is waited for.
            root: Whether it begins a trace of its own, whatever is current.
        """

    def link(self, span: Span, place: str | None) -> None:
        """Say that a span goes on with what another one, of this process or not, was about.

        Args:
            span: One of this object's.
            place: What that one's `place` was; nothing is linked to what is no traceparent.
        """


class _NoSpan:
    __slots__ = ()
    place: ClassVar[None] = None

    def say(self, attributes: Attributes) -> None:
        pass

    def fail(self, code: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass


NO_SPAN: Final[Span] = _NoSpan()


class _NoSpans:
    def __call__(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind = "internal",
        root: bool = False,
    ) -> Span:
        return NO_SPAN

    def link(self, span: Span, place: str | None) -> None:
        pass


NO_SPANS: Final[Spans] = _NoSpans()
"""Nobody traces."""
