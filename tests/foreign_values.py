"""Values as an agent writes them that another machine sent, and pickles that would run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import di_store
from di_store import _core
from di_store.objects.codec import encode
from di_store.objects.codec.form import pack_header

REFUSED = "came from another machine and holds a"


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def arena_of(store: di_store.Store) -> _core.Arena:
    return store._backend.session.arena


def reserved(store: di_store.Store, value: Any, id: bytes | None = None, **options: Any) -> _core.Reserved:
    """A draft that holds a value; it is foreign unless `options` says otherwise."""
    encoded = encode(value)
    options = {"foreign": True, **options}
    draft = arena_of(store).reserve(encoded.header, encoded.payload_bytes, id, 0.0, **options)
    payload = draft.payload()
    for buffer, offset, size in zip(encoded.buffers, encoded.offsets, encoded.sizes, strict=True):
        payload[offset : offset + size] = np.frombuffer(buffer, np.uint8)
    return draft


def put_foreign(store: di_store.Store, value: Any, id: str | None = None) -> str:
    draft = reserved(store, value, None if id is None else bytes.fromhex(id))
    draft.seal()
    return draft.id.hex()


def put_node(store: di_store.Store, node: Any) -> str:
    """A foreign object without payload whose header holds this node."""
    draft = arena_of(store).reserve(pack_header(0, node), 0, None, 0.0, foreign=True)
    draft.seal()
    return draft.id.hex()
