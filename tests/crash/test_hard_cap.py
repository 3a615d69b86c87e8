"""Pain 1: a hard cap. Six times the memory is written in a small cgroup: nobody is killed, every row is right."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from crash.test_cgroup import Group, enter

MIB = 1 << 20
FULL = os.environ.get("DI_STORE_TEST_SCALE", "small") == "full"
MEMORY, LIMIT, DISK, WRITTEN = (256, 512, 2048, 1536) if FULL else (32, 192, 256, 192)
"""MiB of the store, of the cgroup, of files, of rows."""

SHAPE, BLOCK = (4, 84, 84), 64
ROW = int(np.prod(SHAPE))
ROWS = WRITTEN * MIB // ROW // 2 // BLOCK * BLOCK  # of each writer


def frames(numbers: Any) -> Any:
    """uint8[n, 4, 84, 84] that repeat nothing: what each number gives."""
    words = (np.arange(ROW // 8, dtype=np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (words[None] ^ (np.asarray(numbers, np.uint64)[:, None] * np.uint64(0xBF58476D1CE4E5B9))) * words[None]
    return mixed.view(np.uint8).reshape(-1, *SHAPE)


def write(path: str | None, table: di_store.Table, first: int) -> None:
    """In a child in the group."""
    enter(path)
    with table.writer() as writer:
        for begin in range(first, first + ROWS, BLOCK):
            numbers = np.arange(begin, begin + BLOCK)
            flags = np.zeros(BLOCK, bool)
            writer.extend({"obs": frames(numbers), "number": numbers, "terminated": flags, "truncated": flags})


def look(path: str | None, table: di_store.Table, pipe: Any) -> None:
    """In a child in the group: reads every item."""
    enter(path)
    keys, wrong = table.keys(), 0
    for begin in range(0, len(keys), BLOCK):
        batch = table.peek(keys[begin : begin + BLOCK])
        wrong += int((batch.data["obs"] != frames(batch.data["number"])).any(axis=(1, 2, 3)).sum())
        wrong += int((~np.asarray(batch.live)).sum())
    pipe.send((len(keys), wrong))


def hold(path: str | None, folder: str, pipe: Any) -> None:
    """In a child in the group: makes the store, starts all others, tells what came of them."""
    enter(path)
    context = multiprocessing.get_context("spawn")
    with di_store.open(memory=MEMORY * MIB, disk=folder, disk_capacity=DISK * MIB) as store:
        schema = {"obs": di_store.Spec(SHAPE, "u1"), "number": 0, "terminated": False, "truncated": False}
        table = store.create_table("rows", capacity=2 * ROWS, schema=schema, lanes=2)
        writers = [context.Process(target=write, args=(path, table, number * ROWS)) for number in range(2)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        reader = context.Process(target=look, args=(path, table, pipe))
        reader.start()
        reader.join()
        pipe.send(([each.exitcode for each in (*writers, reader)], store.check()))


@pytest.mark.timeout(600)
def test_memory_never_exceeds_its_limit(tmp_path: Path) -> None:
    try:
        group: Group | None = Group(LIMIT * MIB)
    except OSError:  # no right to make one: the rest is checked all the same
        group = None
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    path = None if group is None else str(group.path)
    holder = context.Process(target=hold, args=(path, str(tmp_path / "disk"), there))
    holder.start()
    there.close()
    try:
        count, wrong = pipe.recv()
        codes, faults = pipe.recv()
    finally:
        holder.join()
    assert (count, wrong) == (2 * ROWS, 0)
    assert (codes, faults) == ([0, 0, 0], [])
    if group is not None:
        assert group.killed() == 0
        assert group.peak() <= LIMIT * MIB
        group.close()
