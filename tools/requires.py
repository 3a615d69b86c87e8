"""Print requirements of pyproject.toml, one per line: `requires.py build runtime test dev`.

`build` is the list of the build system, `runtime` the package's dependencies, any other word the name of an extra. An
extra that names another one, as "di-store[cli]", has its lines.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def read(project: dict) -> dict[str, list[str]]:
    """The requirements by word."""
    return {
        "build": project["build-system"]["requires"],
        "runtime": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
    }


def expand(parts: dict[str, list[str]], word: str) -> Iterator[str]:
    for line in parts[word]:
        own = re.fullmatch(r"di-store\[(\w+)\]", line)
        yield from expand(parts, own[1]) if own else [line]


def main(words: list[str]) -> None:
    with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
        parts = read(tomllib.load(file))
    print("\n".join(dict.fromkeys(line for word in words for line in expand(parts, word))))


if __name__ == "__main__":
    main(sys.argv[1:])
