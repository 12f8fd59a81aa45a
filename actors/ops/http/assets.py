"""The files of the page: what they are, and what a browser is told of each.

They hold nothing of a host, so that whoever reaches the API under its own name may have them: what
the page shows it asks for with the token that it is given.

Runs in: the loop thread; the files are read once, when an API is made.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple

PAGE: Final = "index.html"
_KINDS: Final = {
    PAGE: "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "acts.js": "text/javascript",
    "texts.js": "text/javascript",
}


class Asset(NamedTuple):
    """One file of the page."""

    body: bytes
    kind: str


def assets() -> dict[str, Asset]:
    """Every file of the page, by the path it is asked for; the page itself by `/`."""
    home = files(__package__) / "page"
    return {
        "/" if name == PAGE else f"/{name}": Asset((home / name).read_bytes(), kind)
        for name, kind in _KINDS.items()
    }
