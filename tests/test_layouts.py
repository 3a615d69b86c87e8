"""Stored layouts: each table is read by its own, and by none that is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import di_store

(GOLDEN,) = (Path(__file__).resolve().parent / "golden").glob("shm_layout_*.txt")
SIZES = {name: int(value) for name, value in (line.rsplit(maxsplit=1) for line in GOLDEN.read_text().splitlines())}


@pytest.mark.parametrize("length", [100, 2**31, 2**64 - 1])
def test_names_that_end_behind_the_text(length: int) -> None:
    with di_store.open(memory="16MiB") as store:
        schema = {"x": di_store.Spec((), "f4"), "yy": di_store.Spec((), "i8")}
        table = store.create_table("t", capacity=10, schema=schema)
        table.insert({"x": np.float32(1), "yy": np.int64(2)})
        with open(f"/proc/self/fd/{store._arena.fd_number}", "r+b", buffering=0) as file:

            def number(at: int, size: int) -> int:
                return int.from_bytes(os.pread(file.fileno(), size, at), "little")

            heap, layouts = number(SIZES["ArenaHeader.heap"], 8), number(SIZES["ArenaHeader.layouts"], 8)
            segment = number(heap + SIZES["HeapHeader.segments"], 8)
            for index in range(store._arena.layout_count()):
                descriptor = number(layouts + 4 * index, 4) - 1
                block = number(segment + descriptor * SIZES["Descriptor"] + SIZES["Descriptor.offset"], 8)
                second = block + SIZES["LayoutHeader.column"] + SIZES["ColumnLayout"] + SIZES["ColumnLayout.name_bytes"]
                assert number(second, 8) == len("yy")
                os.pwrite(file.fileno(), length.to_bytes(8, "little"), second)
        with pytest.raises(di_store.CorruptData, match="layout"):
            table.sample(1)


@pytest.mark.parametrize(("first", "second"), [(("x", "xx", "y"), ("xx", "x", "y")), (("ab", "c"), ("a", "bc"))])
def test_columns_whose_names_together_are_the_same_stay_apart(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    with di_store.open(memory="16MiB") as store:
        for number, names in enumerate((first, second, first)):
            spec = di_store.Spec((), "f4")
            table = store.create_table(f"t{number}", capacity=10, schema=dict.fromkeys(names, spec))
            row = {name: np.float32(at + 10 * number) for at, name in enumerate(names)}
            table.insert(row)
            assert {name: float(value[0]) for name, value in table.sample(1).data.items()} == row
        assert store._arena.layout_count() == 2
