"""Priorities and importance weights, in Tianshou's sum tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import PrioritizedReplayBuffer
from tianshou.data.utils.segtree import _get_prefix_sum_idx


class WithWeights(PrioritizedReplayBuffer):  # type: ignore[misc]
    """Draws by priorities, and adds importance weights to batches."""

    _beta: Any
    _min_prio: Any
    _size: Any
    _weight_norm: Any

    def init_weight(self, index: Any) -> None:
        """As in Tianshou, but an empty index returns at once: Tianshou's sum tree would loop forever."""
        if np.size(index):
            super().init_weight(index)

    def _renewed(self, places: Any) -> None:
        self.init_weight(places)

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """As in Tianshou, but also for no steps."""
        if np.size(index):
            super().update_weight(index, new_weight)

    def sample_indices(self, batch_size: int | None) -> Any:
        """As in Tianshou, with the same random numbers. It checks the sum of the priorities once, not each number."""
        tree, total = self.weight.__dict__["_value"], self.weight.reduce()
        if batch_size is None or batch_size <= 0 or not (0 < total < np.inf and len(self)):
            return super().sample_indices(batch_size)
        return _get_prefix_sum_idx(np.random.rand(batch_size) * total, len(tree) // 2, tree)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        found = super(PrioritizedReplayBuffer, self).__getitem__(index)
        weight = self.get_weight(index)
        found.__dict__["weight"] = np.asarray(weight / weight.max() if self._weight_norm else weight)
        return found

    def _may_have_nulls(self) -> bool:
        return bool(super()._may_have_nulls()) or self._weights_may_have_nulls()

    def _weights_may_have_nulls(self) -> bool:
        """False if no weight of any step is NaN, also after a division by the largest."""
        lengths: Any = np.atleast_1d(getattr(self, "_lengths", self._size))
        used = lengths > 0
        if not used.any():
            return True
        tree, offsets = self.weight.__dict__["_value"], self.subbuffer_edges[:-1][used]
        priorities = tree[len(tree) // 2 :]
        # reduceat reduces what lies between neighboring edges, which is also what lies between the steps of two lanes.
        edges = np.repeat(offsets, 2)
        edges[1::2] += lengths[used]
        least = np.minimum.reduceat(priorities, edges[:-1] if edges[-1] == len(priorities) else edges)[::2].min()
        # Weights rise or fall with the priority, so that all lie between those of the least one and of the sum.
        weights = (np.array([least, tree[1]]) / self._min_prio) ** -self._beta
        return not bool(((weights > 0) & (weights < np.inf)).all())
