"""The simulated provider of the runs' demo, in a process of its own.

The first request for the translation meets a window that is used up, which opens again some seconds
later, whoever asks: a real provider's capacity does not come back because its client was restarted.
How many, it is told on its standard input (`wall`), with which it ends. It keeps its wire log in a
file; its standard output carries one JSON line once it serves.

Runs trio in the main thread of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import trio

from abeyance.actors.testing.simulator import Answer, ProviderSimulator, WireRequest

from ..pipes import read_lines, say
from . import play

_UNIFIED = "anthropic-ratelimit-unified"


class _Model:
    def __init__(self) -> None:
        self.wall_s = play.WALL_S_MIN
        self._opens_s: int | None = None

    def __call__(self, request: WireRequest) -> Answer:
        asked = play.asked(request.json)
        if asked == play.TRANSLATE:
            if self._opens_s is None:
                self._opens_s = int(time.time() + self.wall_s)
            if time.time() < self._opens_s:
                return self._wall(self._opens_s)
        return Answer(text=play.ANSWERS.get(asked, "Noted."))

    def _wall(self, opens_s: int) -> Answer:
        return Answer(
            status=429,
            headers={
                f"{_UNIFIED}-status": "rejected",
                f"{_UNIFIED}-representative-claim": play.WINDOW,
                f"{_UNIFIED}-reset": str(opens_s),
                f"{_UNIFIED}-5h-status": "rejected",
                f"{_UNIFIED}-5h-utilization": "1.0",
                f"{_UNIFIED}-5h-reset": str(opens_s),
            },
            body={
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "This request would exceed your account's rate limit.",
                },
            },
        )


async def _serve(options: argparse.Namespace) -> None:
    model = _Model()
    async with ProviderSimulator(model, log_path=options.log) as simulator:
        say("serving", url=simulator.base_url)
        async for line in read_lines(sys.stdin.fileno()):
            model.wall_s = float(json.loads(line)["wall"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the end of standard input."""
    parser = argparse.ArgumentParser(prog="abeyance-demo-provider")
    parser.add_argument("--log", required=True)
    trio.run(_serve, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
