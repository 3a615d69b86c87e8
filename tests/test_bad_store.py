"""Bad input to the store itself, its objects, names, sizes and folders: a typed error, and nothing half-done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


def create(store: Any) -> Any:
    """A small table."""
    return store.create_table("new", capacity=10, schema={"x": di_store.Spec((), "f4")})


def test_objects_too_large_and_a_full_store(store: Any) -> None:
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


def test_unknown_names(store: Any) -> None:
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


def test_taken_names(store: Any) -> None:
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


def test_closed_handles() -> None:
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


def test_options_of_later_issues(store: Any) -> None:
    later: list[tuple[Callable[[], Any], str]] = [
        (lambda: di_store.open(memory="64MiB", disk="/nowhere"), "disk"),
        (lambda: di_store.open(memory="64MiB", disk_capacity="1GiB"), "disk_capacity"),
        (lambda: store.put(1, durability="disk"), "durability"),
        (lambda: store.publish("policy", {}, group="actors"), "group"),
        (lambda: di_store.Transition(future=3), "future"),
        (lambda: di_store.Spec((), "f4", late=True), "late"),
    ]
    for call, option in later:
        with pytest.raises(ValueError, match=option):
            call()
    for name in ("restore", "connect", "Client", "Group"):
        assert not hasattr(di_store, name)
    assert not hasattr(store, "checkpoint")


@pytest.mark.parametrize("memory", [0, -1, "0", "lots", "-1GiB", "200%", 10**18, 1, float("nan")])
def test_absurd_sizes(memory: Any) -> None:
    with pytest.raises((ValueError, TypeError, di_store.CapacityError, di_store.StoreFull)) as caught:
        di_store.open(memory=memory)
    assert "memory" in str(caught.value)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_an_unwritable_folder(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = python("import di_store; di_store.open('x', memory='64MiB')", DI_STORE_DIR=str(blocked))
    assert done.returncode != 0
    assert "AccessDenied" in done.stderr
    assert "DI_STORE_DIR" in done.stderr
    assert blocked.read_text() == "not a folder"


def test_a_folder_of_another_user(tmp_path: Path) -> None:
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


STRANGER = """
import os, sys, di_store
os.setgid(54321); os.setuid(54321)
try:
    di_store.attach(sys.argv[1])
except (di_store.AccessDenied, di_store.StoreNotFound) as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_of_another_user() -> None:
    with di_store.open(memory="64MiB") as store:
        done = subprocess.run([sys.executable, "-c", STRANGER, store.name], capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() in ("AccessDenied", "StoreNotFound"), done.stderr
        assert store.get(store.put(1)) == 1


def test_bad_names() -> None:
    for name in ("", "a/b", "a" * 300, "a\0b", ".."):
        with pytest.raises(ValueError, match="name"):
            di_store.open(name, memory="64MiB")
    with pytest.raises(ValueError, match="mode"):
        di_store.open(memory="64MiB", mode="w")
    with di_store.open(memory="64MiB") as store, pytest.raises(ValueError, match="name"):
        store.create_table("", capacity=10)
