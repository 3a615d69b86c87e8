"""`di_store.adapters.cpprb` beside cpprb's own classes: the same calls, the same transitions at the same indexes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_pages import run_programs

import di_store

cpprb = pytest.importorskip("cpprb", reason="runs with make adapters ADAPTER=cpprb")
ours = pytest.importorskip("di_store.adapters.cpprb")

ENV = {"obs": {"shape": 3}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 3}, "done": {}}
NO_NEXT = {name: each for name, each in ENV.items() if name != "next_obs"}


def env(of: dict[str, Any] = ENV) -> dict[str, Any]:
    """A copy: cpprb writes into what it gets."""
    return {name: dict(each) for name, each in of.items()}


def step(number: float, n: int | None = None) -> dict[str, Any]:
    """Transition `number`, or n from it on; each continues the one before."""
    at = np.arange(number, number + (n or 1), dtype=np.float64)
    found = {
        "obs": at[:, None] + np.zeros(3),
        "act": at.astype(np.int64),
        "rew": at,
        "next_obs": at[:, None] + np.ones(3),
        "done": np.zeros(len(at)),
    }
    return found if n is not None else {name: each[0] for name, each in found.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    for name, each in one.items():
        assert each.dtype == other[name].dtype
        assert each.shape == other[name].shape
        np.testing.assert_allclose(each, other[name], rtol=1e-6)


def filled(n: int, size: int = 50, **options: Any) -> Any:
    buffer = ours.PrioritizedReplayBuffer(size, env(), **options)
    for number in range(n):
        buffer.add(**step(number))
    return buffer


# -- the same as cpprb -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ReplayBuffer", "PrioritizedReplayBuffer"])
@pytest.mark.parametrize(("following", "nstep"), [(False, False), (True, False), (False, True)])
def test_transitions_and_indexes_match_cpprb(kind: str, following: bool, nstep: bool) -> None:
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"next_of": "obs"} if following else {}
    if nstep:
        options["Nstep"] = {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"}
    wanted, found = (
        getattr(module, kind)(20, env(NO_NEXT if following else ENV), **options) for module in (cpprb, ours)
    )
    number = 0
    for _ in range(150):
        n = [None, 1, 2, 5][rng.integers(4)]
        rows = step(number, n)
        number += n or 1
        assert wanted.add(**rows) == found.add(**rows)
        if rng.random() < 0.1:
            wanted.on_episode_end(), found.on_episode_end()
            number += 100
        if rng.random() < 0.01:
            wanted.clear(), found.clear()
        for name in ("get_stored_size", "get_next_index", "get_buffer_size", "get_current_episode_len", "is_Nstep"):
            assert getattr(wanted, name)() == getattr(found, name)(), name
        same(wanted.get_all_transitions(), found.get_all_transitions())
    indexes = [3, 0, 19, 3]
    same(wanted._encode_sample(indexes), found._encode_sample(indexes))


@pytest.mark.parametrize("following", [False, True])
def test_frame_stacks_match_cpprb(following: bool) -> None:
    """Episodes longer and shorter than a stack, of stacks of two sizes; each frame lies in the table once."""
    rng = np.random.default_rng(2)
    kinds = {"obs": {"shape": (2, 4), "dtype": np.uint8}, "mini": {"shape": 2}, "rew": {}}
    options: dict[str, Any] = {"stack_compress": ["obs", "mini"]}
    if following:
        options["next_of"] = ["obs", "rew"]
    wanted, found = (module.ReplayBuffer(30, env(kinds), **options) for module in (cpprb, ours))
    for _ in range(12):
        length = int(rng.integers(1, 14))
        frames = rng.integers(0, 255, (2, length + 5)).astype(np.uint8)
        small, reward = rng.random(length + 5), rng.random(length + 5)
        for t in range(length):
            rows = {"obs": frames[:, t : t + 4], "mini": small[t : t + 2], "rew": reward[t]}
            if following:
                rows |= {"next_obs": frames[:, t + 1 : t + 5], "next_rew": reward[t + 1]}
            assert wanted.add(**rows) == found.add(**rows)
            same(wanted.get_all_transitions(), found.get_all_transitions())
        wanted.on_episode_end(), found.on_episode_end()
    assert found.table.schema["row"]["obs"].shape == (2,)
    batch = found.sample(8)
    if following:
        batch["obs"][...] = 0  # next_obs is no view of it
        assert (batch["next_obs"] > 0).any()


def test_a_missing_episode_end_is_detected() -> None:
    """Cpprb returns the next episode's first observation here."""
    buffer = ours.ReplayBuffer(20, env(NO_NEXT), next_of="obs")
    buffer.add(**step(0, 5))
    both = {name: np.concatenate((step(50, 3)[name], step(90, 4)[name])) for name in ENV}
    buffer.add(**both)
    found = buffer.get_all_transitions()
    np.testing.assert_array_equal(found["next_obs"], found["obs"] + 1)
    assert len(found["obs"]) == 12


