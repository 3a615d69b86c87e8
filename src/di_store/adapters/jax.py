"""Batches as JAX arrays, without a copy where JAX allows it.

The arrays of a batch lie in buffers that are reused once no reference to them is left. A JAX array over such a buffer
holds a reference to it, also while a computation still reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import di_store
from di_store.adapters.framework import require

require("jax", "jax", ">=0.4,<1", package="jax")

import jax
import jax.numpy as jnp

__all__ = ["as_jax"]

jax.tree_util.register_pytree_node(
    di_store.Batch, lambda batch: ((batch.data, batch.weights), None), lambda _, parts: _batch_of(*parts)
)
jax.tree_util.register_pytree_node(
    di_store.Ragged,
    lambda ragged: ((ragged.values, ragged.offsets), tuple(ragged.lead)),
    lambda lead, parts: di_store.Ragged(parts[0], parts[1], lead),
)


def _batch_of(data: Any, weights: Any) -> di_store.Batch:
    """The parts of a batch that JAX's transformed functions get: only arrays to compute with."""
    found = di_store.Batch.__new__(di_store.Batch)
    for name in ("keys", "priorities", "probabilities", "times_sampled", "versions", "episodes", "starts"):
        setattr(found, name, None)
    found.table_size, found.live, found.source = 0, None, None
    found.data, found.weights = data, weights
    return found


def as_jax(batch: di_store.Batch, device: Any = None) -> di_store.Batch:
    """A batch with `data` and `weights` as JAX arrays. All other attributes stay numpy arrays, shared with `batch`.

    On the CPU the JAX arrays share memory with the arrays of `batch`, which become read-only; so ``sample(out=batch)``
    is refused from now on. Some arrays are copied: views of other arrays, read-only arrays, and arrays whose address or
    type JAX does not take as it is. (JAX turns 64-bit types into 32-bit ones unless ``jax_enable_x64`` is set. `keys`
    would lose bits, so they stay numpy arrays; 64-bit columns in `data` do lose bits.)

    The values of ragged columns become a JAX array. Values of an `Opaque` table, and arrays of types that JAX lacks,
    stay as they are.

    Args:
        batch: a batch of `sample`, `peek` or a loader without ``device=``.
        device: a device or sharding of JAX, to which the arrays are copied; None: JAX's default.

    Raises:
        TypeError: `batch` is no batch, or holds torch tensors.
    """
    if not isinstance(batch, di_store.Batch):
        raise TypeError(f"as_jax() takes a batch that sample() returned, not {type(batch).__name__}")
    if device is None and jax.default_backend() != "cpu":
        device = jax.devices()[0]
    found = di_store.Batch.__new__(di_store.Batch).become(batch)
    found.data, found.weights = _converted(batch.data, device), _converted(batch.weights, device)
    return found


def _converted(data: Any, device: Any) -> Any:
    """A copy of the nesting with JAX arrays."""
    if isinstance(data, dict):
        return {name: _converted(value, device) for name, value in data.items()}
    if isinstance(data, di_store.Ragged):
        return di_store.Ragged(_converted(data.values, device), data.offsets, data.lead)
    if isinstance(data, np.ndarray):
        return _array(data, device)
    if hasattr(data, "data_ptr"):
        raise TypeError("as_jax() takes numpy arrays, and this batch holds torch tensors: leave device= out")
    return data


def _array(value: Any, device: Any) -> Any:
    """A JAX array of the same values. Writes to `value`, or to a batch that shares its buffer, never change it."""
    whole = value.flags.writeable and not isinstance(value.base, np.ndarray)
    held = value if whole else np.array(value)
    try:
        found = jax.dlpack.from_dlpack(held) if device is None else jax.device_put(held, device)
    except (BufferError, RuntimeError, TypeError, ValueError):  # a type that this way lacks
        try:
            found = jnp.asarray(np.array(held), device=device)
        except TypeError:
            return value
    held.setflags(write=False)
    return found
