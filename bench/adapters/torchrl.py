"""TorchRL's own storages beside ours: speed of extend and sample, whole training runs, and two processes.

`python -m bench.adapters.torchrl [--runs SEEDS] [--rounds N]`; the training runs take some minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

import di_store
from di_store.adapters.torchrl import ReplayBuffer, Storage

CAPACITY, BATCH, FRAMES = 4_000, 256, 64
SHAPES = {
    "4 floats": ((4,), torch.float32),
    "84x84x4 bytes": ((4, 84, 84), torch.uint8),
    "4,096 floats": ((4_096,), torch.float32),
}
KINDS = ("LazyTensorStorage", "LazyMemmapStorage", "Storage", "Storage, table draws")


def steps(shape: str, n: int) -> TensorDict:
    """Steps as a collector gives them."""
    size, dtype = SHAPES[shape]
    flag = torch.zeros(n, 1, dtype=torch.bool)
    seen = [(torch.rand(n, *size) * 255).to(dtype) for _ in range(2)]
    following = {
        "observation": seen[1],
        "reward": torch.ones(n, 1),
        "done": flag,
        "terminated": flag,
        "truncated": flag,
    }
    data = {"observation": seen[0], "action": torch.eye(2)[torch.randint(2, (n,))], "done": flag, "terminated": flag}
    return TensorDict(data | {"truncated": flag, "next": TensorDict(following, [n])}, [n])


def buffer_of(kind: str, folder: str, capacity: int = CAPACITY, batch: int = BATCH, **options: Any) -> Any:
    if kind == "LazyTensorStorage":
        return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch, **options)
    if kind == "LazyMemmapStorage":
        storage = LazyMemmapStorage(capacity, scratch_dir=tempfile.mkdtemp(dir=folder))
        return TensorDictReplayBuffer(storage=storage, batch_size=batch, **options)
    if kind == "Storage":
        return TensorDictReplayBuffer(storage=Storage(capacity), batch_size=batch, **options)
    return ReplayBuffer(storage=capacity, sampler=di_store.Uniform(), batch_size=batch, **options)


def seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def speeds(rounds: int) -> None:
    print(f"microseconds, medians of {rounds} alternating rounds: {'; '.join(KINDS)}")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            buffers = [buffer_of(kind, folder) for kind in KINDS]
            for buffer in buffers:
                for _ in range(CAPACITY // FRAMES + 1):
                    buffer.extend(steps(shape, FRAMES))
            data = {n: steps(shape, n) for n in (1, FRAMES)}
            for what in (1, FRAMES, "sample"):
                calls = [
                    buffer.sample if what == "sample" else lambda buffer=buffer, what=what: buffer.extend(data[what])  # noqa: B023
                    for buffer in buffers
                ]
                times = 20 if shape == "4 floats" else 4
                measured = [[seconds(call, times) * 1e6 for call in calls] for _ in range(rounds)]
                medians = [statistics.median(each) for each in zip(*measured, strict=True)]
                name = f"sample {BATCH}" if what == "sample" else f"extend {what}"
                print(f"{shape:14} {name:11}" + "".join(f"{each:10.1f}" for each in medians), flush=True)


def write(buffer: Any, shape: str, stop: Any) -> None:
    torch.set_num_threads(1)
    data = steps(shape, FRAMES)
    while not stop.is_set():
        buffer.extend(data)
        time.sleep(0.002)


def processes(seconds_each: float) -> None:
    """One process writes 64 steps every 2 ms or as fast as it can, this one samples."""
    print(f"\nbatches of {BATCH} and rows written by another process, per second")
    context = multiprocessing.get_context("spawn")
    for shape in SHAPES:
        for kind in KINDS[1:]:
            with tempfile.TemporaryDirectory() as folder:
                buffer = buffer_of(kind, folder, shared=True)
                for _ in range(CAPACITY // FRAMES + 1):
                    buffer.extend(steps(shape, FRAMES))
                stop = context.Event()
                process = context.Process(target=write, args=(buffer, shape, stop))
                process.start()
                before = buffer.write_count
                while buffer.write_count == before:
                    time.sleep(0.01)
                count, before, begin = 0, buffer.write_count, time.perf_counter()
                while (passed := time.perf_counter() - begin) < seconds_each:
                    buffer.sample()
                    count += 1
                written = buffer.write_count - before
                stop.set()
                process.join()
                print(f"{shape:14} {kind:22}{count / passed:10.0f}{written / passed:10.0f}", flush=True)


def train(kind: str, seed: int, frames: int) -> tuple[list[torch.Tensor], list[float], float]:
    """DQN on CartPole with TorchRL's collector, loss and target update: weights, returns, and seconds."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    env.append_transform(StepCounter())
    env.set_seed(seed)
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    actor = QValueActor(net, in_keys=["observation"], action_space="one_hot", spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=frames // 2)
    collector = Collector(
        env, TensorDictSequential(actor, explore), frames_per_batch=64, total_frames=frames, init_random_frames=256
    )
    with tempfile.TemporaryDirectory() as folder:
        buffer = buffer_of(kind, folder, capacity=10_000, batch=64)
        loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        target = SoftUpdate(loss, eps=0.99)
        optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
        returns: list[float] = []
        begin = time.process_time()
        for batch in collector:
            ended = batch["next", "done"].squeeze(-1)
            returns += batch["next", "episode_reward"][ended].flatten().tolist()
            buffer.extend(batch.reshape(-1).exclude("action_value", "chosen_action_value", "collector"))
            explore.step(batch.numel())
            if len(buffer) < 256:
                continue
            for _ in range(16):
                value = loss(buffer.sample())["loss"]
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                target.step()
        passed = time.process_time() - begin
        collector.shutdown()
    return [each.detach().clone() for each in loss.parameters()], returns, passed


def trainings(seeds: int, frames: int) -> None:
    print(
        "\nDQN on CartPole: same weights and returns; mean of the last 20 returns; seconds of CPU: TorchRL, ours, ratio"
    )
    ratios = []
    for seed in range(seeds):
        found = {}
        for kind in ("LazyTensorStorage", "Storage")[:: 1 if seed % 2 else -1]:
            found[kind] = train(kind, seed, frames)
        (theirs, returns, one), (ours, others, other) = found["LazyTensorStorage"], found["Storage"]
        same = returns == others and all(torch.equal(*pair) for pair in zip(theirs, ours, strict=True))
        ratios.append(other / one)
        last = statistics.mean(returns[-20:])
        print(
            f"seed {seed}: {'same' if same else 'DIFFERENT'} {last:8.1f} {one:8.1f} {other:8.1f} {ratios[-1]:6.3f}",
            flush=True,
        )
    if ratios:
        print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0, metavar="SEEDS", help="also train with that many seeds")
    parser.add_argument("--frames", type=int, default=20_000, help="steps of each training")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the measurements of single calls")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement with two processes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.rounds:
        speeds(given.rounds)
    if given.seconds:
        processes(given.seconds)
    trainings(given.runs, given.frames)
