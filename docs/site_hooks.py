"""What the site needs beside the pages: the examples that they link to, shown as pages of it.

A link of a page leaves `docs/` only for files of the checkout. In the site those stand under
`files/`, each as a page with its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
_OUTSIDE: Final = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)((?:#[^)\s]*)?)\)")
_PAGES: Final = frozenset({"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"})


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file outside that some page links to."""
    wanted = set()
    for file in files.documentation_pages():
        for target, _ in _OUTSIDE.findall(file.content_string):
            path = _outside(file.src_uri, target)
            if path is not None:
                wanted.add(path)
    for path in sorted(wanted):
        text = (ROOT / path).read_text(encoding="utf-8")
        body = (
            f"# {path}\n\n```python\n{text}```\n" if path.endswith(".py") else f"```\n{text}```\n"
        )
        files.append(File.generated(config, f"files/{path}.md", content=body))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links to files outside lead to their pages in the site."""

    def inside(match: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, match[1])
        if path is None:
            return match[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"]({posixpath.relpath(f'files/{path}.md', here or '.')})"

    return _OUTSIDE.sub(inside, markdown)


def _outside(page: str, target: str) -> str | None:
    """Where a link leads that leaves the documents, from the checkout's root; None: it stays."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs/") else path
