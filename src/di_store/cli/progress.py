"""A progress bar for commands that may take long. It has a file of its own, as few commands draw anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Show(Protocol):
    """Shows how far a command is."""

    def __call__(self, done: int, total: int | None, what: str = "") -> None:
        """`total` None: not known. `what`: the present step, if it is another one."""


@contextmanager
def progress_bar(what: str, quiet: bool = False, moves: bool = True) -> Iterator[Show]:
    """A bar on stderr while the block runs, with the time since its start. Nothing if stderr is no terminal.

    `moves`: a thread draws it ten times a second. False: it is drawn by each call, for a block that measures.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, what="": None
        return
    from rich.console import Console  # drawing takes long to load
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(16), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=moves) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None, what: str = "") -> None:
            bar.update(task, completed=done, total=total, description=what or None, refresh=not moves)

        yield show
