"""`Ragged` columns of batches: numpy, torch tensors on a device, nested tensors, and back into a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import di_store

LENGTHS = [3, 0, 1, 4]
ROWS = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 10 * n for n in LENGTHS]


@pytest.fixture
def store() -> Iterator[Any]:
    with di_store.open(memory="64MiB") as opened:
        yield opened


@pytest.fixture
def table(store: Any) -> Any:
    schema = {"tokens": di_store.Spec((None, 2), "f4", max=8), "n": di_store.Spec((), "i8")}
    made = store.create_table("t", capacity=4, schema=schema, sampler=di_store.Once(epochs=None, shuffle=False))
    made.extend({"tokens": ROWS, "n": np.arange(4)})
    return made


def padded(to: int, fill: float) -> Any:
    found = np.full((4, to, 2), fill, np.float32)
    for row, values in zip(found, ROWS, strict=True):
        row[: len(values)] = values
    return found


def test_a_loader_with_a_device_gives_torch_ragged_columns(table: Any) -> None:
    with table.loader(4, device="cpu") as loader:
        ragged = next(loader).data["tokens"]
    assert all(isinstance(each, torch.Tensor) for each in (ragged.values, ragged.offsets, ragged.lengths))
    assert ragged.offsets.dtype == ragged.lengths.dtype == torch.int64
    assert ragged.lengths.tolist() == LENGTHS
    for to in (None, 4, 7):
        found = ragged.padded(fill=-1.5, to=to)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.numpy(), padded(to or 4, -1.5))
    with pytest.raises(ValueError, match="longest row has 4"):
        ragged.padded(to=3)
    assert [row.tolist() for row in ragged] == [row.tolist() for row in ROWS]


def test_ragged_columns_of_empty_rows_work(table: Any) -> None:
    keys = table.extend({"tokens": [np.zeros((0, 2), np.float32)] * 4, "n": np.arange(4)})
    for batch in (table.peek(keys), table.peek(keys).to("cpu")):
        ragged = batch.data["tokens"]
        assert ragged.lengths.tolist() == [0] * 4
        assert tuple(ragged.padded().shape) == (4, 0, 2)
        assert ragged.padded(fill=3, to=2).tolist() == [[[3.0] * 2] * 2] * 4


def test_a_batch_goes_to_a_device_as_the_loader_would_put_it(table: Any) -> None:
    batch = table.peek(table.keys())
    there = batch.to("cpu")
    assert isinstance(batch.data["n"], np.ndarray)
    assert isinstance(batch.weights, np.ndarray)
    assert isinstance(there.data["n"], torch.Tensor)
    assert isinstance(there.weights, torch.Tensor)
    assert there.data["n"].data_ptr() == batch.data["n"].ctypes.data, "over the same memory"
    for name in ("keys", "priorities", "probabilities", "times_sampled", "versions", "episodes", "starts", "live"):
        assert getattr(there, name) is getattr(batch, name)
    assert len(there) == 4
    assert there.table_size == batch.table_size
    again = there.to(torch.device("cpu"))
    np.testing.assert_array_equal(again.data["tokens"].padded().numpy(), padded(4, 0))
    for wrong in ("nowhere", 1.5, object(), None):
        with pytest.raises(ValueError, match="device="):
            batch.to(wrong)


def test_ragged_stays_on_a_device_that_is_not_the_cpu(table: Any) -> None:
    """Torch's meta device: shapes and places without memory."""
    batch = table.peek(table.keys()).to("meta")
    ragged = batch.data["tokens"]
    assert {each.device.type for each in (ragged.values, ragged.offsets, ragged.lengths, batch.weights)} == {"meta"}
    found = ragged.padded(to=5)
    assert found.device.type == "meta"
    assert tuple(found.shape) == (4, 5, 2)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_ragged_as_a_nested_tensor_and_back_into_a_table(table: Any, device: str | None) -> None:
    batch = table.peek(table.keys())
    ragged = (batch if device is None else batch.to(device)).data["tokens"]
    nested = ragged.nested()
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert [row.tolist() for row in nested.unbind()] == [row.tolist() for row in ROWS]
    for form in (ragged, nested):
        keys = table.extend({"tokens": form, "n": np.arange(4)})
        assert [row.tolist() for row in table.peek(keys).data["tokens"]] == [row.tolist() for row in ROWS]


def test_a_ragged_column_that_torch_has_no_type_for_stays_numpy(store: Any) -> None:
    table = store.create_table("text", capacity=4, schema={"name": di_store.Spec((None,), "U3", max=4)})
    keys = table.extend({"name": [np.array(["ab", "c"]), np.array(["def"])]})
    ragged = table.peek(keys).to("cpu").data["name"]
    assert isinstance(ragged.values, np.ndarray)
    assert isinstance(ragged.offsets, np.ndarray)
    assert ragged.padded(fill="", to=2).tolist() == [["ab", "c"], ["def", ""]]
    assert ragged.lengths.tolist() == [2, 1]
