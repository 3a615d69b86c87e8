"""A store through an agent, beside bare sockets and Ray; the nodes are processes of this machine.

From the repository root, against a release build: ``PYTHONPATH=build/release python -m bench.cluster --check``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import di_store
from bench import RESULTS, ROOT
from bench.cluster.versions import KILLS, PUBLISHED, kill_agent, known_ms, poll_us, rows_per_second
from bench.cluster.wire import Raw, bulk, certificate, median_ms, ray_gets
from bench.kit import Page, Result, Worker, time_alone
from bench.tier.lines import Line, alone, beside, block, newest, show

PAGE = Page(ROOT / "docs" / "network_figures.md", "cluster")
SIZES = {"1 KB": 1 << 10, "110 KB": 110 << 10, "10 MB": 10 << 20, "64 MB": 64 << 20}


@contextmanager
def served(*options: str) -> Iterator[str]:
    """The address of a store of 2 GiB that processes of their own serve."""
    with told(*options) as said:
        yield said["address"]


@contextmanager
def told(*options: str) -> Iterator[dict[str, Any]]:
    """What `di-store serve` says of a store of 2 GiB that it serves."""
    words = [sys.executable, "-m", "di_store", "serve", "--memory", "2GiB", "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def objects(args: argparse.Namespace, folder: Path) -> list[Line]:
    """`get` by size beside a bare socket, with and without TLS, and beside Ray."""
    cert, key = certificate(folder)
    taken: dict[tuple[str, str], list[float]] = {}
    with served() as plain, served("--tls-cert", cert, "--tls-key", key) as secured:
        stores = {"": di_store.connect(plain), " TLS": di_store.connect(secured, tls=cert)}
        raws, data = {"": Raw(None), " TLS": Raw(folder)}, np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8)
        refs = {(kind, name): stores[kind].put(data[:size]) for kind in stores for name, size in SIZES.items()}
        for _ in range(args.rounds):
            for (kind, name), ref in refs.items():
                store, raw, size = stores[kind], raws[kind], SIZES[name]
                ours = median_ms(lambda store=store, ref=ref: store.get(ref), args.seconds)  # type: ignore[misc]
                bare = median_ms(lambda raw=raw, size=size: raw.get(size), args.seconds)  # type: ignore[misc]
                taken.setdefault((kind, name), []).append(bare / ours)
                taken.setdefault((f"ms{kind}", name), []).append(ours)
        few = [beside_bulk(plain, refs["", "1 KB"], refs["", "64 MB"], args.seconds) for _ in range(args.rounds)]
    lines = [
        alone(f"get of {name}{kind}: speed by a bare socket's", "×", taken[kind, name], 0.7 if "MB" in name else None)
        for kind in ("", " TLS")
        for name in SIZES
    ]
    lines.append(alone("get of 1 KB beside a bulk stream, p50", "µs", [each[0] for each in few], 100, most=True))
    lines.append(alone("get of 1 KB beside a bulk stream, p99", "µs", [each[1] for each in few], 2000, most=True))
    theirs = ray_gets([SIZES["110 KB"], SIZES["10 MB"]], args.rounds) if args.ray else {}
    for name, bar in (("110 KB", 8.0), ("10 MB", None)):
        mine, ray = [1 / each for each in taken["ms", name]], [1 / each for each in theirs.get(SIZES[name], [])]
        lines.append(beside(f"get of {name} from another node", "/ms", mine, ray, "Ray", bar))
    lines.append(alone("get of 110 KB, p50", "ms", taken["ms", "110 KB"], 0.3, most=True))
    return lines


def beside_bulk(address: str, small: di_store.Ref, large: di_store.Ref, seconds: float) -> list[float]:
    """p50 and p99 of `get` of 1 KB while another process reads 64 MB, in µs."""
    with di_store.connect(address) as store:
        worker = Worker(bulk, address, large)
        time_alone(lambda: store.get(small), seconds + 1)  # until it has begun
        taken = time_alone(lambda: store.get(small), seconds)
        worker.pipe.send(None)
        worker.end()
    return [float(np.percentile(taken, q)) / 1e3 for q in (50, 99)]


def rows(args: argparse.Namespace, _: Path) -> list[Line]:
    """Rows of one writer and batches, from another process than the agent's."""
    frame = np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)
    stack, rates, shares = np.stack([frame] * 8), dict[str, list[float]](), list[float]()
    with served() as address, di_store.connect(address) as store:
        whole = store.create_table("whole", capacity=10_000, schema={"obs": di_store.Spec((8, 84, 84), np.uint8)})
        view = di_store.Transition(frame_stack={"obs": 4})
        last = store.create_table("newest", capacity=10_000, view=view)
        raw = Raw(None)
        cases = [("56 KB", whole, {"obs": stack}), ("newest", last, {"obs": frame, "reward": 0.0, "terminated": False})]
        for _round in range(args.rounds):
            for name, one, step in cases:
                with one.writer() as writer:
                    begin, count = time.perf_counter(), 0
                    while time.perf_counter() - begin < 4 * args.seconds:
                        writer.append(step)
                        count += 1
                    writer.flush()
                    rates.setdefault(name, []).append(count / (time.perf_counter() - begin))
            batch = median_ms(lambda: whole.sample(32), args.seconds)
            shares.append(median_ms(lambda: raw.get(32 * stack.nbytes), args.seconds) / batch)
    return [
        alone("append of 56 KB rows", "/s", rates["56 KB"], None),  # bars: tools/beside_reverb.py
        alone("append of steps with their newest frame (7 KB)", "/s", rates["newest"], None),
        alone("sample of 32 × 56 KB: speed by a bare socket's", "×", shares, 0.5),
    ]


