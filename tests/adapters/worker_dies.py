"""What becomes of the work that a killed worker had taken: ours and others, each tried for real.

``python tests/adapters/worker_dies.py SYSTEM`` in the system's environment. A worker takes 10 of 100 numbers and gets
SIGKILL. Another one then takes what it is given, 200 times at most. Prints one JSON line: how many numbers the other
worker never got ("lost"), and when the first number of the dead worker was given again: after so many seconds, and
after so many numbers that nobody had.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

COUNT, TAKEN = 100, 10
QUIET_SECONDS = 3.0
"""So long another worker waits for more."""
Take = Callable[[int, float], list[int]]
"""Takes so many numbers, waiting so many seconds for them: those that it got."""


class DiStore:
    """Our table, as a worker's process reaches it."""

    def __init__(self, name: str, lease: float | None) -> None:
        self.name, self.lease = name, lease

    def __call__(self, n: int, seconds: float) -> list[int]:
        import di_store

        table = di_store.attach(self.name).table("work")
        try:
            batch = table.sample(n, timeout=seconds, min_n=1, lease=self.lease)
        except di_store.Timeout:
            return []
        return [int(each) for each in batch.data["number"]]


def worker(take: Take, end: Any) -> None:
    """Takes work, says what, and is killed while it works."""
    end.send(take(TAKEN, 60))
    signal.pause()


def fates(take: Take) -> dict[str, Any]:
    """A worker in a process of its own is killed, and its work is looked for."""
    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=worker, args=(take, theirs), daemon=True)
    process.start()
    had = set(ours.recv())
    process.kill()
    killed = time.monotonic()
    process.join()
    return found(take, had, killed)


def fates_in_ray(take: Take) -> dict[str, Any]:
    """The same with actors of Ray as workers."""
    import ray

    @ray.remote
    class Worker:
        def take(self, n: int, seconds: float) -> Any:
            return os.getpid(), take(n, seconds)

    dead, other = Worker.remote(), Worker.remote()
    pid, had = ray.get(dead.take.remote(TAKEN, 60))
    os.kill(pid, signal.SIGKILL)
    return found(lambda n, seconds: ray.get(other.take.remote(n, seconds))[1], set(had), time.monotonic())


def found(take: Take, had: set[int], killed: float) -> dict[str, Any]:
    """What another worker is given, and when something of what the dead one had."""
    seen: set[int] = set()
    again, turns = None, 0
    while len(seen) < COUNT and turns < 2 * COUNT and (got := take(1, QUIET_SECONDS)):
        turns += 1
        if again is None and had & set(got):
            again = {"after_s": round(time.monotonic() - killed, 2), "after_others": len(seen - had)}
        seen.update(got)
    return {"taken": len(had), "lost": COUNT - len(seen), "given_again": again}


def di_store(lease: float | None = None) -> dict[str, Any]:
    import di_store as package

    with package.open(memory="64MiB") as store:
        table = store.create_table("work", capacity=2 * COUNT, limiter=package.Queue(COUNT))
        table.extend({"number": np.arange(COUNT)})
        return fates(DiStore(store.name, lease))


def ray_queue() -> dict[str, Any]:
    """Ray's queue: an actor that has the items."""
    import ray
    from ray.util.queue import Empty, Queue

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    queue = Queue()
    for number in range(COUNT):
        queue.put(number)

    def take(n: int, seconds: float) -> list[int]:
        taken: list[int] = []
        with suppress(Empty):
            while len(taken) < n:
                taken.append(queue.get(timeout=seconds))
        return taken

    return fates_in_ray(take)


def torchrl() -> dict[str, Any]:
    """TorchRL's buffer in an actor of Ray; each item once in a pass over the buffer."""
    import ray

    @ray.remote
    class Buffer:
        def __init__(self) -> None:
            import torch
            from tensordict import TensorDict
            from torchrl.data import ListStorage, TensorDictReplayBuffer
            from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

            storage, sampler = ListStorage(COUNT), SamplerWithoutReplacement()
            self.buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=1)
            self.buffer.extend(TensorDict({"number": torch.arange(COUNT)}, [COUNT]))

        def sample(self, n: int) -> list[int]:
            return [int(each) for each in self.buffer.sample(n)["number"]]

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    buffer = Buffer.remote()
    return fates_in_ray(lambda n, _: ray.get(buffer.sample.remote(n)))


def transfer_queue() -> dict[str, Any]:
    """TransferQueue with SimpleStorage; a task's consumption is noted by its controller."""
    import ray
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    tq.init()
    tq.get_client().put(TensorDict({"number": torch.arange(COUNT)[:, None]}, [COUNT]), partition_id="work")

    def take(n: int, seconds: float) -> list[int]:
        tq.init()
        client, end = tq.get_client(), time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(RuntimeError):  # there is nothing for this task
                meta = client.get_meta(["number"], n, "work", task_name="work")
                return [int(each) for each in client.get_data(meta)["number"].unbind()]
        return []

    return fates_in_ray(take)


class Reverb:
    """A queue of Reverb, as a worker's process reaches it."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, n: int, seconds: float) -> list[int]:
        import reverb

        client = reverb.Client(self.address)
        if client.server_info()["work"].current_size < n:  # sample() has no timeout
            return []
        return [int(np.asarray(each.data[0]).flat[0]) for each in client.sample("work", n, emit_timesteps=False)]


def reverb() -> dict[str, Any]:
    """Reverb's queue: an item is drawn once."""
    import reverb as package

    server = package.Server([package.Table.queue("work", COUNT)])
    address = f"localhost:{server.port}"
    for number in range(COUNT):
        package.Client(address).insert([np.int64(number)], {"work": 1.0})
    return fates(Reverb(address))


SYSTEMS: dict[str, Callable[[], dict[str, Any]]] = {
    "di_store": di_store,
    "di_store_lease": partial(di_store, 300.0),
    "ray_queue": ray_queue,
    "reverb": reverb,
    "torchrl": torchrl,
    "transfer_queue": transfer_queue,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=SYSTEMS)
    system = parser.parse_args().system
    print(json.dumps({"system": system} | SYSTEMS[system]()))


if __name__ == "__main__":
    main()
