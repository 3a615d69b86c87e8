"""`make mutants`: breaks one mechanism at a time in a copy of the tree, and sees whether a test fails.

A mutant that no test notices means that the tests do not hold what they promise. Exit status 1 if there is one, if a
mutant's place is not there, or if the tree as it is fails the same tests.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import pytest

from mutants.catalogue import MUTANTS
from mutants.mutant import NATIVE, ROOT, Mutant

PLACE = ROOT / "build" / "mutants"
COPIED = (
    "src",
    "native",
    "tests",
    "tools",
    "bench",
    "docs",
    "examples",
    "third_party",
    "README.md",
    "CMakeLists.txt",
    "pyproject.toml",
)
LEFT_OUT = ("__pycache__", ".so", ".pyc")
BIN = Path(sys.executable).parent
HANG_SECONDS = 120


def files(folder: Path, parts: tuple[str, ...] = COPIED) -> set[Path]:
    """Files below these parts of a folder, relative to it."""
    found = set()
    for part in parts:
        under = folder / part
        every = [under] if under.is_file() else list(under.rglob("*"))
        found |= {path.relative_to(folder) for path in every if path.is_file()}
    return {path for path in found if not str(path).endswith(LEFT_OUT) and "__pycache__" not in path.parts}


class Copy:
    """A copy of the tree with a build of its own, in which one mutant at a time is tried."""

    def __init__(self, number: int, patience: float) -> None:
        """Make it equal to the tree; what is equal already keeps its time, so that little is built anew."""
        self.place = PLACE / str(number)
        self.tree = self.place / "tree"
        self.built = self.place / "build"
        self.log = self.place / "last.log"
        self.hang_seconds = HANG_SECONDS * patience
        wanted = files(ROOT)
        self.tree.mkdir(parents=True, exist_ok=True)
        for path in files(self.tree) - wanted:
            (self.tree / path).unlink()
        for path in wanted:
            text = (ROOT / path).read_bytes()
            copy = self.tree / path
            if not copy.exists() or copy.read_bytes() != text:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(text)
                shutil.copymode(ROOT / path, copy)

    def build(self, programs: set[str], jobs: int) -> str:
        """Build the module and these C++ tests; the compiler's words if that fails."""
        if not (self.built / "build.ninja").exists():
            subprocess.run(
                [BIN / "cmake", "-S", self.tree, "-B", self.built]
                + ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"]
                + ["-DDI_STORE_FAULTS=ON", "-DDI_STORE_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
                + ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        command = [BIN / "cmake", "--build", self.built, "-j", str(jobs), "--target", "_core", *sorted(programs)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return done.stdout + done.stderr
        for module in self.built.glob("_core*.so"):
            fresh = self.tree / "src" / "di_store" / (module.name + ".new")
            shutil.copy(module, fresh)
            fresh.rename(fresh.with_suffix(""))  # by name: who has the old one mapped keeps it
        return ""

    def run(self, command: list[str | Path], seconds: float) -> tuple[int | None, str]:
        """Exit status (None: ended after so many seconds) and what it printed."""
        ours = {
            "PYTHONPATH": str(self.tree / "src"),
            "DI_STORE_TEST_SCALE": "small",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with self.log.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=os.environ | ours,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            try:
                os.killpg(process.pid, signal.SIGKILL)  # it and what it left behind
            except ProcessLookupError:
                pass
            process.wait()
        return status, self.log.read_text(errors="replace")

    def failure(self, tests: tuple[str, ...], every: bool = False) -> str:
        """Which of the tests fail, "" for none; the first one, or every one.

        C++ programs go first: most of them take a moment only.
        """
        found = []
        for test in tests:
            if test.startswith(NATIVE):
                name = test.removeprefix(NATIVE)
                status, _ = self.run([self.built / "tests" / "native" / name], self.hang_seconds)
                if status != 0:
                    found.append(test + (" (hang)" if status is None else ""))
                if found and not every:
                    return found[0]
        ids = [test for test in tests if not test.startswith(NATIVE)]
        if ids:
            options = ["-q", "-rfE", "-p", "no:cacheprovider", f"--timeout={self.hang_seconds:.0f}"]
            options += [] if every else ["-x"]
            command = [sys.executable, "-m", "pytest", *options, *ids]
            status, text = self.run(command, self.hang_seconds * (len(ids) + 2))
            found += failed(status, text)
        return ", ".join(found)

    def try_one(self, mutant: Mutant) -> str:
        """By which test the mutant is caught, "" if by none."""
        copy = self.tree / mutant.file
        whole = copy.read_text()
        copy.write_text(mutant.broken(self.tree))
        try:
            if copy.suffix != ".py":
                programs = {test.removeprefix(NATIVE) for test in mutant.tests if test.startswith(NATIVE)}
                if words := self.build(programs, 1):
                    raise ValueError(f"mutant {mutant.name} does not build:\n{words[-3000:]}")
            return self.failure(mutant.tests)
        finally:
            copy.write_text(whole)

    def check_whole(self, some: list[Mutant], jobs: int) -> None:
        """The tree as it is must pass all of the tests."""
        tests = tuple(dict.fromkeys(test for mutant in some for test in mutant.tests))
        if words := self.build({test.removeprefix(NATIVE) for test in tests if test.startswith(NATIVE)}, jobs):
            raise SystemExit(words)
        if failed := self.failure(tests, every=True):
            raise SystemExit(f"the tree as it is fails: {failed}\n{self.log.read_text()[-3000:]}")


def failed(status: int | None, text: str) -> list[str]:
    """The tests that have failed, by the exit status of pytest and what it printed.

    Raises:
        SystemExit: pytest has not run them, which says nothing of the mutant.
    """
    if status == 0:
        return []
    if status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest has run no test:\n{text[-3000:]}")
    found = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    hang = " (hang)" if status is None or "from pytest-timeout" in text else ""
    return [name.removeprefix("tests/") + hang for name in found or [f"pytest ended with {status}"]]


def chosen(names: list[str]) -> list[Mutant]:
    """The mutants of these names or promises; all without any."""
    if unknown := set(names) - {mutant.name for mutant in MUTANTS} - {mutant.promise for mutant in MUTANTS}:
        raise SystemExit(f"no such mutant or promise: {', '.join(sorted(unknown))}; --list shows all")
    some = [mutant for mutant in MUTANTS if not names or mutant.name in names or mutant.promise in names]
    for mutant in some:
        mutant.broken()
    return some


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants or promises; all by default")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    parser.add_argument("--report", type=Path, help="a file that the table is added to")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="mutants tried at a time")
    parser.add_argument("--patience", type=float, default=1.0, help="times two minutes: how long a test may take")
    parser.add_argument("--mutants-only", action="store_true", help="trust that the tree as it is passes")
    args = parser.parse_args()
    some = chosen(args.names)
    if args.list:
        print("\n".join(f"{mutant.promise:12} {mutant.name:38} {mutant.place}" for mutant in some))
        return 0
    copies = [Copy(number, args.patience) for number in range(min(args.jobs, len(some)))]
    if not args.mutants_only:
        began = time.monotonic()
        copies[0].check_whole(some, args.jobs)
        print(f"the tree as it is passes ({time.monotonic() - began:.0f} s)", flush=True)
    survived = []
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def tried(mutant: Mutant) -> tuple[Mutant, str, float]:
        """It, by which test it was caught, and the seconds it took."""
        copy = free.get()
        try:
            began = time.monotonic()
            return mutant, copy.try_one(mutant), time.monotonic() - began
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as workers:
        for ended in as_completed([workers.submit(tried, mutant) for mutant in some]):
            mutant, by, seconds = ended.result()
            line = f"{mutant.promise:12} {mutant.name:38} {by or 'SURVIVED'} {seconds:.0f} s"
            print(line, flush=True)
            if args.report is not None:
                with args.report.open("a") as file:
                    file.write(line + "\n")
            if not by:
                survived.append(mutant.name)
    if survived:
        print(f"{len(survived)} of {len(some)} survived: {', '.join(survived)}")
        return 1
    print(f"all {len(some)} were caught")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
