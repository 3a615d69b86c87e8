"""Every way to find and enter a store: only one's own is entered; a question that fails never means "there is none"."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_run import command
from pains import Program, is_removed, until

import di_store
from di_store import _core

STRANGER_UID = 100_000 + os.getpid()
"""Of this run alone: while one of its processes hides, no other process of this user may make a store."""
ROOT = os.geteuid() == 0
UNSHARE = ("unshare",) if ROOT else ("unshare", "--user", "--map-root-user")


def run(text: str, *arguments: object, prefix: tuple[str, ...] = (), **options: Any) -> str:
    """What a program in a process of its own prints."""
    words = [*prefix, sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- stores of other users --------------------------------------------------------------------------------------------

THEIRS = """
import os, sys, di_store
uid = int(sys.argv[2])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)  # the kernel gives /proc/<pid> of such a process to root
store = di_store.open(sys.argv[1], memory="64MiB")
store.create_table("t", capacity=10, schema={"x": di_store.Spec((), "i8")})
print("there", flush=True)
sys.stdin.readline()
"""
DOORS = """
import sys, di_store
from di_store import _core
name, fault = sys.argv[1:]
def closed(call):
    if fault:
        _core.arm_fault(fault)
    try:
        return repr(call())
    except di_store.StoreError as error:
        return f"{type(error).__name__} {error}"
print([info.name for info in di_store.list_stores()].count(name))
print(closed(lambda: di_store.attach(name)))
print(closed(lambda: di_store.open(name, mode="r")))
"""


@pytest.fixture
def theirs(store_name: Callable[[], str]) -> Iterator[Program]:
    """A store that a process of another user holds, under `name`."""
    folder = tempfile.mkdtemp(prefix="ds-", dir="/tmp")
    os.chown(folder, STRANGER_UID, STRANGER_UID)
    with Program(THEIRS, store_name(), STRANGER_UID, env={**os.environ, "DI_STORE_DIR": folder}) as program:
        assert program.line() == "there"
        yield program
    shutil.rmtree(folder, ignore_errors=True)


def name_of(program: Program) -> str:
    """Of the store that a program was started with."""
    assert isinstance(program.process.args, list)
    return str(program.process.args[3])


def command_fails(*arguments: str) -> str:
    """What a command says that must not work."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout
    return done.stderr


