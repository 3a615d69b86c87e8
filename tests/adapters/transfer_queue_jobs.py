"""What the tests of TransferQueue share: a worker of Ray, and batches of one partition."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

ROOT = Path(__file__).resolve().parents[2]


@ray.remote(num_cpus=0)
class Worker:
    """Another process. It does not call `register`: the configuration does that."""

    def get(self, keys: list[str]) -> list[Any]:
        tq.init()
        return [each.clone() for each in get(keys, ["a"])["a"].unbind()]

    def put(self, keys: list[str], value: int) -> None:
        tq.init()
        put(keys, {"a": torch.full((len(keys), 3), value)})

    def died(self) -> None:
        os._exit(1)


def everything(mark: str) -> list[int]:
    """The processes that have this text in the environment that they were started with."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdecimal() and mark.encode() in (each / "environ").read_bytes():
                found.append(int(each.name))
    return found


def kill_everything(mark: str) -> None:
    """SIGKILL to all of them at once: none acts after the first one has died."""
    while pids := everything(mark):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


@contextmanager
def ray_here(**environment: str) -> Iterator[None]:
    """Ray on this machine, whose workers find this tree."""
    paths = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent), str(ROOT / "tests")])
    variables = {"PYTHONPATH": paths, "TQ_LOGGING_LEVEL": "ERROR", **environment}
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    yield
    ray.shutdown()


def put(keys: list[str], fields: dict[str, Any]) -> None:
    tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=len(keys)))


def get(keys: list[str], fields: list[str] | None = None) -> Any:
    return tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
