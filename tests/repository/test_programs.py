"""tools/programs.sh: what `make demo` and `make test` need besides Python's packages, and what they say without it.

Whether it gets all of that on a new machine is for tools/clean_root.sh, which needs root and a mirror.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import need

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "programs.sh"
BASICS = ("bash", "dirname", "mkdir", "flock", "sort", "xargs", "id", "mktemp", "rm", "echo", "make")


def run(
    folder: Path, what: str, *present: str, python: str = sys.executable, **others: str
) -> subprocess.CompletedProcess[str]:
    """The script in a tree of its own, on a machine that has these programs alone, and no apt-get."""
    programs, tools = folder / "bin", folder / "tree" / "tools"
    programs.mkdir()
    tools.mkdir(parents=True)
    for name in (*BASICS, *present):
        found = shutil.which(name)
        assert found is not None, name
        (programs / name).symlink_to(found)
    for name, text in others.items():
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    shutil.copy(SCRIPT, tools)
    environment = {key: value for key, value in os.environ.items() if key != "CXX"} | {"PATH": str(programs)}
    words = [str(programs / "bash"), str(tools / SCRIPT.name), what, python]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


COMPILER = "#!/bin/bash\necho 12\n"


# Of a mirror that has one package.
USER = "#!/bin/bash\necho 1000\n"
GETS = """#!/bin/bash
case " $* " in
    *" -s install "*) echo "Inst g++ (12)" ;;
    *" download "*) touch package.deb ;;
esac
"""
UNPACKS = """#!/bin/bash
mkdir -p "$3/usr/bin" "$3/usr/include/x86_64-linux-gnu" "$3/usr/lib/x86_64-linux-gnu"
printf '#!/bin/bash\\necho 12\\n' > "$3/usr/bin/g++"
chmod +x "$3/usr/bin/g++"
"""
UNPACKING = ("basename", "cat", "chmod", "find", "ln", "sed", "touch")


def test_only_the_missing_compiler_is_unpacked(tmp_path: Path) -> None:
    """Python's headers are there already, and none are unpacked with it."""
    done = run(tmp_path, "build", *UNPACKING, **{"id": USER, "apt-get": GETS, "dpkg": UNPACKS})
    assert (done.returncode, done.stdout, done.stderr) == (0, "getting g++\n", "")
    assert (tmp_path / "tree/.venv/programs/bin/g++").exists()


@pytest.mark.parametrize("what", ["build", "test"])
@pytest.mark.parametrize("text", [None, COMPILER.replace("12", "11")])
def test_a_build_needs_a_compiler(tmp_path: Path, what: str, text: str | None) -> None:
    done = run(tmp_path, what, **({} if text is None else {"g++": text}))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("apt-get install g++"), line


def test_a_build_needs_python(tmp_path: Path) -> None:
    done = run(tmp_path, "build", python="no-python", **{"g++": COMPILER})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("apt-get install python3 python3-dev python3-venv"), line


def test_nothing_is_printed_if_all_programs_exist(tmp_path: Path) -> None:
    done = run(tmp_path, "build", **{"g++": COMPILER})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_test_programs_are_named_and_tolerated(tmp_path: Path) -> None:
    """What only tests need is named, and does not stop them."""
    done = run(tmp_path, "test", **{"g++": COMPILER})
    assert done.returncode == 0
    named = [line.rpartition(" ")[2] for line in done.stderr.splitlines()]
    assert named == ["openssl", "etcd-server", "prometheus", "chromium"]


@pytest.mark.parametrize("target", ["test", "demo"])
def test_the_check_runs_before_the_build(tmp_path: Path, target: str) -> None:
    """In a tree where nothing has been built."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for name in ("pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(
        ["make", "-n", target], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert made.stdout.startswith("tools/programs.sh "), made.stdout


def test_a_test_without_its_program_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fails where all of them must be there."""
    need("make")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program"):
        need("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        need("no-such-program")
