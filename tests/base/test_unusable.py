"""What `import di_store` says on another system, interpreter or C library than that of its native module."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import di_store

PACKAGE = Path(di_store.__file__).parent
(NATIVE,) = PACKAGE.glob("_core.*.so")


def elf_hash(name: bytes) -> bytes:
    """As the dynamic linker compares names of versions."""
    found = 0
    for letter in name:
        found = (found << 4) + letter
        high = found & 0xF0000000
        found = (found ^ high >> 24) & ~high
    return found.to_bytes(4, "little")


def said(folder: Path, native: str | None, before: str = "", content: bytes | None = None) -> str:
    """The last line of an import of a package whose native module is called `native`; None: there is none."""
    shutil.copytree(PACKAGE, folder / "di_store", ignore=shutil.ignore_patterns("_core.*", "__pycache__"))
    if native is not None:
        (folder / "di_store" / native).write_bytes(NATIVE.read_bytes() if content is None else content)
    program = f"import sys, platform, sysconfig, numpy, msgspec\nsys.path.insert(0, {str(folder)!r})\n{before}\n"
    words = [sys.executable, "-c", program + "import di_store"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "during handling" not in done.stderr.lower()
    line = done.stderr.splitlines()[-1]
    assert line.startswith("ImportError: Di-store"), done.stderr
    return line


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    assert re.search(rf"native module is missing: .*{sys.executable} -m pip install", said(tmp_path, None))


def test_a_module_of_another_interpreter_is_named(tmp_path: Path) -> None:
    line = said(tmp_path, "_core.cpython-39-x86_64-linux-gnu.so")
    assert "with .cpython-39-x86_64-linux-gnu.so, and this one has " + NATIVE.name.removeprefix("_core") in line


def test_a_newer_c_library_is_named(tmp_path: Path) -> None:
    """The module asks for a version that this system's library does not have."""
    content = NATIVE.read_bytes()
    name = b"GLIBC_2.14" if b"\0GLIBC_2.14\0" in content else b"GLIBC_2.17"
    assert content.count(elf_hash(name)) >= 1
    other = content.replace(b"\0" + name + b"\0", b"\0GLIBC_2.99\0").replace(elf_hash(name), elf_hash(b"GLIBC_2.99"))
    line = said(tmp_path, NATIVE.name, content=other)
    assert re.search(r"was built for GLIBC_2.99 or later, and this system has glibc 2\.\d+: .*needs glibc 2.28", line)


def test_a_damaged_module_is_named(tmp_path: Path) -> None:
    line = said(tmp_path, NATIVE.name, content=bytes(5_000))
    assert re.search(r"native module cannot be loaded \(.*\): install it with this interpreter", line)


SYSTEMS = {
    "sys.platform = 'darwin'": "runs on Linux, and this is darwin",
    "platform.python_implementation = lambda: 'PyPy'": "needs CPython with its global lock",
    "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1": "in place of python3.14t",
    "sysconfig.get_config_vars()['EXT_SUFFIX'] = '.cpython-311-x86_64-linux-musl.so'": "this is musl",
}


@pytest.mark.parametrize("before", SYSTEMS)
def test_another_system_is_named(before: str, tmp_path: Path) -> None:
    assert SYSTEMS[before] in said(tmp_path, None, before)
