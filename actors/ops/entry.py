"""The console script: the command line, interrupted as well before it is there.

To import the command line takes a good part of a second. Ctrl-C in it ends as it does later: one
line on stderr, with `--json` an object on stdout, exit code 130; nothing was begun.

Invariants:
    I1  Nothing is imported before the signal is ours but what the interpreter has anyway.
    I2  A process that was started with the signal ignored goes on ignoring it.

Runs in: a process of its own, its main thread.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Final, NoReturn

INTERRUPTED: Final = 130


def _end(*_: Any) -> NoReturn:
    # Not by an exception: whoever imports may swallow it, or end half way with another.
    said = '{"error": {"code": "interrupted", "text": "interrupted", "field": null}}\n'
    for fd, text in ((1, said if "--json" in sys.argv[1:] else ""), (2, "abeyance: interrupted\n")):
        try:
            os.write(fd, text.encode())
        except OSError:  # Nowhere is left to say it.
            continue
    os._exit(INTERRUPTED)


def main() -> int:
    """Run the command line and return its exit code."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    from .cli import main as command_line

    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command_line()
    except KeyboardInterrupt:  # In the moment before it is the command line's, or behind it.
        _end()


if __name__ == "__main__":
    sys.exit(main())
