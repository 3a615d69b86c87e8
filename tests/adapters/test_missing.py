"""Adapters are imported only by those who use them, and say what to install if their framework is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {
    "cpprb": "cpprb",
    "ding": "ding",
    "dopamine": "dopamine",
    "gymnasium": "gymnasium",
    "jax": "jax",
    "minari": "minari",
    "rllib": "ray",
    "sb3": "stable_baselines3",
    "skrl": "skrl",
    "transfer_queue": "transfer_queue",
    "tianshou": "tianshou",
    "torchrl": "torchrl",
}
"""By adapter: the module of its framework."""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_named(name: str) -> None:
    program = f"import sys; sys.modules[{FRAMEWORKS[name]!r}] = None; import di_store.adapters.{name}"
    found = run(program)
    assert found.returncode == 1
    assert f"pip install di-store[{name}]" in found.stderr.splitlines()[-1]


def test_the_package_imports_no_framework() -> None:
    names = sorted(set(FRAMEWORKS.values()))
    found = run(f"import sys, di_store; print([name for name in {names} if name in sys.modules])")
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("version", ["1.13.0", "2.59.1", "3.0.0"])
def test_another_version_of_ray_is_named(version: str) -> None:
    program = (
        "import sys, types; ray = types.ModuleType('ray'); ray.rllib = types.ModuleType('ray.rllib'); "
        f"ray.__version__ = {version!r}; sys.modules |= {{'ray': ray, 'ray.rllib': ray.rllib}}; "
        "import di_store.adapters.rllib"
    )
    found = run(program)
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert "works with Ray 2.60 and later versions of Ray 2" in last
    assert version in last
