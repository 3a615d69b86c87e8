"""Element types: numpy's, and those that only ml_dtypes or torch know (bfloat16, float8, …).

Such an *extension* type is stored as a numpy void type of its size, together with its name. Readers get the ml_dtypes
type if ml_dtypes is installed, and torch's type if they ask for tensors. Both packages are imported only when needed.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from di_store.base.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

DType: TypeAlias = "np.dtype[Any]"
Array: TypeAlias = "NDArray[Any]"

EXTENSIONS: dict[str, int] = {
    "bfloat16": 2,
    "complex32": 4,
    "bcomplex32": 4,
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"), 1),
    **dict.fromkeys(("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int1", "uint1", "int2", "uint2", "int4", "uint4"), 1),
}
"""Bytes per element of every extension type, by name."""

_PLAIN = re.compile(r"[<>|=][?biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)(/[0-9]{1,9})?\])?")
_MAX_NESTING = 16


def resolve(dtype: Any) -> tuple[DType, str]:
    """The stored numpy dtype (native byte order) and the extension's name, or "", of any dtype-like.

    Args:
        dtype: what ``np.dtype`` takes, a torch or ml_dtypes dtype, or an extension's name.

    Raises:
        ValueError: not a dtype, a dtype of Python objects, one without a fixed size, or one with titles.
    """
    name = _extension_name(dtype)
    if name:
        return np.dtype((np.void, EXTENSIONS[name])), name
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
    try:
        found: DType = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError, RecursionError) as error:
        raise ValueError(f"dtype {shown(dtype)} is not known to numpy ({error})") from None
    if dtype is None or found.hasobject or found.kind == "T":
        raise ValueError(f"dtype {shown(dtype)} has no fixed size: columns hold numbers, fixed-width text or bytes")
    if found.isbuiltin == 2:
        raise ValueError(f"dtype {shown(dtype)} is not one of the known extensions: {', '.join(EXTENSIONS)}")
    describe(found)
    return found.newbyteorder("="), ""


def _extension_name(dtype: Any) -> str:
    if isinstance(dtype, np.dtype):
        name = dtype.name if dtype.isbuiltin == 2 else ""
    elif isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
    elif isinstance(dtype, type) and dtype.__module__ == "ml_dtypes":
        name = dtype.__name__
    else:
        name = ""
    return name if name in EXTENSIONS else ""


@functools.lru_cache(maxsize=64)
def extension_dtype(name: str) -> DType | None:
    """The ml_dtypes dtype of that name; None where ml_dtypes is not installed or does not know it."""
    try:
        module = sys.modules.get("ml_dtypes") or importlib.import_module("ml_dtypes")
        found: DType = np.dtype(getattr(module, name))
        return found
    except (ImportError, AttributeError):
        return None


# --- plain form -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def describe(dtype: DType) -> Any:
    """`dtype` as plain data (text, lists, dicts), exact up to metadata and alignment flags; see `parse`.

    Raises:
        ValueError: Python objects, variable width, titles or unknown extensions inside.
    """
    if dtype.hasobject or dtype.kind == "T":
        raise ValueError(f"dtype {dtype} has no fixed size")
    if dtype.isbuiltin == 2:
        if dtype.name not in EXTENSIONS:
            raise ValueError(f"dtype {dtype} is not one of the known extensions")
        return dtype.name
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base), list(shape)]
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields else []
    if any(len(field) != 2 for field in fields):
        raise ValueError(f"dtype {dtype} has field titles, which are not stored: leave them out")
    return {
        "names": list(dtype.names),
        "formats": [describe(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }


@functools.lru_cache(maxsize=1024)
def _parse_text(text: str) -> DType:
    if text in EXTENSIONS:
        found = extension_dtype(text)
        return np.dtype((np.void, EXTENSIONS[text])) if found is None else found
    if _PLAIN.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is not a dtype")
    return np.dtype(text)


def parse(plain: Any, *, depth: int = 0) -> DType:
    """The dtype that `describe` described. If ml_dtypes is missing, extensions become void types of their size.

    Raises:
        ValueError: `plain` is not in the form that `describe` returns.
    """
    try:
        if isinstance(plain, str):
            return _parse_text(plain)
        if depth > _MAX_NESTING:
            raise ValueError("a dtype is nested too deep")
        if isinstance(plain, Mapping):
            formats = [parse(entry, depth=depth + 1) for entry in plain["formats"]]
            return np.dtype(
                {
                    "names": list(plain["names"]),
                    "formats": formats,
                    "offsets": list(plain["offsets"]),
                    "itemsize": plain["itemsize"],
                }
            )
        base, shape = plain
        return np.dtype((parse(base, depth=depth + 1), tuple(shape)))
    except (TypeError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        raise ValueError(f"not a dtype: {error}") from None


# --- torch ------------------------------------------------------------------------------------------------------------


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_masked(value: Any) -> bool:
    """Whether `value` is an array with masked elements, which have no valid values. Never imports numpy.ma."""
    ma: Any = sys.modules.get("numpy.ma")
    if not isinstance(value, getattr(ma, "MaskedArray", ())):  # another thread may be importing it
        return False
    mask = np.ascontiguousarray(ma.getmaskarray(value)).reshape(-1)
    return bool(mask.view(np.bool_).any())  # of a structured one: of each field


def import_torch(wanted: str) -> Any:
    """The torch module. If torch is not installed, ModuleNotFoundError says that `wanted` needs it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ModuleNotFoundError(f"{wanted} needs torch: pip install torch") from None


def tensor_array(tensor: Any) -> tuple[Array, str]:
    """A dense torch tensor as a C-order numpy array, and its extension's name or "".

    A contiguous tensor on the CPU is not copied. Other tensors are: CUDA tensors to the CPU, conjugate views resolved.
    An extension type becomes a void type of its size.

    Raises:
        ValueError: a sparse, quantized or meta tensor, or another one without plain elements.
    """
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(
            f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} is not a dense array that can be stored"
        )
    try:
        dense = tensor.detach()
        if not dense.is_cpu:
            dense = dense.cpu()
        dense = dense.resolve_conj().resolve_neg().contiguous()
    except RuntimeError as error:  # a nested tensor, or torch has no memory for the copy
        raise ValueError(f"a tensor of {tensor.dtype} cannot be copied ({str(error).partition(chr(10))[0]})") from None
    name = torch_name(dense.dtype)
    if name not in EXTENSIONS:
        try:
            return dense.numpy(), ""
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"torch dtype {dense.dtype} has no equivalent in numpy ({error})") from None
    raw: Array = dense.reshape(-1).view(torch.uint8).numpy()
    return raw.view(np.dtype((np.void, EXTENSIONS[name]))).reshape(tuple(dense.shape)), name


@functools.lru_cache(maxsize=64)
def torch_name(dtype: Any) -> str:
    """Name of a torch dtype without its module: "float32"."""
    return str(dtype).removeprefix("torch.")


def round_to_bfloat16(values: Array) -> Array:
    """Real numbers as bfloat16 in 2-byte voids, rounded to nearest even (IEEE 754); NaN stays NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    bits = single.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded = np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
    return np.ascontiguousarray(rounded).view(np.dtype((np.void, 2))).reshape(np.shape(values))
