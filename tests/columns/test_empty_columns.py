"""Columns without elements and keys with "/": what spaces of multi-agent and goal environments and dm_control have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import di_store
from di_store.adapters.gymnasium import Recorder
from di_store.base import tree


@pytest.fixture(params=["memory", "disk"])
def store(request: Any, tmp_path: Path) -> Iterator[Any]:
    options: dict[str, Any] = {"memory": "64MiB"}
    if request.param == "disk":
        options |= {"memory": "16MiB", "disk": tmp_path / "disk", "disk_capacity": "256MiB"}
    with di_store.open(**options) as opened:
        yield opened


def step(n: int, lanes: int | None = None) -> dict[str, Any]:
    """A step whose values say its number."""
    lead = () if lanes is None else (lanes,)
    return {
        "walker/pos": np.full((*lead, 2), n, np.float32),
        "obs": {
            "a/b": np.full(lead, n, np.int64),
            "a": {"b": np.full(lead, -n, np.int64)},
            "none": np.zeros((*lead, 0), np.float32),
            "image": np.full((*lead, 600), n % 256, np.uint8),
        },
        "no action": np.zeros((*lead, 3, 0), np.int32),
        "reward": np.full(lead, n, np.float32),
        "terminated": np.full(lead, n % 8 == 7),
        "truncated": np.full(lead, False),
    }


VIEWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "step": (di_store.Step(), {}),
    "transition": (di_store.Transition(n_step=2, obs=("obs", "walker/pos"), frame_stack={"walker/pos": 3}), {}),
    "sequence": (di_store.Sequence(4, burn_in=1, first=("no action",), bootstrap=("obs",)), {}),
    "random windows": (di_store.Sequence(3, start="random"), {}),
    "stride": (di_store.Sequence(3, stride=2), {}),
    "episode": (di_store.Episode(8), {}),
    "chosen": (di_store.Step(), {"columns": ("obs/a\u2215b", "obs/none", "walker/pos")}),
}


def shapes(data: Any) -> Any:
    return {name: shapes(value) for name, value in data.items()} if isinstance(data, dict) else data.shape[1:]


def filled(store: Any, view: str, name: str = "t") -> Any:
    made, options = VIEWS[view]
    table = store.create_table(name, capacity=1000, view=made, **options)
    with table.writer(lanes=2) as writer:
        for n in range(32):
            writer.append(step(n, 2))
    return table


@pytest.mark.parametrize("view", VIEWS)
def test_values_come_back_as_they_were_given(store: Any, tmp_path: Path, view: str) -> None:
    table = filled(store, view)
    batch = table.sample(20)
    data = batch.data
    number = data["walker/pos"][..., 0]
    assert (data["obs"]["a/b"].shape[0], data["obs"]["none"].size) == (20, 0)
    assert data["obs"]["none"].shape[-1] == 0
    if view != "chosen":
        assert data["no action"].shape[-2:] == (3, 0)
        assert (data["obs"]["a"]["b"] == -data["obs"]["a/b"]).all()
    if view == "step":
        assert (number == data["obs"]["a/b"]).all()
    if view == "transition":
        assert data["walker/pos"].shape == (20, 3, 2)
        assert (data["next_obs"]["a/b"] - data["obs"]["a/b"] == data["steps"]).all() or (data["discount"] == 0).any()
        assert data["next_obs"]["none"].shape == (20, 0)
        assert data["next_walker/pos"].shape == (20, 3, 2)
    wanted = shapes(data)
    out = table.sample(20, out=batch)
    assert shapes(out.data) == wanted
    with table.loader(20, device="cpu") as loader:
        assert shapes(next(loader).data) == wanted
    assert shapes(store.mix({"t": 1}).sample(20).data) == wanted
    copy = store.import_table(export(table, tmp_path), "copy")
    assert copy.schema == table.schema
    assert shapes(copy.sample(20).data) == wanted
    store.checkpoint(tmp_path / "all")
    with di_store.restore(tmp_path / "all", memory="64MiB") as restored:
        again = restored.table("t")
        assert again.schema == table.schema
        assert shapes(again.sample(20).data) == wanted


def export(table: Any, folder: Path) -> Path:
    table.export(folder / "t.zip")
    return folder / "t.zip"


def test_columns_are_named_as_they_are_written(store: Any) -> None:
    table = filled(store, "step")
    assert list(table.sample(2, columns="walker/pos").data) == ["walker/pos"]
    assert table.sample(2, columns="obs/a/b").data.keys() == {"obs"}
    assert list(table.sample(2, columns="obs/a/b").data["obs"]) == ["a"]  # the nested one has that very name
    assert list(table.sample(2, columns=f"obs/a{tree.SLASH}b").data["obs"]) == ["a/b"]
    with pytest.raises(di_store.SchemaMismatch, match="walker"):
        table.insert({"walker": {"pos": np.zeros(2, np.float32)}})
    with pytest.raises(ValueError, match="did you mean"):
        table.sample(2, columns="walker/po")


def test_empty_columns_of_any_shape_come_back(store: Any) -> None:
    table = store.create_table("wide", capacity=10)
    table.insert({"x": np.zeros(1000), "none": np.zeros(0)})
    assert table.peek(table.keys()).data["none"].shape == (1, 0)
    with pytest.raises(ValueError, match="one column that is not empty"):
        store.create_table("nothing", capacity=10, schema={"none": di_store.Spec((0,), "f4")})
    for late in ({"late": True}, {"shape": (None, 0)}):
        options: Any = {"shape": (0,), "dtype": "f4", **late}
        with pytest.raises(ValueError, match="only a column of fixed size"):
            store.create_table(
                "late", capacity=10, schema={"x": di_store.Spec((), "f4"), "none": di_store.Spec(**options)}
            )


def test_empty_columns_work_in_groups(store: Any) -> None:
    table = store.create_table("groups", capacity=10, view=di_store.Group(2, by="group"))
    for n in range(4):
        table.insert({"group": n // 2, "a/b": n, "none": np.zeros(0)})
    batch = table.sample(3)
    assert batch.data["none"].shape == (3, 2, 0)
    assert (batch.data["a/b"] // 2 == batch.data["group"]).all()


@pytest.mark.parametrize(
    ("key", "error", "why"),
    [
        ("", ValueError, "must not be empty or contain"),
        ("a\u2215b", ValueError, "must not be empty or contain"),
        ("\ud800", di_store.SchemaMismatch, "lone surrogate"),
    ],
)
def test_keys_that_cannot_be_column_names_are_refused(store: Any, key: str, error: type[Exception], why: str) -> None:
    table = store.create_table("t", capacity=10)
    with pytest.raises(error, match=rf"key .* {why}"):
        table.insert({key: 1})
    assert table.schema is None


@pytest.mark.parametrize("lanes", [None, 3])
def test_observation_names_with_slashes_are_recorded(store: Any, lanes: int | None) -> None:
    class Env(gym.Env[Any, Any]):  # type: ignore[misc,unused-ignore]
        observation_space = gym.spaces.Dict(
            {"walker/pos": gym.spaces.Box(-1, 1, (2,)), "achieved_goal": gym.spaces.Box(-1, 1, (0,))}
        )
        action_space = gym.spaces.Box(-1, 1, (0,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return self.value(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.value(), 1.0, False, False, {}

        def value(self) -> dict[str, Any]:
            return {"walker/pos": np.full(2, 0.5, np.float32), "achieved_goal": np.zeros(0, np.float32)}

    table = store.create_table("t", capacity=100, view=di_store.Transition())
    env = Recorder(Env() if lanes is None else SyncVectorEnv([Env] * lanes), table)
    env.reset()
    for _ in range(8):
        env.step(np.zeros(0 if lanes is None else (lanes, 0), np.float32))
    data = table.sample(4).data
    assert data["action"].shape == data["next_obs"]["achieved_goal"].shape == (4, 0)
    assert (data["obs"]["walker/pos"] == 0.5).all()
    env.close()
