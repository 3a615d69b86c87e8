"""`ReplayBuffer`, a replacement for Dopamine's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from dopamine.jax.replay_memory.accumulator import TransitionAccumulator
from dopamine.jax.replay_memory.replay_buffer import ReplayBuffer as DopamineReplayBuffer

from di_store.adapters.dopamine.frames import Frames
from di_store.adapters.dopamine.leaves import Leaves, rows_of
from di_store.adapters.ring import Ring
from di_store.adapters.stored_array import Array
from di_store.adapters.stores import MadeAtFirst, StoreLike, given_store


class ReplayBuffer(MadeAtFirst, DopamineReplayBuffer):  # type: ignore[misc]
    """A replacement for Dopamine's `ReplayBuffer`, with its arguments, which gin may bind under its name.

    Elements lie in a store of its own. With Dopamine's `TransitionAccumulator`, each observation is stored once, and
    stacked when it is drawn. With other accumulators, the elements are stored as they are.

    Args:
        transition_accumulator: makes elements of transitions.
        sampling_distribution: draws the numbers of elements.
        batch_size: number of elements in a batch.
        max_capacity: number of elements; the oldest are removed first.
        checkpoint_duration: number of checkpoints to keep.
        compress: accepted, without effect.
        store: the store of the elements, see `adapters.stores.StoreLike`; None: a store of its own.
        table: name of the table there.

    Raises:
        ValueError: `max_capacity` or `checkpoint_duration` is below 1.
    """

    add_count: int

    def __init__(self, *args: Any, store: StoreLike = None, table: str = "replay", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given, self._table = given_store(store), table
        if self._max_capacity < 1:
            raise ValueError(f"max_capacity={self._max_capacity}: a buffer holds at least 1 element")
        self._open(self._max_capacity)

    def _open(self, slots: int) -> None:
        """Begin with no elements."""
        kind = Frames if type(self._transition_accumulator) is TransitionAccumulator else Leaves
        if (before := self.__dict__.get("_elements")) is not None:
            before.close()
        self._elements: Frames | Leaves = kind(self._transition_accumulator, slots, self._given, self._table)
        self._slots = slots
        self._oldest = self.add_count
        self._memory = BufferElements(self)

    def _made(self) -> Ring | None:
        return self._elements.rows

    # -- writing ------------------------------------------------------------------------------------------------

    def add(self, transition: Any, **kwargs: Any) -> None:
        """Add a transition. `kwargs` go to the sampling distribution, for each element that the transition completes.

        Raises:
            ValueError: the observation has another shape or type than the first one.
            di_store.CapacityError: at the first transition: the buffer does not fit in the machine's memory.
        """
        elements, distribution = self._elements, self._sampling_distribution
        for element in elements.accumulate(transition):
            key = self.add_count
            elements.put(key % self._slots, element)
            distribution.add(key, **kwargs)
            self.add_count = key + 1
            if self.add_count - self._oldest > self._max_capacity:
                oldest = self._oldest
                self._oldest = oldest + 1
                elements.drop((oldest + 1) % self._slots)
                distribution.remove(oldest)
        if self._given is not None and (rows := elements.rows) is not None:
            rows.flush()

    def clear(self) -> None:
        """Remove all elements, and clear the accumulator and the sampling distribution."""
        self.add_count = self._oldest = 0
        self._elements.clear()
        self._transition_accumulator.clear()
        self._sampling_distribution.clear()

    # -- reading ------------------------------------------------------------------------------------------------

    def sample(self, size: int | None = None, *, with_sample_metadata: bool = False) -> Any:
        """Draw elements, as many as `batch_size` if `size` is None.

        Returns them as one element of arrays ``[size, …]``, and on request the sampling distribution's metadata.
        """
        if self.add_count < 1:
            raise ValueError("the buffer is empty: add() transitions before sample()")
        if size is None:
            size = self._batch_size
        if size < 1:
            raise ValueError(f"size={size}: draw at least 1 element")
        samples = self._sampling_distribution.sample(size)
        batch = self._read(np.asarray(samples.keys))
        return (batch, samples) if with_sample_metadata else batch

    def _read(self, keys: Array) -> Any:
        """The elements with these numbers; KeyError: one was removed."""
        if keys.min() < self._oldest or keys.max() >= self.add_count:
            gone = keys[(keys < self._oldest) | (keys >= self.add_count)][0]
            raise KeyError(int(gone))
        return self._elements.read(keys % self._slots)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def to_state_dict(self) -> dict[str, Any]:
        """The state that `from_state_dict` needs. The state holds each observation once."""
        memory = {"oldest": self._oldest, **self._elements.state(self._live())}
        if "tree" in memory:
            memory["treedef"] = pickle.dumps(memory.pop("tree"))
        return {
            "add_count": self.add_count,
            "memory": memory,
            "sampling_distribution": self._sampling_distribution.to_state_dict(),
            "transition_accumulator": self._transition_accumulator.to_state_dict(),
        }

    def from_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that `to_state_dict` returned, of this class or of Dopamine's own buffer."""
        memory = state_dict["memory"]
        keys = memory["keys"] if "keys" in memory else range(memory["oldest"], state_dict["add_count"])
        theirs: dict[str, Any] = {"keys": (), "values": (), "treedef": pickle.dumps(jax.tree_util.tree_structure(None))}
        if "treedef" in memory:
            values = memory["values"] if "keys" in memory else rows_of(memory["leaves"])
            theirs |= {"keys": keys, "values": values, "treedef": memory["treedef"]}
        super().from_state_dict({**state_dict, "memory": theirs})  # Dopamine's own code loads what it pickles
        elements = map(_unpacked, self._memory.values())
        self._open(max(self._max_capacity, len(keys)))
        self._oldest = keys[0] if len(keys) else self.add_count
        if "treedef" in memory:
            self._elements.restore_elements(self._live(), elements)
        else:
            self._elements.restore(self._live(), memory)

    def _live(self) -> Array:
        """The slots of all elements, oldest first."""
        slots: Array = np.arange(self._oldest, self.add_count) % self._slots
        return slots

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the elements themselves: the loaded buffer has a store of its own.

        With a given store, pickle the name of its table.
        """
        state = self.__dict__.copy()
        if self._given is not None and self._elements.rows is not None:
            del state["_memory"]
            return state
        for name in ("_elements", "_memory"):
            del state[name]
        state["_given"] = None
        return state | {"elements": self._elements.state(self._live())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        elements = state.pop("elements", None)
        self.__dict__.update(state)
        if elements is None:
            self._memory = BufferElements(self)
            self._match()
            return
        oldest = self._oldest
        self._open(self._slots)
        self._oldest = oldest
        self._elements.restore(self._live(), elements)

    def _match(self) -> None:
        """Continue with the table.

        Elements whose rows were overwritten meanwhile are lost, and so are all older ones.
        """
        lost = np.flatnonzero(self._elements.match(self._live()))
        if not len(lost):
            return
        oldest = self._oldest + int(lost[-1]) + 1
        for key in range(self._oldest, oldest):
            self._sampling_distribution.remove(key)
        self._oldest = oldest
        self._elements.drop(oldest % self._slots if oldest < self.add_count else None)


def _unpacked(element: Any) -> Any:
    return element.unpack() if getattr(element, "is_compressed", False) else element


class BufferElements(Mapping[int, Any]):
    """The elements of a buffer by number, oldest first. Each element is read when it is accessed."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __len__(self) -> int:
        return int(self._buffer.add_count - self._buffer._oldest)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._buffer._oldest, self._buffer.add_count))

    def __getitem__(self, key: int) -> Any:
        return jax.tree_util.tree_map(lambda leaf: leaf[0], self._buffer._read(np.array([key])))
