"""What a threaded host does with workflows and their runs: the verbs of `RunVerbs`, blocking.

Usable from any thread but the loop's, on which a call that blocks is refused. Workflows and their
finalisers run on the loop, as under `open_runtime`; sync functions of items in threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .core import TrioFuture
from .domain.fallback import ModelChoice
from .domain.run_workflow import Finaliser
from .hosted_calls import HostedCalls
from .run_status import RunReceipt, RunStatus, RunStep, RunStepped
from .run_verbs import BUFFER_S

if TYPE_CHECKING:
    from .runtime import Runtime


class HostedRun:
    """A run, as a threaded host holds it. As `RunHandle`."""

    def __init__(self, host: HostedRunVerbs, id: str) -> None:  # noqa: A002
        self._host = host
        self.id = id

    def status(self) -> RunStatus:
        """How it stands. As `Runtime.run`."""
        return self._host.run(self.id)

    @overload
    def wait(self, *, block: Literal[True] = True) -> RunStatus: ...
    @overload
    def wait(self, *, block: Literal[False]) -> TrioFuture[RunStatus]: ...
    def wait(self, *, block: bool = True) -> Any:
        """Wait until it has ended. As `Runtime.wait_run`."""
        if block:
            return self._host.wait_run(self.id)
        return self._host.wait_run(self.id, block=False)


class HostedRunVerbs(HostedCalls):
    """The part of a threaded host that is about runs of workflows."""

    def add_workflow(
        self,
        name: str,
        function: Callable[..., Awaitable[Any]],
        version: int = 1,
        *,
        finalisers: Sequence[Finaliser] = (),
        fallbacks: Sequence[ModelChoice] = (),
        buffer_s: float = BUFFER_S,
    ) -> None:
        """Register an async function that runs are executed by. As `Runtime.add_workflow`."""

        async def add(runtime: Runtime) -> None:
            runtime.add_workflow(
                name,
                function,
                version,
                finalisers=finalisers,
                fallbacks=fallbacks,
                buffer_s=buffer_s,
            )

        self._call(add, True)

    @overload
    def start_run(
        self,
        key: str,
        workflow: str,
        params: Any = None,
        *,
        requester: str = "host",
        block: Literal[True] = True,
    ) -> HostedRun: ...
    @overload
    def start_run(
        self,
        key: str,
        workflow: str,
        params: Any = None,
        *,
        requester: str = "host",
        block: Literal[False],
    ) -> TrioFuture[HostedRun]: ...
    def start_run(
        self,
        key: str,
        workflow: str,
        params: Any = None,
        *,
        requester: str = "host",
        block: bool = True,
    ) -> Any:
        """Start a run, unless one of its key may still go on. As `Runtime.start_run`."""

        async def start(runtime: Runtime) -> HostedRun:
            started = await runtime.start_run(key, workflow, params, requester=requester)
            return HostedRun(self, started.id)

        return self._call(start, block)

    @overload
    def resume_run(
        self,
        run: str,
        *,
        requester: str,
        in_doubt: Literal["retry", "done"] | None = None,
        result: Any = None,
        block: Literal[True] = True,
    ) -> RunReceipt: ...
    @overload
    def resume_run(
        self,
        run: str,
        *,
        requester: str,
        in_doubt: Literal["retry", "done"] | None = None,
        result: Any = None,
        block: Literal[False],
    ) -> TrioFuture[RunReceipt]: ...
    def resume_run(
        self,
        run: str,
        *,
        requester: str,
        in_doubt: Literal["retry", "done"] | None = None,
        result: Any = None,
        block: bool = True,
    ) -> Any:
        """Take a waiting run up now. As `Runtime.resume_run`."""
        return self._call(
            lambda runtime: runtime.resume_run(
                run, requester=requester, in_doubt=in_doubt, result=result
            ),
            block,
        )

    @overload
    def take_over_run(
        self, run: str, *, requester: str, block: Literal[True] = True
    ) -> RunReceipt: ...
    @overload
    def take_over_run(
        self, run: str, *, requester: str, block: Literal[False]
    ) -> TrioFuture[RunReceipt]: ...
    def take_over_run(self, run: str, *, requester: str, block: bool = True) -> Any:
        """Take a run from a live process that owns it. As `Runtime.take_over_run`."""
        return self._call(lambda runtime: runtime.take_over_run(run, requester=requester), block)

    @overload
    def use_fallback(
        self,
        run: str,
        *,
        provider: str,
        model: str,
        requester: str,
        block: Literal[True] = True,
    ) -> RunReceipt: ...
    @overload
    def use_fallback(
        self, run: str, *, provider: str, model: str, requester: str, block: Literal[False]
    ) -> TrioFuture[RunReceipt]: ...
    def use_fallback(
        self, run: str, *, provider: str, model: str, requester: str, block: bool = True
    ) -> Any:
        """Go on with a waiting run on another model. As `Runtime.use_fallback`."""
        return self._call(
            lambda runtime: runtime.use_fallback(
                run, provider=provider, model=model, requester=requester
            ),
            block,
        )

    @overload
    def cancel_run(
        self, run: str, *, requester: str, reason: str = "", block: Literal[True] = True
    ) -> RunReceipt: ...
    @overload
    def cancel_run(
        self, run: str, *, requester: str, reason: str = "", block: Literal[False]
    ) -> TrioFuture[RunReceipt]: ...
    def cancel_run(self, run: str, *, requester: str, reason: str = "", block: bool = True) -> Any:
        """End a run for good. As `Runtime.cancel_run`."""
        return self._call(
            lambda runtime: runtime.cancel_run(run, requester=requester, reason=reason), block
        )

    @overload
    def wait_run(self, run: str, *, block: Literal[True] = True) -> RunStatus: ...
    @overload
    def wait_run(self, run: str, *, block: Literal[False]) -> TrioFuture[RunStatus]: ...
    def wait_run(self, run: str, *, block: bool = True) -> Any:
        """Wait until a run has ended, whoever started it. As `Runtime.wait_run`."""
        return self._call(lambda runtime: runtime.wait_run(run), block)

    def run(self, run: str) -> RunStatus:
        """How a run stands. As `Runtime.run`."""
        return self._read(lambda runtime: runtime.run(run))

    def runs(
        self,
        *,
        state: str | None = None,
        workflow: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> tuple[RunStatus, ...]:
        """The runs of this store. As `Runtime.runs`."""
        return self._read(
            lambda runtime: runtime.runs(state=state, workflow=workflow, limit=limit, after=after)
        )

    def run_steps(self, run: str) -> tuple[RunStep, ...]:
        """What a run has done, item by item. As `Runtime.run_steps`."""
        return self._read(lambda runtime: runtime.run_steps(run))

    def run_history(self, run: str) -> tuple[RunStepped, ...]:
        """The states a run went through. As `Runtime.run_history`."""
        return self._read(lambda runtime: runtime.run_history(run))