if ROOT:

    def test_root_does_not_attach_to_another_users_store(theirs: Program) -> None:
        """Root may open every process's files; a memory file counts only if it is root's own."""
        name = name_of(theirs)
        listed, attached, read, *_ = run(DOORS, name, "").splitlines()
        assert listed == "0"
        for refusal in (attached, read):
            assert refusal.startswith("StoreNotFound")
            assert f"pid {theirs.pid} of uid {STRANGER_UID}" in refusal
        assert name not in {info.name for info in di_store.list_stores()}
        for words in (("rm", name, "--force"), ("inspect", name, "t"), ("top", name, "--once")):
            said = command_fails(*words)
            assert name in said
            assert f"pid {theirs.pid} of uid {STRANGER_UID}" in said
        seen = subprocess.run(command("status"), capture_output=True, text=True, timeout=120, check=True)
        assert name not in seen.stdout
        assert f"pid {theirs.pid} of uid {STRANGER_UID}" in seen.stdout

    @pytest.mark.memory_only
    def test_a_name_used_by_another_user_is_free_for_this_one(theirs: Program) -> None:
        """`open` and `hold` make a store of their own; neither sees anything of the other."""
        name = name_of(theirs)
        with di_store.open(name, memory="64MiB") as mine:
            assert mine.stats()["tables"] == {}
            assert [client["pid"] for client in mine.stats()["clients"]] == [os.getpid()]
        with subprocess.Popen(command("hold", name, "--memory", "64MiB"), stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline().startswith("made store")
            with di_store.attach(name) as mine:
                assert mine.stats()["tables"] == {}
            holder.terminate()
        theirs.say()
        theirs.finish()

    def test_a_lock_file_of_another_user_is_refused(store_name: Callable[[], str], store_dir: str) -> None:
        """Whoever owns it could keep it locked for ever."""
        name = store_name()
        path = Path(store_dir, f"{name}.lock")
        path.write_text("")
        os.chown(path, STRANGER_UID, STRANGER_UID)
        with pytest.raises(di_store.AccessDenied, match=f"belongs to uid {STRANGER_UID}"):
            _core.Arena.open(name, 0, 64 << 20, 1, 5.0)
        assert path.exists()


def test_the_owner_of_a_memory_file_is_compared_before_a_byte_of_it_is_read(store_name: Callable[[], str]) -> None:
    """Where one cannot be two users, a file whose owner is not told stands for a foreign one."""
    with di_store.open(store_name(), memory="64MiB") as store:
        listed, attached, read = run(DOORS, store.name, "os.holder_owner:1:EIO").splitlines()
    assert listed == "1"
    for refusal in (attached, read):
        assert refusal.startswith("StoreNotFound")


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_planted_link_as_a_lock_file_is_refused(store_name: Callable[[], str], store_dir: str, kind: str) -> None:
    """A link planted before the folder was closed to others must not lead elsewhere."""
    name = store_name()
    path, aim = Path(store_dir, f"{name}.lock"), Path(store_dir, "aim")
    if kind == "link":
        path.symlink_to(aim)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(di_store.AccessDenied, match=r"\.lock.*DI_STORE_DIR"):
        di_store.open(name, memory="64MiB")
    assert not aim.exists()


# -- questions that fail ----------------------------------------------------------------------------------------------

SCARCE = """
import os, resource, sys, di_store
name = sys.argv[1]
highest = max(map(int, os.listdir("/proc/self/fd")))
for free in range(12):
    pid = os.fork()
    if pid == 0:
        used = [int(number) for number in os.listdir("/proc/self/fd")]
        while max(used) < highest + 8:  # no gaps below the limit
            used.append(os.dup(0))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 1 + free, most))
        for call in (lambda: di_store.open(name, memory="64MiB"), lambda: di_store.attach(name), di_store.list_stores):
            try:
                found = call()
                what = found.stats()["uuid"] if hasattr(found, "stats") else [info.name for info in found]
                print(free, "found", what, flush=True)
            except di_store.StoreError as error:
                print(free, type(error).__name__, "ulimit -n" in str(error), error, flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_running_out_of_descriptors_makes_no_second_store(store_name: Callable[[], str]) -> None:
    """However many are left: the store that is there is found, or an error names the limit."""
    with di_store.open(store_name(), memory="64MiB") as store:
        uuid = store.stats()["uuid"]
        lines = run(SCARCE, store.name).splitlines()
        assert len(lines) == 36
        for line in lines:
            _, kind, rest = line.split(" ", 2)
            if kind == "found":
                assert uuid in rest or store.name in rest, line
            else:
                assert (kind, rest.split(" ")[0]) == ("StoreError", "True"), line
        kinds = {line.split(" ")[1] for line in lines}
        assert kinds == {"found", "StoreError"}, lines
        assert [info.name for info in di_store.list_stores()].count(store.name) == 1


BLIND = """
import subprocess, sys, di_store
subprocess.run(["mount", "-t", "tmpfs", "none", "/proc"], check=True)
name = sys.argv[1]
for call in (lambda: di_store.open(name, memory="64MiB"), lambda: di_store.attach(name), di_store.list_stores):
    try:
        print("came through", call())
    except di_store.StoreError as error:
        print(type(error).__name__, error)
"""


def test_a_hidden_proc_makes_no_second_store(store_name: Callable[[], str]) -> None:
    with di_store.open(store_name(), memory="64MiB") as store:
        lines = run(BLIND, store.name, prefix=(*UNSHARE, "--mount")).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("StoreError")
        assert "/proc" in line


HIDDEN = """
import ctypes, os, sys, di_store
uid = int(sys.argv[2])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
store = di_store.open(sys.argv[1], memory="64MiB")
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
print("there", flush=True)
sys.stdin.readline()
"""
OPEN_TOO = """
import os, sys, di_store
uid = int(sys.argv[2])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
for mode in ("rw", "x"):
    try:
        print("made", di_store.open(sys.argv[1], memory="64MiB", mode=mode))
    except di_store.StoreError as error:
        print(type(error).__name__, error)
with di_store.open(memory="64MiB") as store:
    print("own", store.get(store.put(1)))
"""


def test_an_uninspectable_holder_makes_no_second_store(store_name: Callable[[], str]) -> None:
    """It cannot be told which store it holds, so no name is free; a store without a name can be had."""
    name, uid = store_name(), STRANGER_UID if ROOT else 0
    folder = tempfile.mkdtemp(prefix="ds-", dir="/tmp")
    if uid:
        os.chown(folder, uid, uid)
    environment = {**os.environ, "DI_STORE_DIR": folder}
    try:
        with Program(HIDDEN, name, uid, env=environment) as program:
            assert program.line() == "there"
            *refused, own = run(OPEN_TOO, name, uid, env=environment).splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("AccessDenied"), line
        assert f"pid {program.pid} of this user" in line
        assert "di-store hold" in line
    assert own == "own 1"


def test_files_are_removed_despite_another_stores_uninspectable_holder(
    tmp_path: Path, store_name: Callable[[], str]
) -> None:
    """It holds another file: the last process of a store with a disk tier removes its files."""
    uid = STRANGER_UID if ROOT else 0
    folder = tempfile.mkdtemp(prefix="ds-", dir="/tmp")
    if uid:
        os.chown(folder, uid, uid)
    try:
        with Program(HIDDEN, store_name(), uid, env={**os.environ, "DI_STORE_DIR": folder}) as program:
            assert program.line() == "there"
            with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="64MiB") as store:
                table = store.create_table("t", capacity=20_000, lanes=1)
                with table.writer() as writer:
                    for _ in range(20_000):
                        writer.append({"x": np.zeros(2_000, np.uint8)})
                assert list((tmp_path / "disk").glob("segment-*"))
            name = store.name
            del store, table, writer
            until(partial(is_removed, tmp_path / "disk", name), "the end of the store")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


BUDGET = """
import os, resource, di_store
from di_store import _core
assert _core.memory_headroom() > 0
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(10**7):
    try:
        if _core.memory_headroom() > 2**62:
            print("without limit")
            break
    except di_store.StoreError as error:
        print("ulimit -n" in str(error))
        break
"""


def test_running_out_of_descriptors_does_not_lift_the_memory_limit() -> None:
    """A cgroup's limit that cannot be read is no reason to commit beyond it."""
    assert run(BUDGET).splitlines() == ["True"]
