"""The door to OpenTelemetry's API: carries the sender's context to the handler of a message, and
makes the spans that the runtime asks for.

Imported by a system that is made with `trace=True`, and by nothing else; it needs the `otel` extra.
What is current where a message is sent is current where it is handled, so that spans of a handler
belong to its sender's trace. The kernel itself makes no span.

Invariants:
    I1  A message that is sent in no context travels as it is: nothing is wrapped, nothing is paid.
    I2  Nobody but the kernel sees a wrapped message: handlers, dead letters, quarantine and errors
        get what was sent.
    I3  An incarnation starts in no context, and a handler's ends with its message.

Any thread sends; contexts are entered in the cell's task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Final, Self

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .carried import Traced
from .proxies import proxied
from .ref import TrioActorRef
from .spans import Attributes, Span
from .spans import SpanKind as Kind

_KINDS: Final = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_PLACES: Final = TraceContextTextMapPropagator()


def carried(message: Any) -> Any:
    """The message with the current context; as it is where there is none."""
    current = otel.get_current()
    return Traced(message, current) if current and message.__class__ is not Traced else message


def keeping() -> Callable[[Any], Any]:
    """What gives items the context that is current now, whenever they are made."""
    current = otel.get_current()
    return lambda item: Traced(item, current) if current else item


def clear() -> None:
    """Leave whatever context this task was started in."""
    otel.attach(Context())


def entered(context: Context) -> Callable[[], None]:
    """Enter a context in this task; call what is returned to leave it."""
    token = otel.attach(context)
    return lambda: otel.detach(token)


def diverting(receive: Callable[[Any], Any], special: frozenset[type]) -> Callable[[Any, Any], Any]:
    """What handles a message that is no plain one, in its sender's context if it brings one."""

    def divert(actor: Any, message: Any) -> Any:
        if message.__class__ is not Traced:
            return proxied(actor, message)
        sent: Any = message.message
        leave = entered(message.context)
        try:
            result = proxied(actor, sent) if sent.__class__ in special else receive(sent)
        except BaseException:
            leave()
            raise
        if result.__class__ is CoroutineType:
            return _within(result, leave)
        leave()
        return result

    return divert


async def _within(result: Coroutine[Any, Any, Any], leave: Callable[[], None]) -> Any:
    try:
        return await result
    finally:
        leave()


class TracedRef(TrioActorRef[Any]):
    """A ref of a system that traces: what it sends carries the sender's context."""

    __slots__ = ()

    def tell(self, message: Any) -> None:
        super().tell(carried(message))

    async def tell_wait(self, message: Any, timeout: float | None = None) -> None:
        await super().tell_wait(carried(message), timeout)

    def tell_internal(self, message: Any) -> None:
        super().tell_internal(carried(message))

    def ask(self, message: Any, **options: Any) -> Any:
        return super().ask(carried(message), **options)


class MadeSpan:
    """A span of OpenTelemetry's. See `spans.Span`."""

    __slots__ = ("_leave", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._leave: Callable[[], None] | None = None

    @property
    def place(self) -> str | None:
        carrier: dict[str, str] = {}
        _PLACES.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier.get("traceparent")

    def say(self, attributes: Attributes) -> None:
        self._span.set_attributes(_said(attributes))

    def fail(self, code: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR, code))

    def __enter__(self) -> Self:
        self._leave = entered(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, class_: type[BaseException] | None, *raised: Any) -> None:
        # What an exception says may quote a reply or a key: its class is all that is told.
        if class_ is not None and issubclass(class_, Exception):
            self.fail(class_.__qualname__)
        assert self._leave is not None
        self._leave()
        self._span.end()


class MadeSpans:
    """Makes spans by the tracer of whichever provider the host has set. See `spans.Spans`."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("abeyance")

    def __call__(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: Kind = "internal",
        root: bool = False,
    ) -> MadeSpan:
        span = self._tracer.start_span(
            name, Context() if root else None, _KINDS[kind], _said(attributes)
        )
        return MadeSpan(span)

    def link(self, span: Span, place: str | None) -> None:
        found = trace.get_current_span(_PLACES.extract({"traceparent": place or ""}, Context()))
        if found.get_span_context().is_valid and isinstance(span, MadeSpan):
            span._span.add_link(found.get_span_context())


def _said(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in attributes.items() if value is not None}
