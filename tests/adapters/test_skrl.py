"""di_store.adapters.skrl beside skrl's own RandomMemory: same samples and same seed, same batches."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skrl", reason="runs with make adapters ADAPTER=skrl")

import gymnasium
import torch
import torch.multiprocessing as mp
from adapter_pages import run_programs
from gymnasium import spaces
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model

import di_store
from di_store.adapters.skrl import Memory

torch.set_num_threads(1)  # for networks this small, more threads only wait for each other

BOX = spaces.Box(-1, 1, (4,), np.float32)
COLUMNS: dict[str, dict[str, Any]] = {
    "observations": {"size": BOX, "dtype": torch.float32},
    "actions": {"size": spaces.Discrete(3), "dtype": torch.int64},
    "rewards": {"size": 1, "dtype": torch.float32},
    "terminated": {"size": 1, "dtype": torch.bool},
    "rnn": {"size": (2, 3), "dtype": torch.float32, "keep_dimensions": True},
    "half": {"size": 2, "dtype": torch.bfloat16},
    "returns": {"size": 1, "dtype": torch.float32},
    "states": {"size": None},
}
GIVEN = ("observations", "actions", "rewards", "terminated", "rnn", "half")
NAMES = [*COLUMNS, "no such tensor"]


@pytest.fixture(params=["copies", "table"])
def where(request: Any, monkeypatch: Any) -> str:
    """Where batches are read from."""
    if request.param == "table":
        monkeypatch.setattr("di_store.adapters.skrl.columns._COPIED_BYTES", 0)
    found: str = request.param
    return found


def _pair(size: int, n_envs: int, columns: Any = COLUMNS, **options: Any) -> tuple[Memory, RandomMemory]:
    found = [cls(memory_size=size, num_envs=n_envs, device="cpu", **options) for cls in (Memory, RandomMemory)]
    for memory in found:
        for name, column in columns.items():
            assert memory.create_tensor(name, **column) == (column["size"] is not None)
    return found[0], found[1]


def _samples(n: int, generator: torch.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in GIVEN:
        size = COLUMNS[name]["size"]
        shape = size if isinstance(size, tuple) else (4,) if name == "observations" else (2 if name == "half" else 1,)
        values = torch.rand((n, *shape), generator=generator) * 4
        found[name] = values > 2 if name == "terminated" else values.to(COLUMNS[name]["dtype"])
    return found | {"states": None, "unknown": torch.zeros(n, 1)}


def _same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    for mine, others in zip(ours, theirs, strict=True):
        for one, two in zip(mine, others, strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                assert (one.shape, one.dtype, one.device) == (two.shape, two.dtype, two.device)
                assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))
                assert torch.equal(one.isnan(), two.isnan())


def _both(seed: int, call: Any, *memories: Any) -> None:
    found = []
    for memory in memories:
        torch.manual_seed(seed)
        found.append((call(memory), memory.get_sampling_indexes()))
    _same(found[0][0], found[1][0])
    assert found[0][1] is None or torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("n_envs", [1, 3, 40])
def test_batches_match_skrl(n_envs: int, replacement: bool, where: str) -> None:
    """Bit for bit, before and after the memory is full, and in a copy and after pickling."""
    ours, theirs = _pair(30, n_envs, replacement=replacement)
    generator = torch.Generator().manual_seed(0)
    for number in range(70):
        given = _samples(n_envs, generator)
        for memory in (ours, theirs):
            memory.add_samples(**given)
        assert (len(ours), ours.memory_index, ours.filled) == (len(theirs), theirs.memory_index, theirs.filled)
        if number % 9 == 5:
            _both(number, lambda each: each.sample(NAMES, batch_size=16), ours, theirs)
            _both(number, lambda each: each.sample(NAMES, batch_size=16, mini_batches=3), ours, theirs)
            _both(number, lambda each: each.sample(NAMES, batch_size=4, sequence_length=3), ours, theirs)
            _both(number, lambda each: each.sample_all(NAMES), ours, theirs)
            _both(number, lambda each: each.sample_all(NAMES, mini_batches=4), ours, theirs)
            _both(number, lambda each: each.sample_all(NAMES, mini_batches=2, sequence_length=5), ours, theirs)
            _both(number, lambda each: each.sample_by_index(NAMES, indexes=[0, -1, 3]), ours, theirs)
    assert set(ours._columns.rows.specs) == set(GIVEN) - {"half"}
    assert ours._columns.copied == (where == "copies")
    for loaded in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        given = _samples(n_envs, generator)
        other = copy.deepcopy(theirs)
        for memory in (loaded, other):
            for _ in range(4):
                memory.add_samples(**given)
        _same([[*loaded.tensors.values()]], [[*other.tensors.values()]])
        _same([[*loaded.tensors_view.values()]], [[*other.tensors_view.values()]])


def test_the_table_holds_the_same_as_the_in_memory_copies() -> None:
    """Also of samples of some environments, of rounds without a tensor, and once a tensor moved out."""
    memory, _ = _pair(30, 3)
    generator = torch.Generator().manual_seed(0)
    for number in range(100):
        given = _samples((3, 1, 2)[number % 3], generator)
        if number % 4 == 3:
            given.pop("actions")
        memory.add_samples(**given)
        if number == 70:
            memory.set_tensor_by_name("rewards", torch.zeros(30, 3, 1))
        if number % 10 == 0:
            names = [*memory._columns.rows.specs]
            data, live = memory._columns.rows.peek(slice(None), tuple(names))
            assert (np.ones(90, bool) if live is None else live).sum() == len(memory)
            held = slice(None) if live is None else live
            for name in names:
                assert np.array_equal(data[name][held], memory._columns._plain[name].numpy()[held], equal_nan=True)
    sampled = memory.sample_all(NAMES)
    pickled, shared = pickle.loads(pickle.dumps(memory)), copy.copy(memory)
    shared.share_memory()
    assert pickled._columns.copied
    assert not shared._columns.copied
    for other in (pickled, shared):
        _same(other.sample_all(NAMES), sampled)


def test_large_memories_keep_no_copies_beside_the_table(monkeypatch: Any) -> None:
    """Above the limit of copies, and as soon as it is shared."""
    monkeypatch.setattr("di_store.adapters.skrl.columns._COPIED_BYTES", 40_000)
    for size, copied in ((10, True), (11, False)):
        memory = Memory(memory_size=size, device="cpu")
        memory.create_tensor("observations", size=1_000, dtype=torch.float32)
        memory.add_samples(observations=torch.ones(1, 1_000))
        assert [*memory._columns._plain] == (["observations"] if copied else [])
        assert memory.sample(["observations"], batch_size=2)[0][0].sum() == 1_000
        memory.share_memory()
        assert not memory._columns._plain
        assert memory._columns.rows._copies is None


def test_changing_a_returned_tensor_changes_no_stored_one() -> None:
    """Tensors of a batch, and those by name of what is in the store, are copies."""
    memory, _ = _pair(4, 2, {"rewards": COLUMNS["rewards"]})
    for _ in range(4):
        memory.add_samples(rewards=torch.ones(2, 1))
    for tensor in (
        memory.sample(["rewards"], batch_size=3)[0][0],
        memory.sample_all(["rewards"])[0][0],
        memory.sample_by_index(["rewards"], indexes=torch.arange(3))[0][0],
        memory.get_tensor_by_name("rewards"),
        memory.tensors_view["rewards"],
    ):
        tensor.zero_()
    assert memory.get_tensor_by_name("rewards").sum() == 8


def test_partial_and_multiple_samples_can_be_added(where: str) -> None:
    """Samples of some environments at a time, of one, and several of a single environment."""
    ours, theirs = _pair(6, 5)
    generator = torch.Generator().manual_seed(0)
    for number in range(60):
        given = _samples((2, 3, 5)[number % 3], generator)
        if number % 7 == 6 and theirs.env_index:
            given = {
                name: each[0] for name, each in _samples(1, generator).items() if each is not None and each.ndim == 2
            }
        if given["observations"].ndim == 2 and given["observations"].shape[0] < 5:
            room = 5 - theirs.env_index
            given = {name: None if each is None else each[:room] for name, each in given.items()}
        for memory in (ours, theirs):
            memory.add_samples(**given)
        assert (ours.memory_index, ours.env_index, ours.filled) == (
            theirs.memory_index,
            theirs.env_index,
            theirs.filled,
        )
        _both(number, lambda each: each.sample_all(NAMES), ours, theirs)
    ours = _pair(6, 1)[0]
    for begin in range(0, 20, 4):
        ours.add_samples(observations=torch.arange(begin, begin + 4.0)[:, None].repeat(1, 4), rewards=torch.ones(4, 1))
    assert (len(ours), ours.memory_index, ours.filled) == (6, 2, True)
    assert ours.get_tensor_by_name("observations")[:, 0, 0].tolist() == [18, 19, 14, 15, 16, 17]
    with pytest.raises(ValueError, match="Expected shape"):
        ours.add_samples(observations=torch.zeros(7, 4))
    with pytest.raises(ValueError, match="There are no samples"):
        ours.add_samples()


def test_tensors_can_be_set_by_name(where: str) -> None:
    """Late tensors, and one that moves out of the store; the same as in skrl, also once the memory is overwritten."""
    ours, theirs = _pair(10, 4)
    generator = torch.Generator().manual_seed(0)
    for number in range(34):
        given = _samples(4, generator)
        for memory in (ours, theirs):
            memory.add_samples(**given)
        if number in (7, 12, 20, 30):
            for name in ("returns", "rewards"):
                for memory in (ours, theirs):
                    memory.set_tensor_by_name(name, memory.get_tensor_by_name("rewards") * 2 + number)
            assert "rewards" not in ours._columns.rows.specs
        _both(number, lambda each: each.sample_all(NAMES), ours, theirs)
    for memory in (ours, theirs):
        memory.create_tensor("later", size=2)
        memory.add_samples(**_samples(4, torch.Generator().manual_seed(1)), later=torch.ones(4, 2))
    _both(0, lambda each: each.sample_all([*NAMES, "later"]), ours, theirs)
    assert ours.get_tensor_names() == theirs.get_tensor_names()
    for call in (lambda: ours.get_tensor_by_name("x"), lambda: ours.set_tensor_by_name("x", torch.zeros(1))):
        with pytest.raises(KeyError):
            call()


def test_complex_and_unsigned_tensors_lie_in_the_table(where: str) -> None:
    kinds = {"wave": torch.complex64, "count": torch.uint16}
    for memory in (ours := Memory(memory_size=4), theirs := RandomMemory(memory_size=4)):
        for name, dtype in kinds.items():
            memory.create_tensor(name, size=2, dtype=dtype)
        for number in range(6):
            memory.add_samples(**{name: torch.full((1, 2), number).to(dtype) for name, dtype in kinds.items()})
    assert ours._columns.rows is not None
    assert set(ours._columns.rows.specs) == set(kinds)
    for mine, other in zip(ours.sample_all([*kinds])[0], theirs.sample_all([*kinds])[0], strict=True):
        assert mine.dtype == other.dtype
        assert mine.tolist() == other.tolist()


def test_a_tensor_that_is_left_out_keeps_its_values(where: str) -> None:
    """As in skrl, a slot keeps what it had in tensors that `add_samples` does not name."""
    ours, theirs = _pair(5, 3)
    for number in range(14):
        given = _samples(3, torch.Generator().manual_seed(number))
        if number % 3 == 2:
            given.pop("rewards")
        for memory in (ours, theirs):
            memory.add_samples(**given)
        _both(number, lambda each: each.sample_all(NAMES), ours, theirs)


def test_reset_forgets_all_samples(where: str) -> None:
    """After reset() nothing of before is drawn."""
    memory, _ = _pair(5, 3)
    for number in range(7):
        memory.add_samples(**_samples(3, torch.Generator().manual_seed(number)))
    memory.reset()
    assert (len(memory), memory.memory_index, memory.filled) == (0, 0, False)
    memory.add_samples(**_samples(3, torch.Generator().manual_seed(9)))
    assert memory.get_tensor_by_name("observations").isnan().sum() == 4 * 3 * 4


@pytest.mark.parametrize("format", ["pt", "npz", "csv"])
def test_files_match_skrl(format: str, tmp_path: Path) -> None:
    """Files are as skrl's; `load` takes over what they hold."""
    columns = {name: each for name, each in COLUMNS.items() if name not in ("half", "rnn")}
    ours, theirs = _pair(6, 2, columns)
    for number in range(4):
        given = _samples(2, torch.Generator().manual_seed(number))
        for memory in (ours, theirs):
            memory.add_samples(**given)
    paths = []
    for name, memory in (("ours", ours), ("theirs", theirs)):
        memory.save(str(tmp_path / name), format=format)
        paths.append(next((tmp_path / name / "memories").iterdir()))
    if format == "csv":
        assert paths[0].read_text() == paths[1].read_text()
        with pytest.raises(NotImplementedError):
            ours.load(str(paths[0]))
        return
    for path in paths:
        fresh, _ = _pair(6, 2, columns if path is paths[0] else {})
        fresh.load(str(path))
        assert (len(fresh), fresh.memory_index) == (8, 4)
        _both(0, lambda each: each.sample_all([*columns]), fresh, theirs)
        _both(0, lambda each: each.sample([*columns], batch_size=5), fresh, theirs)
        other, _ = _pair(5, 2, columns)
        with pytest.raises(ValueError, match=r"is \[6, 2, .*\] in .*, and \[5, 2, .*\] in this memory"):
            other.load(str(path))


