"""Entries of Tianshou's batches and their types; counts of a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch
from tianshou.data.buffer.buffer_base import MalformedBufferError

import di_store
from di_store.adapters.stored_array import StoredArray
from di_store.adapters.trees import Tree, any_nan

STORED = ("obs", "act", "obs_next")
"""Entries that lie in the table."""
TOLD = ("rew", "terminated", "truncated")
"""Entries that the table of a given store holds as well."""

_NEEDED = {"obs", "act", "rew", "terminated", "truncated"}


def prepare(values: dict[str, Any], stacked: bool, following: bool, only_last: bool) -> None:
    """Make the entries of a step those that a buffer keeps.

    Args:
        values: the entries.
        stacked: whether they have a leading axis.
        following: whether next observations are kept.
        only_last: whether only the last frames of observations are kept.

    Raises:
        ValueError: an entry is missing.
    """
    if not values.keys() >= _NEEDED:
        raise ValueError("a step needs obs, act, rew, terminated and truncated")
    values["done"] = np.logical_or(values["terminated"], values["truncated"])
    if not following:
        values.pop("obs_next", None)
    if only_last:
        for name in {"obs", "obs_next"} & values.keys():
            values[name] = values[name][:, -1] if stacked else values[name][-1]


def spec_of(value: Any, lead: int) -> Tree | None:
    """The columns of an entry; None: a table has no columns for it."""
    if isinstance(value, Batch):
        inner = {key: spec_of(each, lead) for key, each in value.items()}
        if not inner or not all(inner.values()):
            return None
        return {key: spec for key, spec in inner.items() if spec is not None}
    if not (isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"):
        return None
    return di_store.Spec(value.shape[lead:], value.dtype)


def told_of(values: dict[str, Any], lead: int, specs: dict[str, Tree]) -> Tree:
    """Types of the further entries of a step that a given store also holds, so that a buffer can continue with it.

    Args:
        values: values of a step.
        lead: leading axes, which are not part of the types.
        specs: types of the entries that already have columns.

    Raises:
        TypeError: a table has no columns for an entry.
    """
    if lacking := [name for name in STORED if name in values and name not in specs]:
        raise TypeError(
            f"{lacking[0]} of the step is not made of arrays of numbers, and store= can hold nothing else: "
            "leave out store="
        )
    return {name: di_store.Spec(np.shape(values[name])[lead:], np.asarray(values[name]).dtype) for name in TOLD}


def as_batch(data: Any) -> Any:
    """A nested dict as Tianshou's Batch, with its leaves unchanged."""
    if not isinstance(data, dict):
        return data
    found = Batch()
    found.__dict__.update({key: as_batch(value) for key, value in data.items()})
    return found


def taken(value: Any, index: Any) -> Any:
    """``value[index]``, but faster; None: an entry is neither an array nor a Batch of arrays.

    Args:
        value: an entry.
        index: int[n].
    """
    if isinstance(value, np.ndarray):
        return value.take(index, 0)
    if not isinstance(value, Batch):
        return None
    found = Batch()
    inner = found.__dict__
    for key, each in value.__dict__.items():
        if (part := taken(each, index)) is None:
            return None
        inner[key] = part
    return found


def with_arrays(value: Any) -> Any:
    """The same entries with arrays in place of columns of a table."""
    if isinstance(value, StoredArray):
        return value[:]
    if isinstance(value, Batch):
        return as_batch({key: with_arrays(each) for key, each in value.items()})
    return value


def part_of(value: Any, part: slice) -> Any:
    """Views of some steps of all entries."""
    if isinstance(value, Batch):
        return as_batch({key: part_of(each, part) for key, each in value.items()})
    return value.part(part) if isinstance(value, StoredArray) else value[part]


def may_have_nulls(value: Any) -> bool:
    """False if `Batch.hasnull` finds none in this entry, nor in any part of it."""
    if isinstance(value, np.ndarray):  # asked first: it takes less time than to ask for a Batch
        return value.dtype.kind not in "biuf" or any_nan(value)  # of objects and text it is not known
    return any(map(may_have_nulls, value.__dict__.values())) if isinstance(value, Batch) else True


def count_step(state: dict[str, Any], reward: Any, done: Any) -> tuple[int, Any, int, int]:
    """Count a step in the attributes of a buffer, as Tianshou does.

    Returns its index; the return and length of the episode if it ended, otherwise zeros; and the episode's first index.
    """
    index, maxsize, start = state["_insertion_idx"], state["maxsize"], state["_ep_start_idx"]
    state["last_index"][0] = index
    state["_size"] = size = min(state["_size"] + 1, maxsize)
    state["_insertion_idx"] = following = (index + 1) % maxsize
    ep_return, ep_len = state["_ep_return"] + reward, state["_ep_len"] + 1
    if start > size:
        raise MalformedBufferError(
            f"an episode starts at {start}, and {size} steps are stored: was the buffer changed?"
        )
    if done:
        state["_ep_return"], state["_ep_len"], state["_ep_start_idx"] = 0.0, 0, following
        return index, ep_return, ep_len, start
    state["_ep_return"], state["_ep_len"] = ep_return, ep_len
    return index, np.zeros_like(ep_return) if isinstance(ep_return, np.ndarray) else type(ep_return)(0), 0, start


def order_of(buffer: Any) -> Any:
    """The indices of all steps of a buffer of one environment, oldest first."""
    begin, size = int(buffer._insertion_idx), int(buffer._size)
    return np.concatenate((np.arange(begin, size), np.arange(begin)))
