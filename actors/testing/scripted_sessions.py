"""Conversations that a scripted provider keeps: opened, resumed by their handle, and lost.

`ScriptedSessions` stands for the far side: it outlives a provider, several providers may share it,
and with a directory it outlives the process, so that a test that kills one finds there what the
provider would have.

Runs in the calling trio task.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import trio

from abeyance.storage.tables.blocks import Block

from ..providers.port import ModelReply, ModelRequest, OnDelta, ProviderMessage
from ..providers.sessions import SessionLostError

Play = Callable[[ModelRequest, OnDelta], Any]


class ScriptedSessions:
    """The conversations that a provider has, by handle.

    Args:
        directory: Where they are kept as files. None: in this process.
        resumable: Whether sessions have a handle; without one nothing resumes them.
    """

    def __init__(self, directory: Path | None = None, *, resumable: bool = True) -> None:
        self._directory = directory
        self._kept: dict[str, list[ProviderMessage]] = {}
        self._numbers = itertools.count(1)
        self.resumable = resumable
        self.events: list[str] = []
        """What happened here, in order: `opened`, `resumed`, `closed` or `lost`, and the handle."""

    @property
    def handles(self) -> tuple[str, ...]:
        """The conversations there are."""
        if self._directory is None:
            return tuple(self._kept)
        return tuple(sorted(path.stem for path in self._directory.glob("*.json")))

    def messages(self, handle: str) -> tuple[ProviderMessage, ...]:
        """What was said in a conversation.

        Raises:
            SessionLostError: There is none of that handle.
        """
        kept = self._read(handle)
        if kept is None:
            raise lost(handle)
        return tuple(kept)

    def lose(self, handle: str | None = None) -> None:
        """Forget a conversation, or all: whoever resumes it, or says something in it, learns so."""
        for each in self.handles if handle is None else (handle,):
            self.events.append(f"lost {each}")
            self._kept.pop(each, None)
            if self._directory is not None:
                self._path(each).unlink(missing_ok=True)

    def _open(self) -> str:
        handle = f"session-{next(self._numbers)}"
        while handle in self.handles:
            handle = f"session-{next(self._numbers)}"
        self._write(handle, [])
        return handle

    def _path(self, handle: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{handle}.json"

    def _read(self, handle: str) -> list[ProviderMessage] | None:
        if self._directory is None:
            return self._kept.get(handle)
        try:
            said = json.loads(self._path(handle).read_text("utf-8"))
        except OSError:
            return None
        return [
            ProviderMessage(each["role"], msgspec.convert(each["blocks"], tuple[Block, ...]))
            for each in said
        ]

    def _write(self, handle: str, messages: list[ProviderMessage]) -> None:
        self._kept[handle] = messages
        if self._directory is not None:
            said = [msgspec.to_builtins(each) for each in messages]
            self._path(handle).write_text(json.dumps(said), "utf-8")


class ScriptedSession:
    """A session that plays its provider's script. See `NativeSession`."""

    def __init__(self, sessions: ScriptedSessions, own: str, play: Play) -> None:
        self._sessions = sessions
        self._own = own
        self._play = play
        self.closed = False

    @property
    def handle(self) -> str | None:
        return self._own if self._sessions.resumable else None

    async def send(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Play the next step on the whole conversation; it is kept where the step replies.

        Raises:
            SessionLostError: It was lost; no permit is used and no step consumed.
            RuntimeError: It was closed.
        """
        if self.closed:
            raise RuntimeError(f"session {self._own!r} was closed; nothing was sent")
        await trio.lowlevel.checkpoint()
        said = [*self._sessions.messages(self._own), *request.messages]
        reply: ModelReply = await self._play(replace(request, messages=tuple(said)), on_delta)
        self._sessions._write(self._own, [*said, ProviderMessage("assistant", reply.blocks)])
        return reply


@asynccontextmanager
async def scripted_session(
    sessions: ScriptedSessions, handle: str | None, play: Play
) -> AsyncIterator[ScriptedSession]:
    """Open a session, or resume one, for the block. See `SessionProvider.session`."""
    await trio.lowlevel.checkpoint()
    if handle is None:
        handle, event = sessions._open(), "opened"
    else:
        sessions.messages(handle)
        event = "resumed"
    sessions.events.append(f"{event} {handle}")
    session = ScriptedSession(sessions, handle, play)
    try:
        yield session
    finally:
        session.closed = True
        sessions.events.append(f"closed {handle}")


def lost(handle: str) -> SessionLostError:
    return SessionLostError(
        f"the provider has no session {handle!r}; nothing was sent; open another, or have whoever "
        "depends on it decided by an operator",
        handle=handle,
    )
