"""Pain 12: a full disk is boring: typed errors or evictions, readers go on, little is said, and it heals by itself."""

from __future__ import annotations

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

MIB = 1 << 20
BYTES, BLOCK = 8_192, 64
FLAGS = np.zeros(BLOCK, bool)
CALL_SECONDS, HEAL_SECONDS = 20.0, 50.0
"""Ten times what `pains.md` asks for: the machine may be busy."""


@pytest.fixture
def drive(tmp_path: Path, count: Callable[[int, int], int]) -> Iterator[Path]:
    """A filesystem of its own, in a file."""
    image, at = tmp_path / "image", tmp_path / "drive"
    at.mkdir()
    os.truncate(os.open(image, os.O_CREAT | os.O_RDWR), count(128, 512) * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=False, capture_output=True).returncode:
        pytest.skip("only root may mount")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


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


def fill_up(path: Path) -> None:
    with open(path, "wb") as file:
        for size in (MIB, 4_096):
            try:
                while True:
                    file.write(b"\1" * size)
                    file.flush()
            except OSError:
                continue


def until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end


def test_a_full_disk_is_boring(drive: Path, caplog: pytest.LogCaptureFixture) -> None:
    quota = shutil.disk_usage(drive).total * 3 // 4 // MIB * MIB
    rows = quota // 2 // BYTES
    with di_store.open(memory="16MiB", disk=drive / "disk", disk_capacity=quota) as store:
        table = store.create_table("t", capacity=rows, lanes=1, compress=None)
        made = Rows(table)
        made.write(2 * rows // BLOCK)
        assert used(drive / "disk") <= quota * 1.01 + MIB  # its own small files
        assert len(table) == rows // BLOCK * BLOCK or len(table) == rows
        fill_up(drive / "foreign")
        for path in (drive / "disk").glob("segment-*"):  # what is there is there: the next file finds no room
            assert path.stat().st_blocks
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
        os.remove(drive / "foreign")
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
        there = used(drive / "disk")
        for id in ids:
            store.delete(id)
        # Files of objects that are gone go, while rows are written; one is kept open.

        def freed() -> bool:
            made.write(1)
            return sum(os.stat(path).st_blocks * 512 for path in (drive / "disk").glob("objects-*")) <= 4 * MIB

        until(freed, HEAL_SECONDS)
        assert there > 0
        assert store.check() == []