@pytest.mark.filterwarnings("ignore:.*evicted before capacity:RuntimeWarning")
def test_short_episodes_reduce_the_number_of_indexes() -> None:
    """Each episode of one step needs five frames."""
    kinds = {"obs": {"shape": (60, 60, 4), "dtype": np.uint8}, "n": {"dtype": np.int64}}
    buffer = ours.PrioritizedReplayBuffer(1_000, kinds, stack_compress="obs", next_of="obs")
    frames = np.random.default_rng(0).integers(0, 255, (60, 60, 5)).astype(np.uint8)
    for number in range(2_300):
        frames[0, 0] = number % 250
        assert buffer.add(obs=frames[..., :-1], next_obs=frames[..., 1:], n=number) == number % 1_000
        buffer.on_episode_end()
    assert buffer.table.stats()["evicted_for_room"] > 0
    assert buffer.get_stored_size() < 1_000
    batch = buffer.sample(64)
    np.testing.assert_array_equal(batch["n"].ravel() % 1_000, batch["indexes"])
    np.testing.assert_array_equal(buffer._encode_sample(batch["indexes"])["n"], batch["n"])
    assert len(buffer.get_all_transitions()["n"]) == buffer.get_stored_size()


def test_adding_more_transitions_than_capacity_keeps_the_newest() -> None:
    buffer = ours.ReplayBuffer(7, env())
    assert buffer.add(**step(0, 17)) == 0
    assert buffer.get_next_index() == 3
    np.testing.assert_array_equal(np.sort(buffer.get_all_transitions()["rew"].ravel()), np.arange(10, 17))


