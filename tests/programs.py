"""Programs that tests start, which `make test` gets (tools/programs.sh)."""

from __future__ import annotations

import os
import shutil

import pytest


def need(program: str) -> None:
    """Skip the test if it can't be found; in CI (the environment has CI) the test fails."""
    if shutil.which(program) is None:
        tell = pytest.fail if "CI" in os.environ else pytest.skip
        tell(f"needs the program {program}: `make programs` gets it, or says what to install")
