"""Stored layouts: each table is read by its own, and by none that is damaged."""

from __future__ import annotations

import numpy as np
import pytest
from stored import SIZES, Memory

import di_store


@pytest.mark.parametrize("length", [100, 2**31, 2**64 - 1])
def test_a_layout_with_names_beyond_its_text_is_refused(length: int) -> None:
    with di_store.open(memory="16MiB") as store:
        schema = {"x": di_store.Spec((), "f4"), "yy": di_store.Spec((), "i8")}
        table = store.create_table("t", capacity=10, schema=schema)
        table.insert({"x": np.float32(1), "yy": np.int64(2)})
        with Memory(f"/proc/self/fd/{store._backend.session.arena.fd_number}") as memory:
            layouts = memory.number(SIZES["ArenaHeader.layouts"], 8)
            for index in range(store._backend.session.arena.layout_count()):
                block = memory.block_of(memory.number(layouts + 4 * index, 4) - 1)
                second = block + SIZES["LayoutHeader.column"] + SIZES["ColumnLayout"] + SIZES["ColumnLayout.name_bytes"]
                assert memory.number(second, 8) == len("yy")
                memory.write(second, 8, length)
        with pytest.raises(di_store.CorruptData, match="layout"):
            table.sample(1)


@pytest.mark.parametrize(("first", "second"), [(("x", "xx", "y"), ("xx", "x", "y")), (("ab", "c"), ("a", "bc"))])
def test_layouts_with_equal_concatenated_names_stay_distinct(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    with di_store.open(memory="16MiB") as store:
        for number, names in enumerate((first, second, first)):
            spec = di_store.Spec((), "f4")
            table = store.create_table(f"t{number}", capacity=10, schema=dict.fromkeys(names, spec))
            row = {name: np.float32(at + 10 * number) for at, name in enumerate(names)}
            table.insert(row)
            assert {name: float(value[0]) for name, value in table.sample(1).data.items()} == row
        assert store._backend.session.arena.layout_count() == 2