def versions(args: argparse.Namespace, _: Path) -> list[Line]:
    """An actor that polls for new weights at each step."""
    shape = {"obs": di_store.Spec((4,), "f4"), "action": "i8", "reward": "f4", "terminated": "?"}
    schema = {
        name: each if isinstance(each, di_store.Spec) else di_store.Spec((), each) for name, each in shape.items()
    }
    without, polling, polls = [], [], []
    with told() as said, di_store.connect(said["address"]) as store:
        name = said["name"]
        store.create_table("steps", capacity=100_000, schema=schema)
        store.publish("w", 0.0)
        for _round in range(args.rounds):
            without.append(rows_per_second(store, 2 * args.seconds, False))
            polling.append(rows_per_second(store, 2 * args.seconds, True))
            polls.append(poll_us(store, args.seconds))
        known = known_ms(store, name, PUBLISHED)
        behind = known_ms(store, name, KILLS, lambda: kill_agent(store, name, said["pid"]))
    return [
        alone("append of small steps", "/s", without, None),
        alone("the same, with a poll of `latest` at each step", "/s", polling, None),
        alone("a poll that finds nothing new, p50", "µs", polls, 5, most=True),
        alone("from `publish` to a polling actor, p50", "ms", [known[len(known) // 2]], None),
        alone("from `publish` to a polling actor, slowest of 200", "ms", known[-1:], 50, most=True),
        alone("the same behind an agent that was killed, slowest of 10", "ms", behind[-1:], 50, most=True),
    ]


PARTS = {each.__name__: each for each in (objects, rows, versions)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--lines", default=",".join(PARTS), help="parts (default all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of everything; medians count")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    for name, what in (("ray", "measure Ray too"), ("check", "exit 1 if a bar is missed"), ("doc", "keep the result")):
        parser.add_argument(f"--{name}", action="store_true", help=what)
    args = parser.parse_args()
    missed = False
    for part in args.lines.split(","):
        result = Result(f"python -m bench.cluster --check{' --ray' if args.ray else ''} --lines {part}")
        with tempfile.TemporaryDirectory() as folder:
            lines = PARTS[part](args, Path(folder))
        show(lines)
        missed = missed or any(line.verdict == "MISSED" for line in lines)
        if args.doc:
            if (old := newest(part, "cluster")) is not None:
                old.unlink()
            result.parts["lines"] = [line.plain for line in lines]
            result.save(RESULTS, f"cluster_{part}")
            PAGE.write(lambda part: block(part, "cluster"))
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
