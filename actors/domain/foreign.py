"""What a host's code may raise and return where a call runs it: tool bodies, providers.

Invariants:
    I1  What ends a program, a generator or another loop's task elsewhere (SystemExit,
        GeneratorExit, asyncio's CancelledError) ends one call here, as any error does.
    I2  trio's Cancelled, KeyboardInterrupt and what is of no known kind pass on, out of groups too.
    I3  Looking at an error raises nothing, whatever its text does.

Runs in: the task that the host's code ran in.
"""

from __future__ import annotations

import sys
from typing import Any, Final, get_args

from trio import Cancelled
from trio.lowlevel import in_trio_task

from abeyance.actors.providers.port import ModelReply, Permit, ProviderError
from abeyance.storage.tables.blocks import Block

_BLOCKS: Final = get_args(Block)
ERRORS_TOLD_MAX: Final = 5
"""Members of a group whose texts are told."""
_DEPTH_MAX: Final = 5


def failure_of(error: BaseException) -> BaseException:
    """What of an error is the failure of the call it came out of; raise what is to pass on."""
    passing: BaseException | None = None
    if isinstance(error, BaseExceptionGroup):
        passing = error.split(_is_failure)[1]
    elif not _is_failure(error):
        passing = error
    if passing is not None:
        raise passing
    return error


def parted(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """What of an error is the outcome of the call it came out of, and what is to pass on.

    What passes on by meaning, a cancellation or a `KeyboardInterrupt`, out of a group too, leaves
    the outcome unknown (None). An exception that is of no known kind is the outcome, and passes on.
    """
    try:
        return failure_of(error), None
    except BaseException as passing:  # noqa: BLE001 - what that raises is what is to pass on.
        return (error if _is_of_no_kind(passing) else None), passing


def _is_of_no_kind(passing: BaseException) -> bool:
    if isinstance(passing, BaseExceptionGroup):
        return all(map(_is_of_no_kind, passing.exceptions))
    return not isinstance(passing, KeyboardInterrupt | GeneratorExit | Cancelled)


def failure_beside(error: BaseException) -> BaseException | None:
    """What of an error that passes on is a failure of its call all the same; None for nothing."""
    return error.split(_is_failure)[0] if isinstance(error, BaseExceptionGroup) else None


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, Exception | SystemExit):
        return True
    if isinstance(error, GeneratorExit):
        # Without a task the interpreter is throwing this very coroutine away.
        return in_trio_task()
    # Nobody raises it who has not imported it; this library has no other use for asyncio.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def told(error: BaseException, depth: int = 0) -> str:
    """An error's type and text, those of a group's members behind its own. Not bounded."""
    name = type(error).__name__
    text = text_of(error)
    if isinstance(error, BaseExceptionGroup) and depth < _DEPTH_MAX:
        members = [told(member, depth + 1) for member in error.exceptions[:ERRORS_TOLD_MAX]]
        more = ["..."] if len(error.exceptions) > ERRORS_TOLD_MAX else []
        text = f"{text}: {'; '.join(members + more)}"
    return f"{name}: {text}" if text else name


def reply_of(returned: Any, permit: Permit) -> ModelReply:
    """What a provider returned, if it is a reply. What its blocks hold is for the record's check.

    Raises:
        ProviderError: It is none; the text names what it is.
    """
    # A class of another copy of this library has blocks, too.
    blocks = getattr(returned, "blocks", returned)
    kind = type(returned).__name__
    problem = None
    if blocks is returned:
        problem = f"{named(returned)}, which is no ModelReply"
    elif not isinstance(blocks, tuple | list):
        problem = f"a {kind} whose blocks are {named(blocks)}, which is no tuple of blocks"
    else:
        for place, block in enumerate(blocks):
            if not isinstance(block, _BLOCKS):
                problem = f"a {kind} whose blocks[{place}] is {named(block)}, which is no block"
                break
        else:
            if type(returned) is ModelReply and type(blocks) is tuple:
                return returned
            return ModelReply(tuple(blocks), returned.stop, returned.usage)
    raise ProviderError(f"the provider returned {problem}", retryable=False, sent=permit.used)


def named(value: object) -> str:
    """A value by its type, with what it is where that is short and plain."""
    kind = type(value).__name__
    if value is None:
        return "None"
    return f"{kind} {value!r:.60}" if type(value) in (bool, int, float, str, bytes) else kind


def text_of(error: BaseException) -> str:
    """An error's text; where that cannot be had, a note that says so."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - a foreign error's text is not worth another one.
        return f"its text cannot be read ({type(problem).__name__})"
