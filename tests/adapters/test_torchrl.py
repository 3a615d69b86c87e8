"""The TorchRL adapter beside TorchRL's own storages: the same rows, and for the same seed the same batches."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl", reason="runs with make adapters ADAPTER=torchrl")

import torch
from tensordict import TensorDict, tensorclass
from torchrl.data import (
    LazyTensorStorage,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from torchrl.data import ReplayBuffer as PlainBuffer
from torchrl.data.replay_buffers import samplers
from torchrl.data.replay_buffers.sample_units import Sequence
from torchrl.envs.transforms import Compose, ExcludeTransform, MultiStepTransform, RenameTransform

import di_store
from di_store.adapters.torchrl import ReplayBuffer, Storage

SIZE, BATCH = 50, 16


@tensorclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


def rows(n: int, start: int = 0) -> TensorDict:
    numbers = torch.arange(start, start + n)
    following = {
        "observation": torch.rand(n, 4),
        "reward": torch.rand(n, 1),
        "done": (numbers % 7 == 6)[:, None],
        "terminated": (numbers % 7 == 6)[:, None],
        "truncated": torch.zeros(n, 1, dtype=torch.bool),
    }
    inner = TensorDict({"traj_ids": numbers // 7}, [n])
    data = {"observation": torch.rand(n, 4), "action": numbers % 2, "n": numbers, "collector": inner}
    return TensorDict(data | {"next": TensorDict(following, [n])}, [n])


def same(ours: Any, theirs: Any) -> bool:
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key]), key
    return ours.shape == theirs.shape and ours.device == theirs.device


def runs(make: Any, steps: int = 12, n: int = 9) -> None:
    """Both storages in buffers that `make` makes: what is drawn while they are filled and overwritten is the same."""
    found = []
    for storage in (Storage(SIZE), LazyTensorStorage(SIZE)):
        torch.manual_seed(0)
        np.random.seed(0)  # TorchRL's PrioritizedSampler draws with it
        buffer, drawn = make(storage), []
        for step in range(steps):
            buffer.extend(rows(n, n * step))
            batch = buffer.sample()
            batch["td_error"] = torch.rand(batch.shape)
            if isinstance(buffer.sampler, samplers.PrioritizedSampler):
                buffer.update_tensordict_priority(batch)
            drawn.append(batch)
        found.append((drawn, buffer))
    (ours, buffer), (theirs, other) = found
    assert all(same(*pair) for pair in zip(ours, theirs, strict=True))
    assert same(buffer[:].to_tensordict(), other[:].to_tensordict())
    assert len(buffer) == len(other)


def sampler_of(name: str) -> Any:
    if name == "PrioritizedSampler":
        return samplers.PrioritizedSampler(SIZE, alpha=0.7, beta=0.5)
    if name == "SliceSampler":
        return samplers.SliceSampler(slice_len=4, end_key=("next", "done"), strict_length=False)
    if name == "SliceSamplerWithoutReplacement":
        return samplers.SliceSamplerWithoutReplacement(slice_len=4, traj_key=("collector", "traj_ids"))
    return getattr(samplers, name)()


class Tree:
    """In place of a segment tree of TorchRL's native module, with what its PrioritizedSampler calls of it."""

    def __init__(self, reduce: Any, neutral: float, size: int) -> None:
        self._reduce, self._values = reduce, np.full(size, neutral, np.float32)

    def __getitem__(self, index: Any) -> Any:
        return self._values[np.asarray(index)]

    def __setitem__(self, index: Any, values: Any) -> None:
        self._values[np.asarray(index)] = np.asarray(values)

    def query(self, begin: int, end: int) -> float:
        return float(self._reduce(self._values[begin:end]))

    def scan_lower_bound(self, mass: Any) -> Any:
        return np.searchsorted(np.cumsum(self._values), mass)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segment trees also where TorchRL's native module was built for another version of torch, and does not load."""
    names = samplers.PrioritizedSampler._init.__globals__
    for name, reduce, neutral in (("Sum", np.sum, 0.0), ("Min", np.min, np.inf)):
        for bits in (32, 64):
            kind = f"{name}SegmentTreeFp{bits}"
            if names[kind] is None:
                monkeypatch.setitem(names, kind, functools.partial(Tree, reduce, neutral))


SAMPLERS = (
    *("RandomSampler", "SamplerWithoutReplacement", "SliceSampler", "SliceSamplerWithoutReplacement"),
    "PrioritizedSampler",
)


