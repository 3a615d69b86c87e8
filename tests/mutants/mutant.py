"""One mechanism broken on purpose, at the place that the sources mark with its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = "native:"
SOURCES = ("native", "src")
_MARK = re.compile(r"^ *(?://|#) mutant: ([a-z0-9-]+)\n", re.MULTILINE)
_REACH = 6
"""Lines below its mark in which the text of a mutant begins."""


@dataclass(frozen=True)
class Mutant:
    """A change to the sources that at least one of the named tests must notice.

    Attributes:
        name: lower case with hyphens; a line ``// mutant: name`` (in Python ``# mutant: name``) marks the place.
        promise: which promise of docs/testing.md the mechanism keeps.
        old: text that begins in one of the next lines behind the mark.
        new: what takes its place.
        tests: pytest's node ids, or "native:<program>" for one of tests/native.
    """

    name: str
    promise: str
    old: str
    new: str
    tests: tuple[str, ...]

    def broken(self, text: str) -> str:
        """The text of the marked file with the mechanism broken; ValueError if there is no such text at the mark."""
        (mark,) = (found.end() for found in _MARK.finditer(text) if found[1] == self.name)
        end = mark
        for _ in range(_REACH):
            while (other := _MARK.match(text, end)) is not None:
                end = other.end()
            end = text.find("\n", end) + 1 or len(text)
        at = text.find(self.old, mark)
        if not mark <= at < end:
            raise ValueError(f"mutant {self.name}: its text does not follow its mark; write it anew")
        return text[:at] + self.new + text[at + len(self.old) :]


def marked_files(root: Path = ROOT) -> dict[str, Path]:
    """By mutant, the file below `root` that marks its place.

    Raises:
        ValueError: two places have one name.
    """
    found: dict[str, Path] = {}
    for source in SOURCES:
        for path in sorted((root / source).rglob("*")):
            if path.suffix not in (".cc", ".h", ".py"):
                continue
            for name in _MARK.findall(path.read_text()):
                if name in found:
                    raise ValueError(f"mutant {name} is marked twice: in {found[name]} and in {path}")
                found[name] = path
    return found
