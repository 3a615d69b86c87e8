"""Print requirements of pyproject.toml, one per line: `requires.py build runtime test dev`.

`build` is the list of the build system, `runtime` the package's dependencies, any other word the name of an extra.
"""

import sys
import tomllib
from pathlib import Path


def main(words: list[str]) -> None:
    with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    parts = {
        "build": project["build-system"]["requires"],
        "runtime": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
    }
    print("\n".join(dict.fromkeys(line for word in words for line in parts[word])))


if __name__ == "__main__":
    main(sys.argv[1:])
