"""Output of commands for people: tables.

This code has a file of its own, so that commands without such output start sooner: they need not import the drawing
code.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 400
"""Line width in characters if stdout is no terminal: wide, so that no text is cut for programs that read it."""
_LEAST_TEXT = 8
"""A column of text is not made narrower than this."""


def console() -> Console:
    """Stdout, as wide as the terminal; for a pipe, `PIPE_WIDTH`."""
    out = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False)
    if out.is_dumb_terminal:  # rich takes it for 80 columns
        out.size = shutil.get_terminal_size()
    return out


def printable(text: str) -> str:
    """`text` with control characters escaped: a name must not move the cursor or colour the terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def grid(rows: Iterable[Sequence[object]]) -> Table:
    """Names and values, aligned."""
    table = Table.grid(padding=(0, 2))
    for name, *values in rows:
        table.add_row(
            Text(printable(str(name)), style="cyan"),
            *(Text(printable(str(value)), overflow="fold") for value in values),
        )
    return table


class Listing:
    """Rows under heads. A head that ends in ``>`` makes its column right-aligned.

    On a narrow terminal each row is a paragraph of heads and values.
    """

    def __init__(self, heads: Sequence[str], rows: Iterable[Sequence[object]], style: str = "") -> None:
        self._heads = [head.rstrip(">") for head in heads]
        self._right = [head.endswith(">") for head in heads]
        self._rows = [[printable(str(cell)) for cell in row] for row in rows]
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        columns = zip(self._heads, *self._rows, strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        least = [width if right else min(width, _LEAST_TEXT) for width, right in zip(widths, self._right, strict=True)]
        lines = [line for row in self._rows for line in self._paragraph(row, options.max_width)]
        table = self._table()
        fits = sum(least) + 2 * len(least) - 2 <= options.max_width
        if fits and len(console.render_lines(table, options)) <= 2 * len(lines) + 1:
            yield table
        else:
            yield Text("\n".join(lines), style=self._style)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="cyan")
        for head, right in zip(self._heads, self._right, strict=True):
            table.add_column(head, justify="right" if right else "left", overflow="fold", no_wrap=right)
        for row in self._rows:
            table.add_row(*(Text(cell, style=self._style) for cell in row))
        return table

    def _paragraph(self, row: Sequence[str], width: int) -> list[str]:
        """The first cell, and the others after their heads; dashes, for what is not known, are left out."""
        lines = [f"{self._heads[0]} {row[0]}" if self._right[0] else row[0]]
        for head, cell in zip(self._heads[1:], row[1:], strict=True):
            said = f"{head} {cell}".strip()
            if cell == "-":
                continue
            if cell_len(lines[-1]) + 2 + cell_len(said) <= width:
                lines[-1] += "  " + said
            else:
                lines += ["  " + line for line in textwrap.wrap(said, max(width - 2, 1))]
        return lines