@pytest.mark.usefixtures("trees")
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_batches(name: str) -> None:
    runs(lambda storage: TensorDictReplayBuffer(storage=storage, batch_size=BATCH, sampler=sampler_of(name)))


def test_rows_can_be_replaced_out_of_order() -> None:
    def make(storage: Any) -> Any:
        return TensorDictReplayBuffer(storage=storage, batch_size=BATCH, writer=TensorDictMaxValueWriter(rank_key="n"))

    runs(make, steps=150)


def test_transforms_and_prefetch_work() -> None:
    def make(storage: Any) -> Any:
        steps = MultiStepTransform(n_steps=3, gamma=0.9)
        transform = Compose(steps, ExcludeTransform("action"), RenameTransform(["observation"], ["pixels"]))
        return TensorDictReplayBuffer(storage=storage, batch_size=BATCH, transform=transform)

    runs(make)
    buffer = TensorDictReplayBuffer(storage=Storage(SIZE), batch_size=BATCH, prefetch=3)
    buffer.extend(rows(SIZE))
    for _ in range(10):
        batch = buffer.sample()
        assert same(batch, buffer[batch["index"]].set("index", batch["index"]))
    buffer.shutdown()  # its thread would draw with torch's generator during the next test


@pytest.mark.parametrize("ndim", [2, 3])
def test_storages_with_several_row_axes_work(ndim: int) -> None:
    found = []
    for storage in (Storage(60, ndim=ndim), LazyTensorStorage(60, ndim=ndim)):
        torch.manual_seed(3)
        buffer = PlainBuffer(storage=storage, batch_size=BATCH)
        for _ in range(4):
            buffer.extend(TensorDict({"a": torch.rand(4, 3, 5), "b": {"c": torch.rand(4, 3, 5, 2)}}, [4, 3, 5]))
        found.append((buffer.sample(), buffer.storage[:].to_tensordict(), buffer.storage.flatten()[:], buffer))
    (ours, theirs) = found
    assert all(same(ours[part], theirs[part]) for part in range(3))
    assert ours[3].storage.shape == theirs[3].storage.shape
    assert len(ours[3]) == len(theirs[3])


def test_tensors_trees_and_tensorclasses_come_back() -> None:
    buffer = PlainBuffer(storage=Storage(5))
    buffer.extend(torch.arange(8))
    assert buffer[:].tolist() == [5, 6, 7, 3, 4]
    buffer[:2] = torch.tensor([8, 9])
    assert buffer[:].tolist() == [8, 9, 7, 3, 4]
    tree = {"a": torch.rand(3), "b": (torch.zeros(2), [torch.ones(1)]), 30: torch.ones(())}
    buffer = PlainBuffer(storage=Storage(10), batch_size=4)
    buffer.add(tree)
    buffer.extend([tree, tree])
    batch = buffer.sample()
    assert torch.equal(batch["a"], tree["a"].expand(4, 3))
    assert batch["b"][1][0].shape == (4, 1)
    assert batch[30].shape == (4,)
    pairs = PlainBuffer(storage=Storage(10), batch_size=3)
    pairs.extend(Pair(x=torch.arange(4.0), y=torch.arange(4).bfloat16(), batch_size=[4]))
    batch = pairs.sample()
    assert isinstance(batch, Pair)
    assert batch.y.dtype is torch.bfloat16
    assert torch.equal(batch.x, batch.y.float())


def test_any_index_reads_and_sets_in_place() -> None:
    ours, theirs = (TensorDictReplayBuffer(storage=kind(SIZE)) for kind in (Storage, LazyTensorStorage))
    data = rows(30)
    for buffer in (ours, theirs):
        buffer.extend(data.clone())
        buffer.set_at_("observation", torch.ones(2, 4), torch.tensor([3, 5]))
        buffer.set_at_(("next", "reward"), torch.full((30, 1), 2.0), slice(None))
    mask = torch.arange(30) % 3 == 0
    for index in (slice(None), slice(2, 9, 3), torch.tensor([4, 1]), [3, 3], 7, -1, range(4), mask, ...):
        assert same(ours.storage[index].clone(), theirs.storage[index].clone())
    assert torch.equal(ours[:]["next", "reward"], theirs[:]["next", "reward"])
    with pytest.raises(IndexError):
        ours.storage[30]


