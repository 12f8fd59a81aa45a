"""What a person decides, in a threaded host: the verbs of `ApprovalVerbs`, blocking; and adding a
provider.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .domain.approvals import ApprovalRow
from .hosted_calls import HostedCalls

if TYPE_CHECKING:
    from .providers.port import Provider
    from .runtime import Runtime


class HostedApprovalVerbs(HostedCalls):
    """The part of a threaded host that is about tool calls that wait for a person."""

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a provider that `set_model` may name. As `Runtime.add_provider`."""

        async def add(runtime: Runtime) -> None:
            runtime.add_provider(name, provider)

        self._call(add, True)

    def approvals(self, agent: str | None = None) -> tuple[ApprovalRow, ...]:
        """The tool calls that wait for a person. As `Runtime.approvals`."""
        return self._read(lambda runtime: runtime.approvals(agent))

    def approve(
        self,
        id: str,  # noqa: A002
        *,
        requester: str,
        note: str = "",
        block: bool = True,
    ) -> Any:
        """Let a tool call that waits be made. As `Runtime.approve`."""
        return self._call(
            lambda runtime: runtime.approve(id, requester=requester, note=note), block
        )

    def deny(
        self,
        id: str,  # noqa: A002
        *,
        requester: str,
        note: str = "",
        block: bool = True,
    ) -> Any:
        """Have a tool call that waits not made. As `Runtime.deny`."""
        return self._call(lambda runtime: runtime.deny(id, requester=requester, note=note), block)
