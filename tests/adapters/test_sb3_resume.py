"""A DQN run that is killed in the middle goes on with its buffer, and ends with the weights of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3", reason="runs with make adapters ADAPTER=sb3")

from bench.adapters import sb3_resume

pytestmark = pytest.mark.extended


def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    # First, and forked: a new interpreter would import torch again.
    sb3_resume.killed_and_resumed(killed, seed=1, stretches=2, stretch=576, start="fork")
    sb3_resume.run(alone, seed=1, stretches=2, stretch=576)
    assert sb3_resume.same_weights(alone, killed, 2)
    assert not _equal(alone, 1, 2)  # it has learned since


def _equal(folder: Path, one: int, other: int) -> bool:
    mine, theirs = sb3_resume.weights(folder, one), sb3_resume.weights(folder, other)
    return all(bool((value == theirs[name]).all()) for name, value in mine.items())
