"""What the rows of many writers cost: processor time of agent and clients for each GB, and the agent's memory.

From the repository root, against a release build: ``PYTHONPATH=build/release:. python tools/many_writers.py``. The
agent is a `di-store serve` of this machine, the writers are those of several processes. Each process appends a row to
one of its writers after the other, as fast as the agent takes them, or with ``--rate`` so many rows a second to each
writer. The table is full when the time begins. Exits with 1 if the agent needs more than the bars.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import di_store
from di_store import Spec

COST_BAR, MEMORY_BAR = 1.2, 512  # core-seconds of the agent for each GB; MiB of its own
CAPACITY = 5_000


def write(address: str, writers: int, args: argparse.Namespace) -> None:
    """One process of writers: fills its part of the table, and begins when it is told to."""
    with di_store.connect(address) as store, ExitStack() as running:
        table = store.table("rows")
        every = [running.enter_context(table.writer()) for _ in range(writers)]
        row = {"obs": np.random.default_rng(os.getpid()).integers(0, 255, (args.bytes,), np.uint8)}
        for _ in range(1 + CAPACITY // args.writers):
            for writer in every:
                writer.append(row)
        for writer in every:
            writer.flush()
        print("open", flush=True)
        sys.stdin.readline()
        count, begin, before = 0, time.monotonic(), time.process_time()
        while (passed := time.monotonic() - begin) < args.seconds:
            if args.rate and (early := count / writers / args.rate - passed) > 0:
                time.sleep(early)
            every[count % writers].append(row)
            count += 1
        for writer in every:
            writer.flush()
        print(json.dumps([count, time.process_time() - before]), flush=True)


def spent(pid: int) -> float:
    """Processor seconds of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_mebibytes(pid: int) -> float:
    """Memory that a process shares with nobody."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024


@contextmanager
def clients(address: str, processes: int) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of writers, all ready."""
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--role", address]
    with ExitStack() as running:
        every = [
            running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(processes)
        ]
        for child in every:
            if told(child) != "open\n":
                raise SystemExit("a writer ended before it was open")
        yield every


def told(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def turn(store: di_store.Store, address: str, agent: int, args: argparse.Namespace) -> float:
    """Core-seconds of the agent for each GB."""
    store.create_table("rows", capacity=CAPACITY, lanes=1_024, schema={"obs": Spec((args.bytes,), np.uint8)})
    with clients(address, args.processes) as every:
        began, before = time.monotonic(), spent(agent)
        for child in every:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        counts = [json.loads(told(child)) for child in every]
        passed, cost = time.monotonic() - began, spent(agent) - before
    store.drop_table("rows")
    rows, others = (sum(column) for column in zip(*counts, strict=True))
    size = rows * args.bytes / 1e9
    print(f"{args.writers} writers: {rows / passed:,.0f} rows/s, {size / passed:.2f} GB/s; ", end="")
    print(f"core-s/GB: agent {cost / size:.2f}, clients {others / size:.2f}", flush=True)
    return cost / size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=500)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=2 * 4 * 84 * 84, help="of a row; default: two stacks of frames")
    parser.add_argument("--rate", type=float, default=0, help="rows a second of each writer; 0: all that go")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        write(args.role, -(-args.writers // args.processes), args)
        return 0
    command = [sys.executable, "-m", "di_store", "serve", f"many-{os.getpid()}", "--memory", "2GiB", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            served = json.loads(told(holder))
            address, agent = served["address"], served["agent"]
            with di_store.connect(address) as store:
                cost = statistics.median(turn(store, address, agent, args) for _ in range(args.rounds))
            memory = own_mebibytes(agent)
        finally:
            holder.terminate()
    print(f"agent: {cost:.2f} core-s/GB (bar {COST_BAR}), {memory:.0f} MiB (bar {MEMORY_BAR})")
    return cost > COST_BAR or memory > MEMORY_BAR


if __name__ == "__main__":
    sys.exit(main())
