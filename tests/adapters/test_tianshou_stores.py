"""di_store.adapters.tianshou in a store that is given."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou", reason="runs with make adapters ADAPTER=tianshou")

from given_stores import KINDS as STORES
from given_stores import killed_after_a_checkpoint, opened
from tianshou import data as theirs
from tianshou.data import Batch

import di_store
from di_store.adapters import tianshou as ours

KINDS: dict[str, dict[str, Any]] = {
    "ReplayBuffer": {"size": 20},
    "PrioritizedReplayBuffer": {"size": 20, "alpha": 0.6, "beta": 0.4},
    "VectorReplayBuffer": {"total_size": 40, "buffer_num": 2},
    "PrioritizedVectorReplayBuffer": {"total_size": 40, "buffer_num": 2, "alpha": 0.6, "beta": 0.4},
}


def _pair(kind: str, **given: Any) -> tuple[Any, Any]:
    return getattr(ours, kind)(**KINDS[kind], **given), getattr(theirs, kind)(**KINDS[kind])


def _add(buffer: Any, begin: int, end: int, some: bool = False) -> None:
    """Steps; the first environment's episodes take 5 of them, the other's 7 and are cut off."""
    lanes = getattr(buffer, "buffer_num", 1)
    for step in range(begin, end):
        chosen = [step % lanes] if some else list(range(lanes))
        obs = np.array([[step] * 3, [step + 500] * 3], np.float32)[chosen]
        ends = np.array([step % 5 == 4, False])[chosen], np.array([False, step % 7 == 6])[chosen]
        entries = {
            "obs": Batch({"walker/pos": obs, "none": np.zeros((len(chosen), 0))}),
            "act": np.array([step, -step])[chosen],
        }
        entries |= {"rew": np.array([step / 3, -step / 3])[chosen], "terminated": ends[0], "truncated": ends[1]}
        after = Batch({"walker/pos": obs + 1, "none": np.zeros((len(chosen), 0))})
        buffer.add(Batch(entries | {"obs_next": after, "info": Batch(n=np.full(len(chosen), step))}), chosen)


def _equal(one: Any, other: Any) -> None:
    if isinstance(one, Batch):
        assert set(one.get_keys()) == set(other.get_keys())
        for key in one.get_keys():
            _equal(one[key], other[key])
    else:
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def _same(mine: Any, other: Any, info: bool = True) -> None:
    """Same steps and draws."""
    assert len(mine) == len(other)
    drawn = []
    for buffer in (mine, other):
        state = np.random.RandomState(3)
        for each in (buffer, *getattr(buffer, "buffers", ())):
            each._random_state = state
        np.random.seed(3)
        batch, indices = buffer.sample(64)
        if not info:
            batch.info = Batch()
        drawn.append((batch, indices))
    _equal(drawn[0][0], drawn[1][0])
    assert (drawn[0][1] == drawn[1][1]).all()


def _cut_off(buffer: Any) -> None:
    """What a resumed buffer makes of episodes that went on."""
    last = buffer.unfinished_index()
    buffer._meta.truncated[last] = buffer._meta.done[last] = True
    for lane in {int(each) // 20 for each in last}:
        each = getattr(buffer, "buffers", [buffer])[lane]
        each._ep_start_idx = each._insertion_idx


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_a_buffer_works_with_every_kind_of_store(store: str, kind: str, tmp_path: Path) -> None:
    with opened(store, tmp_path) as given:
        mine, other = _pair(kind, store=given, table="mine")
        for begin, end, some in ((0, 8, False), (8, 31, True), (31, 60, False)):
            for buffer in (mine, other):
                _add(buffer, begin, end, some)
            _same(mine, other)
        assert mine.table.name == "mine"
        assert len(mine.store.table("mine")) == mine.maxsize
        mine.reset()
        other.reset()
        assert len(mine.table) == 0
        for buffer in (mine, other):
            _add(buffer, 0, 20)
        _same(mine, other)


def test_a_buffer_holds_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    rows, memory = count(2_000, 30_000), count(16, 256) << 20
    buffer = ours.VectorReplayBuffer(rows, 2, store={"memory": memory, "disk": tmp_path / "tier"})
    assert rows * 84 * 84 * 4 > 3 * memory
    obs = np.zeros((2, 84, 84, 4), np.uint8)
    flags = {"terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool), "info": Batch()}
    for step in range(rows // 2):
        after = np.full_like(obs, (step + 1) % 251)
        buffer.add(Batch(obs=obs, act=np.full(2, step), rew=np.zeros(2), obs_next=after, **flags))
        obs = after
    for _ in range(rows // 100):
        batch, _ = buffer.sample(50)
        expected = (batch.act % 251).reshape(-1, 1, 1, 1)
        assert (batch.obs == expected).all()
        assert (batch.obs_next == ((batch.act + 1) % 251).reshape(-1, 1, 1, 1)).all()
    assert buffer.store.stats()["committed"] <= memory


def test_other_processes_can_sample_its_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        mine, _ = _pair("VectorReplayBuffer", store=store)
        _add(mine, 0, 5)
        with di_store.attach(store.name) as other:
            batch = other.table("replay").sample(1_000)  # all of them, whatever is drawn
            assert set(batch.data["obs"]["walker/pos"][:, 0].tolist()) == {*range(5), *range(500, 505)}
            np.testing.assert_array_equal(batch.data["slot"][:, 1], batch.data["obs"]["walker/pos"][:, 0] >= 500)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_can_be_resumed(kind: str, tmp_path: Path) -> None:
    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        buffer, _ = _pair(kind, store=store)
        _add(buffer, 0, 33)
        checkpoint()
        _add(buffer, 33, 10**9)

    path = killed_after_a_checkpoint(fill, tmp_path)
    for _ in range(2):  # twice: what a resumed buffer wrote is found again
        with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
            mine, other = _pair(kind, store=store)
            _add(other, 0, 33)
            _cut_off(other)
            _same(mine, other, info=False)
            for buffer in (mine, other):
                _add(buffer, 33, 40)
            _same(mine, other, info=False)
            again, _ = _pair(kind, store=store)
            _cut_off(other)
            _same(again, other, info=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_pickled_buffer_refers_to_its_table(kind: str, copied: Any, tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        mine, other = _pair(kind, store=store)
        for buffer in (mine, other):
            _add(buffer, 0, 30)
        assert b"walker/pos" not in pickle.dumps(mine)
        again = copied(mine)
        _cut_off(other)
        _same(again, other)
        mine.save_hdf5(str(tmp_path / "steps.hdf5"))
        assert len(getattr(theirs, kind).load_hdf5(str(tmp_path / "steps.hdf5"))) == len(mine)


def test_an_old_pickle_is_reconciled_with_the_table(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        mine, other = _pair("PrioritizedVectorReplayBuffer", store=store)
        for buffer in (mine, other):
            _add(buffer, 0, 15)
        data = pickle.dumps(mine)
        for buffer in (mine, other):
            _add(buffer, 15, 23)
        again = pickle.loads(data)
        assert "info" not in again._meta.get_keys()
        _cut_off(other)
        _same(again, other, info=False)
        mine.reset()
        assert len(pickle.loads(data)) == 0


def test_a_row_replaced_by_a_killed_writer_is_kept_once(tmp_path: Path) -> None:
    """It lies beside the new one."""
    with opened("store", tmp_path) as store:
        mine, other = _pair("VectorReplayBuffer", store=store)
        for buffer in (mine, other):
            _add(buffer, 0, 20)
        mine._rows._replaced = lambda slots: None
        for buffer in (mine, other):
            _add(buffer, 20, 21)
        assert len(mine.table) == 42
        _cut_off(other)
        _same(_pair("VectorReplayBuffer", store=store)[0], other, info=False)
        assert len(mine.table) == 40


def test_unsupported_stores_are_refused(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        mine, _ = _pair("VectorReplayBuffer", store=store)
        with pytest.raises(RuntimeError, match="first add"):
            _ = mine.table
        _add(mine, 0, 15)
        with pytest.raises(ValueError, match="and total_size= asks for"):
            ours.VectorReplayBuffer(60, 2, store=store)
        with pytest.raises(ValueError, match="holds 15 steps of 2 environments, and the buffer has 3 with 13 each"):
            ours.VectorReplayBuffer(39, 3, store=store)
        with pytest.raises(ValueError, match="was made without ignore_obs_next=True"):
            ours.VectorReplayBuffer(40, 2, ignore_obs_next=True, store=store)
        store.create_table("other", capacity=5, schema={"x": di_store.Spec((), "f4")}).insert({"x": 1.0})
        with pytest.raises(ValueError, match="not made by a Tianshou buffer"):
            ours.ReplayBuffer(20, store=store, table="other")
        text = ours.ReplayBuffer(20, store=store, table="text")
        with pytest.raises(TypeError, match="obs of the step is not made of arrays of numbers"):
            text.add(Batch(obs="a", act=1, rew=1.0, terminated=False, truncated=False, obs_next="b", info={}))
        mine.table.delete(mine.table.keys(n=1))
        with pytest.raises(di_store.StoreError, match="1 of the rows are gone"):
            _ = mine.obs["walker/pos"][:5]
        with pytest.raises(di_store.StoreError, match="steps of environment 0 are missing"):
            _pair("VectorReplayBuffer", store=store)


def test_a_cached_buffer_over_the_store_is_refused() -> None:
    for main in (ours.ReplayBuffer(20), ours.PrioritizedReplayBuffer(20, 0.6, 0.4)):
        with pytest.raises(TypeError, match="Tianshou's own ReplayBuffer, as main_buffer too"):
            theirs.CachedReplayBuffer(main, 2, 5)
        with pytest.raises(TypeError, match="use di_store's VectorReplayBuffer"):
            theirs.ReplayBufferManager([main])
    assert theirs.CachedReplayBuffer(theirs.ReplayBuffer(20), cached_buffer_num=2, max_episode_length=5).maxsize == 30


def test_a_buffer_without_next_observations_can_be_resumed(tmp_path: Path) -> None:
    with opened("store", tmp_path) as store:
        options = {"size": 20, "ignore_obs_next": True, "stack_num": 2}
        mine, other = ours.ReplayBuffer(**options, store=store), theirs.ReplayBuffer(**options)
        for buffer in (mine, other):
            _add(buffer, 0, 33)
        mine = ours.ReplayBuffer(**options, store=store)
        _cut_off(other)
        _same(mine, other, info=False)
