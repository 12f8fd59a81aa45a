"""Runs the host that a file declares: lines in, replies out as they stream, one clean end.

Invariants:
    I1  A line is accepted durably before the next one is read.
    I2  The first signal, or the end of the input, lets live turns end; the second ends them as a
        stop does. What is held stays held, and goes on with the next start.
    I3  What is printed of a reply that does not count is said not to count; what is stored is
        printed whole, before the end.

Runs in: a trio run of its own; reading and writing in threads.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Final

import trio

from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.streaming import StreamItem, StreamStored
from abeyance.actors.domain.transcript import last_place
from abeyance.actors.opening import open_runtime
from abeyance.actors.runtime import Runtime
from abeyance.actors.status import HeldStatus
from abeyance.storage.errors import StorageError

from ..instants import local_text
from .config import ServeConfig
from .lines import Addresses, Printer, UnaddressedError, as_json

_READ_BYTES: Final = 65_536
LINE_CHARS_MAX: Final = 1_000_000
"""A longer line is refused: it is no message that a person typed."""


class Output:
    """Where replies and notes go. Writes one after the other, each in a thread."""

    def __init__(self, write: Callable[[str], object], note: Callable[[str], object]) -> None:
        self._write = write
        self._note = note
        self._turn = trio.Lock()

    async def say(self, text: str) -> None:
        """Print what agents say. A checkpoint. Cancelled: what was begun is written."""
        if text:
            async with self._turn:
                await trio.to_thread.run_sync(self._write, text)

    async def note(self, text: str) -> None:
        """Tell whoever runs the host. A checkpoint."""
        async with self._turn:
            await trio.to_thread.run_sync(self._note, text)


async def serve(
    config: ServeConfig, output: Output, *, fd: int = 0, json_lines: bool = False
) -> bool:
    """Serve until the input ends or a signal comes.

    A checkpoint. Cancelled: as by a second signal.

    Args:
        fd: What lines are read from.
        json_lines: Print an object a line for each item of a stream, instead of text.
    Returns:
        Whether everything that was asked for was done or is held; False where a second signal cut
        turns off.
    Raises:
        StorageError, AbeyanceError: The state directory, or an agent, cannot be used.
    """
    failed: Exception | None = None
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                try:
                    async with open_runtime(
                        config.state,
                        account_waits=config.account_waits,
                        webhook=config.webhook,
                        http=config.http,
                    ) as runtime:
                        serving = _Serving(runtime, config, output, json_lines)
                        nursery.start_soon(serving.heed, signals)
                        with serving.finishing:
                            await serving.run(nursery, fd)
                except (AbeyanceError, StorageError) as error:
                    failed = error  # Raised past the nursery, which would wrap it.
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for provider in config.providers:
                await provider.aclose()
    if failed is not None:
        raise failed
    return not serving.finishing.cancelled_caught


class _Serving:
    """One host, from its agents' start to its input's end."""

    def __init__(
        self, runtime: Runtime, config: ServeConfig, output: Output, json_lines: bool
    ) -> None:
        self.reading = trio.CancelScope()
        self.finishing = trio.CancelScope()
        self._runtime = runtime
        self._config = config
        self._output = output
        self._json_lines = json_lines

    async def run(self, nursery: trio.Nursery, fd: int) -> None:
        """Add the agents, take lines to them, and wait until they are idle."""
        printer, names, shown = Printer(), [], []
        for spec in self._config.agents:
            await self._runtime.add_agent(spec)
            names.append(spec.name)
            shown.append(_Shown(self._runtime, spec.name, self._output, printer, self._json_lines))
            nursery.start_soon(shown[-1].run)
        await self._output.note(f"serving {', '.join(names)} in {self._config.state}")
        if self._runtime.http_url is not None:
            await self._output.note(f"what waits is shown at {self._runtime.http_url}/")
        with self.reading:
            await self._send_lines(Addresses(names), fd)
        for one in shown:
            await one.settle()
        for agent in self._runtime.status().agents:
            if agent.held is not None:
                await self._output.note(
                    f"{agent.name} is held {_until(agent.held)}; its turn goes on with the next "
                    "start"
                )

    async def heed(self, signals: AsyncIterator[int]) -> None:
        """The first signal ends the reading, the second the finishing."""
        async for _number in signals:
            if self.reading.cancel_called:
                self.finishing.cancel()
                return
            self.reading.cancel()
            await self._output.note(
                "stopping when the live turns have ended; once more stops them now"
            )

    async def _send_lines(self, to: Addresses, fd: int) -> None:
        async with aclosing(_lines(fd)) as lines:
            async for text in lines:
                try:
                    line = to.read(text)
                    if line is not None:
                        await self._runtime.agent(line.agent).send(line.text, author="user")
                except (UnaddressedError, AbeyanceError) as error:
                    await self._output.note(str(error))


def _until(held: HeldStatus) -> str:
    ends = "until released"
    if held.deadline_ms is not None:
        ends = f"until {local_text(held.deadline_ms)}"
    return f"{ends} ({held.reason})"


class _Shown:
    """One agent's stream, printed as it comes."""

    def __init__(
        self, runtime: Runtime, name: str, output: Output, printer: Printer, json_lines: bool
    ) -> None:
        self._agent = agent = runtime.agent(name)
        self._output = output
        self._printer = printer
        self._json_lines = json_lines
        self._items = agent.stream()
        self._place = last_place(runtime._store, runtime._member(name).slot_name)
        self._moved = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        async with aclosing(self._items) as items:
            async for item in items:
                await self._output.say(self._text(item))
                if isinstance(item, StreamStored):
                    self._place = item.message.seq
                    self._moved.unpark_all()

    async def settle(self) -> None:
        """Wait until the agent is idle, and what it stored is printed."""
        try:
            await self._agent.wait_idle()
        except AbeyanceError as error:
            await self._output.note(str(error))
            return
        last = self._place
        async for message in self._agent.transcript(after=last):
            last = message.seq
        while self._place < last:
            await self._moved.park()

    def _text(self, item: StreamItem) -> str:
        if self._json_lines:
            return json.dumps(as_json(self._agent.name, item), ensure_ascii=False) + "\n"
        return self._printer.shown(self._agent.name, item)


async def _lines(fd: int) -> AsyncGenerator[str, None]:
    """The lines of a file descriptor, whatever it is. A checkpoint a read.

    Read past Python's buffers: a thread that is left waiting in one holds its lock, and the
    interpreter could not end.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    while True:
        data = await trio.to_thread.run_sync(os.read, fd, _READ_BYTES, abandon_on_cancel=True)
        *lines, rest = (rest + decoder.decode(data, final=not data)).split("\n")
        for line in lines:
            yield line
        if len(rest) > LINE_CHARS_MAX:  # Before memory is full of it; one that ends is a message.
            raise InvalidInputError(
                "standard input", f"has a line of more than {LINE_CHARS_MAX:,} characters"
            )
        if not data:
            if rest:
                yield rest
            return


__all__ = ["Output", "serve"]
