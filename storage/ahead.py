"""A request of many rows, checked and encoded a part at a time, before it is handed over.

`prepare` does the same at once, some milliseconds for ten thousand rows. A requester whose thread
has other things to do takes these steps first; what it hands over then costs its batch nothing.

Invariants:
    I1  What is ready is what `prepare` would have made of the same request.
    I2  What is not plainly sound is left as it is, whatever is wrong with it: `prepare` can say.

Runs in: the requester's thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from typing import Final

from .batch import Checked, Prepared, Ready, check_one
from .errors import InvalidRequestError, RequestTooLargeError
from .store import Limits, Request

STEP_OPS: Final = 256
"""Operations that are checked and encoded in a step: about a third of a millisecond."""


def make_ready(request: Request, limits: Limits) -> Generator[None, None, Request]:
    """Check and encode a request in steps; returns it ready, or as it was.

    Its keys and values are looked at now: a store with the same limits takes it without a look.
    """
    if request.appends or request.rows or request.ops > limits.ops_max:
        return request
    whole = Prepared([], [], [], (), request.chain)
    reads: dict[str, list[bytes]] = defaultdict(list)
    known: Checked = {}
    seen: set[tuple[str, bytes]] = set()
    size = 0
    try:
        for part in _parts(request):
            one = check_one(part, limits, reads, set(), known)
            whole.guards.extend(one.guards)
            whole.puts.extend(one.puts)
            whole.deletes.extend(one.deletes)
            size += sum(len(raw) + len(value.body) for _, raw, value in one.puts)
            seen.update((table, raw) for table, raw, _ in one.puts)
            seen.update(one.deletes)
            yield
    except (KeyError, TypeError, ValueError, AttributeError, InvalidRequestError):
        return request
    except RequestTooLargeError:
        return request
    once = len(seen) == len(whole.puts) + len(whole.deletes)
    if size > limits.payload_bytes_max or not once:
        return request
    return Ready(
        request.guards,
        request.puts,
        request.deletes,
        request.appends,
        request.chain,
        (),
        whole,
        dict(reads),
        limits,
    )


def _parts(request: Request) -> Iterator[Request]:
    guards, puts, deletes = request.guards, request.puts, request.deletes
    for at in range(0, len(guards), STEP_OPS):
        yield Request(guards=guards[at : at + STEP_OPS])
    for at in range(0, len(puts), STEP_OPS):
        yield Request(puts=puts[at : at + STEP_OPS])
    for at in range(0, len(deletes), STEP_OPS):
        yield Request(deletes=deletes[at : at + STEP_OPS])
