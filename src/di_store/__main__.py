"""The command `di-store`, also `python -m di_store`. What it needs besides the package is the extra `cli`."""

from __future__ import annotations

import sys

NEEDED = ("click", "rich", "yaml")


def main() -> int:
    """Run the command; its exit status. One line if a package of the extra is missing."""
    try:
        from di_store.cli import main as run

        return run()
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        print(f"di-store: the command needs {package}: pip install 'di-store[cli]'", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