def test_saved_files_match_cpprb(tmp_path: Path) -> None:
    options = {"Nstep": {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"}}
    buffers = [module.ReplayBuffer(20, env(), **options) for module in (cpprb, ours, cpprb, ours)]
    for source, target in ((buffers[0], buffers[3]), (buffers[1], buffers[2])):
        source.add(**step(0, 15))
        source.save_transitions(tmp_path / "a.npz")
        target.load_transitions(tmp_path / "a.npz")
        same(source.get_all_transitions(), target.get_all_transitions())
    assert isinstance(buffers[1], cpprb.ReplayBuffer)


def test_next_observations_are_n_steps_ahead() -> None:
    """Cpprb's samples lack `next_obs` with these options."""
    steps = {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"}
    buffer = ours.ReplayBuffer(20, env(NO_NEXT), next_of="obs", Nstep=steps)
    buffer.add(**step(0, 10))
    found = buffer.get_all_transitions()
    np.testing.assert_array_equal(found["next_obs"], found["obs"] + 3)


# -- priorities ------------------------------------------------------------------------------------------------------


def test_prioritized_draws_and_weights_match_cpprb() -> None:
    priorities = np.linspace(0, 5, 40)
    buffer, wanted = (module.PrioritizedReplayBuffer(40, env(), alpha=0.7, eps=0.01) for module in (ours, cpprb))
    for each in (buffer, wanted):
        each.add(**step(0, 40), priorities=priorities)
    counts, powers = np.zeros(40), (priorities.astype(np.float32) + 0.01) ** 0.7
    for _ in range(200):
        batch = buffer.sample(50, beta=0.6)
        np.testing.assert_array_equal(batch["rew"].ravel(), batch["indexes"])
        np.testing.assert_allclose(batch["weights"], (powers[batch["indexes"]] / powers.min()) ** -0.6, rtol=1e-3)
        counts += np.bincount(batch["indexes"].astype(int), minlength=40)
    np.testing.assert_allclose(counts / counts.sum(), powers / powers.sum(), atol=0.005)
    theirs = wanted.sample(50, beta=0.6)
    batch_of = dict(zip(batch["indexes"].tolist(), batch["weights"].tolist(), strict=True))
    shared = [i for i, index in enumerate(theirs["indexes"].tolist()) if index in batch_of]
    assert shared
    for i in shared:
        assert theirs["weights"][i] == pytest.approx(batch_of[int(theirs["indexes"][i])], rel=1e-3)


def test_priorities_are_updated_by_batch_indexes() -> None:
    buffer = filled(120)
    batch = buffer.sample(20)
    np.testing.assert_array_equal(batch["rew"].ravel() % 50, batch["indexes"])
    assert batch["indexes"].dtype == np.uint64
    everywhere = buffer._encode_sample(batch["indexes"])
    np.testing.assert_array_equal(everywhere["rew"], batch["rew"])
    buffer.update_priorities(batch["indexes"], np.full(20, 2.0**40))  # the others are as good as never drawn
    again = buffer.sample(200)
    assert set(again["indexes"]) <= set(batch["indexes"])
    assert buffer.get_max_priority() == 2.0**40


def test_priorities_of_any_indexes_can_be_updated() -> None:
    buffer = filled(50)
    batch = buffer.sample(4)
    other = next(index for index in range(50) if index not in batch["indexes"])
    buffer.update_priorities(np.arange(50), 0)
    buffer.update_priorities([int(batch["indexes"][2]), other], [1e9, 1e9])
    assert set(buffer.sample(100)["indexes"]) == {int(batch["indexes"][2]), other}


@pytest.mark.parametrize("check", [False, True])
def test_an_overwritten_transition_is_not_updated(check: bool) -> None:
    buffer = filled(50, check_for_update=check)
    batch = buffer.sample(10)
    buffer.add(**step(50, 50))
    buffer.update_priorities(batch["indexes"], np.full(10, 100.0))
    assert buffer.get_max_priority() == 1
    index = int(np.setdiff1d(np.arange(50), batch["indexes"])[0])
    buffer.update_priorities([index], [2.0])  # added after sample(), and not of its batch
    assert buffer.get_max_priority() == (1 if check else 2)


def test_new_transitions_get_the_largest_priority() -> None:
    buffer = filled(3)
    assert buffer.get_max_priority() == 1
    buffer.add(**step(3), priorities=0.5)
    assert buffer.get_max_priority() == 1
    buffer.add(**step(4), priorities=3.5)
    assert buffer.get_max_priority() == 3.5


# -- processes -------------------------------------------------------------------------------------------------------


def _fill(buffer: Any, first: int, n: int) -> None:
    for number in range(first, first + n):
        buffer.add(**step(number))
    buffer.on_episode_end()


def _forever(buffer: Any, first: int) -> None:
    while True:
        buffer.add(**step(first))
        first += 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("following", [False, True])
def test_several_processes_add_to_one_buffer(method: str, following: bool) -> None:
    context = multiprocessing.get_context(method)
    options = {"next_of": "obs", "ctx": context, "backend": "SharedMemory"} if following else {}
    buffer = ours.MPPrioritizedReplayBuffer(500, env(NO_NEXT if following else ENV), **options)
    buffer.add(**step(7))
    processes = [context.Process(target=_fill, args=(buffer, 1_000 * i, 100)) for i in (1, 2, 3)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        batch = buffer.sample(16)
        np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
        buffer.update_priorities(batch["indexes"], np.ones(16))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert buffer.get_stored_size() == buffer.get_next_index() == 301
    found = buffer.get_all_transitions()
    np.testing.assert_array_equal(found["next_obs"], found["obs"] + 1)
    assert set(found["act"].ravel()) == {7} | {1_000 * i + j for i in (1, 2, 3) for j in range(100)}
    batch = buffer.sample(100)
    np.testing.assert_array_equal(found["act"][batch["indexes"].astype(int)], batch["act"])


def _end(buffer: Any) -> None:
    buffer.on_episode_end()
    buffer.add(**step(100))
    buffer.on_episode_end()


@pytest.mark.parametrize("kind", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_pending_steps_of_a_parent_are_not_written_by_its_child(kind: str) -> None:
    steps = {"size": 4, "gamma": 0.5, "rew": "rew", "next": "next_obs"}
    buffer = getattr(ours, kind)(20, env(), Nstep=steps)
    buffer.add(**step(0, 2))
    process = multiprocessing.get_context("fork").Process(target=_end, args=(buffer,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert buffer.get_stored_size() == 1
    buffer.on_episode_end()
    np.testing.assert_array_equal(buffer.get_all_transitions()["act"].ravel(), [100, 0, 1])


def test_a_killed_adding_process_leaves_a_sound_buffer() -> None:
    buffer = ours.PrioritizedReplayBuffer(100, env(NO_NEXT), next_of="obs")
    process = multiprocessing.get_context("fork").Process(target=_forever, args=(buffer, 0))
    process.start()
    while buffer.get_stored_size() < 100:
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    buffer.add(**step(10**6))
    found = buffer.get_all_transitions()
    np.testing.assert_array_equal(found["next_obs"], found["obs"] + 1)
    batch = buffer.sample(50)
    np.testing.assert_array_equal(found["act"][batch["indexes"].astype(int)], batch["act"])


def test_a_buffer_uses_the_given_store() -> None:
    with di_store.open(memory="64MiB", seed=1) as store:
        one = ours.create_buffer(30, env(), prioritized=True, store=store, table="replay", alpha=0.5)
        other = ours.create_buffer(30, env(), prioritized=True, store=store, table="replay", alpha=0.5)
        one.add(**step(0, 10))
        assert other.get_stored_size() == 10
        assert other.table.name == "replay"
        assert (
            ours.ReplayBuffer(5, env(), store=store).table.name != ours.ReplayBuffer(5, env(), store=store).table.name
        )
        with pytest.raises(ValueError, match="holds 30 transitions"):
            ours.PrioritizedReplayBuffer(31, env(), store=store, table="replay", alpha=0.5)
        with pytest.raises(di_store.TableExists):
            ours.ReplayBuffer(31, {"obs": {}}, store=store, table="replay")
        copied = pickle.loads(pickle.dumps(one))
        copied.add(**step(10))
        assert one.get_stored_size() == 11
        assert type(copied) is ours.PrioritizedReplayBuffer


# -- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_one_sentence() -> None:
    new = ours.ReplayBuffer
    for error, text, call in [
        (ValueError, "env_dict names no value", lambda: new(10)),
        (ValueError, "next_of=.'ob'.: not in env_dict", lambda: new(10, env(), next_of="ob")),
        (ValueError, "mmap_prefix= is not supported", lambda: new(10, env(), mmap_prefix="a")),
        (ValueError, "backend='x'", lambda: new(10, env(), backend="x")),
        (TypeError, "is_discrete_action: not an argument", lambda: new(10, env(), is_discrete_action=True)),
        (ValueError, "give store= too", lambda: new(10, env(), table="a")),
        (ValueError, "the buffer is empty", lambda: new(10, env()).sample(2)),
        (KeyError, "next_obs", lambda: new(10, env()).add(**{n: step(0)[n] for n in NO_NEXT})),
        (ValueError, "different numbers of steps: obs 2", lambda: new(10, env()).add(**(step(0, 2) | {"rew": 1}))),
        (IndexError, "3 transitions are stored", lambda: filled(3)._encode_sample([3])),
        (ValueError, "priorities has 3 values", lambda: filled(3).add(**step(0, 2), priorities=np.ones(3))),
        (TypeError, "not None", lambda: filled(3).update_priorities([0], None)),
        (ValueError, "2 indexes and 3 priorities", lambda: filled(3).update_priorities([0, 1], np.ones(3))),
    ]:
        with pytest.raises(error, match=text):
            call()


def test_a_next_stack_that_does_not_continue_its_stack_is_refused() -> None:
    buffer = ours.ReplayBuffer(10, {"obs": {"shape": 3}}, next_of="obs", stack_compress="obs")
    buffer.add(obs=[0, 1, 2], next_obs=[1, 2, 3])
    with pytest.raises(ValueError, match="shifted by one frame"):
        buffer.add(obs=[1, 2, 3], next_obs=[9, 9, 9])
    assert buffer.get_stored_size() == 1


KINDS = ["ReplayBuffer", "PrioritizedReplayBuffer"]
NSTEP = {"size": 3, "gamma": 0.9, "rew": "rew", "next": ["next_walker/pos", "next_goal"]}


def walked(number: int) -> dict[str, Any]:
    goal = np.zeros((2, 0))
    values = {"goal": goal, "next_goal": goal, "rew": 1.0, "done": number % 10 == 9}
    return values | {"walker/pos": np.full(2, number), "next_walker/pos": np.full(2, number + 1)}


def without_goals(values: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in values.items() if "goal" not in name}


def cpprb_without_goals(kind: str, shapes: dict[str, Any], options: dict[str, Any]) -> Any:
    """The buffer of cpprb, which does not take entries without elements."""
    options = dict(options)
    if "next_of" in options:
        options["next_of"] = ["walker/pos"]
    if "Nstep" in options:
        options["Nstep"] = NSTEP | {"next": "next_walker/pos"}
    return getattr(cpprb, kind)(100, without_goals(shapes), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"next_of": ["walker/pos", "goal"]}, {"Nstep": NSTEP}])
def test_empty_entries_and_names_with_a_slash_come_back(kind: str, options: dict[str, Any]) -> None:
    shapes = {"goal": {"shape": (2, 0)}, "walker/pos": {"shape": 2}, "rew": {}, "done": {}}
    if "next_of" not in options:
        shapes |= {"next_walker/pos": {"shape": 2}, "next_goal": {"shape": (2, 0)}}
    buffer, own = getattr(ours, kind)(100, shapes, **options), cpprb_without_goals(kind, shapes, options)
    for number in range(20):
        if number == 5:
            given = {name: np.stack([each, walked(6)[name]]) for name, each in walked(5).items()}
        elif number != 6:
            given = walked(number)
        if number != 6:
            buffer.add(**given)
            own.add(**without_goals(given))
        if number % 10 == 9:
            buffer.on_episode_end()
            own.on_episode_end()
    for batch in (buffer.get_all_transitions(), buffer.sample(32)):
        assert (batch["goal"].shape[1:], batch["next_goal"].shape[1:]) == ((2, 0), (2, 0))
    same(without_goals(buffer.get_all_transitions()), own.get_all_transitions())
    assert buffer.get_stored_size() == 20
    with pytest.raises(ValueError, match=r"goal has the shape \[3\], but a step needs \[2, 0\]"):
        buffer.add(**walked(20) | {"goal": np.zeros(3)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", 300), ("uint8", -1), ("int32", float("nan")), ("float32", 1e300)]
)
def test_values_that_a_type_cannot_hold_are_refused(kind: str, steps: int, dtype: str, value: float) -> None:
    options = {"Nstep": {"size": steps, "gamma": 0.9, "rew": "rew", "next": "next_x"}} if steps > 1 else {}
    types = {"x": {"dtype": dtype}, "next_x": {"dtype": dtype}, "rew": {}, "done": {}}
    buffer = getattr(ours, kind)(10, types, **options)
    for each in (value, np.array([value])):
        with pytest.raises(di_store.SchemaMismatch, match=f"x is {dtype}"):
            buffer.add(x=1, next_x=each, rew=0.0, done=False)
    for number in range(5):
        buffer.add(x=number, next_x=number + 1, rew=1.0, done=number == 4)
    buffer.on_episode_end()
    assert buffer.get_stored_size() == 5
    assert buffer.get_all_transitions()["x"].ravel().tolist() == [0, 1, 2, 3, 4]


def test_programs_of_the_page_run(tmp_path: Path) -> None:
    run_programs("cpprb", tmp_path)
