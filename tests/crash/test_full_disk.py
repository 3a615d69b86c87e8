"""Pain 12: a full disk is boring: typed errors or evictions, readers go on, little is said, and it heals by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import di_store
from di_store import _core

MIB = 1 << 20
BYTES, BLOCK = 8_192, 64
FLAGS = np.zeros(BLOCK, bool)
CALL_SECONDS, HEAL_SECONDS = 20.0, 50.0
"""Ten times what `pains.md` asks for: the machine may be busy."""


class Drive:
    """A filesystem of its own, in a file. Where that may not be mounted, files get no blocks as if it were full."""

    def __init__(self, folder: Path, size: int) -> None:
        image, self.path = folder / "image", folder / "drive"
        self.path.mkdir()
        with open(image, "wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image), str(self.path)]
        self.mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        self.size = shutil.disk_usage(self.path).total if self.mounted else size

    def fill(self) -> None:
        if not self.mounted:
            _core.arm_fault("file.preallocate:1:ENOSPC+")
            return
        with open(self.path / "foreign", "wb", buffering=0) as file:
            for size in (MIB, 4_096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        _core.arm_fault("")
        if self.mounted:
            os.remove(self.path / "foreign")

    def end(self) -> None:
        _core.arm_fault("")
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def drive(tmp_path: Path, count: Callable[[int, int], int]) -> Iterator[Drive]:
    made = Drive(tmp_path, count(128, 512) * MIB)
    yield made
    made.end()


class Rows:
    """Writes rows whose bytes their numbers give, and reads them again."""

    def __init__(self, table: di_store.Table) -> None:
        self.table, self.writer, self.next = table, table.writer(), 0
        self.longest = 0.0

    def write(self, blocks: int) -> None:
        for _ in range(blocks):
            numbers = np.arange(self.next, self.next + BLOCK)
            obs = np.repeat((numbers % 251).astype(np.uint8)[:, None], BYTES, 1)
            obs[:, :8] = numbers[:, None].view(np.uint8)
            began = time.monotonic()
            self.writer.extend({"obs": obs, "terminated": FLAGS, "truncated": FLAGS})
            self.longest = max(self.longest, time.monotonic() - began)
            self.next += BLOCK

    def read(self) -> None:
        for _ in range(5):
            obs = self.table.sample(64).data["obs"]
            numbers = np.ascontiguousarray(obs[:, :8]).view(np.int64)[:, 0]
            assert (obs[:, 8:] == (numbers % 251)[:, None]).all()


def used(folder: Path) -> int:
    return sum(os.stat(path).st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def disk(store: di_store.Store, name: str) -> int:
    found = store.stats()["disk"]
    assert found is not None
    return int(found[name])


def until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end


def test_a_full_disk_loses_nothing(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    folder, quota = drive.path / "disk", drive.size * 3 // 4 // MIB * MIB
    rows = quota // 2 // BYTES
    with di_store.open(memory="16MiB", disk=folder, disk_capacity=quota) as store:
        table = store.create_table("t", capacity=rows, lanes=1, compress=None)
        made = Rows(table)
        made.write(2 * rows // BLOCK)
        assert used(folder) <= quota * 1.01 + MIB  # its own small files
        drive.fill()
        began = time.monotonic()
        with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "di_store"):
            warnings.simplefilter("ignore")
            with pytest.raises(di_store.StoreError):
                for _ in range(200):
                    made.read()
                    made.write(rows // BLOCK // 50)
                    store.put(bytes(MIB), durability="disk", timeout=1)
            for _ in range(5):
                made.read()
                made.write(rows // BLOCK // 50)
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) <= 1 + (time.monotonic() - began) / 10
        assert made.longest < CALL_SECONDS
        assert store.check() == []
        drive.free()
        before = disk(store, "written")

        def writes() -> bool:
            made.write(4)
            return disk(store, "written") > before

        until(writes, HEAL_SECONDS)
        made.write(2 * rows // BLOCK)
        made.read()
        assert len(table) > rows * 0.9
        ids = [f"{number:040x}" for number in range(16)]
        for id in ids:
            store.put(bytes(MIB // 2), id=id, durability="disk")
        for id in ids:
            store.delete(id)
        # Files of objects that are gone go, while rows are written; one is kept open.

        def freed() -> bool:
            made.write(1)
            return sum(os.stat(path).st_blocks * 512 for path in folder.glob("objects-*")) <= 4 * MIB

        until(freed, HEAL_SECONDS)
        assert store.check() == []
