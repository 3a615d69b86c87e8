"""Output of commands for people: tables, and a progress bar.

This code has a file of its own, so that commands without such output start sooner: they need not import the drawing
code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 400
"""Line width in characters if stdout is no terminal: wide, so that no text is cut for programs that read it."""


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, if that is a terminal. Yields a function to call with the amount done and the total."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def console() -> Console:
    """Stdout, as wide as the terminal; for a pipe, `PIPE_WIDTH`."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """`text` with control characters escaped: a name must not move the cursor or colour the terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def grid(rows: Iterable[Sequence[object]]) -> Table:
    """Names and values, aligned."""
    table = Table.grid(padding=(0, 2))
    for name, *values in rows:
        table.add_row(Text(printable(str(name)), style="cyan"), *(Text(printable(str(value))) for value in values))
    return table


def listing(heads: Sequence[str], rows: Iterable[Sequence[object]], style: str = "") -> Table:
    """A table of rows under `heads`; a head that ends in ``>`` makes its column right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    for head in heads:
        right = head.endswith(">")
        table.add_column(head.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell)), style=style) for cell in row))
    return table
