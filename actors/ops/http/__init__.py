"""The HTTP API of a host: what the control socket does, for programs and browsers on this machine.

Off by default (`open_runtime(..., http=HttpApi(...))`). Needs the `http` extra; this package itself
imports none of it.
"""
