"""`get` of an object from another process over TCP, beside Mooncake's store, one turn after the other.

Mooncake's wheel is large and needs libraries of InfiniBand (Debian: libibverbs1 librdmacm1 libnuma1 liburing2), so it
has an environment of its own: ``pip install mooncake-transfer-engine-non-cuda numpy``. Against a release build:
``PYTHONPATH=build/release:. python tools/beside_mooncake.py ENVIRONMENT/bin/python``.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

import di_store
from bench.cluster.__main__ import served
from bench.cluster.wire import median_ms

BAR = 1.5  # times Mooncake's speed, at 1 MB
OBJECTS = 32  # so many take turns

PEER = """
import os, sys, time
from mooncake.store import MooncakeDistributedStore
import numpy as np
role, port, master, size, objects = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
store = MooncakeDistributedStore()
segment = 2 * objects * size + (64 << 20) if role == "put" else 0
assert store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", segment, 128 << 20, "tcp", "", master) == 0
if role == "put":
    for number in range(objects):
        assert store.put(str(number), os.urandom(size)) == 0
    print("ready", flush=True)
    sys.stdin.readline()
buffer = np.ones(size, np.uint8)
assert role == "put" or store.register_buffer(buffer.ctypes.data, size) == 0
print("ready", flush=True)
for seconds in sys.stdin:
    taken, until, number = [], time.perf_counter() + float(seconds), 0
    while (begin := time.perf_counter()) < until:
        assert store.get_into(str(number % objects), buffer.ctypes.data, size) == size
        taken.append(time.perf_counter() - begin)
        number += 1
    print(float(np.median(taken)) * 1e3, flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Mooncake:
    """Its master, a process with the objects and one that reads them."""

    def __init__(self, python: str, size: int, running: ExitStack) -> None:
        port = free_port()
        master = [str(Path(python).parent / "mooncake_master"), f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        master_process = subprocess.Popen(master, **quiet)  # type: ignore[call-overload]
        running.callback(master_process.terminate)
        for role in ("put", "get"):
            words = [python, "-c", PEER, role, str(free_port()), f"127.0.0.1:{port}", str(size), str(OBJECTS)]
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            running.callback(process.terminate)
            assert process.stdin is not None
            assert process.stdout is not None
            self._in: IO[str] = process.stdin
            self._out: IO[str] = process.stdout
            self._word("ready")

    def _word(self, last: str) -> str:
        while line := self._out.readline():
            if line.startswith(last) or last == "":
                return line
        raise SystemExit("Mooncake does not start: see its environment above")

    def get_ms(self, seconds: float) -> float:
        """The median of its gets, into memory that is there and registered."""
        self._in.write(f"{seconds}\n")
        self._in.flush()
        return float(self._word(""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="of the environment that has Mooncake")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of an object (default 1 MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of both; medians count")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    args = parser.parse_args()
    with ExitStack() as running:
        peer = Mooncake(args.python, args.bytes, running)
        store = running.enter_context(di_store.connect(running.enter_context(served())))
        data = np.random.default_rng(0).integers(0, 255, args.bytes, np.uint8)
        refs = [store.put(data) for _ in range(OBJECTS)]
        turn = iter(range(1 << 60))
        pairs = []
        for _ in range(args.rounds):
            ours = median_ms(lambda: store.get(refs[next(turn) % OBJECTS]), args.seconds)
            pairs.append((ours, peer.get_ms(args.seconds)))
            print(f"ours {pairs[-1][0]:.3f} ms, Mooncake {pairs[-1][1]:.3f} ms", flush=True)
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    print(f"get of {args.bytes} bytes: {ratio:.2f} times Mooncake's speed (bar {BAR})")
    return ratio < BAR


if __name__ == "__main__":
    sys.exit(main())
