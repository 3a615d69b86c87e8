"""Steps that make no item, as their episode ended without a final observation, are counted and told once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def episodes(writer: Any, count: int, end: str, **last: Any) -> None:
    """Episodes of ten steps; the last step is `end`."""
    for _ in range(count):
        for n in range(10):
            step = {"obs": np.float32(n), "reward": 1.0, "terminated": False, "truncated": False}
            if n == 9 and end in step:
                step[end] = True
            writer.append(step, **(last if n == 9 else {}))
        if end == "end_episode":
            writer.end_episode(**last)


VIEWS: dict[str, tuple[Any, int]] = {
    "transition": (di_store.Transition(n_step=3), 3),
    "future": (di_store.Transition(n_step=3, future=("obs",), horizon=5), 3),
    "sequence": (di_store.Sequence(4, bootstrap=("obs",)), 2),
    "episode": (di_store.Episode(20, bootstrap=("obs",)), 10),
    "step": (di_store.Step(), 0),
    "sequence without bootstrap": (di_store.Sequence(4), 0),
}


@pytest.mark.parametrize("end", ["truncated", "end_episode"])
@pytest.mark.parametrize("view", VIEWS)
def test_steps_without_a_final_observation_are_counted(store: Any, tmp_path: Path, view: str, end: str) -> None:
    made, each = VIEWS[view]
    table = store.create_table("t", capacity=1000, view=made)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with table.writer() as writer:
            episodes(writer, 7, end)
        assert table.stats()["steps_left_out"] == 7 * each
    texts = [str(one.message) for one in told if "final observation" in str(one.message)]
    assert len(texts) == bool(each)
    assert all(f"{7 * each} steps have no item," in text and "final=" in text for text in texts)
    if view == "transition":
        assert len(table) == 7 * (10 - each)
    store.checkpoint(tmp_path / "all")
    with di_store.restore(tmp_path / "all", memory="64MiB") as restored:
        assert restored.table("t").stats()["steps_left_out"] == 7 * each
    table.reset()
    assert table.stats()["steps_left_out"] == 0


@pytest.mark.parametrize("end", ["terminated", "given", "given at the end", "open"])
def test_no_warning_if_no_final_observation_is_missing(store: Any, end: str) -> None:
    table = store.create_table("t", capacity=1000, view=di_store.Transition(n_step=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with table.writer() as writer:
            if end == "terminated":
                episodes(writer, 7, "terminated")
            elif end == "given":
                episodes(writer, 7, "truncated", next={"obs": np.float32(10)})
            elif end == "given at the end":
                episodes(writer, 7, "end_episode", final={"obs": np.float32(10)})
            else:  # the writer is closed in the middle of an episode
                episodes(writer, 1, "none")
        assert table.stats()["steps_left_out"] == 0


def test_a_long_lived_writer_warns_while_it_writes(store: Any) -> None:
    table = store.create_table("t", capacity=100_000, view=di_store.Transition(n_step=3))
    with table.writer() as writer, pytest.warns(RuntimeWarning, match="final observation"):
        episodes(writer, 200, "truncated")


def test_a_long_lived_extending_writer_warns_while_it_writes(store: Any) -> None:
    table = store.create_table("t", capacity=100_000, view=di_store.Transition(n_step=3))
    steps = {"obs": np.arange(2000, dtype=np.float32), "reward": np.ones(2000), "terminated": np.zeros(2000, bool)}
    steps["truncated"] = np.arange(2000) % 10 == 9
    with table.writer() as writer, pytest.warns(RuntimeWarning, match="final observation"):
        writer.extend(steps)
