"""What a change costs who uses one machine alone: the cases of `di-store bench` by two builds in turns.

From the repository root, with a release build of each version (`pip install --target FOLDER .` in its tree):
``python tools/before_after.py BEFORE AFTER``. In each round every build has a new process, and for each case they take
turns of a few dozen milliseconds: so what else the machine does meets all of them. There are four: the build before,
the same again, which shows what the method can tell apart, the build after, and that one while an agent (`di-store
serve`) runs beside it that serves another store to nobody; it is stopped by SIGSTOP in the turns of the others.

Shows the median over the rounds of the median ratio of a round's turns, each the median time of a call and the 99th
percentile ("p99"), before by after: above 1 the one after is faster. The interval of 95 % is by bootstrap over the
rounds. Exits with 1 if an interval of a build after lies below 0.98 as a whole, or for p99 below 0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

import numpy as np

BAR, TAIL_BAR = 0.98, 0.95
TAIL = ", p99"
KINDS = ("before", "before again", "after", "beside an agent")
WARM_UP_SECONDS = 0.3
MEMORY = "1GiB"


def work() -> None:
    """In a process of one build: the cases one after the other, each for as many turns as lines come for it."""
    import di_store
    from di_store.workloads.catalogue import QUICK
    from di_store.workloads.crew import CrewMember, Phase

    print(json.dumps([f"{name} {load.name}" for name, loads in QUICK.items() for load in loads]), flush=True)
    for load in (each for loads in QUICK.values() for each in loads):
        with di_store.open(memory=MEMORY) as store:
            load.create_tables(store)
            member = CrewMember(store, load, load.roles[0], 0)
            ((label,),) = load.most
            member.run(Phase(WARM_UP_SECONDS, {label: None}, False), time.monotonic())
            print(json.dumps("ready"), flush=True)
            while (seconds := json.loads(sys.stdin.readline())) is not None:
                spent = np.empty(0)
                while not spent.size:  # on a busy machine a turn may pass without a call
                    spent = member.run(Phase(seconds, {label: None}, False), time.monotonic()).spent.get(label, spent)
                print(json.dumps([float(each) / 1e3 for each in np.percentile(spent, (50, 99))]), flush=True)
            member.close()


class Worker:
    """A process of one build. `seed`: of the hashes of text, on which the steps of a look into a dict depend."""

    def __init__(self, build: str, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--work"],
            env={**os.environ, "PYTHONPATH": build, "PYTHONHASHSEED": str(seed)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.cases = self.read()

    def read(self) -> Any:
        """What it says next."""
        out: IO[str] | None = self._process.stdout
        assert out is not None
        return json.loads(out.readline())

    def tell(self, seconds: float | None) -> None:
        """A turn of so many seconds; None: the next case."""
        into: IO[str] | None = self._process.stdin
        assert into is not None
        into.write(json.dumps(seconds) + "\n")
        into.flush()

    def end(self) -> None:
        """Also in the middle of a case."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def idle_agent(build: str) -> Iterator[subprocess.Popen[str]]:
    """A store of another name that is served, and that nobody uses."""
    words = [sys.executable, "-P", "-m", "di_store", "serve", "--memory", "64MiB", "--listen", "127.0.0.1:0", "--json"]
    environment = {**os.environ, "PYTHONPATH": build}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
        process.wait()


def one_round(before: str, after: str, turns: int, seconds: float, seed: int) -> dict[str, dict[str, float]]:
    """By kind and case: the median ratio of the turns; of "before": the median microseconds. `TAIL` marks the p99."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    with ExitStack() as running:
        agent = running.enter_context(idle_agent(after))
        workers = {kind: Worker(before if kind.startswith("before") else after, seed) for kind in KINDS}
        for each in workers.values():
            running.callback(each.end)
        for case in workers["before"].cases:
            for each in workers.values():
                each.read()
            took: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
            for turn in range(turns):
                for kind in (KINDS[(turn + at) % len(KINDS)] for at in range(len(KINDS))):
                    os.killpg(agent.pid, signal.SIGCONT if kind == "beside an agent" else signal.SIGSTOP)
                    workers[kind].tell(seconds)
                    took[kind].append(workers[kind].read())
            for each in workers.values():
                each.tell(None)
            for figure, name in enumerate((case, case + TAIL)):
                of = {kind: np.array(took[kind])[:, figure] for kind in KINDS}
                found["before"][name] = float(np.median(of["before"]))
                for kind in KINDS[1:]:
                    found[kind][name] = float(np.median(of["before"] / of[kind]))
    return found


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Their median, and its interval of 95 %."""
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="folder of a release build")
    parser.add_argument("after", help="folder of a release build")
    parser.add_argument("--rounds", type=int, default=12, help="each with new processes")
    parser.add_argument("--turns", type=int, default=8, help="of each case, in a round")
    parser.add_argument("--seconds", type=float, default=0.03, help="of one turn")
    args = parser.parse_args()
    rounds = [one_round(args.before, args.after, args.turns, args.seconds, each) for each in range(1, args.rounds + 1)]
    slower = False
    print(f"| {'call':33} | before, µs | before again | 95 % | after | 95 % | beside an idle agent | 95 % |")
    print("|---|---:|---:|---|---:|---|---:|---|")
    for case in rounds[0]["before"]:
        cells = [f"{np.median([each['before'][case] for each in rounds]):.2f}"]
        for kind in KINDS[1:]:
            middle, low, high = interval([each[kind][case] for each in rounds])
            cells += [f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]
            slower = slower or (high < (TAIL_BAR if case.endswith(TAIL) else BAR) and kind != "before again")
        print(f"| {case:33} | {' | '.join(cells)} |", flush=True)
    return int(slower)


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main())
