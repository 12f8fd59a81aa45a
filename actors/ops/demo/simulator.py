"""The demo's provider: the simulator in a process of its own, answering by the play.

It keeps its wire log in a file that outlives every host. The model of the agent that asks for too
much is limited from that request until the line `lift` arrives: a real provider's capacity does
not come back because its client was restarted.

Its standard output carries one JSON line once it serves; it ends with its standard input.

Runs trio in the main thread of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import trio

from abeyance.actors.testing.simulator import Answer, ProviderSimulator, SimulatedTool, WireRequest

from . import play
from .pipes import read_lines, say


class _Model:
    """The script: the play's answers, and the limit while it stands."""

    def __init__(self, first_byte_ms: int, chunk_delay_ms: int) -> None:
        self._first_byte_ms = first_byte_ms
        self._chunk_delay_ms = chunk_delay_ms
        self.lifted = False

    def __call__(self, request: WireRequest) -> Answer:
        if not self.lifted and play.is_limited(request.json):
            return Answer(
                status=429,
                headers={"retry-after": str(play.WAIT_S)},
                body={
                    "type": "error",
                    "error": {"type": "rate_limit_error", "message": "Come back in two hours."},
                },
                delay_ms=self._first_byte_ms,
            )
        given = play.answer(request.json)
        return Answer(
            text=given.text,
            tools=tuple(SimulatedTool(call.name, dict(call.input)) for call in given.calls),
            delay_ms=self._first_byte_ms,
            chunk_delay_ms=self._chunk_delay_ms,
        )


async def _serve(options: argparse.Namespace) -> None:
    model = _Model(options.first_byte_ms, options.chunk_delay_ms)
    async with ProviderSimulator(model, log_path=options.log) as simulator:
        say("serving", base_url=simulator.base_url)
        async for line in read_lines(sys.stdin.fileno()):
            if json.loads(line) == {"do": "lift"}:
                model.lifted = True
                say("lifted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the end of standard input."""
    parser = argparse.ArgumentParser(prog="abeyance-demo-simulator")
    parser.add_argument("--log", required=True)
    parser.add_argument("--first-byte-ms", type=int, default=60)
    parser.add_argument("--chunk-delay-ms", type=int, default=15)
    trio.run(_serve, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
