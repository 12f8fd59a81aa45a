"""How a threaded host calls its runtime: what every part of it is built on.

Usable from any thread but the loop's, on which a call that blocks is refused.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .runtime import Runtime

_T = TypeVar("_T")


class HostedCalls:
    """What calls the runtime on its loop."""

    @abstractmethod
    def _call(self, afn: Callable[[Runtime], Awaitable[Any]], block: bool) -> Any:
        """Call an async function there; with `block` its result, else a future of it."""

    def _read(self, look: Callable[[Runtime], _T]) -> _T:
        """What a function finds there that does not wait."""

        async def read(runtime: Runtime) -> _T:
            return look(runtime)

        found: _T = self._call(read, True)
        return found
