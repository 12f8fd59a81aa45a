"""The simulator as a process: `python -m abeyance.actors.testing.simulator`.

It serves until SIGTERM or SIGINT, then exits with 0. Exit code 2: the script or a path is unusable.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from .script import Script, read_script
from .server import ProviderSimulator


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m abeyance.actors.testing.simulator",
        description="A provider on loopback that answers by a script and keeps a wire log.",
    )
    parser.add_argument("--script", type=Path, help="rules as JSON; without it, an echo")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="where the wire log is appended")
    parser.add_argument("--port-file", type=Path, help="where the port is written once it serves")
    options = parser.parse_args(arguments)
    unusable: list[str] = []
    try:
        script = () if options.script is None else read_script(options.script.read_bytes())
        trio.run(_serve, script, options.port, options.log, options.port_file)
    except* (OSError, ValueError) as group:
        unusable = _leaves(group)
    for text in unusable:
        print(f"simulator: {text}", file=sys.stderr)
    return 2 if unusable else 0


def _leaves(error: BaseException) -> list[str]:
    """The texts of a group's own errors; trio's nurseries wrap them once a level."""
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in _leaves(inner)]
    return [str(error)]


async def _serve(script: Script, port: int, log: Path | None, port_file: Path | None) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with ProviderSimulator(script, port=port, log_path=log) as simulator:
            if port_file is not None:
                # Renamed into place, so that whoever waits for the file reads a whole number.
                partial = port_file.with_name(port_file.name + ".partial")
                partial.write_text(f"{simulator.port}\n")
                partial.replace(port_file)
            print(f"simulator: serving on {simulator.base_url}", flush=True)
            async for _signal in signals:
                return


if __name__ == "__main__":
    sys.exit(main())