def test_a_full_memory_is_exported(tmp_path: Path) -> None:
    """As skrl's: a file each time the memory is full."""
    memory, _ = _pair(3, 2, export=True, export_directory=str(tmp_path))
    for number in range(6):
        memory.add_samples(**_samples(2, torch.Generator().manual_seed(number)))
    assert len(list((tmp_path / "memories").iterdir())) == 2


def test_a_shared_memory_is_seen_by_both_processes() -> None:
    """A process that got the memory sees what others add, and they see what it adds."""
    memory, _ = _pair(4, 2, {name: COLUMNS[name] for name in ("observations", "returns")})
    memory.add_samples(observations=torch.full((2, 4), 1.0))
    memory.add_samples(observations=torch.full((2, 4), 2.0), returns=torch.zeros(2, 1))
    memory.share_memory()
    context = mp.get_context("spawn")
    there, queue = context.Queue(), context.Queue()
    process = context.Process(target=_answer, args=(memory, there, queue))
    process.start()
    memory.add_samples(observations=torch.full((2, 4), 3.0))
    there.put(None)
    assert queue.get(timeout=60)[:3] == [[1, 1], [2, 2], [3, 3]]
    there.put(None)
    queue.get(timeout=60)
    process.join()
    assert memory.get_tensor_by_name("observations")[2, :, 0].tolist() == [7, 7]
    assert memory.get_tensor_by_name("returns")[2, :, 0].tolist() == [8, 8]


