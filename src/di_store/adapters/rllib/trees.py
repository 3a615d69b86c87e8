"""RLlib's segment trees, with many values set or found in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray.rllib.execution.segment_tree import SegmentTree, SumSegmentTree


def assign(tree: SegmentTree, values: Mapping[int, Any]) -> None:
    """Set leaves. The result is the same tree as after setting one leaf after the other.

    The numbers stay objects, as in RLlib: sums of float32 numbers are float32.
    """
    nodes, size, combine = tree.value, tree.capacity, tree.operation
    above = set()
    for leaf, value in values.items():
        nodes[size + leaf] = value
        above.add((size + leaf) >> 1)
    if isinstance(tree, SumSegmentTree):
        while above:
            for node in above:
                nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            above = {node >> 1 for node in above if node > 1}
    else:
        while above:
            for node in above:
                nodes[node] = combine(nodes[2 * node], nodes[2 * node + 1])
            above = {node >> 1 for node in above if node > 1}


def find(tree: SumSegmentTree, sums: Iterable[Any]) -> list[int]:
    """The leaves where running sums pass these values, as `find_prefixsum_idx`."""
    nodes, size = tree.value, tree.capacity
    total = nodes[1]
    found = []
    for rest in sums:
        if rest >= total:
            rest = total - 1e-5
        node = 1
        while node < size:
            node *= 2
            left = nodes[node]
            if left <= rest:
                rest -= left
                node += 1
        found.append(node - size)
    return found
