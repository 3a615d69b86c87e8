"""TorchRL's TensorDict buffer over a Di-store table. Either TorchRL or the table draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn.utils import _set_dispatch_td_nn_modules
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.utils import pin_memory_output

import di_store
from di_store.adapters.torchrl.storage import Storage

_EPSILON = 1e-8
"""Added to priorities, as TorchRL does: what has priority 0 is never drawn."""


class TableSampler(Sampler):  # type: ignore[misc]
    """The sampler of a storage's table. Priorities lie in the store, so all processes draw by the same priorities."""

    reduction = "max"

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def prioritized(self) -> bool:
        """Whether the sampler draws by priorities."""
        return isinstance(self._storage.named.sampler, di_store.Prioritized)

    def draw(self, count: int) -> tuple[Any, dict[str, Any]]:
        """Rows, and what TorchRL's samplers also return: ``index`` and, by priorities, ``priority_weight``."""
        storage = self._storage
        if not len(storage):
            raise RuntimeError("Cannot sample from an empty storage.")
        named = storage.named
        slots, batch = named.rows.draw(count, named.columns)
        rows = named.build(batch.data["row"], (count,))
        info: dict[str, Any] = {"index": _index_of(storage, torch.from_numpy(slots).to(torch.int64))}
        if self.prioritized:
            info["priority_weight"] = torch.from_numpy(batch.weights)
        return rows, info

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """The indexes of drawn rows, for a buffer of TorchRL's, which reads the rows afterwards."""
        _, info = self.draw(batch_size)
        return info.pop("index"), info

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Set priorities of rows by their index, which `draw` returned.

        Rows that were overwritten after this process drew them are left out.
        """
        if not self.prioritized:
            return
        slots = _slots_of(self._storage, index).numpy()
        values = torch.as_tensor(priority).detach().reshape(-1).to("cpu", torch.float64).expand(len(slots)).numpy()
        rows = self._storage.named.rows
        rows.table.update_priorities(rows.known_keys(slots), values + _EPSILON)

    def state_dict(self) -> dict[str, Any]:
        """The priorities of all rows."""
        if not self.prioritized or not len(self._storage):
            return {}
        rows = self._storage.named.rows
        batch = rows.table.peek(rows.known_keys(slice(len(rows))), columns=("row/slot",))
        return {"priorities": torch.from_numpy(batch.priorities)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the priorities of all rows."""
        if (found := state_dict.get("priorities")) is not None and len(found) == len(self._storage):
            rows = self._storage.named.rows
            rows.table.update_priorities(rows.known_keys(slice(len(found))), found)

    def dumps(self, path: Any) -> None:
        """Write the priorities to a folder."""
        Path(path).mkdir(exist_ok=True)
        state = {name: value.tolist() for name, value in self.state_dict().items()}
        (Path(path) / "priorities.json").write_text(json.dumps(state))

    def loads(self, path: Any) -> None:
        """Set the priorities that `dumps` wrote."""
        state = json.loads((Path(path) / "priorities.json").read_text())
        self.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()})

    def _empty(self) -> None:
        """The priorities go with the rows."""


def _index_of(storage: Storage, slots: Any) -> Any:
    """The index of rows as TorchRL's samplers return it, from slots int64[n]; with several axes, a tuple by axis."""
    return slots if storage.ndim == 1 else torch.unravel_index(slots, storage._total_shape)


def _slots_of(storage: Storage, index: Any) -> Any:
    """Slots int64[n] of an index; with several axes it is a tuple by axis, coordinates ``[…, axes]``, or slots."""
    if isinstance(index, tuple):
        index = torch.stack([torch.as_tensor(each) for each in index], -1)
    index = torch.as_tensor(index).cpu()
    if storage.ndim > 1 and index.ndim > 1:
        index = storage._numbers()[tuple(index.reshape(-1, storage.ndim).unbind(-1))]
    return index.reshape(-1)


class ReplayBuffer(TensorDictReplayBuffer):  # type: ignore[misc]
    """TorchRL's `TensorDictReplayBuffer`, with its arguments, methods and results, over a `Storage`.

    With a sampler of TorchRL's, the same seed gives the same batches as TorchRL's own buffer. With a sampler of
    Di-store's, the table draws. Priorities then lie in the store, and every process that has the buffer sees them.

    Args:
        storage: a `Storage`, or its `max_size`.
        sampler: a sampler of TorchRL's; or `di_store.Uniform()`, `di_store.Prioritized(alpha, beta)`; None: the
            storage's `sampler`, else TorchRL's `RandomSampler`.
        options: all other arguments of `TensorDictReplayBuffer`: `batch_size`, `prefetch`, `transform`, `priority_key`,
            `writer`, `generator`, `shared`, …

    Raises:
        TypeError: a storage of another kind. ValueError: a sampler of Di-store's that differs from the storage's.
    """

    def __init__(
        self,
        *,
        storage: Storage | int | Callable[[], Storage],
        sampler: Sampler | di_store.Uniform | di_store.Prioritized | None = None,
        **options: Any,
    ) -> None:
        ours = sampler if isinstance(sampler, (di_store.Uniform, di_store.Prioritized)) else None
        if isinstance(storage, int):
            generator = options.get("generator")
            seed = None if generator is None else generator.initial_seed() % 2**63
            storage = Storage(storage, sampler=ours, seed=seed)
        elif callable(storage):
            storage = storage()
        if not isinstance(storage, Storage):
            raise TypeError(
                f"storage={type(storage).__name__}: give a di_store.adapters.torchrl.Storage or its max_size; for "
                "another storage use torchrl's TensorDictReplayBuffer"
            )
        if ours is not None:
            if storage.named.sampler not in (None, ours) or (storage.named.sampler is None and storage.initialized):
                raise ValueError(f"the storage draws by {storage.named.sampler!r}: give Storage(sampler={ours!r})")
            storage.named.sampler = ours
        if sampler is None or ours is not None:
            sampler = None if storage.named.sampler is None else TableSampler(storage)
        super().__init__(storage=storage, sampler=sampler, **options)

    @pin_memory_output  # type: ignore[untyped-decorator]
    def _sample(self, batch_size: int) -> tuple[Any, dict[str, Any]]:
        if not isinstance(self._sampler, TableSampler) or self._sample_unit or self._writer.tracks_generations:
            found: tuple[Any, dict[str, Any]] = super()._sample(batch_size)
            return found
        with self._replay_lock, self._write_lock:
            data, info = self._sampler.draw(batch_size)
        data = self._collate_fn(data)
        if self._transform is not None and len(self._transform):
            with data.unlock_(), _set_dispatch_td_nn_modules(True):
                data = self._transform(data)
        return data, info

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of rows that were drawn, from their `priority_key`, as in TorchRL."""
        if not isinstance(self._sampler, TableSampler):
            super().update_tensordict_priority(data)
            return
        if not self._sampler.prioritized or data.get(self.priority_key, None) is None:
            return
        priority = self._get_priority_vector(data) if data.ndim else torch.as_tensor(self._get_priority_item(data))
        of_units = self._anchor_reduced_priority(data, priority) if data.ndim else None
        if of_units is not None:
            self.update_priority(*of_units)
            return
        index, axes = data.get("index"), self._storage.ndim
        while index.ndim > priority.ndim + (axes > 1):
            index = index[..., 0] if axes == 1 else index[..., 0, :]
        self.update_priority(index, priority)
