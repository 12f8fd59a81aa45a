"""The play of the runs' demo: one run of five steps, and how the simulated model answers it.

Pure. The hosts, the provider, the endpoint and the audit read the same names from here.
"""

from __future__ import annotations

from typing import Any, Final

KEY: Final = "report:today"
WORKFLOW: Final = "report"
PROVIDER: Final = "anthropic"
MODEL: Final = "sim-large"
WINDOW: Final = "five_hour"
WALL_S_MIN: Final = 4.0
WALL_S_MAX: Final = 120.0
"""How far ahead the simulated window opens again, as the machine is quick; a real one takes hours.
"""
BUFFER_S: Final = 1.0
"""How long after it the run goes on; five minutes by default."""

DRAFT: Final = "Draft the report of today in one sentence."
TRANSLATE: Final = "Translate the report into French."
ANSWERS: Final = {DRAFT: "All is quiet.", TRANSLATE: "Tout est calme."}

COLLECT: Final = "collect"
POSTS: Final = ("announce", "publish/ops", "publish/all", "close", "final/file")
"""The items that post, in order; the last is a finaliser's."""
HELD_POST: Final = "publish/all"
"""The post in whose middle a host dies: the endpoint has it, and the host never hears so."""
ITEMS: Final = (
    COLLECT,
    "draft",
    "announce",
    "publish/ops",
    "publish/translate",
    "publish/all",
    "close",
    "final/file",
)
WALLED: Final = "publish/translate"
STATES: Final = (
    "running",
    "waiting_for_capacity",
    "resuming",
    "running",
    "resuming",
    "running",
    "completed",
)
"""What the run goes through: a wall, a resume, a death in the middle of a post, and its end."""


def asked(body: dict[str, Any]) -> str:
    """What a request to the model asks for: the text of its last message."""
    content = body["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])
