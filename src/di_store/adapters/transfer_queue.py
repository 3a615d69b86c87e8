"""TransferQueue's samples in a Di-store.

After `register()`, the configuration `backend.storage_backend: DiStore` keeps the samples in one store of the machine,
which every process reads in place, in place of TransferQueue's storage actors.

A value of a sample is an object. Its id follows from TransferQueue's key, so that any process finds it without asking.
A tensor is stored as a numpy array, which the store writes and reads fastest; see `_form`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import di_store

try:
    import ray
    import torch
    import transfer_queue
    import transfer_queue.storage as tq_storage
    from omegaconf import OmegaConf
    from tensordict import NonTensorStack, TensorDict
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
    from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient
    from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory
except ImportError as error:
    if error.name is not None and error.name.startswith("transfer_queue."):
        raise ImportError(
            "di_store.adapters.transfer_queue works with TransferQueue 0.1.10 and later 0.1 versions: "
            "pip install di-store[transfer_queue]"
        ) from error
    raise ImportError(
        "di_store.adapters.transfer_queue needs TransferQueue: pip install di-store[transfer_queue]"
    ) from error

_OLDEST = (0, 1, 10)


def _check_version(version: str) -> None:
    """Refuse a TransferQueue whose interface of storage backends is not the one that is implemented here."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if not (numbers >= _OLDEST and numbers[:2] == _OLDEST[:2]):
        raise ImportError(
            "di_store.adapters.transfer_queue works with TransferQueue 0.1.10 and later 0.1 versions, and "
            f"{version} is installed: pip install 'TransferQueue>=0.1.10,<0.2'"
        )


_check_version(transfer_queue.__version__)

Array: TypeAlias = NDArray[Any]

BACKEND = "DiStore"
"""The name in `backend.storage_backend`, and of the section of the configuration with this backend's settings."""
_CLIENT = "DiStoreClient"
_SETTINGS = frozenset({"memory", "disk", "disk_capacity", "timeout", "name", "registration", "client_name"})
_ATTACH_SECONDS = 10.0
_REWRITE_SECONDS = 1.0
"""How long a read waits for an object that is not there: a writer that replaces one deletes the old one first."""
_REWRITES = 100
"""Times that a put deletes what another process put at the same key in the meantime."""
_CHECKPOINT = "di_store"
"""Folder of a checkpoint's parts, each of which `di_store.save` writes."""
_AT_ONCE = 1_000
"""Objects that are read in one step while a checkpoint is written."""
_NOT_FOUND: type[KeyError] = getattr(tq_storage, "StorageKeyNotFoundError", KeyError)

_NUMPY_TYPES = frozenset(
    getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
)
_LEAVES = frozenset({str, bytes, int, float, bool, complex, type(None), torch.Tensor})
"""Types of values that `Store.get_many` returns as the reader's own, without arrays that lie in the store."""


def register() -> None:
    """Make the backend `DiStore` known to TransferQueue in this process.

    Call it before `transfer_queue.init()`. The processes of Ray that get the configuration from there need no call.
    """
    StorageBootstrapProvider.register_provider(BACKEND)(_start)
    StorageManagerFactory.register(BACKEND)(StorageManager)
    StorageClientFactory.register(_CLIENT)(StorageClient)


class _Registration:
    """Registers the backend in each process that unpickles the configuration, in which it lies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, ()

    def __repr__(self) -> str:
        return "registers DiStore"


def _registered() -> _Registration:
    register()
    return _Registration()


# --- the store of a machine -------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class _Keeper:
    """Holds the store, so that it lives as long as TransferQueue does."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._store = di_store.open(name, mode="x", **options)

    def ready(self) -> str:
        """The name of the store, which now exists."""
        return self._store.name


