"""Every message accounted for, at length: six host threads against kills, stops and crashes.

The figure is no ratio: it says how fast messages went while actors died. What counts is that each
ended once; one that did not fails the suite and is named.
"""

from __future__ import annotations

from tests.core import stress

from .measure import Result, Scale, Spread

_MESSAGES = 1_100_000
_QUICK = 60_000


def stressed(scale: Scale) -> list[Result]:
    done = stress.run(_QUICK if scale.quick else _MESSAGES)
    if done.problems:
        raise RuntimeError(f"seed {done.seed}: " + "; ".join(done.problems[:20]))
    rate = Spread.of([done.accepted / done.seconds])
    return [
        Result(
            "stress",
            f"messages of {done.threads} host threads, accepted and ended once each",
            "",
            "1/s",
            rate,
            beside={
                "accepted": done.accepted,
                "handled": done.handled,
                "dead_letters": done.dead_letters,
                "quarantined": done.quarantined,
                "kills": done.kills,
                "incarnations": done.incarnations,
                "asks": sum(done.asks.values()),
            },
        )
    ]
