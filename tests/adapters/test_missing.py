"""Adapters are imported only by those who use them, and say what to install if their framework is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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


MISSING = """
import importlib, json, sys
frameworks, said = json.loads(sys.argv[1]), {}
sys.modules |= dict.fromkeys(frameworks.values())
for name in frameworks:
    try:
        importlib.import_module(f"di_store.adapters.{name}")
    except ImportError as error:
        said[name] = str(error)
print(json.dumps(said))
"""
RAY = """
import json, sys, types
said = {}
for version in json.loads(sys.argv[1]):
    ray = types.ModuleType("ray")
    ray.rllib, ray.__version__ = types.ModuleType("ray.rllib"), version
    sys.modules |= {"ray": ray, "ray.rllib": ray.rllib}
    try:
        import di_store.adapters.rllib
    except ImportError as error:
        said[version] = str(error)
print(json.dumps(said))
"""


def run(program: str, *arguments: Any) -> Any:
    """What a program prints."""
    words = [sys.executable, "-c", program, *map(json.dumps, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_missing_framework_is_named() -> None:
    said = run(MISSING, FRAMEWORKS)
    assert said.keys() == FRAMEWORKS.keys()
    for name, text in said.items():
        assert f"pip install di-store[{name}]" in text


def test_the_package_imports_no_framework() -> None:
    program = "import json, sys, di_store; print(json.dumps(sorted(set(json.loads(sys.argv[1])) & sys.modules.keys())))"
    assert run(program, sorted(set(FRAMEWORKS.values()))) == []


def test_another_version_of_ray_is_named() -> None:
    versions = ["1.13.0", "2.59.1", "3.0.0"]
    said = run(RAY, versions)
    assert list(said) == versions
    for version, text in said.items():
        assert "works with ray >=2.60,<3, and" in text
        assert version in text