def _answer(memory: Any, there: Any, queue: Any) -> None:
    there.get()
    queue.put(memory.tensors["observations"][:, :, 0].tolist())
    there.get()
    memory.add_samples(observations=torch.full((2, 4), 7.0), returns=torch.full((2, 1), 8.0))
    queue.put(None)


def _env(n_envs: int) -> Any:
    return wrap_env(gymnasium.make_vec("CartPole-v1", num_envs=n_envs) if n_envs > 1 else gymnasium.make("CartPole-v1"))


def _weights(agent: Any, env: Any, steps: int) -> torch.Tensor:
    trainer = SequentialTrainer(
        cfg={"timesteps": steps, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False},
        env=env,
        agents=agent,
    )
    trainer.train()
    return torch.cat([each.flatten() for model in agent.models.values() for each in model.parameters()])


def _quiet(cfg: Any) -> Any:
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    return cfg


NETWORK = [{"name": "net", "input": "OBSERVATIONS", "layers": [16], "activations": "relu"}]


def _dqn(memory: Any, n_envs: int, steps: int) -> torch.Tensor:
    set_seed(3)
    env = _env(n_envs)
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    models = {
        name: deterministic_model(network=NETWORK, output="ACTIONS", **given)
        for name in ("q_network", "target_q_network")
    }
    cfg = _quiet(DQN_CFG(batch_size=16, learning_starts=20, random_timesteps=10))
    agent = DQN(models=models, memory=memory(memory_size=60, num_envs=n_envs, device="cpu"), cfg=cfg, **given)
    return _weights(agent, env, steps)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_off_policy_training_gives_the_same_weights_as_skrl(n_envs: int, where: str) -> None:
    """DQN ends with the same weights, to the bit, as with skrl's memory."""
    assert torch.equal(_dqn(Memory, n_envs, 150), _dqn(RandomMemory, n_envs, 150))


