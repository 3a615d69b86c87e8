"""Buffers in a given store: they continue with the steps that its table already holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBufferManager

import di_store
from di_store.adapters.stores import MadeAtFirst, StoreLike, given_store
from di_store.adapters.tianshou.entries import STORED, TOLD
from di_store.adapters.tianshou.stored import Stored


class Given(MadeAtFirst, Stored):
    """The argument `store=`.

    Args:
        args: arguments of Tianshou's class.
        store: the store of the steps, see `adapters.stores.StoreLike`; None: a store of its own.
        table: name of the table there.
        kwargs: arguments of Tianshou's class.
    """

    def __init__(self, *args: Any, store: StoreLike = None, table: str = "replay", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self, ReplayBufferManager):
            del self.options  # see `NoOptions`
        self._given, self._name = given_store(store), table
        if (places := self._resume()) is not None:
            self._renewed(places)

    def _resume(self) -> Any:
        """Continue with the steps in the table; returns their indices, or None if there are none."""
        if self._given is None or self._name not in self._given.stats()["tables"]:
            return None
        table = self._given.table(self._name)
        if not len(table):
            return None
        schema, follows = table.schema, isinstance(table.view, di_store.Transition)
        if schema is None or not {"step", "slot"} <= schema.keys():
            raise ValueError(f"table {self._name!r} was not made by a Tianshou buffer: give table= another name")
        if not self._save_obs_next and (follows or "obs_next" in schema):
            raise ValueError(f"table {self._name!r} was made without ignore_obs_next=True: leave it out here too")
        self._make({name: schema[name] for name in (*STORED, "step") if name in schema}, follows)
        held = self._there().take_over(("step",))
        self._set_told(held.slots, held.data["step"])
        # An episode that goes on in no row is cut off, also that of the newest step: its collector is gone.
        done, truncated = self._meta.__dict__["done"], self._meta.__dict__["truncated"]
        last = held.slots[held.last]
        cut_off = last[~done[last].reshape(len(last), -1).any(axis=1)]
        truncated[cut_off] = done[cut_off] = True
        lanes = held.slots // (self.maxsize // self.buffer_num)
        for lane in range(self.buffer_num):
            self._resume_lane(lane, held.slots[lanes == lane])
        self._linked()
        return held.slots

    def _set_told(self, places: Any, told: Any) -> None:
        meta = self._meta.__dict__
        for name in TOLD:
            meta[name] = np.zeros((self.maxsize, *told[name].shape[1:]), told[name].dtype)
            meta[name][places] = told[name]
        meta["done"] = meta["terminated"] | meta["truncated"]

    def _resume_lane(self, lane: int, places: Any) -> None:
        """Set the position of a lane's buffer to the end of these steps, which are in the order of their writing."""
        if not (count := len(places)):
            return
        each = self.maxsize // self.buffer_num
        newest = int(places[-1]) - lane * each
        expected = (newest + 1 - count + np.arange(count)) % each
        if (count < each and newest + 1 != count) or (places - lane * each != expected).any():
            raise di_store.StoreError(
                f"steps of environment {lane} are missing from table {self._name!r}: another process removed them",
                remedy="give table= another name, or drop the table",
            )
        manages = isinstance(self, ReplayBufferManager)
        state, following = (self.buffers[lane] if manages else self).__dict__, (newest + 1) % each
        state |= {"_size": count, "_insertion_idx": following, "last_index": np.array([newest])}
        state |= {"_ep_start_idx": following, "_ep_len": 0, "_ep_return": 0.0}
        if manages:
            self.last_index[lane], self._lengths[lane] = places[-1], count

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load a buffer: with a store of its own, or with the given store, in which it continues."""
        if (keys := state.pop("_keys", None)) is None:
            super().__setstate__(state)
            return
        self.__dict__.update(state)
        if (places := self._resume()) is None:
            self._meta = Batch()
            self.reset()
            return
        changed = places[keys[places] != self._there().keys[places]]
        if len(changed):  # the table holds other steps than when this was saved
            for name in ("info", "policy"):
                self._meta.__dict__.pop(name, None)
            self._linked()
        self._renewed(changed)
