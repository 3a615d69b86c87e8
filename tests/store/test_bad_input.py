"""Bad input to the store itself, its objects, names, sizes and folders: a typed error, and nothing half-done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pains import MIB, Program

import di_store


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def create(store: Any) -> Any:
    """A small table."""
    return store.create_table("new", capacity=10, schema={"x": di_store.Spec((), "f4")})


@pytest.mark.memory_only
def test_too_large_objects_and_full_stores_raise(store: Any) -> None:
    with pytest.raises((di_store.StoreFull, di_store.CapacityError)) as caught:
        store.put(np.zeros(100 * MIB, np.uint8), timeout=0.1)
    assert "memory" in str(caught.value)
    refs: list[Any] = []
    while len(refs) < 10:
        refs.append(store.put(np.zeros(4 * MIB, np.uint8), timeout=60))
    with pytest.raises(di_store.StoreFull) as full:
        store.put(np.zeros(30 * MIB, np.uint8), timeout=0.1)
    assert "memory" in str(full.value) or "delete" in str(full.value)
    assert store.delete(refs) == len(refs)
    assert store.put(np.zeros(4 * MIB, np.uint8), timeout=60)


def test_unknown_names_are_refused(store: Any) -> None:
    with pytest.raises(di_store.ObjectNotFound):
        store.get(di_store.Ref.parse("ab" * 20))
    with pytest.raises(di_store.TableNotFound, match="nothing"):
        store.table("nothing")
    with pytest.raises(di_store.TableNotFound):
        store.drop_table("nothing")
    with pytest.raises(di_store.StoreNotFound, match="no-such-store"):
        di_store.attach("no-such-store")
    with pytest.raises(di_store.StoreNotFound):
        di_store.open("no-such-store", mode="r")
    with pytest.raises(ValueError, match="40"):
        di_store.Ref.parse("xyz")
    with pytest.raises(ValueError, match="id"):
        store.put(1, id="12")


def test_taken_names_are_refused(store: Any) -> None:
    create(store)
    store.put(1, id="cd" * 20)
    with pytest.raises(di_store.ObjectExists):
        store.put(2, id="cd" * 20)
    assert store.get(di_store.Ref.parse("cd" * 20)) == 1
    with pytest.raises(di_store.TableExists):
        create(store)
    options: dict[str, Any] = {"capacity": 10, "exist_ok": True, "schema": {"x": di_store.Spec((), "f4")}}
    assert len(store.create_table("new", **options)) == 0
    with pytest.raises(di_store.TableExists, match="sampler"):
        store.create_table("new", sampler=di_store.Fifo(), **options)
    with pytest.raises(di_store.StoreError):
        di_store.open(store.name, mode="x")


def test_calls_of_closed_handles_raise() -> None:
    store = di_store.open(memory="64MiB")
    table = create(store)
    writer = table.writer()
    ref = store.put(1)
    store.close()
    store.close()
    calls: list[Callable[[], Any]] = [
        lambda: store.get(ref),
        lambda: store.put(2),
        lambda: store.table("new"),
        lambda: store.publish("policy", {}),
        lambda: table.insert({"x": np.float32(0)}),
        lambda: table.sample(1, timeout=1),
        lambda: table.stats(),
    ]
    for call in calls:
        with pytest.raises(di_store.StoreClosed):
            call()
    with pytest.raises((di_store.StoreClosed, di_store.WriterClosed)):
        writer.append({"x": np.float32(0)})


@pytest.mark.memory_only
def test_options_of_other_kinds_of_store_are_refused(store: Any) -> None:
    """Of a store with a disk, and of one in a cluster."""
    others: list[tuple[Callable[[], Any], str]] = [
        (lambda: store.put(1, durability="disk"), "durability"),
        (lambda: store.publish("policy", {}, group="actors"), "group"),
        (lambda: store.latest("policy", group="actors"), "group=.* cluster"),
    ]
    for call, option in others:
        with pytest.raises(ValueError, match=option):
            call()


@pytest.mark.parametrize("memory", [0, -1, "0", "lots", "-1GiB", "200%", 10**18, 1, float("nan")])
def test_absurd_sizes_are_refused(memory: Any) -> None:
    with pytest.raises((ValueError, TypeError, di_store.CapacityError, di_store.StoreFull)) as caught:
        di_store.open(memory=memory)
    assert "memory" in str(caught.value)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = python("import di_store; di_store.open('x', memory='64MiB')", DI_STORE_DIR=str(blocked))
    assert done.returncode != 0
    assert "AccessDenied" in done.stderr
    assert "DI_STORE_DIR" in done.stderr
    assert blocked.read_text() == "not a folder"


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Somebody else's folder is refused; where we may not make one, one that all may write stands for it."""
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o777)
    done = python("import di_store; di_store.open('x', memory='64MiB')", DI_STORE_DIR=str(folder))
    assert done.returncode != 0
    assert "AccessDenied" in done.stderr


LOOK = """
import ctypes, os, sys, di_store
uid = int(sys.argv[2])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
print([info.name for info in di_store.list_stores()].count(sys.argv[1]))
for call in (lambda: di_store.attach(sys.argv[1], timeout=0.1), lambda: di_store.open(sys.argv[1], mode="r")):
    try:
        call()
    except di_store.StoreError as error:
        print(type(error).__name__, error)
"""
HIDE = """
import ctypes, os, sys, di_store
uid = int(sys.argv[2])
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
store = di_store.open(sys.argv[1], memory="64MiB")
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
print("there", flush=True)
sys.stdin.readline()
store.put(1)
"""
STRANGER_UID = 54321


