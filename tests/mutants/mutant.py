"""One mechanism broken on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = "native:"


@dataclass(frozen=True)
class Mutant:
    """A change to one file that at least one of the named tests must notice.

    Attributes:
        name: of the mutant, lower case with hyphens.
        promise: which promise of docs/testing.md the mechanism keeps.
        file: below the repository's root.
        old: text that occurs exactly once in the file.
        new: what takes its place.
        tests: pytest's node ids, or "native:<program>" for one of tests/native.
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def broken(self, text: str) -> str:
        """The file's text with the mechanism broken; ValueError if the place is not there, or there twice."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"mutant {self.name}: its text occurs {found} times in {self.file}; write it anew")
        return text.replace(self.old, self.new)
