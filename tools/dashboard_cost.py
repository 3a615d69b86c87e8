"""What `di-store dashboard` costs a job, and how long its pages take: `dashboard_cost.py [--seconds 4] [--rounds 10]`.

A job of two processes runs at full rate: one appends to a table of a million items, one samples from it. Turns with a
dashboard whose Table page is fetched every two seconds alternate with turns without one. Then 200 processes attach, and
every page is fetched by a fresh dashboard.
"""

import argparse
import http.client
import statistics
import subprocess
import sys
import time
from urllib.parse import urlencode, urlsplit

import numpy as np

import di_store

ITEMS = 1_000_000
STORE = "dashboard-cost"
WORK = """
import sys, time, numpy as np, di_store
table = di_store.attach(sys.argv[1], timeout=60).table("replay")
writer, step, calls = table.writer(), {"x": np.zeros(16, "f4")}, 0
append = sys.argv[2] == "append"
print("ready", flush=True)
for line in sys.stdin:
    end, calls, used = time.monotonic() + float(line), 0, time.process_time()
    while time.monotonic() < end:
        for _ in range(50):
            writer.append(step) if append else table.sample(32)
        calls += 50
    print(calls, time.process_time() - used, flush=True)
"""
ATTACH = "import sys, di_store; s = di_store.attach(sys.argv[1], timeout=600); print(1, flush=True); sys.stdin.read()"


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


class Viewer:
    """A dashboard and one who looks at it."""

    def __init__(self) -> None:
        self.process = started("-m", "di_store", "dashboard", STORE, "--port", "0", "--no-browser")
        url = urlsplit(self.process.stdout.readline())
        self.port, self.token = url.port, url.query.strip()
        self.cookie = ""
        self.cookie = self.get(f"/?{self.token}")[1].partition(";")[0]

    def get(self, address: str) -> tuple[float, str, int]:
        """Seconds that the answer took, its cookie, and its bytes."""
        began = time.perf_counter()
        line = http.client.HTTPConnection("127.0.0.1", self.port)
        line.request("GET", address, headers={"cookie": self.cookie})
        answer = line.getresponse()
        size = len(answer.read())
        seconds = time.perf_counter() - began
        if answer.status not in (200, 303):
            raise RuntimeError(f"{address}: status {answer.status}")
        line.close()
        return seconds, answer.getheader("set-cookie") or "", size

    def cpu(self) -> float:
        with open(f"/proc/{self.process.pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / 100

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def turn(workers: list[subprocess.Popen[str]], seconds: float, viewer: Viewer | None) -> list[tuple[int, float]]:
    """Calls and CPU seconds of each worker in one turn."""
    for each in workers:
        each.stdin.write(f"{seconds}\n")
    end = time.monotonic() + seconds
    while viewer is not None and time.monotonic() < end:
        viewer.get(f"/table?store={STORE}&table=replay")
        time.sleep(max(0, min(2, end - time.monotonic())))
    return [(int(calls), float(used)) for calls, used in (each.stdout.readline().split() for each in workers)]


def cost(store: di_store.Store, seconds: float, rounds: int) -> None:
    workers = [started("-c", WORK, STORE, what) for what in ("append", "sample")]
    for each in workers:
        each.stdout.readline()
    turn(workers, 1, None)
    with_it: list[list[tuple[int, float]]] = []
    without: list[list[tuple[int, float]]] = []
    used = 0.0
    for _ in range(rounds):
        without.append(turn(workers, seconds, None))
        viewer = Viewer()
        viewer.get(f"/table?store={STORE}&table=replay")
        before = viewer.cpu()
        with_it.append(turn(workers, seconds, viewer))
        used += viewer.cpu() - before
        viewer.end()
    for at, what in enumerate(("append", "sample")):
        ratios = [a[at][0] / b[at][0] for a, b in zip(with_it, without, strict=True)]
        per_call = [(a[at][1] / a[at][0]) / (b[at][1] / b[at][0]) for a, b in zip(with_it, without, strict=True)]
        rate = statistics.median(each[at][0] / seconds for each in without)
        print(
            f"{what}: {rate:,.0f} calls/s without; with the dashboard {statistics.median(ratios) - 1:+.2%} calls "
            f"(quartiles {' '.join(f'{q - 1:+.2%}' for q in statistics.quantiles(ratios, n=4))}), "
            f"{statistics.median(per_call) - 1:+.2%} CPU per call"
        )
    print(f"the dashboard itself: {used / (rounds * seconds):.2%} of a processor")
    for each in workers:
        each.stdin.close()
        each.wait()


def holds(store: di_store.Store) -> None:
    """How long 64 items of the sample take, which is one hold of the table's lock, with the calls around it."""
    from di_store import observe

    table, spent = store.table("replay"), []
    keys = observe.spread_keys(table, 4_096, 1.0)
    for first in range(0, len(keys), 64):
        began = time.perf_counter()
        observe.facts_of(table, keys[first : first + 64])
        spent.append((time.perf_counter() - began) * 1e6)
    print(f"64 items of the sample: median {statistics.median(spent):.0f} µs, most {max(spent):.0f} µs, calls included")


def views(clients: int) -> None:
    attached = []
    while len(attached) < clients:
        some = [started("-c", ATTACH, STORE) for _ in range(min(10, clients - len(attached)))]
        for each in some:
            each.stdout.readline()
        attached += some
    viewer = Viewer()
    names = {"store": STORE}
    addresses = ["/", *(f"/{page}?{urlencode(names)}" for page in ("store", "weights", "disk", "history", "why"))]
    addresses += [f"/{page}?{urlencode(names | {'table': 'replay'})}" for page in ("table", "items", "history")]
    time.sleep(5)
    for address in addresses:
        first, _, size = viewer.get(address)
        again = []
        for _ in range(9):
            time.sleep(0.3)
            again.append(viewer.get(address)[0])
        print(
            f"{address}: first {first * 1e3:.0f} ms, again {statistics.median(again) * 1e3:.0f} ms "
            f"(most {max(again) * 1e3:.0f}), {size / 1e3:.0f} kB"
        )
    before, began = viewer.cpu(), time.monotonic()
    time.sleep(10)
    share = (viewer.cpu() - before) / (time.monotonic() - began)
    print(f"beside {clients} processes, nobody looking: {share:.2%} of a processor")
    viewer.end()
    for each in attached:
        each.stdin.close()
    for each in attached:
        each.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--clients", type=int, default=200)
    given = options.parse_args()
    with di_store.open(STORE, memory="512MiB", mode="x") as store:
        table = store.create_table("replay", capacity=ITEMS, sampler=di_store.Prioritized(alpha=0.6))
        for _ in range(ITEMS // 50_000):
            table.extend({"x": np.zeros((50_000, 16), "f4")})
        store.publish("policy", {"w": np.zeros(10_000)})
        holds(store)
        cost(store, given.seconds, given.rounds)
        views(given.clients)


if __name__ == "__main__":
    main()
