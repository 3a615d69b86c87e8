"""Rows of a writer of another process than the store's, beside Reverb's writer, one turn after the other.

Reverb needs one exact TensorFlow, so it has an environment of its own, with Python 3.11: ``pip install
dm-reverb[tensorflow]``. Against a release build: ``PYTHONPATH=build/release:. python tools/beside_reverb.py
ENVIRONMENT/bin/python``.

Both write the transitions of DQN on Atari. Reverb stores each with its two stacks of frames, 56 KB; so do we in the
first line. In the second we are given a step with its newest frame, 7 KB, and make the same transitions of that.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

import di_store
from bench.cluster.__main__ import served

WHOLE_BAR, NEWEST_BAR = 3.5, 25.0  # times Reverb's rows

PEER = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, reverb
table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10_000, reverb.rate_limiters.MinSize(1))
server = reverb.Server(tables=[table])
frames = np.random.default_rng(0).integers(0, 255, (4, 84, 84), np.uint8)
row = {"obs": frames, "next_obs": frames, "action": np.int64(1), "reward": np.float32(1), "discount": np.float32(0)}
client = reverb.Client(f"localhost:{server.port}")
print("ready", flush=True)
for seconds in sys.stdin:
    count, begin = 0, time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        while time.perf_counter() - begin < float(seconds):
            writer.append(row)
            writer.create_item("t", 1.0, {name: writer.history[name][-1:] for name in row})
            count += 1
            if count % 32 == 0:
                writer.flush()
        writer.flush()
    print(count / (time.perf_counter() - begin), flush=True)
"""


class Reverb:
    """A process with its server and its writer, which talk by gRPC."""

    def __init__(self, python: str, running: ExitStack) -> None:
        process = subprocess.Popen(
            [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        running.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        if self._out.readline() != "ready\n":
            raise SystemExit("Reverb does not start: see its environment above")

    def rate(self, seconds: float) -> float:
        """Rows a second."""
        self._in.write(f"{seconds}\n")
        self._in.flush()
        return float(self._out.readline())


def rate(table: di_store.Table, step: dict[str, Any], seconds: float) -> float:
    """Rows a second of one writer of ours, all of them acknowledged."""
    with table.writer() as writer:
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            writer.append(step)
            count += 1
        writer.flush()
        return count / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="of the environment that has Reverb")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all; medians count")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    args = parser.parse_args()
    frame = np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)
    stack = np.stack([frame] * 4)
    whole = {"obs": stack, "next_obs": stack, "action": 1, "reward": np.float32(1), "discount": np.float32(0)}
    newest = {"obs": frame, "action": 1, "reward": 0.0, "terminated": False}
    with ExitStack() as running:
        peer = Reverb(args.python, running)
        store = running.enter_context(di_store.connect(running.enter_context(served())))
        rows = store.create_table("whole", capacity=10_000)
        steps = store.create_table("newest", capacity=10_000, view=di_store.Transition(frame_stack={"obs": 4}))
        turns = []
        for _ in range(args.rounds):
            turns.append((rate(rows, whole, args.seconds), rate(steps, newest, args.seconds), peer.rate(args.seconds)))
            print("56 KB {:,.0f}/s, newest frame {:,.0f}/s, Reverb {:,.0f}/s".format(*turns[-1]), flush=True)
    by_whole = statistics.median(each[0] / each[2] for each in turns)
    by_newest = statistics.median(each[1] / each[2] for each in turns)
    print(
        f"56 KB: {by_whole:.1f} times Reverb's rows (bar {WHOLE_BAR}); newest frame: {by_newest:.1f} (bar {NEWEST_BAR})"
    )
    return by_whole < WHOLE_BAR or by_newest < NEWEST_BAR


if __name__ == "__main__":
    sys.exit(main())
