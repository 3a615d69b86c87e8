"""Batches as torch tensors: on the CPU over the same buffers, on a GPU copied from page-locked buffers on a stream.

The stream is separate from the consumer's stream. torch is imported only if a device or page-locked memory is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from di_store.base.dtypes import Array, import_torch, is_tensor
from di_store.base.errors import shown
from di_store.columns.ragged import Ragged
from di_store.replay.pool import ArrayPool


class Placed(Protocol):
    """The attributes of a batch that were put on a device."""

    data: Any
    weights: Any


B = TypeVar("B", bound=Placed)


class Placer:
    """Puts `data` and `weights` of batches on the device of a loader."""

    def __init__(self, device: Any, pin_memory: bool) -> None:
        self._torch: Any = None
        self._device: Any = None
        self._cuda = False
        self._stream: Any = None
        self._pinned = False
        self._pool: ArrayPool | None = None
        self._pending: list[tuple[Any, Any]] = []
        if device is None and not pin_memory:
            return
        torch = import_torch("a loader with device= or pin_memory=")
        if device is not None:
            self._torch = torch
            self._device = _device(device)
            self._cuda = self._device.type == "cuda"
            if self._cuda and not torch.cuda.is_available():
                raise ValueError(f'device={shown(device)}: torch sees no GPU here; give "cpu" or leave device= out')
            if self._cuda and self._device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            if self._device.type not in ("cpu", "cuda"):
                raise ValueError(f'device={shown(device)}: give "cpu", "cuda" or "cuda:N"')
        self._pinned = torch.cuda.is_available() and (pin_memory or self._cuda)
        if self._pinned:
            self._pool = ArrayPool(_pinned_bytes)

    @property
    def allocate(self) -> Callable[[str, Any, Any], Any] | None:
        """A function that makes arrays in page-locked memory; None: the core's pool is used."""
        pool = self._pool
        return None if pool is None else lambda _, shape, dtype: pool.take(shape, dtype)

    def place(self, batch: Placed) -> Any:
        """Start the copies of a batch, in the thread that drew it. The result is for `hand_out`."""
        if self._torch is None:
            return None
        if not self._cuda:
            return _map(batch.data, _tensor), _tensor(batch.weights), None
        torch = self._torch
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            data = _map(batch.data, self._to_device)
            weights = self._to_device(batch.weights)
            done = torch.cuda.Event()
            done.record(self._stream)
        return data, weights, done

    def hand_out(self, batch: B, placed: Any) -> B:
        """The batch with its tensors. Work that the consumer puts on its current stream waits for the copies."""
        if placed is None:
            return batch
        data, weights, done = placed
        if done is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(done)
            for tensor in (data, weights):
                _map(tensor, lambda each: each.record_stream(current) if hasattr(each, "record_stream") else None)
        batch.data, batch.weights = data, weights
        return batch

    def close(self) -> None:
        """Wait for copies that are under way: their buffers may be freed afterwards."""
        if self._stream is not None:
            self._stream.synchronize()

    def _to_device(self, array: Array) -> Any:
        tensor = _tensor(array)
        if not hasattr(tensor, "to"):
            return tensor
        # The page-locked buffer must not be used again before the copy is done: _keep() holds a reference until then.
        moved = tensor.to(self._device, non_blocking=self._pinned)
        self._keep(tensor)
        return moved

    def _keep(self, tensor: Any) -> None:
        """Hold a reference to a source until its copy is done. Finished copies are dropped at the next call."""
        event = self._torch.cuda.Event()
        event.record(self._stream)
        self._pending.append((event, tensor))
        while self._pending and self._pending[0][0].query():
            self._pending.pop(0)


def moved(data: Any, device: Any) -> Any:
    """Nested arrays or tensors as tensors on a device; arrays of types that torch lacks stay as they are."""
    place = _device(device)
    return _map(data, lambda each: tensor.to(place) if is_tensor(tensor := _tensor(each)) else tensor)


def _device(device: Any) -> Any:
    """`torch.device(device)`; ValueError if torch has no such device."""
    torch = import_torch("device=")
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f'device={shown(device)}: give a device of torch, such as "cpu" or "cuda:0"') from None


def _tensor(array: Any) -> Any:
    """A CPU tensor over the array's memory; tensors, and arrays of a type that torch lacks, stay as they are."""
    if is_tensor(array):
        return array
    torch = import_torch("device=")
    if array.dtype.isbuiltin == 2 and (kind := getattr(torch, array.dtype.name, None)) is not None:
        return torch.from_numpy(array.view(np.uint8)).view(kind).reshape(array.shape)
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array


def _pinned_bytes(size: int) -> Array:
    torch = import_torch("pin_memory=")
    found: Array = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return found


def _map(data: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of the nesting in which `change` replaces every array. Lists of Python values stay as they are."""
    if isinstance(data, dict):
        return {name: _map(value, change) for name, value in data.items()}
    if isinstance(data, Ragged):
        values = change(data.values)
        # Offsets become a tensor only if the values did, so that both are of the same kind and on the same device.
        torch = is_tensor(values) or is_tensor(data.offsets)
        return Ragged(values, change(data.offsets) if torch else data.offsets, data.lead)
    if isinstance(data, list):
        return data
    return change(data)
