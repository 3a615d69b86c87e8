"""torch's element types that numpy has too."""

from __future__ import annotations

import numpy as np
import torch

NUMPY_TYPES = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
