"""Measurements of Abeyance, each beside a peer or a limit in the same run.

`python -m bench` prints a table and writes JSON; `docs/performance.md` says what the rows mean. A
ratio of two figures taken in turns in one process travels between machines; the figures do not.
"""
