"""A node of the cluster: a store and the agent that serves it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from di_store.base.errors import NodeUnavailable, shown
from di_store.client.address import Address

HERE = "here"
HOME_BYTES = 6
"""So many bytes of an object's id name the node where it was put."""


class Node(msgspec.Struct, frozen=True):
    """One node. A newly created store is another node, even at the same address.

    Attributes:
        uuid: uuid of its store, 32 hex characters.
        name: name of the machine, for people.
        address: address of its agent, with the name of its store.
    """

    uuid: str
    name: str
    address: str

    @property
    def home(self) -> bytes:
        """The first bytes of the ids of objects that were put on this node."""
        return bytes.fromhex(self.uuid)[:HOME_BYTES]

    @property
    def place(self) -> str:
        """A readable text that distinguishes the node from others, since several may be on one machine."""
        address = Address.parse(self.address)
        return f"{address.node} (store {address.store}, machine {self.name})"

    def is_called(self, text: str) -> bool:
        """Whether ``node=`` names this node: by its machine, its store, its ``host:port``, or its uuid."""
        address = Address.parse(self.address)
        return text in (self.name, address.store, address.node, self.uuid)


def called(nodes: Iterable[Node], text: object) -> Node:
    """The node that ``node=`` names.

    Raises:
        NodeUnavailable: there is no such node. ValueError: there are several such nodes.
    """
    if not isinstance(text, str):
        raise TypeError(f"node={shown(text)}: give the name of a machine or a store, or its host:port")
    every = list(nodes)
    found = [each for each in every if each.is_called(text)]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(each.place for each in found)
        raise ValueError(f"node={shown(text)} is the name of {len(found)} nodes: give one of {which}")
    known = ", ".join(sorted(each.place for each in every)) or "none"
    raise NodeUnavailable(f"the cluster has no node {shown(text)}", remedy=f"its nodes are: {known}")
