"""Checks whether a value can be decoded without importing or running anything that its bytes name."""

from __future__ import annotations

from typing import Any

from di_store.objects.codec.form import Tag, unpack_header

_NAMING = (Tag.NAMED, Tag.DATACLASS, Tag.PICKLE)


def is_plain(header: bytes) -> bool:
    """False if the value holds a pickle, or an instance of a class that is found by its name.

    Raises:
        CorruptData, LayoutMismatch: as `decode`.
    """
    nodes: list[Any] = [unpack_header(header)[1]]
    while nodes:
        node = nodes.pop()
        if type(node) is not list:
            continue
        if node and type(node[0]) is int and node[0] in _NAMING:
            return False
        nodes.extend(node)
    return True
