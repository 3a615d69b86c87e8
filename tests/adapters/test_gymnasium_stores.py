"""di_store.adapters.gymnasium on tables of stores of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium", reason="runs with make adapters ADAPTER=gymnasium")
from given_stores import KINDS, killed_after_a_checkpoint, opened  # noqa: E402
from gymnasium import spaces  # noqa: E402

import di_store  # noqa: E402
from di_store.adapters.gymnasium import Recorder  # noqa: E402
from di_store.adapters.stores import given_store  # noqa: E402


class Count(gym.Env):  # type: ignore[misc,name-defined]
    """Its observations count steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, size: int = 2) -> None:
        self.observation_space, self.at = spaces.Box(0, 1e9, (size,), np.float32), 0

    def reset(self, **_: Any) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self._seen(), float(self.at), False, False, {}

    def _seen(self) -> Any:
        return np.full(self.observation_space.shape, self.at, np.float32)


def _recorder(store: di_store.Store, capacity: int = 1_000, size: int = 2) -> Recorder:
    env, view = Count(size), di_store.Transition()
    options: Any = {"capacity": capacity, "view": view, "schema": Recorder.schema(env), "exist_ok": True, "lanes": 1}
    return Recorder(env, store.create_table("replay", **options))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorder_works_with_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as given:
        store = given_store(given)
        assert store is not None
        recorder: Any = _recorder(store)
        recorder.reset()
        for _ in range(20):
            recorder.step(0)
        recorder.close()
        batch = recorder.table.peek(store.table("replay").keys())
        assert batch.data["obs"][:, 0].tolist() == [*range(20)]
        assert batch.data["next_obs"][:, 0].tolist() == [*range(1, 21)]


def test_a_recorder_fills_more_than_memory(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """847 MB in a store of 256 MiB at full scale."""
    rows, memory = count(2_000, 30_000), count(16, 256) << 20
    with di_store.open(memory=memory, disk=tmp_path / "tier") as store:
        recorder: Any = _recorder(store, rows, 84 * 84)
        recorder.reset()
        for _ in range(rows):
            recorder.step(0)
        assert rows * 84 * 84 * 4 > 3 * memory
        for begin in range(0, rows, 50):
            data = recorder.table.peek(recorder.table.at(np.arange(begin, begin + 50))).data
            assert (data["obs"] == np.arange(begin, begin + 50)[:, None]).all()
        assert store.stats()["committed"] <= memory


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    def fill(store: di_store.Store, checkpoint: Callable[[], None]) -> None:
        recorder: Any = _recorder(store)
        recorder.reset()
        for step in range(10**9):
            if step == 30:
                checkpoint()
            recorder.step(0)

    path = killed_after_a_checkpoint(fill, tmp_path)
    with di_store.restore(path, memory="64MiB", disk=tmp_path / "tier") as store:
        recorder: Any = _recorder(store)
        recorder.reset()
        for _ in range(5):
            recorder.step(0)
        recorder.close()
        obs = recorder.table.peek(recorder.table.keys()).data["obs"][:, 0].tolist()
        assert obs == [*range(30), *range(5)]