def _start(conf: Any) -> dict[str, Any]:
    """Create the store, and write its name into the configuration.

    `transfer_queue.init()` calls this in the one process that starts TransferQueue.
    """
    given = _settings(conf.backend.get(BACKEND))
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) > 1:
        raise ValueError(
            f"backend.storage_backend: DiStore keeps samples in the memory of one machine, and this Ray cluster has "
            f"{len(nodes)} nodes: use another backend"
        )
    name = given.get("name") or f"transfer-queue-{secrets.token_hex(4)}"
    if any(each.name == name for each in di_store.list_stores()):
        raise ValueError(
            f"backend.DiStore.name: a store named {name!r} exists already; leave out the name for a new one"
        )
    actor: Any = _Keeper
    options = {option: given[option] for option in ("disk", "disk_capacity") if given.get(option) is not None}
    keeper = actor.remote(name, {"memory": given.get("memory", "25%"), **options})
    try:
        ray.get(keeper.ready.remote())
    except ray.exceptions.RayActorError as error:
        raise RuntimeError(f"backend.DiStore: the store could not be created: {_reason(error)}") from error
    made = {**given, "name": name, "client_name": _CLIENT, "registration": _Registration()}
    conf.backend[BACKEND] = OmegaConf.create(made, flags={"allow_objects": True})
    return {"keeper": keeper}


def _reason(error: BaseException) -> str:
    """The last line of what went wrong in an actor's constructor."""
    lines = str(error.__cause__ or error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _settings(section: Any) -> dict[str, Any]:
    """The section `backend.DiStore` of a configuration as a dict."""
    given: dict[str, Any] = dict(section or {})
    if unknown := sorted(map(str, given.keys() - _SETTINGS)):
        raise ValueError(
            f"backend.DiStore: there is no setting {unknown[0]!r}; there are memory, disk, disk_capacity, name and "
            "timeout"
        )
    return given


# --- values and objects -----------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """An array of numpy that was put as one: a bare array in the store is a tensor."""

    value: Any


class _Forms(list[Any]):
    """Values as they are put into the store."""


class _Ids(list[str]):
    """Ids of objects. `indexes` and `fields` are those of the samples, whose ids follow each other field by field."""

    def __init__(self, fields: list[str], indexes: list[int]) -> None:
        numbers = [f"{index:016x}" for index in indexes]
        super().__init__(prefix + number for prefix in map(_prefix, fields) for number in numbers)
        self.fields, self.indexes = fields, indexes


@functools.lru_cache(maxsize=4_096)
def _prefix(field: str) -> str:
    """What the ids of a field's values start with: 24 hex characters. The other 16 are the sample's index."""
    return hashlib.blake2b(field.encode(), digest_size=12).hexdigest()


def _id(key: str) -> str:
    """The id of the object of a key, `index@field` as TransferQueue makes them. Other keys are allowed."""
    index, at, field = key.partition("@")
    if at and index.isdecimal() and str(int(index)) == index and len(index) < 19:
        return f"{_prefix(field)}{int(index):016x}"
    return hashlib.blake2b(key.encode(), digest_size=20).hexdigest()


def _ids(keys: list[str]) -> list[str]:
    return keys if type(keys) is _Ids else [_id(key) for key in keys]


def _name(keys: list[str], at: int) -> str:
    """The key at a place, for a message."""
    return (
        f"{keys.indexes[at % len(keys.indexes)]}@{keys.fields[at // len(keys.indexes)]}"
        if type(keys) is _Ids
        else keys[at]
    )


def _plain(tensor: Any) -> Array | None:
    """A tensor on the CPU as an array over the same memory, others as a copy; None: numpy has no such type."""
    if tensor.dtype not in _NUMPY_TYPES or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    found: Array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    return found


def _form(value: Any) -> Any:
    """What is stored for a value: an array for a tensor, `Kept` for an array, other values as they are."""
    if isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            array = _plain(value)
            return value if array is None else array
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return Kept(value)
    return value


def _rows(field: Any) -> Iterable[Any]:
    """The stored forms of the samples of a field of a TensorDict."""
    if not isinstance(field, torch.Tensor):
        return map(_form, field)
    if field.is_nested:
        return _nested_rows(field)
    array = _plain(field)
    if array is None:
        return list(field)
    if array.ndim == 1:
        return [array[at, ...] for at in range(len(array))]  # arrays without dimensions; iteration would give scalars
    return list(array if array.flags.c_contiguous else np.ascontiguousarray(array))


def _nested_rows(field: Any) -> Iterable[Any]:
    """As `_rows`, of a nested tensor."""
    if field.layout is torch.jagged and field.lengths() is None:
        values, offsets = field.values(), field.offsets().tolist()
        array = _plain(values)
        # Only where the ragged dimension comes first do the samples lie one after the other in the values.
        if array is not None and offsets[-1] == len(array) and field.dim() == values.dim() + 1 and _ragged_first(field):
            array = np.ascontiguousarray(array)
            return [array[begin:end] for begin, end in itertools.pairwise(offsets)]
    return map(_form, field.unbind())


def _ragged_first(field: Any) -> bool:
    """Whether the dimension in which the samples of a jagged tensor differ is their first."""
    return isinstance(field.shape[1], torch.SymInt)


def _value(form: Any) -> Any:
    """The value of a stored form. Tensors are copied out of the store."""
    if type(form) is np.ndarray:
        return torch.from_numpy(form.copy())
    return form.value if type(form) is Kept else form


def _column(forms: list[Any]) -> Any:
    """A field of a TensorDict from the stored forms of its samples, as TransferQueue's own storage returns it.

    Tensors become a nested tensor, jagged where their shapes allow it; those without dimensions become one tensor.
    """
    if all(type(each) is np.ndarray for each in forms):
        first = forms[0]
        if len({(each.dtype, each.shape[1:], each.ndim) for each in forms}) == 1:
            return _jagged(forms) if first.ndim else torch.from_numpy(np.array(forms))
    forms = [_value(each) for each in forms]
    if not (isinstance(forms[0], torch.Tensor) and isinstance(forms[-1], torch.Tensor)):
        return NonTensorStack(*forms)
    if all(isinstance(each, torch.Tensor) and each.dim() == 0 for each in forms):
        return torch.stack(forms)
    for layout in (torch.jagged, torch.strided):
        try:
            return torch.nested.as_nested_tensor(forms, layout=layout)
        except (RuntimeError, TypeError):
            continue
    return NonTensorStack(*forms)


def _jagged(arrays: list[Array]) -> Any:
    """A nested tensor of arrays that differ in their first dimension only. The one copy out of the store."""
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    first = arrays[0]
    dtype = torch.from_numpy(np.empty(0, first.dtype)).dtype
    values = torch.empty((int(offsets[-1]), *first.shape[1:]), dtype=dtype)
    np.concatenate(arrays, out=values.numpy())
    return torch.nested.nested_tensor_from_jagged(
        values, torch.from_numpy(offsets), min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max())
    )


