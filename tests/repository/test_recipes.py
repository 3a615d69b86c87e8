"""The recipes of examples/recipes run with --small, as a user would run them; docs/recipes.md names them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import di_store
from di_store.workloads.catalogue import LOADS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/recipes"
SHARED = {"harness.py", "spread.py"}
LIMIT_SECONDS = 600
# Each recipe with the packages that it needs beside torch, gymnasium and matplotlib.
RECIPES: dict[str, tuple[str, ...]] = {
    "apex.py": (),
    "ga3c.py": (),
    "grpo.py": (),
    "impala.py": (),
    "masac.py": (),
    "ngu.py": (),
    "ppo.py": (),
    "qmix.py": (),
    "r2d2.py": (),
    "r2d3.py": (),
    "sac.py": (),
    "sample_factory.py": (),
    "seed.py": (),
    "units.py": (),
}
# What to add to the command if a package isn't installed.
INSTEAD: dict[str, tuple[str, list[str]]] = {"sac.py": ("mujoco", ["--env", "Pendulum-v1"])}


def test_the_list_of_recipes_is_complete() -> None:
    """Each file of the folder stands in the list above."""
    assert set(RECIPES) == {path.name for path in FOLDER.glob("*.py")} - SHARED


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_has_its_command_and_threshold(name: str) -> None:
    """docs/recipes.md has a row with the command, and the threshold that the program holds itself to."""
    lines = (ROOT / "docs/recipes.md").read_text().splitlines()
    (row,) = [line for line in lines if f"`python examples/recipes/{name}`" in line]
    calls = [node for node in ast.walk(ast.parse((FOLDER / name).read_text())) if isinstance(node, ast.Call)]
    (run,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Run"]
    said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in run.keywords}
    assert re.search(rf"(?<![\d.]){said['threshold']:g}(?![\d.])", row), (said, row)


def test_the_spread_environment_equals_mpe(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode with contacts goes as in simple_spread_v3 of mpe2 1.1.1, which gave the numbers below."""
    monkeypatch.syspath_prepend(FOLDER)
    import spread

    field = spread.Spread(1, np.random.default_rng(0))
    field.agent[0] = [[-0.2, 0], [0.2, 0], [0, 0.6]]
    field.landmark[0] = [[0, 0], [0.5, 0.5], [-0.5, 0.25]]
    moves = np.array([[2, 1, 4, 3], [1, 2, 3, 4], [3, 0, 1, 2]])
    total, ends = 0.0, []
    for t in range(spread.MAX_STEPS):
        reward, ended = field.step(spread.MOVES[moves[:, t // 3 % 4]][None])
        total += reward.item()
        ends.append(ended)
    assert ends == [False] * 24 + [True]
    assert total == pytest.approx(-23.31296652596653)
    assert field.agent[0].ravel() == pytest.approx(
        [-1.5552493845435311, -0.2852125638690761, 1.5552493845435311, -0.6989913507599835]
        + [-0.20688939344545368, 0.41107392578817875]
    )
    seen = [-0.39102, 0.51056, 1.55525, -0.69899, -1.55525, 0.69899, -1.05525, 1.19899, -2.05525, 0.94899]
    assert field.observe()["obs"][0, 1] == pytest.approx(seen + [-3.1105, 0.41378, -1.76214, 1.11007], abs=1e-5)


def test_the_grpo_loss_equals_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equation 3 in NumPy, of two groups, where only the first one's rewards differ; and no token is left out."""
    for package in ("torch", "gymnasium", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(FOLDER)
    import grpo

    rng, net, (n, size) = np.random.default_rng(0), grpo.Transformer(), (2, grpo.GROUP)
    tokens, lengths, log_prob = grpo.write_answers(net, rng.integers(100, size=(n, 2)).repeat(size, 0))
    again = grpo.log_probs(net, tokens).detach().numpy()
    assert again == pytest.approx(log_prob.numpy(), abs=1e-4)  # one pass over all, and token by token
    lengths = rng.integers(1, grpo.ANSWER + 1, size=n * size)
    ratio, to_ref = rng.uniform(0.5, 1.5, size=again.shape), rng.normal(size=again.shape)
    reward = np.concatenate([rng.permutation([1, 1, 1, 0, 0, 0, 0, 0]), np.ones(size)])

    def ragged(rows: np.ndarray, counts: np.ndarray) -> di_store.Ragged:
        values = np.concatenate([row[:count] for row, count in zip(rows, counts, strict=True)])
        return di_store.Ragged(values, np.concatenate([[0], np.cumsum(counts)]), (n, size))

    data = {
        "reward": reward.reshape(n, size).astype(np.float32),
        "tokens": ragged(tokens.numpy(), grpo.PROMPT + lengths),
        "log_prob": ragged((again - np.log(ratio)).astype(np.float32), lengths),
        "ref_log_prob": (again + to_ref).reshape(n, size, -1).astype(np.float32),
    }
    gains = []
    for i in range(size):
        a = (reward[i] - reward[:size].mean()) / reward[:size].std()
        r, d = ratio[i, : lengths[i]], to_ref[i, : lengths[i]]
        gain = np.minimum(r * a, np.clip(r, 0.8, 1.28) * a)
        gains.append((gain - grpo.BETA * (np.exp(d) - d - 1)).mean())
    assert grpo.grpo_loss(net, data).item() == pytest.approx(-np.mean(gains), abs=1e-4)


def test_recipes_are_compared_with_existing_loads() -> None:
    """The second table of docs/recipes.md has recipes that there are, and loads that `di-store bench` has."""
    page = (ROOT / "docs/recipes.md").read_text().partition("\n## Which load")[2]
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| `")]
    assert rows
    assert {row[1].strip("`") for row in rows} <= set(RECIPES)
    assert {row[2] for row in rows} <= {"–", *LOADS}


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.extended
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run(name: str, tmp_path: Path, store_dir: str) -> None:
    """It exits 0, says its result in its last line, writes its chart, and no process of it prints a traceback."""
    for package in ("torch", "gymnasium", "matplotlib", *RECIPES[name]):
        pytest.importorskip(package)
    argv = [sys.executable, str(FOLDER / name), "--small", "--seed", "1"]
    if name in INSTEAD and find_spec(INSTEAD[name][0]) is None:
        argv += INSTEAD[name][1]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    assert re.search(r": final .*; threshold .*; chart: ", done.stdout.splitlines()[-1]), done.stdout
    assert (tmp_path / f"{Path(name).stem}.png").read_bytes().startswith(b"\x89PNG")
