"""What makes a release: requirements, one version, the bill of materials, the site by version, other systems."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tomllib

import di_store

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BIN = Path(sys.executable).parent


def run(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """A program, to its end."""
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


def requires(*words: str) -> list[str]:
    """What tools/requires.py prints."""
    done = run(sys.executable, ROOT / "tools/requires.py", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_package_requires_numpy_and_msgspec_alone() -> None:
    assert [re.split(r"\W", line)[0] for line in PROJECT["dependencies"]] == ["numpy", "msgspec"]


def test_every_extra_brings_packages() -> None:
    for name in PROJECT["optional-dependencies"]:
        lines = requires(name)
        assert lines, name
        assert not [line for line in lines if "di-store" in line], lines
    assert set(requires("cli")) < set(requires("demo"))


def test_there_is_one_version() -> None:
    """The package has it from the module; the two texts that repeat it are the same."""
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    version = di_store.__version__
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("missing", "arguments"), [("click", ("status",)), ("rich", ("status",)), ("yaml", ("plan", "job.yaml"))]
)
def test_the_command_names_its_extra(missing: str, arguments: tuple[str, ...]) -> None:
    """Without its packages: one line. The library itself needs none of them."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None; import di_store; from di_store.__main__ import main; "
        f"sys.argv[1:] = {list(arguments)}; sys.exit(main())"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"di-store: the command needs {missing}: pip install 'di-store[cli]'\n"


def test_the_bill_of_materials_names_what_is_compiled_in() -> None:
    """Each library with its version; NOTICE has the licence of each."""
    done = run(sys.executable, ROOT / "tools/sbom.py", "ziglang==1.2.3")
    assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    versions = {part["name"]: part.get("version", part.get("versionRange")) for part in bill["components"]}
    notice = (ROOT / "NOTICE").read_text()
    assert f"(zstd) {versions['zstd']}:" in notice
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions["nanobind"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions["robin-map"])
    assert versions["ziglang"] == "1.2.3"
    assert {"nanobind", "robin-map", "libc++abi"} <= set(re.findall(r"[\w+-]+", notice))
    required = dict(line.split(">=") for line in PROJECT["dependencies"])
    assert {name: versions[name] for name in required} == {
        name: f"vers:pypi/>={least}" for name, least in required.items()
    }
    assert bill["metadata"]["component"]["version"] == di_store.__version__


PIP = """import os, shutil, sys
assert not {{"SETUPTOOLS_EXT_SUFFIX", "_PYTHON_HOST_PLATFORM"}} & set(os.environ)
shutil.copy({archive!r}, sys.argv[sys.argv.index("-d") + 1])
"""


def test_sources_are_fetched_as_on_this_architecture(tmp_path: Path) -> None:
    """What names another architecture in a build for it is kept from pip: it breaks the setup.py of the archive."""
    archive = tmp_path / "zstandard-0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(ROOT / "third_party", "zstandard-0/zstd")
    (tmp_path / "pip.py").write_text(PIP.format(archive=str(archive)))
    cross = {"SETUPTOOLS_EXT_SUFFIX": ".aarch64-linux-gnu.so", "_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **cross}
    done = run(sys.executable, ROOT / "tools/third_party.py", tmp_path / "fetched", env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fetched/zstd.c").read_bytes() == (ROOT / "third_party/zstd.c").read_bytes()


def test_a_module_that_wants_a_later_c_library_is_found(tmp_path: Path) -> None:
    """The linker lets pass what is in no version of the library it knows, as it does the symbols of Python."""
    (tmp_path / "m.c").write_text(
        "int later(void); int PyRun(void); int f(void *p) { free(p); return later() + PyRun(); }"
    )
    module = tmp_path / "m.so"
    words = ["-shared", "-fPIC", "-include", "stdlib.h", "-o", module, tmp_path / "m.c"]
    assert run("gcc", *words).returncode == 0
    done = run(sys.executable, ROOT / "tools/symbols.py", module)
    assert (done.returncode, done.stderr) == (1, "later\n")
    assert run(sys.executable, ROOT / "tools/symbols.py", di_store._core.__file__).returncode == 0


def test_the_site_has_a_folder_for_each_version(tmp_path: Path) -> None:
    """Other versions stay; the front page leads to the newest release."""
    tree, remote = tmp_path / "tree", tmp_path / "remote.git"
    (tree / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/publish_site.sh", tree / "tools")
    assert run("git", "init", "-q", "--bare", remote).returncode == 0

    def publish(version: str, text: str) -> str:
        """The front page after it."""
        page = tree / "build/site/site/index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        done = run(tree / "tools/publish_site.sh", version, remote)
        assert done.returncode == 0, done.stderr
        return shown("index.html")

    def shown(path: str) -> str:
        return run("git", "--git-dir", remote, "show", f"gh-pages:{path}").stdout

    assert "url=main/site" in publish("main", "first")
    assert "url=0.9.0/site" in publish("0.9.0", "nine")
    assert "url=0.10.0/site" in publish("0.10.0", "ten")
    front = publish("main", "second")
    assert "url=0.10.0/site" in front
    assert re.findall(r"<li><a href='([^/]*)/", front) == ["main", "0.10.0", "0.9.0"]
    assert [shown(f"{each}/site/index.html") for each in ("main", "0.10.0", "0.9.0")] == ["second", "ten", "nine"]


MUSL = """#!/bin/sh
exec {compiler} -isystem {folder} "$@"
"""
OLD = """#!/bin/sh
exec {compiler} -U__GNUC__ -D__GNUC__=11 "$@"
"""
FREE = "import sysconfig\nsysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("system", "says"),
    [
        ("mac", "runs on Linux on 64-bit x86 and Arm processors"),
        ("old compiler", "is built by g++ 12 or later; this is 11"),
        ("musl", "needs glibc 2.28 or later as its C library"),
        ("free threading", "this Python is free-threaded"),
    ],
)
def test_a_build_for_another_system_ends_with_one_sentence(system: str, says: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler is not None
    environment = dict(os.environ)
    words = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    if system == "mac":
        words += ["-DCMAKE_SYSTEM_NAME=Darwin"]
    elif system == "free threading":
        (tmp_path / "sitecustomize.py").write_text(FREE)
        environment["PYTHONPATH"] = str(tmp_path)
    else:
        (tmp_path / "features.h").write_text("// as musl's, which says nothing\n")
        wrapper = tmp_path / "g++"
        wrapper.write_text((MUSL if system == "musl" else OLD).format(compiler=compiler, folder=tmp_path))
        wrapper.chmod(0o755)
        environment["CXX"] = str(wrapper)
    done = run(BIN / "cmake", *words, "-S", ROOT, "-B", tmp_path / "build", env=environment)
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split()), done.stderr
    assert done.stderr.count("CMake Error") == 1, done.stderr