def _ppo(memory: Any, n_envs: int, steps: int) -> torch.Tensor:
    set_seed(3)
    env = _env(n_envs)
    given = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    models = {
        "policy": categorical_model(network=NETWORK, output="ACTIONS", **given),
        "value": deterministic_model(network=NETWORK, output="ONE", **given),
    }
    cfg = _quiet(PPO_CFG(rollouts=16, learning_epochs=2, mini_batches=2))
    agent = PPO(models=models, memory=memory(memory_size=16, num_envs=n_envs, device="cpu"), cfg=cfg, **given)
    return _weights(agent, env, steps)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_on_policy_training_gives_the_same_weights_as_skrl(n_envs: int, where: str) -> None:
    """PPO, which writes values, returns and advantages late."""
    assert torch.equal(_ppo(Memory, n_envs, 100), _ppo(RandomMemory, n_envs, 100))


def test_a_memory_larger_than_the_machine_is_refused() -> None:
    """More than the machine's memory: the error names the option."""
    memory = Memory(memory_size=1_000_000, num_envs=8, device="cpu")
    memory.create_tensor("observations", size=10_000, dtype=torch.float32)
    with pytest.raises(di_store.CapacityError, match=r"GiB, more than this machine has \(lower memory_size="):
        memory.add_samples(observations=torch.zeros(8, 10_000))


def test_wrong_sizes_types_and_formats_are_refused() -> None:
    """As skrl's: other sizes and types of a tensor that exists, an unknown format of files."""
    memory, _ = _pair(4, 2)
    assert memory.create_tensor("rewards", size=1) is False
    with pytest.raises(ValueError, match="Tensor size"):
        memory.create_tensor("rewards", size=2)
    with pytest.raises(ValueError, match="Tensor dtype"):
        memory.create_tensor("rewards", size=1, dtype=torch.int64)
    with pytest.raises(ValueError, match="Only sequences of integers"):
        memory.create_tensor("other", size=2, keep_dimensions=True)
    with pytest.raises(ValueError, match="Unsupported export format"):
        memory.save("", format="txt")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unsupported format"):
        memory.load("memory.txt")


def test_another_major_version_of_skrl_is_refused() -> None:
    """Importing says which one works."""
    program = "import skrl; skrl.__version__ = '1.4.3'; import di_store.adapters.skrl"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "works with skrl >=2,<3, and 1.4.3 is installed" in done.stderr.splitlines()[-1]


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("skrl", tmp_path)
