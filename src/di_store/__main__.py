"""`python -m di_store` runs the command `di-store`."""

from __future__ import annotations

import sys

from di_store.cli import main

if __name__ == "__main__":
    sys.exit(main())
