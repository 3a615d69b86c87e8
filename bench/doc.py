"""The options --doc and --doc-check of a benchmark whose figures are shown in the docs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import ROOT
from bench.kit import Page, Result


@dataclass(frozen=True)
class Doc:
    """Pages written from one result.

    Attributes:
        pages: all of them name the same result file.
        blocks: from a result and its file, makes the function that returns a block's text by the block's name.
        draw: writes the charts.
    """

    pages: Sequence[Page]
    blocks: Callable[[Result, Path], Callable[[str], str]]
    draw: Callable[[Result], None] = lambda result: None

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        help_text = "write the figures into the docs; with FILE: those of that result, without measuring"
        parser.add_argument("--doc", nargs="?", const="", metavar="FILE", help=help_text)
        parser.add_argument("--doc-check", action="store_true", help="only check that the docs show their result")

    def without_measuring(self, args: argparse.Namespace) -> int | None:
        """Do what the options ask for if that needs no measurement. Returns the exit status; None: measure."""
        if args.doc_check:
            return 0 if self.holds() else 1
        if args.doc:
            self.write(Path(args.doc))
            return 0
        return None

    def shown(self) -> Path:
        """The path of the result file that the pages name."""
        (path,) = {path for page in self.pages for path in page.results()}
        return ROOT / path

    def holds(self) -> bool:
        """Whether the pages show the figures of the result that they name."""
        path = self.shown()
        block = self.blocks(Result.load(path), path)
        return all(page.holds(block) for page in self.pages)

    def write(self, path: Path) -> None:
        """Write the figures of a result into the pages, and draw its charts."""
        result = Result.load(path)
        for page in self.pages:
            page.write(self.blocks(result, path))
        self.draw(result)