# --- what TransferQueue calls -----------------------------------------------------------------------------------------


class StorageClient(StorageKVClient):  # type: ignore[misc]
    """Values by key, each an object of the store.

    Args:
        config: the section `backend.DiStore` as `transfer_queue.init()` completes it: `name` of the store, `timeout`
            in seconds for a put that waits for room (60).

    Raises:
        di_store.StoreNotFound: the store is gone.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        given = _settings(config)
        name = given.get("name")
        if not name:
            raise ValueError("backend.DiStore has no name: transfer_queue.init() creates the store and writes its name")
        self._timeout = given.get("timeout", 60)
        try:
            self._store = di_store.attach(name, timeout=_ATTACH_SECONDS)
        except di_store.StoreNotFound:
            raise di_store.StoreNotFound(
                f"TransferQueue's store {name!r} is gone, with its samples: no process holds it any more",
                remedy="transfer_queue.close() and init() start anew",
            ) from None

    def put(self, keys: list[str], values: list[Any]) -> None:
        """Store values; what was stored under the same keys is replaced.

        Raises:
            di_store.StoreFull: no room within the timeout.
        """
        forms = values if type(values) is _Forms else [_form(value) for value in values]
        if len(keys) != len(forms):
            raise ValueError(f"{len(keys)} keys for {len(forms)} values")
        ids = _ids(keys)
        if len(set(ids)) != len(ids):
            last = dict(zip(ids, forms, strict=True))
            ids, forms = list(last), list(last.values())
        for _ in range(_REWRITES):
            try:
                self._store.put_many(forms, ids=ids, timeout=self._timeout)
                return
            except di_store.ObjectExists:
                self._store.delete(ids)
            except di_store.StoreFull as error:
                raise di_store.StoreFull(
                    error.message,
                    remedy="clear samples, or raise backend.DiStore.memory in TransferQueue's configuration",
                ) from None
        raise RuntimeError(f"put: another process keeps writing to the same keys, such as {_name(keys, 0)!r}")

    def get(
        self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None
    ) -> list[Any]:
        """The values of these keys: tensors and others, all of them the caller's own copies.

        Raises:
            StorageKeyNotFoundError (0.1.10: KeyError): a key that nothing is stored under.
        """
        return [_value(form) for form in self.forms(keys)]

    def forms(self, keys: list[str]) -> list[Any]:
        """The stored forms of these keys. Bare arrays lie in the store: read them, and drop them soon."""
        ids = _ids(keys)
        try:
            found = self._store.get_many(ids, timeout=_REWRITE_SECONDS)
            shared = [at for at, form in enumerate(found) if type(form) is not np.ndarray and type(form) not in _LEAVES]
            if shared:  # containers may hold arrays that lie in the store
                own = self._store.get_many([ids[at] for at in shared], timeout=_REWRITE_SECONDS, copy=True)
                for at, form in zip(shared, own, strict=True):
                    found[at] = form
            return found
        except di_store.ObjectNotFound:
            missing = [at for at, each in enumerate(ids) if not self._store.contains(each)]
            raise _NOT_FOUND(
                f"{len(missing) or 'some'} of {len(keys)} values are not in the store {self._store.name!r}, such as "
                f"{_name(keys, missing[0] if missing else 0)!r} (index@field): never put, or cleared"
            ) from None

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Delete what is stored under these keys; missing ones are no error."""
        self._store.delete(_ids(keys))

    def save(self, path: Path) -> None:
        """Write everything in the store to a folder. What is cleared meanwhile may be left out."""
        last: di_store.Ref | None = None
        for number in itertools.count():
            refs, found = self._store.keys(last, _AT_ONCE), {}
            for ref in refs:
                with contextlib.suppress(di_store.ObjectNotFound):
                    found[ref.id] = self._store.get(ref)
            di_store.save(path / f"{number:06}", (bool(refs), found))
            if not refs:
                return
            last = refs[-1]

    def load(self, path: Path) -> None:
        """Replace what is in the store by what `save` wrote."""
        while refs := self._store.keys(n=_AT_ONCE):
            self._store.delete(refs)
        for number in itertools.count():
            more, found = di_store.load(path / f"{number:06}")
            if not more:
                return
            for id, value in found.items():  # one by one: together they may be more than memory holds
                self._store.put(value, id=id, timeout=self._timeout)

    def close(self) -> None:
        """Close this process's handle of the store."""
        self._store.close()

    @property
    def store(self) -> di_store.Store:
        """The store of the samples, which are its objects: there is no table."""
        return self._store


