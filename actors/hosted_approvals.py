"""What a person decides, in a threaded host: the verbs of `ApprovalVerbs`, blocking; and adding a
provider.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .domain.approvals import ApprovalReceipt, ApprovalRow

if TYPE_CHECKING:
    from .providers.port import Provider
    from .runtime import Runtime


class HostedApprovalVerbs:
    """The part of a threaded host that is about tool calls that wait for a person."""

    def _call(self, afn: Callable[[Runtime], Awaitable[Any]], block: bool) -> Any:
        raise NotImplementedError

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a provider that `set_model` may name. As `Runtime.add_provider`."""

        async def add(runtime: Runtime) -> None:
            runtime.add_provider(name, provider)

        self._call(add, True)

    def approvals(self, agent: str | None = None) -> tuple[ApprovalRow, ...]:
        """The tool calls that wait for a person. As `Runtime.approvals`."""

        async def read(runtime: Runtime) -> tuple[ApprovalRow, ...]:
            return runtime.approvals(agent)

        found: tuple[ApprovalRow, ...] = self._call(read, True)
        return found

    def approve(
        self,
        id: str,  # noqa: A002
        *,
        requester: str,
        note: str = "",
        block: bool = True,
    ) -> Any:
        """Let a tool call that waits be made. As `Runtime.approve`."""

        async def approve(runtime: Runtime) -> ApprovalReceipt:
            return await runtime.approve(id, requester=requester, note=note)

        return self._call(approve, block)

    def deny(
        self,
        id: str,  # noqa: A002
        *,
        requester: str,
        note: str = "",
        block: bool = True,
    ) -> Any:
        """Have a tool call that waits not made. As `Runtime.deny`."""

        async def deny(runtime: Runtime) -> ApprovalReceipt:
            return await runtime.deny(id, requester=requester, note=note)

        return self._call(deny, block)
