"""What a host does with workflows and their runs: the verbs that `Runtime` has of them.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from abeyance.storage.tables.runs import Choice

from .domain.fallback import ModelChoice
from .domain.ingress import check_model, check_name
from .domain.run_workflow import Finaliser
from .lifetime import Lifetime
from .run_looking import RunHandle
from .run_status import RunReceipt, RunStatus, RunStep, RunStepped
from .workflows import Workflows

BUFFER_S: Final = 300.0
"""How long after a stated reset a run is resumed, so as not to land on the provider's boundary."""


class RunVerbs(ABC):
    """The part of a runtime that is about runs of workflows."""

    _workflows: Workflows
    _lifetime: Lifetime

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _permitted(self, verb: str, agent: str, requester: str) -> str: ...

    @abstractmethod
    def _stir_schedules(self) -> None:
        """What is due may wait for the workflow that was just added."""

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
        """Register an async function that runs are executed by.

        Not a checkpoint. Runs of it that are due, or that a process died over, are taken up from
        now on.

        Args:
            name: 1 to 128 bytes.
            function: Called with a `RunContext` and the run's parameters. It is executed again from
                its beginning in every life of a run; what it asks of `RunContext.do` is not. It
                asks for the same items in the same order each time.
            version: From 1; raise it when the items or their order change. A run that another
                version began is not executed: it waits for an operator.
            finalisers: Pairs of an id and a function of the result, executed once and in order, as
                items are, after the function has returned; never for a run that waits or failed. A
                third member is what `RunContext.do` has as `in_doubt`.
            fallbacks: The models that `use_fallback` may name for its runs; without any, those of
                each provider that was added by name.
            buffer_s: How long after a stated reset a run is resumed; at most a day.
        Raises:
            InvalidRunError, InvalidNameError: Names the field; nothing was registered.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        self._workflows.add(name, function, version, finalisers, buffer_s, fallbacks)
        self._stir_schedules()

    async def start_run(
        self,
        key: str,
        workflow: str,
        params: Any = None,
        *,
        requester: str = "host",
    ) -> RunHandle:
        """Start a run, unless one of its key may still go on.

        A checkpoint. Cancelled: it may have been started; starting it again then tells.
        Durable: on return. It survives this process, and waits for capacity without a task.

        Args:
            key: 1 to 100 bytes, without an `@`: what there is to be one run of at a time.
            params: Plain data of at most 262,144 bytes, handed to every life as it is recorded.
            requester: Who asks, as for `release_provider_wait`.
        Raises:
            InvalidRunError, InvalidNameError: Names the field; nothing was done.
            UnknownWorkflowError: Add the workflow first; nothing was done.
            RunOpenError: A run of that key may still go on; has its id and state.
            QuiescedError: The host is quiesced; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It was not started.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        by = self._permitted("start_run", str(key), requester)
        with self._lifetime.answers():
            return await self._workflows.start(key, workflow, params, by)

    async def resume_run(
        self,
        run: str,
        *,
        requester: str,
        in_doubt: Literal["retry", "done"] | None = None,
        result: Any = None,
    ) -> RunReceipt:
        """Take a waiting run up now, whatever it waits for. Safe to call twice: one of them does.

        The same claim as the alarm's: where capacity is still exhausted, the run waits again.

        A checkpoint. Cancelled: it may have been claimed; its status tells.
        Durable: on return.

        Args:
            run: Its id, or a key alone, which is its newest run.
            in_doubt: Of a run that needs recovery because an item was running when its process
                died: run that item again (`retry`), or take it as done, with `result`.
            requester: As for `release_provider_wait`.
        Returns:
            The state it has now, and whether this call changed it.
        Raises:
            InvalidRunError, InvalidInputError: Names the field; nothing was done.
            UnknownRunError, UnknownWorkflowError: Nothing was done.
            RunStateError: It needs a decision, or another version of its workflow.
            RunOwnedElsewhereError: A live process owns it; has its pid and host.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It was not claimed.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        by = self._permitted("resume_run", str(run), requester)
        with self._lifetime.answers():
            return await self._workflows.resume(run, by, in_doubt=in_doubt, result=result)

    async def take_over_run(self, run: str, *, requester: str) -> RunReceipt:
        """Take a run from the process that owns it, though that lives: one that hangs, or is
        stopped. What was executed there goes on here. One that waits, or needs an operator, is
        nobody's, unless a thread of it was left there: then it is, from then on.

        When that process goes on it is refused whatever it would record of the run. What it was
        in the middle of is in doubt, and settled by its policy; it may still have its effect.

        A checkpoint. Cancelled: it may have been taken; its status tells.
        Durable: on return.

        Args:
            run: Its id, or a key alone, which is its newest run.
            requester: As for `release_provider_wait`.
        Returns:
            The state it has now; `changed` is False where it is this process's already, or waits,
            or has ended.
        Raises:
            InvalidRunError, InvalidInputError: Names the field; nothing was done.
            UnknownRunError, UnknownWorkflowError: Nothing was done.
            RunStateError: It needs another version of its workflow; nothing was done.
            QuiescedError: The host is quiesced; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It was not taken.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        by = self._permitted("take_over_run", str(run), requester)
        with self._lifetime.answers():
            return await self._workflows.take_over(run, by)

    async def use_fallback(
        self, run: str, *, provider: str, model: str, requester: str
    ) -> RunReceipt:
        """Go on with a waiting run at once, on another model: `RunContext.choice` has it.

        Never by itself: which model stands in for another is a person's to say, among those that
        its workflow was added with, or the providers that were. Where the run waits for an agent's
        held turn, that agent goes on with the model, as `AgentHandle.set_model` has it, and the run
        when the turn has ended.

        As `resume_run` in everything else.

        Raises:
            InvalidNameError: Provider or model is malformed; nothing was done.
            InvalidRunError, UnknownProviderError: The run, or its agent, may not use that; nothing
                was done.
        """
        self._check_open()
        check_name(provider, "provider")
        check_model(model, "model")
        by = self._permitted("use_fallback", str(run), requester)
        choice = Choice(provider=provider, model=model)
        with self._lifetime.answers():
            return await self._workflows.use_fallback(run, by, choice)

    async def cancel_run(self, run: str, *, requester: str, reason: str = "") -> RunReceipt:
        """End a run for good. What of it runs is cut off; nothing takes it up, no finaliser runs.

        A checkpoint. Cancelled: it may have been ended; its status tells.
        Durable: on return, and then nothing of it runs here but a sync function's thread, which
        cannot be ended; what that comes to is not recorded.

        Raises:
            InvalidRunError, InvalidInputError: Names the field; nothing was done.
            UnknownRunError: Nothing was done.
            RunOwnedElsewhereError: A live process owns it; has its pid and host.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It was not ended.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        by = self._permitted("cancel_run", str(run), requester)
        with self._lifetime.answers():
            return await self._workflows.cancel(run, by, reason)

    async def wait_run(self, run: str) -> RunStatus:
        """Wait until a run has ended, whoever started it and whichever process executes it.

        A checkpoint. Cancelled: the run goes on.
        Durable: what is returned is.

        Args:
            run: Its id, or a key alone: the run that is its newest now.
        Raises:
            InvalidRunError, UnknownRunError: There is none of that name.
            RuntimeClosedError: The runtime has ended; the run goes on with the next start.
        """
        self._check_open()
        return await self._workflows.handle(run).wait()

    def run(self, run: str) -> RunStatus:
        """How a run stands; by its id, or by a key, which is its newest. Not a checkpoint.

        Raises:
            InvalidRunError, UnknownRunError: There is none of that name.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        return self._workflows.status(run)

    def runs(
        self,
        *,
        state: str | None = None,
        workflow: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> tuple[RunStatus, ...]:
        """The runs of this store, in one state, of one workflow, or all. Not a checkpoint.

        Args:
            state: One state, or `open`: whatever has not ended: first what only an operator moves,
                then what waits, by its instant, then what is executed. Of a state in which runs
                have ended, the newest first. None: all, by key.
            workflow: Only those of this workflow, of the first 10,000 runs that `state` lets by.
            limit: 1 to 1,000.
            after: The id of a run: only those behind it; with None or an ended state.
        Raises:
            InvalidRunError, InvalidNameError: A filter is malformed, or `after` in another state.
            UnknownRunError: There is no such run as `after`.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        return self._workflows.listing(state, workflow, limit, after)

    def run_steps(self, run: str) -> tuple[RunStep, ...]:
        """What a run has done, item by item, in order. Not a checkpoint; raises as `run`."""
        self._check_open()
        return self._workflows.steps(run)

    def run_history(self, run: str) -> tuple[RunStepped, ...]:
        """The states a run went through, and who moved it. Not a checkpoint; raises as `run`."""
        self._check_open()
        return self._workflows.transitions(run)
