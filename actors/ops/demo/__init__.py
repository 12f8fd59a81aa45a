"""`abeyance demo`: a play in child processes, and an audit of what was on the wire.

A simulator and a host run in processes of their own; the host is killed with SIGKILL while a turn
is held, started again, and released from another process. `play` is the text, `host` and
`simulator` are the processes, `director` runs them, `audit` counts.
"""

from .audit import DemoReport, Promise
from .children import DemoError
from .director import DemoOptions, run_demo

__all__ = ["DemoError", "DemoOptions", "DemoReport", "Promise", "run_demo"]
