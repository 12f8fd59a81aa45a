"""`abeyance demo --runs`: a run of a workflow that outlives its processes, and an audit of it.

A simulated provider and an endpoint for posts run in processes of their own, which outlive every
host. Hosts are killed with SIGKILL, in the wait and in the middle of a post. `play` is the text,
`host`, `provider` and `endpoint` are the processes, `director` runs them, `audit` counts.
"""

from .director import RunsDemoOptions, run_runs_demo

__all__ = ["RunsDemoOptions", "run_runs_demo"]