class StorageManager(KVStorageManager):  # type: ignore[misc]
    """Moves batches between TransferQueue's TensorDicts and the store."""

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        super().__init__(controller_info, {**_settings(config), "client_name": _CLIENT}, zmq_context=zmq_context)

    @staticmethod
    def _generate_keys(field_names: list[str], global_indexes: list[int]) -> list[str]:
        """The ids of the objects, in place of keys in the same order, for `StorageClient`."""
        return _Ids(sorted(field_names), global_indexes)

    @staticmethod
    def _generate_values(data: Any) -> list[Any]:
        """Values in the order of the keys: by field, then by sample."""
        forms = _Forms()
        for field in sorted(data.keys()):
            forms.extend(_rows(data[field]))
        return forms

    async def get_data(self, metadata: Any) -> Any:
        """The fields of a batch as a TensorDict."""
        size = len(metadata.global_indexes)
        if not metadata.field_names or not size:
            return TensorDict({}, batch_size=size)
        fields = sorted(metadata.field_names)
        forms = self.storage_client.forms(self._generate_keys(fields, metadata.global_indexes))
        columns = {field: _column(forms[at * size : (at + 1) * size]) for at, field in enumerate(fields)}
        return TensorDict(columns, batch_size=size)

    async def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write all samples to a folder in that one, for `transfer_queue.save_checkpoint`."""
        self.storage_client.save(Path(checkpoint_dir) / _CHECKPOINT)

    async def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Replace all samples by those that `save_checkpoint` wrote."""
        path = Path(checkpoint_dir) / _CHECKPOINT
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: this checkpoint was not saved with backend DiStore")
        self.storage_client.load(path)

    def close(self) -> None:
        """End the connection to the controller, and this process's hold of the store."""
        super().close()
        if (client := getattr(self, "storage_client", None)) is not None:
            client.close()