def test_part_of_several_axes_is_set_in_place() -> None:
    patch = TensorDict({"n": torch.tensor([70, 71]), "unknown": torch.zeros(2)}, [2])
    found = []
    for kind in (Storage, LazyTensorStorage):
        buffer = PlainBuffer(storage=kind(20, ndim=2))
        buffer.extend(TensorDict({"n": torch.arange(20).view(2, 10), "d": {"x": torch.rand(2, 10)}}, [2, 10]))
        buffer[0, 3:5] = patch.select("n")
        buffer[:, 7:9] = patch.select("n")
        buffer.storage[:][4] = {"n": torch.tensor([-4, -4])}
        buffer.storage[:][5, 1:] = -5
        found.append(buffer[:]["n"].tolist())
        every = buffer.storage[:]
        every.clone().set_("n", torch.ones(10, 2))  # of the clone alone
        found[-1] += buffer[:]["n"].tolist()
    assert found[0] == found[1]


def test_classes_defined_in_a_function_are_stored() -> None:
    @tensorclass
    class Local:
        x: torch.Tensor

    storage = Storage(4)
    storage._init(Local(x=torch.zeros(3), batch_size=[]))
    assert storage._storage.x.shape == (4, 3)
    other = pickle.loads(pickle.dumps(storage))
    storage.set(range(2), Local(x=torch.ones(2, 3), batch_size=[2]))
    for each in (storage, other):
        assert isinstance(each[torch.arange(2)], Local)
        assert (each[:].x == 1).all()


def test_every_change_counts_once() -> None:
    found = []
    for kind in (Storage, LazyTensorStorage):
        buffer, numbers = TensorDictReplayBuffer(storage=kind(8)), []
        changes = [
            lambda buffer: buffer.extend(rows(4)),
            lambda buffer: buffer.set_("n", torch.arange(4)),
            lambda buffer: buffer.set_at_("n", torch.tensor([9]), torch.tensor([1])),
            lambda buffer: buffer.update_(rows(4)),
            lambda buffer: buffer.load_state_dict(buffer.state_dict()),
            lambda buffer: buffer.empty(),
        ]
        for change in changes:
            change(buffer)
            numbers.append(int(buffer.storage._mutation_revision))
        found.append(numbers)
    assert found[0] == found[1]


def test_compiled_functions_write_and_draw() -> None:
    buffer = PlainBuffer(storage=Storage(40), batch_size=8)

    @torch.compile(backend="eager")
    def step(data: torch.Tensor) -> Any:
        buffer.extend(data)
        return buffer.sample() + 1

    for count in range(1, 5):
        assert (step(torch.full((20,), 3)) == 4).all()
        assert len(buffer) == min(20 * count, 40)


def test_rows_change_only_if_they_are_still_there() -> None:
    results = []
    for kind in (Storage, LazyTensorStorage):
        writer = TensorDictRoundRobinWriter(track_generations=True)
        buffer = TensorDictReplayBuffer(storage=kind(4), writer=writer)
        index = buffer.extend(TensorDict({"v": torch.zeros(4), "large": torch.zeros(4, 30)}, [4]))
        generation = buffer.writer.generations_of(index)
        buffer.extend(TensorDict({"v": torch.ones(1), "large": torch.ones(1, 30)}, [1]))
        patch = {"v": torch.full((4,), 5.0), "large": torch.full((4, 30), 2.0)}
        updated = buffer.update_if_present(index=index, generation=generation, patch=patch)
        results.append((updated.updated_count, buffer[:]["v"].tolist(), buffer[:]["large"][:, 0].tolist()))
    assert results[0] == results[1] == (3, [1, 5, 5, 5], [1, 2, 2, 2])


@pytest.mark.parametrize("count", [20, 65])
def test_files_and_state_dicts_are_loaded(tmp_path: Path, count: int) -> None:
    def buffer(kind: Any = Storage) -> Any:
        return TensorDictReplayBuffer(storage=kind(SIZE), batch_size=BATCH)

    first = buffer()
    for begin in range(0, count, 5):
        first.extend(rows(5, begin))
    first.dumps(tmp_path / "ours")
    theirs = buffer(LazyTensorStorage)
    theirs.loads(tmp_path / "ours")
    theirs.dumps(tmp_path / "theirs")
    every = first[:].to_tensordict()
    for number in range(3):
        other = buffer()
        if number == 0:
            other.load_state_dict(first.state_dict())
        else:
            other.loads(tmp_path / ("ours" if number == 1 else "theirs"))
        assert same(other[:].to_tensordict(), every)
        other.extend(rows(5, 1_000))
        assert other[:]["n"].max() == 1_004
        assert len(other) == min(count + 5, SIZE)


