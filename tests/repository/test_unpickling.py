"""Bytes that could run code are read in one place, the codec, which refuses those that other machines sent."""

from __future__ import annotations

import ast
from pathlib import Path

import tidy_scan

PACKAGE = Path(__file__).resolve().parents[2] / "src/di_store"
READERS = {
    "cloudpickle": {"load", "loads"},
    "dill": {"load", "loads"},
    "hickle": {"load"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "pickle": {"load", "loads", "Unpickler"},
    "shelve": {"open"},
    "yaml": {"full_load", "full_load_all", "load", "load_all", "unsafe_load", "unsafe_load_all"},
}
BUILT_IN = {"eval", "exec"}
# Functions that read code only if an argument says so: its name, and the value that it must have; "": if it is missing.
SAFE_IF = {"torch.load": ("weights_only", {"True"}), "np.load": ("allow_pickle", {"", "False"})}
ALLOWED = {
    ("objects/codec/decode.py", "pickle.loads"): "the codec itself",
    ("adapters/transfer_queue/durable.py", "pickle.loads"): "of bytes inside a pickle that the codec has let through",
    ("adapters/torchrl/forms.py", "pickle.loads"): "of a class inside a pickle that the codec has let through",
}


def code_readers(path: Path) -> list[tuple[int, str]]:
    """Lines that name a function which may run code that bytes name."""
    found = []
    for node in tidy_scan.nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in READERS.get(node.value.id, ()):
                found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom):
            taken = READERS.get(node.module or "", set()) & {name.name for name in node.names}
            found += [(node.lineno, f"{node.module}.{name}") for name in taken]
        elif isinstance(node, ast.Import):
            hidden = [name.name for name in node.names if name.name in READERS and name.asname not in (None, name.name)]
            found += [(node.lineno, f"{name} under another name") for name in hidden]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            option, safe = SAFE_IF.get(name, ("", {""}))
            given = {each.arg: ast.unparse(each.value) for each in node.keywords}
            if name in BUILT_IN or given.get(option, "") not in safe:
                found.append((node.lineno, name))
    return found


def test_only_the_codec_unpickles() -> None:
    seen, faults = set(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for line, what in code_readers(path):
            seen.add((name, what))
            if (name, what) not in ALLOWED:
                faults.append(f"{name}:{line}: {what}")
    assert not faults, "\n".join(faults)
    assert seen == set(ALLOWED)


def test_the_check_finds_unpickling_calls(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "import pickle, numpy as np, torch\n"
        "import dill as plain\n"
        "from marshal import loads\n"
        "pickle.loads(b)\n"
        "pickle.dumps(b)\n"
        "torch.load(p)\n"
        "torch.load(p, weights_only=True)\n"
        "np.load(p)\n"
        "np.load(p, allow_pickle=yes)\n"
        "eval(t)\n"
        "model.eval()\n"
        "use(pickle.Unpickler)\n"
    )
    assert sorted(line for line, _ in code_readers(path)) == [2, 3, 4, 6, 9, 10, 12]
