"""The shard of a key: its highest byte, the number of its table among those that one batch was drawn from.

In a table's own keys the shard is 0. Calls of a table accept only such keys.
"""

from __future__ import annotations

import numpy as np

from di_store._core import KEY_SHARD_AT, KEY_SHARDS
from di_store.base.dtypes import Array

MOST_SHARDS = KEY_SHARDS
_SHIFT = np.uint64(KEY_SHARD_AT)
_PLAIN = np.uint64((1 << KEY_SHARD_AT) - 1)


def with_shard(keys: Array, shard: int) -> Array:
    """A table's keys uint64[n], with `shard` (0 to 255) in their highest byte."""
    tagged: Array = keys | np.uint64(shard << KEY_SHARD_AT)
    return tagged


def shards_of(keys: Array) -> Array:
    """The shard of each key, int64[n]."""
    shards: Array = (keys >> _SHIFT).astype(np.int64)
    return shards


def plain(keys: Array) -> Array:
    """The keys with shard 0, as their own tables know them."""
    own: Array = keys & _PLAIN
    return own