def write_many(buffer: Any, start: int) -> None:
    torch.set_num_threads(1)
    for begin in range(start, start + 200, 20):
        buffer.extend(rows(20, begin))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_share_one_buffer(method: str) -> None:
    context = multiprocessing.get_context(method)
    buffer = TensorDictReplayBuffer(storage=Storage(100), batch_size=BATCH, shared=True)
    for start in (0, 1_000):
        process = context.Process(target=write_many, args=(buffer, start))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert len(buffer) == 100
        found = buffer[:]
        assert sorted(found["n"].tolist()) == list(range(start + 100, start + 200))
        batch = buffer.sample()
        assert ((batch["n"] >= start + 100) & (batch["collector", "traj_ids"] == batch["n"] // 7)).all()
        buffer.extend(rows(30, 5_000))
        assert (buffer[:]["n"] >= 5_000).sum() == 30
    assert buffer.storage.table.capacity == 100  # the rows stayed in turn


def test_only_rows_that_others_overwrote_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Storage(SIZE)
    one.set(torch.arange(SIZE), rows(SIZE))
    other = pickle.loads(pickle.dumps(one))
    other.set(torch.arange(20), rows(20, 1_000))
    asked: list[int] = []
    table, peek = di_store.Table, di_store.Table.peek
    monkeypatch.setattr(
        table, "peek", lambda self, keys, **options: (asked.append(len(keys)), peek(self, keys, **options))[1]
    )
    found = one.get(torch.tensor([3, 40, 19, 3, 20, 0]))
    assert found["n"].tolist() == [1_003, 40, 1_019, 1_003, 20, 1_000]
    assert (found["collector", "traj_ids"] == found["n"] // 7).all()
    assert asked == [6, 20, 4]  # the batch, what is new in the table, and the four rows that are


def test_a_storage_pickles_as_a_name() -> None:
    storage = Storage(SIZE, sampler=di_store.Uniform())
    early = pickle.loads(pickle.dumps(storage))
    assert len(early) == 0
    assert not early.initialized
    storage.set(range(30), rows(30))
    late = pickle.loads(pickle.dumps(storage))
    assert len(pickle.dumps(storage)) < 4_000
    assert same(early[:].to_tensordict(), late[:].to_tensordict())
    late[4:6] = rows(2, 77)
    assert storage[:]["n"][4:6].tolist() == [77, 78]
    with di_store.open(memory="fit") as store:
        one, other = (Storage(SIZE, store=store, table="steps") for _ in range(2))
        one.set(range(3), rows(3))
        assert other[:]["n"].tolist() == [0, 1, 2]


def test_the_table_draws_by_priorities_that_processes_share() -> None:
    sampler = di_store.Prioritized(1.0, beta=0.5, normalize="table")
    buffer = ReplayBuffer(storage=SIZE, sampler=sampler, batch_size=BATCH, priority_key="error")
    with pytest.raises(RuntimeError, match="empty storage"):
        buffer.sample()
    buffer.extend(rows(SIZE))
    batch = buffer.sample(200)
    assert torch.equal(batch["n"], batch["index"])
    assert batch["priority_weight"].shape == (200,)
    every = buffer[:].to_tensordict().set("error", torch.zeros(SIZE))
    every["error"][7] = 1.0
    other = pickle.loads(pickle.dumps(ReplayBuffer(storage=buffer.storage, batch_size=BATCH, priority_key="error")))
    other.update_tensordict_priority(every)
    assert set(buffer.sample(100)["n"].tolist()) == {7}
    state = buffer.state_dict()
    copy = ReplayBuffer(storage=SIZE, sampler=sampler, batch_size=BATCH)
    copy.load_state_dict(state)
    assert set(copy.sample(100)["n"].tolist()) == {7}
    buffer.extend(rows(SIZE, 100))  # new rows have the largest priority
    assert len(set(buffer.sample(200)["n"].tolist())) > 20


def test_the_table_draws_for_sequences_and_generations() -> None:
    sampler = di_store.Prioritized(1.0, beta=0.5)
    writer = TensorDictRoundRobinWriter(track_generations=True)
    unit = Sequence(length=3, done_key=("next", "done"))
    options = {"storage": 49, "sampler": sampler, "batch_size": 6, "priority_key": "error"}
    buffer = ReplayBuffer(**options, sample_unit=unit, writer=writer)
    buffer.extend(rows(49))
    batch = buffer.sample().reshape(6, 3)
    assert ((batch["n"] == batch["index"]) & (batch["index_generation"] == 0)).all()
    assert (batch["n"] // 7 == batch["n"][:, :1] // 7)[batch["validity_mask"]].all()
    buffer.update_tensordict_priority(batch.reshape(-1).set("error", torch.ones(18)))
    every = buffer[:].to_tensordict().set("index", torch.arange(49)).set("error", torch.zeros(49))
    every["error"][14] = 1.0
    buffer.update_tensordict_priority(every)
    assert buffer.sample().reshape(6, 3)["n"].tolist() == [[14, 15, 16]] * 6


def test_the_table_draws_from_several_axes() -> None:
    sampler = di_store.Prioritized(1.0, beta=0.5)
    buffer = ReplayBuffer(storage=Storage(20, ndim=2, sampler=sampler), batch_size=6, priority_key="error")
    buffer.extend(TensorDict({"n": torch.arange(20).view(2, 10)}, [2, 10]))
    batch = buffer.sample()
    assert batch["index"].shape == (6, 2)
    assert torch.equal(buffer.storage[tuple(batch["index"].unbind(-1))]["n"], batch["n"])
    axes = torch.stack(torch.meshgrid(torch.arange(10), torch.arange(2), indexing="ij"), -1).reshape(-1, 2)
    every = TensorDict({"index": axes, "error": torch.zeros(20)}, [20])
    every["error"][7] = 1.0
    buffer.update_tensordict_priority(every)
    assert (buffer.sample()["index"] == axes[7]).all()


def test_the_same_seed_gives_the_same_draws_of_the_table() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        buffer = ReplayBuffer(storage=SIZE, sampler=di_store.Uniform(), batch_size=BATCH)
        buffer.extend(rows(SIZE))
        drawn.append([buffer.sample()["n"].tolist() for _ in range(5)])
    assert drawn[0] == drawn[1]


def test_samplers_of_torchrl_work() -> None:
    def make(storage: Any) -> Any:
        kind = ReplayBuffer if isinstance(storage, Storage) else TensorDictReplayBuffer
        return kind(storage=storage, batch_size=BATCH, sampler=samplers.RandomSampler())

    runs(make)


def test_keys_may_be_added_later_or_left_out() -> None:
    storage = Storage(SIZE)
    storage.set(range(4), rows(4))
    storage.set(torch.arange(2), TensorDict({"n": torch.tensor([70, 71]), "unknown": torch.zeros(2)}, [2]))
    assert storage[:]["n"].tolist() == [70, 71, 2, 3]
    assert "unknown" not in storage[:].keys()  # noqa: SIM118
    storage.set(4, TensorDict({"n": torch.tensor(9.0)}, []))  # cast, as an assignment casts
    assert storage[4]["n"].item() == 9


def test_bad_input_is_refused() -> None:
    buffer = TensorDictReplayBuffer(storage=Storage(SIZE))
    with pytest.raises(RuntimeError, match="non-initialized storage"):
        buffer.storage[0]
    with pytest.raises(TypeError, match=r"texts is a NonTensor.*ExcludeTransform"):
        buffer.extend(TensorDict({"n": torch.zeros(2)}, [2]).set_non_tensor("texts", "a"))
    with pytest.raises(TypeError, match="to_dense"):
        buffer.extend(TensorDict({"n": torch.eye(2).to_sparse()}, [2]))
    buffer.extend(rows(3))
    with pytest.raises(ValueError, match=r"observation is \[2, 5\] for \[2\] rows"):
        buffer.extend(rows(2).set("observation", torch.zeros(2, 5)))
    with pytest.raises(ValueError, match="at least one row"):
        Storage(0)
    with pytest.raises(TypeError, match="Prioritized"):
        Storage(5, sampler="prioritized")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TensorDictReplayBuffer"):
        ReplayBuffer(storage=LazyTensorStorage(5))
    with pytest.raises(ValueError, match="draws by"):
        ReplayBuffer(storage=Storage(5, sampler=di_store.Uniform()), sampler=di_store.Prioritized(0.6))
    with pytest.raises(di_store.CapacityError, match="lower max_size"):
        Storage(10**8).set(0, torch.zeros(100_000))


def test_another_version_is_named() -> None:
    program = "import torchrl; torchrl.__version__ = '1.2.0'; import di_store.adapters.torchrl"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "works with torchrl >=0.14,<0.15, and 1.2.0 is installed" in found.stderr.splitlines()[-1]
