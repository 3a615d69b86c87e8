"""The programs of an adapter's page, run as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_programs(name: str, folder: Path) -> None:
    """Run each block of Python of docs/adapters/NAME.md from a file, in an empty folder."""
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / f"docs/adapters/{name}.md").read_text(), re.M | re.S)
    assert programs
    for number, program in enumerate(programs):
        file = folder / f"program{number}.py"
        file.write_text(program)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(file)], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
