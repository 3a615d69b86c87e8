"""di_store.adapters.ding beside DI-engine's own buffer: same calls and same seed, same batches."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import until

pytest.importorskip("ding", reason="runs with make adapters ADAPTER=ding")

import torch
import treetensor.torch as ttorch
from ding.data import DequeBuffer
from ding.data.buffer import BufferedData
from ding.data.buffer.middleware import (
    PriorityExperienceReplay,
    clone_object,
    group_sample,
    padding,
    sample_range_view,
    staleness_check,
    use_time_check,
)
from ding_jobs import DISTRIBUTED, PIPELINE

import di_store
from di_store.adapters.ding import Buffer

torch.set_num_threads(1)

DATA: dict[str, Any] = {
    "int": 5,
    "large int": 2**70,
    "float": 0.1,
    "bool": True,
    "text": "a",
    "none": None,
    "tensor": torch.arange(6.0).reshape(2, 3),
    "scalar tensor": torch.tensor(3),
    "empty tensor": torch.ones(0),
    "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "array": np.arange(4, dtype=np.uint8),
    "0-d array": np.array(2.5),
    "numpy number": np.float32(1.5),
    "dict": {"obs": torch.ones(3), "action": torch.tensor([1]), 7: {"x": [1, (2.0, None)]}},
    "array dict": {"obs": np.zeros((2, 2), np.float32), "done": False},
    "list": [1, torch.ones(2), "x"],
    "tree": ttorch.as_tensor({"obs": {"image": torch.zeros(2, 2), "state": torch.ones(3)}, "reward": torch.ones(1)}),
    "flat tree": ttorch.as_tensor({"obs": torch.ones(3), "reward": torch.ones(1)}),
    "trees": [ttorch.as_tensor({"obs": torch.full((2,), float(t))}) for t in range(100)],
    "text in dict": {"obs": torch.ones(2), "info": "xxx"},
}


def equal(ours: Any, theirs: Any) -> bool:
    assert type(ours) is type(theirs), (type(ours), type(theirs))
    if isinstance(ours, ttorch.Tensor):
        return equal(ours.json(), theirs.json())
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(ours, BufferedData):
        return equal(ours.data, theirs.data) and ours.meta == theirs.meta
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    return bool(ours == theirs)


def transition(number: int) -> Any:
    return ttorch.as_tensor(
        {
            "obs": torch.full((4,), float(number)),
            "action": torch.tensor([number % 2]),
            "reward": torch.tensor([number / 8]),
            "done": torch.tensor([number % 5 == 4]),
        }
    )


def pair(size: int = 50, **options: Any) -> list[Any]:
    return [Buffer(size, **options), DequeBuffer(size)]


@pytest.mark.parametrize("keep", [0, 100])
@pytest.mark.parametrize("name", DATA)
def test_pushed_data_come_back_unchanged(name: str, keep: int) -> None:
    buffer = Buffer(3, keep=keep)
    buffer.push(transition(0))
    buffer.push(DATA[name], {"m": 1})
    found = buffer.get(1)
    assert equal(found.data, DATA[name])
    assert type(found) is BufferedData
    assert found.meta == {"m": 1}
    assert equal(buffer.storage[-1].data, DATA[name])
    assert equal([item.data for item in buffer], [buffer.get(0).data, DATA[name]])


@pytest.mark.parametrize("keep", [0, 20, 100])
@pytest.mark.parametrize("mixed", [False, True])
def test_same_seed_same_batches(keep: int, mixed: bool) -> None:
    ours, theirs = buffers = pair(keep=keep)
    rng = random.Random(0)
    forms = list(DATA.values())
    for step in range(400):
        datum = forms[step % len(forms)] if mixed and step % 3 == 0 else transition(step)
        for buffer in buffers:
            buffer.push(datum, {"env": step % 4, "step": step})
        what = rng.randrange(6)
        arguments: dict[str, Any] = {"size": rng.randrange(1, 8)}
        if what == 0:
            arguments["replace"] = True
        elif what == 1:
            arguments["sample_range"] = slice(1, 40)
        elif what == 2:
            arguments |= {"groupby": "env", "replace": True, "unroll_len": rng.choice([None, 3])}
        elif what == 3:
            place = rng.randrange(len(ours))
            datum = transition(-step) if step % 2 else None
            for buffer in buffers:
                index = buffer.storage[place].index
                assert buffer.update(index, datum, {"env": 9, "step": -step})
        found = []
        for buffer in buffers:
            random.seed(step)
            try:
                found.append(buffer.sample(**arguments))
            except ValueError as error:
                found.append(str(error))
        assert equal(*found)
        assert len(ours) == len(theirs)
    assert equal([*map(ours.get, range(50))], [*map(theirs.get, range(50))])


def test_samples_can_be_drawn_by_indices() -> None:
    buffer = Buffer(10)
    pushed = [buffer.push(number) for number in range(20)]
    indices = [item.index for item in pushed[12:15]] * 2
    assert [item.data for item in buffer.sample(indices=indices)] == [12, 13, 14] * 2
    assert [buffer.indices.get(item.index) for item in pushed[10:]] == list(range(10))
    assert not buffer.indices.has(pushed[0].index)
    with pytest.raises(KeyError):
        buffer.sample(indices=[pushed[0].index])
    with pytest.raises(AssertionError):
        buffer.sample(3, indices=indices)
    with pytest.raises(AssertionError):
        buffer.sample()
    assert buffer.get_by_index(pushed[11].index).data == 11


def test_deleted_items_are_gone_and_others_remain() -> None:
    buffer = Buffer(10)
    pushed = [buffer.push(number, {"g": number % 2}) for number in range(10)]
    buffer.sample(1, groupby="g")
    buffer.delete([pushed[number].index for number in (0, 3, 4, 9)])
    buffer.delete("unknown")
    assert [item.data for item in buffer] == [1, 2, 5, 6, 7, 8]
    assert list(buffer.meta_index["g"]) == [1, 0, 1, 0, 1, 0]
    for number in (1, 2, 5, 6, 7, 8):
        assert buffer.storage[buffer.indices.get(pushed[number].index)].data == number
    for number in (0, 3, 4, 9):
        assert not buffer.indices.has(pushed[number].index)
    for number in range(10, 17):
        buffer.push(number)
    assert [item.data for item in buffer] == [6, 7, 8, *range(10, 17)]


def test_updated_items_are_evicted_in_push_order() -> None:
    buffer = Buffer(5)
    pushed = [buffer.push(number) for number in range(5)]
    assert buffer.update(pushed[0].index, 100)
    assert not buffer.update("unknown", 1)
    buffer.storage[1].data = 101
    for number in range(5, 8):
        buffer.push(number)
        assert len({item.data for item in buffer}) == 5
    assert [item.data for item in buffer] == [3, 4, 5, 6, 7]


def test_sampled_data_are_copies() -> None:
    buffer = Buffer(4, keep=0)
    datum = transition(1)
    buffer.push(datum)
    [drawn] = buffer.sample(1)
    drawn.data.obs += 1
    drawn.data.extra = torch.ones(1)
    del drawn.data["action"]
    datum.reward.zero_()
    assert equal(buffer.get(0).data, transition(1))
    first, second = buffer.sample(2, replace=True)
    first.data.obs.zero_()
    assert equal(second.data, transition(1))
    buffer.update(drawn.index, drawn.data)
    assert list(buffer.get(0).data.keys()) == list(drawn.data.keys())


def test_sampled_objects_stay_the_same_while_they_are_stored() -> None:
    """Until they are not kept: then they are as they were pushed or updated."""
    for buffer in pair(8):
        for step in range(8):
            buffer.push(transition(step))
        for item in buffer.sample(8):
            item.data.obs += 1
            item.data.extra = torch.ones(1)
        assert all(len(item.data.keys()) == 5 for item in buffer)
        assert [float(item.data.obs[0]) for item in buffer] == list(range(1, 9))
        first, second = buffer.sample(indices=[buffer.storage[0].index] * 2)
        assert first.data is second.data  # DI-engine copies tensors and dicts of them, no trees
        buffer.push({"obs": torch.ones(2)})
        first, second = buffer.sample(indices=[buffer.storage[-1].index] * 2)
        first.data["obs"].zero_()
        assert second.data["obs"].tolist() == [1, 1]
    buffer = Buffer(8, keep=2)
    for step in range(8):
        buffer.push(transition(step))
        buffer.sample(1, sample_range=slice(len(buffer) - 1, None))[0].data.extra = torch.ones(1)
    assert [len(item.data.keys()) for item in buffer] == [4] * 6 + [5] * 2


def test_data_of_different_structures_are_kept_apart() -> None:
    """By types and shapes of their tensors, and by the kind of their container."""
    tensors = (torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
    for ours, theirs in (pair(50, keep=5), pair(50, keep=50)):
        for step in range(40):
            data = {"a": tensors[step % 3] + step}
            for buffer in (ours, theirs):
                buffer.push(ttorch.as_tensor(data) if step % 4 == 0 and step % 3 == 0 else data)
        assert equal([item.data for item in ours], [item.data for item in theirs])


@pytest.mark.parametrize("named", [False, True])
def test_middleware_gets_arguments_as_they_were_given(named: bool) -> None:
    seen: list[Any] = [[], []]
    for buffer, calls in zip(pair(3), seen, strict=True):
        for number in range(2):
            buffer.use(
                lambda action, chain, *given, number=number, calls=calls, **names: (
                    calls.append((number, action, given, names)),
                    chain(*given, **names),
                )[1]
            )
        pushed = buffer.push(data=1, meta={"a": 2}) if named else buffer.push(1, {"a": 2})
        assert (pushed.data, pushed.meta) == (1, {"a": 2})
    assert seen[0] == seen[1]
    assert [call[0] for call in seen[0]] == [0, 1]


def test_reading_a_removed_item_raises() -> None:
    buffer = Buffer(1, keep=0)
    buffer.push(transition(0))
    item = buffer.storage[0]
    buffer.push(transition(1))
    buffer.push(transition(2))
    with pytest.raises(LookupError, match="removed from the buffer"):
        item.data  # noqa: B018
    assert "removed" not in repr(item)


def test_a_view_shares_items_and_has_its_own_middleware() -> None:
    buffer = Buffer(10)
    view = buffer.view().use(clone_object())
    view.push(torch.ones(2))
    assert len(buffer) == len(view) == 1
    assert buffer._middleware == []
    last = buffer.view()
    last.use(sample_range_view(last, start=-2))
    for number in range(10):
        buffer.push(number)
    assert {last.sample(1)[0].data for _ in range(20)} == {8, 9}
    buffer.clear()
    assert len(view) == 0


def test_priorities_are_drawn_as_by_their_buffer() -> None:
    buffers = pair(20)
    for buffer in buffers:
        buffer.use(PriorityExperienceReplay(buffer, IS_weight=True))
    for step in range(60):
        found = []
        for buffer in buffers:
            buffer.push(transition(step), {"priority": float(1 + step % 7)})
            np.random.seed(step)
            batch = buffer.sample(4)
            for item in batch:
                item.meta["priority"] = float(item.data.obs[0] % 3)
                buffer.update(item.index, None, item.meta)
            found.append(batch)
        for ours, theirs in zip(*found, strict=True):
            assert equal(ours.data, theirs.data)
            assert ours.meta == theirs.meta
    ours, theirs = buffers
    first = [buffer.storage[0].index for buffer in buffers]
    for buffer, index in zip(buffers, first, strict=True):
        buffer.delete(index)
    assert len(ours) == len(theirs) == 19
    for buffer in buffers:
        buffer.clear()
        buffer.push(transition(0))
    assert len(ours.sample(1)) == 1


def test_use_count_and_staleness_limits_hold() -> None:
    buffer = Buffer(10)
    buffer.use(use_time_check(buffer, max_use=2))
    for step in range(6):
        buffer.push(transition(step))
    for _ in range(2):
        assert len(buffer.sample(6)) == 6
    assert len(buffer) == 0
    buffer = Buffer(10)
    buffer.use(staleness_check(buffer, max_staleness=10))
    for step in range(6):
        buffer.push(transition(step), meta={"train_iter_data_collected": step})
    batch = buffer.sample(size=3, train_iter_sample_data=12)
    assert len(buffer) == 4
    assert all(item.meta["staleness"] <= 10 for item in batch)


def test_groups_are_cut_and_padded() -> None:
    buffer = Buffer(100).use(group_sample(size_in_group=5)).use(padding(policy="random"))
    for step in range(4):
        buffer.push(transition(step), {"episode": 0})
    for step in range(10):
        buffer.push(transition(step), {"episode": 1})
    groups = buffer.sample(2, groupby="episode")
    assert [len(group) for group in groups] in ([4, 5], [5, 4], [5, 5])
    with pytest.raises(ValueError, match="less than"):
        Buffer(3).sample(1)
    assert Buffer(3).sample(1, ignore_insufficient=True) == []


@pytest.mark.parametrize("kinds", [(Buffer, Buffer), (Buffer, DequeBuffer), (DequeBuffer, Buffer)])
def test_saved_files_match_ding_engine(kinds: Any, tmp_path: Path) -> None:
    saved, loaded = kinds[0](5), kinds[1](5)
    for step in range(8):
        saved.push(transition(step), {"env": step % 2})
    saved.sample(1, groupby="env")
    name = str(tmp_path / "new" / "data.hkl")
    saved.save_data(name)
    loaded.push(transition(99))
    loaded.load_data(name)
    assert equal([*map(loaded.get, range(5))], [*map(saved.get, range(5))])
    assert [item.index for item in loaded] == [item.index for item in saved]
    assert loaded.update(saved.storage[2].index, transition(7), {"env": 5})
    for step in range(3):
        loaded.push(transition(step))
    assert equal(loaded.get(0).data, transition(6))
    assert [loaded.indices.get(item.index) for item in loaded] == list(range(5))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copied_buffer_has_its_own_store(copied: Any) -> None:
    buffer = Buffer(5, sliced=True)
    for step in range(8):
        buffer.push(transition(step), {"step": step})
    other = copied(buffer)
    buffer.clear()
    assert [item.meta["step"] for item in other] == [3, 4, 5, 6, 7]
    assert equal(other.get(1).data, transition(4))
    other.push(transition(8))
    assert len(other) == 5


def test_threads_push_and_sample() -> None:
    buffer = Buffer(50, keep=10)
    buffer.push(transition(0))
    stop = threading.Event()

    def pushes() -> None:
        step = 0
        while not stop.is_set():
            buffer.push(transition(step))
            step += 1

    threads = [threading.Thread(target=pushes) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            for item in buffer.sample(8, replace=True):
                number = float(item.data.obs[0])
                assert float(item.data.reward) == number / 8
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_buffer_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(di_store.CapacityError):
        Buffer(10**8).push({"obs": torch.zeros(100_000)})


def test_a_distributed_job_can_read_a_deleted_object_again(tmp_path: Path) -> None:
    """DI_STORE=on: the learner deletes each object that it has read, and the coordinator draws it again."""
    config = tmp_path / "di_store.yaml"
    config.write_text(f"store: {{name: ding-test-{os.getpid()}, memory: 64MiB}}\n")
    program = tmp_path / "job.py"
    program.write_text(DISTRIBUTED)
    environment = os.environ | {"DI_STORE": "on", "DI_STORE_CONFIG_PATH": str(config)}
    found = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "Enable DI-store" in found.stdout
    assert found.stdout.splitlines()[-1] == "read 40"


def test_ding_engines_parallel_pipeline_runs_through_the_store(tmp_path: Path) -> None:
    """DI_STORE=on: two collectors put what the learner reads, deletes and trains with; no data go through files."""
    name = f"ding-pipeline-{os.getpid()}"
    (tmp_path / "di_store.yaml").write_text(f"store: {{name: {name}, memory: 64MiB}}\n")
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    environment = os.environ | {"DI_STORE": "on", "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen([sys.executable, "pipeline.py"], cwd=tmp_path, env=environment, start_new_session=True)

    def read() -> int:
        try:
            store = di_store.attach(name)
            try:
                return len(store.table("client/deleted"))
            finally:
                store.close()
        except (di_store.StoreNotFound, di_store.TableNotFound):
            return 0

    try:
        until(lambda: job.poll() is not None or read() >= 100, "the learner to read 100 objects", seconds=220)
        assert job.poll() is None
        assert not list((tmp_path / "cartpole_dqn/data").iterdir())
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_training_gives_the_same_weights() -> None:
    """DI-engine's DQN on a task pipeline: same seed, same weights."""
    gym = pytest.importorskip("gym")
    from ding.config import compile_config
    from ding.envs import BaseEnvManagerV2, DingEnvWrapper
    from ding.framework import ding_init, task
    from ding.framework.context import OnlineRLContext
    from ding.framework.middleware import OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler
    from ding.model import DQN
    from ding.policy import DQNPolicy
    from ding.utils import set_pkg_seed
    from easydict import EasyDict

    def trained(kind: Any, folder: str) -> list[torch.Tensor]:
        policy = {
            "cuda": False,
            "priority": True,
            "priority_IS_weight": True,
            "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
            "nstep": 1,
            "learn": {"update_per_collect": 2, "batch_size": 16, "learning_rate": 0.001},
            "collect": {"n_sample": 8, "unroll_len": 1},
            "other": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 100}, "replay_buffer": {}},
        }
        main = EasyDict(exp_name=folder, seed=0, env={"stop_value": 10**9}, policy=policy)
        cfg = compile_config(main, policy=DQNPolicy, env_manager=BaseEnvManagerV2, seed=0, save_cfg=False)
        with task.start(async_mode=False, ctx=OnlineRLContext()):
            ding_init(cfg)
            envs = BaseEnvManagerV2([lambda: DingEnvWrapper(gym.make("CartPole-v0"))] * 2, cfg.env.manager)
            set_pkg_seed(0, use_cuda=False)
            model, buffer = DQN(**cfg.policy.model), kind(size=100)
            buffer.use(PriorityExperienceReplay(buffer, IS_weight=True))
            learner = DQNPolicy(cfg.policy, model=model)
            task.use(eps_greedy_handler(cfg))
            task.use(StepCollector(cfg, learner.collect_mode, envs))
            task.use(data_pusher(cfg, buffer))
            task.use(OffPolicyLearner(cfg, learner.learn_mode, buffer))
            task.run(max_step=20)
            return [value.detach().clone() for value in model.parameters()]

    runs = []
    for kind in (Buffer, DequeBuffer):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(trained(kind, f"{folder}/run"))
    assert equal(*runs)
