"""What a message means that is no plain one: a call of a proxy, or one that is sent again.

Runs in the cell's task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from .envelope import Answer, Replayed, StopPill

if TYPE_CHECKING:
    from .actor import TrioActor

SPECIAL: Final = frozenset({StopPill, ProxyCall, ProxyGetAttr, ProxySetAttr, Replayed})
"""The classes of the messages that are no plain ones."""


def proxied(actor: TrioActor, message: Any) -> Any:
    """Do what a proxy of the actor asked for, or handle what was sent again."""
    kind = message.__class__
    if kind is ProxyCall:
        return _attribute(actor, message.attr_path)(*message.args, **message.kwargs)
    if kind is ProxyGetAttr:
        return _attribute(actor, message.attr_path)
    if kind is ProxySetAttr:
        parent = _attribute(actor, message.attr_path[:-1])
        return setattr(parent, message.attr_path[-1], message.value)
    if kind is Replayed:
        inner = message.message
        if inner.__class__ is Answer:
            return actor.on_answer(inner)
        return proxied(actor, inner) if inner.__class__ in SPECIAL else actor.on_receive(inner)
    raise TypeError("a stop pill is always an ask")


def _attribute(root: Any, path: Any) -> Any:
    for name in path:
        root = getattr(root, name)
    return root
