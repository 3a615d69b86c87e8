"""Rows that are compressed where they lie on disk: what comes back, what stays as it is, what is set aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import di_store
from di_store.base.sizes import format_size
from di_store.cli.stores import disk_text

ROWS = 6_000  # of 6 KiB, in a store of 16 MiB


@pytest.fixture
def store(tmp_path: Path) -> Iterator[di_store.Store]:
    with di_store.open(memory="16MiB", disk=tmp_path / "disk", disk_capacity="256MiB", seed=1) as opened:
        yield opened


def disk_of(store: di_store.Store) -> di_store.observe.DiskStats:
    disk = store.stats()["disk"]
    assert disk is not None
    return disk


def row(number: int) -> dict[str, Any]:
    """Columns that shrink beside one that does not; a record of 130 bytes beside them; values of variable length."""
    noise = np.random.Generator(np.random.PCG64(number)).integers(0, 256, 500, np.uint8)
    return {
        "frame": np.full((64, 64), number % 251, np.uint8),
        "other": np.arange(number, number + 256, dtype=np.float32),
        "noise": noise,
        "small": np.full(15, number, np.int64),
        "tokens": np.full(number % 300, number, np.int32),
    }


def check(batch: di_store.Batch) -> None:
    data = batch.data
    for at, number in enumerate(data["small"][:, 0]):
        wanted = row(int(number))
        for name in ("frame", "other", "noise", "small"):
            assert (data[name][at] == wanted[name]).all(), name
        tokens = data["tokens"]
        assert (tokens.values[tokens.offsets[at] : tokens.offsets[at + 1]] == wanted["tokens"]).all()


SCHEMA = {
    "frame": di_store.Spec((64, 64), "u1"),
    "other": di_store.Spec((256,), "f4"),
    "noise": di_store.Spec((500,), "u1"),
    "small": di_store.Spec((15,), "i8"),
    "tokens": di_store.Spec((None,), "i4", max=300),
}


def fill(table: di_store.Table, count: int = ROWS) -> None:
    for number in range(count):
        table.insert(row(number))


def test_all_kinds_of_columns_come_back(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1, schema=SCHEMA)
    fill(table)
    for _ in range(10):
        check(table.sample(100))
    noise = table.sample(50, columns=("noise", "small")).data
    assert all((noise["noise"][i] == row(int(noise["small"][i, 0]))["noise"]).all() for i in range(50))
    disk = disk_of(store)
    assert disk["read"] > 0
    assert disk["raw"] > 4 * disk["live"] > 0
    assert f" of them needed for {format_size(disk['raw'])} of rows; written" in disk_text(disk)
    assert disk["written"] < disk["raw"]
    assert not store.check()


def test_compress_none_never_compresses(store: di_store.Store) -> None:
    table = store.create_table("replay", capacity=ROWS, lanes=1, schema=SCHEMA, compress=None)
    fill(table)
    check(table.sample(100))
    assert 0 < disk_of(store)["raw"] <= disk_of(store)["live"]
    assert " of them needed; written" in disk_text(disk_of(store))


def test_incompressible_rows_are_stored_uncompressed(store: di_store.Store) -> None:
    random = np.random.Generator(np.random.PCG64(1))
    rows = random.integers(0, 256, (ROWS, 6_000), np.uint8)
    table = store.create_table("replay", capacity=ROWS, lanes=1)
    for number in range(ROWS):
        table.insert({"x": rows[number], "number": number})
    batch = table.sample(200)
    assert (batch.data["x"] == rows[batch.data["number"]]).all()
    assert 0 < disk_of(store)["raw"] <= disk_of(store)["live"]


def test_a_stream_is_compressed_if_one_of_its_tables_wants_it(store: di_store.Store) -> None:
    tables = [
        store.create_table(name, capacity=ROWS, lanes=1, schema=SCHEMA, compress=compress)
        for name, compress in (("plain", None), ("packed", "auto"))
    ]
    with store.writer(tables) as writer:
        for number in range(ROWS):
            writer.append(row(number))
    for table in tables:
        check(table.sample(50))
    assert disk_of(store)["raw"] > 4 * disk_of(store)["live"]
    assert not store.check()


def test_expect_admits_more_rows(store: di_store.Store) -> None:
    """Rows of 400 MB in a store of 16 and 256 MiB."""
    count = 60_000
    with pytest.raises(di_store.CapacityError, match="Compress"):
        store.create_table("replay", capacity=count, lanes=1, schema=SCHEMA)
    table = store.create_table("replay", capacity=count, lanes=1, schema=SCHEMA, compress=di_store.Compress(expect=4))
    with pytest.raises(di_store.CapacityError):  # what is left is set aside
        store.create_table("other", capacity=count, lanes=1, schema=SCHEMA, compress=di_store.Compress(expect=4))
    fill(table, 300)
    check(table.sample(20))
    table.resize(count + 1_000)
    assert not store.check()


@pytest.mark.memory_only
def test_impossible_compress_options_are_refused(store: di_store.Store, tmp_path: Path) -> None:
    with di_store.open(memory="16MiB") as plain:
        with pytest.raises(ValueError, match="disk="):
            plain.create_table("replay", capacity=10, compress=di_store.Compress(expect=2))
        plain.create_table("replay", capacity=10, lanes=1, compress=None)
    for value, error in (("zstd", ValueError), (3, TypeError), (True, TypeError)):
        with pytest.raises(error, match="compress="):
            store.create_table("replay", capacity=10, compress=value)  # type: ignore[arg-type]
    for expect, wrong in ((0.5, ValueError), (float("nan"), ValueError), ("2", TypeError)):
        with pytest.raises(wrong, match="expect="):
            di_store.Compress(expect=expect)  # type: ignore[arg-type]


def test_an_exported_table_goes_into_a_store_without_disk(store: di_store.Store, tmp_path: Path) -> None:
    table = store.create_table("replay", capacity=500, lanes=1, schema=SCHEMA, compress=di_store.Compress(expect=8))
    fill(table, 500)
    table.export(tmp_path / "table.npz")
    with di_store.open(memory="64MiB") as plain:
        check(plain.import_table(tmp_path / "table.npz").sample(50))
    other = store.import_table(tmp_path / "table.npz", "other")
    check(other.sample(50))
