"""The results of writing and reading: `Items`, `Batch`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from di_store.base.dtypes import Array, is_masked, is_tensor, tensor_array
from di_store.base.errors import AccessDenied, CorruptData, StoreError, shown
from di_store.columns.ragged import Ragged
from di_store.objects import codec
from di_store.replay.devices import moved
from di_store.replay.lease import ANY_LEASE, Lease, Leasing
from di_store.replay.shown import repr_html
from di_store.replay.splitting import balanced, count_ranks, sizes_of, taken

_BLOB_ALIGNMENT = 64


class Items:
    """The m items that a call completed, sorted by lane, then episode, then start.

    Attributes:
        keys: uint64[m], for `Table.peek`, `update_priorities` and `delete`.
        lanes: int32[m], the lane in which each item was written.
        starts: int64[m], number of each item's first row in its episode, from 0.
    """

    __slots__ = ("_episodes", "keys", "lanes", "starts")
    _episodes: Array | Callable[[Array], Array]

    def __init__(self, keys: Array, lanes: Array, starts: Array) -> None:
        self.keys = keys
        self.lanes = lanes
        self.starts = starts
        # `_episodes` is set by writers: the function that reads them, and later what it has read.

    @property
    def episodes(self) -> Array:
        """int64[m], number of each item's episode, unique in the store, as `Batch.episodes`.

        The numbers are read from the table at the first use, as `Table.peek` does. -1: the item had left the table, or
        the store was closed.
        """
        known: Array | Callable[[Array], Array] | None = getattr(self, "_episodes", None)
        if known is None:
            return np.full(len(self.keys), -1, np.int64)
        self._episodes = known(self.keys) if callable(known) else known
        return self._episodes

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {name: getattr(self, name.lstrip("_")) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"Items(keys={self.keys!r}, lanes={self.lanes!r}, starts={self.starts!r})"


def no_items() -> tuple[Array, Array, Array]:
    """Empty arrays of keys, lanes and starts."""
    return np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int64)


class Batch:
    """The n examples that `sample` returns.

    Attributes:
        data: nested dict of contiguous arrays ``[n, …]`` or ``[n, time, …]``; ragged columns are `Ragged`. For an
            `Opaque` table, the list of values.
        keys: uint64[n], for `update_priorities`.
        priorities: float64[n], priority of each item when it was drawn.
        probabilities: float64[n], probability with which the sampler drew each item.
        weights: float32[n], importance weights (Schaul et al. 2016, section 3.4); ones without beta.
        times_sampled: int32[n], draws of each item, this one included; 2**31 - 1 also stands for larger numbers.
        versions: int64[n], version of the published weights that produced the item; -1: unknown.
        episodes: int64[n], number of each item's episode, unique in the store.
        starts: int64[n], number of each item's first row in its episode, from 0.
        table_size: items in the table at the draw; for a mixture, in all tables drawn from.
        live: bool[n] in a batch of `peek`: False for items that left the table; None in other batches.
        source: int32[n] in a mixture's batch: number of the table of each example; None in other batches.
        lease: the `Lease` of its items; None: drawn without ``lease=``.
    """

    __slots__ = (
        "__weakref__",
        "_lease",
        "data",
        "episodes",
        "keys",
        "live",
        "priorities",
        "probabilities",
        "source",
        "starts",
        "table_size",
        "times_sampled",
        "versions",
        "weights",
    )
    _lease: tuple[Leasing, Any] | None  # table or mixture, and number

    def __init__(self, *parts: Any) -> None:
        self.live: Array | None = None
        self.source: Array | None = None
        if len(parts) > 10:
            parts, self.live = parts[:10], parts[10]
        (
            self.data,
            self.keys,
            self.priorities,
            self.probabilities,
            self.weights,
            self.times_sampled,
            self.versions,
            self.episodes,
            self.starts,
            self.table_size,
        ) = parts

    @property
    def lease(self) -> Lease | None:
        """See above."""
        found = getattr(self, "_lease", None)  # set only in batches with one
        return None if found is None else Lease(found[0], found[1], self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def front(self, n: int) -> Any:
        """`data` of the first n examples, as views. Ragged columns and values of an `Opaque` table are not cut."""
        return _front(self.data, n)

    def to(self, device: Any) -> Batch:
        """A batch with `data` and `weights` as torch tensors on a device, as a loader with ``device=`` returns them.

        All other attributes stay numpy arrays and are shared with this batch. On the CPU, the tensors share memory with
        this batch's arrays. Values of an `Opaque` table, and arrays of types that torch lacks, stay as they are.

        Args:
            device: anything that ``torch.device`` takes: "cpu", "cuda:1", a device.

        Raises:
            ValueError: torch has no such device.
        """
        found = Batch.__new__(Batch).become(self)
        found.data, found.weights = moved(self.data, device), moved(self.weights, device)
        return found

    def split(self, ranks: int, by: str) -> list[Batch]:
        """One batch for each rank of a data-parallel learner, so that the ranks finish together.

        The batches have equally many examples, or one more than others, and nearly equal sums of sizes. Examples keep
        their order; everything is copied. 512 examples among 8 ranks take about a millisecond, and the copy.

        Args:
            ranks: number of batches, at most the number of examples.
            by: the column that gives an example its size: the length of a ragged column (all rows of the example
                together), or the number in a column with one number for each example. ``obs/units`` names a nested one.

        Raises:
            ValueError: there is no such column; or a rank would get no example.
        """
        ranks, sizes = count_ranks(ranks, len(self)), sizes_of(self.data, by)
        found = []
        for places in balanced(sizes, ranks):
            part = Batch.__new__(Batch).become(self)
            for name in _OF_EXAMPLES:
                if (values := getattr(self, name)) is not None:
                    setattr(part, name, taken(values, places))
            found.append(part)
        return found

    def become(self, other: Batch) -> Batch:
        """Set all attributes to those of `other`, and return this batch."""
        for name in self.__slots__:
            if name != "__weakref__":
                setattr(self, name, getattr(other, name, None))
        return self

    def __repr__(self) -> str:
        names = sorted(self.data) if isinstance(self.data, dict) else "values"
        return f"Batch(n={len(self.keys)}, data={names})"

    _repr_html_ = repr_html

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Batch does not pickle, since its arrays lie in pooled memory: pickle copies of what you need"
        )


_OF_EXAMPLES = tuple(name for name in Batch.__slots__ if name not in ("__weakref__", "_lease", "table_size"))


def _front(data: Any, n: int) -> Any:
    if isinstance(data, dict):
        return {name: _front(value, n) for name, value in data.items()}
    return data[:n] if isinstance(data, np.ndarray) else data


def check_out(out: Any, n: int) -> None:
    """Check that ``out=`` is a batch of n examples.

    Raises:
        TypeError: the object is no batch. ValueError: its size is not n.
    """
    if not isinstance(out, Batch):
        raise TypeError(f"out= takes a batch that sample() returned, not {type(out).__name__}")
    if len(out) != n:
        raise ValueError(f"out= holds {len(out)} examples, and this call gives {n}: take a batch of {n}")


def empty_batch(keys: Array) -> Batch:
    """The result of `peek` for a table without columns: no item is live, and `data` is empty."""
    n = len(keys)
    zeros, unknown = np.zeros(n), np.full(n, -1, np.int64)
    weights, times = np.ones(n, np.float32), np.zeros(n, np.int32)
    parts: Any = ({}, keys, zeros, zeros.copy(), weights, times, unknown, unknown.copy(), unknown.copy(), 0)
    return Batch(*parts, np.zeros(n, np.bool_))


def wrap_ragged(data: dict[str, Any], ragged: dict[int, tuple[tuple[str, ...], int]], n: int) -> None:
    """Replace the core's pairs of values and offsets in `data` by `Ragged`.

    `ragged`: for each ragged output its path in `data`, and the rows of one example (0: no time axis).
    """
    for path, rows in ragged.values():
        node = data
        for part in path[:-1]:
            node = node.get(part, {})
        pair = node.get(path[-1])
        if type(pair) is tuple:
            values, offsets = pair
            node[path[-1]] = Ragged(values, offsets, (n, rows) if rows else (n,))


# --- Python values ----------------------------------------------------------------------------------------------------


class Blob(NamedTuple):
    """A Python value that another machine has encoded."""

    bytes: Array


def encode_blob(value: Any) -> Array:
    """A Python value as uint8[bytes]: 8 bytes of header length, the header, then at a multiple of 64 the payload.

    Bit 63 of the length is not set: see `mark_foreign`.
    """
    if type(value) is Blob:
        return value.bytes
    encoded = codec.encode(value)
    start = _aligned(8 + len(encoded.header))
    blob: Array = np.zeros(_aligned(start + encoded.payload_bytes), np.uint8)
    blob[:8] = np.frombuffer(len(encoded.header).to_bytes(8, "little"), np.uint8)
    blob[8 : 8 + len(encoded.header)] = np.frombuffer(encoded.header, np.uint8)
    for buffer, offset, size in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True):
        if size:
            blob[start + offset : start + offset + size] = np.frombuffer(buffer, np.uint8)
    return blob


def mark_foreign(blob: Array) -> None:
    """Mark a blob that another machine sent. Decoding it then runs no code that its bytes name.

    Args:
        blob: uint8[bytes], writable, as `encode_blob` made it there.

    Raises:
        CorruptData: no blob has its size, or its header does not fit in.
    """
    if len(blob) < _BLOB_ALIGNMENT or len(blob) % _BLOB_ALIGNMENT or blob_head(blob.data)[1] > len(blob):
        raise CorruptData(f"a row of {len(blob)} bytes holds no Python value")
    blob[7] |= 0x80


def blob_head(blob: memoryview) -> tuple[bytes, int, bool]:
    """Header of a blob, where its payload begins, and whether it is marked as foreign."""
    word = int.from_bytes(blob[:8], "little")
    size = word & ~_FOREIGN
    return bytes(blob[8 : 8 + size]), _aligned(8 + size), word != size


def decode_blobs(values: Array, ends: list[int], foreign: bool | None = None) -> list[Any]:
    """The values that `encode_blob` encoded; None for an empty blob (an item that left the table).

    Args:
        values: uint8, the blobs one after the other. Arrays and tensors of the result are views of it.
        ends: the offset at which each blob begins, and the end of the last one.
        foreign: as in `codec.decode`, for all blobs; None: as each blob is marked.

    Raises:
        As `codec.decode`.
    """
    found: list[Any] = []
    payloads, raw = codec.Bytes(values), values.data
    planned, marked = len(values) % _BLOB_ALIGNMENT == 0, foreign is not False
    for start, end in itertools.pairwise(ends):
        if start == end:
            found.append(None)
            continue
        size, sent = int.from_bytes(raw[start : start + 8], "little"), bool(foreign)
        if size >= _FOREIGN:
            size, sent = size - _FOREIGN, marked
        header = bytes(raw[start + 8 : start + 8 + size])
        behind = start + _aligned(8 + size)
        if end % _BLOB_ALIGNMENT:  # not ours: from here on tensors lie between the elements that plans count
            planned = False
        if planned:
            found.append(_PLANS.decode(header, payloads, behind, end, sent))
        else:
            found.append(codec.decode(header, payloads.readonly[behind:end], foreign=sent))
    return found


def load_values(
    keys: Array, values: Array, ends: Array, foreign: bool | None = None, *, what: str, source: Array | None = None
) -> list[Any]:
    """The values of a batch of items, as `decode_blobs`.

    Args:
        keys: of the items.
        values: as there.
        ends: as there.
        foreign: as there.
        what: the owner of the items, for the error text.
        source: as `Batch.source`.

    Raises:
        StoreError: some values cannot be loaded; the error's `keys` and `places` name them, for a mixture only those of
            one table.
            AccessDenied, CorruptData: instead of StoreError, if the first value fails for such a reason.
    """
    bounds = ends.tolist()
    try:
        return decode_blobs(values, bounds, foreign)
    except MemoryError:
        raise
    except Exception as error:  # of a class that is not here, of the code of one that is, of damage
        failed = {
            place: why
            for place, pair in enumerate(itertools.pairwise(bounds))
            if (why := _not_loaded(values, list(pair), foreign)) is not None
        }
        if not failed:
            raise
        if source is not None:
            number = source[min(failed)]
            what = f"table number {number} of {what}"
            failed = {place: why for place, why in failed.items() if source[place] == number}
        try:
            raise _unloadable(keys, failed, what) from error
        finally:
            failed.clear()  # errors keep this frame, and it them: the store would stay until the collector comes


def _not_loaded(values: Array, bounds: list[int], foreign: bool | None) -> Exception | None:
    try:
        decode_blobs(values, bounds, foreign)
    except Exception as error:  # of a class that is not here, of the code of one that is, of damage
        return error
    return None


def _unloadable(keys: Array, failed: dict[int, Exception], what: str) -> StoreError:
    why = failed[min(failed)]
    cls, text = (type(why), why.message) if isinstance(why, (AccessDenied, CorruptData)) else (StoreError, str(why))
    places = list(failed)
    gone: Array = np.unique(keys[places])
    remedy = f"{why.remedy}; " if isinstance(why, StoreError) and why.remedy else ""
    error = cls(
        f"{what}: the values of {len(places)} of {len(keys)} items cannot be loaded, keys {shown(gone.tolist())}: "
        f"{type(why).__name__ + ': ' if cls is StoreError else ''}{text}; the other items can still be drawn",
        remedy=remedy + "table.delete(error.keys) removes them",
    )
    error.keys, error.places = gone, places
    return error


_FOREIGN = 1 << 63
_PLANS = codec.Plans()


def _aligned(size: int) -> int:
    return -(-size // _BLOB_ALIGNMENT) * _BLOB_ALIGNMENT


# --- arguments -------------------------------------------------------------------------------------------------------


def key_array(keys: Any) -> Array:
    """Keys as uint64[n].

    Raises:
        TypeError: the values are not integers.
    """
    found = as_array("keys", keys, "the uint64 keys that batches and writers return")
    if found.size == 0:
        return np.empty(0, np.uint64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"keys are {found.dtype}: give the uint64 keys that batches and writers return")
    return np.ascontiguousarray(found.reshape(-1), np.uint64)


def leased_keys(leased: Any, mixed: bool = False) -> tuple[Array, Any]:
    """The keys that a call on leases means, and the number of their draw.

    Args:
        leased: a batch, its lease, or keys. Keys mean the lease that each item has now.
        mixed: whether the call is a mixture's.

    Raises:
        ValueError: the batch was drawn without a lease, or from a table for a mixture's call, or the reverse.
        TypeError: keys are not integers.
    """
    if isinstance(leased, Batch):
        if (found := getattr(leased, "_lease", None)) is None:
            raise ValueError("this batch was drawn without lease=, so its items are done: sample(n, lease=seconds)")
        keys, number = leased.keys, found[1]
    elif isinstance(leased, Lease):
        keys, number = leased.keys, leased.number
    else:
        return key_array(leased), ANY_LEASE
    if (type(number) is tuple) is not mixed:
        of = "table" if mixed else "mixture"
        raise ValueError(f"these leases are of a batch that a {of} has drawn: give it to that {of}")
    return keys, number


def host_array(values: Any, option: str = "priorities", wanted: str = "one number for each key") -> Array:
    """Priorities as float64[n] in host memory, from numpy arrays, torch tensors on any device, or lists.

    Raises:
        TypeError: the values are not numbers.
    """
    single = is_tensor(values) and values.is_floating_point()  # bfloat16 has no numpy form
    found = as_array(option, values.float() if single else values, wanted)
    if found.size and found.dtype.kind not in "biuf":
        raise TypeError(f"{option}= is {found.dtype}: give {wanted}")
    return np.ascontiguousarray(found.reshape(-1), np.float64)


def as_array(option: str, values: Any, wanted: str) -> Array:
    """A caller's argument as an array of at least one dimension in host memory; TypeError says what is `wanted`."""
    if is_masked(values):
        raise TypeError(f"{option}= has masked elements: give {wanted}")
    try:
        return np.atleast_1d(tensor_array(values)[0] if is_tensor(values) else np.asarray(values))
    except Exception:  # `values` may be of any type, whose conversion may raise anything
        raise TypeError(f"{option}={shown(values)} is a {type(values).__name__}: give {wanted}") from None
