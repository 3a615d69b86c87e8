"""TransferQueue's SimpleStorage beside Di-store's backend: put and get of a batch of token tensors.

`python -m bench.adapters.transfer_queue`, in about a minute. The storages are in one Ray and take turns; each is called
as TransferQueue's client calls it, with the controller told of each put. Over two nodes, one puts and the other gets:
each has a store and an agent of its own, and SimpleStorage's units are reached over TCP in any case. The last part is
what a program gains that moves from TransferQueue to a table: groups with a late reward, by its own calls, beside
SimpleStorage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.managers.base import StorageManagerFactory

import di_store
from bench.cluster.__main__ import told
from di_store import Group, Queue, Spec, cluster
from di_store.adapters.transfer_queue import BACKEND, register

SIMPLE, NODES = "SimpleStorage", "two nodes"
Managers: TypeAlias = "dict[str, tuple[Any, Any]]"


def storages(nodes: list[str]) -> Managers:
    """Of each kind, the storage managers that put and that get, and the controller that `init()` starts."""
    register()
    settings = {"storage_backend": BACKEND, BACKEND: {"memory": "2GiB"}}
    conf = transfer_queue.init(OmegaConf.create({"backend": settings}))
    conf.backend.storage_backend = SIMPLE
    units = StorageBootstrapProvider.get_provider(SIMPLE)(conf)

    def manager(kind: str, config: Any) -> Any:
        return StorageManagerFactory.create(kind, controller_info=conf.controller.zmq_info, config=config)

    alone = {kind: (manager(kind, conf.backend[kind]),) * 2 for kind in (SIMPLE, BACKEND)}
    far = tuple(manager(BACKEND, {"store": cluster.attach(name)}) for name in nodes)
    return {**alone, NODES: far, "units": units}  # actors end with their handles


class OwnTable:
    """A table of groups whose answers have three token columns and a reward that comes late."""

    def __init__(self, samples: int, tokens: int, group: int) -> None:
        self.store = di_store.open(memory="2GiB")
        columns = {f"field_{at}": Spec((tokens,), "i8") for at in range(3)}
        columns |= {"group": Spec((), "i8"), "reward": Spec((), "f4", late=True)}
        groups = samples // group
        limits = {"capacity": 4 * groups, "limiter": Queue(2 * groups), "lanes": 1}
        self.table = self.store.create_table("own", view=Group(group), schema=columns, **limits)
        self.samples, self.groups, self.group = samples, groups, group
        self.round = 0

    def rows(self, data: dict[str, Any]) -> dict[str, Any]:
        """The answers of the next round, with the numbers of their prompts."""
        self.round += 1
        names = self.round * self.groups + np.arange(self.samples) // self.group
        if self.samples == 1:
            return {**{name: column[0] for name, column in data.items()}, "group": names[0]}
        return {**data, "group": names}

    def put(self, rows: dict[str, Any], rewards: Any) -> None:
        """Answers, and then their rewards."""
        keys = self.table.insert(rows) if self.samples == 1 else self.table.extend(rows)
        self.table.update(keys, {"reward": rewards})

    def get(self) -> Any:
        return self.table.sample(self.groups).data


def own_table(managers: Managers, samples: int, tokens: int, group: int, rounds: int) -> None:
    """A table beside SimpleStorage, and beside a copy of the same bytes by numpy."""
    client, manager = transfer_queue.get_client(), managers[SIMPLE][0]
    data, own = batch(samples, 3, tokens, False), OwnTable(samples, tokens, group)
    columns = {name: column.numpy() for name, column in data.items()}
    target = {name: np.zeros_like(column) for name, column in columns.items()}
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = call()
        if turn >= 2:
            times.setdefault(name, []).append(time.perf_counter() - begin)
        return found

    for turn in range(rounds + 2):
        names = list(data.keys())
        meta = client.get_meta(
            data_fields=names, batch_size=samples, partition_id=f"own{samples}.{turn}", mode="insert"
        )
        took, _ = seconds(lambda meta=meta: manager.put_data(data, meta))
        meta = meta.add_fields(data)
        read, _ = seconds(lambda meta=meta: manager.get_data(meta))
        seconds(lambda meta=meta: manager.clear_data(meta))
        if turn >= 2:
            times.setdefault("their put", []).append(took)
            times.setdefault("their get", []).append(read)
        timed("copy", lambda: [np.copyto(target[name], column) for name, column in columns.items()])
        rows, rewards = own.rows(columns), np.zeros(samples, np.float32)  # as their metadata: made beforehand
        timed("put", lambda rows=rows, rewards=rewards: own.put(rows, rewards))
        got = timed("get", own.get)
        if not np.array_equal(got["field_1"].reshape(samples, tokens), columns["field_1"]):
            raise RuntimeError("other rows came back")
        del got
    middle = {name: statistics.median(each) for name, each in times.items()}
    for call in ("put", "get"):
        print(
            f"{f'{samples} x 3 x {tokens:,}, groups of {group}':32} {call} {middle[f'their {call}'] * 1e3:9.3f} ms "
            f"{middle[call] * 1e3:9.3f} ms {middle[f'their {call}'] / middle[call]:7.1f}x"
            f"   {middle['copy'] / middle[call]:5.2f} of a copy by numpy",
            flush=True,
        )
    own.store.close()


def seconds(call: Callable[[], Any], loop: Any = asyncio.new_event_loop()) -> tuple[float, Any]:  # noqa: B008
    begin = time.perf_counter()
    found = loop.run_until_complete(call())
    return time.perf_counter() - begin, found


def batch(samples: int, fields: int, tokens: int, ragged: bool) -> Any:
    made = {}
    for at in range(fields):
        column = torch.randint(0, 150_000, (samples, tokens))
        if ragged:
            lengths = torch.randint(tokens // 2, tokens + 1, (samples,)).tolist()
            column = torch.nested.as_nested_tensor(
                [row[:length] for row, length in zip(column, lengths, strict=True)], layout=torch.jagged
            )
        made[f"field_{at}"] = column
    return TensorDict(made, batch_size=samples)


def compare(managers: Managers, ours: str, data: Any, what: str, rounds: int) -> None:
    client, kinds = transfer_queue.get_client(), (SIMPLE, ours)
    names, samples = list(data.keys()), data.batch_size[0]
    size = sum((each.values() if each.is_nested else each).nbytes for each in data.values())
    times: dict[tuple[str, str], list[float]] = {(kind, call): [] for kind in kinds for call in ("put", "get")}
    for turn in range(rounds + 2):
        for kind in kinds if turn % 2 else kinds[::-1]:
            putter, getter = managers[kind]
            meta = client.get_meta(
                data_fields=names, batch_size=samples, partition_id=f"{what}{turn}{kind}", mode="insert"
            )
            put, _ = seconds(lambda putter=putter, meta=meta: putter.put_data(data, meta))
            meta = meta.add_fields(data)
            get, found = seconds(lambda getter=getter, meta=meta: getter.get_data(meta))
            name = names[turn % len(names)]
            if not all(map(torch.equal, found[name].unbind(), data[name].unbind())):
                raise RuntimeError(f"{kind}, {name}: other rows came back")
            del found
            seconds(lambda putter=putter, meta=meta: putter.clear_data(meta))
            if turn >= 2:  # the first rounds fill pools and page tables
                times[kind, "put"].append(put)
                times[kind, "get"].append(get)
    for call in ("put", "get"):
        theirs, own = (statistics.median(times[kind, call]) for kind in kinds)
        lowest = [min(times[kind, call]) * 1e3 for kind in kinds]
        print(
            f"{what:28} {call} {theirs * 1e3:8.2f} ms {own * 1e3:8.2f} ms {theirs / own:6.2f}x"
            f"   {size / own / 1e9:5.2f} GB/s   fastest {lowest[0]:7.2f} {lowest[1]:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    places = [f"127.0.0.1:{port}" for port in (7391, 7392)]
    with ExitStack() as running:
        peers = ["--peers", ",".join(places)]
        nodes = [running.enter_context(told(f"bench-tq-{at}", "--listen", places[at], *peers)) for at in range(2)]
        managers = storages([each["name"] for each in nodes])
        print("SimpleStorage, Di-store, ratio (above 1: Di-store is faster), Di-store's rate; medians")
        for ours in (BACKEND, NODES):
            print(f"{ours}:")
            compare(managers, ours, batch(512, 3, 2_048, False), "512 x 3 x 2,048", given.rounds)
            compare(managers, ours, batch(512, 3, 2_048, True), "512 x 3 x 1,024..2,048", given.rounds)
            compare(managers, ours, batch(1, 3, 2_048, False), "1 x 3 x 2,048", given.rounds)
        print("SimpleStorage as in use, a table of groups with late rewards, ratio; medians")
        own_table(managers, 512, 2_048, 8, given.rounds)
        own_table(managers, 1, 2_048, 1, 4 * given.rounds)
        transfer_queue.close()
        ray.shutdown()
