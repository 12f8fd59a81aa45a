"""The live hosts of a state directory: connections to each, and which of them is asked.

Invariants:
    I1  Every wait has a deadline; a host that accepts and says nothing is an error, not a hang, and
        it keeps no other host's answer back for longer than that.
    I2  A request that changes something goes to the next host only where one refused it as not its
        own: then nothing was done.

Blocking; any thread, one thread at a time.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from .address import CONTROL_NAME, host_sockets
from .connection import (
    TIMEOUT_S,
    HostClient,
    HostForbiddenError,
    HostSilentError,
    NoHostError,
    RefusedByHostError,
)
from .errors import ControlError, look_at
from .protocol import Hello

NOT_ITS_OWN: Final = frozenset(
    {
        "agent_owned_elsewhere",
        "unknown_agent",
        "actor_dead",
        "message_not_kept",
        "run_owned_elsewhere",
        "unknown_workflow",
        "run_state",
    }
)
"""Codes by which a host refuses what another host of the directory may do. Nothing was done."""

_TELLING: Final = {
    code: rank
    for rank, code in enumerate(("run_state", "agent_owned_elsewhere", "run_owned_elsewhere"))
}
"""Of several refusals, which says most to an operator: the lower."""

_T = TypeVar("_T")


class Hosts:
    """A connection to each live host of a state directory. See `ControlClient`."""

    hello: Hello
    """Of the host that greeted first."""

    def __init__(self, directory: str | os.PathLike[str], *, timeout_s: float = TIMEOUT_S) -> None:
        self._directory = Path(directory)
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._calling: list[HostClient] = []
        self._greeted: list[HostClient] = []
        self._failures: dict[int, ControlError] = {}
        try:
            self._call()
            first = next(self._hosts(), None)
            if first is None:
                raise self._nobody()
        except BaseException:
            self.close()
            raise
        self.hello = first.hello

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for host in (*self._calling, *self._greeted):
            host.close()

    @property
    def failures(self) -> dict[int, ControlError]:
        """The live hosts that gave no answer so far, by pid, and why."""
        return dict(self._failures)

    def _of_every(self, ask: Callable[[HostClient], _T]) -> list[tuple[HostClient, _T]]:
        answers: list[tuple[HostClient, _T]] = []
        for host in self._hosts():
            try:
                answers.append((host, ask(host)))
            except (HostSilentError, RefusedByHostError) as error:
                self._fail(host, error)
        if not answers:
            raise self._nobody()
        return sorted(answers, key=lambda answer: answer[0].at)

    def _of_any(self, ask: Callable[[HostClient], _T]) -> _T:
        for host in self._hosts():
            try:
                return ask(host)
            except HostSilentError as error:
                self._fail(host, error)
        raise self._nobody()

    def _of_owner(self, ask: Callable[[HostClient], _T]) -> _T:
        """Ask host by host, past those that say that another must do it.

        Each decides by the owner row, in its own reading of the store; this process reads none.
        """
        refusals: list[RefusedByHostError] = []
        for host in self._hosts():
            try:
                return ask(host)
            except RefusedByHostError as error:
                if error.remote_code not in NOT_ITS_OWN:
                    raise
                refusals.append(error)
        if not refusals:
            raise self._nobody()
        # Who knows the owner knows more than who has never heard of the agent.
        refusals.sort(key=lambda error: _TELLING.get(error.remote_code, len(_TELLING)))
        if not self._failures:
            raise refusals[0]
        kept = "" if "nothing was done" in str(refusals[0]) else "nothing was done; "
        raise HostSilentError(
            f"{self._silent_hosts()} did not answer, and the hosts that did cannot do it: "
            f"{refusals[0]}; {kept}{look_at(*sorted(self._failures))}, then ask again"
        )

    # -- connections -------------------------------------------------------------------------

    def _call(self) -> None:
        try:
            sockets = host_sockets(self._directory)
        except PermissionError:
            raise HostForbiddenError(
                f"{self._directory / CONTROL_NAME} belongs to another user; nothing was done; ask "
                "as the user who runs the host"
            ) from None
        for at in sockets:
            try:
                host = HostClient(self._directory, at, timeout_s=self._timeout_s)
            except NoHostError:
                continue  # It ended in this instant.
            except (HostForbiddenError, HostSilentError) as error:
                self._failures[at.pid] = error
            else:
                self._calling.append(host)

    def _hosts(self) -> Iterator[HostClient]:
        """Each host that has greeted, then each other as it greets, until the deadline of all."""
        yield from tuple(self._greeted)
        while self._calling:
            ready = self._ready()
            for host in ready:
                self._calling.remove(host)
                try:
                    host.greet()
                except NoHostError:
                    host.close()
                except ControlError as error:
                    self._fail(host, error)
                else:
                    self._greeted.append(host)
                    yield host
            if not ready:
                while self._calling:
                    host = self._calling.pop()
                    self._fail(
                        host, host.silent(f"no answer within {self._timeout_s:g} s", asked=False)
                    )

    def _ready(self) -> list[HostClient]:
        with selectors.DefaultSelector() as selector:
            for host in self._calling:
                selector.register(host, selectors.EVENT_READ, host)
            events = selector.select(max(0.0, self._until - time.monotonic()))
            return [key.data for key, _ in events]

    def _fail(self, host: HostClient, error: ControlError) -> None:
        self._failures[host.at.pid] = error
        if not isinstance(error, RefusedByHostError) or host not in self._greeted:
            host.close()
            if host in self._greeted:
                self._greeted.remove(host)

    def _nobody(self) -> ControlError:
        if not self._failures:
            return NoHostError(
                f"no running host serves {self._directory}; nothing was done; start the host"
            )
        if len(self._failures) == 1:
            return next(iter(self._failures.values()))
        return HostSilentError(
            f"{self._silent_hosts()} did not answer: "
            f"{'; '.join(str(self._failures[pid]) for pid in sorted(self._failures))}",
            pids=tuple(sorted(self._failures)),
        )

    def _silent_hosts(self) -> str:
        pids = sorted(self._failures)
        return f"host process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}"
