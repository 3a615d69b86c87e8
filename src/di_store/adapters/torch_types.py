"""torch's element types that numpy has too, and tensors as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from di_store.adapters.stored_array import Array

NUMPY_TYPES = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
    if hasattr(torch, name)  # older versions lack some
}


def array_of(tensor: Any) -> Array:
    """A tensor's values as an array, over the same memory if it is on the CPU.

    Raises:
        TypeError: numpy lacks its type.
    """
    try:
        found: Array = tensor.numpy()
    except (RuntimeError, TypeError):  # of another device, or one that gradients flow to
        found = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    return found
