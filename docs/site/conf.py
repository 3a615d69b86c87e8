"""How `make site` makes the pages of docs/ into a site: Sphinx, with MyST for Markdown."""

from __future__ import annotations

import os
import re
from typing import Any

project = "Di-store"
author = "The Di-store authors"
extensions = ["myst_parser"]
root_doc = "site/index"
html_theme = "furo"
html_title = "Di-store"
html_copy_source = False
html_static_path = ["static"]
myst_heading_anchors = 4

REPOSITORY = os.environ.get("DI_STORE_REPOSITORY", "")
"""Where a reader finds the files that are no pages, "https://host/owner/di-store/blob/main"; "": they have no link."""
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)\s]*)\)")


def _outside(docname: str, text: str) -> str:
    """The text with links that lead out of docs/ made into links to the repository, or into their text."""
    depth = docname.count("/") + 1

    def replaced(found: re.Match[str]) -> str:
        label, up, rest = found.groups()
        if len(up) // 3 < depth:
            return found[0]  # another page
        return f"[{label}]({REPOSITORY}/{rest})" if REPOSITORY else label

    return _LINK.sub(replaced, text)


def setup(app: Any) -> None:
    """Called by Sphinx."""

    def read(app: Any, docname: str, source: list[str]) -> None:
        source[0] = _outside(docname, source[0])

    def page(app: Any, name: str, template: str, context: dict[str, Any], tree: Any) -> None:
        if name == "search":
            app.add_js_file("ranking.js")

    app.connect("source-read", read)
    app.connect("html-page-context", page)
