"""TorchRL's buffers: a number that a stored type cannot hold is refused, as TorchRL refuses another type."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torchrl", reason="runs with make adapters ADAPTER=torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

import di_store
from di_store.adapters.torchrl import Storage

NAN = float("nan")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, torch.tensor(300)),
        (torch.uint8, torch.tensor(-1)),
        (torch.int32, torch.tensor(NAN)),
        (torch.int64, torch.tensor(1e300, dtype=torch.float64)),
        (torch.float32, torch.tensor(1e300, dtype=torch.float64)),
        (torch.bfloat16, torch.tensor(1e300, dtype=torch.float64)),
        (torch.float16, torch.tensor(70_000)),
        (torch.bool, torch.tensor(2)),
        (torch.float32, torch.tensor(1 + 2j)),
    ],
)
def test_values_out_of_range_are_refused(dtype: torch.dtype, value: Any) -> None:
    buffer = TensorDictReplayBuffer(storage=Storage(10))
    first = TensorDict({"x": torch.ones(3, dtype=dtype)}, [3])
    buffer.extend(first)
    for write in (
        lambda: buffer.extend(TensorDict({"x": value.expand(2)}, [2])),
        lambda: buffer.add(TensorDict({"x": value}, [])),
        lambda: buffer.storage.set(1, TensorDict({"x": value}, [])),
        lambda: buffer[:].set_at_("x", value, 0),
        lambda: buffer[:].set_("x", value.expand(3)),
    ):
        with pytest.raises(di_store.SchemaMismatch, match="x is"):
            write()
    assert torch.equal(buffer.storage[:]["x"], first["x"])


def test_values_in_range_are_cast() -> None:
    storage = Storage(10)
    storage.set(range(3), TensorDict({"x": torch.ones(3, dtype=torch.uint8), "y": torch.ones(3).bfloat16()}, [3]))
    storage.set(range(2), TensorDict({"x": torch.tensor([255, 0]), "y": torch.tensor([2.0, NAN])}, [2]))
    assert storage[:]["x"].tolist() == [255, 0, 1]
    assert storage[:]["y"].isnan().tolist() == [False, True, False]
