"""docs/table_rules.md says what becomes of the work of a killed worker: here as there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("worker_dies.py")


@pytest.mark.parametrize(("system", "lost"), [("di_store", 10), ("di_store_lease", 0)])
def test_the_work_of_a_killed_worker_is_lost_without_a_lease(system: str, lost: int) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), system], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["taken"], found["lost"]) == (10, lost)
    assert (found["given_again"] is None) == (lost > 0)
