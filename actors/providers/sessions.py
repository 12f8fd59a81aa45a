"""Native sessions: a conversation that the provider keeps, which can be opened, resumed and lost.

Optional: a provider that has them has `session` beside `call`. Only such a conversation can go on
exactly where it stood; what is told to it is not sent again with the next request.

Invariants:
    I1  `session(handle)` resumes the conversation of that handle or raises `SessionLostError`. It
        never opens another one in its place.
    I2  A handle is the session's for as long as the provider keeps it: no call changes it.
    I3  Closing ends what stands for the session in this process. The provider keeps the
        conversation, and its handle resumes it.
    I4  One permit, one request, as for `call`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol, TypeGuard

from abeyance.actors.core.errors import AbeyanceError

from .port import ModelReply, ModelRequest, OnDelta


class SessionLostError(AbeyanceError):
    """The provider has no such conversation any more. Nothing was sent, and none was opened.

    Attributes: `handle`.
    """

    code: ClassVar[str] = "session_lost"
    handle: str


class NativeSession(Protocol):
    """One conversation that a provider keeps. One task at a time uses it."""

    @property
    def handle(self) -> str | None:
        """What resumes it, 1 to 128 bytes; None: nothing does, it ends with this process."""

    async def send(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Say something and return the reply, under the permit in the context.

        A checkpoint. Cancelled: whether the provider heard it is unknown. Stores nothing here.

        Args:
            request: Its messages are what is new; the provider has the others.
        Raises:
            SessionLostError: The conversation is gone; nothing was sent.
            PermitError, ProviderError: As `Provider.call`.
        """


class SessionProvider(Protocol):
    """What a provider that keeps conversations has beside `call`."""

    def session(self, handle: str | None = None) -> AbstractAsyncContextManager[NativeSession]:
        """Open a conversation, or resume that of a handle, for the block.

        Entering is a checkpoint and may send; leaving closes whatever stands for it here, also
        after a failure, and keeps the conversation.

        Raises:
            SessionLostError: On entering, of a handle: the conversation is gone.
            ProviderError: On entering: refused or failed.
        """


def has_sessions(provider: object) -> TypeGuard[SessionProvider]:
    """Whether a provider keeps conversations of its own."""
    return callable(getattr(provider, "session", None))
