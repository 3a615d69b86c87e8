"""Measures this machine's memory: numpy's copy of 256 MiB on one thread. Needs numpy only."""

from __future__ import annotations

import numpy as np

from bench.measure import Script, arguments

COPY_BYTES = 256 << 20


def main() -> None:
    args = arguments("this machine's memory")
    script = Script("limits", args.seconds, args.repeats, "")
    source, target = np.ones(COPY_BYTES, np.uint8), np.zeros(COPY_BYTES, np.uint8)
    script.emit("memory", "copy, 1 thread", script.rate(lambda: np.copyto(target, source)) * COPY_BYTES / 1e9, "GB/s")


if __name__ == "__main__":
    main()