@pytest.fixture
def strangers_folder() -> Iterator[str]:
    """A folder for stores of the user that a child of root becomes; of our own user where we are not root."""
    folder = tempfile.mkdtemp(prefix="ds-", dir="/tmp")
    if os.geteuid() == 0:
        os.chown(folder, STRANGER_UID, STRANGER_UID)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


UMASK = """
import os, sys, di_store
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
os.umask(int(sys.argv[2], 8))
with di_store.open("x", memory="16MiB", disk=sys.argv[3], disk_capacity="64MiB") as store:
    store.put(1, durability="disk")
"""


def test_the_umask_of_the_first_process_excludes_nobody(strangers_folder: str) -> None:
    """Nor does it the process itself: folders are made for their owner whatever the umask takes."""
    environment = {**os.environ, "DI_STORE_DIR": strangers_folder + "/locks"}
    for umask in ("0177", "0022"):
        command = [sys.executable, "-c", UMASK, str(STRANGER_UID), umask, strangers_folder + "/disk"]
        done = subprocess.run(command, timeout=120, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    os.rmdir(strangers_folder + "/locks")
    os.mkdir(strangers_folder + "/locks", mode=0o000)  # of one that was killed before it had changed the mode
    if os.geteuid() == 0:
        os.chown(strangers_folder + "/locks", STRANGER_UID, STRANGER_UID)
    done = subprocess.run(command, timeout=120, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def look(name: str, uid: int, folder: str) -> list[str]:
    """What a process of user `uid` (0: of ours) finds of a store: how often it is listed, and two errors."""
    command = [sys.executable, "-c", LOOK, name, str(uid)]
    options = {"env": {**os.environ, "DI_STORE_DIR": folder}, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=120, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    lines: list[str] = done.stdout.splitlines()
    return lines


def test_a_store_of_another_user_is_named(store_name: Callable[[], str], strangers_folder: str) -> None:
    """The error names who holds a store out of sight, and what to do.

    The kernel shows another user's process as one of ours that is not dumpable: where we cannot be two users, that
    stands for it.
    """
    name = store_name()
    if os.geteuid() == 0:
        with di_store.open(name, memory="64MiB") as store:
            listed, *errors = look(name, STRANGER_UID, strangers_folder)
            assert store.get(store.put(1)) == 1
        kind, holder, words = "StoreNotFound", f"pid {os.getpid()} of uid 0", "must run as the same user"
    else:
        with Program(HIDE, name, 0) as program:
            assert program.line() == "there"
            listed, *errors = look(name, 0, os.environ["DI_STORE_DIR"])
            program.say()
            program.finish()
        kind, holder, words = "AccessDenied", f"pid {program.pid}", "same user and group"
    assert listed == "0"
    assert len(errors) == 2
    for error in errors:
        assert error.startswith(kind)
        assert holder in error
        assert words in error


def test_a_store_with_an_uninspectable_holder_is_explained(
    store_name: Callable[[], str], strangers_folder: str
) -> None:
    """A process of one's own user that hides: how to be let in. Root sees everything, so it looks as somebody else."""
    name, uid = store_name(), STRANGER_UID if os.geteuid() == 0 else 0
    options = {"env": {**os.environ, "DI_STORE_DIR": strangers_folder}}
    with Program(HIDE, name, uid, **options) as program:
        assert program.line() == "there"
        listed, *errors = look(name, uid, strangers_folder)
        program.say()
        program.finish()
    assert listed == "0"
    assert len(errors) == 2
    for error in errors:
        assert error.startswith("AccessDenied")
        assert f"pid {program.pid} of this user" in error
        assert "same user and group" in error
        assert "di-store hold" in error


def test_a_removed_store_is_not_listed(store_name: Callable[[], str]) -> None:
    name = store_name()
    with di_store.open(name, memory="64MiB") as store:
        mine = [info for info in di_store.list_stores() if info.name == name]
        assert [info.pids for info in mine] == [(os.getpid(),)]
        assert mine[0].bytes == store.stats()["present"] > 0
        code = "import sys, di_store; print([i.bytes for i in di_store.list_stores() if i.name == sys.argv[1]])"
        seen = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=120)
        assert seen.stdout.strip() == f"[{mine[0].bytes}]"
        store._backend.session.arena.remove()
        assert name not in {info.name for info in di_store.list_stores()}
        seen = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=120)
        assert seen.stdout.strip() == "[]"
    with di_store.open(name, memory="64MiB", mode="x"):
        assert [info.name for info in di_store.list_stores()].count(name) == 1


def test_more_memory_than_the_machine_has_is_refused(store: Any) -> None:
    for call in (lambda: di_store.open(memory="30TiB"), lambda: store.resize("30TiB")):
        with pytest.raises(di_store.CapacityError, match=r"30.*this machine has .*25%") as caught:
            call()
        assert "capacity=" not in str(caught.value)
    assert store.stats()["budget"] == 64 * MIB


def test_a_table_that_cannot_grow_keeps_its_reserve(store: Any) -> None:
    table = create(store)
    reserves = [int(table.stats()["reserve_bytes"])]
    with pytest.raises(di_store.CapacityError, match="memory="):
        for step in range(30):
            table.resize(2_000 << step)
            reserves.append(int(table.stats()["reserve_bytes"]))
    assert table.stats()["reserve_bytes"] == reserves[-1]
    assert table.stats()["capacity"] == 1_000 << (len(reserves) - 1)
    assert store.check() == []


def test_bad_store_names_are_refused() -> None:
    for name in ("", "a/b", "a" * 300, "a\0b", ".."):
        with pytest.raises(ValueError, match="name"):
            di_store.open(name, memory="64MiB")
    with pytest.raises(ValueError, match="mode"):
        di_store.open(memory="64MiB", mode="w")
    with di_store.open(memory="64MiB") as store, pytest.raises(ValueError, match="name"):
        store.create_table("", capacity=10)
