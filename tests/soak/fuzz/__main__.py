"""Makes one call alone, `python -m soak.fuzz 'JSON'`, or a round again, `python -m soak.fuzz --round HAZARD SEED`."""

from __future__ import annotations

import os
import sys
import tempfile

from crash.zygote import Crew

from soak.fuzz.field import Field
from soak.fuzz.player import Round


def main(arguments: list[str]) -> int:
    """The command."""
    os.environ.setdefault("DI_STORE_TEST_ROOT", tempfile.mkdtemp(prefix="ds-"))
    crew = Crew(["numpy", "torch", "di_store", "soak.fuzz.player"])
    name = f"fuzz-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        if arguments[0] == "--round":
            game = Round(name, folder, int(arguments[2]), arguments[1], 100_000, 3.0)
        else:
            game = Round(name, folder, 1, "odd", 1, 60.0, tuple(arguments))
        found = Field(crew, 30.0).play(game)
    crew.close()
    for each in found:
        print(f"{each.kind}: {each.call}\n{each.error}: {each.text}\n{each.trace}")
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
