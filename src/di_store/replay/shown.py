"""What notebooks call."""

from __future__ import annotations

from typing import Any


def repr_html(self: Any) -> str:
    """The object as a table, for notebooks."""
    from di_store.replay.notebook import html_of  # for those who work in one

    return html_of(self)
