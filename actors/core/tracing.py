"""The door to OpenTelemetry's API: carries the sender's context to the handler of a message.

Imported by a system that is made with `trace=True`, and by nothing else; it needs the `otel` extra.
No span is made here. What is current where a message is sent is current where it is handled, so
that spans of a handler belong to its sender's trace.

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
from typing import Any

from opentelemetry import context as otel
from opentelemetry.context import Context

from .carried import Traced
from .proxies import proxied
from .ref import TrioActorRef


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
