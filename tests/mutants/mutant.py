"""One mechanism broken on purpose, at a place found by its file, its function and its text."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import tidy_scan

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = "native:"


@dataclass(frozen=True)
class Mutant:
    """A change to the sources that at least one of the named tests must notice.

    Attributes:
        name: lower case with hyphens.
        promise: which promise of docs/testing.md the mechanism keeps.
        place: the file and the function or class around the text, "native/heap/pins.cc::Pins::drop" or
            "src/di_store/store/handle.py::Store.close".
        old: text that stands there exactly once.
        new: what takes its place.
        tests: pytest's node ids, or "native:<program>" for one of tests/native.
    """

    name: str
    promise: str
    place: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        """Path of the broken file, relative to the tree."""
        return self.place.partition("::")[0]

    def broken(self, root: Path = ROOT) -> str:
        """The text of the file, in the tree at `root`, with the mechanism broken.

        Raises:
            ValueError: the file, the function or the text is not there, or the text is there more than once.
        """
        path = root / self.file
        if not path.is_file():
            raise ValueError(f"mutant {self.name}: there is no file {self.file}; write its new name in tests/mutants")
        text = path.read_text()
        function = self.place.partition("::")[2]
        spans = _spans(text, path.suffix).get(function, [])
        if not spans:
            raise ValueError(
                f"mutant {self.name}: {self.file} has no function or class {function}; write its new name in "
                "tests/mutants"
            )
        found = [begin + at for begin, end in spans for at in _all(self.old, text[begin:end])]
        if len(found) != 1:
            raise ValueError(
                f"mutant {self.name}: its text is {len(found)} times in {self.place}, not once; adapt it in "
                "tests/mutants to the code as it is now"
            )
        return text[: found[0]] + self.new + text[found[0] + len(self.old) :]


@functools.cache
def _spans(text: str, suffix: str) -> dict[str, list[tuple[int, int]]]:
    """By name, where functions and classes lie; several for overloads."""
    return tidy_scan.python_spans(text) if suffix == ".py" else tidy_scan.native_spans(text)


def _all(piece: str, text: str) -> list[int]:
    """Where the piece begins in the text, each time."""
    found = []
    at = text.find(piece)
    while at >= 0:
        found.append(at)
        at = text.find(piece, at + 1)
    return found
